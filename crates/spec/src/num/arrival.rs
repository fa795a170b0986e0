//! Exponential variables from random words: the arrivals of the race, in units of 1/ln 2.
//!
//! `Exp = -log2(1 - u)`. Near `u = 0` that is computed from `u` and elsewhere from `1 - u`, so the result
//! keeps its relative precision at both ends: small arrivals decide the race, and large ones must not
//! pile up. The factor ln 2 drops out of a race, so it is left out.

use super::log2::{log2, log2_one_plus};

/// Words below this take the branch near zero; at the switch both give 0.5 (N3).
pub const SWITCH_32: u32 = 0x4AFB_0CCD;
/// The switch for 64-bit uniforms (N4).
pub const SWITCH_64: u64 = 0x4AFB_0CCC_0621_9B7C;

const TWO_POW_MINUS_33: f32 = f32::from_bits((127 - 33) << 23);
const TWO_POW_MINUS_64: f32 = f32::from_bits((127 - 64) << 23);

/// Returns the exponential variable of a 32-bit word (N3). Non-decreasing in the word.
#[must_use]
pub fn exp_of_u32(r: u32) -> f32 {
    let uniform = |word: u32| (2 * u64::from(word) + 1) as f32 * TWO_POW_MINUS_33;
    if r < SWITCH_32 {
        let v = uniform(r);
        v * log2_one_plus(-v)
    } else {
        -log2(uniform(!r))
    }
}

/// Returns the exponential variable of a 64-bit word (N4), between 7.8e-20 and 64.
#[must_use]
pub fn exp_of_u64(u: u64) -> f32 {
    let uniform = |word: u64| word.max(1) as f32 * TWO_POW_MINUS_64;
    if u < SWITCH_64 {
        let v = uniform(u);
        v * log2_one_plus(-v)
    } else {
        -log2(uniform(!u))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_branches_meet_at_the_switch() {
        assert_eq!(exp_of_u32(SWITCH_32 - 1), 0.5);
        assert_eq!(exp_of_u32(SWITCH_32), 0.5);
        assert_eq!(exp_of_u64(SWITCH_64 - 1), 0.5);
        assert_eq!(exp_of_u64(SWITCH_64), 0.5);
    }

    #[test]
    fn the_ends_are_finite() {
        assert_eq!(exp_of_u64(0), exp_of_u64(1));
        assert!(exp_of_u64(0) > 7.8e-20 && exp_of_u64(0) < 7.9e-20);
        assert_eq!(exp_of_u64(u64::MAX), 64.0);
        assert_eq!(exp_of_u32(u32::MAX), 33.0);
        assert!(exp_of_u32(0) > 0.0);
    }
}
