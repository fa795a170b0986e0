//! The words about each filter: its purpose, and the reason for the place of its line in a row.

use std::ops::Range;

use gumball_spec::filter::{TOP_H_TOKENS, fraction_to_u32, target_mass};
use gumball_spec::logprobs::logprob;
use gumball_spec::num::{Tag, philox4x32_10};
use gumball_spec::survey::{Given, Measure};
use gumball_spec::{Filter, Kind};

use super::Path;

/// Returns the name of a filter, of mirostat or of adaptive-p, as people write it, and its purpose, for a
/// newcomer.
#[must_use]
pub fn filter_words(name: &str) -> (&'static str, &'static str) {
    if name == "adaptive_target" {
        return (
            "Adaptive-p",
            "It drops nothing, and turns the race around: whoever has about the wanted probability is favoured, likelier \
     and unlikelier tokens are not. If the text was too likely so far, it aims lower, and the other way round.",
        );
    }
    let Ok(filter) = name.parse() else {
        return (
            "Mirostat",
            "A thermostat. It keeps what surprises by at most \u{3bc} bits, and moves \u{3bc} after every token so \
     that the surprise stays near a target on average.",
        );
    };
    match filter {
        Filter::TopH => (
            "Top-H",
            "Adds up how much each token, likeliest first, adds to the uncertainty of the best hundred, and stops \
             before that exceeds a share of it. An unsure model keeps many tokens, and never more than a hundred.",
        ),
        Filter::TopK => (
            "Top-k",
            "The bluntest filter: count off the k likeliest tokens and forget the rest. It does not ask how likely \
             they are, so it lets nonsense in when the model is sure of itself and cuts good words when it is not.",
        ),
        Filter::TopP => (
            "Top-p",
            "Also called nucleus sampling. Walk down the list, likeliest first, and stop as soon as the tokens \
             walked past hold a share p of all the probability. A sure model leaves a handful of tokens, an unsure \
             one leaves hundreds.",
        ),
        Filter::MinP => (
            "Min-p",
            "Compares every token with the likeliest one. Whatever is less than the given fraction as likely goes. \
             The bar is high when one token stands out, and low when many are about equal.",
        ),
        Filter::TypicalP => (
            "Typical-p",
            "Keeps the tokens that would surprise about as much as the model expects to be surprised. It can drop \
             the likeliest token for being too obvious, as well as the unlikely ones.",
        ),
        Filter::TopNSigma => (
            "Top-n\u{3c3}",
            "Looks at the logits themselves. Most of them form a bell-shaped heap of noise, and the sensible \
             tokens stand clear of it. Whatever is more than n standard deviations below the best is taken for noise.",
        ),
        Filter::TopA => (
            "Top-a",
            "A bar at a multiple of the square of the best token's probability. It is high when one token stands out, and \
             falls twice as fast as that of min-p when many are about equal.",
        ),
        Filter::PLess => (
            "P-less",
            "A bar without a knob: the probability that two draws from the row would be the same token. It is high when the model is \
             sure, and as low as the tokens themselves when all are equal.",
        ),
        Filter::EpsilonCutoff => {
            ("Epsilon cutoff", "A fixed bar: whatever is less likely than epsilon goes.")
        }
        Filter::EtaCutoff => (
            "Eta cutoff",
            "A bar like epsilon's that gets lower the more undecided the model is, so that it does not empty a flat row.",
        ),
        Filter::Xtc => (
            "XTC",
            "\u{201c}Exclude top choices\u{201d}: now and then, as a coin decides, all tokens above a threshold go \
             except the least likely of them. It makes text less predictable without letting nonsense in.",
        ),
    }
}

/// Why a filter drew the line where it did.
pub(super) struct Reason {
    /// The value of its parameter.
    pub value: f32,
    pub because: String,
    /// The mass it aimed at, if it aims at one.
    pub target: Option<u64>,
    /// The probability in the given set from which a token passes, if it has such a threshold.
    pub threshold: Option<f64>,
    /// The entropy of the given set in bits, if it looks at that.
    pub entropy_bits: Option<f32>,
}

