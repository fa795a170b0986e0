//! How long a token takes, and how long reading its row does.
//!
//! Both are timed in turns on one thread, so that a ratio compares neighbours in time. The floor is that of
//! the bench: one maximum over the row by the best instructions of the machine.

use std::io::Write;
use std::rc::Rc;
use std::time::Instant;

use gumball_bench_protocol::floor::Floor;
use gumball_bench_protocol::{
    Definition, Dtype, Engine, Parameters, Prepared, Residence, RowKind, Rows, Task,
};

use crate::logits::Logits;
use crate::{Error, Result};

/// Rounds; the median of them counts.
const ROUNDS: usize = 15;
/// What a round takes at least, in seconds.
const ROUND_SECONDS: f64 = 1.5e-3;

/// The reading of rows.
#[derive(Debug)]
pub struct Reading {
    prepared: Prepared,
    rows: usize,
    next: usize,
}

impl Reading {
    /// Gets ready to read the rows that `logits` has. Half precision is read as bfloat16: as many bytes.
    ///
    /// # Errors
    /// - [`Error::Output`] if no temporary file can be written.
    pub fn of(logits: &Logits) -> Result<Self> {
        let mut file = tempfile::NamedTempFile::new()?;
        file.write_all(logits.bytes())?;
        file.flush()?;
        let dtype = if logits.dtype() == "f32" { Dtype::F32 } else { Dtype::Bf16 };
        let rows = Rc::new(Rows::read(file.path(), logits.vocab(), dtype, logits.rows())?);
        // The floor asks nothing of definition and parameters; they say what a reading is.
        let (rows_kind, residence, task) = (RowKind::Model, Residence::Cache, Task::Greedy);
        let definition = Definition { vocab: logits.vocab(), dtype, rows: rows_kind, residence, task };
        let parameters = Parameters::of(task, logits.vocab());
        let prepared = Floor::best().prepare(&definition, &parameters, rows).map_err(Error::Usage)?;
        Ok(Self { prepared, rows: logits.rows(), next: 0 })
    }

    /// Returns what a reading does, in words.
    #[must_use]
    pub fn does(&self) -> &str {
        &self.prepared.does
    }

    /// Reads the next row.
    pub fn read(&mut self) {
        std::hint::black_box((self.prepared.draw)(self.next));
        self.next = (self.next + 1) % self.rows;
    }
}

/// Times two things in turns and returns the median microseconds of each.
pub fn in_turns(mut a: impl FnMut(), mut b: impl FnMut()) -> (f64, f64) {
    let (calls_a, calls_b) = (calls(&mut a), calls(&mut b));
    let (mut times_a, mut times_b) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        times_a.push(round(&mut a, calls_a));
        times_b.push(round(&mut b, calls_b));
    }
    (median(times_a), median(times_b))
}

/// Returns how many calls fill a round, having warmed up.
fn calls(call: &mut impl FnMut()) -> u32 {
    call();
    let mut calls = 1;
    loop {
        let seconds = round(call, calls) * f64::from(calls) * 1e-6;
        if seconds >= ROUND_SECONDS {
            return calls;
        }
        calls *= 2;
    }
}

/// Returns the microseconds of a call.
fn round(call: &mut impl FnMut(), calls: u32) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(|_| call());
    start.elapsed().as_secs_f64() * 1e6 / f64::from(calls)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
