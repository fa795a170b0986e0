//! The sampler: one sequence, its state and its stages in one object.

use gumball_engine::{Kind, Sampler as Engine, StepOptions, Token, TokenLogprob};
use wasm_bindgen::prelude::*;

use crate::error::{Failure, Result};
use crate::rows::Rows;
use crate::state::OwnedState;
use crate::values::{Options, integer, integers, is_absent, object, truth};
use crate::{hooks, params, state};

/// Chooses the tokens of one sequence, and keeps its history.
///
/// Each `sample` appends the token to the history and advances the position; a row without a token changes nothing. Neither the
/// tokens nor their logprobs depend on the machine. `free` gives its memory back at once; otherwise that happens some time after
/// nothing refers to it any more.
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

    fn made(inner: Engine, options: &Options<'_>) -> Result<Self> {
        let mut inner = inner;
        if let Some(route) = options.text("route")? {
            inner = match &*route {
                "race" => inner,
                #[cfg(feature = "whole")]
                _ => inner.with_route(route.parse()?)?,
                #[cfg(not(feature = "whole"))]
                _ => return Err(Failure::unknown("route", &route, &["race"])),
            };
        }
        Ok(Self::of(inner))
    }

    fn draw(&mut self, row: &JsValue, name: &str, options: &Options<'_>, kind: Kind) -> Result<Option<u32>> {
        self.row.copy(row, options, name)?;
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
            self.inner.truncate(before)?;
            return Err(failure);
        }
        self.last = Some(token);
        Ok(token.id)
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
    /// Makes a sampler for rows of `vocab` logits.
    ///
    /// Without a seed in `params` a fresh one is drawn. Options: `prompt`, the ids before the output; `draw`, the draw index, 0;
    /// `route`, "race".
    ///
    /// Throws a GumballError for a parameter outside its range, two that exclude each other, and a name that is not known.
    #[wasm_bindgen(constructor)]
    pub fn new(
        #[wasm_bindgen(unchecked_param_type = "SamplingParams")] params: &JsValue,
        #[wasm_bindgen(unchecked_param_type = "number")] vocab: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "SamplerOptions")] options: &JsValue,
    ) -> Result<Sampler> {
        let options = Options::new(options, &["prompt", "draw", "route"])?;
        let inner = Engine::new(params::seeded(params)?, integer(vocab, "vocab")?)?;
        let inner = inner.with_prompt(&options.ids("prompt")?);
        Self::made(inner.with_draw(options.integer("draw")?.unwrap_or(0)), &options)
    }

    /// Continues a sequence from the state of another sampler or pool, here or anywhere. The seed is the state's.
    ///
    /// Options: `route`, as of the constructor. Throws as the constructor does, and if the state's `mu` is NaN or infinite.
    pub fn resume(
        #[wasm_bindgen(unchecked_param_type = "SamplingParams")] params: &JsValue,
        #[wasm_bindgen(unchecked_param_type = "number")] vocab: &JsValue,
        #[wasm_bindgen(unchecked_param_type = "Partial<State>")] state: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "{ route?: string }")] options: &JsValue,
    ) -> Result<Sampler> {
        let options = Options::new(options, &["route"])?;
        let state = OwnedState::read(state)?;
        let inner = Engine::new(params::seeded(params)?, integer(vocab, "vocab")?)?;
        Self::made(inner.with_state(state.state())?, &options)
    }

    /// Draws the next token from a row of logits and appends it. Returns undefined if no logit is above -Infinity.
    ///
    /// Options: `mask`, a bitmask whose bit `id % 32` of word `id / 32` allows an id, missing words forbid; `forced`, the id to
    /// emit whatever is drawn; `hook`, a function that changes a copy of the row in its place, after penalties and biases and before
    /// the bans; `dtype`, "bfloat16" or "float16", for rows in a Uint16Array.
    ///
    /// Throws a GumballError for a row of another length or type and for a forced id outside the vocabulary, and whatever the hook
    /// throws. The sequence has not changed then. A hook must not use this sampler.
    pub fn sample(
        &mut self,
        #[wasm_bindgen(unchecked_param_type = "Rows")] logits: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "SampleOptions")] options: &JsValue,
    ) -> Result<Option<u32>> {
        let options = Options::new(options, &["mask", "forced", "hook", "dtype"])?;
        self.draw(logits, "logits", &options, Kind::Logits)
    }

    /// Draws the next token from a row of probabilities, which need not sum to 1, and appends it. Returns undefined if none is above
    /// 0.
    ///
    /// Options: those of `sample` without `hook`. Throws as `sample` does, and for parameters that speak of logits: a temperature
    /// other than 0 and 1, penalties, biases, top_n_sigma, a dynamic temperature.
    pub fn sample_probabilities(
        &mut self,
        #[wasm_bindgen(unchecked_param_type = "Rows")] probabilities: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "Omit<SampleOptions, \"hook\">")] options: &JsValue,
    ) -> Result<Option<u32>> {
        let options = Options::new(options, &["mask", "forced", "dtype"])?;
        self.draw(probabilities, "probabilities", &options, Kind::Probabilities)
    }

    /// Draws `n` tokens from one row under the draw indices 0 to n - 1, and appends none of them.
    ///
    /// Options: `dtype`. Returns an id for each draw; -1 where the row has no token.
    pub fn sample_n(
        &mut self,
        #[wasm_bindgen(unchecked_param_type = "Rows")] logits: &JsValue,
        #[wasm_bindgen(unchecked_param_type = "number")] n: &JsValue,
        #[wasm_bindgen(unchecked_optional_param_type = "{ dtype?: Dtype }")] options: &JsValue,
    ) -> Result<Vec<i32>> {
        self.row.copy(logits, &Options::new(options, &["dtype"])?, "logits")?;
        let tokens = self.inner.sample_n(self.row.row(), integer(n, "n")?)?;
        self.last = tokens.last().copied().or(self.last);
        self.discarded &= tokens.is_empty();
        Ok(tokens.iter().map(|token| token.id.map_or(-1, |id| id as i32)).collect())
    }

    /// Appends a token that was chosen elsewhere.
    pub fn push(&mut self, #[wasm_bindgen(unchecked_param_type = "number")] id: &JsValue) -> Result<()> {
        self.inner.push(integer(id, "id")?);
        Ok(())
    }

    /// Goes back to the state after `output_len` output tokens. Throws a GumballError if there are fewer.
    pub fn truncate(
        &mut self,
        #[wasm_bindgen(unchecked_param_type = "number")] output_len: &JsValue,
    ) -> Result<()> {
        Ok(self.inner.truncate(integer(output_len, "output_len")?)?)
    }

    /// Starts over after a prompt, with the same parameters, seed and draw index.
    pub fn reset(
        &mut self,
        #[wasm_bindgen(unchecked_optional_param_type = "Integers")] prompt: &JsValue,
    ) -> Result<()> {
        let prompt = if is_absent(prompt) { Vec::new() } else { integers(prompt, "prompt")? };
        self.inner.reset(&prompt);
        Ok(())
    }

    /// Returns a sampler with the same state and another draw index.
    pub fn fork(&self, #[wasm_bindgen(unchecked_param_type = "number")] draw: &JsValue) -> Result<Sampler> {
        Ok(Self::of(self.inner.fork(integer(draw, "draw")?)?))
    }

    /// Asks for the kept set of every row from now on, or for none; it costs a sort of that set.
    ///
    /// Throws a GumballError for anything but true and false.
    pub fn keep_ids(&mut self, #[wasm_bindgen(unchecked_param_type = "boolean")] on: &JsValue) -> Result<()> {
        self.inner.keep_ids(truth(on, "on")?);
        Ok(())
    }

    /// What the next token depends on besides its row and the parameters, for `resume`.
    #[wasm_bindgen(getter, unchecked_return_type = "State")]
    pub fn state(&self) -> JsValue {
        state::to_js(self.inner.sequence())
    }

    /// The ids of prompt and output.
    #[wasm_bindgen(getter)]
    pub fn history(&self) -> Vec<u32> {
        self.inner.history().ids().to_vec()
    }

    /// The ids generated so far.
    #[wasm_bindgen(getter)]
    pub fn output(&self) -> Vec<u32> {
        self.inner.history().output().to_vec()
    }

    /// The number of tokens before the next one, modulo 2^32.
    #[wasm_bindgen(getter)]
    pub fn position(&self) -> u32 {
        self.inner.position()
    }

    /// The seed in use: that of the parameters, or the fresh one that was drawn in its place.
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

    /// Mirostat's limit for the next token, in bits; 0 without mirostat.
    #[wasm_bindgen(getter)]
    pub fn mu(&self) -> f32 {
        self.inner.sequence().mu()
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
        object([("token", one(&found.token)), ("top", all(&found.top)), ("ids", all(&found.ids))])
    }

    /// The ids that the filters kept of the last row, in the order of tokens; empty unless `keep_ids` asked for them before it.
    #[wasm_bindgen(getter)]
    pub fn kept(&self) -> Vec<u32> {
        if self.discarded { Vec::new() } else { self.inner.kept().to_vec() }
    }
}
