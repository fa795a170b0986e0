//! Filters: which tokens may be drawn (rules F1 to F12).
//!
//! A filter is a cut: it keeps an interval of the order, and never nothing. Here the order is a sorted
//! list, so a cut is a range of places in it.

use std::ops::Range;

use crate::adaptive::Adaptive;
use crate::num::{Tag, exp2, log2, philox4x32_10};
use crate::params::{DynamicTemperature, Filter, FilterOrder, SamplingParams};
use crate::request::Request;
use crate::row::Kind;
use crate::survey::{Given, Measure};

/// Returns the mass that top-p and typical-p aim at: `p` of `total`, rounded up (F1).
#[must_use]
pub fn target_mass(p: f32, total: u64) -> u64 {
    let p = fraction_to_u32(p);
    let low = u64::from(u32::MAX);
    p * (total >> 32) + ((p * (total & low) + low) >> 32)
}

/// Returns a fraction in 0..=1 in units of 2^-32, rounded up.
#[must_use]
pub fn fraction_to_u32(p: f32) -> u64 {
    (f64::from(p) * 4_294_967_296.0).ceil() as u64
}

/// Returns the temperature of a row: dynamic temperature applied, 0 where it is greedy (F7, N6).
///
/// `members` is the order of the edited row, not empty.
#[must_use]
pub fn temperature(params: &SamplingParams, z: &[f32], members: &[u32]) -> f32 {
    let t = match params.dynamic_temperature {
        Some(dynamic) if params.temperature != 0.0 => {
            let row = Given::new(z, members, Measure::new(Kind::Logits, 1.0));
            dynamic_temperature(dynamic, row.entropy(), members.len())
        }
        _ => params.temperature,
    };
    SamplingParams::zero_if_greedy(t)
}

/// Returns the temperature of a row of the given entropy and number of tokens above -inf (F7).
#[must_use]
pub fn dynamic_temperature(dynamic: DynamicTemperature, entropy: f32, tokens: usize) -> f32 {
    let power = if entropy <= 0.0 || tokens == 1 {
        0.0
    } else {
        let ratio = (entropy / log2(tokens as f32)).min(1.0);
        exp2(dynamic.exponent * log2(ratio))
    };
    dynamic.min + (dynamic.max - dynamic.min) * power
}

/// Returns what the filters of a request keep of the order of an edited row, at a temperature above 0.
///
/// `members` is the order, not empty; the result is a range of places in it, not empty.
#[must_use]
pub fn filter(request: &Request<'_>, z: &[f32], members: &[u32], temperature: f32) -> Range<usize> {
    let params = request.params;
    if params.mirostat.is_some() {
        return mirostat(&Given::new(z, members, Measure::new(request.kind, temperature)), request.mu);
    }
    let measure = Measure::new(request.kind, if params.temperature_last { 1.0 } else { temperature });
    let mut kept = 0..members.len();
    for filter in params.filters(z.len()) {
        if params.order == FilterOrder::Joint {
            let cut = cut(filter, request, &Given::new(z, members, measure));
            kept = kept.start.max(cut.start)..kept.end.min(cut.end);
        } else {
            let cut = cut(filter, request, &Given::new(z, &members[kept.clone()], measure));
            kept = kept.start + cut.start..kept.start + cut.end;
        }
    }
    if kept.is_empty() { 0..1 } else { kept }
}

/// Returns what one filter keeps of a given set, as places in its members: at least `min_keep` of them from
/// the first kept one on (F11).
#[must_use]
pub fn cut(filter: Filter, request: &Request<'_>, given: &Given<'_>) -> Range<usize> {
    let kept = cut_alone(filter, request, given);
    let least = kept.start.saturating_add(request.params.min_keep as usize);
    kept.start..kept.end.max(least.min(given.members.len()))
}

fn cut_alone(filter: Filter, request: &Request<'_>, given: &Given<'_>) -> Range<usize> {
    let params = request.params;
    match filter {
        Filter::TopNSigma => 0..top_n_sigma(given, params.top_n_sigma),
        Filter::TopH => {
            let values = given.members.iter().map(|id| given.value(*id));
            0..top_h(values, given.measure, params.top_h)
        }
        Filter::TopK => 0..given.members.len().min(params.top_k as usize),
        Filter::TypicalP => typical_p(given, params.typical_p),
        Filter::TopP => 0..given.prefix_reaching(given.members, target_mass(params.top_p, given.total())),
        Filter::MinP => min_p(given, params.min_p),
        Filter::TopA => at_least(given, log2(params.top_a) - given.lz()),
        Filter::PLess => at_least(given, given.squared().lz() - given.lz()),
        Filter::EpsilonCutoff => at_least(given, log2(params.epsilon_cutoff) + given.lz()),
        Filter::EtaCutoff => {
            let l = log2(params.eta_cutoff);
            at_least(given, l.min(l / 2.0 - given.entropy()) + given.lz())
        }
        Filter::Xtc => xtc(given, request),
    }
}

/// Keeps the tokens whose `y` reaches a threshold, the first in any case (F2).
fn at_least(given: &Given<'_>, threshold: f32) -> Range<usize> {
    0..given.members.partition_point(|id| given.y(*id) >= threshold).max(1)
}

