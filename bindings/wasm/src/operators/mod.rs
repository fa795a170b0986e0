//! Operators over rows, without requests: softmax, renormalised and masked rows, draws, trees of drafts.
//!
//! Rows lie one after the other in a typed array, and `vocab` says how long each is. What JavaScript sees of
//! a function, its overloads and its words, stands in `whole.ts`.

mod arguments;
mod drafts;
mod sample;
mod write;

use std::cell::RefCell;

use gumball_engine::{Operators, Status};
use js_sys::Uint32Array;

use crate::error::Result;

thread_local! {
    /// The operators of all calls, which keep their buffers; made by the first call.
    static OPERATORS: RefCell<Option<Operators>> = const { RefCell::new(None) };
}

/// Calls `call` with the operators.
fn run<T>(call: impl FnOnce(&Operators) -> gumball_engine::Result<T>) -> Result<T> {
    OPERATORS.with_borrow_mut(|kept| {
        let operators = match kept.take() {
            Some(operators) => operators,
            None => Operators::new(None, Some(1))?,
        };
        call(kept.insert(operators)).map_err(|error| error.with_parameter(named).into())
    })
}

/// Calls what outputs are drawn from and with by the names of JavaScript's options.
fn named(name: &'static str) -> &'static str {
    match name {
        "row_indices" => "indices",
        "seeds" => "seed",
        "positions" => "position",
        "draws" => "draw",
        name => name,
    }
}

/// Returns statuses as an array of words.
fn words(statuses: &[Status]) -> Uint32Array {
    let words: Vec<u32> = statuses.iter().map(|status| status.0).collect();
    Uint32Array::new_from_slice(&words)
}
