//! A device as the subject of a check: draws in batches, each of them a request of its own in a pool.

use std::slice;

use gumball_engine::{
    Batch, Device, Matrix, Outputs, Place, Pool, PoolConfig, Route, Row, Rows, SamplingParams, Widths,
};

use super::subject::{masks, repeated};
use super::{Draw, Opened, Subject};
use crate::Result;
use crate::state::State;

/// Draws that are made in one step at most.
const ROWS: usize = 256;

/// A device.
#[derive(Clone, Debug)]
pub struct OnDevice {
    /// It.
    pub device: Device,
    /// The route of its pool.
    pub route: Route,
}

impl Subject for OnDevice {
    fn name(&self) -> String {
        format!("route {} on device {}", self.route, self.device.name())
    }

    fn open(&self, params: &SamplingParams, state: &State, vocab: usize) -> Result<Box<dyn Opened>> {
        let widths = Widths::of(params.logprobs.as_ref());
        let device = self.device.clone();
        let place = Place::Device { device, rows: ROWS, history_growth: 1, keep_histories: false };
        let route = self.route.clone();
        let config = PoolConfig { slots: ROWS, widths, place, route, ..PoolConfig::new(vocab) };
        Ok(Box::new(OpenedDevice {
            pool: Pool::new(config)?,
            route: self.route.clone(),
            params: params.clone(),
            state: state.clone(),
            out: Outputs::new(),
        }))
    }
}

struct OpenedDevice {
    pool: Pool,
    route: Route,
    params: SamplingParams,
    state: State,
    out: Outputs,
}

/// A request's seed, position and draw index.
type Request = (u64, u32, u32);

impl OpenedDevice {
    /// Draws once for each request, from the row that `lines` name.
    fn batch(&mut self, rows: Rows<'_>, lines: &[u32], requests: &[Request]) -> Result<Vec<i32>> {
        if let (Matrix::Host(matrix), false) = (rows.matrix(), lines.is_empty() || self.route == Route::Race)
        {
            // The device's route of probabilities takes no row indices.
            let drawn = lines.iter().zip(requests).map(|(line, request)| {
                let row = matrix.row(*line as usize);
                Ok(self.batch(Rows::logits(row, 1, row.vocab())?, &[], slice::from_ref(request))?[0])
            });
            return drawn.collect();
        }
        let Self { pool, params, state, out, .. } = self;
        let admit = |(seed, position, draw): &Request| {
            let (prompt, output) = (&state.prompt[..], &state.output[..]);
            let (seed, position, draw, mu) = (*seed, *position, *draw, params.initial_mu());
            let state = gumball_engine::State { prompt, output, seed, position, draw, mu };
            pool.resume(params.clone(), state)
        };
        let slots = requests.iter().map(admit).collect::<gumball_engine::Result<Vec<_>>>()?;
        let words = repeated(state.mask.as_deref(), slots.len());
        let masks = masks(&words, slots.len())?;
        pool.step(rows, &Batch { masks, row_indices: lines, ..Batch::of(&slots) }, out)?;
        pool.assign(&Batch::default())?;
        slots.iter().try_for_each(|slot| pool.release(*slot))?;
        Ok(out.tokens().to_vec())
    }
}

impl Opened for OpenedDevice {
    fn draw(&mut self, draw: &Draw<'_>) -> Result<i32> {
        Ok(self.draws(&[*draw])?[0])
    }

    fn draws(&mut self, draws: &[Draw<'_>]) -> Result<Vec<i32>> {
        let mut tokens = Vec::with_capacity(draws.len());
        for run in draws.chunk_by(|a, b| is_same(a.row, b.row)).flat_map(|run| run.chunks(ROWS)) {
            let row = run[0].row;
            let lines = vec![0; run.len()];
            let requests: Vec<_> = run.iter().map(|draw| (draw.seed, draw.position, draw.draw)).collect();
            tokens.extend(self.batch(Rows::logits(row, 1, row.vocab())?, &lines, &requests)?);
        }
        Ok(tokens)
    }

    fn step(&mut self, rows: Rows<'_>, lines: &[u32], seeds: &[u64]) -> Result<Vec<i32>> {
        let position = (self.state.prompt.len() + self.state.output.len()) as u32;
        let requests: Vec<_> = seeds.iter().map(|seed| (*seed, position, 0)).collect();
        self.batch(rows, lines, &requests)
    }
}

/// Returns whether two rows are the same memory.
fn is_same(a: Row<'_>, b: Row<'_>) -> bool {
    match (a, b) {
        (Row::F32(a), Row::F32(b)) => std::ptr::eq(a, b),
        (Row::Bf16(a), Row::Bf16(b)) => std::ptr::eq(a, b),
        (Row::F16(a), Row::F16(b)) => std::ptr::eq(a, b),
        _ => false,
    }
}
