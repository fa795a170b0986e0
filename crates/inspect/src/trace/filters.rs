//! What each filter kept of what it was given, and why it drew the line there.

use std::ops::Range;

use gumball_spec::filter::{cut, fraction_to_u32, target_mass};
use gumball_spec::logprobs::logprob;
use gumball_spec::num::{Tag, philox4x32_10};
use gumball_spec::survey::{Given, Measure};
use gumball_spec::{Filter, FilterOrder, Kind};
use serde::Serialize;

use super::Path;

/// What one filter did.
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
    /// The share of what it was given that it kept.
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
    /// The tokens at the end of what it kept.
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
    traces
}

/// A filter at work on a given set.
struct Filtering<'a> {
    path: &'a Path<'a>,
    set: Given<'a>,
    given: Range<usize>,
    temperature: f32,
    mass: u64,
}

impl<'a> Filtering<'a> {
    fn new(path: &'a Path<'a>, given: Range<usize>, temperature: f32) -> Self {
        let set = Given::new(&path.z, &path.order[given.clone()], Measure::new(Kind::Logits, temperature));
        let mass = set.total();
        Self { path, set, given, temperature, mass }
    }

    fn trace(&self, filter: Filter, kept: Range<usize>) -> FilterTrace {
        let params = self.path.request.params;
        let given = self.given.len();
        let (value, words): (f32, String) = match filter {
            Filter::TopK => {
                (params.top_k as f32, format!("the first {} tokens of the order stay", params.top_k))
            }
            Filter::TopP => {
                (params.top_p, "the shortest prefix whose mass reaches the target stays".to_owned())
            }
            Filter::MinP => (
                params.min_p,
                format!("what is at least {} times as likely as the first token stays", params.min_p),
            ),
            Filter::TypicalP => (
                params.typical_p,
                "the tokens whose surprise is nearest to the entropy stay, up to the target mass".to_owned(),
            ),
            Filter::TopA => (
                params.top_a,
                format!(
                    "what has {} times the square of the first token's probability or more stays",
                    params.top_a
                ),
            ),
            Filter::PLess => {
                (1.0, "what is at least as likely as two draws are to be the same token stays".to_owned())
            }
            Filter::EpsilonCutoff => (
                params.epsilon_cutoff,
                format!("what has probability {} or more stays", params.epsilon_cutoff),
            ),
            Filter::EtaCutoff => (
                params.eta_cutoff,
                "what is likelier than a threshold that falls with the entropy stays".to_owned(),
            ),
            Filter::TopNSigma => (params.top_n_sigma, self.sigma_words(params.top_n_sigma)),
            Filter::Xtc => {
                (params.xtc_probability, self.xtc_words(params.xtc_probability, params.xtc_threshold))
            }
        };
        let target = match filter {
            Filter::TopP => Some(target_mass(params.top_p, self.mass)),
            Filter::TypicalP => Some(target_mass(params.typical_p, self.mass)),
            _ => None,
        };
        let first = self.p(self.given.start);
        let threshold = match filter {
            Filter::MinP => Some(f64::from(params.min_p) * first),
            Filter::TopA => Some(f64::from(params.top_a) * first * first),
            Filter::PLess => Some(self.given.clone().map(|place| self.p(place).powi(2)).sum()),
            Filter::EpsilonCutoff => Some(f64::from(params.epsilon_cutoff)),
            Filter::EtaCutoff => {
                let eta = f64::from(params.eta_cutoff);
                Some(eta.min(eta.sqrt() * (-f64::from(self.set.entropy())).exp2()))
            }
            Filter::Xtc => Some(f64::from(params.xtc_threshold)),
            _ => None,
        };
        let looks_at_entropy = matches!(filter, Filter::TypicalP | Filter::EtaCutoff);
        let because = if kept.len() == given { format!("{words}; nothing had to go") } else { words };
        let entropy_bits = looks_at_entropy.then(|| self.set.entropy());
        FilterTrace { value, because, target, threshold, entropy_bits, ..self.lines(filter.name(), kept) }
    }

    fn mirostat(&self, tau: f32, kept: Range<usize>) -> FilterTrace {
        let mu = self.path.request.mu;
        let because =
            format!("what is at most {mu} bits of surprise stays; the aim is {tau} bits on average");
        let threshold = Some((-f64::from(mu)).exp2());
        FilterTrace { value: mu, because, threshold, ..self.lines("mirostat", kept) }
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

    fn p(&self, place: usize) -> f64 {
        let z = self.path.z[self.path.order[place] as usize];
        f64::from(logprob(z, self.set.first(), self.temperature, self.mass)).exp()
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

    fn sigma_words(&self, n: f32) -> String {
        let first = f64::from(self.set.first());
        let below = |id: &u32| (first - f64::from(self.set.value(*id))).min(1023.999);
        let count = self.given.len() as f64;
        let mean = self.set.members.iter().map(below).sum::<f64>() / count;
        let square = self.set.members.iter().map(|id| (below(id) - mean).powi(2)).sum::<f64>() / count;
        let sigma = square.sqrt();
        format!(
            "the logits' standard deviation is {sigma:.3}; what is at most {n} of it, {:.3}, below the best stays",
            f64::from(n) * sigma
        )
    }

    fn xtc_words(&self, probability: f32, threshold: f32) -> String {
        let request = self.path.request;
        let [word, ..] = philox4x32_10(request.seed, [0, request.position, Tag::Xtc as u32, request.draw]);
        let chance = f64::from(word) / 4_294_967_296.0;
        if u64::from(word) < fraction_to_u32(probability) {
            format!(
                "the coin fell on {chance:.3}, below {probability}, so it acts: of the tokens of probability {threshold} and more only the last stays"
            )
        } else {
            format!("the coin fell on {chance:.3}, not below {probability}, so it does not act this time")
        }
    }
}
