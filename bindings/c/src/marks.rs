//! Looking for watermarks in ids.

use std::ffi::c_char;

use gumball_detect::{Scheme, detect_any};

use crate::error::Code;
use crate::ffi::{call, require};
use crate::params::Params;

/// How likely it is that a text without a mark scores as much.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Evidence {
    /// The number of the key that the text was looked at with; of several, of the one with the smallest
    /// p-value.
    pub key: u32,
    /// How many tokens count, namely tokens whose context lies in the text and comes for the first time; and
    /// how many do not.
    pub tokens: usize,
    pub skipped: usize,
    /// The sum of the scores of the tokens that count, whose number is the mean of a text without the mark.
    pub score: f64,
    /// The natural logarithm of the p-value, which was multiplied by the number of keys.
    pub ln_p: f64,
}

/// Looks for the mark of any of some keys in the ids after a prompt of prompt_len, 0 where it is not known.
/// scheme: whose mark, gumball (or NULL), vllm or sglang. params have the watermark that the text would have
/// been drawn with. keys: numbers of keys in the place of the watermark's own, or NULL. Some 100 ns for
/// each id and key.
///
/// Cost: compute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_detect(
    ids: *const u32,
    len: usize,
    prompt_len: usize,
    scheme: *const c_char,
    params: Option<&Params>,
    keys: *const u32,
    key_count: usize,
    evidence: *mut Evidence,
) -> Code {
    call(|c| {
        let ids = c.slice("ids", ids, len)?;
        let scheme: Scheme = c.optional_text("scheme", scheme)?.map_or(Ok(Scheme::default()), str::parse)?;
        let watermark = require("params.watermark", require("params", params)?.inner.watermark)?;
        watermark.validate()?;
        let own = [watermark.key];
        let keys = c.list("keys", keys, key_count)?.unwrap_or(&own);
        let out = c.out_slice("evidence", evidence, 1)?;
        let (key, found) = detect_any(ids, prompt_len, scheme, &watermark, keys)?;
        let gumball_detect::Evidence { tokens, skipped, score, ln_p } = found;
        out[0].write(Evidence { key, tokens, skipped, score, ln_p });
        Ok(())
    })
}
