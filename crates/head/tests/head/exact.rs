//! The exact head: equal to the definition over threads and in any batch, and strict about shapes.

use gumball_head::{Exact, HeadOptions, HostMatrix, Scaling, Spread, Widened};
use gumball_spec::{Row, head};
use half::bf16;

use crate::{bits, numbers};

const VOCAB: usize = 5003;
const WIDTH: usize = 70;

#[test]
fn threads_and_batch_change_no_bit() {
    let weights: Vec<bf16> = numbers(VOCAB * WIDTH, 1).into_iter().map(bf16::from_f32).collect();
    let bias = numbers(VOCAB, 2);
    let scaling = Scaling { logit_scale: 0.5, softcap: 3.0 };
    let options = HeadOptions { bias: Some((&bias[..]).into()), scaling, level: None };
    let exact = Exact::new(&weights, VOCAB, WIDTH, options).unwrap();
    let data: Vec<bf16> = numbers(9 * (WIDTH + 3), 3).into_iter().map(bf16::from_f32).collect();
    let all = HostMatrix::strided(&data, 9, WIDTH, WIDTH + 3).unwrap();
    let expected: Vec<Vec<f32>> =
        (0..9).map(|row| head::logits(Row::Bf16(&weights), all.row(row), Some(&bias), &scaling)).collect();
    for rows in [1, 4, 5, 9] {
        let states = Widened::of(HostMatrix::strided(&data, rows, WIDTH, WIDTH + 3).unwrap());
        for spread in [Spread::Caller, Spread::Rayon] {
            let mut out = vec![0.0; rows * VOCAB];
            exact.logits(&states, spread, &mut out).unwrap();
            for (row, out) in out.chunks(VOCAB).enumerate() {
                assert_eq!(bits(out), bits(&expected[row]), "row {row} of {rows}, {spread:?}");
            }
        }
        let ids = [5002, 0, 17, 18, 19, 4000];
        let mut some = [0.0; 6];
        exact.logits_of(&states, rows - 1, &ids, &mut some).unwrap();
        assert_eq!(bits(&some), ids.map(|id| expected[rows - 1][id as usize].to_bits()));
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let weights = [0.0f32; 12];
    let message = |error: gumball_spec::Error| error.to_string();
    let new = |vocab, width| Exact::new(&weights, vocab, width, HeadOptions::default()).map(drop);
    assert_eq!(message(new(3, 5).unwrap_err()), "weights has length 12, but must have 3 rows of 5 weights");
    assert_eq!(message(new(0, 5).unwrap_err()), "vocab is 0, but must be in 1..=2^20");
    assert_eq!(message(new(3, 0).unwrap_err()), "hidden.width is 0, but must be in 1..=2^16");
    let options = HeadOptions { bias: Some(vec![1.0; 4].into()), ..Default::default() };
    let error = Exact::new(&weights, 3, 4, options).unwrap_err();
    assert_eq!(message(error), "bias has length 4, but must have one for each of 3 ids");
    let exact = Exact::new(&weights, 3, 4, HeadOptions::default()).unwrap();
    let states = Widened::of(HostMatrix::new(&[1.0f32; 5], 1, 5).unwrap());
    let error = exact.logits(&states, Spread::Caller, &mut [0.0; 3]).unwrap_err();
    assert_eq!(message(error), "hidden has length 5, but must have 4 elements each, as a row of weights");
    let states = Widened::of(HostMatrix::new(&[1.0f32; 8], 2, 4).unwrap());
    let error = exact.logits(&states, Spread::Caller, &mut [0.0; 5]).unwrap_err();
    assert_eq!(message(error), "logits has length 5, but must have 2 rows of 3 logits");
    let error = exact.logits_of(&states, 0, &[3], &mut [0.0]).unwrap_err();
    assert_eq!(message(error), "ids is 3, but must be an id in 0..3");
    let error = HostMatrix::strided(&[1.0f32; 8], 2, 4, 5).unwrap_err();
    assert_eq!(message(error), "matrix has length 8, but must have at least 2 rows of 4 elements, 5 apart");
}
