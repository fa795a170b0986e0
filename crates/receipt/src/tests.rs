//! Receipts that are drawn, changed and replayed.

use gumball_spec::num::philox4x32_10;
use gumball_spec::{
    Dry, Error, Filter, FilterOrder, Forced, LogprobMode, LogprobModes, LogprobsParams, Mirostat, Request,
    Result, SamplingParams, Section, Watermark, oracle, watermark,
};

use crate::{Answer, Receipt, Replay, Wrong};

const VOCAB: usize = 700;
const STEPS: usize = 24;

/// Adds the logprobs that a receipt needs to parameters.
fn asking(params: SamplingParams) -> SamplingParams {
    let mode = LogprobModes { first: LogprobMode::Edited, second: Some(LogprobMode::Radius) };
    SamplingParams {
        logprobs: Some(LogprobsParams { mode, top_n: 8, ..LogprobsParams::default() }),
        ..params
    }
}

/// Rows like a model's: sums of four random words.
fn rows(seed: u64) -> Vec<Vec<f32>> {
    let logit = |step: usize, id: usize| {
        let words = philox4x32_10(seed, [id as u32, step as u32, 0, 0]);
        words.iter().map(|word| *word as f32 / u32::MAX as f32 - 0.5).sum::<f32>() * 5.0
    };
    (0..STEPS).map(|step| (0..VOCAB).map(|id| logit(step, id)).collect()).collect()
}

/// Moves all logits of rows by `by` at most: at random, or few, some or half of the tokens, the likeliest,
/// down and all others up.
fn moved(rows: &[Vec<f32>], by: f32, way: u32) -> Vec<Vec<f32>> {
    let sign = |step: usize, id: usize, z: f32| match way {
        0 => philox4x32_10(9, [id as u32, step as u32, 1, 0])[0] as f32 / (u32::MAX / 2) as f32 - 1.0,
        _ if z > [3.0, 2.0, 0.0][way as usize - 1] => -1.0,
        _ => 1.0,
    };
    let row = |(step, row): (usize, &Vec<f32>)| {
        row.iter().enumerate().map(|(id, z)| z + sign(step, id, *z) * by * 0.999).collect()
    };
    rows.iter().enumerate().map(row).collect()
}

/// The mask of all steps, and the token that is forced.
#[derive(Clone, Copy)]
struct With {
    mask: Option<&'static [u32]>,
    /// Of the fifth step.
    forced: Option<u32>,
}

const NOTHING: With = With { mask: None, forced: None };

/// Draws a text and returns its receipt.
fn draw(params: &SamplingParams, rows: &[Vec<f32>], seed: u64, with: With) -> Receipt {
    let prompt = [5, 6, 7, 8, 5, 6];
    let mut receipt = Receipt::new(params, rows[0].len(), seed, 3, &prompt).unwrap();
    let (mut output, mut mu) = (Vec::new(), params.initial_mu());
    for (step, row) in rows.iter().enumerate() {
        let request = Request {
            output: &output,
            position: (prompt.len() + step) as u32,
            draw: 3,
            mu,
            mask: with.mask,
            forced: with.forced.filter(|_| step == 4).map(Forced::by_caller),
            ..Request::new(params, &prompt, seed)
        };
        let outcome = oracle::sample(row.into(), &request, None).unwrap();
        receipt.push(outcome.token, outcome.status, outcome.logprobs.as_ref().unwrap(), with.mask).unwrap();
        output.push(outcome.token as u32);
        mu = outcome.mu;
    }
    receipt
}

fn replay(receipt: &Receipt, rows: &[Vec<f32>], mask: Option<&[u32]>, tolerance: f32) -> Result<Vec<Answer>> {
    let mut replay = Replay::new(receipt, tolerance)?;
    let answer = |row: &Vec<f32>| Ok(replay.next(row.into(), mask)?.expect("a step for each row"));
    rows.iter().map(answer).collect()
}

