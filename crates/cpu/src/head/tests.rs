//! Logits at every level against the definition: all widths, batches and types, and numbers that are odd.

use gumball_spec::head::logits;
use half::{bf16, f16};

use super::*;

/// Numbers of a bell's rough shape, made from a seed.
fn numbers(count: usize, seed: u32, scale: f32) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9E37_79B9) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        (x >> 8) as f32 * (1.0 / 8_388_608.0) - 1.0
    };
    (0..count).map(|_| (next() + next() + next()) * scale).collect()
}

/// Holds the logits of a batch, and the logits of ids one by one, to the definition.
fn hold(level: Level, weights: Row<'_>, states: &[Vec<f32>], bias: Option<&[f32]>, scaling: &Scaling) {
    let (width, lanes) = (states[0].len(), HeadLanes::new(level).unwrap());
    let rows = weights.vocab() / width;
    let mut hidden = Vec::new();
    states.iter().for_each(|state| widen(Row::F32(state), &mut hidden));
    let mut out = vec![7.0; rows * states.len()];
    let mut places: Vec<&mut [f32]> = out.chunks_mut(rows).collect();
    lanes.logits(weights, width, &hidden, bias, scaling, &mut places);
    for (i, state) in states.iter().enumerate() {
        let bits = |z: &[f32]| z.iter().map(|z| z.to_bits()).collect::<Vec<_>>();
        let expected = logits(weights, Row::F32(state), bias, scaling);
        assert_eq!(bits(&out[i * rows..][..rows]), bits(&expected), "{level}, {width}, state {i}");
        let ids: Vec<u32> = (0..rows as u32).rev().chain([0]).collect();
        let mut some = vec![7.0; ids.len()];
        let padded = padded_width(width);
        lanes.logits_of(weights, width, &hidden[i * padded..][..padded], bias, scaling, &ids, &mut some);
        let expected: Vec<f32> = ids.iter().map(|id| expected[*id as usize]).collect();
        assert_eq!(bits(&some), bits(&expected), "{level}, {width}, state {i}, by ids");
    }
}

#[test]
fn logits_equal_the_definition_at_every_level_width_batch_and_type() {
    for level in Level::available() {
        for width in [1, 2, 15, 16, 17, 31, 33, 64, 100, 576] {
            for (rows, batch) in [(1, 1), (3, 4), (4, 1), (9, 5), (8, 9)] {
                let weights = numbers(rows * width, width as u32, 0.1);
                let states: Vec<_> = (0..batch).map(|i| numbers(width, i + 99, 3.0)).collect();
                let bias = numbers(rows, 5, 1.0);
                let bf16s: Vec<_> = weights.iter().map(|w| bf16::from_f32(*w)).collect();
                let f16s: Vec<_> = weights.iter().map(|w| f16::from_f32(*w)).collect();
                let scaling = Scaling { logit_scale: 0.0625, softcap: 0.5 };
                for weights in [Row::F32(&weights), Row::Bf16(&bf16s), Row::F16(&f16s)] {
                    hold(level, weights, &states, None, &Scaling::default());
                    hold(level, weights, &states, Some(&bias), &scaling);
                }
            }
        }
    }
}

#[test]
fn odd_numbers_go_the_way_of_the_definition() {
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -f32::MAX, f32::from_bits(1), -0.0, 1.0];
    for level in Level::available() {
        for width in [1, 8, 19] {
            let weights: Vec<f32> = (0..64 * width).map(|i| odd[(i * 7 + i / width) % odd.len()]).collect();
            let states: Vec<Vec<f32>> =
                (0..8).map(|s| (0..width).map(|i| odd[(i + s) % odd.len()] * 0.5).collect()).collect();
            let bias: Vec<f32> = (0..64).map(|i| odd[i % odd.len()]).collect();
            for softcap in [0.0, 2.0] {
                let scaling = Scaling { logit_scale: 1.0, softcap };
                hold(level, Row::F32(&weights), &states, None, &scaling);
                hold(level, Row::F32(&weights), &states, Some(&bias), &scaling);
            }
        }
    }
}
