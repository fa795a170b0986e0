//! Rows and parameters of all kinds from a stream of words.

use gumball_spec::num::philox4x32_10;
use gumball_spec::{
    DynamicTemperature, Field, Filter, FilterOrder, LogprobMode, LogprobModes, LogprobsParams, Mirostat,
    Parameters, SamplingParams, Scope,
};

pub struct Dice(pub u64, pub u32);

impl Dice {
    pub fn word(&mut self) -> u32 {
        self.1 += 1;
        philox4x32_10(self.0, [self.1, 0, 9, 0])[0]
    }
    pub fn below(&mut self, n: usize) -> usize {
        ((u64::from(self.word()) * n as u64) >> 32) as usize
    }
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    pub fn unit(&mut self) -> f32 {
        self.word() as f32 / 4_294_967_296.0
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
    pub fn ids(&mut self, up_to: usize, vocab: usize) -> Vec<u32> {
        (0..self.below(up_to + 1)).map(|_| self.below(vocab) as u32).collect()
    }
}

pub fn row(dice: &mut Dice, vocab: usize) -> Vec<f32> {
    let kind = dice.below(7);
    let (spread, step) = (dice.pick(&[0.01f32, 1.0, 5.0, 1e30]), dice.pick(&[0.0f32, 0.5, 0.01]));
    (0..vocab)
        .map(|_| {
            let z = (dice.unit() + dice.unit() + dice.unit() - 1.5) * spread;
            let z = if step > 0.0 { (z / step).round() * step } else { z };
            match kind {
                0 => 1.25,
                1 if dice.one_in(8) => dice.pick(&[
                    f32::NAN,
                    f32::INFINITY,
                    f32::NEG_INFINITY,
                    f32::MAX,
                    -f32::MAX,
                    1e-42,
                    -0.0,
                    0.0,
                ]),
                2 if !dice.one_in(5) => f32::NEG_INFINITY,
                3 => f32::NEG_INFINITY,
                4 if dice.one_in(20) => z + 10.0,
                _ => z,
            }
        })
        .collect()
}

/// A row of probabilities: some sum to 1, some to anything, some hold what is none.
pub fn probabilities(dice: &mut Dice, vocab: usize) -> Vec<f32> {
    let kind = dice.below(9);
    let (spread, unit) =
        (dice.pick(&[0.01f32, 1.0, 5.0, 80.0]), dice.pick(&[1.0f32, 1e-3, 1e-30, 1e-40, 1e30]));
    (0..vocab)
        .map(|_| {
            let p = ((dice.unit() + dice.unit() + dice.unit() - 1.5) * spread).exp2() * unit;
            match kind {
                0 => 0.25,
                1 if dice.one_in(8) => {
                    dice.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -0.5, 1e-45, -0.0, 0.0])
                }
                2 if !dice.one_in(5) => 0.0,
                3 => dice.pick(&[0.0, -0.0]),
                4 if dice.one_in(20) => p * 64.0,
                5 => f32::from_bits(dice.word() >> 12),
                6 => (p / unit * 8.0).round() * unit,
                _ => p,
            }
        })
        .collect()
}

pub fn params(dice: &mut Dice, vocab: usize) -> SamplingParams {
    let mut p = SamplingParams {
        temperature: dice.pick(&[0.0, 0.01, 0.7, 1.0, 1.0, 1.3, 100.0]),
        ..Default::default()
    };
    let on = |dice: &mut Dice| dice.one_in(3);
    if dice.one_in(6) {
        p.dynamic_temperature =
            Some(DynamicTemperature { min: 0.2, max: 2.0, exponent: dice.pick(&[1.0, 0.3]) });
    }
    if dice.one_in(8) {
        p.mirostat = Some(Mirostat { tau: dice.unit() * 8.0 + 0.1, eta: 0.1, mu: None });
    } else {
        for parameter in SamplingParams::TABLE.iter().filter(|parameter| parameter.filter.is_some()) {
            if dice.below(5) > 1 {
                continue;
            }
            match p.field(parameter.name).expect("the table names fields").1 {
                Field::Whole(k) => *k = dice.pick(&[1, 2, 5, 50, vocab as i64 / 2, vocab as i64 - 1]),
                Field::Number(share) if parameter.range.is_some_and(|range| range.most == 1.0) => {
                    *share = dice.pick(&[0.0, 1e-6, 1e-3, 0.05, 0.1, 0.5, 0.9, 0.999, 0.9999999, 1.0]);
                }
                Field::Number(number) => *number = dice.pick(&[0.01, 1.0, 2.0]),
                flag => _ = flag.set(1.0),
            }
        }
        p.xtc_threshold = dice.pick(&[1e-6, 1e-3, 0.1, 0.5]);
        p.order = match dice.below(4) {
            0 => FilterOrder::Joint,
            1 => {
                let mut list = Filter::ALL.to_vec();
                let count = list.len();
                for i in 0..count {
                    list.swap(i, dice.below(count));
                }
                FilterOrder::List(list)
            }
            _ => FilterOrder::Default,
        };
        p.temperature_last = dice.one_in(5);
    }
    if on(dice) {
        p.repetition_penalty = dice.pick(&[0.5, 1.1, 1e-30, 65536.0]);
        p.repetition_scope = dice.pick(&Scope::ALL);
    }
    if on(dice) {
        (p.frequency_penalty, p.presence_penalty) = (dice.unit() - 0.5, dice.unit() * 2.0);
        p.penalty_scope = dice.pick(&Scope::ALL);
    }
    p.penalty_window = dice.pick(&[0, 0, 1, 5, 300]);
    if dice.one_in(4) {
        p.dry.window = dice.pick(&[0, 4, 300]);
        p.dry.multiplier = 0.8;
        p.dry.breakers = dice.ids(1, 8);
        p.dry.allowed_length = dice.pick(&[1, 2, 3]);
    }
    p.no_repeat_ngram = dice.pick(&[0, 0, 0, 1, 2, 3]);
    if dice.one_in(4) {
        let start = dice.below(vocab);
        p.logit_bias = (start..vocab.min(start + 5))
            .map(|id| (id as u32, dice.pick(&[1.0, -3.0, 1e38, f32::NEG_INFINITY])))
            .collect();
    }
    if dice.one_in(8) {
        p.allowed_ids = Some(dice.ids(20, vocab));
    }
    if dice.one_in(5) {
        p.banned_ids = dice.ids(20, vocab);
    }
    if dice.one_in(5) {
        p.bad_words = vec![vec![dice.below(8) as u32, dice.below(8) as u32], vec![3]];
    }
    if dice.one_in(5) {
        (p.min_tokens, p.stop_ids) = (3, dice.ids(5, vocab + 10));
    }
    if on(dice) {
        let (top_n, ids) = (dice.pick(&[0, 1, 5, 40]), dice.ids(3, vocab));
        let (first, second) = (dice.pick(&LogprobMode::OF_LOGPROBS), dice.pick(&LogprobMode::OF_LOGPROBS));
        let mode =
            LogprobModes { first, second: Some(second).filter(|second| *second != first && dice.one_in(2)) };
        p.logprobs = Some(LogprobsParams { mode, top_n, ids });
    }
    p
}
