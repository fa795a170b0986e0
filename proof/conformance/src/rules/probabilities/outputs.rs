//! Rows that are written: softmax, renormalised probabilities, masked rows (P4).

use gumball_cpu::Output::{Masked, Probabilities};
use gumball_spec::{FilterOrder, SamplingParams};

use crate::case::{Case, Dtype, Logits};
use crate::generate;
use crate::reference::Reference;
use crate::rows::{self, Words};
use crate::rules::Check;

rules!(output_rules:
    P4 a_softmax_has_the_values_of_the_formula,
    P4 a_softmax_of_a_models_row_is_within_its_errors,
    P4 equal_logits_have_equal_probabilities,
    P4 huge_logits_at_a_low_temperature_stay_finite,
    P4 at_temperature_0_the_winner_has_1,
    P4 an_empty_row_is_written_as_nothing,
    P4 renormalised_probabilities_sum_to_1_over_what_is_kept,
    P4 a_renormalised_row_with_nothing_dropped_keeps_its_shares,
    P4 masking_leaves_the_kept_numbers_and_drops_the_others,
    P4 bans_and_bitmask_show_in_what_is_written,
    P4 the_argmax_survives_a_narrow_type,
    P4 whatever_is_written_is_the_definitions,
);

fn plain() -> SamplingParams {
    SamplingParams::default()
}

fn a_softmax_has_the_values_of_the_formula(check: &Check<'_>) {
    let unit = Case::unit(&[1.0, 0.0, f32::NEG_INFINITY, 0.0, -1.0, f32::NAN], plain());
    let written = check.writes(&unit, Probabilities);
    // Weights 1, 1/2, 1/2, 1/4: their sum is 2.25.
    let exact = [1.0, 0.5, 0.0, 0.5, 0.25, 0.0].map(|weight: f32| weight / 2.25);
    assert_eq!(written, exact);
    let halves = Case::of_probabilities(&[3.0, 1.0, -1.0, 0.0, f32::NAN], plain());
    assert_eq!(check.writes(&halves, Probabilities), [0.75, 0.25, 0.0, 0.0, 0.0].map(|p: f32| p));
}

fn a_softmax_of_a_models_row_is_within_its_errors(check: &Check<'_>) {
    for (temperature, deviation) in [(1.0, 1.0), (0.01, 1.0), (100.0, 1.0), (0.7, 3.0)] {
        let row = rows::bell(5000, deviation, 3);
        let exact = Reference::new(&row);
        let all = 0..row.len();
        let exact: Vec<(usize, f64)> =
            exact.order.iter().copied().zip(exact.probabilities(all, f64::from(temperature))).collect();
        let written = check.writes(&Case::of(&row, SamplingParams { temperature, ..plain() }), Probabilities);
        let most = exact[0].1;
        for (id, exact) in exact {
            let error = (f64::from(written[id]) - exact).abs();
            // The exponent is rounded three times, each relative to itself.
            let relative = 3e-7 + 1.8e-7 * (most / exact.max(1e-300)).ln();
            assert!(
                error <= relative * exact + 1e-37 && error < 1e-6,
                "{id} at {temperature}: {error:e} of {exact:e}"
            );
        }
        let sum: f64 = written.iter().map(|p| f64::from(*p)).sum();
        let bound = if temperature < 0.1 { 1e-5 } else { 2.5e-7 };
        assert!((sum - 1.0).abs() <= bound, "{sum} at {temperature}");
    }
}

fn equal_logits_have_equal_probabilities(check: &Check<'_>) {
    let row = rows::grid(1500, 0.25, 9, 4);
    let written =
        check.writes(&Case::of(&row, SamplingParams { temperature: 0.8, ..plain() }), Probabilities);
    for (z, p) in row.iter().zip(&written) {
        let first = row.iter().position(|other| other == z).expect("it is there");
        assert_eq!(p.to_bits(), written[first].to_bits());
    }
    assert_eq!(check.writes(&Case::of(&[7.5; 1024], plain()), Probabilities), [2f32.powi(-10); 1024]);
}

