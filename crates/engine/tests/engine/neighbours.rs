//! What is wrong with one row stays in that row.

use gumball_engine::{Batch, NONE, Outputs, PADDING, Row, Rows, Status, bf16, f16};

use crate::cases::{VOCAB, params, pool, row, rows, step};

/// Steps five requests, the row in the middle replaced; returns the outputs and the histories after it.
fn with_middle(middle: &[f32]) -> (Outputs, Vec<Vec<u32>>) {
    let mut pool = pool(2);
    let slots: Vec<_> = (0..5).map(|kind| pool.admit(params(kind, 7), &[1, 2]).unwrap()).collect();
    let mut data = rows(0..5);
    data[2 * VOCAB..][..VOCAB].copy_from_slice(middle);
    let out = step(&mut pool, &data, &slots);
    let history = |slot: &i32| pool.sequence(*slot).unwrap().history().ids().to_vec();
    let histories = slots.iter().map(history).collect();
    (out, histories)
}

#[test]
fn neighbours_of_a_bad_row_are_untouched() {
    let (good, good_histories) = with_middle(&row(2));
    let bad: [(&str, Vec<f32>, Status, bool); 4] = [
        ("nan", vec![f32::NAN; VOCAB], Status(Status::NAN.0 | Status::EMPTY.0), true),
        ("-inf", vec![f32::NEG_INFINITY; VOCAB], Status::EMPTY, true),
        ("+inf", vec![f32::INFINITY; VOCAB], Status::INF, false),
        ("huge", vec![3e38; VOCAB], Status(0), false),
    ];
    for (name, middle, status, empty) in bad {
        let (out, histories) = with_middle(&middle);
        for row in [0, 1, 3, 4] {
            assert_eq!(out.tokens()[row], good.tokens()[row], "{name}, row {row}");
            assert_eq!(out.statuses()[row], 0, "{name}, row {row}");
            assert_eq!(out.logprobs()[row].to_bits(), good.logprobs()[row].to_bits(), "{name}, row {row}");
            assert_eq!(out.top_ids(row), good.top_ids(row), "{name}, row {row}");
            assert_eq!(histories[row], good_histories[row], "{name}, row {row}");
        }
        assert_eq!(out.status(2), status, "{name}");
        assert_eq!(out.tokens()[2] == NONE, empty, "{name}");
        assert_eq!(histories[2].len(), if empty { 2 } else { 3 }, "{name}: NONE is not appended");
    }
}

#[test]
fn padding_yields_nothing_and_touches_nothing() {
    let mut pool = pool(1);
    let slot = pool.admit(params(4, 7), &[1]).unwrap();
    let idle = pool.admit(params(4, 8), &[1]).unwrap();
    let mut data = rows([0, 1, 2]);
    data[..VOCAB].fill(f32::NAN);
    let out = step(&mut pool, &data, &[PADDING, slot, PADDING]);
    for row in [0, 2] {
        assert_eq!((out.tokens()[row], out.statuses()[row], out.ranks()[row]), (NONE, 0, 0));
        assert_eq!((out.logprobs()[row], out.top_ids(row)), (f32::NEG_INFINITY, &[NONE; 3][..]));
    }
    assert_eq!(pool.sequence(slot).unwrap().position(), 2);
    let idle = pool.sequence(idle).unwrap();
    assert_eq!((idle.position(), idle.mu()), (1, 6.0));
}

#[test]
fn a_type_that_holds_the_row_exactly_gives_the_same_token() {
    // Steps of 1/8 up to 17 need 8 bits of mantissa.
    let data: Vec<f32> = row(3).iter().map(|z| z.clamp(-15.0, 15.0)).collect();
    let half: Vec<_> = data.iter().map(|z| f16::from_f32(*z)).collect();
    let brain: Vec<_> = data.iter().map(|z| bf16::from_f32(*z)).collect();
    assert!(brain.iter().zip(&data).all(|(a, b)| a.to_f32() == *b), "exact");
    let draw = |row: Row<'_>| {
        let mut pool = pool(1);
        let slot = pool.admit(params(2, 5), &[]).unwrap();
        let mut out = Outputs::new();
        let logits = Rows::logits(row, 1, VOCAB).unwrap();
        pool.step(logits, &Batch::of(&[slot]), &mut out).unwrap();
        out.words().to_vec()
    };
    assert_eq!(draw(Row::from(&half)), draw(Row::from(&data)));
    assert_eq!(draw(Row::from(&brain)), draw(Row::from(&data)));
}
