//! Looking for watermarks in ids.

use gumball_detect::{Evidence, Scheme, detect_any};
use gumball_engine::Watermark;
use js_sys::Array;
use wasm_bindgen::prelude::*;

use crate::error::Result;
use crate::params::part;
use crate::values::{DetectOptions, FindOptions, Integers, Options, integers, object};

/// A text, its prompt first, how many ids the prompt has, and the mark that is looked for.
type Asked = (Vec<u32>, usize, Scheme, Watermark);

fn asked(ids: &Integers, options: &Options) -> Result<Asked> {
    let watermark: Option<Watermark> =
        options.get("watermark")?.map(|it| part(&it, "watermark")).transpose()?;
    let watermark = watermark.unwrap_or_default();
    watermark.validate()?;
    let scheme = options.text("scheme")?.map_or(Ok(Scheme::default()), |name| name.parse())?;
    let mut text = options.ids("prompt")?;
    let prompt_len = text.len();
    text.extend(integers::<u32>(ids, "ids")?);
    Ok((text, prompt_len, scheme, watermark))
}

fn described(key: u32, evidence: Evidence) -> JsValue {
    let Evidence { tokens, skipped, score, ln_p } = evidence;
    object([
        ("key", key.into()),
        ("tokens", (tokens as u32).into()),
        ("skipped", (skipped as u32).into()),
        ("score", score.into()),
        ("ln_p", ln_p.into()),
        ("p_value", evidence.p_value().into()),
    ])
}

/// Looks for a watermark in the ids of a text (W4). `options.watermark` has the parameters that a marked text
/// would have been drawn with, `keys` the numbers of the keys to look for if not its own, `scheme` the engine
/// that marks. Throws a GumballError for a number without a key and for values outside their range.
#[wasm_bindgen(unchecked_return_type = "Evidence")]
pub fn detect(ids: &Integers, options: Option<DetectOptions>) -> Result<JsValue> {
    let options = Options::new(options, &["watermark", "prompt", "keys", "scheme"])?;
    let keys = options.get("keys")?.map(|keys| integers(&keys, "keys")).transpose()?;
    let (text, prompt_len, scheme, watermark) = asked(ids, &options)?;
    let keys = keys.unwrap_or_else(|| vec![watermark.key]);
    let (key, found) = detect_any(&text, prompt_len, scheme, &watermark, &keys)?;
    Ok(described(key, found))
}

/// Looks for the marked parts of a text by windows of `options.length` ids: the parts with a p-value below
/// `options.alpha`. Each p-value is multiplied by the number of windows. Windows that overlap are one part.
/// The other options and the errors are as in `detect`.
#[wasm_bindgen(unchecked_return_type = "MarkedPart[]")]
pub fn find_marked(ids: &Integers, options: Option<FindOptions>) -> Result<Array> {
    let options = Options::new(options, &["watermark", "prompt", "length", "alpha", "scheme"])?;
    let length = options.integer("length")?.unwrap_or(200);
    let alpha = options.double("alpha")?.unwrap_or(1e-4);
    let (text, prompt_len, scheme, watermark) = asked(ids, &options)?;
    let found = gumball_detect::find_marked(&text, prompt_len, scheme, &watermark, length, alpha)?;
    Ok(found
        .into_iter()
        .map(|part| {
            object([
                ("start", (part.ids.start as u32).into()),
                ("end", (part.ids.end as u32).into()),
                ("evidence", described(watermark.key, part.evidence)),
            ])
        })
        .collect())
}
