//! A quick differential run against the oracle: hostile rows, all parameters, every level, short and long
//! sets. The conformance suite goes deeper; this one is at hand while the stages change.

mod cases;
mod long;
mod outputs;
mod visits;

use gumball_cpu::{History, Level, Prepared, Task, Workspace};
use gumball_spec::{Kind, Request, Row, SamplingParams, oracle};

use self::cases::{Dice, params, probabilities, row};

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
            (params.dynamic_temperature, params.top_n_sigma, params.p_less) = (None, 0.0, false);
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
            if !hooked {
                outputs::hold(workspace, row, &task, &request, &want, &what);
            }
        }
    }
}

const FEW_TILES: [usize; 11] = [1, 2, 15, 16, 17, 255, 256, 257, 300, 700, 1030];
const MANY_TILES: [usize; 3] = [4097, 5000, 9000];

#[test]
fn small_rows() {
    run(0..4_000, &FEW_TILES);
}

#[test]
fn rows_of_many_tiles() {
    run(100_000..100_080, &MANY_TILES);
}

/// `ci/long vocabularies` runs it.
#[test]
#[ignore = "takes a minute"]
fn more_rows() {
    run(4_000..10_000, &FEW_TILES);
    run(100_080..100_200, &MANY_TILES);
}
