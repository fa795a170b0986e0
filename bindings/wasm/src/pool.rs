//! The pool: the requests in flight, stepped together.

use gumball_engine::{Batch, Outputs, Place, Pool as Engine, PoolConfig, Scored, Sequence, Slot, Widths};
use wasm_bindgen::prelude::*;

use crate::error::Result;
use crate::rows::{Rows, kind};
use crate::state::OwnedState;
use crate::step::{Extras, NAMES};
use crate::values::{
    GivenParams, GivenRows, GivenState, Integers, Number, Options, PoolOptions, RowOptions, ScoreOptions,
    ids, integer, integers,
};
use crate::{outputs, params, state, values};

/// Many sequences, each in a slot that keeps its history and position.
///
/// A sequence is admitted to a slot, stepped with others in any grouping, and released. Which slot it has,
/// and what stands beside it in a batch, changes none of its tokens. All calls run on the caller's thread.
/// `free` gives the pool's memory back at once.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Pool {
    pub(crate) inner: Engine,
    pub(crate) keeps: bool,
    pub(crate) rows: Rows,
    out: Outputs,
}

/// Returns the options of a call with these and the ones that come with rows.
pub fn known<'a>(others: &[&'a str]) -> Vec<&'a str> {
    NAMES.into_iter().chain(others.iter().copied()).collect()
}

/// How many output tokens sequences have, to go back to.
pub type Marks = Vec<(Slot, usize)>;

impl Pool {
    fn sequence(&mut self, slot: &Number) -> Result<&Sequence> {
        Ok(self.inner.sequence(integer(slot, "slot")?)?)
    }

    /// Notes how many output tokens the sequences of slots have.
    pub(crate) fn marks(&mut self, slots: &[Slot]) -> Marks {
        let mut length =
            |slot: &Slot| Some((*slot, self.inner.sequence(*slot).ok()?.history().output().len()));
        slots.iter().filter_map(&mut length).collect()
    }
}

/// Takes back the tokens after the marks if a hook threw.
pub fn settle(pool: &mut Engine, marks: &[(Slot, usize)], hooks: Result<()>) -> Result<()> {
    if hooks.is_err() {
        for (slot, length) in marks {
            let behind = pool.sequence(*slot)?.tokens_behind(*length)?;
            pool.shorten(&[*slot], &[behind])?;
        }
    }
    hooks
}

#[wasm_bindgen]
impl Pool {
    /// Makes an empty pool for rows of `vocab` numbers.
    ///
    /// Throws a GumballError for a value outside its range, and if there is not enough memory for the slots.
    #[wasm_bindgen(constructor)]
    pub fn new(vocab: &Number, options: Option<PoolOptions>) -> Result<Pool> {
        let vocab = values::vocab(vocab)?;
        let options =
            Options::new(options, &["slots", "top_n", "ids", "kept", "watermark", "enforce_all", "route"])?;
        let place = Place::Host { threads: Some(1), level: None };
        let mut config = PoolConfig { place, ..PoolConfig::new(vocab) };
        if let Some(slots) = options.integer("slots")? {
            config.slots = slots;
        }
        config.widths = Widths {
            top_n: options.integer("top_n")?.unwrap_or(0),
            ids: options.integer("ids")?.unwrap_or(0),
        };
        if let Some(route) = options.text("route")? {
            config.route = route.parse()?;
        }
        config.kept = options.truth("kept")?;
        let watermark = options.get("watermark")?;
        config.watermark = watermark.map(|it| params::part(&it, "watermark")).transpose()?;
        config.enforce_all = options.truth("enforce_all")?;
        let keeps = config.kept;
        Ok(Self { inner: Engine::new(config)?, keeps, rows: Rows::default(), out: Outputs::new() })
    }

    /// Admits a request with the ids before its output, and returns its slot.
    ///
    /// Throws a GumballError for a parameter outside its range, two that exclude each other, and if all slots
    /// are taken.
    pub fn admit(&mut self, params: &GivenParams, prompt: Option<Integers>) -> Result<i32> {
        Ok(self.inner.admit(params::seeded(params)?, &ids(prompt, "prompt")?)?)
    }

    /// Takes up a sequence where it was left, here or anywhere, and returns its slot. The seed is the
    /// state's.
    pub fn resume(&mut self, params: &GivenParams, state: &GivenState) -> Result<i32> {
        let state = OwnedState::read(state)?;
        Ok(self.inner.resume(params::seeded(params)?, state.state())?)
    }

