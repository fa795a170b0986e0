//! Many draws of small rows against their law: errors that a hundred million of them show and a test's fifty
//! thousand do not.
//!
//! The rows reach what can go wrong in the race: one tile, several, many, unlikely tokens in a tile, a flat
//! row, and sets that filters left. On the CPU, draws go straight through one workspace, each at a position
//! of its own; on a CUDA device thousands of requests draw in a step, which is replayed while their positions
//! advance on the device.

use gumball_cpu::{History, Level, Prepared, Task, Workspace};
#[cfg(feature = "cuda")]
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, Dtype, Outputs, Place, Pool, PoolConfig, State, Work,
};
use gumball_spec::{Filter, FilterOrder, Result, SamplingParams};

use crate::backend::{Backend, Oracle};
use crate::case::{Case, UNIT};
use crate::law::Law;
use crate::rows;
use crate::statistics::ChiSquare;

/// A row and parameters, under a name.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Its name, which says what it is about.
    pub name: &'static str,
    row: Vec<f32>,
    params: SamplingParams,
}

/// Twelve tokens from likely to rare, in no order.
pub const TWELVE: [f32; 12] = [0.3, -2.0, 1.7, 1.1, -0.4, -4.0, 2.2, 0.9, -1.1, 1.4, -6.0, 0.0];

/// Returns a row of 251 tokens of one tile: one of weight 1, and 250 of 2^-9 at the temperature [`UNIT`].
#[must_use]
pub fn one_among_unlikely() -> Vec<f32> {
    let mut row = vec![-9.0; 251];
    row[100] = 0.0;
    row
}

/// Returns parameters by which one filter keeps 3 to 8 of [`TWELVE`], if it has such a value.
pub(crate) fn cutting(filter: Filter) -> SamplingParams {
    let with = |factor: f64| {
        let plain = SamplingParams { temperature: 0.9, ..Default::default() };
        plain.with_filter(filter, filter.parameter().usual * factor)
    };
    let cuts = |params: &SamplingParams| {
        let case = Case::of(&TWELVE, params.clone());
        Oracle.sample(&case).is_ok_and(|seen| seen.kept.is_some_and(|kept| (3..=8).contains(&kept.len())))
    };
    let doubled = (0..12).map(|n| f64::from(1 << n));
    doubled.flat_map(|factor| [with(factor), with(1.0 / factor)]).find(cuts).unwrap_or(with(1.0))
}

/// Returns the settings.
#[must_use]
pub fn settings() -> Vec<Setting> {
    let plain = || SamplingParams { temperature: 0.9, ..Default::default() };
    let twelve = |name, params| Setting { name, row: TWELVE.to_vec(), params };
    let mixed = SamplingParams {
        top_k: 8,
        typical_p: 0.93,
        top_p: 0.95,
        min_p: 0.06,
        xtc_probability: 0.5,
        xtc_threshold: 0.2,
        ..plain()
    };
    let warm = SamplingParams { temperature: 3.0, ..plain() };
    let unit = SamplingParams { temperature: UNIT, ..plain() };
    let mut settings = vec![
        twelve("12 tokens", plain()),
        twelve("12 tokens, temperature 3", warm),
        Setting { name: "1 among 250 unlikely", row: one_among_unlikely(), params: unit },
        Setting { name: "600 tokens, a bell", row: rows::bell(600, 1.5, 1), params: plain() },
        Setting { name: "4096 tokens, model-like", row: rows::model_like(4096, 2), params: plain() },
        Setting { name: "3000 tokens, flat", row: vec![1.0; 3000], params: plain() },
        twelve("a filter chain with XTC", mixed.clone()),
        twelve("the same, joint", SamplingParams { order: FilterOrder::Joint, ..mixed }),
    ];
    settings.extend(Filter::ALL.map(|filter| twelve(filter.name(), cutting(filter))));
    settings
}

/// How many requests draw side by side on a device.
#[cfg(feature = "cuda")]
const REQUESTS: usize = 4096;

impl Setting {
    /// Returns the row.
    #[cfg(feature = "cuda")]
    pub(crate) fn row(&self) -> &[f32] {
        &self.row
    }

    /// Returns the parameters.
    #[cfg(feature = "cuda")]
    pub(crate) fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Draws from a setting and tests the counts; XTC's two laws give two tests.
    ///
    /// # Errors
    /// The errors of [`Level::check`].
    ///
    /// # Panics
    /// If a token outside the cut was drawn.
    pub fn run(&self, level: Level, seed: u64, draws: u32) -> Result<Vec<ChiSquare>> {
        let law = Law::new(&self.row, &self.params);
        let mut counts = law.counts();
        let prepared = Prepared::new(self.params.clone(), self.row.len())?;
        let history = History::new(&[]);
        let mut workspace = Workspace::new(level)?;
        let mut case = Case::of(&self.row, self.params.clone());
        for position in 0..draws {
            (case.seed, case.position) = (seed, position);
            let task = Task {
                kind: case.kind,
                prepared: &prepared,
                history: &history,
                seed,
                position,
                draw: case.draw,
                mu: case.mu,
                mask: None,
                forced: None,
            };
            counts.add(&case, workspace.sample(case.logits.row(), &task, None)?.token);
        }
        Ok(law.test(&counts).collect())
    }

    /// Tests draws of a device against the law: of many requests, each with a seed of its own from `seed` on,
    /// in a graph that is replayed until there are `draws`.
    ///
    /// # Errors
    /// The errors of the pool.
    ///
    /// # Panics
    /// If a token outside the cut was drawn.
    #[cfg(feature = "cuda")]
    pub fn run_on(&self, device: &Device, seed: u64, draws: u32) -> Result<Vec<ChiSquare>> {
        let law = Law::new(&self.row, &self.params);
        let mut counts = law.counts();
        let mut case = Case::of(&self.row, self.params.clone());
        let (vocab, slots) = (case.vocab(), REQUESTS.min(draws as usize));
        let place = Place::device(device.clone(), slots);
        let mut pool = Pool::new(PoolConfig { slots, place, ..PoolConfig::new(vocab) })?;
        let resume = |seed| {
            let state = State { prompt: &[], output: &[], seed, position: 0, draw: case.draw, mu: case.mu };
            pool.resume(self.params.clone(), state)
        };
        let slots = (seed..).take(slots).map(resume).collect::<Result<Vec<_>>>()?;
        let line = DeviceBuffer::of(device.runtime(), &self.row)?;
        let line = DeviceMatrix::of(&line, Dtype::F32, 0, 1, vocab, vocab)?;
        pool.assign(&Batch { row_indices: &vec![0; slots.len()], ..Batch::of(&slots) })?;
        let graph = pool.capture(&[Work::step(line)])?;
        let mut out = Outputs::new();
        for position in 0..draws.div_ceil(slots.len() as u32) {
            pool.replay(&graph)?;
            pool.fetch(&mut out)?;
            for (seed, token) in (seed..).zip(out.tokens()) {
                (case.seed, case.position) = (seed, position);
                counts.add(&case, *token);
            }
        }
        Ok(law.test(&counts).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::FALSE_ALARM;

    #[test]
    fn every_setting_has_a_law_that_a_few_draws_follow() {
        for setting in settings() {
            let tests = setting.run(Level::Scalar, 3, 20_000).unwrap();
            assert!(!tests.is_empty());
            for test in tests {
                assert!(test.p_value > FALSE_ALARM, "{}: {test:?}", setting.name);
            }
        }
    }
}
