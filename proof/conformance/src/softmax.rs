//! The softmax on a CUDA device against the oracle's probabilities without edits and filters.

use std::sync::Arc;

use gumball_cuda::{
    Buffer, ColumnType, DeviceSlice, Dtype, IntType, PerRow, Rows, RowsOut, Runtime, Softmax,
};
use gumball_spec::oracle::{Outcome, sample};
use gumball_spec::{Error, Request, SamplingParams};
use half::{bf16, f16};

use crate::case::{Logits, UNIT};
use crate::rows::{self, Words};

/// Widths around the borders of tiles and of units that are loaded at once, and one of several parts.
const VOCABS: [usize; 16] = [1, 2, 3, 8, 9, 31, 255, 256, 257, 260, 1000, 2047, 5000, 9000, 13000, 30000];

const TEMPERATURES: [f32; 9] = [0.0, 1e-31, 0.01, 0.5, 1.0, UNIT, 1.7, 100.0, 1e30];

/// The rows of a softmax, and how they and its probabilities lie in memory.
#[derive(Debug)]
pub(crate) struct Asked {
    pub vocab: usize,
    pub rows: usize,
    pub dtype: Dtype,
    /// The type of the probabilities.
    pub out: Dtype,
    pub in_place: bool,
    /// The elements before the first row, and between rows, of the logits and of the probabilities.
    pub start: usize,
    pub gap: usize,
    pub out_start: usize,
    pub out_gap: usize,
    /// One for each row, or one for all.
    pub temperatures: Vec<f32>,
    /// 1: rows are read once, 2: twice, anything else: whichever is faster.
    pub reads: usize,
}

impl Asked {
    fn new(words: &mut Words) -> Self {
        let vocab = VOCABS[words.below(VOCABS.len())];
        let rows = words.below(if vocab > 1000 { 4 } else { 12 });
        let dtype = [Dtype::F32, Dtype::Bf16, Dtype::F16][words.below(3)];
        let in_place = words.below(3) == 0;
        let out = if in_place || words.below(2) == 0 { dtype } else { Dtype::F32 };
        let each = if words.below(2) == 0 { rows } else { 1 };
        // Most rows lie on 16 bytes.
        let mut gap = || [0, 0, 8, 1, 3][words.below(5)];
        let (start, gap, out_start, out_gap) = (gap(), gap(), gap(), gap());
        let aligned = vocab.div_ceil(8) * 8 - vocab;
        let (gap, out_gap) = (gap + aligned * words.below(2), out_gap + aligned * words.below(2));
        let temperatures = (0..each).map(|_| TEMPERATURES[words.below(TEMPERATURES.len())]).collect();
        let reads = words.below(3);
        Self { vocab, rows, dtype, out, in_place, start, gap, out_start, out_gap, temperatures, reads }
    }

    fn temperature(&self, row: usize) -> f32 {
        self.temperatures[if self.temperatures.len() == self.rows { row } else { 0 }]
    }
}

/// Returns a row: like a model's, flat, extreme, with odd values, or with little or nothing in it.
pub(crate) fn row(words: &mut Words, vocab: usize) -> Vec<f32> {
    let seed = words.word();
    let mut row = match words.below(8) {
        0 => vec![words.bell(); vocab],
        1 => rows::bell(vocab, 1e6, seed),
        2 => rows::bell(vocab, 40.0, seed),
        3 => rows::grid(vocab, 1.0, 200, seed),
        4 => rows::grid(vocab, 0.0, 2, seed),
        5 => vec![f32::NEG_INFINITY; vocab],
        _ => rows::model_like(vocab, seed),
    };
    let odd = match words.below(4) {
        0 => &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -0.0, 1.0][..],
        1 => &[f32::NEG_INFINITY, 3.0],
        _ => &[],
    };
    for value in odd {
        if words.below(2) == 0 {
            row[words.below(vocab)] = *value;
        }
    }
    if words.below(6) == 0 {
        // Masked except for some.
        let kept = words.below(vocab);
        row.iter_mut()
            .enumerate()
            .filter(|(id, _)| *id % 97 != kept % 97)
            .for_each(|(_, z)| *z = f32::NEG_INFINITY);
    }
    row
}

/// Bits of elements of a type.
pub(crate) fn bits(dtype: Dtype, value: f32) -> u32 {
    match dtype {
        Dtype::F32 => value.to_bits(),
        Dtype::Bf16 => u32::from(bf16::from_f32(value).to_bits()),
        Dtype::F16 => u32::from(f16::from_f32(value).to_bits()),
    }
}

/// Returns rows as they lie in memory, and 7s where there is none.
pub(crate) fn laid_out(dtype: Dtype, lines: &[Vec<f32>], start: usize, gap: usize) -> Vec<u32> {
    let nothing = bits(dtype, 7.0);
    let mut all = vec![nothing; start];
    for line in lines {
        all.extend(line.iter().map(|value| bits(dtype, *value)));
        all.extend(vec![nothing; gap]);
    }
    all
}

pub(crate) fn buffer(runtime: &Arc<dyn Runtime>, dtype: Dtype, elements: &[u32]) -> Result<Buffer, Error> {
    Ok(if dtype == Dtype::F32 {
        Buffer::of(runtime, elements)?
    } else {
        Buffer::of(runtime, &elements.iter().map(|bits| *bits as u16).collect::<Vec<_>>())?
    })
}

