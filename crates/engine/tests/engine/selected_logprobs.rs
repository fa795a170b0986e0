//! Logprobs of tokens that are there already, on the host and on a device, are the definition's of forced
//! tokens.

#[cfg(feature = "emulator")]
use gumball_engine::{
    ColumnType, Device, DeviceBuffer, DeviceMatrix, DeviceSlice, Dtype, IntType, PerRowMut,
};
use gumball_engine::{Kind, LogprobsParams, Matrix, NONE, Operators, PerRow, Rows, SamplingParams, Status};
use gumball_spec::{Forced, LogprobMode, Request, Row, oracle};

use crate::cases::{VOCAB, rows};

const ROWS: usize = 300;

/// Rows with ties, NaN, +inf and nothing at all, and the tokens that are asked for.
fn batch() -> (Vec<f32>, Vec<i32>) {
    let mut data = rows((0..ROWS as u64).map(|row| row % 11));
    data[VOCAB..2 * VOCAB].fill(f32::NEG_INFINITY);
    data[2 * VOCAB + 5] = f32::NAN;
    data[3 * VOCAB + 6] = f32::INFINITY;
    data[4 * VOCAB + 7] = f32::NEG_INFINITY;
    data[5 * VOCAB + 8] = f32::NAN;
    let mut tokens: Vec<i32> = (0..ROWS as i32).map(|row| row * 37 % VOCAB as i32).collect();
    tokens[..8].copy_from_slice(&[NONE, 4, 5, 6, 7, NONE, 0, VOCAB as i32 - 1]);
    (data, tokens)
}

/// The bits of logprobs, ranks and statuses.
type Told = (Vec<u32>, Vec<u32>, Vec<u32>);

/// The definition's result: the raw logprob and the rank of a forced token, and the row's status.
fn wanted(data: &[f32], tokens: &[i32], kind: Kind) -> Told {
    let logprobs = LogprobsParams { mode: LogprobMode::Raw.into(), ..LogprobsParams::default() };
    let params = SamplingParams { logprobs: Some(logprobs), ..SamplingParams::default() };
    let each = data.chunks(VOCAB).zip(tokens).map(|(row, token)| {
        let Ok(forced) = u32::try_from(*token) else { return (f32::NEG_INFINITY.to_bits(), 0, 0) };
        let request = Request { kind, forced: Some(Forced::known(forced)), ..Request::new(&params, &[], 0) };
        let outcome = oracle::sample(Row::F32(row), &request, None).unwrap();
        let token = outcome.logprobs.expect("asked for").token;
        (token.logprob.to_bits(), token.rank, outcome.status.0)
    });
    each.collect()
}

/// Operators of a device, and rows in its memory.
#[cfg(feature = "emulator")]
fn device(data: &[f32]) -> Option<(Operators, Device, DeviceBuffer)> {
    let device = gumball_bench_protocol::skipped::or_skip(Device::emulated())?;
    let buffer = DeviceBuffer::of(device.runtime(), data).unwrap();
    Some((Operators::on_device(device.clone()), device, buffer))
}

#[cfg(feature = "emulator")]
fn rows_of(buffer: &DeviceBuffer) -> DeviceMatrix<'_> {
    DeviceMatrix::of(buffer, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap()
}

/// What operators of the device write, for tokens of the host or of the device.
#[cfg(feature = "emulator")]
fn told(operators: &Operators, device: &Device, rows: DeviceMatrix<'_>, tokens: PerRow<'_, i32>) -> Told {
    let out = [(); 3].map(|()| DeviceBuffer::of(device.runtime(), &vec![7u32; ROWS]).unwrap());
    let words = |column| PerRowMut::Device(DeviceSlice::of(column, IntType::U32));
    let (ranks, statuses) =
        (Some(words(&out[1])), Some(PerRowMut::Device(DeviceSlice::of(&out[2], IntType::U32))));
    let logprobs = PerRowMut::Device(DeviceSlice::of(&out[0], ColumnType::F32));
    operators.selected_logprobs(rows, tokens, logprobs, ranks, statuses).unwrap();
    let [logprobs, ranks, statuses] = out.map(|column| {
        let mut read = vec![0u32; ROWS];
        column.read(0, &mut read).unwrap();
        read
    });
    (logprobs, ranks, statuses)
}

/// What operators of the host write.
fn told_by_host(operators: &Operators, rows: Rows<'_>, tokens: PerRow<'_, i32>) -> Told {
    let count = rows.matrix().rows();
    let (mut seen, mut places) = (vec![7.0; count], vec![7; count]);
    let mut statuses = vec![Status(7); count];
    let more = (Some((&mut places).into()), Some((&mut statuses).into()));
    operators.selected_logprobs(rows, tokens, (&mut seen).into(), more.0, more.1).unwrap();
    let bits = seen.iter().map(|value| value.to_bits()).collect();
    (bits, places, statuses.iter().map(|status| status.0).collect())
}

