//! State: a sequence between two tokens, as plain data.

use crate::error::Result;
use crate::ffi::Caller;
use crate::versioned::versioned;

/// The data that the next token of a sequence depends on besides its row and its parameters; where it is
/// written, the ids stay until the sequence changes. It is read by gumball_sampler_new and
/// gumball_pool_resume, in this process or on another machine.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct State {
    pub struct_size: usize,
    pub prompt: *const u32,
    pub prompt_len: usize,
    pub output: *const u32,
    pub output_len: usize,
    pub seed: u64,
    /// The number of tokens before the next one, modulo 2^32; more than there are ids, where only the end of
    /// a long history is handed in.
    pub position: u32,
    pub draw: u32,
    /// Mirostat's limit for the next token, in bits, or the mean of adaptive-p; any number without both.
    pub mu: f32,
}

versioned!(State, "gumball_state", mu: f32);

impl State {
    /// Returns a state whose pointers are to the sequence's own lists.
    pub(crate) fn of(state: gumball_engine::State<'_>) -> Self {
        Self {
            struct_size: size_of::<Self>(),
            prompt: state.prompt.as_ptr(),
            prompt_len: state.prompt.len(),
            output: state.output.as_ptr(),
            output_len: state.output.len(),
            seed: state.seed,
            position: state.position,
            draw: state.draw,
            mu: state.mu,
        }
    }
}

pub(crate) fn read_state<'a>(c: Caller<'a>, state: *const State) -> Result<gumball_engine::State<'a>> {
    let state = c.read("state", state)?;
    Ok(gumball_engine::State {
        prompt: c.slice("state.prompt", state.prompt, state.prompt_len)?,
        output: c.slice("state.output", state.output, state.output_len)?,
        seed: state.seed,
        position: state.position,
        draw: state.draw,
        mu: state.mu,
    })
}