/// Parameters of which radii are known.
fn known() -> Vec<SamplingParams> {
    let plain = SamplingParams::default;
    vec![
        plain(),
        SamplingParams { temperature: 0.0, ..plain() },
        SamplingParams { top_k: 30, ..plain() },
        SamplingParams { min_p: 0.1, temperature: 0.7, ..plain() },
        SamplingParams { top_p: 0.8, ..plain() },
        SamplingParams { top_k: 40, top_p: 0.9, min_p: 0.02, ..plain() },
        SamplingParams { top_p: 0.7, min_p: 0.1, order: FilterOrder::Joint, ..plain() },
        SamplingParams { top_k: 20, temperature: 1.5, temperature_last: true, ..plain() },
        SamplingParams {
            repetition_penalty: 1.3,
            presence_penalty: 0.4,
            logit_bias: vec![(3, 2.0)],
            ..plain()
        },
        SamplingParams { repetition_penalty: 0.8, top_k: 12, frequency_penalty: 0.2, ..plain() },
        SamplingParams { top_a: 0.1, ..plain() },
        SamplingParams { p_less: true, temperature: 1.3, ..plain() },
        SamplingParams { epsilon_cutoff: 0.003, repetition_penalty: 2.0, ..plain() },
        SamplingParams {
            top_a: 0.02,
            top_p: 0.9,
            min_p: 0.05,
            epsilon_cutoff: 0.001,
            order: FilterOrder::List(vec![Filter::MinP, Filter::EpsilonCutoff, Filter::TopA, Filter::TopP]),
            ..plain()
        },
        SamplingParams {
            top_k: 40,
            top_p: 0.8,
            p_less: true,
            top_a: 0.02,
            order: FilterOrder::Joint,
            dry: Dry { multiplier: 0.8, ..Dry::default() },
            ..plain()
        },
        SamplingParams { repetition_penalty: 1000.0, top_p: 0.9, presence_penalty: 0.5, ..plain() },
        SamplingParams { repetition_penalty: 0.001, bias_first: true, logit_bias: vec![(3, 2.0)], ..plain() },
    ]
}

#[test]
fn the_logits_of_the_draw_replay_to_the_bit_under_all_settings() {
    watermark::add_key(77, [3; 16]).unwrap();
    let mut all: Vec<_> = Filter::ALL.iter().map(|filter| filter.alone()).collect();
    let section = Section { close: vec![9], budget: 3, ..Section::default() };
    all.extend(known());
    all.extend([
        SamplingParams {
            mirostat: Some(Mirostat { tau: 4.0, eta: 0.1, mu: None }),
            ..SamplingParams::default()
        },
        SamplingParams { section: Some(section), no_repeat_ngram: 2, ..SamplingParams::default() },
        SamplingParams { dry: Dry { multiplier: 0.8, ..Dry::default() }, ..SamplingParams::default() },
        SamplingParams {
            watermark: Watermark { key: 77, context: 2, ..Watermark::default() }.into(),
            ..SamplingParams::default()
        },
    ]);
    static MASK: [u32; 9] = [0x7fff_fff0; 9];
    for (number, params) in all.into_iter().enumerate() {
        let with = match number % 3 {
            0 => With { mask: Some(&MASK), ..NOTHING },
            1 => With { forced: Some(650), ..NOTHING },
            _ => NOTHING,
        };
        let rows = rows(number as u64);
        let receipt = draw(&asking(params), &rows, number as u64 * 1_000_003, with);
        let read = Receipt::from_json(&receipt.to_json()).unwrap();
        assert_eq!(read, receipt);
        let mut answers = [Answer::Equal; STEPS];
        if with.forced.is_some() {
            answers[4] = Answer::Forced;
        }
        assert_eq!(replay(&read, &rows, with.mask, 0.0).unwrap(), answers, "{number}");
    }
}

