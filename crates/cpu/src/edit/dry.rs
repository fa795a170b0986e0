//! DRY: how long a repeat each id would continue, in one pass over the history (rule E3).
//!
//! Read backwards, the history is compared with itself shifted by every distance: that is the Z-function,
//! which costs one step per id, however much the history repeats.

use gumball_spec::Dry;

use crate::History;

/// Buffers kept between rows.
#[derive(Debug, Default)]
pub struct Buffers {
    /// `z[i]`: how many ids before place `N - i` equal the last ones of the history.
    z: Vec<u32>,
    repeats: Vec<(u32, u32)>,
}

impl Buffers {
    /// Calls `penalise(id, penalty)` once for each id that would continue a long enough repeat.
    pub fn lengths(&mut self, history: &History, dry: &Dry, mut penalise: impl FnMut(u32, f32)) {
        let ids = history.last(dry.window);
        let unbroken = ids.iter().rev().take_while(|id| !dry.breakers.contains(id)).count() as u32;
        if unbroken < dry.allowed_length {
            return;
        }
        self.z_function(ids);
        self.repeats.clear();
        for (back, length) in self.z.iter().enumerate().skip(1) {
            let length = (*length).min(unbroken);
            if length >= dry.allowed_length {
                // The repeat ends before the id that lies `back` places from the end.
                self.repeats.push((ids[ids.len() - back], length));
            }
        }
        self.repeats.sort_unstable();
        for run in self.repeats.chunk_by(|a, b| a.0 == b.0) {
            let (id, length) = run[run.len() - 1];
            let mut power = 1.0f32;
            for _ in 0..(length - dry.allowed_length).min(64) {
                power *= dry.base;
            }
            penalise(id, dry.multiplier * power);
        }
    }

    fn z_function(&mut self, ids: &[u32]) {
        let n = ids.len();
        let at = |i: usize| ids[n - 1 - i];
        self.z.clear();
        self.z.resize(n, 0);
        let (mut start, mut end) = (0, 0);
        for i in 1..n {
            let mut length = if i < end { (self.z[i - start] as usize).min(end - i) } else { 0 };
            while i + length < n && at(length) == at(i + length) {
                length += 1;
            }
            self.z[i] = length as u32;
            if i + length > end {
                (start, end) = (i, i + length);
            }
        }
    }
}
