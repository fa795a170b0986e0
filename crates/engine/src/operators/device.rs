//! The operators of a device: arguments in the form that the kernels' launches take, and the memory of lists
//! that are copied there.

use std::sync::Mutex;

use gumball_cpu::Output;
use gumball_cuda::{
    self as cuda, DeviceIntMatrix, DeviceIntMatrixMut, DeviceSlice, DraftTreeRows, Judged, Rows, RowsOut,
};
use gumball_spec::Result;
use gumball_spec::verify::by_probabilities::Judgement;

use super::arrays::device_column;
use super::columns::{GivenColumns, KeyColumns, ParamColumns, TokenColumn};
use super::draft_trees::DraftTreeCounts;
use super::draws::Draws;
use super::logprobs::{GivenLogprobs, GivenTokens, LossDerivatives};
use super::params::{PerRow, RowParams};
use super::pools::PoolSlots;
use super::selected_logprobs::Selected;
use super::{Operators, Place};
use crate::{Device, DeviceMasks};

impl Operators {
    /// Makes the operators of a device. Each operator allocates its memory in its first call. Calls from
    /// several threads take turns.
    ///
    /// ```no_run
    /// use gumball_engine::{Device, DeviceBuffer, DeviceMatrix, DeviceRows, Dtype, Operators};
    ///
    /// let device = Device::cuda(0)?;
    /// let operators = Operators::on_device(device.clone());
    /// let logits = DeviceBuffer::of(device.runtime(), &[0.0f32, 0.0, 2.0, 1.0])?;
    /// let mut probabilities = DeviceBuffer::zeroed(device.runtime(), 16)?;
    /// let rows = DeviceMatrix::of(&logits, Dtype::F32, 0, 2, 2, 2)?;
    /// let out = DeviceRows::of(&mut probabilities, Dtype::F32, 0, 2, 2, 2)?;
    /// operators.softmax((rows, out), 0.7.into(), None)?;
    /// # Ok::<(), gumball_engine::Error>(())
    /// ```
    #[must_use]
    pub fn on_device(device: Device) -> Self {
        Self { place: Place::Device(Box::new(Mutex::new(OnDevice::new(device)))) }
    }
}

/// The operators of a device, in the order of its stream.
#[derive(Debug)]
pub(super) struct OnDevice {
    device: Device,
    operators: cuda::Operators,
    params: ParamColumns,
    keys: KeyColumns,
    tokens: TokenColumn,
    given: GivenColumns,
}

impl OnDevice {
    pub fn new(device: Device) -> Self {
        let (params, keys, tokens, given) = Default::default();
        let operators = cuda::Operators::new(device.runtime().clone());
        Self { operators, device, params, keys, tokens, given }
    }

    /// Enqueues the writing of rows. `from`: the rows to read; `None`: `to` has them.
    pub fn write(
        &mut self,
        output: Output,
        from: Option<&Rows<'_>>,
        to: &RowsOut<'_>,
        params: &RowParams<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        let (rows, common) = (from.unwrap_or(to.rows()), params.common());
        let shape = (rows.rows(), rows.vocab());
        let params = self.params.params(&self.device, params, &common, rows.kind(), shape)?;
        let output = match output {
            Output::Probabilities => cuda::Output::Probabilities,
            Output::Masked => cuda::Output::Masked,
        };
        self.operators.write(output, from, to, &params, statuses)
    }

    /// Enqueues a draw for each output.
    pub fn sample(
        &mut self,
        rows: &Rows<'_>,
        row_indices: Option<PerRow<'_, u32>>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        tokens: &DeviceSlice<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        let (device, common, outputs) = (&self.device, params.common(), tokens.rows());
        let shape = (rows.rows(), rows.vocab());
        let params = self.params.params(device, params, &common, rows.kind(), shape)?;
        let (draws, row_indices) = self.keys.keys(device, draws, row_indices, outputs, rows.rows())?;
        self.operators.sample(rows, &params, &draws, row_indices.as_ref(), tokens, statuses)
    }

    /// Enqueues a draw for each row, by parameters and keys that lie in pools.
    pub fn sample_from_pools(
        &mut self,
        rows: &Rows<'_>,
        pools: &PoolSlots<'_>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        tokens: &DeviceSlice<'_>,
        statuses: Option<&DeviceSlice<'_>>,
    ) -> Result<()> {
        let (device, common) = (&self.device, params.common());
        let shape = (pools.size, rows.vocab());
        let params = self.params.params(device, params, &common, rows.kind(), shape)?;
        let (draws, pools) = self.keys.pooled(device, draws, pools, rows.rows())?;
        self.operators.sample_from_pools(rows, &pools, &params, &draws, tokens, statuses)
    }

