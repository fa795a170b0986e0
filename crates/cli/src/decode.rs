//! The decode loop: logits, a token, text, and again, until something ends it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gumball_engine::{Sampler, StepOptions};
use serde::Serialize;

use crate::Result;
use crate::commands::sample::LogprobRecord;
use crate::grammar::Grammar;
use crate::model::{Llama, TokenStream, Tokenizer};
use crate::session::Session;
use crate::stop::StopStrings;

/// Why a text ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model drew a token that ends the text.
    StopToken,
    /// The text reached a stop string.
    StopString,
    /// The grammar allows nothing more.
    Grammar,
    /// The limit on tokens.
    MaxTokens,
    /// The model cannot look back on more.
    Context,
    /// No token was allowed.
    NoToken,
    /// Someone pressed Ctrl-C.
    Interrupted,
}

/// One token of the text.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// The token.
    pub id: u32,
    /// Its own text.
    pub text: String,
    /// Its logprob, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprob: Option<LogprobRecord>,
    /// The most likely tokens, if asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top_logprobs: Vec<LogprobRecord>,
    /// The ids asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub logprob_ids: Vec<LogprobRecord>,
}

/// A finished text.
#[derive(Clone, Debug, Serialize)]
pub struct Decoded {
    /// The text.
    pub text: String,
    /// Its tokens, with the one that ended it.
    pub tokens: Vec<Step>,
    /// Why it ended.
    pub finish: Finish,
    /// Whether it follows the grammar to an end; absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complete: Option<bool>,
    /// How long it took.
    pub timing: Timing,
}

/// Where the time went.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Timing {
    /// Reading the prompt, in milliseconds.
    pub prompt_ms: f64,
    /// The model's part of a token, in microseconds.
    pub model_us: f64,
    /// Gumball's part of a token, in microseconds.
    pub choose_us: f64,
}

/// When to end.
#[derive(Debug)]
pub struct Limits<'a> {
    /// The most tokens.
    pub max_tokens: usize,
    /// The strings that end the text.
    pub stops: &'a [String],
    /// Set to end before the next token.
    pub interrupt: &'a AtomicBool,
}

/// Generates a text; `emit` gets each piece as soon as it is sure.
///
/// # Errors
/// What the model, the grammar or the output fails with.
pub fn decode(
    session: &mut Session,
    sampler: &mut Sampler,
    mut grammar: Option<Grammar>,
    limits: &Limits<'_>,
    mut emit: impl FnMut(&str) -> Result<()>,
) -> Result<Decoded> {
    let Session { model, prompt, padding_mask, .. } = session;
    let context = model.context();
    let (llama, tokenizer) = (&mut model.llama, &model.tokenizer);
    let start = Instant::now();
    let mut logits = forward(llama, prompt)?;
    let prompt_time = start.elapsed();

    let mut stops = StopStrings::new(limits.stops);
    let mut stream = TokenStream::new(tokenizer);
    let mut text = String::new();
    let mut tokens: Vec<Step> = Vec::new();
    let (mut model_time, mut choose_time) = (Duration::ZERO, Duration::ZERO);
    let finish = loop {
        if limits.interrupt.load(Ordering::Relaxed) {
            break Finish::Interrupted;
        }
        if tokens.len() >= limits.max_tokens {
            break Finish::MaxTokens;
        }
        let allowed = grammar.as_mut().map(Grammar::mask).transpose()?;
        let mask = allowed.as_deref().or(padding_mask.as_deref());
        let start = Instant::now();
        let token = sampler.sample_with(&logits, StepOptions { mask, ..Default::default() })?;
        choose_time += start.elapsed();
        let Some(id) = token.id else { break Finish::NoToken };
        tokens.push(step(tokenizer, sampler, id));
        if sampler.params().stop_ids.contains(&id) {
            break Finish::StopToken;
        }
        if let Some(grammar) = &mut grammar {
            grammar.follow(id)?;
        }
        let (sure, stopped) = stops.push(&stream.push(id));
        text.push_str(&sure);
        emit(&sure)?;
        if stopped {
            break Finish::StopString;
        }
        if grammar.as_ref().is_some_and(Grammar::is_over) {
            break Finish::Grammar;
        }
        if llama.position() >= context {
            break Finish::Context;
        }
        let start = Instant::now();
        logits = forward(llama, &[id])?;
        model_time += start.elapsed();
    };
    if finish != Finish::StopString {
        let rest = stops.push(&stream.finish()).0 + &stops.finish();
        text.push_str(&rest);
        emit(&rest)?;
    }
    let each = |time: Duration| time.as_secs_f64() * 1e6 / tokens.len().max(1) as f64;
    let timing = Timing {
        prompt_ms: prompt_time.as_secs_f64() * 1e3,
        model_us: each(model_time),
        choose_us: each(choose_time),
    };
    let complete = grammar.as_mut().map(|grammar| match finish {
        Finish::StopString => false,
        Finish::StopToken => true,
        _ => grammar.is_complete(),
    });
    Ok(Decoded { text, tokens, finish, complete, timing })
}

/// Returns the logits after the tokens seen so far and these.
fn forward(llama: &mut Llama, tokens: &[u32]) -> Result<Vec<f32>> {
    let hidden = llama.hidden(tokens)?;
    Ok(llama.logits(&hidden)?)
}

/// Describes the token that was just drawn.
fn step(tokenizer: &Tokenizer, sampler: &Sampler, id: u32) -> Step {
    let logprobs = sampler.logprobs();
    let records = |list: &[gumball_engine::TokenLogprob]| list.iter().map(LogprobRecord::from).collect();
    Step {
        id,
        text: String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned(),
        logprob: logprobs.map(|logprobs| LogprobRecord::from(&logprobs.token)),
        top_logprobs: logprobs.map_or_else(Vec::new, |logprobs| records(&logprobs.top)),
        logprob_ids: logprobs.map_or_else(Vec::new, |logprobs| records(&logprobs.ids)),
    }
}
