//! Looking for watermarks in ids.

use gumball_detect::{Evidence, Scheme, detect_any};
use gumball_engine::Watermark;
use wasm_bindgen::prelude::*;

use crate::error::Result;
use crate::params::part;
use crate::values::{DetectOptions, Integers, Options, integers, object};

/// Looks for a watermark in the ids of a text (W4). `options.watermark` has the parameters that a marked text
/// would have been drawn with, `keys` the numbers of the keys to look for if not its own, `scheme` the engine
/// that marks. Throws a GumballError for a number without a key and for values outside their range.
#[wasm_bindgen(unchecked_return_type = "Evidence")]
pub fn detect(ids: &Integers, options: Option<DetectOptions>) -> Result<JsValue> {
    let options = Options::new(options, &["watermark", "prompt", "keys", "scheme"])?;
    let watermark: Option<Watermark> =
        options.get("watermark")?.map(|it| part(&it, "watermark")).transpose()?;
    let watermark = watermark.unwrap_or_default();
    watermark.validate()?;
    let scheme: Scheme = options.text("scheme")?.map_or(Ok(Scheme::default()), |name| name.parse())?;
    let keys = options.get("keys")?.map(|keys| integers(&keys, "keys")).transpose()?;
    let mut text = options.ids("prompt")?;
    let prompt_len = text.len();
    text.extend(integers::<u32>(ids, "ids")?);
    let keys = keys.unwrap_or_else(|| vec![watermark.key]);
    let (key, found) = detect_any(&text, prompt_len, scheme, &watermark, &keys)?;
    let Evidence { tokens, skipped, score, ln_p } = found;
    Ok(object([
        ("key", key.into()),
        ("tokens", (tokens as u32).into()),
        ("skipped", (skipped as u32).into()),
        ("score", score.into()),
        ("ln_p", ln_p.into()),
        ("p_value", found.p_value().into()),
    ]))
}
