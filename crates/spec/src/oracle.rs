//! The oracle: all stages in turn, naive and obvious. Its results are right by definition.

use std::ops::Range;

use crate::draw::draw;
use crate::edit::{Edited, Hook, edit};
use crate::error::Result;
use crate::filter::{filter, next_mu, temperature};
use crate::logprobs::{Distribution, Logprobs, logprobs};
use crate::params::{LogprobMode, SamplingParams};
use crate::radius::{Drawn, radius};
use crate::request::{Forced, Request, check_hook};
use crate::row::{Kind, NONE, Row, Status};
use crate::section;
use crate::survey::{Given, Measure, order};
use crate::watermark::{self, Key, Words};

/// Everything the stages found out about one row.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The kind of the row's numbers.
    pub kind: Kind,
    /// The row's numbers after its edits, as they count.
    pub z: Vec<f32>,
    /// The token to emit: the drawn or the forced one, or [`NONE`].
    pub token: i32,
    /// The status of the row's data.
    pub status: Status,
    /// The temperature in use; 0 if greedy.
    pub temperature: f32,
    /// The ids above -inf after the edits, in order.
    pub order: Vec<u32>,
    /// The tokens that the filters keep, as places in `order`.
    pub kept: Range<usize>,
    /// The forced token, which is the kept set; none if the token is drawn or known.
    pub forced: Option<u32>,
    /// The logprobs, if asked for.
    pub logprobs: Option<Logprobs>,
    /// Mirostat's limit, or the mean of adaptive-p, after this row.
    pub mu: f32,
    /// The words of the row's mark, if it has one (W2).
    pub mark: Option<Words>,
}

impl Outcome {
    /// Returns the kept set: the forced token, or else what the filters keep, in order.
    #[must_use]
    pub fn kept_ids(&self) -> &[u32] {
        self.forced.as_ref().map_or(self.filtered_ids(), std::slice::from_ref)
    }

    /// Returns the request as the row drew by it: with the token that the end of a section or of a loop
    /// forced, and with the words of the row's mark.
    #[must_use]
    pub fn request<'a>(&self, request: &Request<'a>) -> Request<'a> {
        Request { forced: request.emitted(), mark: self.mark, ..*request }
    }

    /// Returns the row as the rules of the radius read it. `hooked`: whether a hook changed the row.
    #[must_use]
    pub fn drawn(&self, hooked: bool) -> Drawn<'_> {
        let Self { z, order, token, temperature, .. } = self;
        let (token, temperature, kept) = (*token, *temperature, self.kept.len());
        Drawn { z, order, kept, token, temperature, hooked }
    }

    /// Returns the ids that the filters keep, in order.
    #[must_use]
    pub fn filtered_ids(&self) -> &[u32] {
        &self.order[self.kept.clone()]
    }
}

/// Chooses the next token of one row.
///
/// # Errors
/// The errors of [`SamplingParams::validate_for`](crate::SamplingParams::validate_for), [`watermark::key`],
/// [`Request::validate`] and [`check_hook`].
pub fn sample(row: Row<'_>, request: &Request<'_>, hook: Option<Hook<'_>>) -> Result<Outcome> {
    request.params.validate(row.vocab())?;
    // Where a request is admitted, before its rows are known.
    let key = request.params.watermark.own().map(|watermark| watermark::key(watermark.key)).transpose()?;
    request.params.check_kind(request.kind)?;
    request.validate(row.vocab())?;
    check_hook(request.kind, hook.is_some())?;
    let is_hooked = hook.is_some();
    let edited = edit(row, request, hook);
    let order = order(&edited.z);
    let ending = section::ending(request);
    let mark = key.and_then(|key| mark(request, key));
    let request = &Request { forced: request.forced.or(ending.emitted()), mark, ..*request };
    let mut outcome = Outcome {
        kind: request.kind,
        z: edited.z.clone(),
        token: request.forced.map_or(NONE, |forced| forced.id as i32),
        status: edited.status,
        temperature: request.params.temperature,
        order,
        kept: 0..0,
        forced: request.forced.and_then(Forced::kept),
        logprobs: None,
        mu: request.mu,
        mark,
    };
    if outcome.order.is_empty() {
        outcome.status.insert(Status::EMPTY);
    } else {
        choose(&mut outcome, request, &edited);
    }
    if outcome.forced.is_some() && !request.params.reads_forced_rows() {
        outcome.temperature = SamplingParams::zero_if_greedy(request.params.temperature);
        outcome.status = Status::default();
    }
    outcome.status.insert(request.forced.map_or(ending.status, |forced| forced.by));
    if mark.is_some() {
        outcome.status.insert(Status::MARKED);
    }
    if ending.forced.is_some_and(|id| !edited.allowed[id as usize]) {
        outcome.status.insert(Status::FORBIDDEN);
    }
    if let Some(params) = &request.params.logprobs {
        let raw_order = crate::survey::order(&edited.raw);
        let of = |mode| distribution(mode, request.kind, &outcome, &edited, &raw_order);
        let second = match params.mode.second {
            None => f32::NEG_INFINITY,
            Some(LogprobMode::Radius) => radius(request, &outcome.drawn(is_hooked)),
            Some(mode) => of(mode).of(outcome.token).logprob,
        };
        outcome.logprobs = Some(logprobs(params, &of(params.mode.first), second, outcome.token));
    }
    Ok(outcome)
}

/// Returns the words of the mark of a row; none if its token is forced, or known.
fn mark(request: &Request<'_>, key: Key) -> Option<Words> {
    let ids = [request.prompt, request.output].concat();
    let mark = request.params.mark_by(key, &ids, request.prompt.len());
    mark.filter(|_| request.emitted().is_none())
}

fn choose(outcome: &mut Outcome, request: &Request<'_>, edited: &Edited) {
    outcome.temperature = temperature(request.params, &edited.z, &outcome.order);
    if outcome.temperature == 0.0 {
        outcome.kept = 0..1;
        outcome.token = request.forced.map_or(outcome.order[0], |forced| forced.id) as i32;
        return;
    }
    outcome.kept = filter(request, &edited.z, &outcome.order, outcome.temperature);
    let measure = Measure::new(request.kind, outcome.temperature);
    let kept = Given::new(&edited.z, &outcome.order[outcome.kept.clone()], measure);
    // A forced token was not drawn: it says nothing about what mirostat and adaptive-p steer.
    if request.forced.is_none() {
        let token = draw(request, &kept);
        outcome.mu = next_mu(request.params, request.mu, &kept, token);
        outcome.token = token as i32;
    }
}

/// Returns the distribution that a mode speaks of (L1).
fn distribution<'a>(
    mode: LogprobMode,
    kind: Kind,
    outcome: &'a Outcome,
    edited: &'a Edited,
    raw_order: &'a [u32],
) -> Distribution<'a> {
    let (z, members, temperature) = match mode {
        LogprobMode::Raw => (&edited.raw, raw_order, 1.0),
        LogprobMode::Edited => (&edited.z, &outcome.order[..], 1.0),
        LogprobMode::Tempered => (&edited.z, &outcome.order[..], outcome.temperature),
        LogprobMode::Processed if outcome.forced.is_some() => (&edited.z, outcome.kept_ids(), 0.0),
        LogprobMode::Processed => (&edited.z, outcome.kept_ids(), outcome.temperature),
        LogprobMode::Radius => unreachable!("validation refuses it as a first mode"),
    };
    let certain = members.is_empty() || temperature == 0.0;
    let mass = if certain { 0 } else { Given::new(z, members, Measure::new(kind, temperature)).total() };
    Distribution { kind, z, members, temperature, mass }
}
