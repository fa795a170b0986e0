//! What every stage did to one row, in figures that a person can follow.
//!
//! The trace is told from the oracle's own functions, stage by stage: whatever it says happened is what the
//! definition says happens, and the token at its end is the oracle's. Masses and thresholds are exact;
//! probabilities for reading are f64 made from them. "Place" is a token's place in the order, from 0.

mod edits;
mod filters;
mod on_device;
mod race;
mod reasons;
mod whatif;

use std::ops::Range;

use gumball_spec::adaptive::Adaptive;
use gumball_spec::edit::edit;
use gumball_spec::filter::temperature;
use gumball_spec::logprobs::logprob;
use gumball_spec::survey::{Given, Measure, order};
use gumball_spec::{Kind, Request, Row, SamplingParams, oracle, radius};
use serde::Serialize;

pub use edits::{Change, Edit, Edits};
pub use filters::{FilterTrace, Side, Sides};
pub use on_device::OnDevice;
pub use race::{Race, Runner, Tile};
pub use reasons::filter_words;
pub use whatif::{Bucket, WhatIf};

use crate::Result;

/// How a token's text is found, if there is a tokenizer.
pub type Texts<'t> = &'t dyn Fn(u32) -> Option<String>;

/// Everything about one row.
#[derive(Clone, Debug, Serialize)]
pub struct Trace {
    /// Where the row comes from, in words.
    pub source: String,
    /// The number of logits.
    pub vocab: usize,
    /// The status of the row's data.
    pub status: Vec<&'static str>,
    /// The seed in use.
    pub seed: u64,
    /// The number of tokens before the drawn one.
    pub position: u32,
    /// The draw index.
    pub draw: u32,
    /// The parameters.
    pub params: SamplingParams,
    /// The steps of the edits.
    pub edits: Edits,
    /// How many tokens were above -inf after them.
    pub candidates: usize,
    /// The temperature.
    pub temperature: Temperature,
    /// The cut of each filter, in the order in which they acted.
    pub filters: Vec<FilterTrace>,
    /// The set that was left in the end.
    pub kept: Kept,
    /// The first tokens of the order.
    pub tokens: Vec<Token>,
    /// The probability at some places of the order, denser at its head.
    pub curve: Vec<Point>,
    /// The race; none if nothing had to be drawn, or the trace is brief.
    pub race: Option<Race>,
    /// The token that was chosen; none in an empty row.
    pub winner: Option<Token>,
    /// How far all logits may move before another token is drawn (L7); none if the trace is brief, no radius
    /// is known, or there is no bound.
    pub radius: Option<f32>,
    /// What other settings would have drawn from the same arrivals; none if the trace is brief.
    pub what_if: Option<WhatIf>,
    /// The result of a device, if one was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<OnDevice>,
}

/// The temperature that was asked for and the one in use.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Temperature {
    /// As the parameters say.
    pub asked: f32,
    /// In use; 0 is greedy.
    pub in_use: f32,
    /// The entropy of the edited row at temperature 1, in bits.
    pub entropy_bits: f32,
    /// The entropy at the temperature in use, in bits; 0 if greedy.
    pub entropy_in_use_bits: f32,
}

/// The kept set.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Kept {
    /// The place of its first token.
    pub first: usize,
    /// The place after its last token.
    pub end: usize,
    /// The share of the row's probability that it holds, at the temperature in use.
    pub share: f64,
}

/// A token with its place, its text and its probability.
#[derive(Clone, Debug, Serialize)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its text, if there is a tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Its place in the order, from 0; none for a forced token that the edits banned.
    pub place: Option<usize>,
    /// Its logit as it came.
    pub raw: f32,
    /// Its logit after the edits.
    pub logit: f32,
    /// Its probability in the edited row, at the temperature in use.
    pub p: f64,
    /// Its probability in the draw: in the kept set, or by adaptive-p; 0 outside the kept set.
    pub p_kept: f64,
    /// When it arrived; none where nothing was drawn or it was not kept.
    pub arrival: Option<f32>,
    /// Its score, as above.
    pub score: Option<f32>,
}

/// One place of the order.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// The place, from 0.
    pub place: usize,
    /// The token's probability in the edited row, at the temperature in use.
    pub p: f64,
    /// The probability of this place and all before it.
    pub cumulative: f64,
}

/// How much a trace tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Everything.
    Full,
    /// All but the race and what other settings would have drawn, which cost about as much as the rest.
    Brief,
}

/// How many tokens a trace lists.
pub const LISTED: usize = 40;

