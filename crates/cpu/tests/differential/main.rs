//! Rows that are hard to search: long ones against the oracle, and how often any is read. The conformance
//! suite holds rows of all kinds under all parameters.

mod long;
mod visits;

use gumball_spec::num::philox4x32_10;

/// A stream of words.
struct Dice(u64, u32);

impl Dice {
    fn word(&mut self) -> u32 {
        self.1 += 1;
        philox4x32_10(self.0, [self.1, 0, 9, 0])[0]
    }
    fn below(&mut self, n: usize) -> usize {
        ((u64::from(self.word()) * n as u64) >> 32) as usize
    }
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    fn unit(&mut self) -> f32 {
        self.word() as f32 / 4_294_967_296.0
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
