//! Errors of the engine and of reading JavaScript's values, as one class of JavaScript.
//!
//! `GumballError` extends `Error` and has the fields kind, parameter, value and allowed. A hook's exception
//! is passed on as it is.

use gumball_engine::Error;
use gumball_engine::unstable::{shown, shown_of};
use wasm_bindgen::prelude::*;

#[wasm_bindgen(raw_module = "./host.js")]
extern "C" {
    /// The class of errors.
    #[derive(Debug)]
    type GumballError;

    #[wasm_bindgen(constructor)]
    fn new(kind: &str, parameter: &str, value: &str, allowed: &str, message: &str) -> GumballError;

    fn fresh_seed() -> u64;
}

/// Why a call ends without a result.
#[derive(Debug)]
pub enum Failure {
    /// An error of the engine.
    Engine(Error),
    /// The exception of an argument that cannot be read, or of a hook.
    Thrown(JsValue),
}

/// A result whose error JavaScript gets as an exception.
pub type Result<T> = std::result::Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Engine(error)
    }
}

impl Failure {
    /// Makes the error for a value of the wrong type.
    pub fn wrong_type(parameter: &str, value: &JsValue, allowed: &str) -> Self {
        let described = described(value);
        let shown = if value.is_object() { described } else { shown_of(parameter, &described) };
        Self::argument("type", parameter, shown, allowed)
    }

    /// Makes the error for a value outside its range.
    pub fn out_of_range(parameter: &str, value: impl ToString, allowed: impl Into<String>) -> Self {
        Self::argument("out_of_range", parameter, shown_of(parameter, &value.to_string()), allowed)
    }

    /// Makes the error for a list of another length.
    pub fn length(parameter: &str, length: usize, allowed: impl Into<String>) -> Self {
        Self::argument("length", parameter, length.to_string(), allowed)
    }

    /// Makes the error for a name that is not known.
    pub fn unknown(parameter: &'static str, name: &str, known: &[&str]) -> Self {
        Self::Engine(Error::unknown(parameter, name, known.join(", ")))
    }

    /// Makes the error for a text that is no JSON of parameters, and for parameters that JSON cannot hold.
    #[cfg(feature = "whole")]
    pub fn json(parameter: &str, error: &serde_json::Error) -> Self {
        let said = gumball_engine::unstable::quoted(error.to_string().as_bytes(), 1500);
        let message = format!("{parameter} cannot be read: {said}");
        Failure::Thrown(GumballError::new("json", parameter, "", "", &message).into())
    }

    fn argument(kind: &str, parameter: &str, value: String, allowed: impl Into<String>) -> Self {
        let (what, allowed) = (if kind == "length" { "has length" } else { "is" }, allowed.into());
        let message = format!("{parameter} {what} {value}, but must be {allowed}");
        Failure::Thrown(GumballError::new(kind, parameter, &value, &allowed, &message).into())
    }
}

impl From<Failure> for JsValue {
    fn from(failure: Failure) -> Self {
        let error = match failure {
            Failure::Thrown(value) => return value,
            Failure::Engine(error) => error,
        };
        let message = error.to_string();
        let (kind, parameter, value, allowed) = match error {
            Error::OutOfRange { parameter, value, allowed } => ("out_of_range", parameter, value, allowed),
            Error::Conflict { parameter, other, reason } => {
                ("conflict", parameter, format!("beside {other}"), reason.to_owned())
            }
            Error::Length { parameter, length, allowed } => {
                ("length", parameter, length.to_string(), allowed)
            }
            Error::Unknown { parameter, name, known } => {
                ("unknown", parameter, name, format!("one of {known}"))
            }
            Error::Unavailable { resource, reason } => ("unavailable", resource, String::new(), reason),
            other => ("out_of_range", "", String::new(), other.to_string()),
        };
        GumballError::new(kind, parameter, &value, &allowed, &message).into()
    }
}

/// Names the lists of drafts and paths as JavaScript's arguments do; `counted`: the lists whose lengths are
/// the batch's counts.
pub fn draft_names(error: Error, counted: &'static str) -> Failure {
    let named = error.with_parameter(|name| match name {
        "counts" => counted,
        "drafts.ids" | "ids" => "drafts",
        "drafts.parents" => "parents",
        "drafts.probs" | "probs" => "draft_probs",
        name => name,
    });
    Failure::Engine(named)
}

/// Shows a value of JavaScript in an error.
fn described(value: &JsValue) -> String {
    let text = match (value.as_string(), value.as_f64(), value.as_bool()) {
        (Some(text), ..) => format!("\"{}\"", shown(&text)),
        (_, Some(number), _) => number.to_string(),
        (.., Some(truth)) => truth.to_string(),
        _ if value.is_null() => "null".to_owned(),
        _ if value.is_undefined() => "undefined".to_owned(),
        _ if value.is_object() => tag(value),
        _ => value.js_typeof().as_string().unwrap_or_default(),
    };
    shown(&text)
}

/// Returns what an object is: `Float32Array` of an array of numbers, `Array` of a list, `Object` of others.
pub fn tag(value: &JsValue) -> String {
    let tag = js_sys::Reflect::get(value, &js_sys::Symbol::to_string_tag()).ok();
    let other = if js_sys::Array::is_array(value) { "Array" } else { "Object" };
    tag.and_then(|tag| tag.as_string()).unwrap_or_else(|| other.to_owned())
}

/// Returns a fresh seed.
pub fn entropy() -> u64 {
    fresh_seed()
}

/// Lets a defect of this package be an exception that says what broke, and not only a trap.
pub fn panics_throw() {
    std::panic::set_hook(Box::new(|info| {
        let message = format!("gumball is broken: {info}");
        wasm_bindgen::throw_val(GumballError::new("broken", "", "", "", &message).into());
    }));
}
