//! The decode loop: drafts, logits, tokens, text, and again, until something ends it.
//!
//! A pass of the model computes a row of logits after the text and one after each draft; the pool emits one
//! token or several of them. Without drafts a pass computes one row, and the pool emits one token.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gumball_engine::head::HostMatrix;
use gumball_engine::{Batch, Drafts, Masks, NONE, Outputs, Pool, Rows, SamplingParams, Slot};
use gumball_receipt::Receipt;
use gumball_spec::layout::holds_id;
use serde::Serialize;

use crate::Result;
use crate::grammar::Grammar;
use crate::model::{Hidden, Llama, TokenStream, Tokenizer};
use crate::records::LogprobRecord;
use crate::request_head::RequestHead;
use crate::session::Session;
use crate::speculate::{Acceptance, Drafter};
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
    /// Its own text; bytes that are none by themselves as `<F0 9F>`.
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
    /// What drafts were worth; absent where none were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<Acceptance>,
}

/// Where the time went.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Timing {
    /// Reading the prompt, in milliseconds.
    pub prompt_ms: f64,
    /// The model's time for each token after the first, which the prompt yields, in microseconds; 0 if there
    /// is none.
    pub model_us: f64,
    /// Gumball's part of a token, in microseconds.
    pub choose_us: f64,
}

/// The request, in a pool of its own, and what drafts for it.
#[derive(Debug)]
pub struct Request {
    /// The pool.
    pub pool: Pool,
    /// The request's slot.
    pub slot: Slot,
    /// What drafts, if anything does.
    pub drafter: Option<Drafter>,
    /// The head that makes the logits, if the model's own product does not.
    pub head: Option<RequestHead>,
    /// The receipt of the text, if one was asked for.
    pub receipt: Option<Receipt>,
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
/// The error of the model, the grammar or the output.
pub fn decode(
    session: &mut Session,
    request: &mut Request,
    mut grammar: Option<Grammar>,
    limits: &Limits<'_>,
    mut emit: impl FnMut(&str) -> Result<()>,
) -> Result<Decoded> {
    let Session { model, prompt, padding_mask, .. } = session;
    let (context, vocab) = (model.context(), model.vocab());
    let (llama, tokenizer) = (&mut model.llama, &model.tokenizer);
    let Request { pool, slot, drafter, head, receipt } = request;
    let params = pool.sequence(*slot)?.params().clone();

    let mut stops = StopStrings::new(limits.stops);
    let mut stream = TokenStream::new(tokenizer);
    let mut text = String::new();
    let mut tokens: Vec<Step> = Vec::new();
    let mut unseen = prompt.clone();
    let mut verified = Outputs::new();
    let mut acceptance = Acceptance::default();
    let [mut prompt_time, mut model_time, mut choose_time, mut draft_time] = [Duration::ZERO; 4];
    let finish = 'text: loop {
        if limits.interrupt.load(Ordering::Relaxed) {
            break Finish::Interrupted;
        }
        if tokens.len() >= limits.max_tokens {
            break Finish::MaxTokens;
        }
        // A pass emits a token more than it accepts drafts. That over the prompt has none.
        let room = (limits.max_tokens - tokens.len()).min(context.saturating_sub(llama.position())) - 1;
        let room = if tokens.is_empty() { 0 } else { room };
        let start = Instant::now();
        let mut plan = Plan::default();
        plan.add_mask(grammar.as_mut(), padding_mask.as_deref())?;
        if let Some(drafter) = drafter {
            plan.draft(pool, *slot, drafter, grammar.as_mut(), padding_mask.as_deref(), room)?;
        }
        draft_time += start.elapsed();

        let start = Instant::now();
        let rows = match head {
            Some(_) => RowsOf::States(llama.hidden(&[&unseen[..], &plan.drafts].concat())?),
            None => RowsOf::Logits(forward(llama, &unseen, &plan.drafts)?),
        };
        *if tokens.is_empty() { &mut prompt_time } else { &mut model_time } += start.elapsed();
        let start = Instant::now();
        let judged = &mut verified;
        match (&rows, &mut *head) {
            (RowsOf::States(hidden), Some(head)) => plan.verify_hidden(pool, *slot, head, hidden, judged)?,
            (RowsOf::Logits(logits), _) => {
                let rows = Rows::logits(logits, plan.drafts.len() + 1, vocab)?;
                plan.verify(pool, *slot, rows, judged)?;
            }
            (RowsOf::States(_), None) => unreachable!("states are computed for a head"),
        }
        let (outputs, places) = (&verified, verified.request(0).places);
        choose_time += start.elapsed();
        let accepted = places.len() - 1;
        llama.truncate(llama.position() - plan.drafts.len() + accepted);
        acceptance.passes += 1;
        acceptance.drafted += plan.drafts.len();
        acceptance.accepted += accepted;

        for place in places {
            let token = outputs.tokens()[place];
            if token == NONE {
                break 'text Finish::NoToken;
            }
            let id = token as u32;
            tokens.push(step(tokenizer, &params, outputs, place));
            if let (Some(receipt), Some(asked)) = (&mut *receipt, &params.logprobs) {
                let mask = plan.mask(outputs.path()[place] as usize);
                receipt.push(token, outputs.status(place), &outputs.logprobs_of(place, asked), mask)?;
            }
            if params.stop_ids.contains(&id) {
                break 'text Finish::StopToken;
            }
            if let Some(grammar) = &mut grammar {
                grammar.follow(id)?;
            }
            let (sure, stopped) = stops.push(&stream.push(id));
            text.push_str(&sure);
            emit(&sure)?;
            if stopped {
                break 'text Finish::StopString;
            }
            if grammar.as_ref().is_some_and(Grammar::is_over) {
                break 'text Finish::Grammar;
            }
            unseen = vec![id];
        }
        if llama.position() >= context {
            break Finish::Context;
        }
    };
    if finish != Finish::StopString {
        let rest = stops.push(&stream.finish()).0 + &stops.finish();
        text.push_str(&rest);
        emit(&rest)?;
    }
    let each = |time: Duration, of: usize| time.as_secs_f64() * 1e6 / of.max(1) as f64;
    let behind = tokens.len().saturating_sub(1);
    let timing = Timing {
        prompt_ms: prompt_time.as_secs_f64() * 1e3,
        model_us: each(model_time, behind),
        choose_us: each(choose_time, tokens.len()),
    };
    acceptance.draft_us = each(draft_time, behind);
    let complete = grammar.as_ref().map(|grammar| match finish {
        Finish::StopString => false,
        Finish::StopToken => true,
        _ => grammar.is_complete(),
    });
    let speculation = drafter.as_ref().map(|_| acceptance);
    Ok(Decoded { text, tokens, finish, complete, timing, speculation })
}

