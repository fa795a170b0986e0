//! A small generator for inputs: SplitMix64 (Steele, Lea, Flood, 2014).
//!
//! It feeds rows, histories, masks and cases of tests; no engine draws tokens from it. Numbers are made from
//! integers alone, so that every machine makes the same ones.

/// A stream of 64-bit words, the same for the same seed everywhere.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_seed_1234567_is_the_published_one() {
        let mut words = Words(1_234_567);
        let first = [words.word(), words.word(), words.word()];
        assert_eq!(first, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn fractions_and_bells_have_their_moments() {
        let mut words = Words(7);
        let n = 20_000;
        let mut sums = [0.0f64; 3];
        for _ in 0..n {
            let fraction = words.fraction();
            assert!((0.0..1.0).contains(&fraction));
            let bell = f64::from(words.bell());
            for (sum, value) in sums.iter_mut().zip([f64::from(fraction), bell, bell * bell]) {
                *sum += value;
            }
        }
        let [mean, bell_mean, bell_square] = sums.map(|sum| sum / f64::from(n));
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        assert!(bell_mean.abs() < 0.03, "{bell_mean}");
        assert!((bell_square - 1.0).abs() < 0.05, "{bell_square}");
    }

    #[test]
    fn below_reaches_every_number_and_none_above() {
        let mut words = Words(3);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[words.below(5)] = true;
        }
        assert_eq!(seen, [true; 5]);
    }
}
