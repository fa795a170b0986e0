//! The same semantics in f64 with the library's logarithms, written from the formulas and not from the rules.
//!
//! It shares no code with the oracle, so it can tell when the oracle itself is wrong. Being inexact, it
//! abstains (`None`) where a decision lies within the numbers' error of going the other way; bodies that
//! use it also count how seldom it does.

pub mod edits;
mod race;

use std::ops::Range;

use gumball_spec::{Filter, FilterOrder, Kind, SamplingParams};

pub use edits::edits;
pub use race::{arrival, arrival_by, philox, race, race_words, words, xtc_acts};

/// By how much a cumulated probability may miss its target undecidedly.
const MASS_SLACK: f64 = 4e-6;

/// By how much a number of bits of this size may be off.
fn bits_slack(bits: f64) -> f64 {
    3e-6 * (4.0 + bits.abs())
}

/// A row after its edits.
#[derive(Clone, Debug)]
pub struct Reference {
    z: Vec<f64>,
    /// The probabilities as they came, where the row is one of those.
    given: Option<Vec<f32>>,
    /// The ids above -inf, in order.
    pub order: Vec<usize>,
}

impl Reference {
    /// Takes edited logits.
    #[must_use]
    pub fn new(z: &[f32]) -> Self {
        let z: Vec<f64> = z.iter().map(|z| f64::from(*z)).collect();
        let mut order: Vec<usize> = (0..z.len()).filter(|id| z[*id] > f64::NEG_INFINITY).collect();
        order.sort_by(|a, b| z[*b].partial_cmp(&z[*a]).expect("no NaN").then(a.cmp(b)));
        Self { z, given: None, order }
    }

    /// Takes a row of either kind, its edits done: the logits of probabilities are their logarithms.
    #[must_use]
    pub fn of(kind: Kind, values: &[f32]) -> Self {
        let mut row = Self::new(values);
        if kind == Kind::Probabilities {
            row.z.iter_mut().filter(|z| **z > 0.0).for_each(|z| *z = z.ln());
            row.given = Some(values.to_vec());
        }
        row
    }

    /// Returns the logits in f64.
    #[must_use]
    pub fn z(&self) -> &[f64] {
        &self.z
    }