    /// Copies a sequence to a slot of its own, under another draw index, and returns that slot.
    ///
    /// For n samples of one request: admit it, fork it under 1, 2, .. n - 1, and let all read one row by
    /// `row_indices`.
    pub fn fork(&mut self, slot: &Number, draw: &Number) -> Result<i32> {
        Ok(self.inner.fork(integer(slot, "slot")?, integer(draw, "draw")?)?)
    }

    /// Ends a sequence; its slot is vacant then.
    pub fn release(&mut self, slot: &Number) -> Result<()> {
        Ok(self.inner.release(integer(slot, "slot")?)?)
    }

    /// Appends a token that was chosen elsewhere.
    pub fn push(&mut self, slot: &Number, id: &Number) -> Result<()> {
        Ok(self.inner.push(integer(slot, "slot")?, integer(id, "id")?)?)
    }

    /// Takes the last tokens of sequences away: `counts[i]` of the one in `slots[i]`.
    pub fn shorten(&mut self, slots: &Integers, counts: &Integers) -> Result<()> {
        let counts: Vec<u32> = integers(counts, "counts")?;
        let counts: Vec<usize> = counts.into_iter().map(|count| count as usize).collect();
        Ok(self.inner.shorten(&integers(slots, "slots")?, &counts)?)
    }

    /// Draws a token for each slot from its row, and appends it to the sequence there.
    ///
    /// `logits`: as many rows as slots, one after the other, or any number with `row_indices`. `slots`: -1
    /// for a row that yields nothing; no other slot twice.
    ///
    /// Throws a GumballError for a shape, type, slot or id that does not fit, and a hook's exception. No
    /// sequence has changed then.
    #[wasm_bindgen(unchecked_return_type = "Outputs")]
    pub fn step(
        &mut self,
        logits: &GivenRows,
        slots: &Integers,
        options: Option<RowOptions>,
    ) -> Result<JsValue> {
        let options = Options::new(options, &known(&["kind", "dtype"]))?;
        let (slots, kind) = (integers::<Slot>(slots, "slots")?, kind(&options)?);
        self.rows.copy(logits, &options, "logits")?;
        let marks = self.marks(&slots);
        let Self { inner, rows, out, .. } = self;
        let rows = rows.rows(inner.vocab(), kind, "logits")?;
        let extras = Extras::read(&options, rows.matrix().rows())?;
        let hooks = extras.with(|of_rows| inner.step(rows, &Batch { slots: &slots, ..*of_rows }, out))?;
        settle(inner, &marks, hooks)?;
        Ok(outputs::outputs(&self.out, self.keeps))
    }

    /// Returns the logprobs of known tokens, as of a prompt: row i scores `ids[start + i]`. No slot changes.
    /// `params.logprobs` says what is reported; raw logprobs without it.
    #[wasm_bindgen(unchecked_return_type = "Outputs")]
    pub fn score(
        &mut self,
        logits: &GivenRows,
        params: &GivenParams,
        ids: &Integers,
        options: Option<ScoreOptions>,
    ) -> Result<JsValue> {
        let names = ["prompt_len", "start", "masks", "mask_present", "hooks", "kind", "dtype"];
        let options = Options::new(options, &names)?;
        let (params, ids) = (params::read(params)?, integers::<u32>(ids, "ids")?);
        let prompt_len = options.integer("prompt_len")?.unwrap_or(ids.len());
        let start = options.integer("start")?.unwrap_or(1);
        self.rows.copy(logits, &options, "logits")?;
        let Self { inner, rows, out, .. } = self;
        let rows = rows.rows(inner.vocab(), kind(&options)?, "logits")?;
        let scored = Scored { params: &params, ids: &ids, prompt_len, start, chunk_rows: None };
        Extras::read(&options, rows.matrix().rows())?
            .with(|of_rows| inner.score(rows, of_rows, &scored, out))??;
        Ok(outputs::outputs(&self.out, self.keeps))
    }

    /// Returns a sequence's state, for `resume`.
    #[wasm_bindgen(unchecked_return_type = "State")]
    pub fn state(&mut self, slot: &Number) -> Result<JsValue> {
        Ok(state::to_js(self.sequence(slot)?))
    }

    /// Returns the ids that a slot has generated so far.
    pub fn output(&mut self, slot: &Number) -> Result<Vec<u32>> {
        Ok(self.sequence(slot)?.history().output().to_vec())
    }

    /// How many sequences are in flight.
    #[wasm_bindgen(getter)]
    pub fn length(&self) -> usize {
        self.inner.len()
    }

    /// The number of ids in the vocabulary.
    #[wasm_bindgen(getter)]
    pub fn vocab(&self) -> usize {
        self.inner.vocab()
    }
}