#[test]
fn each_claim_that_is_changed_is_named() {
    let (params, rows) = (asking(SamplingParams { top_k: 30, ..SamplingParams::default() }), rows(1));
    static MASK: [u32; 22] = [u32::MAX; 22];
    let receipt = draw(&params, &rows, 5, With { mask: Some(&MASK), ..NOTHING });
    let answers = |change: fn(&mut Receipt), tolerance| {
        let mut changed = receipt.clone();
        change(&mut changed);
        let answers = replay(&changed, &rows, Some(&MASK), tolerance).unwrap();
        let wrong = answers.iter().position(|answer| *answer != Answer::Equal);
        wrong.map(|step| (step, answers[step]))
    };
    for tolerance in [0.0, 0.001] {
        assert_eq!(answers(|_| {}, tolerance), None);
        let radius = Some((7, Answer::Wrong(Wrong::Radius)));
        assert_eq!(answers(|receipt| receipt.steps[7].radius = Some(0.5), tolerance), radius);
        assert_eq!(answers(|receipt| receipt.steps[7].radius = Some(f32::INFINITY), tolerance), radius);
        let token = Some((2, Answer::Wrong(Wrong::Token)));
        assert_eq!(answers(|receipt| receipt.steps[2].token += 1, tolerance), token);
        let mask = Some((9, Answer::Wrong(Wrong::Mask)));
        assert_eq!(answers(|receipt| receipt.steps[9].mask = None, tolerance), mask);
        assert_eq!(answers(|receipt| receipt.steps[9].mask = Some([1; 16]), tolerance), mask);
        // A forced token has an infinite radius.
        assert_eq!(answers(|receipt| receipt.steps[7].is_forced = true, tolerance), radius);
    }
    let digest = |receipt: &mut Receipt| receipt.steps[0].digest[3] ^= 1;
    assert_eq!(answers(digest, 0.0), Some((0, Answer::Wrong(Wrong::Digest))));
    assert_eq!(answers(digest, 0.001), Some((0, Answer::Within)));
    // Words after the end of the vocabulary do not change a mask.
    let longer = [MASK.to_vec(), vec![7; 3]].concat();
    assert_eq!(replay(&receipt, &rows, Some(&longer), 0.0).unwrap(), [Answer::Equal; STEPS]);
    let none = replay(&receipt, &rows, None, 0.0).unwrap_err();
    assert_eq!(
        none.to_string(),
        "mask has length 0, but must have 22 words: the receipt says that the token had a bitmask"
    );
    assert!(matches!(replay(&receipt, &[vec![0.0; 9]], None, 0.0), Err(Error::Length { .. })));
}

#[test]
fn logits_within_the_tolerance_are_never_called_wrong() {
    let (mut equal, mut within) = (0, 0);
    for (number, params) in known().into_iter().enumerate() {
        let params = asking(params);
        for round in 0..3 {
            let rows = rows(100 * number as u64 + round);
            let receipt = draw(&params, &rows, round, NOTHING);
            for (by, way) in [(0.01, 0), (0.3, 0), (0.05, 1), (0.4, 1), (0.1, 2), (0.6, 3)] {
                let moved = moved(&rows, by, way);
                for (step, answer) in replay(&receipt, &moved, None, by).unwrap().into_iter().enumerate() {
                    match answer {
                        Answer::Equal => equal += 1,
                        Answer::Within => within += 1,
                        Answer::Forced => unreachable!("nothing is forced"),
                        Answer::Wrong(wrong) => panic!("{number} {round} {by} {way} {step}: {wrong:?}"),
                    }
                }
            }
        }
    }
    assert_eq!((equal, within), (0, known().len() * 3 * 6 * STEPS));
}