/// Keeps the tokens that are at least `min_p` times as likely as the first: by `y` of logits (F2), by the
/// numbers themselves of probabilities (P1a).
fn min_p(given: &Given<'_>, min_p: f32) -> Range<usize> {
    match given.measure {
        Measure::Logits { .. } => at_least(given, log2(min_p)),
        Measure::Probabilities => {
            let least = min_p * given.first();
            0..given.members.partition_point(|id| given.value(*id) >= least)
        }
    }
}

/// Keeps the tokens whose surprise is nearest to the entropy, up to a mass of `p` (F3).
fn typical_p(given: &Given<'_>, p: f32) -> Range<usize> {
    let (lz, entropy) = (given.lz(), given.entropy());
    let distance = |id: u32| ((lz - given.y(id)) - entropy).abs();
    let mut nearest = given.members.to_vec();
    nearest.sort_by(|a, b| distance(*a).total_cmp(&distance(*b)));
    let reached = given.prefix_reaching(&nearest, target_mass(p, given.total()));
    let delta = distance(nearest[reached - 1]);
    let kept = |id: &u32| distance(*id) <= delta;
    let start = given.members.iter().position(kept).expect("the nearest token is kept");
    start..given.members.iter().rposition(kept).expect("the nearest token is kept") + 1
}

/// How many first tokens top-H looks at (F12).
pub const TOP_H_TOKENS: usize = Filter::TopH.kind().counted.expect("it counts");

/// Returns how many of the tokens of a set top-H keeps: the first of them that have at most a share `h` of
/// the entropy of the first [`TOP_H_TOKENS`] (F12). `values`: theirs, in order.
#[must_use]
pub fn top_h(values: impl Iterator<Item = f32>, measure: Measure, h: f32) -> usize {
    let mut values = values.take(TOP_H_TOKENS).peekable();
    let first = *values.peek().expect("a given set has a token");
    // Exponents and weights relative to the first token.
    let (mut tokens, mut count, mut sum) = ([(0.0, 0.0); TOP_H_TOKENS], 0, 0);
    for (token, value) in tokens.iter_mut().zip(values) {
        *token = (measure.exponent(value, first), measure.ratio(value, first));
        sum += (token.1 * 268_435_456.0).round_ties_even() as u64;
        count += 1;
    }
    let lz = log2(sum as f32 * f32::from_bits((127 - 28) << 23));
    // The part of a token is the one of its probability times its surprise, in units of 2^-50.
    let part = |(y, weight): &(f32, f32)| match *weight {
        0.0 => 0,
        weight => (weight * (lz - y).max(0.0) * 1_125_899_906_842_624.0).round_ties_even() as u64,
    };
    let most = target_mass(h, tokens[..count].iter().map(part).sum());
    let mut sum = part(&tokens[0]);
    let fits = |token: &&(f32, f32)| {
        sum += part(token);
        part(token) > 0 && sum <= most
    };
    1 + tokens[1..count].iter().take_while(fits).count()
}

/// Drops the tokens at or above the threshold but the last of them, if it acts and none of them is exempt
/// (F4).
fn xtc(given: &Given<'_>, request: &Request<'_>) -> Range<usize> {
    let [word, ..] = philox4x32_10(request.seed, [0, request.position, Tag::Xtc as u32, request.draw]);
    let acts = u64::from(word) < fraction_to_u32(request.params.xtc_probability);
    let threshold = log2(request.params.xtc_threshold) + given.lz();
    let top = given.members.partition_point(|id| given.y(*id) >= threshold);
    let dropped = if acts { top.saturating_sub(1) } else { 0 };
    let is_exempt = |id: &u32| request.params.xtc_exempt_ids.contains(id);
    let start = if given.members[..dropped].iter().any(is_exempt) { 0 } else { dropped };
    start..given.members.len()
}

/// Returns how many tokens lie within `n` standard deviations of the first logit (F5).
fn top_n_sigma(given: &Given<'_>, n: f32) -> usize {
    let deviation = |id: &u32| {
        let x = (given.first() - given.value(*id)) * 4096.0;
        x.round_ties_even().min(4_194_303.0) as u64
    };
    let count = given.members.len() as u128;
    let s1: u64 = given.members.iter().map(deviation).sum();
    let s2: u64 = given.members.iter().map(|id| deviation(id).pow(2)).sum();
    let d = count * u128::from(s2) - u128::from(s1).pow(2);
    let limit = f64::from(n) * ((d as f64).sqrt() / count as f64);
    given.members.partition_point(|id| deviation(id) as f64 <= limit).max(1)
}

/// Keeps the tokens whose surprise is at most `mu` bits, the first in any case (F6).
fn mirostat(given: &Given<'_>, mu: f32) -> Range<usize> {
    let lz = given.lz();
    0..given.members.partition_point(|id| lz - given.y(*id) <= mu).max(1)
}

/// Returns mirostat's limit (F6), or the mean of adaptive-p (D3), after a token was drawn from a kept set.
#[must_use]
pub fn next_mu(params: &SamplingParams, mu: f32, kept: &Given<'_>, token: u32) -> f32 {
    if let Some(adaptive) = Adaptive::new(params, mu, || kept.total()) {
        return adaptive.next_mu(params, mu, kept.ratio(token));
    }
    let Some(mirostat) = params.mirostat else { return mu };
    updated_mu(mirostat.tau, mirostat.eta, mu, kept.lz() - kept.y(token))
}

/// Returns mirostat's limit after a token of the given surprise, in bits (F6).
#[must_use]
pub fn updated_mu(tau: f32, eta: f32, mu: f32, surprise: f32) -> f32 {
    mu - eta * (surprise - tau)
}
