//! Large mixed batches of a pool on a device against a pool of the host: many rows, several steps, one launch
//! or graph each.
//!
//! Rows differ in parameters, slots, shape and oddities; some are padding, some forced. Steps follow each
//! other with no host work between them but the reading of tokens, so positions and histories must have moved
//! on on the device.

use gumball_cuda::{Prepared, Variant};
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, Dtype, HostMasks, HostMatrix, Masks, Outputs, PADDING, Place,
    Pool, PoolConfig, Rows, State, Work,
};
use gumball_spec::{
    Dry, Error, FilterOrder, Kind, LogprobMode, LogprobModes, LogprobsParams, Loops, Row, SamplingParams,
    Scope, Section, Watermark, Widths,
};

use crate::case::Logits;
use crate::generate::{add_keys, speak_of_probabilities};
use crate::rows;

/// The shape of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The kind of the rows.
    pub kind: Kind,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The number of rows.
    pub rows: usize,
    /// The number of lines of logits; if they are fewer than the rows, these read them in turn.
    pub lines: usize,
    /// The number of ids.
    pub vocab: usize,
    /// How many steps are taken on the same logits.
    pub steps: u32,
    /// What ends the rows, which ask for no more than it serves.
    pub ends: Variant,
}

/// Distinct rows of logits; a batch repeats them.
const DISTINCT: usize = 24;

pub(crate) fn distinct(vocab: usize, seed: u64) -> Vec<f32> {
    let mut row = match seed % 6 {
        0 => rows::bell(vocab, 0.1, seed),
        1 => rows::grid(vocab, 0.5, 20, seed),
        2 => rows::hundredth(vocab, seed),
        3 => rows::heap(vocab, seed),
        _ => rows::model_like(vocab, seed),
    };
    if !seed.is_multiple_of(3) {
        // The ids of histories are likely, so that the effect of the edits shows.
        (0..5).for_each(|id| row[id * stride(vocab) % vocab] += 9.0);
    }
    match seed % 8 {
        3 => row[vocab / 3] = f32::NAN,
        5 => row[vocab - 1] = f32::INFINITY,
        7 => row[..vocab / 2].fill(f32::NEG_INFINITY),
        _ => {}
    }
    if seed % 23 == 22 {
        row.fill(f32::NEG_INFINITY);
    }
    row
}

/// The batch as probabilities: powers of the logits in some unit, which need not sum to 1; and rows where
/// approximations are strained.
fn distinct_probabilities(vocab: usize, seed: u64) -> Vec<f32> {
    let unit = [1e-4, 1e-4, 3e-5, 1.0, 1e30, 1e-40][seed as usize / 2 % 6];
    let weigh = |z: f32| if z == f32::INFINITY { z } else { z.exp() * unit };
    let mut row: Vec<f32> = distinct(vocab, seed).into_iter().map(weigh).collect();
    let mut words = rows::Words(seed);
    match seed % 12 {
        // Neighbouring floats, of which many have one logarithm.
        4 => row.iter_mut().for_each(|p| *p = f32::from_bits(0x3727_C5AC + words.below(40) as u32)),
        6 => row.iter_mut().for_each(|p| *p = if words.below(9) == 0 { -*p } else { *p }),
        // One token, and some that weigh next to nothing beside it.
        8 => {
            row.iter_mut().enumerate().for_each(|(id, p)| *p = if id == vocab / 2 { 1.0 } else { *p * 1e-38 })
        }
        // What a filter left: mostly zeros, of either sign.
        10 => row.iter_mut().for_each(|p| match words.below(60) {
            0 => {}
            1 => *p = -0.0,
            _ => *p = 0.0,
        }),
        _ => {}
    }
    row
}

/// The capacity for logprobs.
pub(crate) const WIDTHS: Widths = Widths { top_n: 4, ids: 2 };

pub(crate) fn params(kind: Kind, row: usize, vocab: usize, ends: Variant) -> SamplingParams {
    let mut params = params_of_logits(row, vocab, ends);
    if kind == Kind::Probabilities {
        speak_of_probabilities(&mut params);
        if ends == Variant::General && row % 9 == 4 {
            params.order = FilterOrder::Joint;
        }
    }
    params
}

/// One mode of each kind, then all pairs.
fn modes(row: usize) -> LogprobModes {
    let [first, second] = [row / 4, row / 16].map(|place| LogprobMode::OF_LOGPROBS[place % 4]);
    let second = if row / 64 % 2 == 1 { LogprobMode::Radius } else { second };
    LogprobModes { first, second: Some(second).filter(|second| *second != first) }
}

