//! The sampler: one sequence, its state and its stages in one object.

use gumball_engine::{Sampler as Engine, StepOptions, Token, TokenLogprob};
use wasm_bindgen::prelude::*;

use crate::error::{Failure, Result};
use crate::rows::{Rows, kind};
use crate::state::OwnedState;
use crate::values::{
    DtypeOptions, GivenParams, GivenRows, GivenState, Integers, Number, Options, RouteOptions, SampleOptions,
    SamplerOptions, ids, integer, integers, object, truth,
};
use crate::{hooks, params, state, values};

/// Chooses the tokens of one sequence, and keeps its history.
///
/// Each `sample` appends the token to the history and advances the position; a row without a token changes
/// nothing. Neither the tokens nor their logprobs depend on the machine. `free` gives its memory back at
/// once; otherwise that happens some time after nothing refers to it any more.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Sampler {
    inner: Engine,
    last: Option<Token>,
    /// Whether the engine's last row is one whose hook failed, of which nothing may be told.
    discarded: bool,
    row: Rows,
}

impl Sampler {
    fn of(inner: Engine) -> Self {
        Self { inner, last: None, discarded: false, row: Rows::default() }
    }

    fn made(inner: Engine, options: &Options) -> Result<Self> {
        Ok(Self::of(match options.text("route")?.as_deref() {
            None | Some("race") => inner,
            #[cfg(feature = "whole")]
            Some(route) => inner.with_route(route.parse()?)?,
            #[cfg(not(feature = "whole"))]
            Some(route) => return Err(Failure::unknown("route", route, &["race"])),
        }))
    }
}

/// Reads words of bitmasks: of a Uint32Array or an Int32Array, or numbers.
pub fn words(mask: &JsValue, name: &str) -> Result<Vec<u32>> {
    if let Some(mask) = mask.dyn_ref::<js_sys::Int32Array>() {
        return Ok(mask.to_vec().iter().map(|word| *word as u32).collect());
    }
    if mask.dyn_ref::<js_sys::Uint32Array>().is_some() || js_sys::Array::is_array(mask) {
        return integers(mask, name);
    }
    Err(Failure::wrong_type(name, mask, "a Uint32Array or an Int32Array of 32 ids a word"))
}

#[wasm_bindgen]
impl Sampler {
    /// Makes a sampler for rows of `vocab` numbers. Without a seed in `params` a fresh one is drawn.
    ///
    /// Throws a GumballError for a parameter outside its range, two that exclude each other, and a name that
    /// is not known.
    #[wasm_bindgen(constructor)]
    pub fn new(params: &GivenParams, vocab: &Number, options: Option<SamplerOptions>) -> Result<Sampler> {
        let options = Options::new(options, &["prompt", "draw", "route"])?;
        let (vocab, params) = (values::vocab(vocab)?, params::seeded(params)?);
        let inner = Engine::new(params, vocab)?;
        let inner = inner.with_prompt(&options.ids("prompt")?);
        Self::made(inner.with_draw(options.integer("draw")?.unwrap_or(0)), &options)
    }

    /// Continues a sequence from the state of another sampler or pool, here or anywhere. The seed is the
    /// state's.
    ///
    /// Throws as the constructor does, and if the state's `mu` is NaN or infinite.
    pub fn resume(
        params: &GivenParams,
        vocab: &Number,
        state: &GivenState,
        options: Option<RouteOptions>,
    ) -> Result<Sampler> {
        let options = Options::new(options, &["route"])?;
        let state = OwnedState::read(state)?;
        let (vocab, params) = (values::vocab(vocab)?, params::seeded(params)?);
        let inner = Engine::new(params, vocab)?;
        Self::made(inner.with_state(state.state())?, &options)
    }

    /// Draws the next token from a row of logits or probabilities and appends it. Returns undefined if no
    /// logit is above -Infinity, or no probability above 0.
    ///
    /// Throws a GumballError for a row of another length or type and for a forced id outside the vocabulary;
    /// for probabilities with a hook or parameters that speak of logits (a temperature other than 0 and 1,
    /// penalties, biases, top_n_sigma, a dynamic temperature); and the hook's exception. The sequence has
    /// not changed then. A hook must not use this sampler.
    pub fn sample(&mut self, logits: &GivenRows, options: Option<SampleOptions>) -> Result<Option<u32>> {
        let options = Options::new(options, &["mask", "forced", "hook", "kind", "dtype"])?;
        let kind = kind(&options)?;
        self.row.copy(logits, &options, "logits")?;
        let mask: Option<Vec<u32>> = options.get("mask")?.map(|mask| words(&mask, "mask")).transpose()?;
        let forced = options.integer("forced")?;
        let hook = options.get("hook")?.map(|hook| hooks::read(&hook, "hook")).transpose()?;
        let (before, mut failure) = (self.inner.history().output().len(), None);
        let mut edit = hook.map(|hook| {
            let failure = &mut failure;
            move |row: &mut [f32]| {
                if failure.is_none() {
                    *failure = hooks::run(&hook, row).err();
                }
            }
        });
        let step =
            StepOptions { kind, mask: mask.as_deref(), forced, hook: edit.as_mut().map(|edit| edit as _) };
        let drawn = self.inner.sample_with(self.row.row(), step);
        drop(edit);
        let renamed = |name| if name == "mask's words" { "mask" } else { name };
        let token = drawn.map_err(|error| error.with_parameter(renamed))?;
        self.discarded = failure.is_some();
        if let Some(failure) = failure {
            self.last = None;
            self.inner.shorten(self.inner.history().output().len() - before)?;
            return Err(failure);
        }
        self.last = Some(token);
        Ok(token.id)
    }

