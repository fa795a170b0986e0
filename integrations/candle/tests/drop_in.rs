//! Code written for candle's `LogitsProcessor` compiles here and means the same.

use candle_core::{DType, Device, Result, Tensor};
use gumball_candle::generation::{LogitsProcessor, Sampling};
use gumball_candle::gumball_engine::{LogprobsParams, SamplingParams, Status, StepOptions};

const VOCAB: usize = 40;

/// Logits in steps of 1/8, so that bf16 and f16 hold them exactly.
fn logits() -> Vec<f32> {
    (0..VOCAB).map(|id| ((id * 29 % VOCAB) as f32 / 8.0) - 3.0).collect()
}

fn tensor() -> Tensor {
    Tensor::new(logits(), &Device::Cpu).unwrap()
}

fn draws(mut processor: LogitsProcessor, n: usize) -> Vec<u32> {
    (0..n).map(|_| processor.sample(&tensor()).unwrap()).collect()
}

#[test]
fn signatures_are_those_of_candle() {
    let _: fn(u64, Option<f64>, Option<f64>) -> LogitsProcessor = LogitsProcessor::new;
    let _: fn(u64, Sampling) -> LogitsProcessor = LogitsProcessor::from_sampling;
    let _: fn(&mut LogitsProcessor, &Tensor) -> Result<u32> = LogitsProcessor::sample;
    type Edit = fn(&mut [f32]);
    let _: fn(&mut LogitsProcessor, &Tensor, Edit) -> Result<u32> = LogitsProcessor::sample_f;
    let (temperature, k, p): (f64, usize, f64) = (0.7, 5, 0.9);
    for sampling in [
        Sampling::ArgMax,
        Sampling::All { temperature },
        Sampling::TopK { k, temperature },
        Sampling::TopP { p, temperature },
        Sampling::TopKThenTopP { k, p, temperature },
        Sampling::GumbelSoftmax { temperature },
    ] {
        assert_eq!(sampling.clone(), sampling);
        let mut processor = LogitsProcessor::from_sampling(299_792_458, sampling);
        assert!(processor.sample(&tensor()).unwrap() < VOCAB as u32);
    }
}

/// Returns what candle keeps: probabilities are not renormalised between top-k and top-p.
fn kept_by_candle(temperature: f64, k: usize, p: f64) -> Vec<u32> {
    let weights: Vec<f64> = logits().iter().map(|z| (f64::from(*z) / temperature).exp()).collect();
    let mass: f64 = weights.iter().sum();
    let mut order: Vec<usize> = (0..VOCAB).collect();
    order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]));
    let mut sum = 0.0;
    let mut kept = Vec::new();
    for id in order.into_iter().take(k) {
        if (0.0..1.0).contains(&p) && p > 0.0 && sum >= p {
            break;
        }
        sum += weights[id] / mass;
        kept.push(id as u32);
    }
    kept
}

#[test]
fn each_sampling_keeps_what_candle_keeps() {
    let temperature = 0.9;
    let cases = [
        (Sampling::All { temperature }, VOCAB, 1.0),
        (Sampling::GumbelSoftmax { temperature }, VOCAB, 1.0),
        (Sampling::TopK { k: 7, temperature }, 7, 1.0),
        (Sampling::TopK { k: 1000, temperature }, VOCAB, 1.0),
        (Sampling::TopP { p: 0.6, temperature }, VOCAB, 0.6),
        (Sampling::TopP { p: 0.0, temperature }, VOCAB, 0.0),
        (Sampling::TopP { p: 1.0, temperature }, VOCAB, 1.0),
        (Sampling::TopKThenTopP { k: 30, p: 0.5, temperature }, 30, 0.5),
        (Sampling::TopKThenTopP { k: 8, p: 0.8, temperature }, 8, 0.8),
        (Sampling::TopKThenTopP { k: 5, p: 0.3, temperature }, 5, 0.3),
    ];
    for (sampling, k, p) in cases {
        let mut processor = LogitsProcessor::from_sampling(1, sampling.clone());
        processor.sample(&tensor()).unwrap();
        processor.sampler_mut().unwrap().collect_kept(true);
        processor.sample(&tensor()).unwrap();
        let kept = processor.sampler().unwrap().kept();
        assert_eq!(kept, kept_by_candle(temperature, k, p), "{sampling:?}");
    }
}

