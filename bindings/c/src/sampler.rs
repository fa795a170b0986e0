//! The sampler: draws the tokens of one sequence, row by row.

use std::ffi::c_char;
use std::mem::{MaybeUninit, offset_of};

use gumball_engine::{
    Kind, Logprobs, Matrix, NONE, Row, Rows as EngineRows, StepOptions as RowOptions, TokenLogprob as Told,
    VerifyMode,
};

use crate::batch::{Batch, Lists, read_batch};
use crate::error::{Code, Failure, Result, refuse};
use crate::ffi::{Caller, call, end, make, require};
use crate::outputs::first;
use crate::params::Params;
use crate::rows::{Rows, What};
use crate::state::{State, read_state};
use crate::versioned::versioned;

/// Chooses the tokens of one sequence, and keeps its history.
#[derive(Debug)]
pub struct Sampler {
    inner: gumball_engine::Sampler,
}

/// The settings of a sampler; `vocab`, `route`, `level` and `kept` are as in gumball_pool_config.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SamplerConfig {
    pub struct_size: usize,
    pub vocab: usize,
    pub route: *const c_char,
    pub level: *const c_char,
    /// The draw index, which tells sequences of the same seed and history apart.
    pub draw: u32,
    pub kept: u32,
}

versioned!(SamplerConfig, "gumball_sampler_config", kept: u32);

/// The outputs of a row, as in gumball_outputs_view. Pointers are NULL if there is nothing, and always from
/// gumball_sampler_sample_n; their lists stay until the next call with this sampler.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Token {
    /// The id; -1 if no token was above -inf and none was forced.
    pub id: i32,
    pub status: u32,
    pub temperature: f32,
    pub logprob: f32,
    pub rank: u32,
    pub second_logprob: f32,
    /// The most likely tokens, as many as the parameters ask for.
    pub top: *const TokenLogprob,
    pub top_len: usize,
    /// The ids that the parameters name.
    pub ids: *const TokenLogprob,
    pub ids_len: usize,
    /// The ids that the filters kept, in the order of tokens, if the config asked for them.
    pub kept: *const u32,
    pub kept_len: usize,
}

/// A token with its logprob and its rank: -1 where there is no further member, -inf and 0 for a token that is
/// no member.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TokenLogprob {
    pub id: i32,
    pub logprob: f32,
    pub rank: u32,
}

// A list of the engine's is one of these: a sampler hands out its own.
const _: () = assert!(
    size_of::<Told>() == size_of::<TokenLogprob>()
        && offset_of!(Told, id) == offset_of!(TokenLogprob, id)
        && offset_of!(Told, logprob) == offset_of!(TokenLogprob, logprob)
        && offset_of!(Told, rank) == offset_of!(TokenLogprob, rank)
);

impl Token {
    fn new(token: gumball_engine::Token, logprobs: Option<&Logprobs>, kept: &[u32]) -> Self {
        let told = token.logprob.map_or((f32::NEG_INFINITY, 0), |told| (told.logprob, told.rank));
        let (top, ids) = logprobs.map_or((&[][..], &[][..]), |all| (&all.top, &all.ids));
        Self {
            id: token.id.map_or(NONE, |id| id as i32),
            status: token.status.0,
            temperature: token.temperature,
            logprob: told.0,
            rank: told.1,
            second_logprob: logprobs.map_or(f32::NEG_INFINITY, |all| all.second),
            top: first(top).cast(),
            top_len: top.len(),
            ids: first(ids).cast(),
            ids_len: ids.len(),
            kept: first(kept),
            kept_len: kept.len(),
        }
    }
}

/// Makes a sampler. `state`: where another sampler or pool left the sequence, with its seed and draw index;
/// with mirostat or adaptive-p, it cannot be shortened to before the state. NULL: the history is empty;
/// gumball_sampler_reset gives it a prompt.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_sampler_new(
    params: Option<&Params>,
    config: *const SamplerConfig,
    state: *const State,
) -> Option<Box<Sampler>> {
    make(|c| {
        let mut params = require("params", params)?.inner.clone();
        let config = c.read("config", config)?;
        let route = c.optional_text("route", config.route)?;
        let level = c.optional_text("level", config.level)?;
        let state = (!state.is_null()).then(|| read_state(c, state)).transpose()?;
        params.seed = state.map_or(params.seed, |state| Some(state.seed));
        let mut sampler = gumball_engine::Sampler::new(params, config.vocab)?.with_draw(config.draw);
        if let Some(level) = level {
            sampler = sampler.with_level(level.parse()?)?;
        }
        if let Some(route) = route {
            sampler = sampler.with_route(route.parse()?)?;
        }
        if let Some(state) = state {
            sampler = sampler.with_state(state)?;
        }
        sampler.collect_kept(config.kept != 0);
        Ok(Sampler { inner: sampler })
    })
}

/// Makes a sampler with the same state and another draw index.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_sampler_fork(sampler: Option<&Sampler>, draw: u32) -> Option<Box<Sampler>> {
    make(|_| Ok(Sampler { inner: require("sampler", sampler)?.inner.fork(draw)? }))
}