#[test]
fn a_receipt_without_radii_is_drawn_again() {
    let mut params = asking(SamplingParams { top_k: 12, ..SamplingParams::default() });
    params.logprobs.as_mut().unwrap().mode = LogprobModes { first: LogprobMode::Raw, second: None };
    let rows = rows(3);
    let receipt = draw(&params, &rows, 9, NOTHING);
    let read = Receipt::from_json(&receipt.to_json()).unwrap();
    assert_eq!((&read, read.steps()[0].radius), (&receipt, None));
    assert_eq!(replay(&read, &rows, None, 0.0).unwrap(), [Answer::Equal; STEPS]);
    assert_eq!(replay(&read, &moved(&rows, 0.2, 1), None, 0.2).unwrap(), [Answer::Within; STEPS]);
    let mut other = read;
    other.seed = 10;
    let wrong = replay(&other, &rows, None, 0.01).unwrap();
    assert!(wrong.iter().filter(|answer| **answer == Answer::Wrong(Wrong::Token)).count() > STEPS / 2);
}

#[test]
fn tokens_of_another_seed_are_called_wrong() {
    let mut shares = Vec::new();
    // A repetition penalty of 0.001 makes seen tokens so likely that every seed draws one of them.
    for params in known().into_iter().filter(|params| params.repetition_penalty > 0.1) {
        let params = asking(params);
        let (mut others, mut wrong) = (0, 0);
        for round in 0..12 {
            let rows = rows(round);
            let (honest, other) = (draw(&params, &rows, 1, NOTHING), draw(&params, &rows, 2, NOTHING));
            let mut claimed = other.clone();
            claimed.seed = 1;
            let answers = replay(&claimed, &moved(&rows, 0.01, 0), None, 0.01).unwrap();
            for (step, answer) in answers.into_iter().enumerate() {
                // The texts part, and with them their histories.
                others += u32::from(honest.steps[step].token != other.steps[step].token);
                wrong += u32::from(matches!(answer, Answer::Wrong(_)));
            }
        }
        shares.push((others, wrong));
    }
    // A greedy text has no seed.
    assert_eq!(shares.remove(1), (0, 0));
    for (others, wrong) in shares {
        assert!(others > 150 && wrong > others * 9 / 10, "{wrong} of {others}");
    }
}

#[test]
fn a_penalty_lets_no_token_pass_that_the_tolerance_does_not() {
    let (mut passed, mut all) = (0, 0);
    for (number, r) in [1e-45, 0.001, 0.2, 1.5, 5.0, 20.0, 1000.0, 65536.0].into_iter().enumerate() {
        for params in [
            SamplingParams::default(),
            SamplingParams { top_p: 0.9, ..SamplingParams::default() },
            SamplingParams { top_k: 50, min_p: 0.01, ..SamplingParams::default() },
            SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        ] {
            let rows = rows(number as u64);
            let mut receipt =
                draw(&asking(SamplingParams { repetition_penalty: r, ..params }), &rows, 3, NOTHING);
            // Every second token was seen before, none was drawn, and all claim a radius of 0.
            let drawn: Vec<u32> = receipt.steps.iter().map(|step| step.token).collect();
            for (place, step) in receipt.steps.iter_mut().enumerate() {
                let seen = [5, 6, 7, 8][place / 2 % 4];
                step.token = if place % 2 == 0 { seen } else { (drawn[place] + 101) % VOCAB as u32 };
                step.radius = Some(0.0);
            }
            // Greedy and steep rows may draw what was put there.
            let honest = draws(&receipt, &rows);
            let answers = replay(&receipt, &moved(&rows, 0.01, 0), None, 0.01).unwrap();
            for (step, answer) in answers.iter().enumerate().filter(|(step, _)| !honest[*step]) {
                assert_ne!(*answer, Answer::Equal, "{r} {step}");
                passed += u32::from(*answer == Answer::Within);
                all += 1;
            }
        }
    }
    assert!(all > 700 && passed * 50 < all, "{passed} of {all}");
}

/// Returns which of a receipt's tokens these rows draw.
fn draws(receipt: &Receipt, rows: &[Vec<f32>]) -> Vec<bool> {
    let token = |answer: &Answer| !matches!(answer, Answer::Wrong(Wrong::Token));
    replay(receipt, rows, None, 0.0).unwrap().iter().map(token).collect()
}

