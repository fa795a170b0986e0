//! Random batches that are held over ranks: their requests, and rows of them on a device.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;

use gumball_cuda::{Dtype, Runtime, Variant};
use gumball_engine::dist::{Ownership, VocabSplit};
use gumball_engine::{
    DeviceBuffer, Emitted, FilterOrder, Kind, NONE, Operators, Outputs, Pool, SamplingParams, Slot, bf16, f16,
};

use crate::batch::params;
use crate::generate::add_keys;
use crate::rows::Words;
use crate::trained::{self, Drawn};

/// Steps of a layout: each from the host, then as many in one graph.
pub(super) const STEPS: usize = 3;

/// A batch, the same on all ranks.
#[derive(Debug)]
pub(super) struct Batch {
    pub vocab: usize,
    pub rows: usize,
    pub dtype: Dtype,
    pub split: VocabSplit,
    pub ownership: Ownership,
    /// The variant that serves the requests.
    pub ends: Variant,
    /// Whether some rows have bitmasks, and whether all filter chains begin with top-k.
    pub masked: bool,
    pub listed: bool,
    /// Whether no request asks for logprobs: where chains are listed or end by candidates, a survey then
    /// decides edited rows, too.
    pub bare: bool,
    /// Whether kept sets are told.
    pub kept: bool,
    pub seed: u64,
    /// How many logprobs were held to the trainer's function.
    pub trained: Cell<u64>,
}

impl Batch {
    pub fn new(index: usize, world: usize) -> gumball_spec::Result<Self> {
        add_keys();
        let mut words = Words(index as u64 ^ 0xA5A5_0000);
        let mut below = |end: usize| words.below(end);
        let vocab = [257, 1000, 5000, 9000, 32_000, 40_123, 151_936][below(7)];
        let rows = 1 + below(if vocab > 100_000 { 24 } else { 256 });
        let dtype = [Dtype::F32, Dtype::Bf16, Dtype::F16][below(3)];
        let ownership = [Ownership::Blocks, Ownership::Modulo][below(2)];
        let ends = Variant::ALL[below(Variant::ALL.len())];
        let split = match below(3) {
            0 => VocabSplit::even(vocab, world)?,
            kind => {
                // Borders anywhere, or such that bytes can be copied 16 at a time.
                let unit = if kind == 1 { 1 } else { 16 };
                let mut borders: Vec<usize> = (1..world).map(|_| below(vocab + 1) / unit * unit).collect();
                borders.sort_unstable();
                borders.push(vocab);
                let mut start = 0;
                let size = |end: usize| end - std::mem::replace(&mut start, end);
                VocabSplit::of_sizes(&borders.into_iter().map(size).collect::<Vec<_>>())?
            }
        };
        let [masked, listed, bare] = [0; 3].map(|_| below(2) == 0);
        let (kept, seed) = (vocab < 100_000 && index % 4 == 3, index as u64);
        let trained = Cell::default();
        Ok(Self { vocab, rows, dtype, split, ownership, ends, masked, listed, bare, kept, seed, trained })
    }

    /// Returns the parameters of a row's request.
    pub fn params(&self, row: usize) -> SamplingParams {
        let seed = Some(self.seed << 20 | row as u64);
        let own = SamplingParams { seed, ..params(Kind::Logits, row, self.vocab, self.ends) };
        let logprobs = own.logprobs.clone().filter(|_| !self.bare);
        let own = SamplingParams { logprobs, ..own };
        // Logprobs over kept sets are held to the trainer's function.
        let own = if self.kept && !self.bare { trained::asking(own) } else { own };
        if !self.listed {
            return own;
        }
        let top_k = 1 + (row * 7 % self.vocab.min(gumball_spec::MOST_LISTED)) as i64;
        SamplingParams { top_k, order: FilterOrder::default(), ..own }
    }

    /// Returns which of the distinct rows each row has.
    pub fn which(&self, row: usize) -> usize {
        (row + self.seed as usize) % DISTINCT
    }
}

impl Batch {
    /// Returns a row's logits, as its type has them.
    fn row(&self, distinct: &[Vec<f32>], row: usize) -> Vec<f32> {
        let row = distinct[self.which(row)].iter();
        match self.dtype {
            Dtype::F32 => row.copied().collect(),
            Dtype::Bf16 => row.map(|z| bf16::from_f32(*z).to_f32()).collect(),
            Dtype::F16 => row.map(|z| f16::from_f32(*z).to_f32()).collect(),
        }
    }

    /// Holds the logprobs of what requests emitted last to the trainer's function, if they are over kept
    /// sets. Returns what differs, if anything does.
    ///
    /// # Errors
    /// What the pool or the operators said.
    pub fn hold_trained(
        &self,
        distinct: &[Vec<f32>],
        (pool, slots): (&mut Pool, &[Slot]),
        out: &Outputs,
    ) -> gumball_spec::Result<Option<String>> {
        if !self.kept || self.bare {
            return Ok(None);
        }
        let mut tokens = Vec::new();
        for (request, slot) in slots.iter().enumerate() {
            let Emitted { tokens: emitted, rows, places, .. } = out.request(request);
            let count = emitted.iter().filter(|token| **token != NONE).count();
            let history = pool.sequence(*slot)?.history();
            let (ids, prompt_len) = (history.ids(), history.prompt().len());
            for (i, (place, row)) in places.zip(rows).take(count).enumerate() {
                let before = ids[..ids.len() - count + i].to_vec();
                let row = self.row(distinct, *row as usize);
                tokens.push((self.params(request), before, prompt_len, row, place));
            }
        }
        let drawn = tokens.iter().map(|(params, before, prompt_len, row, place)| Drawn {
            params,
            before,
            prompt_len: *prompt_len,
            row,
            place: *place,
        });
        match trained::hold(&Operators::new(None, Some(1))?, out, &drawn.collect::<Vec<_>>()) {
            Ok(count) => self.trained.set(self.trained.get() + count as u64),
            Err(text) => return Ok(Some(text)),
        }
        Ok(None)
    }
}

/// Distinct rows of a batch.
pub(super) const DISTINCT: usize = 24;

/// Copies some ids of some rows to a device, each row filled up with NaN to a width.
pub(super) fn upload(
    runtime: &Arc<dyn Runtime>,
    batch: &Batch,
    distinct: &[Vec<f32>],
    rows: &[usize],
    (ids, width): (Range<usize>, usize),
) -> gumball_spec::Result<DeviceBuffer> {
    let mut values = Vec::with_capacity(rows.len() * width);
    for row in rows {
        values.extend_from_slice(&distinct[batch.which(*row)][ids.clone()]);
        values.resize(values.len() + width - ids.len(), f32::NAN);
    }
    let buffer = match batch.dtype {
        Dtype::F32 => DeviceBuffer::of(runtime, &values),
        Dtype::Bf16 => {
            DeviceBuffer::of(runtime, &values.iter().map(|z| bf16::from_f32(*z)).collect::<Vec<_>>())
        }
        Dtype::F16 => {
            DeviceBuffer::of(runtime, &values.iter().map(|z| f16::from_f32(*z)).collect::<Vec<_>>())
        }
    };
    Ok(buffer?)
}
