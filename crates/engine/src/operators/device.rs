//! The operators of a device: arguments in the form that the kernels' launches take, and memory that each
//! operator keeps.

use std::sync::Arc;

use gumball_cpu::Output;
use gumball_cuda::{
    self as cuda, DeviceIntMatrix, DeviceIntMatrixMut, DeviceSlice, DraftChainRows, Rows, RowsOut, Runtime,
    Verified, Verify,
};
use gumball_spec::Result;

use super::arrays::device_column;
use super::columns::{KeyColumns, ParamColumns};
use super::draft_chains::DraftChainCounts;
use super::draws::Draws;
use super::params::{PerRow, RowParams};
use crate::Device;

/// The operators of a device, in the order of its stream.
#[derive(Debug)]
pub(super) struct OnDevice {
    device: Device,
    rows: Option<cuda::Operators>,
    verify: Option<Verify>,
    params: ParamColumns,
    keys: KeyColumns,
}

impl OnDevice {
    pub fn new(device: Device) -> Self {
        let (params, keys) = Default::default();
        Self { device, rows: None, verify: None, params, keys }
    }

    /// Enqueues the writing of rows. `from`: the rows to read; `None`: those of `to`.
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
        let operators = made(&self.device, &mut self.rows, cuda::Operators::new)?;
        let output = match output {
            Output::Probabilities => cuda::Output::Probabilities,
            Output::Masked => cuda::Output::Masked,
        };
        operators.write(output, from, to, &params, statuses)
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
        let operators = made(device, &mut self.rows, cuda::Operators::new)?;
        operators.sample(rows, &params, &draws, row_indices.as_ref(), tokens, statuses)
    }

    /// Enqueues the verification of chains. `probs`: the drafter's and the target's.
    pub fn verify(
        &mut self,
        [draft_probs, target_probs]: [DraftChainRows<'_>; 2],
        draft_token_ids: DeviceIntMatrix<'_>,
        draws: &Draws<'_>,
        tokens: DeviceIntMatrixMut<'_>,
        counts: DraftChainCounts<'_>,
    ) -> Result<()> {
        let out = Verified {
            accepted: device_column("accepted", counts.accepted)?,
            emitted: device_column("emitted", counts.emitted)?,
            statuses: device_column("statuses", counts.statuses)?,
            adds: counts.adds,
            ..Verified::new(tokens)
        };
        let (draws, _) = self.keys.keys(&self.device, draws, None, target_probs.chains(), 0)?;
        let chains = cuda::DraftChains { draft_probs, draft_token_ids, target_probs, draws };
        made(&self.device, &mut self.verify, Verify::new)?.enqueue(&chains, &out)
    }
}

/// Returns an operator; if it does not exist yet, makes it, which allocates its memory.
fn made<'a, T>(
    device: &Device,
    operator: &'a mut Option<T>,
    make: impl FnOnce(Arc<dyn Runtime>) -> Result<T>,
) -> Result<&'a mut T> {
    let made = match operator.take() {
        Some(made) => made,
        None => make(device.runtime().clone())?,
    };
    Ok(operator.insert(made))
}
