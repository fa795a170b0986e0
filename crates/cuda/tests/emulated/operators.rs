//! Operators over more outputs than one pass holds, and the errors of operators. `conformance` tests their
//! results.

use std::sync::Arc;

use gumball_cuda::{
    Buffer, ColumnType, DeviceSlice, Draws, Dtype, IntType, Operators, Output, PerRow, RowParams, Rows,
    RowsOut,
};
use gumball_spec::oracle::sample;
use gumball_spec::{Error, Kind, Request, Row, SamplingParams};

use crate::runtime;

const VOCAB: usize = 300;
const LINES: usize = 2;

fn lines() -> Vec<f32> {
    (0..LINES * VOCAB).map(|i| (i * i % 97) as f32 * 0.05).collect()
}

#[test]
fn outputs_are_drawn_in_parts_as_each_alone() {
    let Some(runtime) = runtime() else { return };
    let values = lines();
    let matrix = Buffer::of(&runtime, &values).expect("memory");
    let rows = Rows::of(&matrix, Dtype::F32, 0, LINES, VOCAB, VOCAB).expect("rows");
    // Two passes of 1024 outputs, and a third one of 52.
    let outputs = 2100;
    let read: Vec<i32> = (0..outputs as i32).map(|output| output * 7 % LINES as i32).collect();
    let index = Buffer::of(&runtime, &read).expect("memory");
    let positions =
        Buffer::of(&runtime, &(0..outputs as i64).map(|i| i % 5).collect::<Vec<_>>()).expect("memory");
    let tokens = Buffer::zeroed(&runtime, outputs * 8).expect("memory");
    let statuses = Buffer::zeroed(&runtime, outputs * 4).expect("memory");
    let common = SamplingParams { top_p: 0.7, ..SamplingParams::default() };
    let draws =
        Draws { positions: PerRow::Rows(DeviceSlice::of(&positions, IntType::I64)), ..Draws::new(11, 0) };
    let mut operators = Operators::new(Arc::clone(&runtime));
    operators
        .sample(
            &rows,
            &RowParams::new(&common),
            &draws,
            Some(&DeviceSlice::of(&index, IntType::I32)),
            &DeviceSlice::of(&tokens, IntType::I64),
            Some(&DeviceSlice::of(&statuses, IntType::U32)),
        )
        .expect("drawn");
    let mut drawn = vec![0i64; outputs];
    tokens.read(0, &mut drawn).expect("memory");
    for output in (0..outputs).step_by(13).chain([1023, 1024, 2047, 2048, outputs - 1]) {
        let line = read[output] as usize;
        let request =
            Request { position: (output % 5) as u32, draw: output as u32, ..Request::new(&common, &[], 11) };
        let wanted = sample(Row::F32(&values[line * VOCAB..][..VOCAB]), &request, None).expect("drawn");
        assert_eq!(drawn[output], i64::from(wanted.token), "output {output}");
    }
}

