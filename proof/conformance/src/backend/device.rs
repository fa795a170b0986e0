//! Devices by name, and what a device has besides its pools: operators, and judged drafts.

use std::sync::{Arc, Mutex, PoisonError};

use gumball_cpu::Output;
use gumball_cuda::{Cache, Emulator, Gpu};
use gumball_engine::unstable::RowMut;
use gumball_engine::{
    Device, DeviceBuffer, DeviceMatrix, DeviceRows, DeviceSlice, IntType, Operators, PerRowMut, RowParams,
    RowsInOut,
};
use gumball_spec::verify::by_probabilities::{Emitted, Judgement, Trial};
use gumball_spec::{Result, Row, Status};

use super::row_to_write;
use crate::case::{Case, Dtype, Logits};
use crate::draft_trees::Judger;

/// Opens the device of a backend's name, which says after `cuda` what the backend does with it.
///
/// # Errors
/// - [`Error::Unavailable`](gumball_spec::Error::Unavailable) if this machine lacks what it needs.
///
/// # Panics
/// If the kernels do not compile for the emulator.
pub fn device(name: &str) -> Result<Device> {
    if name.starts_with("cuda_emulated") {
        let emulator = Emulator::new(&Cache::user());
        // Where there is no compiler tests are skipped; kernels that do not compile are a bug.
        if let Err(error @ gumball_cuda::Error::Compile { .. }) = &emulator {
            panic!("{error}");
        }
        return Ok(Device::new(Arc::new(emulator?)));
    }
    let gpu = Gpu::new(0, &Cache::user())?;
    Ok(if name == "cuda_without_clusters" { gpu.without_clusters() } else { gpu }.into())
}

/// A device with its operators, whose memory is kept, so that anything that a call leaves there meets the
/// next.
#[derive(Debug)]
pub(super) struct Place {
    pub device: Device,
    operators: Operators,
    judger: Mutex<Option<Judger>>,
}

impl Place {
    pub fn new(device: Device) -> Self {
        Self { operators: Operators::on_device(device.clone()), judger: Mutex::default(), device }
    }

    /// Writes the output of a row without a history. A device writes f32 or the row's own type; the host
    /// rounds to the others.
    pub fn write(&self, case: &Case, output: Output, to: Option<Dtype>) -> Result<(Vec<u32>, Status)> {
        let there = to.map(|to| if to == case.logits.dtype() { to } else { Dtype::F32 });
        let (vocab, kind, mut out) = (case.vocab(), case.kind, row_to_write(case, there));
        let (from, mut place) = (self.copied(&case.logits)?, self.copied(&out)?);
        let [dtype, out_dtype] = [&case.logits, &out].map(|row| row.dtype().into());
        let statuses = DeviceBuffer::of(self.device.runtime(), &[!0u32])?;
        let column = Some(PerRowMut::Device(DeviceSlice::of(&statuses, IntType::U32)));
        let rows = DeviceRows::of(&mut place, out_dtype, 0, 1, vocab, vocab)?.with_kind(kind);
        let rows: RowsInOut<'_> = match to {
            Some(_) => (DeviceMatrix::of(&from, dtype, 0, 1, vocab, vocab)?.with_kind(kind), rows).into(),
            None => rows.into(),
        };
        let params = RowParams::new(&case.params);
        match output {
            Output::Probabilities => self.operators.probabilities(rows, &params, column),
            Output::Masked => self.operators.mask_logits(rows, &params, column),
        }?;
        let mut status = [0];
        statuses.read(0, &mut status)?;
        match out.row_mut() {
            RowMut::F32(numbers) => place.read(0, numbers),
            RowMut::Bf16(numbers) => place.read(0, numbers),
            RowMut::F16(numbers) => place.read(0, numbers),
        }?;
        let numbers: Vec<f32> = (0..vocab).map(|id| out.row().logit(id)).collect();
        Ok((Logits::new(to.unwrap_or(out.dtype()), &numbers).bits(), Status(status[0])))
    }

    /// Copies a row to the device.
    fn copied(&self, row: &Logits) -> Result<DeviceBuffer> {
        let runtime = self.device.runtime();
        Ok(match row.row() {
            Row::F32(numbers) => DeviceBuffer::of(runtime, numbers),
            Row::Bf16(numbers) => DeviceBuffer::of(runtime, numbers),
            Row::F16(numbers) => DeviceBuffer::of(runtime, numbers),
        }?)
    }

    /// Judges a tree of drafts, or a chain.
    pub fn judge(&self, trial: &Trial<'_>, judgement: Judgement) -> Result<Emitted> {
        let mut judger = self.judger.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *judger {
            Some(judger) => judger.judge(trial, judgement),
            none => none.insert(Judger::new(self.device.runtime())?).judge(trial, judgement),
        }
    }
}