fn params_of_logits(row: usize, vocab: usize, ends: Variant) -> SamplingParams {
    let logprobs = (row % 4 == 1).then(|| LogprobsParams {
        mode: modes(row),
        top_n: row as u32 / 16 % 5,
        ids: vec![(vocab - 1) as u32; row / 16 % 3],
    });
    let edits = if ends < Variant::CandidatesLogprob { SamplingParams::default() } else { edits(row, vocab) };
    let mut params = filters(row, SamplingParams { logprobs, ..edits }, ends);
    if ends >= Variant::Candidates {
        follow_history(row, vocab, ends, &mut params);
    }
    match &mut params.logprobs {
        Some(logprobs) if ends == Variant::CandidatesLogprob => {
            // Of the token alone, and of the whole row.
            (logprobs.top_n, logprobs.ids) = (0, vec![]);
            logprobs.mode = LogprobModes::from(match logprobs.mode.first {
                LogprobMode::Raw => LogprobMode::Raw,
                _ if params.temperature == 0.0 => LogprobMode::Edited,
                LogprobMode::Processed => LogprobMode::Tempered,
                mode => mode,
            });
        }
        Some(logprobs) if ends == Variant::CandidatesKept => {
            // Of the token alone, over the kept set or beside such a mode.
            (logprobs.top_n, logprobs.ids) = (0, vec![]);
            let LogprobModes { first, second } = &mut logprobs.mode;
            if params.temperature == 0.0 && *first == LogprobMode::Tempered {
                *first = LogprobMode::Edited;
            }
            match first {
                LogprobMode::Processed
                    if params.temperature == 0.0 || *second == Some(LogprobMode::Radius) =>
                {
                    *second = Some(LogprobMode::Raw);
                }
                LogprobMode::Processed => {}
                _ => *second = Some(LogprobMode::Processed),
            }
        }
        logprobs if ends < Variant::CandidatesLogprob => *logprobs = None,
        _ => {}
    }
    params
}

fn filters(row: usize, default: SamplingParams, ends: Variant) -> SamplingParams {
    match row % 5 {
        kind if ends == Variant::SurveyDraw => {
            SamplingParams { temperature: [0.1, 0.8, 1.0, 1.3, 30.0][kind], ..default }
        }
        0 if row.is_multiple_of(2) => SamplingParams { temperature: 0.0, ..default },
        1 => SamplingParams { temperature: 0.8, ..default },
        2 => SamplingParams { temperature: 0.7, min_p: 0.05, ..default },
        3 => SamplingParams { temperature: 1.3, min_p: 1e-4, temperature_last: true, ..default },
        _ if ends < Variant::Candidates => default,
        _ => match row % 4 {
            0 => SamplingParams { top_k: 50, top_p: 0.9, min_p: 0.02, temperature: 0.8, ..default },
            1 => SamplingParams { top_p: 0.8, ..default },
            2 => SamplingParams { top_k: 7, xtc_probability: 0.7, xtc_threshold: 0.05, ..default },
            _ if ends == Variant::General => SamplingParams { top_k: 300, typical_p: 0.9, ..default },
            _ => SamplingParams { top_k: 3, temperature: 2.0, ..default },
        },
    }
}

/// Edits of a row: none, each kind, and all of them.
fn edits(row: usize, vocab: usize) -> SamplingParams {
    let mut params = SamplingParams::default();
    let kind = (row + row / 8) % 8;
    let has = |other: usize| kind == other || kind == 7;
    let ids = ids(row as u64 + 1, 9, vocab);
    let known: Vec<u32> = ids.iter().copied().filter(|id| (*id as usize) < vocab).collect();
    if has(1) {
        params.repetition_penalty = 1.3;
        params.repetition_scope = Scope::ALL[row % 3];
    }
    if has(2) {
        params.frequency_penalty = 0.4;
        params.presence_penalty = if row.is_multiple_of(2) { 0.7 } else { -0.3 };
        params.penalty_scope = Scope::ALL[row / 3 % 3];
    }
    if has(1) || has(2) {
        params.penalty_window = [0, 3, 8][row % 3];
    }
    if has(3) {
        params.dry = Dry {
            multiplier: 0.9,
            base: 1.5,
            allowed_length: 1 + row as u32 % 3,
            breakers: ids[..row % 2].to_vec(),
            window: if row.is_multiple_of(4) { 6 } else { 0 },
        };
    }
    if has(4) {
        params.no_repeat_ngram = 1 + row as u32 % 4;
        params.bad_words = vec![ids[..1].to_vec(), ids[1..3].to_vec(), ids[3..6].to_vec()];
    }
    if has(5) {
        params.logit_bias = vec![(vocab as u32 - 1, f32::NEG_INFINITY), (row as u32 % vocab as u32, 2.5)];
        params.logit_bias.dedup_by_key(|(id, _)| *id);
        params.bias_first = row.is_multiple_of(3);
        params.banned_ids = known;
    }
    if has(6) {
        params.min_tokens = 4 + row as u32 % 4;
        params.stop_ids = ids;
        params.allowed_ids =
            row.is_multiple_of(2).then(|| (0..vocab as u32).filter(|id| id % 5 != 2).collect());
    }
    params
}

