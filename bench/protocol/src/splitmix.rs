//! A small generator for the bench's own inputs: SplitMix64 (Steele, Lea, Flood, 2014).
//!
//! It feeds rows, histories and masks; no engine draws tokens from it.

/// A stream of 64-bit words, the same for the same seed everywhere.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    /// Starts the stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next word.
    pub fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A uniform of [0, 1), a multiple of 2^-53.
    pub fn uniform(&mut self) -> f64 {
        (self.word() >> 11) as f64 * (0.5f64).powi(53)
    }

    /// A whole number of 0..`n`; its bias is below `n` / 2^53.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.uniform() * n as f64) as usize).min(n - 1)
    }

    /// Two independent standard normals (Box and Muller, 1958).
    pub fn normals(&mut self) -> [f64; 2] {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * self.uniform()).sin_cos();
        [radius * cos, radius * sin]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_seed_1234567_is_the_published_one() {
        let mut words = SplitMix64::new(1234567);
        let first = [words.word(), words.word(), words.word()];
        assert_eq!(first, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn uniforms_and_normals_have_their_moments() {
        let mut words = SplitMix64::new(7);
        let n = 20_000;
        let mut sums = [0.0; 3];
        for _ in 0..n {
            let uniform = words.uniform();
            assert!((0.0..1.0).contains(&uniform));
            sums[0] += uniform;
            for normal in words.normals() {
                sums[1] += normal / 2.0;
                sums[2] += normal * normal / 2.0;
            }
        }
        let [mean, normal_mean, normal_square] = sums.map(|sum| sum / n as f64);
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert!(normal_mean.abs() < 0.03, "{normal_mean}");
        assert!((normal_square - 1.0).abs() < 0.05, "{normal_square}");
    }

    #[test]
    fn below_reaches_every_number_and_none_above() {
        let mut words = SplitMix64::new(3);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[words.below(5)] = true;
        }
        assert_eq!(seen, [true; 5]);
    }
}