/// A row on its way through the stages.
struct Path<'a> {
    request: &'a Request<'a>,
    raw: Vec<f32>,
    z: Vec<f32>,
    order: Vec<u32>,
    temperature: f32,
    kept: Range<usize>,
    /// The race of adaptive-p, and the sum of the kept tokens' weights in it.
    adaptive: Option<(Adaptive, f64)>,
    texts: Texts<'a>,
}

impl Path<'_> {
    /// The measure at the temperature in use; at that of 1 where it is greedy.
    fn measure(&self) -> Measure {
        Measure::new(Kind::Logits, if self.temperature == 0.0 { 1.0 } else { self.temperature })
    }

    fn row(&self) -> Given<'_> {
        Given::new(&self.z, &self.order, self.measure())
    }

    fn kept(&self) -> Given<'_> {
        Given::new(&self.z, &self.order[self.kept.clone()], self.measure())
    }

    /// Describes the token to emit. A forced one may be banned: then the order has no place for it.
    fn winner(&self, id: u32, row: u64, kept: u64) -> Token {
        if let Some(place) = self.order.iter().position(|other| *other == id) {
            return self.token(place, row, kept);
        }
        Token {
            id,
            text: (self.texts)(id),
            place: None,
            raw: self.raw[id as usize],
            logit: self.z[id as usize],
            p: 0.0,
            p_kept: 0.0,
            arrival: None,
            score: None,
        }
    }

    /// Describes the token at a place; `row` and `kept` are the masses of both.
    fn token(&self, place: usize, row: u64, kept: u64) -> Token {
        let id = self.order[place];
        let z = self.z[id as usize];
        let t = if self.temperature == 0.0 { 1.0 } else { self.temperature };
        let p = |first: usize, mass| f64::from(logprob(z, self.z[self.order[first] as usize], t, mass)).exp();
        let inside = self.kept.contains(&place);
        let drawn = inside && self.temperature > 0.0;
        let p_drawn = match self.adaptive {
            None => p(self.kept.start, kept),
            Some((adaptive, sum)) => {
                f64::from(adaptive.exponent(self.measure().ratio(z, self.kept().first()))).exp2() / sum
            }
        };
        Token {
            id,
            text: (self.texts)(id),
            place: Some(place),
            raw: self.raw[id as usize],
            logit: z,
            p: p(0, row),
            p_kept: match (inside, self.temperature == 0.0) {
                (false, _) => 0.0,
                (true, true) => 1.0,
                (true, false) => p_drawn,
            },
            arrival: drawn.then(|| gumball_spec::draw::arrival(self.request, id)),
            score: drawn.then(|| gumball_spec::draw::score(self.request, &self.kept(), id)),
        }
    }
}

impl Trace {
    /// Traces a row.
    ///
    /// # Errors
    /// The errors of the oracle.
    pub fn of(
        row: Row<'_>,
        request: &Request<'_>,
        source: &str,
        texts: Texts<'_>,
        detail: Detail,
    ) -> Result<Self> {
        let outcome = oracle::sample(row, request, None)?;
        let edited = edit(row, request, None);
        let mut trace = Self {
            source: source.to_owned(),
            vocab: row.vocab(),
            status: outcome.status.names().collect(),
            seed: request.seed,
            position: request.position,
            draw: request.draw,
            params: request.params.clone(),
            edits: Edits::of(row, request, &edited, texts),
            candidates: outcome.order.len(),
            temperature: Temperature {
                asked: request.params.temperature,
                in_use: outcome.temperature,
                entropy_bits: 0.0,
                entropy_in_use_bits: 0.0,
            },
            filters: Vec::new(),
            kept: Kept { first: outcome.kept.start, end: outcome.kept.end, share: 1.0 },
            tokens: Vec::new(),
            curve: Vec::new(),
            race: None,
            winner: None,
            radius: (detail == Detail::Full).then(|| radius_of(request, &outcome)).flatten(),
            what_if: None,
            device: None,
        };
        let token = u32::try_from(outcome.token).ok();
        debug_assert_eq!(order(&edited.z), outcome.order);
        debug_assert_eq!(temperature(request.params, &edited.z, &outcome.order), outcome.temperature);
        let mut path = Path {
            request,
            raw: edited.raw,
            z: edited.z,
            order: outcome.order,
            temperature: outcome.temperature,
            kept: outcome.kept,
            adaptive: None,
            texts,
        };
        let (mut mass, mut kept_mass) = (0, 0);
        if !path.order.is_empty() {
            (mass, kept_mass) = (path.row().total(), path.kept().total());
            path.adaptive = Adaptive::new(request.params, request.mu, || kept_mass).map(|adaptive| {
                let kept = path.kept();
                let weights =
                    kept.members.iter().map(|id| f64::from(adaptive.exponent(kept.ratio(*id))).exp2());
                (adaptive, weights.sum())
            });
            trace.follow(&path, mass, kept_mass, detail);
        }
        trace.winner = token.map(|id| path.winner(id, mass, kept_mass));
        Ok(trace)
    }

