//! The tokens that each filter kept of its given set, and why it drew the line there.

use std::ops::Range;

use gumball_spec::adaptive::Adaptive;
use gumball_spec::filter::cut;
use gumball_spec::{Filter, FilterOrder};
use serde::Serialize;

use super::Path;
use super::reasons::{Filtering, Reason};

/// The cut of one filter.
#[derive(Clone, Debug, Serialize)]
pub struct FilterTrace {
    /// The filter's name.
    pub name: &'static str,
    /// The value of its parameter.
    pub value: f32,
    /// The places it was given.
    pub given: (usize, usize),
    /// The places it kept.
    pub kept: (usize, usize),
    /// The kept share of its given set.
    pub share: f64,
    /// The exact mass it was given, in units of 2^-43 of its first token's weight.
    pub mass: u64,
    /// The mass it aimed at, if it aims at one.
    pub target: Option<u64>,
    /// The probability in the given set from which a token passes, if it has such a threshold.
    pub threshold: Option<f64>,
    /// The entropy of the given set in bits, if it looks at that.
    pub entropy_bits: Option<f32>,
    /// Why the line is where it is, in words.
    pub because: String,
    /// The tokens around the end of its kept set.
    pub end: Sides,
    /// The tokens at the beginning, if it dropped the most likely ones.
    pub start: Option<Sides>,
}

/// The two tokens at a line.
#[derive(Clone, Debug, Serialize)]
pub struct Sides {
    /// The one that just stayed.
    pub kept: Side,
    /// The one that just fell; none if nothing did.
    pub dropped: Option<Side>,
}

/// A token at a line.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// The token.
    pub id: u32,
    /// Its text, if there is a tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Its place in the order.
    pub place: usize,
    /// Its logit.
    pub logit: f32,
    /// Its probability in the given set.
    pub p: f64,
    /// The share of the given set up to and with it.
    pub cumulative: f64,
}

/// Tells what each filter of a request did; nothing where none is on.
pub(super) fn of(path: &Path<'_>) -> Vec<FilterTrace> {
    let params = path.request.params;
    if let Some(mirostat) = params.mirostat {
        let row = 0..path.order.len();
        return vec![Filtering::new(path, row, path.temperature).mirostat(mirostat.tau, path.kept.clone())];
    }
    let t = if params.temperature_last { 1.0 } else { path.temperature };
    let mut given = 0..path.order.len();
    let mut traces = Vec::new();
    for filter in params.filters(path.z.len()) {
        let filtering = Filtering::new(path, given.clone(), t);
        let cut = cut(filter, path.request, &filtering.set);
        let kept = given.start + cut.start..given.start + cut.end;
        traces.push(filtering.trace(filter, kept.clone()));
        if params.order != FilterOrder::Joint {
            given = kept;
        }
    }
    if params.is_adaptive() {
        traces.push(Filtering::new(path, path.kept.clone(), path.temperature).adaptive());
    }
    traces
}

impl Filtering<'_> {
    fn trace(&self, filter: Filter, kept: Range<usize>) -> FilterTrace {
        let Reason { value, mut because, target, threshold, entropy_bits } = self.reason(filter);
        let min_keep = self.path.request.params.min_keep as usize;
        if kept.len() == self.given.len() {
            because += "; nothing had to go";
        } else if min_keep > 1 && kept.len() == min_keep {
            because += &format!("; at least {min_keep} stay");
        }
        FilterTrace { value, because, target, threshold, entropy_bits, ..self.lines(filter.name(), kept) }
    }

    fn mirostat(&self, tau: f32, kept: Range<usize>) -> FilterTrace {
        let mu = self.path.request.mu;
        let because =
            format!("what is at most {mu} bits of surprise stays; the aim is {tau} bits on average");
        let threshold = Some((-f64::from(mu)).exp2());
        FilterTrace { value: mu, because, threshold, ..self.lines("mirostat", kept) }
    }

    /// Tells of adaptive-p, which keeps what it is given.
    fn adaptive(&self) -> FilterTrace {
        let request = self.path.request;
        let adaptive = Adaptive::new(request.params, request.mu, || self.mass).expect("it is on");
        let because = format!(
            "all stay, and race by how near their probability is to {}: the target is {}, and the tokens so far had {} \
             on average",
            adaptive.goal,
            request.params.adaptive_target,
            request.mu.clamp(0.0, 1.0)
        );
        let value = request.params.adaptive_target;
        FilterTrace { value, because, ..self.lines("adaptive_target", self.given.clone()) }
    }

    /// Fills in what every filter has: its sets and the tokens at the lines between them.
    fn lines(&self, name: &'static str, kept: Range<usize>) -> FilterTrace {
        let dropped = (kept.end < self.given.end).then(|| self.side(kept.end));
        let end = Sides { kept: self.side(kept.end - 1), dropped };
        let before = |place: usize| Sides { kept: self.side(place), dropped: Some(self.side(place - 1)) };
        let start = (kept.start > self.given.start).then(|| before(kept.start));
        FilterTrace {
            name,
            value: 0.0,
            given: (self.given.start, self.given.end),
            kept: (kept.start, kept.end),
            share: self.share(kept),
            mass: self.mass,
            target: None,
            threshold: None,
            entropy_bits: None,
            because: String::new(),
            end,
            start,
        }
    }

    fn share(&self, places: Range<usize>) -> f64 {
        self.set.mass(&self.path.order[places]) as f64 / self.mass as f64
    }

    fn side(&self, place: usize) -> Side {
        let id = self.path.order[place];
        Side {
            id,
            text: (self.path.texts)(id),
            place,
            logit: self.path.z[id as usize],
            p: self.p(place),
            cumulative: self.share(self.given.start..place + 1),
        }
    }
}
