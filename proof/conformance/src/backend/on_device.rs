//! Rows and drafts of work in a device's memory.

use gumball_engine::{
    Device, DeviceBuffer, DeviceDrafts, DeviceLogits, DeviceOptions, DeviceSlice, Drafts, Dtype, IntType,
    Logits, VerifyMode,
};
use gumball_spec::{Result, Row};

use super::verbs::Work;

/// What work reads, in the memory of a pool's device.
pub struct OnDevice<'a> {
    rows: Logits<'a>,
    dtype: Dtype,
    vocab: usize,
    logits: DeviceBuffer,
    drafts: Option<(Drafts<'a>, [DeviceBuffer; 3])>,
}

impl<'a> OnDevice<'a> {
    /// Copies rows of a type, and the drafts of a verification, whose probabilities are of a whole vocabulary.
    pub fn new(
        device: &Device,
        (rows, dtype): (Logits<'a>, Dtype),
        drafts: Option<(Drafts<'a>, VerifyMode)>,
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
            let parents = DeviceBuffer::of(runtime, drafts.parents.unwrap_or_default())?;
            let probs = DeviceBuffer::of(runtime, drafts.probs.unwrap_or_default())?;
            Ok((drafts, [ids, parents, probs]))
        };
        let drafts = drafts.map(|(drafts, _)| copy(drafts)).transpose()?;
        Ok(Self { rows, dtype, vocab, logits, drafts })
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
        let rows = drafts.counts.len() + drafts.ids.len();
        let of = |_| DeviceLogits::of(probs, Dtype::F32, 0, rows, self.vocab, self.vocab);
        let probs = drafts.probs.map(of);
        Ok(Some(DeviceDrafts {
            ids: column(ids)?,
            parents: drafts.parents.map(|_| column(parents)).transpose()?,
            links: None,
            probs: probs.transpose()?,
        }))
    }
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
    let Work { options, row_indices, .. } = work;
    DeviceOptions { masks: options.masks, forced: options.forced, row_indices }
}
