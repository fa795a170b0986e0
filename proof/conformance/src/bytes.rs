//! Choices from bytes: numbers and picks of a list, from a stream that never ends.
//!
//! Bytes that have run out read as zero, which is the first choice of every list.

/// A reader of bytes that never ends.
#[derive(Clone, Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Bytes<'_> {
    /// Returns the next byte; 0 after the end.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Returns the next four bytes as a word.
    pub fn word(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// Returns a number in `0..n`, for n up to 65536; 0 for a byte of 0.
    pub fn below(&mut self, n: usize) -> usize {
        let value = if n <= 256 { usize::from(self.byte()) } else { (self.word() & 0xFFFF) as usize };
        value % n
    }

    /// Returns one of some values, the first for a byte of 0.
    pub fn of<T: Clone>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())].clone()
    }

    /// Returns true for one byte in `n`.
    pub fn seldom(&mut self, n: u8) -> bool {
        self.byte() % n == n - 1
    }

    /// Returns a fraction in 0..=1, coarse or fine.
    pub fn fraction(&mut self) -> f32 {
        match self.byte() % 4 {
            0 => f32::from(self.byte()) / 255.0,
            1 => (self.word() >> 8) as f32 / 16_777_216.0,
            2 => 1.0 - (self.word() >> 20) as f32 / 16_777_216.0,
            _ => f32::from_bits(self.word() % 0x3F80_0001),
        }
    }

    /// Returns any finite number, mostly of ordinary size.
    pub fn number(&mut self) -> f32 {
        let coarse = f32::from(i16::from_le_bytes([self.byte(), self.byte()]));
        match self.byte() % 6 {
            0 | 1 => coarse / 256.0,
            2 => coarse / 65_536.0,
            3 => coarse,
            4 => coarse * 1e34,
            _ => Some(f32::from_bits(self.word())).filter(|x| x.is_finite()).unwrap_or(0.5),
        }
    }
}
