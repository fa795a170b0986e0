//! Logprobs of tokens that are there already, on the host and on a device, are the definition's of forced tokens.

#[cfg(feature = "emulator")]
use gumball_engine::{Device, DeviceBuffer, DeviceLogits, Dtype};
use gumball_engine::{Kind, Logits, LogprobsParams, NONE, Operators, SamplingParams};
use gumball_spec::{LogprobMode, Request, Row, oracle};

use crate::cases::{VOCAB, rows};

const ROWS: usize = 300;

/// Rows with ties, NaN, +inf and nothing at all, and the tokens that are asked for.
fn batch() -> (Vec<f32>, Vec<i32>) {
    let mut data = rows((0..ROWS as u64).map(|row| row % 11));
    data[VOCAB..2 * VOCAB].fill(f32::NEG_INFINITY);
    data[2 * VOCAB + 5] = f32::NAN;
    data[3 * VOCAB + 6] = f32::INFINITY;
    data[4 * VOCAB + 7] = f32::NEG_INFINITY;
    let mut tokens: Vec<i32> = (0..ROWS as i32).map(|row| row * 37 % VOCAB as i32).collect();
    tokens[..8].copy_from_slice(&[NONE, 4, 5, 6, 7, NONE, 0, VOCAB as i32 - 1]);
    (data, tokens)
}

/// What the definition says: the raw logprob and the rank of a forced token.
fn wanted(data: &[f32], tokens: &[i32], kind: Kind) -> (Vec<u32>, Vec<u32>) {
    let logprobs = LogprobsParams { mode: LogprobMode::Raw, ..LogprobsParams::default() };
    let params = SamplingParams { logprobs: Some(logprobs), ..SamplingParams::default() };
    let each = data.chunks(VOCAB).zip(tokens).map(|(row, token)| {
        let Ok(forced) = u32::try_from(*token) else { return (f32::NEG_INFINITY.to_bits(), 0) };
        let request = Request { kind, forced: Some(forced), ..Request::new(&params, &[], 0) };
        let outcome = oracle::sample(Row::F32(row), &request, None).unwrap();
        let token = outcome.logprobs.expect("asked for").token;
        (token.logprob.to_bits(), token.rank)
    });
    each.unzip()
}

/// Operators of a device, and rows in its memory.
#[cfg(feature = "emulator")]
fn device(data: &[f32]) -> Option<(Operators, DeviceBuffer)> {
    let device = Device::emulated().inspect_err(|error| println!("skipped: {error}")).ok()?;
    let buffer = DeviceBuffer::of(device.runtime(), data).unwrap();
    Some((Operators::on_device(device), buffer))
}

#[cfg(feature = "emulator")]
fn rows_of(buffer: &DeviceBuffer) -> DeviceLogits<'_> {
    DeviceLogits::of(buffer, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn they_are_the_definitions_of_forced_tokens() {
    let (data, tokens) = batch();
    let weights: Vec<f32> = data.iter().map(|z| if z.is_finite() { z.exp() } else { 0.0 }).collect();
    for (data, kind) in [(&data, Kind::Logits), (&weights, Kind::Probabilities)] {
        let (logprobs, ranks) = wanted(data, &tokens, kind);
        for threads in [1, 3] {
            let operators = Operators::new(None, Some(threads)).unwrap();
            let rows = Logits::new(data, ROWS, VOCAB).unwrap().with_kind(kind);
            let (mut seen, mut places) = (vec![7.0; ROWS], vec![7; ROWS]);
            operators.selected_logprobs(rows, &tokens, &mut seen, Some(&mut places)).unwrap();
            assert_eq!((bits(&seen), &places), (logprobs.clone(), &ranks));
            // One row may be asked for many tokens.
            let lines = [6, 2, 6];
            let some = rows.select(&lines).unwrap();
            operators.selected_logprobs(some, &[0, 5, NONE], &mut seen[..3], None).unwrap();
            assert_eq!(bits(&seen[..2]), [logprobs[6], logprobs[2]]);
        }
        #[cfg(feature = "emulator")]
        if let Some((operators, buffer)) = device(data) {
            let rows = rows_of(&buffer).with_kind(kind);
            for _ in 0..2 {
                let (mut seen, mut places) = (vec![7.0; ROWS], vec![7; ROWS]);
                operators.selected_logprobs(rows, &tokens, &mut seen, Some(&mut places)).unwrap();
                assert_eq!((bits(&seen), &places), (logprobs.clone(), &ranks));
            }
        }
    }
}

#[test]
fn mistakes_are_named_and_nothing_is_written() {
    let (data, tokens) = batch();
    #[cfg(feature = "emulator")]
    let on_device = device(&data);
    let host = Operators::new(None, Some(1)).unwrap();
    let rows = Logits::new(&data, ROWS, VOCAB).unwrap();
    let refused = |tokens: &[i32], logprobs: usize, ranks: usize| {
        let mut written = (vec![7.0; logprobs], vec![7; ranks]);
        let (seen, places) = (&mut written.0, Some(&mut written.1[..]));
        let error = host.selected_logprobs(rows, tokens, seen, places).unwrap_err().to_string();
        #[cfg(feature = "emulator")]
        if let Some((operators, buffer)) = &on_device {
            let (seen, places) = (&mut written.0, Some(&mut written.1[..]));
            let other = operators.selected_logprobs(rows_of(buffer), tokens, seen, places).unwrap_err();
            assert_eq!(other.to_string(), error);
        }
        assert!(written.0.iter().all(|x| *x == 7.0) && written.1.iter().all(|x| *x == 7));
        error
    };
    assert_eq!(refused(&tokens[1..], ROWS, ROWS), "tokens has length 299, but must have one per row, 300");
    assert_eq!(refused(&tokens, 2, ROWS), "logprobs has length 2, but must have one per row, 300");
    assert_eq!(refused(&tokens, ROWS, 2), "ranks has length 2, but must have one per row, 300");
    for wrong in [VOCAB as i32, -2] {
        let mut tokens = tokens.clone();
        tokens[ROWS - 1] = wrong;
        let text = format!("tokens is {wrong}, but must be an id in 0..{VOCAB}, or -1");
        assert_eq!(refused(&tokens, ROWS, ROWS), text);
    }
    #[cfg(feature = "emulator")]
    if let Some((operators, _)) = &on_device {
        let error =
            operators.selected_logprobs(rows, &tokens, &mut [0.0; ROWS], None).unwrap_err().to_string();
        assert_eq!(error, "rows is on the host, but must be on the device, as the operators are");
    }
}
