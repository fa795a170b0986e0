//! The subject of a check: any way from logits to tokens.

use gumball_engine::unstable::{Prepared, Stages, Task};
use gumball_engine::{
    Batch, History, Level, Masks, Outputs, Place, Pool, PoolConfig, Route, Row, Rows, SamplingParams, Widths,
};

use crate::Result;
use crate::state::State;

/// One draw of a subject.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// The row.
    pub row: Row<'a>,
    /// The seed.
    pub seed: u64,
    /// The number of tokens before the drawn one.
    pub position: u32,
    /// The draw index.
    pub draw: u32,
}

/// A way from logits to tokens.
pub trait Subject {
    /// Returns what it is called.
    fn name(&self) -> String;

    /// Makes it ready for some parameters.
    ///
    /// # Errors
    /// The error in the parameters.
    fn open(&self, params: &SamplingParams, state: &State, vocab: usize) -> Result<Box<dyn Opened>>;
}

/// A subject that is ready to draw.
pub trait Opened {
    /// Draws one token.
    ///
    /// # Errors
    /// The subject's error.
    fn draw(&mut self, draw: &Draw<'_>) -> Result<i32>;

    /// Draws many tokens, each as [`Opened::draw`] does.
    ///
    /// # Errors
    /// The subject's error.
    fn draws(&mut self, draws: &[Draw<'_>]) -> Result<Vec<i32>> {
        draws.iter().map(|draw| self.draw(draw)).collect()
    }

    /// Draws from the rows that `lines` name, one per seed, in one step of a pool with a slot for each.
    ///
    /// Every sequence is at the state the subject was opened with.
    ///
    /// # Errors
    /// The subject's error.
    fn step(&mut self, rows: Rows<'_>, lines: &[u32], seeds: &[u64]) -> Result<Vec<i32>>;
}

/// The engine: a route at a level.
#[derive(Clone, Debug)]
pub struct Engine {
    /// The route.
    pub route: Route,
    /// The level.
    pub level: Level,
}

impl Subject for Engine {
    fn name(&self) -> String {
        format!("route {} at level {}", self.route, self.level)
    }

    fn open(&self, params: &SamplingParams, state: &State, vocab: usize) -> Result<Box<dyn Opened>> {
        let mut history = History::new(&state.prompt);
        state.output.iter().for_each(|id| history.push(*id));
        let prepared = Prepared::new(params.clone(), vocab)?;
        let stages = self.route.open(self.level)?;
        Ok(Box::new(OpenedEngine {
            engine: self.clone(),
            prepared,
            history,
            mask: state.mask.clone(),
            stages,
        }))
    }
}

struct OpenedEngine {
    engine: Engine,
    prepared: Prepared,
    history: History,
    mask: Option<Vec<u32>>,
    stages: Box<dyn Stages>,
}

impl Opened for OpenedEngine {
    fn draw(&mut self, draw: &Draw<'_>) -> Result<i32> {
        let task = Task {
            kind: gumball_spec::Kind::Logits,
            prepared: &self.prepared,
            history: &self.history,
            seed: draw.seed,
            position: draw.position,
            draw: draw.draw,
            mu: self.prepared.params().initial_mu(),
            mask: self.mask.as_deref(),
            forced: None,
        };
        Ok(self.stages.sample(draw.row, &task, None)?.token)
    }

    fn step(&mut self, rows: Rows<'_>, lines: &[u32], seeds: &[u64]) -> Result<Vec<i32>> {
        let widths = Widths::of(self.prepared.params().logprobs.as_ref());
        let config = PoolConfig {
            slots: seeds.len(),
            place: Place::Host { threads: None, level: Some(self.engine.level) },
            widths,
            route: self.engine.route.clone(),
            ..PoolConfig::new(rows.matrix().width())
        };
        let mut pool = Pool::new(config)?;
        let mut slots = Vec::new();
        for seed in seeds {
            let params = SamplingParams { seed: Some(*seed), ..self.prepared.params().clone() };
            let slot = pool.admit(params, self.history.prompt())?;
            self.history.output().iter().try_for_each(|id| pool.push(slot, *id))?;
            slots.push(slot);
        }
        let words = repeated(self.mask.as_deref(), seeds.len());
        let masks = masks(&words, seeds.len())?;
        let mut out = Outputs::new();
        pool.step(rows, &Batch { masks, row_indices: lines, ..Batch::of(&slots) }, &mut out)?;
        Ok(out.tokens().to_vec())
    }
}

/// Returns a mask's words once for each row; none without a mask.
pub(super) fn repeated(mask: Option<&[u32]>, rows: usize) -> Vec<u32> {
    // A mask without words forbids all ids, as one of a zero word does.
    mask.map_or_else(Vec::new, |mask| if mask.is_empty() { vec![0; rows] } else { mask.repeat(rows) })
}

/// Returns what [`repeated`] made as masks.
pub(super) fn masks(words: &[u32], rows: usize) -> Result<Masks<'_>> {
    match words.len() / rows.max(1) {
        0 => Ok(Masks::None),
        width => Ok(Masks::new(words, rows, width, width)?),
    }
}