#[test]
fn they_are_the_definitions_of_forced_tokens() {
    let (data, tokens) = batch();
    let weights: Vec<f32> = data.iter().map(|z| if z.is_finite() { z.exp() } else { 0.0 }).collect();
    for (data, kind) in [(&data, Kind::Logits), (&weights, Kind::Probabilities)] {
        let said = wanted(data, &tokens, kind);
        for threads in [1, 3] {
            let operators = Operators::new(None, Some(threads)).unwrap();
            let rows = Rows::of(Matrix::new(data, ROWS, VOCAB).unwrap(), kind);
            assert_eq!(told_by_host(&operators, rows, (&tokens).into()), said);
            assert_eq!(told_by_host(&operators, rows, 9.into()), wanted(data, &[9; ROWS], kind));
        }
        #[cfg(feature = "emulator")]
        if let Some((operators, device, buffer)) = device(data) {
            let rows = rows_of(&buffer).with_kind(kind);
            for _ in 0..2 {
                assert_eq!(told(&operators, &device, rows, (&tokens).into()), said);
            }
            assert_eq!(told(&operators, &device, rows, 9.into()), wanted(data, &[9; ROWS], kind));
            // A token in the device's memory that is no id is not refused.
            let mut odd = tokens.clone();
            let mut said = said.clone();
            for (row, id) in [(10, VOCAB as i32), (11, -2), (ROWS - 1, i32::MAX)] {
                odd[row] = id;
                (said.0[row], said.1[row], said.2[row]) = (f32::NEG_INFINITY.to_bits(), 0, Status::NO_ID.0);
            }
            let wide: Vec<i64> = odd.iter().map(|id| i64::from(*id)).collect();
            let columns = [
                (DeviceBuffer::of(device.runtime(), &odd).unwrap(), IntType::I32),
                (DeviceBuffer::of(device.runtime(), &wide).unwrap(), IntType::I64),
            ];
            for (column, dtype) in &columns {
                let column = PerRow::Device(DeviceSlice::of(column, *dtype));
                assert_eq!(told(&operators, &device, rows, column), said);
            }
        }
    }
}

#[test]
fn no_token_has_no_status_though_its_row_holds_a_nan() {
    let mut data = rows(0..2);
    (data[3], data[VOCAB + 3]) = (f32::NAN, f32::NAN);
    let operators = Operators::new(None, Some(1)).unwrap();
    let told = told_by_host(&operators, Rows::logits(&data, 2, VOCAB).unwrap(), [NONE, 3][..].into());
    let nothing = f32::NEG_INFINITY.to_bits();
    assert_eq!(told, (vec![nothing; 2], vec![0; 2], vec![0, Status::NAN.0]));
}

#[test]
fn mistakes_are_named_and_nothing_is_written() {
    let (data, tokens) = batch();
    let host = Operators::new(None, Some(1)).unwrap();
    let rows = Rows::logits(&data, ROWS, VOCAB).unwrap();
    let refused = |tokens: &[i32], logprobs: usize, ranks: usize| {
        let mut written = (vec![7.0; logprobs], vec![7; ranks]);
        let (seen, places) = ((&mut written.0).into(), Some((&mut written.1).into()));
        let error = host.selected_logprobs(rows, tokens.into(), seen, places, None).unwrap_err();
        assert!(written.0.iter().all(|x| *x == 7.0) && written.1.iter().all(|x| *x == 7));
        error.to_string()
    };
    assert_eq!(refused(&tokens[1..], ROWS, ROWS), "tokens has length 299, but must have one per row, 300");
    assert_eq!(refused(&tokens, 2, ROWS), "logprobs has length 2, but must have one per output, 300");
    assert_eq!(refused(&tokens, ROWS, 2), "ranks has length 2, but must have one per output, 300");
    for wrong in [VOCAB as i32, -2] {
        let mut tokens = tokens.clone();
        tokens[ROWS - 1] = wrong;
        let text = format!("tokens is {wrong}, but must be an id in 0..{VOCAB}, or -1");
        assert_eq!(refused(&tokens, ROWS, ROWS), text);
    }
    #[cfg(feature = "emulator")]
    if let Some((operators, device, buffer)) = device(&data) {
        let column = DeviceBuffer::of(device.runtime(), &vec![7u32; ROWS]).unwrap();
        let refused = |tokens: PerRow<'_, i32>, logprobs: DeviceSlice<'_>| {
            let error = operators
                .selected_logprobs(rows_of(&buffer), tokens, PerRowMut::Device(logprobs), None, None)
                .unwrap_err();
            let mut read = vec![0u32; ROWS];
            column.read(0, &mut read).unwrap();
            assert!(read.iter().all(|word| *word == 7));
            error.to_string()
        };
        let floats = DeviceSlice::of(&column, ColumnType::F32);
        let text = refused(tokens[1..].into(), floats);
        assert_eq!(text, "tokens has length 299, but must have one per row, 300");
        let text = refused((VOCAB as i32).into(), floats);
        assert_eq!(text, format!("tokens is {VOCAB}, but must be an id in 0..{VOCAB}, or -1"));
        let text = refused(5.into(), floats.first(2).unwrap());
        assert_eq!(text, "logprobs has length 2, but must have one for each of 300 rows");
        let text = refused(5.into(), DeviceSlice::of(&column, IntType::I32));
        assert_eq!(text, "logprobs is a column of i32, but must be a column of f32");
        let text = refused(PerRow::Device(floats), floats);
        assert_eq!(text, "tokens is a column of f32, but must be a column of i32 or i64");
        let mut seen = vec![0.0; ROWS];
        let error = operators
            .selected_logprobs(rows_of(&buffer), 5.into(), (&mut seen).into(), None, None)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "logprobs is on the host, but must be on the device, as the operators are"
        );
        let error = operators.selected_logprobs(rows, 5.into(), (&mut seen).into(), None, None).unwrap_err();
        assert_eq!(error.to_string(), "rows is on the host, but must be on the device, as the operators are");
    }
}
