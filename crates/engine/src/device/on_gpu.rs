//! The computation of rows on a device, and the host's record of it.
//!
//! Parameters and states lie on the device and advance there. The host keeps a copy of each sequence and
//! updates it from the outputs that it fetches. If the copy lacks tokens when the caller reads the sequence,
//! the state is read back.

use gumball_cuda::{Buffer, InitialState, Prepared, Workspace, WorkspaceLimits};
use gumball_spec::layout::Widths;
use gumball_spec::{Error, Result};

use super::Device;
use super::assigned::Assigned;
use super::catch_up::Last;
use super::draft_batch::DraftBatch;
use super::probabilities::drawing_params;
use super::uploads::Uploads;
use crate::assignment::Assignment;
use crate::config::{Place, PoolConfig};
use crate::route::Route;
use crate::sequence::Sequence;
use crate::slot::Slot;
use crate::slots::{Change, Copies};

/// What computes rows on a device. The table of sequences is the pool's.
#[derive(Debug)]
pub(crate) struct OnGpu {
    pub(super) device: Device,
    pub(super) vocab: usize,
    pub(super) rows: usize,
    pub(super) widths: Widths,
    pub(super) history_growth: usize,
    pub(super) keep_histories: bool,
    /// Whether rows are made probabilities first: the route `probabilities`.
    pub(super) has_softmax: bool,
    pub(super) workspace: Workspace,
    pub(super) assigned: Assigned,
    pub(super) last: Last,
    pub(super) uploads: Uploads,
    /// The buffer into which paths of drafts are copied, and the batch of the drafts that the host last
    /// waited for.
    pub(super) path_upload: Option<Buffer>,
    pub(super) host_drafts: Option<DraftBatch>,
    /// The workspace of the last scores, kept for the next ones.
    pub(super) scorer: Option<Workspace>,
}

impl OnGpu {
    /// Takes the memory of a pool whose place is a device.
    pub fn new(config: &PoolConfig) -> Result<Self> {
        let PoolConfig { vocab, slots, widths, kept, ref route, .. } = *config;
        let Place::Device { ref device, rows, history_growth, keep_histories } = config.place else {
            unreachable!("{:?} is no device", config.place)
        };
        for (parameter, value) in [("rows", rows), ("history_growth", history_growth)] {
            if !(1..=i32::MAX as usize).contains(&value) {
                return Err(Error::out_of_range(parameter, value, "in 1..2^31"));
            }
        }
        let has_softmax = match route {
            Route::Race => false,
            Route::Probabilities => true,
            other => {
                let reason = format!(
                    "a device takes race and probabilities, and not {other}; take a pool of the host"
                );
                return Err(Error::Unavailable { resource: "route on a device", reason });
            }
        };
        let limits = WorkspaceLimits { vocab, slots, rows, widths, kept };
        let workspace = Workspace::new(device.runtime().clone(), limits)?;
        Ok(Self {
            workspace: if has_softmax { workspace.with_softmax()? } else { workspace },
            device: device.clone(),
            vocab,
            rows,
            widths,
            history_growth,
            keep_histories,
            has_softmax,
            assigned: Assigned::default(),
            last: Last::default(),
            uploads: Uploads::default(),
            path_upload: None,
            host_drafts: None,
            scorer: None,
        })
    }
}

impl Copies for OnGpu {
    fn has_copies(&self) -> bool {
        true
    }

    fn write(&mut self, slot: Slot, sequence: &Sequence, _: Change) -> Result<()> {
        let prepared = match self.has_softmax {
            false => Prepared::new(sequence.params(), self.vocab)?,
            true => Prepared::new(&drawing_params(sequence.params())?, self.vocab)?,
        };
        let state = sequence.state();
        let start = InitialState {
            seed: state.seed,
            draw: state.draw,
            position: state.position,
            mu: state.mu,
            prompt: state.prompt,
            output: state.output,
            history_growth: self.history_growth,
            keep_history: self.keep_histories,
        };
        self.workspace.admit(slot, &prepared, &start)
    }

    fn forget(&mut self, slot: Slot) -> Result<()> {
        self.assigned.forget(slot);
        self.workspace.release(slot)?;
        Assignment::forget_in(&mut self.last.of, slot);
        Ok(())
    }
}
