//! Bounds where every error of a screen points the same way: they hold, and each of their parts is needed.

use gumball_cpu::{History, Prepared, Task, in_modes_of_a_host};
use gumball_head::{Bounds, Certified, Exact, HeadOptions, HostMatrix, Level, Reading, Spread, Widened};
use gumball_spec::{Kind, SamplingParams};

/// Returns the logit of row 0 and its bound, at every level the same. Each row is followed by its negative,
/// so that the mean row is 0.
fn logit_and_bound(rows: &[Vec<f32>], hidden: &[f32]) -> (f32, f32) {
    let weights: Vec<f32> =
        rows.iter().flat_map(|row| row.iter().copied().chain(row.iter().map(|w| -w))).collect();
    let seen: Vec<(f32, f32)> = Level::available()
        .map(|level| {
            let options = HeadOptions { level: Some(level), ..Default::default() };
            let exact = Exact::new(&weights, 2 * rows.len(), hidden.len(), options).unwrap();
            let widened = Widened::of(HostMatrix::new(hidden, 1, hidden.len()).unwrap());
            let (mut logits, mut bounds) = (vec![0.0; 2 * rows.len()], Bounds::default());
            exact.logits(&widened, Spread::Caller, &mut logits).unwrap();
            let certified = Certified::new(exact.clone());
            certified.bound(&widened, Spread::Caller, &mut bounds).unwrap();
            for (id, (z, bound)) in logits.iter().zip(bounds.rows()).enumerate() {
                assert!(*bound >= *z, "{level}: id {id} has {z}, above {bound}");
            }
            (logits[0], bounds.rows()[0])
        })
        .collect();
    assert!(seen.iter().all(|of_level| *of_level == seen[0]), "{seen:?}");
    seen[0]
}

/// 2^n.
fn power(n: i32) -> f32 {
    2f32.powi(n)
}

#[test]
fn what_codes_leave_out_is_bounded() {
    // Each weight is 0.49 of a code above its code, and one fixes the scale. The hidden state has no other
    // direction than that error.
    let mut row: Vec<f32> = (0..64).map(|i| ((i * 5 % 200 - 100) as f32 + 0.49) * power(-10)).collect();
    row[0] = 127.0 * power(-10);
    let (z, bound) = logit_and_bound(&[row], &[1.0; 64]);
    let error = 63.0 * 0.49 * power(-10);
    assert!(bound - z < 0.02 * error, "{bound} is far above {z}");
}

#[test]
fn what_digits_leave_out_is_bounded() {
    // Codes are exact here. Each element of the hidden state is 0.49 of a digit beyond its digits, in the
    // direction of the weights.
    let signs: Vec<f32> = (0..64).map(|i| if i % 3 == 0 { -1.0 } else { 1.0 }).collect();
    let row: Vec<f32> = signs.iter().map(|sign| sign * 127.0 * power(-10)).collect();
    let hidden: Vec<f32> = signs.iter().map(|sign| sign * (1.0 + 0.49 * power(-14))).collect();
    let (z, bound) = logit_and_bound(&[row], &hidden);
    let error = 64.0 * 127.0 * power(-10) * 0.49 * power(-14);
    assert!(bound - z < 0.1 * error, "{bound} is far above {z}");
}

#[test]
fn what_the_exact_head_rounds_is_bounded() {
    // A partial sum of 127 / 128 takes in products a little larger than half of its last bit, and each is
    // rounded up to that bit.
    let row = vec![127.0 * power(-7); 1024];
    let mut hidden = vec![1.03 * power(-25); 1024];
    hidden[..16].fill(1.0);
    let (z, _) = logit_and_bound(std::slice::from_ref(&row), &hidden);
    let exact: f64 = row.iter().zip(&hidden).map(|(w, h)| f64::from(*w) * f64::from(*h)).sum();
    let rounded = f64::from(z) - exact;
    assert!(rounded > 900.0 * f64::from(power(-25)), "the sums round by {rounded:e}");
}

#[test]
fn a_subnormal_scale_leaves_no_codes_and_the_bounds_hold() {
    for size in [-149, -140, -130, -126, -120, -100] {
        let row: Vec<f32> = (0..40).map(|i| (i % 7 - 3) as f32 * power(size)).collect();
        for of_state in [1.0f32, 1e10, 1e-20] {
            let hidden: Vec<f32> = row.iter().map(|w| w.signum() * of_state).collect();
            logit_and_bound(&[row.clone(), vec![0.0; 40]], &hidden);
        }
    }
}

