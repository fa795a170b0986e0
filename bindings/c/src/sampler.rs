//! The sampler: draws the tokens of one sequence, row by row.

use std::ffi::{c_char, c_void};
use std::mem::{MaybeUninit, offset_of};
use std::ptr;

use gumball_engine::{NONE, StepOptions as RowOptions};

use crate::error::{Code, Failure, Result};
use crate::ffi::{call, call_or, end, make, optional_text, out_slice, require, slice};
use crate::logits::read_row;
use crate::options::{StepOptions, read_options};
use crate::params::Params;
use crate::state::{State, read_state};
use crate::versioned::{VersionedStruct, read, write};

/// Chooses the tokens of one sequence, and keeps its history.
#[derive(Debug)]
pub struct Sampler {
    inner: gumball_engine::Sampler,
    /// The logprobs that C asked for last; C holds a pointer to them.
    logprobs: Vec<TokenLogprob>,
}

/// What a sampler is made for.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SamplerConfig {
    /// sizeof(gumball_sampler_config).
    pub struct_size: usize,
    /// The number of ids in the vocabulary, in 1..=2^20.
    pub vocab: usize,
    /// The way to the tokens: race, oracle, probabilities, or one that was registered; NULL: race.
    pub route: *const c_char,
    /// The SIMD level, by its name; NULL: the machine's best. The tokens are the same.
    pub level: *const c_char,
    /// The draw index, which tells sequences of the same seed and history apart.
    pub draw: u32,
    /// Above 0: every row's kept set is collected, at the cost of a sort.
    pub keep_ids: u32,
}

// SAFETY: it is repr(C), begins with `struct_size`, and holds only numbers and raw pointers, valid for all
// bytes.
unsafe impl VersionedStruct for SamplerConfig {
    const NAME: &'static str = "gumball_sampler_config";
    const LEAST: usize = offset_of!(Self, keep_ids) + size_of::<u32>();
}

/// What came out of a row. This struct stays as it is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Token {
    /// The id; -1 if no token was above -inf and none was forced.
    pub id: i32,
    /// Bits of gumball_status.
    pub status: u32,
    /// The temperature in use; 0 if greedy.
    pub temperature: f32,
    /// The id's logprob; -inf if the parameters ask for none.
    pub logprob: f32,
    /// Its rank, from 1; 0 if the parameters ask for none, or it is no member.
    pub rank: u32,
}

/// A token with its logprob. This struct stays as it is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TokenLogprob {
    /// The token; -1 where there is no further member.
    pub id: i32,
    /// Its natural log probability; -inf for a token that is no member.
    pub logprob: f32,
    /// Its place in the order of the mode, from 1; 0 for a token that is no member.
    pub rank: u32,
}

impl From<gumball_engine::Token> for Token {
    fn from(token: gumball_engine::Token) -> Self {
        let (logprob, rank) =
            token.logprob.map_or((f32::NEG_INFINITY, 0), |logprob| (logprob.logprob, logprob.rank));
        let id = token.id.map_or(NONE, |id| id as i32);
        Self { id, status: token.status.0, temperature: token.temperature, logprob, rank }
    }
}

/// Makes a sampler from a config, and from a state if there is one.
///
/// # Safety
/// `config` is NULL or a struct with the size it states, whose texts are NULL or end with a NUL.
unsafe fn open(
    params: Option<&Params>,
    config: *const SamplerConfig,
    state: Option<gumball_engine::State<'_>>,
) -> Result<Sampler> {
    let mut params = require("params", params)?.inner.clone();
    // SAFETY: the caller ensures that `config` is NULL or points to the bytes that its `struct_size` names.
    let config = unsafe { read("config", config) }?;
    // SAFETY: the caller ensures that `route` is NULL or ends with a NUL.
    let route = unsafe { optional_text("route", config.route) }?;
    // SAFETY: the caller ensures that `level` is NULL or ends with a NUL.
    let level = unsafe { optional_text("level", config.level) }?;
    if let Some(state) = state {
        params.seed = Some(state.seed);
    }
    let mut sampler = gumball_engine::Sampler::new(params, config.vocab)?;
    if let Some(level) = level {
        sampler = sampler.with_level(level.parse()?)?;
    }
    if let Some(route) = route {
        sampler = sampler.with_route(route.parse()?)?;
    }
    sampler = sampler.with_draw(config.draw);
    if let Some(state) = state {
        sampler = sampler.with_state(state)?;
    }
    sampler.keep_ids(config.keep_ids != 0);
    Ok(Sampler { inner: sampler, logprobs: Vec::new() })
}