/// Adds a section, loops and a mark, in a third of the rows each.
fn follow_history(row: usize, vocab: usize, ends: Variant, params: &mut SamplingParams) {
    let id = |which: usize| (which % 5 * stride(vocab) % vocab) as u32;
    let kind = (row + row / 12) % 12;
    if kind.is_multiple_of(3) {
        params.section = Some(Section {
            open: if kind == 3 { vec![] } else { vec![id(row)] },
            close: vec![id(row + 1), id(row + 2)][..1 + row % 2].to_vec(),
            end: vec![id(row + 3), id(row + 4), id(row)][..row % 4].to_vec(),
            budget: [0, 2, 7, u32::MAX][row % 4],
            // A least length is a ban.
            min: if ends < Variant::CandidatesLogprob { 0 } else { [0, 0, 5, 40][row % 4] },
        });
    }
    if kind.is_multiple_of(4) {
        params.loops = Some(Loops {
            min_period: 1 + row as u32 % 2,
            max_period: 3 + row as u32 % 30,
            min_copies: 2,
            min_tokens: [0, 3, 6][row % 3],
            every: 1 + row as u32 % 3,
            close: kind == 0,
            end: if kind == 0 { vec![] } else { vec![id(row + 2); row % 3] },
        });
    }
    if kind % 4 == 1 || kind == 0 {
        let scope = [Scope::Output, Scope::Both][row % 2];
        let (context, window) = (1 + row as u32 % 3, [0, 4, 8192][row % 3]);
        params.watermark = Watermark { key: row as u32 % 2, context, scope, window }.into();
    }
}

/// How far the ids of histories are apart.
fn stride(vocab: usize) -> usize {
    (vocab / 7).max(1)
}

/// Ids that repeat: of few, which most lines like, and some of them outside the vocabulary.
fn ids(seed: u64, count: usize, vocab: usize) -> Vec<u32> {
    let mut words = rows::Words(seed);
    let id = |words: &mut rows::Words| match words.below(12) {
        0 => vocab as u32 + words.below(3) as u32,
        word => (word % 5 * stride(vocab) % vocab) as u32,
    };
    (0..count).map(|_| id(&mut words)).collect()
}

/// The prompt of a row and its output so far.
fn history(row: usize, vocab: usize) -> (Vec<u32>, Vec<u32>) {
    (ids(row as u64, [0, 5, 40, 300][row % 4], vocab), ids(row as u64 + 99, row % 6, vocab))
}

/// The grammar of a row, if it has one.
fn mask(row: usize, vocab: usize) -> Option<Vec<u32>> {
    let mut words = rows::Words(row as u64);
    let any = |_| (words.word() | words.word()) as u32;
    (row % 6 == 5).then(|| (0..vocab.div_ceil(32) - row % 2).map(any).collect())
}

