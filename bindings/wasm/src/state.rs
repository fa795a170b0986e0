//! State: a sequence in mid-life, as a plain object of JavaScript.

use gumball_engine::{Sequence, State};
use wasm_bindgen::prelude::*;

use crate::error::{Failure, Result};
use crate::values::{Options, object};

/// A state that owns its lists.
#[derive(Debug)]
pub struct OwnedState {
    prompt: Vec<u32>,
    output: Vec<u32>,
    seed: u64,
    position: u32,
    draw: u32,
    mu: f32,
}

impl OwnedState {
    /// Reads a state. Without a position it is the number of its ids.
    pub fn read(state: &JsValue) -> Result<Self> {
        if !state.is_object() {
            let allowed = "an object with prompt, output, seed, position, draw and mu";
            return Err(Failure::wrong_type("state", state, allowed));
        }
        let fields = Options::new(state, &["prompt", "output", "seed", "position", "draw", "mu"])?;
        let (prompt, output) = (fields.ids("prompt")?, fields.ids("output")?);
        let seed = fields.integer("seed")?.unwrap_or(0);
        let after_ids = State::new(&prompt, &output, seed).position;
        let position = fields.integer("position")?.unwrap_or(after_ids);
        let draw = fields.integer("draw")?.unwrap_or(0);
        Ok(Self { prompt, output, seed, position, draw, mu: fields.number("mu")?.unwrap_or(0.0) })
    }

    /// Returns it as the engine takes it.
    pub fn state(&self) -> State<'_> {
        let Self { prompt, output, seed, position, draw, mu } = self;
        State { prompt, output, seed: *seed, position: *position, draw: *draw, mu: *mu }
    }
}

/// Returns a sequence's state as an object.
pub fn to_js(sequence: &Sequence) -> JsValue {
    let State { prompt, output, seed, position, draw, mu } = sequence.state();
    object([
        ("prompt", js_sys::Uint32Array::new_from_slice(prompt).into()),
        ("output", js_sys::Uint32Array::new_from_slice(output).into()),
        ("seed", seed.into()),
        ("position", position.into()),
        ("draw", draw.into()),
        ("mu", mu.into()),
    ])
}
