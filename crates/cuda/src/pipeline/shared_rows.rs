//! Rows of logits that several rows of a step read: each is surveyed once, for a request without edits and
//! sums.
//!
//! Many draws from one row of logits then cost one survey. The survey kernels are those of greedy rows,
//! because their records have no arrivals. The kernel `records_from_shared_rows` then gives each row its own
//! arrivals.

use std::sync::Arc;

use gumball_spec::{Result, TILE, memory};

use crate::abi::{self, Params, Request, Slot, State, TileRecord, features};
use crate::driver::device_limits::DeviceLimits;
use crate::driver::runtime::Runtime;
use crate::launch::{Launch, tuning};
use crate::memory::buffer::{Buffer, ROWS};
use crate::memory::rows::Rows;
use crate::requests::step_features::StepFeatures;

/// The records of shared rows, and the request that they are surveyed for.
#[derive(Debug)]
pub(crate) struct SharedRows {
    pub records: Buffer,
    params: Buffer,
    /// Zeros that serve as a state, as a request, and as the slots of all shared rows.
    zeros: Buffer,
}

impl SharedRows {
    /// Allocates records for as many shared rows as a step has rows.
    pub fn new(runtime: &Arc<dyn Runtime>, rows: usize, vocab: usize) -> Result<Self> {
        let tiles = vocab.div_ceil(TILE);
        let slots = memory::product(ROWS, &[rows, size_of::<Slot>()])?;
        let zeros = size_of::<State>().max(size_of::<Request>()).max(slots);
        let greedy = Params { features: features::GREEDY, ..Params::default() };
        Ok(Self {
            records: Buffer::sized(runtime, ROWS, &[rows, tiles, size_of::<TileRecord>()])?,
            params: Buffer::of(runtime, &[greedy])?,
            zeros: Buffer::zeroed(runtime, zeros)?,
        })
    }

    /// Returns the step over the shared rows, and the launch of their survey.
    pub fn survey(
        &self,
        limits: &DeviceLimits,
        rows: &Rows<'_>,
        step: &abi::Step,
    ) -> (abi::Step, Launch<abi::Step>) {
        let survey = tuning::survey(
            limits,
            (rows.rows, step.tiles as usize),
            (rows.kind, rows.dtype),
            StepFeatures::SIMPLE,
        );
        let zeros = self.zeros.address();
        let step = abi::Step {
            rows: rows.rows as u32,
            row_indices: 0,
            slots: zeros,
            params: self.params.address(),
            requests: zeros,
            states: zeros,
            records: self.records.address(),
            ..*step
        };
        survey.over(&step, false)
    }
}