#[test]
fn what_is_no_receipt_is_refused_by_name() {
    let refused = |params: &SamplingParams| Receipt::new(params, VOCAB, 1, 0, &[]).unwrap_err().to_string();
    assert_eq!(
        refused(&SamplingParams::default()),
        "logprobs.top_n is 0, but must be at least 1, for a receipt"
    );
    let mut second = asking(SamplingParams::default());
    second.logprobs.as_mut().unwrap().mode.second = Some(LogprobMode::Raw);
    assert!(refused(&second).starts_with("logprobs.mode is of the second mode raw"));
    let mut unlisted = asking(SamplingParams::default());
    unlisted.logprobs.as_mut().unwrap().top_n = 0;
    assert_eq!(refused(&unlisted), "logprobs.top_n is 0, but must be at least 1, for a receipt");

    let typical = asking(SamplingParams { typical_p: 0.9, ..SamplingParams::default() });
    let receipt = draw(&typical, &rows(1), 1, NOTHING);
    assert!(Replay::new(&receipt, 0.1).unwrap_err().to_string().contains("no radius is known"));
    assert!(Replay::new(&receipt, f32::NAN).unwrap_err().to_string().starts_with("tolerance is NaN"));
    let biased = asking(SamplingParams { logit_bias: vec![(3, -1e9)], ..SamplingParams::default() });
    let of_bias = draw(&biased, &rows(1), 1, NOTHING);
    assert!(Replay::new(&of_bias, 0.1).unwrap_err().to_string().contains("a ban is a bias of -inf"));

    let json = receipt.to_json();
    // A file ends with a line end.
    assert_eq!(Receipt::from_json(&format!("{json} \n")).as_ref(), Ok(&receipt));
    for (text, start) in [("[[1.0, 2.5]]", "[[1.0, 2.5]]"), ("\n{}", "\\n{}"), ("", "")] {
        let error = Receipt::from_json(text).unwrap_err().to_string();
        let wanted = format!(
            "receipt is a text that begins \"{start}\", but must be a receipt in canonical JSON (R1)"
        );
        assert_eq!(error, wanted);
    }
    for (change, with, reason) in [
        ("\"vocab\":700", "\"vocab\":7e2", "invalid type: floating point"),
        ("\"vocab\":700", "\"vocab\": 700", "in another form"),
        ("\"vocab\":700", "\"vocab\":9", "output is"),
        ("\"definition\":1", "\"definition\":2", "definition is 2"),
        ("\"typical_p\":0.9", "\"typical_p\":1", "in another form"),
        ("\"typical_p\":0.9", "\"typical\":0.9", "typical"),
        ("\"masks\":[null,", "\"masks\":[", "masks has length 23, but must have 24 elements"),
        ("\"seed\":\"1\"", "\"seed\":\"1x\"", "with the seed"),
        ("\"forced\":[]", "\"forced\":[99]", "forced is 99"),
        ("\"forced\":[]", "\"forced\":[1,0]", "in another form at byte"),
        ("\"radii\":[0", "\"radii\":[-1", "radius is -1"),
    ] {
        assert!(json.contains(change), "{change}: {json}");
        let error = Receipt::from_json(&json.replacen(change, with, 1)).unwrap_err().to_string();
        assert!(error.contains(reason), "{with}: {error}");
    }
    let mut receipt = receipt;
    let logprobs = gumball_spec::logprobs::Logprobs {
        token: absent(),
        top: vec![absent(); 8],
        ids: vec![],
        second: 0.0,
    };
    assert!(receipt.push(-1, gumball_spec::Status::EMPTY, &logprobs, None).is_err());
    assert!(receipt.push(VOCAB as i32, gumball_spec::Status::default(), &logprobs, None).is_err());
}

fn absent() -> gumball_spec::logprobs::TokenLogprob {
    gumball_spec::logprobs::TokenLogprob { id: -1, logprob: f32::NEG_INFINITY, rank: 0 }
}