    /// Draws `n` tokens from one row of logits under the draw indices 0 to n - 1, and appends none of them.
    /// Returns an id for each; -1 where the row has no token.
    pub fn sample_n(
        &mut self,
        logits: &GivenRows,
        n: &Number,
        options: Option<DtypeOptions>,
    ) -> Result<Vec<i32>> {
        self.row.copy(logits, &Options::new(options, &["dtype"])?, "logits")?;
        let tokens = self.inner.sample_n(self.row.row(), integer(n, "n")?)?;
        self.last = tokens.last().copied().or(self.last);
        self.discarded &= tokens.is_empty();
        Ok(tokens.iter().map(|token| token.id.map_or(-1, |id| id as i32)).collect())
    }

    /// Appends a token that was chosen elsewhere.
    pub fn push(&mut self, id: &Number) -> Result<()> {
        self.inner.push(integer(id, "id")?);
        Ok(())
    }

    /// Takes back the last `count` output tokens. Throws a GumballError if there are fewer.
    pub fn shorten(&mut self, count: &Number) -> Result<()> {
        Ok(self.inner.shorten(integer(count, "count")?)?)
    }

    /// Starts over after a prompt, with the same parameters, seed and draw index.
    pub fn reset(&mut self, prompt: Option<Integers>) -> Result<()> {
        self.inner.reset(&ids(prompt, "prompt")?);
        Ok(())
    }

    /// Returns a sampler with the same state and another draw index.
    pub fn fork(&self, draw: &Number) -> Result<Sampler> {
        Ok(Self::of(self.inner.fork(integer(draw, "draw")?)?))
    }

    /// Asks for the kept set of every row from now on, or for none; it costs a sort of that set.
    ///
    /// Throws a GumballError for anything but true and false.
    pub fn collect_kept(
        &mut self,
        #[wasm_bindgen(unchecked_param_type = "boolean")] on: &JsValue,
    ) -> Result<()> {
        self.inner.collect_kept(truth(on, "on")?);
        Ok(())
    }

    /// The state that the next token depends on besides its row and the parameters, for `resume`.
    #[wasm_bindgen(getter, unchecked_return_type = "State")]
    pub fn state(&self) -> JsValue {
        state::to_js(self.inner.sequence())
    }

    /// The ids generated so far.
    #[wasm_bindgen(getter)]
    pub fn output(&self) -> Vec<u32> {
        self.inner.history().output().to_vec()
    }

    /// The seed in use: the parameters' seed, or the fresh one that was drawn in its place.
    #[wasm_bindgen(getter)]
    pub fn seed(&self) -> u64 {
        self.inner.seed()
    }

    /// The number of logits in a row.
    #[wasm_bindgen(getter)]
    pub fn vocab(&self) -> usize {
        self.inner.sequence().vocab()
    }

    /// The lanes in use: "simd128".
    #[wasm_bindgen(getter)]
    pub fn level(&self) -> String {
        self.inner.level().name().to_owned()
    }

    /// The bits of `Status` of the last row; 0 before the first.
    #[wasm_bindgen(getter)]
    pub fn status(&self) -> u32 {
        self.last.map_or(0, |token| token.status.0)
    }

    /// The temperature of the last row; 0 if greedy, or before the first row.
    #[wasm_bindgen(getter)]
    pub fn temperature(&self) -> f32 {
        self.last.map_or(0.0, |token| token.temperature)
    }

    /// The logprobs of the last row; undefined if the parameters ask for none, and after a hook that threw.
    #[wasm_bindgen(getter, unchecked_return_type = "Logprobs | undefined")]
    pub fn logprobs(&self) -> JsValue {
        let Some(found) = self.inner.logprobs().filter(|_| !self.discarded) else {
            return JsValue::UNDEFINED;
        };
        let one = |it: &TokenLogprob| {
            object([("id", it.id.into()), ("logprob", it.logprob.into()), ("rank", it.rank.into())])
        };
        let all = |list: &[TokenLogprob]| JsValue::from(list.iter().map(one).collect::<js_sys::Array>());
        let (top, ids, second) = (all(&found.top), all(&found.ids), found.second.into());
        object([("token", one(&found.token)), ("top", top), ("ids", ids), ("second", second)])
    }

    /// The ids that the filters kept of the last row, in the order of tokens; empty unless `collect_kept`
    /// asked for them before it.
    #[wasm_bindgen(getter)]
    pub fn kept(&self) -> Vec<u32> {
        if self.discarded { Vec::new() } else { self.inner.kept().to_vec() }
    }
}