/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_sampler_free(sampler: Option<Box<Sampler>>) {
    end(sampler);
}

fn row_of<'a>(c: Caller<'a>, rows: *const Rows) -> Result<(Row<'a>, Kind)> {
    let given = c.plain("row", rows)?;
    let rows = given.get(c)?;
    let (EngineRows::Logits(Matrix::Host(matrix)) | EngineRows::Probabilities(Matrix::Host(matrix))) = rows
    else {
        let allowed = "logits or probabilities in the memory of the host, for a sampler";
        return Err(Failure::out_of_range("row", "of another kind", allowed));
    };
    if matrix.rows() != 1 {
        let allowed = "1: a sampler is given the one row it reads";
        return Err(Failure::out_of_range("rows", matrix.rows(), allowed));
    }
    let kind = if given.what()? == What::GUMBALL_LOGITS { Kind::Logits } else { Kind::Probabilities };
    Ok((matrix.row(0), kind))
}

/// Draws the next token from a row and appends it to the history; an empty row changes nothing.
///
/// `row`: one of logits or probabilities, in host memory. `batch`: mask, forced token and hook of this row,
/// without slots, or NULL; rows of probabilities have no hook. A forced token is emitted even if it is
/// banned; its logprob is the one that it would have had.
///
/// Cost: compute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_sampler_sample(
    sampler: Option<&mut Sampler>,
    row: *const Rows,
    batch: *const Batch,
    token: Option<&mut MaybeUninit<Token>>,
) -> Code {
    call(|c| {
        let (sampler, token) = (require("sampler", sampler)?, require("token", token)?);
        let (row, kind) = row_of(c, row)?;
        let given = read_batch(c, batch, Lists::Rows(1))?;
        let sampled = given.with(|batch| {
            let others = [
                ("slots", !batch.slots.is_empty()),
                ("counts", !batch.counts.is_empty()),
                ("mode", batch.mode != VerifyMode::default()),
                ("row_indices", !batch.row_indices.is_empty()),
                ("plan", given.plan.is_some()),
                ("draft_batch", given.draft_batch != 0),
                ("len", given.rows != 1),
            ];
            refuse(others, "sampler", "it has one sequence, and is given the one row it reads")?;
            let mut edit = batch.hooks.first().copied().flatten().map(|hook| |row: &mut [f32]| hook(row));
            let with = RowOptions {
                mask: given.masks.of_one()?,
                forced: batch.forced.first().copied().flatten(),
                kind,
                hook: edit.as_mut().map(|edit| edit as _),
            };
            Ok(sampler.inner.sample_with(row, with)?)
        });
        token.write(Token::new(sampled?, sampler.inner.logprobs(), sampler.inner.kept()));
        Ok(())
    })
}

/// Draws `n` tokens from one row of logits, under the draw indices 0..n: what `n` sequences would draw. It
/// appends none; gumball_sampler_push does.
///
/// Cost: compute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_sampler_sample_n(
    sampler: Option<&mut Sampler>,
    row: *const Rows,
    n: u32,
    tokens: *mut Token,
) -> Code {
    call(|c| {
        let sampler = require("sampler", sampler)?;
        let (row, kind) = row_of(c, row)?;
        if kind == Kind::Probabilities {
            return Err(Failure::out_of_range("what", "GUMBALL_PROBABILITIES", "GUMBALL_LOGITS"));
        }
        let tokens = c.out_slice("tokens", tokens, n as usize)?;
        for (place, token) in tokens.iter_mut().zip(sampler.inner.sample_n(row, n)?) {
            place.write(Token::new(token, None, &[]));
        }
        Ok(())
    })
}

/// Appends a token that was chosen elsewhere; `mu` stays.
///
/// Cost: small.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_sampler_push(sampler: Option<&mut Sampler>, id: u32) -> Code {
    call(|_| {
        require("sampler", sampler)?.inner.push(id);
        Ok(())
    })
}

/// Takes back the last `count` output tokens, and `mu` with them.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_sampler_shorten(sampler: Option<&mut Sampler>, count: usize) -> Code {
    call(|_| Ok(require("sampler", sampler)?.inner.shorten(count)?))
}

/// Starts over after a prompt, with the same parameters, seed and draw index.
///
/// Cost: copy.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_sampler_reset(
    sampler: Option<&mut Sampler>,
    prompt: *const u32,
    prompt_len: usize,
) -> Code {
    call(|c| {
        let prompt = c.slice("prompt", prompt, prompt_len)?;
        require("sampler", sampler)?.inner.reset(prompt);
        Ok(())
    })
}

/// Cost: small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_sampler_state(sampler: Option<&Sampler>, out: *mut State) -> Code {
    call(|c| {
        let state = require("sampler", sampler)?.inner.sequence().state();
        c.write("out", out, State::of(state))
    })
}

/// Cost: copy.
#[unsafe(no_mangle)]
pub extern "C" fn gumball_sampler_params(sampler: Option<&Sampler>) -> Option<Box<Params>> {
    make(|_| Ok(Params::of(require("sampler", sampler)?.inner.params().clone())))
}