#[test]
fn high_words_of_offsets_move_the_seed_and_an_output_without_a_token_is_told_as_0() {
    let Some(runtime) = runtime() else { return };
    let mut values = lines();
    values[VOCAB..].fill(f32::NEG_INFINITY);
    let matrix = Buffer::of(&runtime, &values).expect("memory");
    let rows = Rows::of(&matrix, Dtype::F32, 0, LINES, VOCAB, VOCAB).expect("rows");
    let (seed, common) = (u64::MAX - 5, SamplingParams::default());
    let seeds = Buffer::of(&runtime, &[seed]).expect("memory");
    let tokens = Buffer::zeroed(&runtime, LINES * 8).expect("memory");
    let mut operators = Operators::new(Arc::clone(&runtime));
    for offset in [7i64, 7 + (3 << 32), -1, i64::MIN, i64::MAX] {
        for offsets in [true, false] {
            let positions = Buffer::of(&runtime, &[offset]).expect("memory");
            let draws = Draws {
                seeds: PerRow::Rows(DeviceSlice::of(&seeds, IntType::U64)),
                positions: PerRow::Rows(DeviceSlice::of(&positions, IntType::I64)),
                offsets,
                zero_for_none: offsets,
                ..Draws::new(0, 0)
            };
            let to = DeviceSlice::of(&tokens, IntType::I64);
            let to = to.first(LINES).expect("as many");
            operators.sample(&rows, &RowParams::new(&common), &draws, None, &to, None).expect("drawn");
            let mut drawn = [7i64; LINES];
            tokens.read(0, &mut drawn).expect("memory");
            let moved = ((offset >> 32) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let seed = if offsets { seed.wrapping_add(moved) } else { seed };
            let request = Request { position: offset as u32, ..Request::new(&common, &[], seed) };
            let wanted = sample(Row::F32(&values[..VOCAB]), &request, None).expect("drawn");
            assert_eq!(drawn[0], i64::from(wanted.token), "offset {offset}");
            assert_eq!(drawn[1], if offsets { 0 } else { -1 }, "offset {offset}");
        }
    }
}

#[test]
fn a_top_k_in_device_memory_near_the_number_of_tiles_keeps_that_many_tokens() {
    let Some(runtime) = runtime() else { return };
    // 501 tiles. A candidate list has a capacity of 416 tokens, and the host never sees the value of top-k.
    let vocab = 128_256;
    let probs: Vec<f32> = (0..vocab as u64).map(|i| (i * 7919 % 128_257 + 1) as f32).collect();
    let matrix = Buffer::of(&runtime, &probs).expect("memory");
    let rows =
        Rows::of(&matrix, Dtype::F32, 0, 1, vocab, vocab).expect("rows").with_kind(Kind::Probabilities);
    let common = SamplingParams::default();
    let mut operators = Operators::new(Arc::clone(&runtime));
    for k in [415, 416, 417, 485, 500, 501, 502, 600] {
        let top_k = Buffer::of(&runtime, &[i64::from(k)]).expect("memory");
        let params =
            RowParams { top_k: Some(DeviceSlice::of(&top_k, IntType::I64)), ..RowParams::new(&common) };
        let mut out = Buffer::zeroed(&runtime, vocab * 4).expect("memory");
        let to = RowsOut::of(&mut out, Dtype::F32, 0, 1, vocab, vocab).expect("rows");
        operators.write(Output::Probabilities, Some(&rows), &to, &params, None).expect("written");
        let mut kept = vec![0f32; vocab];
        out.read(0, &mut kept).expect("memory");
        assert_eq!(kept.iter().filter(|p| **p > 0.0).count(), k as usize, "k {k}");
    }
}

#[test]
fn min_p_in_a_column_cuts_probabilities_at_the_rounded_product() {
    let Some(runtime) = runtime() else { return };
    let least = f32::from_bits(1);
    // The number in the column, the largest probability of a row, and the smallest one that P1a keeps, worked
    // out by hand. The third product is 6.5e-7 above numbers whose logarithms would pass. NaN turns min-p
    // off, and a number above 1 counts as 1.
    let cases = [
        (0.1f32, 0.3f32, f32::from_bits(0x3CF5_C290)),
        (0.02, 0.7, f32::from_bits(0x3C65_6041)),
        (0.02, 0.000_42, f32::from_bits(0x370C_EDB9)),
        (3.0, 0.3, 0.3),
        (f32::NAN, 0.3, least),
        (0.0, 0.3, least),
        (0.0625, f32::from_bits(8), least),
        (0.3, f32::from_bits(8), f32::from_bits(2)),
    ];
    for vocab in [300, 3000] {
        let mut values = vec![0.0f32; cases.len() * vocab];
        for (line, (_, first, least)) in values.chunks_mut(vocab).zip(cases) {
            (line[7], line[270], line[40]) = (first, least, f32::from_bits(least.to_bits() - 1));
            line[41] = f32::from_bits(least.to_bits().saturating_sub(6));
        }
        let matrix = Buffer::of(&runtime, &values).expect("memory");
        let column = Buffer::of(&runtime, &cases.map(|(min_p, ..)| min_p)).expect("memory");
        let rows = Rows::of(&matrix, Dtype::F32, 0, cases.len(), vocab, vocab).expect("rows");
        let rows = rows.with_kind(Kind::Probabilities);
        for common in [
            SamplingParams::default(),
            SamplingParams { top_k: 20, ..Default::default() },
            SamplingParams { top_k: 290, ..Default::default() },
        ] {
            let params = RowParams {
                min_p: Some(DeviceSlice::of(&column, ColumnType::F32)),
                ..RowParams::new(&common)
            };
            let mut out = Buffer::of(&runtime, &vec![5.0f32; values.len()]).expect("memory");
            let place = RowsOut::of(&mut out, Dtype::F32, 0, cases.len(), vocab, vocab).expect("rows");
            let mut operators = Operators::new(Arc::clone(&runtime));
            operators.write(Output::Masked, Some(&rows), &place, &params, None).expect("written");
            let mut masked = vec![0.0f32; values.len()];
            out.read(0, &mut masked).expect("memory");
            for (line, (min_p, first, least)) in masked.chunks(vocab).zip(cases) {
                let kept: Vec<usize> = (0..vocab).filter(|id| line[*id] > 0.0).collect();
                assert_eq!(
                    kept,
                    [7, 270],
                    "min_p {min_p} of {first:e} keeps {least:e}, vocab {vocab}, {common:?}"
                );
            }
        }
    }
}

#[test]
fn mistakes_are_named_and_nothing_is_changed() {
    let Some(runtime) = runtime() else { return };
    let matrix = Buffer::of(&runtime, &lines()).expect("memory");
    let tokens = Buffer::of(&runtime, &[7u32; LINES]).expect("memory");
    let column = Buffer::of(&runtime, &[1.0f32; LINES + 1]).expect("memory");
    let plain = SamplingParams::default();
    let banned = SamplingParams { banned_ids: vec![3], ..plain.clone() };
    let with = RowParams::new(&plain);
    let too_many = RowParams { top_p: Some(DeviceSlice::of(&column, ColumnType::F32)), ..with };
    let wrong = RowParams { top_k: Some(DeviceSlice::of(&column, IntType::U32)), ..with };
    let hot = RowParams {
        temperature: Some(DeviceSlice::of(&column, ColumnType::F32).first(1).expect("one")),
        ..with
    };
    for (params, kind, says) in [
        (too_many, Kind::Logits, "top_p has length 3, but must have one for each of 2 rows, or for all"),
        (wrong, Kind::Logits, "top_k is a column of u32, but must be a column of i32 or i64"),
        (RowParams::new(&banned), Kind::Logits, "no edits of ids in an operator on a device"),
        (hot, Kind::Probabilities, "temperature cannot be combined with probabilities"),
    ] {
        let rows = Rows::of(&matrix, Dtype::F32, 0, LINES, VOCAB, VOCAB).expect("rows").with_kind(kind);
        let mut operators = Operators::new(Arc::clone(&runtime));
        let to = DeviceSlice::of(&tokens, IntType::I32);
        let error: Error =
            operators.sample(&rows, &params, &Draws::new(0, 0), None, &to, None).expect_err("refused");
        assert!(error.to_string().starts_with(says), "{error}");
    }
    let mut after = [0u32; LINES];
    tokens.read(0, &mut after).expect("memory");
    assert_eq!(after, [7; LINES]);
}