#[test]
fn sums_of_the_largest_codes_and_digits_do_not_overflow() {
    for width in [8192, 8193, 20_000] {
        let row = vec![127.0 * power(-7); width];
        let (z, bound) = logit_and_bound(std::slice::from_ref(&row), &vec![0.9921; width]);
        assert!((z - 127.0 / 128.0 * 0.9921 * width as f32).abs() < 0.01 * z);
        assert!(bound - z < 1e-3 * z, "{width}: {bound} is far above {z}");
        let (z, bound) = logit_and_bound(&[row], &vec![-0.9921; width]);
        assert!(bound - z < 1e-3 * z.abs(), "{width}: {bound} is far above {z}");
    }
}

#[test]
fn bounds_hold_in_a_host_program_that_flushes_subnormal_numbers() {
    // Threads begin with the modes of the thread that starts them.
    let threads = in_modes_of_a_host(|| rayon::ThreadPoolBuilder::new().num_threads(2).build()).unwrap();
    let (vocab, width) = (64, 4);
    for (of_weight, of_state) in [(1.0 / 64.0, 1e-39), (1e-40, 1.0), (1e-39, 64.0), (3e-20, 3e-20)] {
        let weights: Vec<f32> = (0..vocab * width).map(|i| (i / width + 1) as f32 * of_weight).collect();
        let hidden = vec![of_state; width];
        let exact = Exact::new(&weights, vocab, width, HeadOptions::default()).unwrap();
        let states = Widened::of(HostMatrix::new(&hidden, 1, width).unwrap());
        let mut logits = vec![0.0; vocab];
        exact.logits(&states, Spread::Caller, &mut logits).unwrap();
        let mut of_host = (vec![0.0; vocab], Bounds::default());
        threads.install(|| {
            in_modes_of_a_host(|| {
                let certified = Certified::new(exact.clone());
                exact.logits(&states, Spread::Rayon, &mut of_host.0).unwrap();
                certified.bound(&states, Spread::Rayon, &mut of_host.1).unwrap();
            });
        });
        assert!(of_host.0.iter().zip(&logits).all(|(a, b)| a.to_bits() == b.to_bits()));
        for (id, (z, bound)) in logits.iter().zip(of_host.1.rows()).enumerate() {
            assert!(bound.to_bits() >= z.to_bits() && *bound > 0.0, "id {id} has {z:e}, above {bound:e}");
        }
    }
}

#[test]
fn rows_of_hidden_states_that_cannot_be_screened_are_given_up() {
    // One row is larger than all others.
    const WEIGHTS: [f32; 120] = {
        let mut weights = [0.25; 120];
        weights[40] = 9.0;
        weights
    };
    let exact = Exact::new(&WEIGHTS, 30, 4, HeadOptions::default()).unwrap();
    let longest = power(51);
    let hidden =
        [1.0, 1.0, 1.0, 1.0, 1.0, f32::NAN, 1.0, 1.0, longest, 0.0, 0.0, 0.0, f32::INFINITY, 0.0, 0.0, 0.0];
    let states = HostMatrix::new(&hidden, 4, 4).unwrap();
    let widened = Widened::of(states);
    let prepared =
        Prepared::new(SamplingParams { temperature: 0.0, ..SamplingParams::default() }, 30).unwrap();
    let (prepared, history) = (&prepared, &History::new(&[]));
    let (kind, seed, position, draw, mu, mask, forced) = (Kind::Logits, 1, 0, 0, 0.0, None, None);
    let task = Task { kind, prepared, history, seed, position, draw, mu, mask, forced };
    let certified = Certified::new(exact);
    let (mut bounds, mut contest) = (Bounds::default(), certified.contest().unwrap());
    certified.bound(&widened, Spread::Caller, &mut bounds).unwrap();
    let (bounds, screened) = bounds.parts_mut();
    for (state, bounds) in bounds.chunks_mut(30).enumerate() {
        let (place, mut row) = ((&widened, state), [0.0; 30]);
        let settled =
            certified.settle(place, bounds, screened, Reading::First, &task, &mut contest, &mut row);
        assert_eq!(settled.unwrap().is_some(), state == 0);
        assert_eq!(certified.can_screen(states, state), state == 0);
    }
}