#[test]
fn new_is_greedy_without_a_temperature_and_seeded_with_one() {
    let best = logits().iter().position(|z| *z == (VOCAB as f32 - 1.0) / 8.0 - 3.0).unwrap() as u32;
    for temperature in [None, Some(0.0), Some(1e-8)] {
        assert_eq!(draws(LogitsProcessor::new(1, temperature, Some(0.9)), 3), [best; 3]);
    }
    let run = |seed| draws(LogitsProcessor::new(seed, Some(1.0), None), 20);
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn bf16_and_f16_rows_give_the_token_of_the_f32_row() {
    let expected = draws(LogitsProcessor::new(3, Some(1.2), Some(0.95)), 10);
    for dtype in [DType::BF16, DType::F16, DType::F64] {
        let tensor = tensor().to_dtype(dtype).unwrap().unsqueeze(0).unwrap();
        let mut processor = LogitsProcessor::new(3, Some(1.2), Some(0.95));
        let tokens: Vec<_> = (0..10).map(|_| processor.sample(&tensor).unwrap()).collect();
        assert_eq!(tokens, expected, "{dtype:?}");
    }
}

#[test]
fn an_edit_of_probabilities_that_changes_nothing_changes_no_token() {
    let expected = draws(LogitsProcessor::new(5, Some(0.8), Some(0.9)), 50);
    let mut processor = LogitsProcessor::new(5, Some(0.8), Some(0.9));
    for expected in expected {
        let token = processor.sample_f(&tensor(), |p| {
            assert!((p.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        });
        assert_eq!(token.unwrap(), expected);
    }
}

#[test]
fn edited_probabilities_are_the_weights_of_the_draw() {
    // Chi-square with 3 degrees of freedom; 16.3 has a false-alarm rate of 1e-3, and the seed is fixed.
    const DRAWS: usize = 8_000;
    let row = Tensor::new(&[0.0f32, 1.0, 0.5, -1.0, 2.0], &Device::Cpu).unwrap();
    let weights: Vec<f64> = [0.0f64, 1.0, 0.5, -1.0, 2.0].iter().map(|z| (z / 1.5).exp()).collect();
    let mass: f64 = weights.iter().sum();
    let edited = [weights[0] / mass, 3.0 * weights[1] / mass, weights[2] / mass, 0.4, 0.0];
    let mut processor = LogitsProcessor::new(11, Some(1.5), None);
    let mut counts = [0usize; 5];
    for _ in 0..DRAWS {
        let token = processor.sample_f(&row, |p| {
            p[1] *= 3.0;
            p[3] = 0.4;
            p[4] = 0.0;
        });
        counts[token.unwrap() as usize] += 1;
    }
    let total: f64 = edited.iter().sum();
    let expected = edited.map(|p| p / total * DRAWS as f64);
    assert_eq!(counts[4], 0);
    let chi: f64 = (0..4).map(|id| (counts[id] as f64 - expected[id]).powi(2) / expected[id]).sum();
    assert!(chi < 16.3, "{chi}: {counts:?} for {expected:?}");
}

#[test]
fn greedy_and_gumbel_softmax_show_no_probabilities_as_in_candle() {
    for sampling in [Sampling::ArgMax, Sampling::GumbelSoftmax { temperature: 1.0 }] {
        let mut processor = LogitsProcessor::from_sampling(1, sampling.clone());
        processor.sample_f(&tensor(), |_| panic!("called for {sampling:?}")).unwrap();
    }
}

#[test]
fn parameters_beyond_candles_read_the_history() {
    let params = SamplingParams {
        temperature: 0.0,
        no_repeat_ngram: 1,
        logprobs: Some(LogprobsParams { top_n: 2, ..Default::default() }),
        ..Default::default()
    };
    let mut processor = LogitsProcessor::from_params(params).with_prompt(&[0, 1]);
    let mut tokens: Vec<_> = (0..VOCAB - 2).map(|_| processor.sample(&tensor()).unwrap()).collect();
    let sampler = processor.sampler().unwrap();
    assert_eq!(sampler.history().output(), tokens);
    assert_eq!(sampler.logprobs().unwrap().top.len(), 2);
    tokens.sort_unstable();
    assert_eq!(tokens, (2..VOCAB as u32).collect::<Vec<_>>(), "each once");
    // Now every id is banned: an error, and for `sample_with` a token without an id.
    let error = processor.sample(&tensor()).unwrap_err().to_string();
    assert!(error.starts_with("no token of the row is above -inf"), "{error}");
    let token = processor.sample_with(&tensor(), StepOptions::default()).unwrap();
    assert_eq!((token.id, token.status), (None, Status::EMPTY));
    assert_eq!(processor.sampler().unwrap().position(), VOCAB as u32);
    processor.sampler_mut().unwrap().shorten(VOCAB - 2).unwrap();
    assert!(processor.sample(&tensor()).is_ok());
}

#[test]
fn mistakes_are_errors_of_candle_that_name_them() {
    let message = |sampling, logits: &Tensor| {
        let mut processor = LogitsProcessor::from_sampling(1, sampling);
        processor.sample(logits).unwrap_err().to_string()
    };
    let good = tensor();
    let cases = [
        (Sampling::All { temperature: -1.0 }, "temperature is -1, but must be 0 (greedy) or"),
        (Sampling::All { temperature: f64::NAN }, "temperature is NaN"),
        (Sampling::TopP { p: f64::NAN, temperature: 1.0 }, "top_p is NaN"),
        (Sampling::TopP { p: 1.9, temperature: 1.0 }, "top_p is 1.9, but must be in 0..=1 (1: off)"),
        (Sampling::TopK { k: 0, temperature: 1.0 }, "k is 0, but must be at least 1"),
    ];
    for (sampling, expected) in cases {
        let message = message(sampling, &good);
        assert!(message.starts_with(expected), "{message}");
    }
    let empty = Tensor::new(&[f32::NAN, f32::NEG_INFINITY], &Device::Cpu).unwrap();
    for sampling in [Sampling::ArgMax, Sampling::All { temperature: 1.0 }] {
        assert!(message(sampling, &empty).starts_with("no token of the row is above -inf"));
    }
    let mut processor = LogitsProcessor::new(1, None, None);
    processor.sample(&good).unwrap();
    let error = processor.sample(&empty).unwrap_err().to_string();
    assert!(error.starts_with("logits has length 2, but must have 40"), "{error}");
}

#[test]
fn n_draws_from_one_row_append_nothing() {
    let mut processor = LogitsProcessor::new(1, Some(1.0), None);
    let tokens = processor.sample_n(&tensor(), 5).unwrap();
    assert_eq!(tokens.len(), 5);
    assert_eq!(processor.sampler().unwrap().position(), 0);
    assert_eq!(processor.sample(&tensor()).unwrap(), tokens[0].id.unwrap());
}