pub(crate) fn read(buffer: &Buffer, dtype: Dtype, count: usize) -> Result<Vec<u32>, Error> {
    if dtype == Dtype::F32 {
        let mut words = vec![0u32; count];
        buffer.read(0, &mut words)?;
        return Ok(words);
    }
    let mut halves = vec![0u16; count];
    buffer.read(0, &mut halves)?;
    Ok(halves.into_iter().map(u32::from).collect())
}

/// Returns what the oracle says of a line, rounded to the type of its rows.
pub(crate) fn outcome(dtype: Dtype, line: &[f32], request: &Request<'_>) -> Result<Outcome, Error> {
    sample(Logits::new(dtype.into(), line).row(), request, None)
}

/// Says which elements of rows, as they lie in memory, differ from the wanted ones; the first five.
pub(crate) fn differing(dtype: Dtype, wanted: &[Vec<f32>], got: &[u32], start: usize, gap: usize) -> String {
    let stride = wanted.first().map_or(0, Vec::len) + gap;
    let wanted = laid_out(dtype, wanted, start, gap);
    let differs = wanted.iter().zip(got).enumerate().filter(|(_, (want, got))| want != got);
    let text = |(place, (want, got)): (usize, (&u32, &u32))| {
        let row = place.saturating_sub(start).checked_div(stride).unwrap_or(0);
        let id = place as i64 - (start + row * stride) as i64;
        format!("row {row}, {id}: {got:#x} instead of {want:#x}\n")
    };
    differs.take(5).map(text).collect()
}

/// Holds the softmax of random rows, laid out at random.
///
/// # Errors
/// A text that says what differs, or what the runtime said.
pub fn hold(runtime: &Arc<dyn Runtime>, seed: u64) -> Result<(), String> {
    let words = &mut Words(seed);
    let asked = Asked::new(words);
    let lines: Vec<Vec<f32>> = (0..asked.rows).map(|_| row(words, asked.vocab)).collect();
    let text = |error: Error| format!("seed {seed}: {error}\n{asked:?}");
    let differences = compare(runtime, &asked, &lines).map_err(text)?;
    if differences.is_empty() { Ok(()) } else { Err(format!("seed {seed}: {differences}{asked:?}")) }
}

/// Returns in which probabilities and statuses the device's softmax differs from the oracle's, or nothing.
pub(crate) fn compare(
    runtime: &Arc<dyn Runtime>,
    asked: &Asked,
    lines: &[Vec<f32>],
) -> Result<String, Error> {
    let Asked { vocab, rows, dtype, out, .. } = *asked;
    let softmax = Softmax::new(Arc::clone(runtime))?;
    let softmax = match asked.reads {
        1 => softmax.reading_once(),
        2 => softmax.reading_twice(),
        _ => softmax,
    };
    let mut logits = buffer(runtime, dtype, &laid_out(dtype, lines, asked.start, asked.gap))?;
    let nothing = vec![vec![5.0; vocab]; rows];
    let temperatures = Buffer::of(runtime, &asked.temperatures)?;
    let statuses = Buffer::of(runtime, &vec![!0u32; rows])?;
    let temperature = match asked.temperatures[..] {
        [of_all] if rows != 1 => PerRow::All(of_all),
        _ if rows == 0 => PerRow::All(1.0),
        _ => PerRow::Rows(DeviceSlice::of(&temperatures, ColumnType::F32)),
    };
    let column = DeviceSlice::of(&statuses, IntType::U32);
    let column = (rows > 0).then_some(&column);
    let (got, start, gap) = if asked.in_place {
        let place = RowsOut::of(&mut logits, dtype, asked.start, rows, vocab, vocab + asked.gap)?;
        softmax.enqueue(None, &place, temperature, column)?;
        let count = asked.start + rows * (vocab + asked.gap);
        (read(&logits, dtype, count)?, asked.start, asked.gap)
    } else {
        let before = laid_out(out, &nothing, asked.out_start, asked.out_gap);
        let mut to = buffer(runtime, out, &before)?;
        let from = Rows::of(&logits, dtype, asked.start, rows, vocab, vocab + asked.gap)?;
        let place = RowsOut::of(&mut to, out, asked.out_start, rows, vocab, vocab + asked.out_gap)?;
        // Twice: the memory after a launch meets the next.
        softmax.enqueue(Some(&from), &place, temperature, column)?;
        softmax.enqueue(Some(&from), &place, temperature, column)?;
        (read(&to, out, before.len())?, asked.out_start, asked.out_gap)
    };
    let mut seen = vec![0u32; rows];
    statuses.read(0, &mut seen)?;

    let mut probabilities = Vec::new();
    let mut differences = String::new();
    for (row, line) in lines.iter().enumerate() {
        // Smaller ones are 0 (N6).
        let least = f32::from_bits((127 - 100) << 23);
        let temperature = Some(asked.temperature(row)).filter(|t| *t >= least).unwrap_or(0.0);
        let params = SamplingParams { temperature, ..SamplingParams::default() };
        let outcome = outcome(dtype, line, &Request::new(&params, &[], 0))?;
        let status = outcome.status;
        probabilities.push(outcome.probabilities());
        if seen[row] != status.0 {
            differences += &format!("row {row}: status {} instead of {}\n", seen[row], status.0);
        }
    }
    Ok(differences + &differing(out, &probabilities, &got, start, gap))
}