fn huge_logits_at_a_low_temperature_stay_finite(check: &Check<'_>) {
    let params = SamplingParams { temperature: 0.01, ..plain() };
    let written = check.writes(&Case::of(&[1e6, -1e6, 1e6, 0.0], params.clone()), Probabilities);
    assert_eq!(written, [0.5, 0.0, 0.5, 0.0]);
    let written = check.writes(&Case::of(&[f32::MAX, f32::INFINITY, -f32::MAX], params), Probabilities);
    assert_eq!(written, [0.5, 0.5, 0.0]);
}

fn at_temperature_0_the_winner_has_1(check: &Check<'_>) {
    let greedy = SamplingParams { temperature: 0.0, top_p: 0.5, ..plain() };
    assert_eq!(check.writes(&Case::of(&[1.0, 3.0, 3.0], greedy.clone()), Probabilities), [0.0, 1.0, 0.0]);
    let of_p = Case::of_probabilities(&[0.25, 0.25, 0.0], greedy.clone());
    assert_eq!(check.writes(&of_p, Probabilities), [1.0, 0.0, 0.0]);
    assert_eq!(check.writes(&of_p, Masked), [0.25, 0.0, 0.0]);
    let [low, high] = [f32::NEG_INFINITY, 3.0];
    assert_eq!(check.writes(&Case::of(&[1.0, 3.0, 3.0], greedy), Masked), [low, high, low]);
}

fn an_empty_row_is_written_as_nothing(check: &Check<'_>) {
    for vocab in [1, 256, 300] {
        for params in
            [plain(), SamplingParams { temperature: 0.0, ..plain() }, SamplingParams { top_k: 2, ..plain() }]
        {
            let logits = Case::of(&vec![f32::NEG_INFINITY; vocab], params.clone());
            assert!(check.writes(&logits, Probabilities).iter().all(|p| p.to_bits() == 0));
            assert!(check.writes(&logits, Masked).iter().all(|z| *z == f32::NEG_INFINITY));
            let zeros = Case::of_probabilities(&vec![-0.0; vocab], params);
            assert!(check.writes(&zeros, Probabilities).iter().all(|p| p.to_bits() == 0));
            assert!(check.writes(&zeros, Masked).iter().all(|p| p.to_bits() == 0));
        }
    }
}

fn renormalised_probabilities_sum_to_1_over_what_is_kept(check: &Check<'_>) {
    for seed in 0..12 {
        let mut words = Words(seed);
        let row: Vec<f32> = rows::model_like(900, seed).iter().map(|z| z.exp2()).collect();
        let params = SamplingParams {
            top_k: [0, 40][words.below(2)],
            top_p: 0.3 + 0.7 * words.fraction(),
            min_p: [0.0, 0.01][words.below(2)],
            order: [FilterOrder::Default, FilterOrder::Joint][words.below(2)].clone(),
            ..plain()
        };
        let case = Case::of_probabilities(&row, params);
        let kept = check.kept(&case);
        let total: f64 = kept.iter().map(|id| f64::from(row[*id as usize])).sum();
        let written = check.writes(&case, Probabilities);
        for (id, p) in written.iter().enumerate() {
            let exact = if kept.contains(&(id as u32)) { f64::from(row[id]) / total } else { 0.0 };
            assert!((f64::from(*p) - exact).abs() <= 3e-7 * exact, "{id}: {p:e} for {exact:e}");
        }
    }
}

fn a_renormalised_row_with_nothing_dropped_keeps_its_shares(check: &Check<'_>) {
    let row = [0.5, 0.125, 0.0, 0.25, 0.125];
    assert_eq!(check.writes(&Case::of_probabilities(&row, plain()), Probabilities), row);
    let doubled = row.map(|p| p * 2.0);
    assert_eq!(check.writes(&Case::of_probabilities(&doubled, plain()), Probabilities), row);
}