/// Makes a sampler with an empty history; gumball_sampler_reset gives it a prompt. It keeps a copy of the parameters. NULL
/// after an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_sampler_new(
    params: Option<&Params>,
    config: *const SamplerConfig,
) -> Option<Box<Sampler>> {
    // SAFETY: the C caller ensures that `config` is NULL or a struct of its stated size, whose texts end with
    // a NUL.
    make(|| unsafe { open(params, config, None) })
}

/// Makes a sampler that takes up a sequence where another sampler or pool left it; seed and draw index are the state's. NULL
/// after an error.
///
/// With mirostat, the sequence cannot be truncated behind the state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_sampler_resume(
    params: Option<&Params>,
    config: *const SamplerConfig,
    state: *const State,
) -> Option<Box<Sampler>> {
    make(|| {
        // SAFETY: the C caller ensures that `state` is NULL or a struct of its stated size, whose lists have
        // the lengths it names.
        let state = unsafe { read_state(state) }?;
        // SAFETY: the C caller ensures that `config` is NULL or a struct of its stated size, whose texts end
        // with a NUL.
        unsafe { open(params, config, Some(state)) }
    })
}

/// Makes a sampler with the same state and another draw index. NULL after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_sampler_fork(sampler: Option<&Sampler>, draw: u32) -> Option<Box<Sampler>> {
    make(|| {
        let inner = require("sampler", sampler)?.inner.fork(draw)?;
        Ok(Sampler { inner, logprobs: Vec::new() })
    })
}

/// Ends a sampler. NULL is fine.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_sampler_free(sampler: Option<Box<Sampler>>) {
    end(sampler);
}

/// Draws the next token from a row and appends it to the history; an empty row changes nothing.
///
/// `logits`: `vocab` elements of `dtype` in host memory; probabilities if the `kind` of the options says so. `options`: masks,
/// forced token and hook of this one row, or NULL; rows of probabilities have no hook. A forced token is emitted even if it is banned; its logprob is the one that it would have had.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_sampler_sample(
    sampler: Option<&mut Sampler>,
    logits: *const c_void,
    dtype: i32,
    vocab: usize,
    options: *const StepOptions,
    token: Option<&mut MaybeUninit<Token>>,
) -> Code {
    call(|| {
        let (sampler, token) = (require("sampler", sampler)?, require("token", token)?);
        // SAFETY: the C caller ensures that `logits` has `vocab` elements of the type `dtype`.
        let row = unsafe { read_row("logits", logits, dtype, vocab) }?;
        // SAFETY: the C caller ensures that `options` is NULL or a struct of its stated size, whose lists
        // have one element.
        let options = unsafe { read_options(options, 1) }?;
        if options.row_indices.is_some() {
            return Err(Failure::out_of_range(
                "row_indices",
                "a list",
                "NULL: a sampler is given the one row it reads",
            ));
        }
        let sampled = options.with(|batch| {
            let mut edit = batch.hooks.first().copied().flatten().map(|hook| |row: &mut [f32]| hook(row));
            let with = RowOptions {
                mask: options.first_mask(),
                forced: batch.forced.first().copied().flatten(),
                kind: options.kind,
                hook: edit.as_mut().map(|edit| edit as _),
            };
            Ok(sampler.inner.sample_with(row, with)?)
        });
        token.write(sampled?.into());
        Ok(())
    })
}

/// Draws `n` tokens from one row of logits, under the draw indices 0..n, and appends none: `tokens` has `n` places.
///
/// They are what `n` sequences would draw, independent, repeats included. gumball_sampler_push appends one of them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_sampler_sample_n(
    sampler: Option<&mut Sampler>,
    logits: *const c_void,
    dtype: i32,
    vocab: usize,
    n: u32,
    tokens: *mut Token,
) -> Code {
    call(|| {
        let sampler = require("sampler", sampler)?;
        // SAFETY: the C caller ensures that `logits` has `vocab` elements of the type `dtype`.
        let row = unsafe { read_row("logits", logits, dtype, vocab) }?;
        // SAFETY: the C caller ensures that `tokens` has memory for `n` tokens.
        let tokens = unsafe { out_slice("tokens", tokens, n as usize) }?;
        for (place, token) in tokens.iter_mut().zip(sampler.inner.sample_n(row, n)?) {
            place.write(token.into());
        }
        Ok(())
    })
}

