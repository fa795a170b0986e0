//! Lines that several rows read: surveyed once each, for a request that asks for nothing.
//!
//! Many draws from one row then cost one survey. A survey of lines is that of greedy rows, so the kernels are the same; one
//! more gives each row the arrivals of its own.

use std::sync::Arc;

use gumball_spec::{Result, TILE, memory};

use crate::abi::{self, Params, Request, Slot, State, TileRecord, features};
use crate::rows::Rows;
use crate::runtime::{Buffer, ROWS, Runtime};
use crate::survey::{self, Survey};
use crate::variant::StepFeatures;

/// Room for the records of lines, and the request that they are surveyed for.
#[derive(Debug)]
pub(crate) struct SharedRows {
    records: Buffer,
    params: Buffer,
    /// A state, a request and the slots of all lines, all of them zeros.
    zeros: Buffer,
}

impl SharedRows {
    /// Takes room for as many lines as there are rows.
    pub fn new(machine: &Arc<dyn Runtime>, rows: usize, vocab: usize) -> Result<Self> {
        let tiles = vocab.div_ceil(TILE);
        let slots = memory::product(ROWS, &[rows, size_of::<Slot>()])?;
        let zeros = size_of::<State>().max(size_of::<Request>()).max(slots);
        let greedy = Params { features: features::GREEDY, ..Params::default() };
        Ok(Self {
            records: Buffer::sized(machine, ROWS, &[rows, tiles, size_of::<TileRecord>()])?,
            params: Buffer::of(machine, &[greedy])?,
            zeros: Buffer::zeroed(machine, zeros)?,
        })
    }

    /// Returns the survey of the lines, what gives rows their records from there, and the step in which it does.
    pub fn cut(
        &self,
        multiprocessors: u32,
        rows: &Rows<'_>,
        step: abi::Step,
    ) -> ((Survey, abi::Step), Survey, abi::Step) {
        let holds = (rows.kind, rows.dtype);
        let survey = survey::survey(multiprocessors, rows.rows, rows.vocab, holds, StepFeatures::NONE);
        let zeros = self.zeros.address();
        let lines = abi::Step {
            rows: rows.rows as u32,
            row_indices: 0,
            slots: zeros,
            params: self.params.address(),
            requests: zeros,
            states: zeros,
            records: self.records.address(),
            ..step
        }
        .cut(survey.blocks_per_row);
        let arrive = survey::arrive(rows.vocab);
        let line_records = self.records.address();
        ((survey, lines), arrive, abi::Step { shared_records: line_records, ..step })
    }
}