fn masking_leaves_the_kept_numbers_and_drops_the_others(check: &Check<'_>) {
    let low = f32::NEG_INFINITY;
    let row = [2.0, -1.0, 2.0, -0.0, f32::NAN, low];
    let top_k = |top_k| SamplingParams { top_k, ..plain() };
    assert_eq!(check.writes(&Case::of(&row, top_k(1)), Masked), [2.0, low, low, low, low, low]);
    assert_eq!(check.writes(&Case::of(&row, top_k(3)), Masked), [2.0, low, 2.0, 0.0, low, low]);
    assert_eq!(check.writes(&Case::of(&row, plain()), Masked), [2.0, -1.0, 2.0, 0.0, low, low]);
    let row = [0.5, -1.0, 0.25, 0.25];
    assert_eq!(check.writes(&Case::of_probabilities(&row, top_k(2)), Masked), [0.5, 0.0, 0.25, 0.0]);
    // The temperature moves the cut and not the numbers.
    let params = SamplingParams { temperature: 0.5, top_p: 0.8, ..plain() };
    assert_eq!(check.writes(&Case::of(&[1.0, 0.0, -1.0], params), Masked), [1.0, low, low]);
}

fn bans_and_bitmask_show_in_what_is_written(check: &Check<'_>) {
    let params = SamplingParams { banned_ids: vec![0], ..plain() };
    let case =
        Case { mask: Some(vec![0b0111]), ..Case::of_probabilities(&[0.5, 0.25, 0.25, 0.7], params.clone()) };
    assert_eq!(check.writes(&case, Probabilities), [0.0, 0.5, 0.5, 0.0]);
    let case = Case { mask: Some(vec![0b0111]), ..Case::unit(&[9.0, 1.0, 0.0, 7.0], params) };
    assert_eq!(check.writes(&case, Probabilities), [0.0, 1.0 / 1.5, 0.5 / 1.5, 0.0]);
    let low = f32::NEG_INFINITY;
    assert_eq!(check.writes(&case, Masked), [low, 1.0, 0.0, low]);
    // Penalties change logits first.
    let params = SamplingParams { presence_penalty: 1.0, ..plain() };
    let case = Case::unit(&[1.0, 0.0], params).after(&[], &[0]);
    assert_eq!(check.writes(&case, Probabilities), [0.5, 0.5]);
    assert_eq!(check.writes(&case, Masked), [0.0, 0.0]);
}

fn the_argmax_survives_a_narrow_type(check: &Check<'_>) {
    for seed in 0..6 {
        let logits = Logits::new(Dtype::Bf16, &rows::bell(700, 1.0, seed));
        let case = Case { logits, ..Case::of(&[0.0; 700], plain()) };
        check.writes(&case, Probabilities);
        let row = case.logits.row();
        let largest = (0..700).map(|id| row.logit(id)).fold(f32::NEG_INFINITY, f32::max);
        let (written, _) = check.backend.write(&case, Probabilities, None).expect("valid");
        let most = written.iter().copied().map(f32::from_bits).fold(0.0, f32::max);
        for id in (0..700).filter(|id| row.logit(*id) == largest) {
            assert_eq!(
                f32::from_bits(written[id]),
                most,
                "the first of the logits is first of the probabilities"
            );
        }
    }
}

fn whatever_is_written_is_the_definitions(check: &Check<'_>) {
    for seed in 0..check.backend.patience(250).max(25) {
        let bytes: Vec<u8> = {
            let mut words = Words(u64::from(seed) ^ 0x0D15_EA5E);
            (0..400).map(|_| words.word() as u8).collect()
        };
        let case = Case { hook: None, ..generate::case(&bytes) };
        check.writes(&case, Probabilities);
        check.writes(&case, Masked);
    }
}
