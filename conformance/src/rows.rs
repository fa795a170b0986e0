//! Rows of logits made from integers alone, so that every machine makes the same ones.

/// A stream of words (splitmix64).
#[derive(Clone, Debug)]
pub struct Words(pub u64);

impl Words {
    /// Returns the next word.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    /// Returns a number in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }

    /// Returns a number in `[0, 1)`, a multiple of 2^-24.
    pub fn fraction(&mut self) -> f32 {
        (self.word() >> 40) as f32 * f32::from_bits((127 - 24) << 23)
    }

    /// Returns a bell-shaped number: the sum of twelve uniform ones, of deviation 1.
    pub fn bell(&mut self) -> f32 {
        let sum: u64 = (0..3)
            .map(|_| self.word())
            .map(|word| (0..4).map(|i| word >> (16 * i) & 0xFFFF).sum::<u64>())
            .sum();
        (sum as f32 - 6.0 * 65_535.0) / 65_536.0
    }
}

/// Returns a row like a model's: a bell of deviation 2, and twenty peaks raised by 6 to 14.
#[must_use]
pub fn model_like(vocab: usize, seed: u64) -> Vec<f32> {
    let mut words = Words(seed);
    let mut row: Vec<f32> = (0..vocab).map(|_| 2.0 * words.bell()).collect();
    for _ in 0..20 {
        let id = words.below(vocab);
        row[id] += 6.0 + 8.0 * words.fraction();
    }
    row
}

/// Returns a bell-shaped row of a deviation.
#[must_use]
pub fn bell(vocab: usize, deviation: f32, seed: u64) -> Vec<f32> {
    let mut words = Words(seed);
    (0..vocab).map(|_| deviation * words.bell()).collect()
}

/// Returns a row of few distinct values, so that most cuts fall on ties.
#[must_use]
pub fn grid(vocab: usize, step: f32, levels: usize, seed: u64) -> Vec<f32> {
    let mut words = Words(seed);
    (0..vocab).map(|_| step * words.below(levels) as f32).collect()
}
