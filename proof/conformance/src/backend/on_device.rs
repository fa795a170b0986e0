//! Rows and drafts of work in a device's memory.

use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceDrafts, DeviceLogits, DeviceOptions, DeviceSlice, Drafts, Dtype,
    IntType, Logits, Tree,
};
use gumball_spec::{Result, Row};

use super::verbs::{Work, read};

/// What work reads, in the memory of a pool's device.
pub struct OnDevice<'a> {
    rows: Logits<'a>,
    dtype: Dtype,
    vocab: usize,
    requests: usize,
    logits: DeviceBuffer,
    drafts: Option<(Drafts<'a>, [DeviceBuffer; 3])>,
}

impl<'a> OnDevice<'a> {
    /// Copies all rows of work, and its drafts.
    pub fn of(device: &Device, work: &Work<'a>, vocab: usize) -> Result<Self> {
        let rows = read(work.rows, &Batch::default())?;
        Self::new(device, (rows, dtype_of(rows)), (work.batch.slots.len(), work.drafts), vocab)
    }

    /// Copies rows of a type, and the drafts of requests, whose probabilities are of a whole vocabulary.
    pub fn new(
        device: &Device,
        (rows, dtype): (Logits<'a>, Dtype),
        (requests, drafts): (usize, Option<Drafts<'a>>),
        vocab: usize,
    ) -> Result<Self> {
        let runtime = device.runtime();
        macro_rules! copied {
            ($dtype:ident) => {{
                let mut numbers = Vec::new();
                for row in 0..rows.rows() {
                    let Row::$dtype(row) = rows.row(row) else { unreachable!("one type a batch") };
                    numbers.extend_from_slice(row);
                }
                DeviceBuffer::of(runtime, &numbers)?
            }};
        }
        let logits = match dtype {
            Dtype::F32 => copied!(F32),
            Dtype::Bf16 => copied!(Bf16),
            Dtype::F16 => copied!(F16),
        };
        let copy = |drafts: Drafts<'a>| -> Result<_> {
            let ids = DeviceBuffer::of(runtime, drafts.ids)?;
            let parents = DeviceBuffer::of(runtime, parents_of(&drafts).unwrap_or_default())?;
            let rows = drafts.probs.iter().flat_map(|probs| (0..probs.rows()).map(|row| probs.row(row)));
            let probs: Vec<f32> =
                rows.flat_map(|row| (0..row.vocab()).map(move |id| row.logit(id))).collect();
            let probs = DeviceBuffer::of(runtime, &probs)?;
            Ok((drafts, [ids, parents, probs]))
        };
        let drafts = drafts.map(copy).transpose()?;
        Ok(Self { rows, dtype, vocab, requests, logits, drafts })
    }

    /// Returns the rows.
    pub fn rows(&self) -> Result<DeviceLogits<'_>> {
        let (rows, vocab) = (self.rows.rows(), self.rows.vocab());
        let rows = DeviceLogits::of(&self.logits, self.dtype, 0, rows, vocab, vocab)?;
        Ok(rows.with_kind(self.rows.kind()))
    }

    /// Returns the drafts.
    pub fn drafts(&self) -> Result<Option<DeviceDrafts<'_>>> {
        let Some((drafts, [ids, parents, probs])) = &self.drafts else { return Ok(None) };
        let column = |buffer| DeviceSlice::of(buffer, IntType::I32).first(drafts.ids.len());
        let rows = self.requests + drafts.ids.len();
        let of = |_| DeviceLogits::of(probs, Dtype::F32, 0, rows, self.vocab, self.vocab);
        let probs = drafts.probs.map(of);
        Ok(Some(DeviceDrafts {
            ids: column(ids)?,
            parents: parents_of(drafts).map(|_| column(parents)).transpose()?,
            links: None,
            probs: probs.transpose()?,
        }))
    }
}

/// Returns the parents of drafts, which no case has as links.
fn parents_of<'a>(drafts: &Drafts<'a>) -> Option<&'a [i32]> {
    if let Tree::Parents(parents) = drafts.tree { Some(parents) } else { None }
}

/// Returns the type of rows; of none it is f32.
pub fn dtype_of(rows: Logits<'_>) -> Dtype {
    match (rows.rows() > 0).then(|| rows.row(0)) {
        None | Some(Row::F32(_)) => Dtype::F32,
        Some(Row::Bf16(_)) => Dtype::Bf16,
        Some(Row::F16(_)) => Dtype::F16,
    }
}

/// Returns what comes with the rows of work.
pub fn device_options<'a>(work: &Work<'a>) -> DeviceOptions<'a> {
    let Batch { masks, forced, row_indices, .. } = work.batch;
    DeviceOptions { masks, forced, row_indices }
}