    /// Returns the probabilities of an interval of the order.
    #[must_use]
    pub fn probabilities(&self, given: Range<usize>, t: f64) -> Vec<f64> {
        let first = self.z[self.order[given.start]];
        let weights: Vec<f64> =
            self.order[given].iter().map(|id| ((self.z[*id] - first) / t).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }

    /// Returns a row by whose logits adaptive-p races an interval of the order (D3), after tokens whose mean
    /// is `mu`; none if a probability is so small that it may be 0 in f32.
    #[must_use]
    pub fn adapted(&self, params: &SamplingParams, given: Range<usize>, t: f64, mu: f32) -> Option<Vec<f64>> {
        let goal = 2.0 * f64::from(params.adaptive_target) - f64::from(mu).clamp(0.0, 1.0);
        let goal = goal.clamp(0.0, 1.0);
        let mut row = vec![f64::NEG_INFINITY; self.z.len()];
        for (p, id) in self.probabilities(given.clone(), t).into_iter().zip(&self.order[given]) {
            let distance = (p - goal).abs() / 0.3;
            row[*id] = -10.0 * distance * distance / (1.0 + distance);
            if p < 2f64.powi(-120) {
                return None;
            }
        }
        Some(row)
    }

    /// Returns the logarithms to base 2 of the probabilities of an interval of the order; finite even where a
    /// probability is too small for f64.
    fn bits(&self, given: Range<usize>, t: f64) -> Vec<f64> {
        let y = |id: &usize| (self.z[*id] - self.z[self.order[given.start]]) / t;
        let sum: f64 = self.order[given.clone()].iter().map(|id| y(id).exp()).sum();
        let ln_sum = sum.ln();
        self.order[given.clone()].iter().map(|id| (y(id) - ln_sum) * std::f64::consts::LOG2_E).collect()
    }

    /// Returns the natural log probability of a place in an interval of the order.
    #[must_use]
    pub fn logprob(&self, given: Range<usize>, place: usize, t: f64) -> f64 {
        let z = |place: usize| self.z[self.order[place]];
        let first = z(given.start);
        let sum: f64 = given.map(|other| ((z(other) - first) / t).exp()).sum();
        (z(place) - first) / t - sum.ln()
    }

    /// Returns the temperature after dynamic temperature.
    #[must_use]
    pub fn temperature(&self, params: &SamplingParams) -> f64 {
        let t = f64::from(params.temperature);
        match params.dynamic_temperature {
            Some(dynamic) if t != 0.0 => {
                let h = entropy(&self.probabilities(0..self.order.len(), 1.0));
                let n = self.order.len() as f64;
                let ratio = if n == 1.0 { 0.0 } else { (h / n.log2()).clamp(0.0, 1.0) };
                let power = if ratio == 0.0 { 0.0 } else { ratio.powf(dynamic.exponent.into()) };
                f64::from(dynamic.min) + (f64::from(dynamic.max) - f64::from(dynamic.min)) * power
            }
            _ => t,
        }
    }

    /// Returns what the filters keep, as places in the order; `xtc_acts` is XTC's coin.
    #[must_use]
    pub fn kept(&self, params: &SamplingParams, t: f64, mu: f32, xtc_acts: bool) -> Option<Range<usize>> {
        let all = 0..self.order.len();
        if params.mirostat.is_some() {
            return at_least(&self.bits(all, t), -f64::from(mu)).map(|n| 0..n);
        }
        let t = if params.temperature_last { 1.0 } else { t };
        let mut kept = all.clone();
        for filter in params.filters(self.z.len()) {
            let joint = params.order == FilterOrder::Joint;
            let given = if joint { all.clone() } else { kept.clone() };
            let cut = self.cut(filter, params, given.clone(), t, xtc_acts)?;
            let least = given.len().min(cut.start + params.min_keep as usize);
            let cut = given.start + cut.start..given.start + cut.end.max(least);
            kept = kept.start.max(cut.start)..kept.end.min(cut.end);
        }
        Some(if kept.is_empty() { 0..1 } else { kept })
    }

    fn cut(
        &self,
        filter: Filter,
        params: &SamplingParams,
        given: Range<usize>,
        t: f64,
        xtc_acts: bool,
    ) -> Option<Range<usize>> {
        let p = self.probabilities(given.clone(), t);
        let log_p = self.bits(given.clone(), t);
        let n = p.len();
        match filter {
            Filter::TopH => {
                let firsts = given.start..given.end.min(given.start + 100);
                let (p, bits) = (self.probabilities(firsts.clone(), t), self.bits(firsts, t));
                top_h(&p, &bits, params.top_h.into()).map(|n| 0..n)
            }
            Filter::TopK => Some(0..n.min(params.top_k as usize)),
            Filter::TopP => top_p(&p, params.top_p.into()).map(|n| 0..n),
            Filter::MinP => {
                if let Some(p) = &self.given {
                    let p: Vec<f64> = self.order[given].iter().map(|id| p[*id].into()).collect();
                    // A product of two f32 is exact in f64, so it is rounded once, and nothing is undecided.
                    let least = f64::from((f64::from(params.min_p) * p[0]) as f32);
                    return Some(0..p.iter().filter(|p| **p >= least).count());
                }
                let y: Vec<f64> = log_p.iter().map(|l| l - log_p[0]).collect();
                at_least(&y, f64::from(params.min_p).log2()).map(|n| 0..n)
            }
            Filter::TopA => at_least(&log_p, f64::from(params.top_a).log2() + 2.0 * log_p[0]).map(|n| 0..n),
            Filter::PLess => at_least(&log_p, p.iter().map(|p| p * p).sum::<f64>().log2()).map(|n| 0..n),
            Filter::EpsilonCutoff => at_least(&log_p, f64::from(params.epsilon_cutoff).log2()).map(|n| 0..n),
            Filter::EtaCutoff => {
                let eta = f64::from(params.eta_cutoff);
                // The paper has natural units: min(eta, sqrt(eta) exp(-H)).
                let threshold = eta.min(eta.sqrt() * (-entropy(&p) * std::f64::consts::LN_2).exp());
                at_least(&log_p, threshold.log2()).map(|n| 0..n)
            }
            Filter::TopNSigma => {
                let x: Vec<f64> = self.order[given.clone()]
                    .iter()
                    .map(|id| (self.z[self.order[given.start]] - self.z[*id]).min(1024.0))
                    .collect();
                top_n_sigma(&x, params.top_n_sigma.into()).map(|n| 0..n)
            }
            Filter::TypicalP => typical_p(&p, &log_p, params.typical_p.into()),
            Filter::Xtc if !xtc_acts => Some(0..n),
            Filter::Xtc => {
                let threshold = f64::from(params.xtc_threshold).log2();
                // None at or above it, unlike a prefix filter, leaves all.
                if (log_p[0] - threshold).abs() < bits_slack(threshold) {
                    return None;
                }
                let top = if log_p[0] < threshold { 0 } else { at_least(&log_p, threshold)? };
                let top = top.max(1) - 1;
                let is_exempt = |id: &usize| params.xtc_exempt_ids.contains(&(*id as u32));
                Some(if self.order[given][..top].iter().any(is_exempt) { 0..n } else { top..n })
            }
        }
    }
}

/// Returns the entropy in bits.
#[must_use]
pub fn entropy(p: &[f64]) -> f64 {
    p.iter().filter(|p| **p > 0.0).map(|p| -p * p.log2()).sum()
}

fn at_least(descending: &[f64], threshold: f64) -> Option<usize> {
    let undecided = descending[1..].iter().any(|x| (x - threshold).abs() < bits_slack(*x));
    (!undecided).then(|| descending.iter().filter(|x| **x >= threshold).count().max(1))
}

fn top_p(p: &[f64], target: f64) -> Option<usize> {
    let mut sum = 0.0;
    for (i, p) in p.iter().enumerate() {
        sum += p;
        if (sum - target).abs() < MASS_SLACK {
            return None;
        }
        if sum > target {
            return Some(i + 1);
        }
    }
    None
}

/// The least part of the entropy that is not rounded to 0: half of 2^-50, relative to the first token's
/// weight.
const LEAST_PART: f64 = 1.0 / (1u64 << 51) as f64;

fn top_h(p: &[f64], log_p: &[f64], share: f64) -> Option<usize> {
    let parts: Vec<f64> = p.iter().zip(log_p).map(|(p, bits)| p * -bits).collect();
    // A surprise is a difference, and off by a few roundings of its two numbers.
    let slack: f64 = p.iter().zip(log_p).map(|(p, bits)| p * 2e-7 * (1.0 - bits)).sum();
    let most = share * parts.iter().sum::<f64>();
    let mut sum = parts[0];
    for (i, part) in parts.iter().enumerate().skip(1) {
        sum += part;
        let least = LEAST_PART * p[0];
        // All of them are never more than a share of 1.
        if (part / least - 1.0).abs() < 1e-3 || share < 1.0 && (sum - most).abs() < slack {
            return None;
        }
        if *part < least || share < 1.0 && sum > most {
            return Some(i);
        }
    }
    Some(p.len())
}

fn top_n_sigma(x: &[f64], n: f64) -> Option<usize> {
    let count = x.len() as f64;
    let mean = x.iter().sum::<f64>() / count;
    let limit = n * (x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count).sqrt();
    // Deviations are rounded to 2^-12 of a logit.
    let undecided = x[1..].iter().any(|x| (x - limit).abs() < (1.0 + n) * 2.5e-4 + 1e-6 * limit);
    (!undecided).then(|| x.iter().filter(|x| **x <= limit).count().max(1))
}

fn typical_p(p: &[f64], log_p: &[f64], target: f64) -> Option<Range<usize>> {
    let h = entropy(p);
    let distance = |i: usize| (-log_p[i] - h).abs();
    let mut nearest: Vec<usize> = (0..p.len()).collect();
    nearest.sort_by(|a, b| distance(*a).total_cmp(&distance(*b)));
    let mut sum = 0.0;
    // Tokens of one probability have one distance, so they are taken together.
    for group in nearest.chunk_by(|a, b| log_p[*a] == log_p[*b]) {
        sum += group.iter().map(|i| p[*i]).sum::<f64>();
        if (sum - target).abs() < MASS_SLACK {
            return None;
        }
        if sum > target {
            let delta = distance(group[0]);
            let close =
                |i: usize| (distance(i) - delta).abs() < bits_slack(log_p[i]) && log_p[i] != log_p[group[0]];
            let kept = |i: &usize| distance(*i) <= delta;
            let undecided = (0..p.len()).any(close);
            return (!undecided)
                .then(|| Some((0..p.len()).find(kept)?..(0..p.len()).rfind(kept)? + 1))
                .flatten();
        }
    }
    None
}
