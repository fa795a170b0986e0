//! A quick differential run against the oracle: hostile rows, all parameters, every level, short and long
//! sets. The conformance suite goes deeper; this one is at hand while the stages change.

use gumball_cpu::{History, Level, Prepared, Task, Workspace};
use gumball_spec::num::philox4x32_10;
use gumball_spec::{
    DynamicTemperature, Filter, FilterOrder, Kind, LogprobMode, LogprobsParams, Mirostat, Request, Row,
    SamplingParams, Scope, oracle,
};

struct Dice(u64, u32);

impl Dice {
    fn word(&mut self) -> u32 {
        self.1 += 1;
        philox4x32_10(self.0, [self.1, 0, 9, 0])[0]
    }
    fn below(&mut self, n: usize) -> usize {
        ((u64::from(self.word()) * n as u64) >> 32) as usize
    }
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    fn unit(&mut self) -> f32 {
        self.word() as f32 / 4_294_967_296.0
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
    fn ids(&mut self, up_to: usize, vocab: usize) -> Vec<u32> {
        (0..self.below(up_to + 1)).map(|_| self.below(vocab) as u32).collect()
    }
}

fn row(dice: &mut Dice, vocab: usize) -> Vec<f32> {
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
fn probabilities(dice: &mut Dice, vocab: usize) -> Vec<f32> {
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

fn params(dice: &mut Dice, vocab: usize) -> SamplingParams {
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
        if on(dice) {
            p.top_k = dice.pick(&[1, 2, 5, 50, vocab as i64 / 2, vocab as i64 - 1]);
        }
        if on(dice) {
            p.top_p = dice.pick(&[0.0, 0.1, 0.5, 0.9, 0.999, 0.9999999]);
        }
        if on(dice) {
            p.typical_p = dice.pick(&[0.0, 0.1, 0.5, 0.9, 0.999]);
        }
        if on(dice) {
            p.min_p = dice.pick(&[1e-6, 0.05, 0.5, 1.0]);
        }
        if dice.one_in(5) {
            p.top_n_sigma = dice.pick(&[0.01, 1.0, 2.0]);
        }
        if dice.one_in(5) {
            p.epsilon_cutoff = dice.pick(&[1e-6, 1e-3, 0.1, 1.0]);
        }
        if dice.one_in(5) {
            p.eta_cutoff = dice.pick(&[1e-6, 1e-3, 0.1]);
        }
        if on(dice) {
            p.xtc_probability = dice.pick(&[0.5, 1.0]);
            p.xtc_threshold = dice.pick(&[1e-6, 1e-3, 0.1, 0.5]);
        }
        p.order = match dice.below(4) {
            0 => FilterOrder::Joint,
            1 => {
                let mut list = Filter::ALL.to_vec();
                for i in 0..8 {
                    list.swap(i, dice.below(8));
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
    if dice.one_in(4) {
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
        p.logprobs = Some(LogprobsParams { mode: dice.pick(&LogprobMode::ALL), top_n, ids });
    }
    p
}

fn run(cases: std::ops::Range<u64>, vocabs: &[usize]) {
    let mut workspaces = Vec::new();
    for level in Level::available() {
        for limit in [0, 20, 1024] {
            let mut workspace = Workspace::with_list_limit(level, limit).unwrap();
            workspace.keep_ids(true);
            workspaces.push((level, limit, workspace));
        }
    }
    for case in cases {
        let dice = &mut Dice(case, 0);
        let vocab = dice.pick(vocabs);
        let mut params = params(dice, vocab);
        let kind = dice.pick(&[Kind::Logits, Kind::Probabilities]);
        if kind == Kind::Probabilities {
            let plain = SamplingParams::default();
            params.temperature = if params.temperature == 0.0 { 0.0 } else { 1.0 };
            (params.dynamic_temperature, params.top_n_sigma) = (None, 0.0);
            (params.repetition_penalty, params.dry) = (1.0, plain.dry);
            (params.frequency_penalty, params.presence_penalty) = (0.0, 0.0);
            params.logit_bias.iter_mut().for_each(|(_, bias)| *bias = f32::NEG_INFINITY);
        }
        if params.validate(vocab).is_err() {
            continue;
        }
        let data = if kind == Kind::Logits { row(dice, vocab) } else { probabilities(dice, vocab) };
        let bf16: Vec<half::bf16> = data.iter().map(|z| half::bf16::from_f32(*z)).collect();
        let f16: Vec<half::f16> = data.iter().map(|z| half::f16::from_f32(*z)).collect();
        let row = match dice.below(4) {
            0 => Row::Bf16(&bf16),
            1 => Row::F16(&f16),
            _ => Row::F32(&data),
        };
        let few = dice.one_in(2);
        let (prompt, output) = (dice.ids(30, if few { 8 } else { vocab + 5 }), dice.ids(30, 8));
        let mask: Vec<u32> = (0..dice.below(vocab.div_ceil(32) + 3))
            .map(|_| if dice.one_in(3) { 0 } else { dice.word() })
            .collect();
        let mask = dice.one_in(4).then_some(&mask[..]);
        let prepared = Prepared::new(params.clone(), vocab).unwrap();
        let mut history = History::new(&prompt);
        output.iter().for_each(|id| history.push(*id));
        let mut request = Request::new(&params, &prompt, dice.0 * 77);
        (request.output, request.mask, request.draw) = (&output, mask, dice.below(3) as u32);
        request.mu = if params.mirostat.is_some() { dice.unit() * 10.0 } else { 0.0 };
        (request.position, request.kind) = (dice.word(), kind);
        request.forced = dice.one_in(10).then(|| dice.below(vocab) as u32);
        let hooked = dice.one_in(10) && kind == Kind::Logits;
        let hook = |z: &mut [f32]| {
            z[0] = f32::NAN;
            let last = z.len() - 1;
            z[last] += 1.0;
        };
        let mut hook_a = hook;
        let want = oracle::sample(row, &request, hooked.then_some(&mut hook_a)).unwrap();
        let task = Task {
            kind: request.kind,
            prepared: &prepared,
            history: &history,
            seed: request.seed,
            position: request.position,
            draw: request.draw,
            mu: request.mu,
            mask,
            forced: request.forced,
        };
        for (level, limit, workspace) in &mut workspaces {
            let mut hook_b = hook;
            let got = workspace.sample(row, &task, hooked.then_some(&mut hook_b)).unwrap();
            let what =
                format!("case {case}, {kind:?}, vocab {vocab}, {level}, list limit {limit}, {params:?}");
            assert_eq!(got.status, want.status, "status: {what}");
            assert_eq!(got.temperature.to_bits(), want.temperature.to_bits(), "temperature: {what}");
            assert_eq!(workspace.kept(), want.kept_ids(), "kept: {what}");
            assert_eq!(got.token, want.token, "token: {what}");
            assert_eq!(got.mu.to_bits(), want.mu.to_bits(), "mu: {what}");
            assert_eq!(workspace.logprobs(), want.logprobs.as_ref(), "logprobs: {what}");
        }
    }
}

#[test]
fn small_rows() {
    run(0..10_000, &[1, 2, 15, 16, 17, 255, 256, 257, 300, 700, 1030]);
}

#[test]
fn rows_of_many_tiles() {
    run(100_000..100_200, &[4097, 5000, 9000]);
}
