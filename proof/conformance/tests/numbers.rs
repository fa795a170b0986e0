//! The numbers of `spec` (N1 to N4, N8) against f64 and against bits worked out apart.
//!
//! Backends show them only through masses and draws, which the rules hold; here the definition itself is held
//! to the errors the rules state. Sweeps over every input are the programs of `docs/numerics.md`.

use gumball_conformance::reference;
use gumball_conformance::rows::{bell, grid, model_like};
use gumball_engine::{LogitsMut, Operators, PerRow, Rows};
use gumball_spec::num::{exp_of_u32, exp_of_u64, exp2, log2, philox4x32_10};

/// Evaluates a polynomial, lowest power first, with one rounding to f32 a step.
fn horner(coefficients: &[f64], f: f32) -> f32 {
    coefficients
        .iter()
        .rev()
        .fold(None, |sum: Option<f32>, c| {
            Some(match sum {
                None => *c as f32,
                Some(sum) => fma(sum, f, *c as f32),
            })
        })
        .expect("not empty")
}

/// Rounds a b + c once: a b is exact in f64, and rounding the sum to odd keeps what a second rounding needs.
fn fma(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let back = sum - product;
    let error = (product - (sum - back)) + (c - back);
    let odd = if error != 0.0 && sum.to_bits() & 1 == 0 {
        let away = (error > 0.0) == (sum > 0.0);
        f64::from_bits(if away { sum.to_bits() + 1 } else { sum.to_bits() - 1 })
    } else {
        sum
    };
    odd as f32
}

#[test]
fn log2_is_its_polynomial_around_one() {
    let p = [
        1.44269502,
        -0.721347392,
        0.480909109,
        -0.360699952,
        0.287947953,
        -0.239030987,
        0.215552017,
        -0.206686974,
        0.125518844,
    ];
    for bits in (1u32..0x7F80_0000).step_by(65_521) {
        let x = f32::from_bits(bits);
        // Exact: a power of two and a number in [1, 2), by division.
        let mut e = (f64::from(x).log2().floor()) as i32;
        let mut m = f64::from(x) / 2f64.powi(e);
        if m >= 2.0 {
            (m, e) = (m / 2.0, e + 1);
        }
        if (m - 1.0) * 8_388_608.0 > f64::from(0x35_04F3) {
            (m, e) = (m / 2.0, e + 1);
        }
        let f = (m - 1.0) as f32;
        assert_eq!(f64::from(f), m - 1.0, "exact");
        assert_eq!(log2(x).to_bits(), fma(horner(&p, f), f, e as f32).to_bits(), "{x:e}");
    }
    assert_eq!(log2(0.0), f32::NEG_INFINITY);
}

#[test]
fn exp2_is_its_polynomial_scaled() {
    let p = [1.0, 0.693147182, 0.240226477, 0.0555035956, 0.00961850025, 0.00133909716, 0.000153290152];
    for i in 0..400_000u32 {
        let d = -(i as f32) * 3.15e-4;
        let n = d.round_ties_even();
        let expected = f64::from(horner(&p, d - n)) * 2f64.powi(n as i32);
        assert_eq!(f64::from(exp2(d)), expected, "{d}");
        assert!((expected / f64::from(d).exp2() - 1.0).abs() < 6.6e-8, "{d}");
    }
    assert_eq!(exp2(-126.0), f32::MIN_POSITIVE);
    assert_eq!(exp2(f32::from_bits((-126.0f32).to_bits() + 1)).to_bits(), 0);
}

#[test]
fn exp_of_32_bits_is_the_logarithm_of_a_uniform() {
    for i in 0..500_000u64 {
        for word in [(i * 8_589) as u32, i as u32, !(i as u32), 0x4AFB_0CCDu32.wrapping_add(i as u32)] {
            let v = (2.0 * f64::from(word) + 1.0) / 2f64.powi(33);
            let rest = (2.0 * f64::from(!word) + 1.0) / 2f64.powi(33);
            let exact = if v < 0.5 { -(-v).ln_1p() } else { -rest.ln() } / std::f64::consts::LN_2;
            assert!((f64::from(exp_of_u32(word)) / exact - 1.0).abs() < 2.6e-7, "{word}");
        }
    }
}

#[test]
fn exp_of_64_bits_is_the_logarithm_of_a_uniform() {
    for shift in 0..64 {
        for low in [0u64, 1, 0x1234_5678_9ABC_DEF0 >> shift] {
            for u in [(1u64 << shift) | low, !((1u64 << shift) | low)] {
                let v = u.max(1) as f64 / 2f64.powi(64);
                let rest = (!u).max(1) as f64 / 2f64.powi(64);
                let exact = if v < 0.5 { -(-v).ln_1p() } else { -rest.ln() } / std::f64::consts::LN_2;
                assert!((f64::from(exp_of_u64(u)) / exact - 1.0).abs() < 2.6e-7, "{u:x}");
            }
        }
    }
    assert_eq!(exp_of_u64(u64::MAX), 64.0);
    assert_eq!(exp_of_u64(0), exp_of_u64(1));
}

#[test]
fn philox_gives_the_published_words() {
    for philox in [philox4x32_10, reference::philox] {
        assert_eq!(philox(0, [0; 4]), [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
        assert_eq!(philox(u64::MAX, [u32::MAX; 4]), [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]);
    }
    for i in 0..1000u32 {
        let counter = [i, i.wrapping_mul(77), 1, !i];
        assert_eq!(
            philox4x32_10(u64::from(i) << 20, counter),
            reference::philox(u64::from(i) << 20, counter)
        );
    }
}

/// The softmax of whole rows, of vocabularies that models have, against f64. The bound counts roundings: two
/// of each of the two y (M2), one of their distance, and six of `exp2`, the mass and the quotient.
#[test]
fn probabilities_are_near_those_of_f64() {
    let operators = Operators::new(None, Some(1)).unwrap();
    let mut worst: f64 = 0.0;
    for vocab in [32_000, 128_256] {
        let rows = [bell(vocab, 0.1, 3), grid(vocab, 0.5, 20, 5), model_like(vocab, 7), vec![1.5; vocab]];
        for (row, temperature) in rows.iter().flat_map(|row| [0.3, 1.0, 2.0].map(|t| (row, t))) {
            let mut out = vec![f32::NAN; vocab];
            let to = LogitsMut::new(&mut out[..], 1, vocab).unwrap();
            let from = Rows::logits(row, 1, vocab).unwrap();
            operators.softmax((from, to), PerRow::All(temperature), None).unwrap();
            let scale = std::f64::consts::LOG2_E / f64::from(temperature);
            let y: Vec<f64> = row.iter().map(|z| f64::from(*z) * scale).collect();
            let first = y.iter().copied().fold(f64::MIN, f64::max);
            let mass: f64 = y.iter().map(|y| (y - first).exp2()).sum();
            for (y, p) in y.iter().zip(&out) {
                let exact = (y - first).exp2() / mass;
                let roundings = 6.0 + 2.0 * (y.abs() + first.abs()) + (first - y);
                if exact > 1e-30 {
                    worst = worst.max((f64::from(*p) / exact - 1.0).abs() / (roundings * 2f64.powi(-24)));
                }
            }
        }
    }
    println!("of the bound: {worst:.3}");
    assert!(worst < 1.0, "{worst}");
}
