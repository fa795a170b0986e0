//! Looking for watermarks in ids.

use std::ffi::c_char;
use std::mem::MaybeUninit;

use gumball_detect::{Scheme, detect_any, find_marked};
use gumball_engine::Watermark;

use crate::error::{Code, Result};
use crate::ffi::{Caller, call, require};
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
    /// The natural logarithm of the p-value, which was multiplied by the number of keys or parts that were
    /// looked at.
    pub ln_p: f64,
}

/// A part of a text that is marked.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MarkedPart {
    /// The index of its first id, counted from the end of the prompt, and the index after its last id.
    pub start: usize,
    pub end: usize,
    pub evidence: Evidence,
}

fn evidence_of(key: u32, evidence: gumball_detect::Evidence) -> Evidence {
    let gumball_detect::Evidence { tokens, skipped, score, ln_p } = evidence;
    Evidence { key, tokens, skipped, score, ln_p }
}

fn mark(c: Caller<'_>, scheme: *const c_char, params: Option<&Params>) -> Result<(Scheme, Watermark)> {
    let scheme = c.optional_text("scheme", scheme)?.map_or(Ok(Scheme::default()), str::parse)?;
    let watermark = watermark_of("params.watermark", require("params", params)?)?;
    watermark.validate()?;
    Ok((scheme, watermark))
}

/// Returns the watermark of parameters that must have one.
pub(crate) fn watermark_of(parameter: &'static str, params: &Params) -> Result<Watermark> {
    require(parameter, params.inner.watermark.own())
}

/// Looks for the mark of any of some keys in the ids after a prompt of prompt_len, 0 where it is not known.
/// scheme: whose mark, gumball (or NULL), vllm, vllm_dual_key with its alpha after it if that is not 0.1
/// (vllm_dual_key=0.3), or sglang with the number of its key_b after it if it has one, and a
/// mixing_probability that is not 0.5 (sglang=8, sglang=8,0.3). params have the watermark that the text would
/// have been drawn with. keys: numbers of keys in the place of the watermark's own, or NULL. Some 100 ns for
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
        let (scheme, watermark) = mark(c, scheme, params)?;
        let own = [watermark.key];
        let keys = c.list("keys", keys, key_count)?.unwrap_or(&own);
        let out = c.out_slice("evidence", evidence, 1)?;
        let (key, found) = detect_any(ids, prompt_len, scheme, &watermark, keys)?;
        out[0].write(evidence_of(key, found));
        Ok(())
    })
}

/// Looks for the marked parts of a text by windows of `length` ids (200, say): the parts with a p-value,
/// which is multiplied by the number of windows, below `alpha` (1e-4, say). Windows that overlap are one
/// part. `needed` is how many parts there are, at most len / length + 1; if `parts_len` is less, `parts`
/// stays as it is, and may be NULL. The other arguments are as in gumball_detect; the key is the watermark's.
///
/// Cost: compute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_find_marked(
    ids: *const u32,
    len: usize,
    prompt_len: usize,
    scheme: *const c_char,
    params: Option<&Params>,
    length: usize,
    alpha: f64,
    parts: *mut MarkedPart,
    parts_len: usize,
    needed: Option<&mut MaybeUninit<usize>>,
) -> Code {
    call(|c| {
        let (ids, needed) = (c.slice("ids", ids, len)?, require("needed", needed)?);
        let (scheme, watermark) = mark(c, scheme, params)?;
        let parts = c.out_slice("parts", parts, parts_len)?;
        let found = find_marked(ids, prompt_len, scheme, &watermark, length, alpha)?;
        needed.write(found.len());
        if found.len() <= parts_len {
            for (to, part) in parts.iter_mut().zip(found) {
                let evidence = evidence_of(watermark.key, part.evidence);
                to.write(MarkedPart { start: part.ids.start, end: part.ids.end, evidence });
            }
        }
        Ok(())
    })
}
