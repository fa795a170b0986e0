//! Edits of probabilities, carried back to logits.
//!
//! Candle's `sample_f` lets the caller edit the row's softmax. The engine edits logits. So the softmax is
//! computed, edited, and each probability that changed becomes the logit that has it:
//!
//! `z = z_max + (log2(p) + log2(mass)) / s`, with `s = log2(e) / T` and `mass = sum of 2^((z - z_max) s)`.
//!
//! The others keep their logits to the bit, so an edit that changes nothing changes no token. As in candle
//! the edited probabilities are weights: they need not sum to 1.

use gumball_spec::num::{LOG2_E, exp2, log2};

/// Lets `edit` change the probabilities of a row at a temperature above 0.
///
/// 0 and less become -inf, NaN and +inf pass through as such. In a row without a logit above -inf all
/// probabilities are 0, and no edit has an effect.
pub(crate) fn edit_probabilities(z: &mut [f32], temperature: f32, edit: impl FnOnce(&mut [f32])) {
    let s = LOG2_E / temperature;
    let max = z.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut p: Vec<f32> = match max {
        f32::NEG_INFINITY => vec![0.0; z.len()],
        _ => z.iter().map(|z| exp2((z - max) * s)).collect(),
    };
    let mass: f64 = p.iter().map(|weight| f64::from(*weight)).sum();
    if mass > 0.0 {
        p.iter_mut().for_each(|p| *p = (f64::from(*p) / mass) as f32);
    }
    let before = p.clone();
    edit(&mut p);
    let log_mass = log2(mass as f32);
    for ((z, p), before) in z.iter_mut().zip(&p).zip(&before) {
        if p.to_bits() != before.to_bits() {
            *z = match *p {
                p if p.is_nan() || p == f32::INFINITY => p,
                p if p > 0.0 => max + (log2(p) + log_mass) / s,
                _ => f32::NEG_INFINITY,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const Z: [f32; 5] = [1.0, -2.0, f32::NEG_INFINITY, 0.25, 3.0];

    #[test]
    fn the_edit_sees_the_softmax() {
        for temperature in [0.5f32, 1.0, 2.0] {
            let weights = Z.map(|z| (f64::from(z) / f64::from(temperature)).exp());
            let mass: f64 = weights.iter().sum();
            edit_probabilities(&mut Z.clone(), temperature, |p| {
                for (p, weight) in p.iter().zip(weights) {
                    assert!((f64::from(*p) - weight / mass).abs() < 1e-6);
                }
            });
        }
    }

    #[test]
    fn what_is_not_changed_keeps_its_logit_and_what_is_gets_that_of_its_probability() {
        let mut z = Z;
        edit_probabilities(&mut z, 0.7, |p| {
            p[0] *= 0.5;
            p[1] = 0.0;
            p[2] = p[4];
        });
        assert_eq!((z[1], z[3], z[4]), (f32::NEG_INFINITY, Z[3], Z[4]));
        assert!((z[0] - (Z[0] - 0.7 * 2f32.ln())).abs() < 1e-5, "{}", z[0]);
        assert!((z[2] - Z[4]).abs() < 1e-5, "{}", z[2]);
    }

    #[test]
    fn odd_probabilities_and_empty_rows() {
        let mut z = [0.0; 3];
        edit_probabilities(&mut z, 1.0, |p| p.copy_from_slice(&[-0.5, f32::NAN, f32::INFINITY]));
        assert!(z[0] == f32::NEG_INFINITY && z[1].is_nan() && z[2] == f32::INFINITY);
        let mut z = [f32::NEG_INFINITY; 2];
        edit_probabilities(&mut z, 1.0, |p| {
            assert_eq!(p, [0.0, 0.0]);
            p[0] = 1.0;
        });
        assert_eq!(z, [f32::NEG_INFINITY; 2]);
    }
}