/// Rows of some ids and whole eighths, for readers.
fn small_rows(seed: u64, steps: usize, vocab: usize) -> Vec<Vec<f32>> {
    let row = |row: &Vec<f32>| row[..vocab].iter().map(|z| (z * 8.0).round() / 8.0).collect();
    rows(seed).iter().take(steps).map(row).collect()
}

#[test]
fn the_vectors_for_implementers_are_current() {
    static MASK: [u32; 1] = [0b11_1011_1101];
    let plain = SamplingParams::default;
    let masked = With { mask: Some(&MASK), ..NOTHING };
    let forced = With { forced: Some(7), ..NOTHING };
    let mirostat = Some(Mirostat { tau: 2.0, eta: 0.1, mu: None });
    let penalised = SamplingParams { repetition_penalty: 1.25, top_p: 0.75, min_p: 0.125, ..plain() };
    // Parameters, the mask and the forced token, and the tolerance, by which the replayed logits differ at
    // most.
    let cases = [
        (plain(), NOTHING, 0.0),
        (SamplingParams { top_k: 4, temperature: 0.5, ..plain() }, masked, 0.0),
        (penalised.clone(), forced, 0.0),
        (SamplingParams { mirostat, ..plain() }, NOTHING, 0.0),
        (SamplingParams { temperature: 0.0, ..plain() }, NOTHING, 0.25),
        (SamplingParams { top_k: 4, ..plain() }, masked, 0.25),
        (penalised, NOTHING, 0.25),
        // Of two tiles, a longer list, the rows as they came, and no radii.
        (
            SamplingParams { top_p: 0.5, logit_bias: vec![(7, 1.5), (3, f32::NEG_INFINITY)], ..plain() },
            NOTHING,
            0.0,
        ),
        (
            SamplingParams {
                xtc_probability: 0.5,
                dry: Dry { multiplier: 0.5, ..Dry::default() },
                ..plain()
            },
            masked,
            0.0,
        ),
    ];
    let mut vectors = Vec::new();
    for (number, (params, with, tolerance)) in cases.into_iter().enumerate() {
        let (steps, vocab) = if number < 7 { (6, 10) } else { (5, 270) };
        let rows = small_rows(number as u64, steps, vocab);
        let mut params = asking(params);
        if let (7.., Some(asked)) = (number, &mut params.logprobs) {
            asked.mode = LogprobModes { first: LogprobMode::Raw, second: None };
        }
        let receipt = draw(&params, &rows, number as u64 * 1_000_000_007, with);
        let round = |row: &Vec<f32>| row.iter().map(|z| (z * 64.0).round() / 64.0).collect();
        let logits: Vec<Vec<f32>> = moved(&rows, tolerance, 0).iter().map(round).collect();
        let mut other = receipt.clone();
        other.steps[2].token = (other.steps[2].token + 3) % 10;
        let mut more = receipt.clone();
        more.steps[3].radius = more.steps[3].radius.map(|radius| radius + 1.0);
        for receipt in [receipt, other, more] {
            let answers = replay(&receipt, &logits, with.mask, tolerance).unwrap();
            let answers: Vec<_> = answers.into_iter().map(Answer::name).collect();
            let json: serde_json::Value = serde_json::from_str(&receipt.to_json()).unwrap();
            vectors.push(serde_json::json!({
                "receipt": json, "logits": logits, "mask": with.mask, "tolerance": tolerance, "answers": answers,
            }));
        }
    }
    let lines: Vec<_> =
        vectors.iter().map(|vector| serde_json_canonicalizer::to_string(vector).unwrap()).collect();
    let text = format!("[\n{}\n]\n", lines.join(",\n"));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/vectors.json");
    if std::env::var_os("GUMBALL_BLESS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), text, "GUMBALL_BLESS=1 writes it");
    for name in ["equal", "within", "forced", "token", "radius"] {
        assert!(text.contains(&format!("\"{name}\"")), "no answer is {name}");
    }
}