/// A filter at work on a given set.
pub(super) struct Filtering<'a> {
    pub path: &'a Path<'a>,
    pub set: Given<'a>,
    /// The places of the set.
    pub given: Range<usize>,
    temperature: f32,
    pub mass: u64,
}

impl<'a> Filtering<'a> {
    pub fn new(path: &'a Path<'a>, given: Range<usize>, temperature: f32) -> Self {
        let set = Given::new(&path.z, &path.order[given.clone()], Measure::new(Kind::Logits, temperature));
        let mass = set.total();
        Self { path, set, given, temperature, mass }
    }

    /// Returns the probability in the given set of the token at a place.
    pub fn p(&self, place: usize) -> f64 {
        let z = self.path.z[self.path.order[place] as usize];
        f64::from(logprob(z, self.set.first(), self.temperature, self.mass)).exp()
    }

    /// Returns why a filter kept what it did.
    pub fn reason(&self, filter: Filter) -> Reason {
        let params = self.path.request.params;
        let plain = |value: f32, because: &str| Reason {
            value,
            because: because.to_owned(),
            target: None,
            threshold: None,
            entropy_bits: None,
        };
        let mass =
            |p: f32, because: &str| Reason { target: Some(target_mass(p, self.mass)), ..plain(p, because) };
        let bar = |value: f32, threshold: f64, because: &str| Reason {
            threshold: Some(threshold),
            ..plain(value, because)
        };
        let first = self.p(self.given.start);
        match filter {
            Filter::TopNSigma => plain(params.top_n_sigma, &self.sigma_words(params.top_n_sigma)),
            Filter::TopH => {
                let words = format!("the first tokens that have at most {} of the entropy of", params.top_h);
                plain(params.top_h, &format!("{words} the first {TOP_H_TOKENS} stay"))
            }
            Filter::TopK => {
                plain(params.top_k as f32, &format!("the first {} tokens of the order stay", params.top_k))
            }
            Filter::TypicalP => Reason {
                entropy_bits: Some(self.set.entropy()),
                ..mass(
                    params.typical_p,
                    "the tokens whose surprise is nearest to the entropy stay, up to the target mass",
                )
            },
            Filter::TopP => mass(params.top_p, "the shortest prefix whose mass reaches the target stays"),
            Filter::MinP => {
                let p = params.min_p;
                let because = format!("what is at least {p} times as likely as the first token stays");
                bar(p, f64::from(p) * first, &because)
            }
            Filter::TopA => {
                let a = params.top_a;
                let because =
                    format!("what has {a} times the square of the first token's probability or more stays");
                bar(a, f64::from(a) * first * first, &because)
            }
            Filter::PLess => {
                let squares = self.given.clone().map(|place| self.p(place).powi(2)).sum();
                bar(1.0, squares, "what is at least as likely as two draws are to be the same token stays")
            }
            Filter::EpsilonCutoff => {
                let epsilon = params.epsilon_cutoff;
                bar(epsilon, epsilon.into(), &format!("what has probability {epsilon} or more stays"))
            }
            Filter::EtaCutoff => {
                let (eta, entropy) = (f64::from(params.eta_cutoff), self.set.entropy());
                let threshold = eta.min(eta.sqrt() * (-f64::from(entropy)).exp2());
                let because = "what is likelier than a threshold that falls with the entropy stays";
                Reason { entropy_bits: Some(entropy), ..bar(params.eta_cutoff, threshold, because) }
            }
            Filter::Xtc => {
                let (probability, threshold) = (params.xtc_probability, params.xtc_threshold);
                bar(probability, threshold.into(), &self.xtc_words(probability, threshold))
            }
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
            let stays = "only the last stays, unless an exempt id would go";
            let stays = if request.params.xtc_exempt_ids.is_empty() { "only the last stays" } else { stays };
            format!(
                "the coin fell on {chance:.3}, below {probability}, so it acts: of the tokens of probability {threshold} and more {stays}"
            )
        } else {
            format!("the coin fell on {chance:.3}, not below {probability}, so it does not act this time")
        }
    }
}
