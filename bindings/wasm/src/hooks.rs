//! Hooks: functions of JavaScript that edit a row after the engine's biases and before its bans.
//!
//! A hook gets a copy of the row, changes it in its place and returns undefined. A module of WebAssembly
//! cannot unwind, so a hook's exception waits until the engine's call has ended; the caller then takes back
//! the tokens that the call appended.

use std::cell::RefCell;

use gumball_engine::RowHook;
use js_sys::{Float32Array, Function};
use wasm_bindgen::prelude::*;

use crate::error::{Failure, Result};
use crate::values::{elements, is_absent};

/// The hooks of a call, one a row, and the first failure among them.
#[derive(Debug, Default)]
struct Frame {
    hooks: Vec<Option<Function>>,
    failure: Option<Failure>,
}

thread_local! {
    /// The calls whose hooks run, the innermost last. The engine wants hooks that threads may share, which
    /// functions of JavaScript are not; so a hook of the engine holds a place in this list.
    static FRAMES: RefCell<Vec<Frame>> = const { RefCell::new(Vec::new()) };
}

/// Reads a hook.
pub fn read(hook: &JsValue, name: &str) -> Result<Function> {
    hook.dyn_ref::<Function>().cloned().ok_or_else(|| Failure::wrong_type(name, hook, "a function"))
}

/// Reads a hook for each row; undefined and null are none.
pub fn read_all(hooks: &JsValue) -> Result<Vec<Option<Function>>> {
    let one = |hook: &JsValue| if is_absent(hook) { Ok(None) } else { read(hook, "hooks").map(Some) };
    elements(hooks, "hooks")?.iter().map(one).collect()
}

/// Runs a hook over a row.
pub fn run(hook: &Function, row: &mut [f32]) -> Result<()> {
    let copy = Float32Array::new_from_slice(row);
    let left = hook.call1(&JsValue::UNDEFINED, &copy).map_err(Failure::Thrown)?;
    if !left.is_undefined() {
        let allowed = "undefined: it changes the row that it is given";
        return Err(Failure::wrong_type("what a hook returns", &left, allowed));
    }
    if copy.length() as usize != row.len() {
        let allowed = format!("{} elements still: a hook may not give its row away", row.len());
        return Err(Failure::length("a hook's row", copy.length() as usize, allowed));
    }
    copy.copy_to(row);
    Ok(())
}

/// Calls `call` with the engine's hooks that run these, and returns its result and the first failure of a
/// hook.
pub fn with<T>(
    hooks: Vec<Option<Function>>,
    call: impl FnOnce(&[Option<RowHook<'_>>]) -> T,
) -> (T, Option<Failure>) {
    let present: Vec<bool> = hooks.iter().map(Option::is_some).collect();
    let place = FRAMES.with_borrow_mut(|frames| {
        frames.push(Frame { hooks, failure: None });
        frames.len() - 1
    });
    let edits: Vec<_> =
        (0..present.len()).map(|index| move |row: &mut [f32]| run_in(place, index, row)).collect();
    let of = |(edit, present): (_, &bool)| present.then_some(edit as RowHook<'_>);
    let engines: Vec<_> = edits.iter().zip(&present).map(of).collect();
    let result = call(&engines);
    let frame = FRAMES.with_borrow_mut(Vec::pop).expect("the frame of this call");
    (result, frame.failure)
}

/// Runs a hook of a frame, unless one of them has failed before.
fn run_in(place: usize, index: usize, row: &mut [f32]) {
    let hook = FRAMES.with_borrow(|frames| {
        let frame = &frames[place];
        if frame.failure.is_some() { None } else { frame.hooks[index].clone() }
    });
    let Some(hook) = hook else { return };
    if let Err(failure) = run(&hook, row) {
        FRAMES.with_borrow_mut(|frames| frames[place].failure = Some(failure));
    }
}