/// Holds a batch on a device to the host, all outputs of every step; in a graph if `is_graph`.
///
/// # Errors
/// A text that says what differs, or what a pool said.
pub fn hold(device: &Device, is_graph: bool, shape: Shape) -> Result<(), String> {
    let words = |error: Error| format!("{shape:?}: {error}");
    add_keys();
    let Shape { kind, dtype, rows, lines, vocab, steps, .. } = shape;
    let distinct = match kind {
        Kind::Logits => distinct,
        Kind::Probabilities => distinct_probabilities,
    };
    let kinds: Vec<Vec<f32>> = (0..DISTINCT.min(lines) as u64).map(|seed| distinct(vocab, seed)).collect();
    // The stride leaves a gap, so that only some rows lie on 16 bytes.
    let stride = vocab + 3;
    let batch = (0..lines).flat_map(|line| {
        let values = kinds[line % kinds.len()].iter().copied();
        values.chain([f32::INFINITY; 3])
    });
    let batch = Logits::new(dtype.into(), &batch.collect::<Vec<f32>>());
    let here = HostMatrix::strided(batch.row(), lines, vocab, stride).map_err(words)?;
    let buffer = match batch.row() {
        Row::F32(values) => DeviceBuffer::of(device.runtime(), values),
        Row::Bf16(values) => DeviceBuffer::of(device.runtime(), values),
        Row::F16(values) => DeviceBuffer::of(device.runtime(), values),
    };
    let buffer = buffer.map_err(|error| words(error.into()))?;
    let there = DeviceMatrix::of(&buffer, dtype, 0, lines, vocab, stride).map_err(words)?;
    let place =
        Place::Device { device: device.clone(), rows, history_growth: steps as usize, keep_histories: false };
    let seen = outputs(shape, place, Rows::of(there, kind), is_graph).map_err(words)?;
    let wanted = outputs(shape, Place::host(), Rows::of(here, kind), false).map_err(words)?;
    for (step, (seen, wanted)) in seen.iter().zip(&wanted).enumerate() {
        if let Some(what) = differing(seen, wanted) {
            return Err(format!("{shape:?}: step {step}: {what}"));
        }
    }
    Ok(())
}

/// Says in what the outputs of a step first differ, if they do.
pub(crate) fn differing(seen: &Outputs, wanted: &Outputs) -> Option<String> {
    if let Some(row) = (0..wanted.tokens().len()).find(|row| seen.kept(*row) != wanted.kept(*row)) {
        let [seen, wanted] = [seen, wanted].map(|out| out.kept(row).len());
        return Some(format!("row {row} keeps {seen} ids, not {wanted}, or others"));
    }
    let at = seen.words().iter().zip(wanted.words()).position(|(seen, wanted)| seen != wanted)?;
    let (layout, [seen, wanted]) = (seen.layout(), [seen, wanted].map(|out| out.words()[at]));
    Some(format!("word {at}: {seen:#x}, not {wanted:#x}, in {layout:?}"))
}

/// Returns the outputs of the steps of a batch in a pool.
fn outputs(
    shape: Shape,
    place: Place,
    logits: Rows<'_>,
    is_graph: bool,
) -> gumball_spec::Result<Vec<Outputs>> {
    let Shape { kind, rows, lines, vocab, steps, ends, .. } = shape;
    // The host sorts kept sets.
    let kept = ends >= Variant::CandidatesKept && rows * vocab < 1 << 22;
    let config = PoolConfig { slots: rows + 5, widths: WIDTHS, place, kept, ..PoolConfig::new(vocab) };
    let mut pool = Pool::new(config)?;
    let mut slots = vec![PADDING; rows];
    // The slots are in another order than the rows.
    for row in (0..rows).rev().filter(|row| row % 7 != 6) {
        let (prompt, output) = history(row, vocab);
        let (seed, draw, position) = (row as u64 * 77, (row % 3) as u32, row as u32);
        let state = State { prompt: &prompt, output: &output, seed, position, draw, mu: 0.0 };
        let params = params(kind, row, vocab, ends);
        // Of few tokens a filter may keep all, so that others ask for what they do not ask for otherwise.
        let asks_enough = vocab <= 256 || Prepared::new(&params, vocab)?.variant() <= ends;
        assert!(asks_enough, "row {row} of {shape:?} asks for too much: {params:?}");
        slots[row] = pool.resume(params, state)?;
    }
    let forced: Vec<_> = (0..rows).map(|row| (row % 11 == 10).then_some((row % vocab) as u32)).collect();
    let read: Vec<u32> = (0..if lines < rows { rows } else { 0 }).map(|row| (row % lines) as u32).collect();
    // Rows that share lines have no masks, so that the survey of lines is held too.
    let has_masks = lines >= rows && ends >= Variant::CandidatesLogprob;
    let width = vocab.div_ceil(32);
    let (mut masks, mut present) = (vec![0; rows * width], vec![false; rows]);
    for (row, line) in masks.chunks_mut(width).enumerate() {
        if let Some(mask) = mask(row, vocab).filter(|_| has_masks) {
            line[..mask.len()].copy_from_slice(&mask);
            present[row] = true;
        }
    }
    let masks = match present.contains(&true) {
        true => Masks::Host(HostMasks::new(&masks, rows, width, width)?.with_present(&present)?),
        false => Masks::None,
    };
    pool.assign(&Batch { row_indices: &read, masks, forced: &forced, ..Batch::of(&slots) })?;
    let work = [Work::step(logits)];
    let graph = if is_graph { Some(pool.capture(&work)?) } else { None };
    let mut outputs = Vec::new();
    for _ in 0..steps {
        match &graph {
            Some(graph) => pool.replay(graph)?,
            None => pool.enqueue(&work)?,
        }
        let mut out = Outputs::new();
        pool.fetch(&mut out)?;
        outputs.push(out);
    }
    Ok(outputs)
}