/// Appends a token that was chosen elsewhere; mirostat's limit stays.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_sampler_push(sampler: Option<&mut Sampler>, id: u32) -> Code {
    call(|| {
        require("sampler", sampler)?.inner.push(id);
        Ok(())
    })
}

/// Goes back to the state after `output_len` output tokens, mirostat's limit included.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_sampler_truncate(sampler: Option<&mut Sampler>, output_len: usize) -> Code {
    call(|| Ok(require("sampler", sampler)?.inner.truncate(output_len)?))
}

/// Starts over after a prompt, with the same parameters, seed and draw index.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_sampler_reset(
    sampler: Option<&mut Sampler>,
    prompt: *const u32,
    prompt_len: usize,
) -> Code {
    call(|| {
        // SAFETY: the C caller ensures that `prompt` has `prompt_len` ids.
        let prompt = unsafe { slice("prompt", prompt, prompt_len) }?;
        require("sampler", sampler)?.inner.reset(prompt);
        Ok(())
    })
}

/// Tells the state: history, seed in use, position, draw index, mirostat's limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_sampler_state(sampler: Option<&Sampler>, out: *mut State) -> Code {
    call(|| {
        let state = require("sampler", sampler)?.inner.sequence().state();
        // SAFETY: the C caller ensures that `out` is NULL or points to the bytes that its `struct_size`
        // names.
        unsafe { write("out", out, State::of(state)) }
    })
}

/// Returns a copy of the parameters, to be freed. NULL after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_sampler_params(sampler: Option<&Sampler>) -> Option<Box<Params>> {
    make(|| Ok(Params::of(require("sampler", sampler)?.inner.params().clone())))
}

/// Returns the most likely tokens of the last row, `logprobs.top_n` of them, and their number. They stay until the next
/// call with this sampler. NULL if the parameters ask for none, or after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_sampler_top_logprobs(
    sampler: Option<&mut Sampler>,
    len: Option<&mut MaybeUninit<usize>>,
) -> *const TokenLogprob {
    call_or(ptr::null(), || {
        members(require("sampler", sampler)?, require("len", len)?, |logprobs| &logprobs.top)
    })
}

/// Returns the logprobs of the ids that the parameters name, of the last row, and their number. They stay until the next
/// call with this sampler. NULL if the parameters name none, or after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_sampler_id_logprobs(
    sampler: Option<&mut Sampler>,
    len: Option<&mut MaybeUninit<usize>>,
) -> *const TokenLogprob {
    call_or(ptr::null(), || {
        members(require("sampler", sampler)?, require("len", len)?, |logprobs| &logprobs.ids)
    })
}

fn members(
    sampler: &mut Sampler,
    len: &mut MaybeUninit<usize>,
    list: impl FnOnce(&gumball_engine::Logprobs) -> &Vec<gumball_engine::TokenLogprob>,
) -> Result<*const TokenLogprob> {
    let list = sampler.inner.logprobs().map_or(&[][..], |logprobs| list(logprobs));
    let as_c = list.iter().map(|it| TokenLogprob { id: it.id, logprob: it.logprob, rank: it.rank });
    sampler.logprobs.clear();
    sampler.logprobs.extend(as_c);
    len.write(sampler.logprobs.len());
    Ok(if sampler.logprobs.is_empty() { ptr::null() } else { sampler.logprobs.as_ptr() })
}

/// Returns the ids that the filters kept of the last row, in the order of tokens, and their number, if the config asked for
/// them. They stay until the next call that samples. NULL if there are none, or after an error.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_sampler_kept(
    sampler: Option<&Sampler>,
    len: Option<&mut MaybeUninit<usize>>,
) -> *const u32 {
    call_or(ptr::null(), || {
        let (sampler, len) = (require("sampler", sampler)?, require("len", len)?);
        let kept = sampler.inner.kept();
        len.write(kept.len());
        Ok(if kept.is_empty() { ptr::null() } else { kept.as_ptr() })
    })
}