/// The result of the model for a pass.
enum RowsOf {
    /// Logits of each row.
    Logits(Vec<f32>),
    /// Hidden states, of which the last ones count.
    States(Hidden),
}

/// The drafts of a pass, and the masks of its rows, if rows have masks.
#[derive(Default)]
struct Plan {
    drafts: Vec<u32>,
    masks: Option<Vec<u32>>,
}

impl Plan {
    /// Drafts at most `room` tokens, up to the first that ends the text or that the grammar forbids. The mask
    /// of the first row was added.
    fn draft(
        &mut self,
        pool: &mut Pool,
        slot: Slot,
        drafter: &mut Drafter,
        mut grammar: Option<&mut Grammar>,
        padding_mask: Option<&[u32]>,
        room: usize,
    ) -> Result<()> {
        let stop_ids = pool.sequence(slot)?.params().stop_ids.clone();
        while self.drafts.len() < drafter.most.min(room) {
            let Some(draft) = drafter.next(pool, slot, &self.drafts, self.last_mask())? else { break };
            let forbidden = grammar.is_some() && !self.last_mask().is_none_or(|mask| holds_id(mask, draft));
            if stop_ids.contains(&draft) || forbidden {
                break;
            }
            if let Some(grammar) = &mut grammar {
                grammar.follow(draft)?;
            }
            self.drafts.push(draft);
            self.add_mask(grammar.as_deref_mut(), padding_mask)?;
            if grammar.as_ref().is_some_and(|grammar| grammar.is_over()) {
                break;
            }
        }
        grammar.map_or(Ok(()), |grammar| grammar.go_back(self.drafts.len()))
    }