    /// Fills in the stages of a row that is not empty.
    fn follow(&mut self, path: &Path<'_>, mass: u64, kept_mass: u64, detail: Detail) {
        let row = path.row();
        self.temperature.entropy_bits =
            Given::new(&path.z, &path.order, Measure::new(Kind::Logits, 1.0)).entropy();
        if path.temperature > 0.0 {
            self.temperature.entropy_in_use_bits = row.entropy();
            self.filters = filters::of(path);
        }
        if detail == Detail::Full {
            self.race = (path.temperature > 0.0).then(|| Race::of(path, mass, kept_mass));
            self.what_if = Some(WhatIf::of(path));
        }
        self.kept.share = row.mass(&path.order[path.kept.clone()]) as f64 / mass as f64;
        self.curve = curve(path, mass);
        let listed = path.order.len().min(LISTED);
        self.tokens = (0..listed).map(|place| path.token(place, mass, kept_mass)).collect();
    }
}

fn radius_of(request: &Request<'_>, outcome: &oracle::Outcome) -> Option<f32> {
    let radius = radius::radius(&outcome.request(request), &outcome.drawn(false));
    (radius > 0.0 && radius < f32::INFINITY).then_some(radius)
}

/// Follows the probability along the order: every place of the head, then fewer and fewer.
fn curve(path: &Path<'_>, mass: u64) -> Vec<Point> {
    let t = if path.temperature == 0.0 { 1.0 } else { path.temperature };
    let first = path.z[path.order[0] as usize];
    let (mut cumulative, mut next, mut curve) = (0.0, 0, Vec::new());
    for (place, id) in path.order.iter().enumerate() {
        let p = f64::from(logprob(path.z[*id as usize], first, t, mass)).exp();
        cumulative += p;
        if place == next || place + 1 == path.order.len() {
            curve.push(Point { place, p, cumulative });
            next = place + 1 + place / 24;
        }
    }
    curve
}

#[cfg(test)]
mod tests {
    use super::*;
    use gumball_spec::Forced;

    fn traced(row: &[f32], params: &SamplingParams, mask: Option<&[u32]>) -> Trace {
        let request = Request { mask, forced: Some(Forced::by_caller(1)), ..Request::new(params, &[], 7) };
        Trace::of(Row::F32(row), &request, "a row", &|_| None, Detail::Full).unwrap()
    }

    #[test]
    fn a_forced_token_that_is_banned_wins_without_a_place() {
        let row = [1.0, 2.0, 3.0];
        for temperature in [0.0, 1.0] {
            let params = SamplingParams { temperature, banned_ids: vec![1], ..SamplingParams::default() };
            let neutral = SamplingParams { temperature, ..SamplingParams::default() };
            for trace in [traced(&row, &params, None), traced(&row, &neutral, Some(&[0b101]))] {
                let winner = trace.winner.as_ref().unwrap();
                assert_eq!((winner.id, winner.place, winner.raw, winner.p), (1, None, 2.0, 0.0));
                assert_eq!((trace.candidates, trace.tokens.len()), (2, 2));
                assert!(crate::page::page(&trace, None).contains("forced"));
            }
        }
    }

    #[test]
    fn a_brief_trace_tells_the_same_but_for_the_race_and_what_if() {
        let params = SamplingParams { temperature: 0.7, top_k: 2, ..SamplingParams::default() };
        let request = Request::new(&params, &[], 7);
        let told =
            |detail| Trace::of(Row::F32(&[1.0, 2.0, 3.0]), &request, "a row", &|_| None, detail).unwrap();
        let (mut full, brief) = (told(Detail::Full), told(Detail::Brief));
        assert!(full.race.take().is_some() && full.what_if.take().is_some());
        assert!(full.radius.take().is_some_and(|radius| radius < 1.0));
        let text = |trace| serde_json::to_string(trace).unwrap();
        assert_eq!(text(&full), text(&brief));
    }

    #[test]
    fn a_forced_token_wins_in_a_row_without_tokens() {
        let trace = traced(&[f32::NEG_INFINITY; 3], &SamplingParams::default(), None);
        let winner = trace.winner.as_ref().unwrap();
        assert_eq!((winner.id, winner.place, trace.candidates), (1, None, 0));
        assert!(trace.race.is_none() && trace.what_if.is_none() && trace.filters.is_empty());
        assert!(crate::page::page(&trace, None).contains("forced"));
    }
}