impl Shape {
    /// Rows of logits, each with a line of its own.
    fn of_logits(dtype: Dtype, rows: usize, vocab: usize, steps: u32, ends: Variant) -> Self {
        Self { kind: Kind::Logits, dtype, rows, lines: rows, vocab, steps, ends }
    }
}

const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::Bf16, Dtype::F16];

/// The shapes that the conformance program holds on a GPU.
#[must_use]
pub fn shapes() -> Vec<Shape> {
    use Variant::{Candidates, CandidatesLogprob, General, Simple, SurveyDraw};
    let mut shapes = Vec::new();
    for (rows, vocab) in
        [(1, 151_936), (8, 128_256), (33, 50_257), (128, 151_936), (512, 32_768), (300, 262_144)]
    {
        for dtype in DTYPES {
            let ends = [General, CandidatesLogprob, SurveyDraw, Candidates, Simple];
            let ends = ends.into_iter().take(if dtype == Dtype::F32 { 5 } else { 3 });
            shapes.extend(ends.map(|ends| Shape::of_logits(dtype, rows, vocab, 3, ends)));
        }
    }
    for vocab in [1, 255, 256, 257, 1 << 20] {
        shapes.extend(Variant::ALL.map(|ends| Shape::of_logits(Dtype::F32, 17, vocab, 2, ends)));
    }
    // A million rows; and offsets beyond 2^31 elements.
    for (rows, vocab, steps) in [(20_000, 1_000, 50), (2_100, 1 << 20, 1)] {
        shapes.push(Shape::of_logits(Dtype::Bf16, rows, vocab, steps, General));
    }
    // Many draws from few lines, which are surveyed once each, and few draws from many.
    for (rows, lines, vocab) in [(128, 1, 151_936), (500, 24, 128_256), (8, 3, 50_257), (300, 7, 1_001)] {
        for (dtype, ends) in DTYPES.into_iter().flat_map(|dtype| [(dtype, General), (dtype, Simple)]) {
            shapes.push(Shape { lines, ..Shape::of_logits(dtype, rows, vocab, 3, ends) });
        }
    }
    with_probabilities(shapes)
}

/// Adds what of the shapes there is of rows of probabilities, which nothing serves that races alone.
fn with_probabilities(mut shapes: Vec<Shape>) -> Vec<Shape> {
    let small = |shape: &&Shape| shape.ends != Variant::SurveyDraw && shape.rows * shape.vocab < 1 << 27;
    let also: Vec<Shape> =
        shapes.iter().filter(small).map(|shape| Shape { kind: Kind::Probabilities, ..*shape }).collect();
    shapes.extend(also);
    shapes
}

/// Few rows of few tiles, in every type.
#[must_use]
pub fn small_shapes() -> Vec<Shape> {
    let mut shapes = Vec::new();
    for (rows, vocab) in [(12, 257), (10, 3_000)] {
        for dtype in DTYPES {
            shapes.extend(Variant::ALL.map(|ends| Shape::of_logits(dtype, rows, vocab, 5, ends)));
        }
    }
    with_probabilities(shapes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_asks_for_more_than_its_kernel_does() {
        add_keys();
        for kind in [Kind::Logits, Kind::Probabilities] {
            for (row, ends) in (0..1200).flat_map(|row| Variant::ALL.map(|ends| (row, ends))) {
                if kind == Kind::Probabilities && ends == Variant::SurveyDraw {
                    continue;
                }
                let params = params(kind, row, 1280, ends);
                let needed = Prepared::new(&params, 1280).map(|prepared| prepared.variant());
                assert!(needed.clone().unwrap() <= ends, "{kind:?} {row} {ends:?}: {needed:?} {params:?}");
            }
        }
    }
}
