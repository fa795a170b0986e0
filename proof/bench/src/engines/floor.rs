//! The floor as an engine: one maximum over the row. Every time in a record is also a multiple of the
//! floor's, over the same rows in the same run.
//!
//! It is no sampler: it answers with the bits of the maximum in place of a token.

use std::rc::Rc;

use gumball_bench_protocol::{Definition, Engine, Identity, Parameters, Prepared, Row, Rows};

use crate::floor::Floor;

/// The name of the floor's column.
pub const FLOOR: &str = "floor";

/// The engine that reads the row once.
#[derive(Clone, Copy, Debug)]
pub struct Reading;

impl Engine for Reading {
    fn identity(&self) -> Identity {
        Identity { engine: FLOOR.into(), version: env!("CARGO_PKG_VERSION").into() }
    }

    fn prepare(&mut self, _: &Definition, _: &Parameters, rows: Rc<Rows>) -> Result<Prepared, String> {
        let floor = Floor::best();
        let draw = move |row| {
            let row = match rows.row(row) {
                Row::F32(logits) => gumball_spec::Row::F32(logits),
                Row::Bf16(logits) => gumball_spec::Row::Bf16(logits),
            };
            i64::from(floor.read(row).to_bits())
        };
        Ok(Prepared { does: floor.does().into(), draw: Box::new(draw) })
    }
}