    /// Enqueues the writing of radii. `size`: that of edits (L7).
    pub fn radii(
        &mut self,
        rows: &Rows<'_>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        size: f32,
        radii: &DeviceSlice<'_>,
    ) -> Result<()> {
        let (device, common, count) = (&self.device, params.common(), rows.rows());
        let params = self.params.params(device, params, &common, rows.kind(), (count, rows.vocab()))?;
        let (draws, _) = self.keys.keys(device, draws, None, count, count)?;
        self.operators.radii(rows, &params, &draws, size, radii)
    }

    /// Enqueues the writing of the logprobs of tokens.
    pub fn selected_logprobs(&mut self, rows: &Rows<'_>, selected: Selected<'_>) -> Result<()> {
        let out = cuda::SelectedLogprobs {
            logprobs: selected.logprobs.on_device("logprobs")?,
            ranks: device_column("ranks", selected.ranks)?,
            statuses: device_column("statuses", selected.statuses)?,
        };
        let tokens = self.tokens.tokens(&self.device, selected.tokens, rows.rows(), rows.vocab())?;
        self.operators.selected_logprobs(rows, &tokens, &out)
    }

    /// Enqueues the writing of the logprobs of given ids.
    pub fn logprobs(
        &mut self,
        rows: &Rows<'_>,
        tokens: &GivenTokens<'_>,
        out: GivenLogprobs<'_>,
    ) -> Result<()> {
        let out = cuda::GivenLogprobs {
            logprobs: out.logprobs.on_device("logprobs")?,
            entropies: device_column("entropies", out.entropies)?,
            weighed: device_column("weighed", out.weighed)?,
        };
        let tokens = self.given.tokens(&self.device, tokens, (rows.rows(), rows.vocab()))?;
        self.operators.logprobs(rows, &tokens, &out)
    }

    /// Enqueues the writing of derivatives. `from`: the rows to read; `None`: `to` has them.
    pub fn logprobs_gradient(
        &mut self,
        from: Option<&Rows<'_>>,
        to: &RowsOut<'_>,
        tokens: &GivenTokens<'_>,
        by: &LossDerivatives<'_>,
    ) -> Result<()> {
        let by = cuda::LossDerivatives {
            weighed: by.weighed.column("weighed")?,
            of_logprobs: by.of_logprobs.column("of_logprobs")?,
            of_entropies: by.of_entropies.map(|of| of.column("of_entropies")).transpose()?,
        };
        let rows = to.rows();
        let tokens = self.given.tokens(&self.device, tokens, (rows.rows(), rows.vocab()))?;
        self.operators.logprobs_gradient(from, to, &tokens, &by)
    }

    /// Enqueues the packing of sets.
    pub fn pack_kept(&mut self, sets: &DeviceMasks<'_>, packed: &DeviceSlice<'_>) -> Result<()> {
        self.operators.pack_kept(sets, packed)
    }

    /// Enqueues the judgement of trees. `probs`: the drafter's and the target's. `drafts`: ids and parents.
    /// `written`: tokens and rows.
    pub fn judge(
        &mut self,
        (draft_probs, target_probs): (Option<DraftTreeRows<'_>>, DraftTreeRows<'_>),
        (draft_token_ids, parents): (DeviceIntMatrix<'_>, Option<DeviceIntMatrix<'_>>),
        judgement: Judgement,
        draws: &Draws<'_>,
        (tokens, rows): (DeviceIntMatrixMut<'_>, Option<DeviceIntMatrixMut<'_>>),
        counts: DraftTreeCounts<'_>,
    ) -> Result<()> {
        let out = Judged {
            tokens,
            rows,
            accepted: device_column("accepted", counts.accepted)?,
            accepted_alone: device_column("accepted_alone", counts.accepted_alone)?,
            statuses: device_column("statuses", counts.statuses)?,
            adds: counts.adds,
        };
        let (draws, _) = self.keys.keys(&self.device, draws, None, target_probs.trees(), 0)?;
        let trees = cuda::DraftTrees { draft_probs, draft_token_ids, parents, target_probs, draws };
        self.operators.judge(&trees, judgement, &out)
    }
}
