//! Batches of rows of few distinct values, under ordinary parameters, on a device against the host.
//!
//! What a search or a list does with a row hangs on how many of its tokens lie close to each other, so here
//! they lie where no threshold parts them, at vocabularies at which a kernel changes its way and one id
//! beside them.

use gumball_engine::{
    Batch, Device, DeviceMatrix, Dtype, HostMatrix, Outputs, Place, Pool, PoolConfig, Rows, Work,
};
use gumball_spec::{
    Error, FilterOrder, Kind, LogprobMode, LogprobModes, LogprobsParams, SamplingParams, TILE, Widths,
};

use crate::batch::differing;
use crate::case::Logits;
use crate::rows::{self, Words};
use crate::softmax::{bits, buffer};

/// Numbers of tiles at which a kernel changes its way, those of real vocabularies, and the largest.
const TILES: [usize; 24] = [
    1, 2, 24, 32, 40, 64, 96, 125, 128, 160, 256, 320, 416, 417, 501, 512, 594, 640, 782, 1000, 1024, 1536,
    2048, 4096,
];

/// How large batches may be.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// The most tiles of a row.
    pub tiles: usize,
    /// About how many logits a batch has at most.
    pub elements: usize,
}

/// What the requests of a batch share.
#[derive(Clone, Copy, Debug)]
struct Shape {
    kind: Kind,
    dtype: Dtype,
    vocab: usize,
    lines: usize,
    rows: usize,
    /// Whether the pool returns kept sets, and a row may ask for logprobs, or for filters that no list
    /// decides.
    kept: bool,
    logprobs: bool,
    general: bool,
}

impl Shape {
    fn new(words: &mut Words, extent: Extent) -> Self {
        let most = TILES.iter().filter(|tiles| **tiles <= extent.tiles).count();
        let tiles = TILES[words.below(most)];
        let vocab = (tiles * TILE + words.below(3) - 1).clamp(2, TILE * TILES[TILES.len() - 1]);
        let lines = 1 + words.below((extent.elements / vocab).clamp(1, 200));
        let [kept, logprobs, general] = [3, 3, 6].map(|one_in| words.below(one_in) == 0);
        Self {
            kind: if words.below(4) == 0 { Kind::Probabilities } else { Kind::Logits },
            dtype: [Dtype::F32, Dtype::F32, Dtype::Bf16, Dtype::F16][words.below(4)],
            vocab,
            lines,
            rows: lines * [1, 1, 3, 8][words.below(4)],
            kept,
            logprobs,
            general,
        }
    }

    fn line(&self, seed: u64) -> Vec<f32> {
        let mut row = rows::few_values(self.vocab, seed);
        if self.kind == Kind::Probabilities {
            let first = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter_mut().for_each(|z| *z = (*z - first).exp());
        }
        row
    }

    fn params(&self, words: &mut Words) -> SamplingParams {
        let vocab = self.vocab as i64;
        let top_k =
            [0, 1 + words.below(400), 256 + words.below(65), 1 + words.below(60), 321 + words.below(9000)]
                [words.below(5)] as i64;
        let top_p = [1.0, 1.0, 0.3, 0.9, 0.95, 0.999][words.below(6)];
        let order = if words.below(3) == 0 { FilterOrder::Joint } else { FilterOrder::default() };
        let mut params = SamplingParams {
            top_k: top_k.min(vocab),
            top_p,
            order,
            seed: Some(words.word()),
            ..SamplingParams::default()
        };
        if words.below(6) == 0 {
            params.min_p = [0.5, 0.05, 1e-4][words.below(3)];
        }
        if self.kind == Kind::Logits {
            params.temperature = [1.0, 1.0, 0.7, 2.0, 20.0][words.below(5)];
            if words.below(6) == 0 {
                params.logit_bias = vec![(words.below(self.vocab) as u32, 12.0)];
            }
        }
        if self.general && words.below(2) == 0 {
            match words.below(3) {
                0 => params.typical_p = 0.9,
                1 => params.top_h = 0.5,
                _ => params.min_keep = 1 + words.below(300) as u32,
            }
            params.order = FilterOrder::default();
        }
        if self.logprobs && words.below(2) == 0 {
            let mode = [LogprobMode::Raw, LogprobMode::Processed][words.below(2)];
            let mode = LogprobModes { first: mode, second: None };
            let top_n = [0, 1, WIDTHS.top_n as u32][words.below(3)];
            params.logprobs = Some(LogprobsParams { mode, top_n, ..LogprobsParams::default() });
        }
        params
    }
}

/// The capacity for logprobs.
const WIDTHS: Widths = Widths { top_n: 20, ids: 0 };

/// Holds a batch that follows from a seed; returns the number of its rows.
///
/// # Errors
/// A text that says what differs, or what a pool said.
pub fn hold(device: &Device, seed: u64, extent: Extent) -> Result<usize, String> {
    let words = &mut Words(seed);
    let shape = Shape::new(words, extent);
    let text = |error: Error| format!("seed {seed}, {shape:?}: {error}");
    let Shape { kind, dtype, vocab, lines, rows, .. } = shape;
    let values: Vec<f32> = (0..lines).flat_map(|_| shape.line(words.word())).collect();
    let all: Vec<SamplingParams> = (0..rows).map(|_| shape.params(words)).collect();

    let elements: Vec<u32> = values.iter().map(|value| bits(dtype, *value)).collect();
    let there = buffer(device.runtime(), dtype, &elements).map_err(text)?;
    let there = DeviceMatrix::of(&there, dtype, 0, lines, vocab, vocab).map_err(text)?;
    let here = Logits::new(dtype.into(), &values);
    let here = HostMatrix::strided(here.row(), lines, vocab, vocab).map_err(text)?;
    let seen =
        outputs(shape, &all, Place::device(device.clone(), rows), Rows::of(there, kind)).map_err(text)?;
    let wanted = outputs(shape, &all, Place::threads(2), Rows::of(here, kind)).map_err(text)?;
    let Some(what) = differing(&seen, &wanted) else { return Ok(rows) };
    let row = (0..rows).find(|row| {
        let of = |out: &Outputs| (out.tokens()[*row], out.statuses()[*row], out.kept(*row).to_vec());
        of(&seen) != of(&wanted)
    });
    let asked = row.map(|row| &all[row]);
    Err(format!("seed {seed}, {shape:?}: {what}; first in row {row:?}: {asked:?}"))
}

fn outputs(
    shape: Shape,
    all: &[SamplingParams],
    place: Place,
    logits: Rows<'_>,
) -> gumball_spec::Result<Outputs> {
    let config = PoolConfig {
        slots: shape.rows,
        widths: WIDTHS,
        place,
        kept: shape.kept,
        ..PoolConfig::new(shape.vocab)
    };
    let mut pool = Pool::new(config)?;
    let slots = all.iter().map(|params| pool.admit(params.clone(), &[])).collect::<Result<Vec<_>, _>>()?;
    let read: Vec<u32> = (0..if shape.lines < shape.rows { shape.rows } else { 0 })
        .map(|row| (row % shape.lines) as u32)
        .collect();
    let mut out = Outputs::new();
    pool.assign(&Batch { row_indices: &read, ..Batch::of(&slots) })?;
    pool.enqueue(&[Work::step(logits)])?;
    pool.fetch(&mut out)?;
    Ok(out)
}
