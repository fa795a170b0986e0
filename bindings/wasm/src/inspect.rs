//! Inspection: what every stage did to one row, as an object, or as a page of HTML that explains itself.
//!
//! The oracle's own functions compute the trace, so its token is the one that samplers and pools draw.

use gumball_inspect::page::{Context, page};
use gumball_inspect::trace::{Detail, Trace};
use gumball_spec::request::check_mask_width;
use gumball_spec::{Forced, Request};
use js_sys::{Function, JSON};
use wasm_bindgen::prelude::*;

use crate::error::{Failure, Result, entropy};
use crate::params;
use crate::rows::Rows;
use crate::sampler::words;
use crate::values::{GivenParams, GivenRows, InspectOptions, Options, keys};

/// The options of both functions.
const NAMES: [&str; 11] =
    ["prompt", "output", "position", "draw", "mu", "mask", "forced", "dtype", "source", "texts", "brief"];

/// Traces a row.
fn trace(logits: &JsValue, params: &JsValue, options: &Options) -> Result<Trace> {
    let mut row = Rows::default();
    row.copy(logits, options, "logits")?;
    let row = row.row();
    let mut params = params::read(params)?;
    let seed = *params.seed.get_or_insert_with(entropy);
    let (prompt, output) = (options.ids("prompt")?, options.ids("output")?);
    let mask: Option<Vec<u32>> = options.get("mask")?.map(|mask| words(&mask, "mask")).transpose()?;
    if let Some(mask) = &mask {
        check_mask_width("mask", mask.len(), row.vocab())?;
    }
    let request = Request {
        output: &output,
        position: options.integer("position")?.unwrap_or((prompt.len() + output.len()) as u32),
        draw: options.integer("draw")?.unwrap_or(0),
        mu: options.number("mu")?.unwrap_or_else(|| params.initial_mu()),
        mask: mask.as_deref(),
        forced: options.integer("forced")?.map(Forced::by_caller),
        ..Request::new(&params, &prompt, seed)
    };
    let texts = options.get("texts")?.map(|texts| {
        let wrong = || Failure::wrong_type("texts", &texts, "a function from an id to its text");
        texts.dyn_ref::<Function>().cloned().ok_or_else(wrong)
    });
    let texts = texts.transpose()?;
    // An exception of the function, or a result that is no text, counts as no text: the trace is the same.
    let text = |id: u32| texts.as_ref()?.call1(&JsValue::UNDEFINED, &id.into()).ok()?.as_string();
    let source = options.text("source")?.unwrap_or_else(|| "A row of logits".to_owned());
    let detail = if options.truth("brief")? { Detail::Brief } else { Detail::Full };
    Trace::of(row, &request, &source, &text, detail).map_err(|error| match error {
        gumball_inspect::Error::Spec(error) => error.into(),
        other => Failure::out_of_range("logits", "not traced", other.to_string()),
    })
}

/// Returns what every stage did to a row: edits, filters, the race and the token, as `gumball inspect --json`
/// writes it. Without a seed in `params` a fresh one is drawn. Throws a GumballError for a parameter outside
/// its range.
#[wasm_bindgen(unchecked_return_type = "Trace")]
pub fn inspect(logits: &GivenRows, params: &GivenParams, options: Option<InspectOptions>) -> Result<JsValue> {
    let trace = trace(logits, params, &Options::new(options, &NAMES)?)?;
    let text = serde_json::to_string(&trace).expect("plain data");
    Ok(JSON::parse(&text).expect("JSON of our own"))
}

/// Returns the trace of `inspect` as a page of HTML that explains itself, for a file, a frame or a new tab.
/// It asks nothing of the network.
#[wasm_bindgen]
pub fn inspect_html(
    logits: &GivenRows,
    params: &GivenParams,
    options: Option<InspectOptions>,
) -> Result<String> {
    let names: Vec<&str> = NAMES.into_iter().chain(["context"]).collect();
    let options = Options::new(options, &names)?;
    let context = match options.get("context")? {
        None => None,
        Some(context) => {
            keys(&context, "context")?;
            let context = Options::new(context, &["prompt", "said"])?;
            let text = |name| Ok::<_, Failure>(context.text(name)?.unwrap_or_default());
            Some(Context { prompt: text("prompt")?, said: text("said")? })
        }
    };
    Ok(page(&trace(logits, params, &options)?, context.as_ref()))
}