    /// Adds the mask of the row after the drafts so far.
    fn add_mask(&mut self, grammar: Option<&mut Grammar>, padding_mask: Option<&[u32]>) -> Result<()> {
        let allowed = grammar.map(Grammar::mask).transpose()?;
        if let Some(mask) = allowed.as_deref().or(padding_mask) {
            self.masks.get_or_insert_default().extend_from_slice(mask);
        }
        Ok(())
    }

    /// Returns the mask of a row of the pass.
    fn mask(&self, row: usize) -> Option<&[u32]> {
        let words = self.masks.as_ref()?;
        let width = words.len() / (self.drafts.len() + 1);
        Some(&words[width * row..width * (row + 1)])
    }

    /// Returns the mask that was added last.
    fn last_mask(&self) -> Option<&[u32]> {
        self.mask(self.drafts.len())
    }

    /// Verifies the drafts from the last hidden states, one for each row, by a head.
    fn verify_hidden(
        &self,
        pool: &mut Pool,
        slot: Slot,
        head: &mut RequestHead,
        hidden: &Hidden,
        out: &mut Outputs,
    ) -> Result<()> {
        let rows = self.drafts.len() + 1;
        let states = HostMatrix::new(hidden.last_rows(rows), rows, hidden.width())?;
        let ids = self.ids();
        head.verify(pool, slot, states, (&ids, self.masks(rows)?), out)
    }

    /// Returns the drafts as pools take them.
    fn ids(&self) -> Vec<i32> {
        self.drafts.iter().map(|draft| *draft as i32).collect()
    }

    /// Returns the masks of the rows of a pass.
    fn masks(&self, rows: usize) -> Result<Masks<'_>> {
        let Some(words) = &self.masks else { return Ok(Masks::None) };
        let width = words.len() / rows;
        Ok(Masks::new(words, rows, width, width)?)
    }

    /// Verifies the drafts against the rows of the model.
    fn verify(&self, pool: &mut Pool, slot: Slot, rows: Rows<'_>, out: &mut Outputs) -> Result<()> {
        let masks = self.masks(rows.matrix().rows())?;
        let ids = self.ids();
        let batch = Batch { slots: &[slot], counts: &[ids.len() as u32], masks, ..Batch::default() };
        Ok(pool.verify(rows, &batch, &Drafts::chain(&ids), out)?)
    }
}

/// Returns the logits after the tokens seen so far and `unseen`, and after each draft that follows them.
fn forward(llama: &mut Llama, unseen: &[u32], drafts: &[u32]) -> Result<Vec<f32>> {
    let hidden = llama.hidden(&[unseen, drafts].concat())?;
    Ok(llama.logits_last(&hidden, drafts.len() + 1)?)
}

/// Describes an emitted token.
fn step(tokenizer: &Tokenizer, params: &SamplingParams, outputs: &Outputs, place: usize) -> Step {
    let id = outputs.tokens()[place] as u32;
    let record = |id, logprob, rank| LogprobRecord { id, logprob, rank, second: None };
    let logprobs = params.logprobs.as_ref();
    let top = outputs.top_ids(place).iter().zip(outputs.top_logprobs(place)).zip(1..);
    let top =
        top.filter(|((id, _), _)| **id != NONE).map(|((id, logprob), rank)| record(*id, *logprob, rank));
    let named = logprobs.map_or(&[][..], |logprobs| &logprobs.ids).iter();
    let named = named.zip(outputs.id_logprobs(place)).zip(outputs.id_ranks(place));
    Step {
        id,
        text: tokenizer.readable(id),
        logprob: logprobs.map(|logprobs| LogprobRecord {
            second: logprobs.mode.second.map(|_| outputs.second_logprobs()[place]),
            ..record(id as i32, outputs.logprobs()[place], outputs.ranks()[place])
        }),
        top_logprobs: top.collect(),
        logprob_ids: named.map(|((id, logprob), rank)| record(*id as i32, *logprob, *rank)).collect(),
    }
}
