//! Which tokens may be drawn from logits that differ from a row's by at most some distance (rule L8).
//!
//! No edit lowers a logit if the logit before it rises, so what the edits make of the row a distance lower
//! and a distance higher bounds each logit that the draw can have seen. By these bounds each filter keeps a
//! token for sure, may keep it, or drops it, and a token that is kept for sure keeps those from winning whose
//! best score is below its own worst one.

use crate::draw::arrival;
use crate::edit::edit;
use crate::filter::fraction_to_u32;
use crate::num::{exp2, log2};
use crate::params::{Filter, FilterOrder, SamplingParams};
use crate::request::Request;
use crate::row::{Kind, Row};
use crate::survey::scale;

/// What roundings of masses take of a share, at most.
const OF_SHARES: f64 = 1.0 / (1u32 << 14) as f64;
/// What roundings of masses take of a threshold, at most, relative to it.
const OF_THRESHOLDS: f64 = 1.0 / (1u32 << 11) as f64;
/// What roundings take of a score, relative to the numbers that are rounded.
const OF_SCORES: f64 = 1.0 / (1u32 << 22) as f64;
/// Twice what the logarithm of an arrival is at most.
const ARRIVALS: f64 = 160.0;

/// Returns whether a row whose logits differ from these by at most `by` each may draw a token. The
/// temperature must not depend on the row, and each filter must keep the first tokens of its given set.
pub(crate) fn may_draw(row: Row<'_>, request: &Request<'_>, temperature: f32, token: u32, by: f32) -> bool {
    let raw = row.values(Kind::Logits);
    let edited = |by: f32| {
        let moved = raw
            .iter()
            .map(|z| if *z == f32::NEG_INFINITY { *z } else { (z + by).clamp(-f32::MAX, f32::MAX) });
        let moved: Vec<f32> = moved.collect();
        edit(Row::F32(&moved), request, None).z
    };
    let bounds = Bounds::new(edited(-by), edited(by));
    if bounds.low[token as usize] == f32::NEG_INFINITY {
        return false;
    }
    let others = || bounds.ids.iter().copied().filter(|id| *id != token);
    let highest = bounds.high[token as usize];
    if temperature == 0.0 {
        return others().all(|id| bounds.low[id as usize] <= highest);
    }

    let params = request.params;
    let Kept { sure, may } =
        bounds.kept(params, scale(if params.temperature_last { 1.0 } else { temperature }));
    let most = bounds.most();
    let s = f64::from(scale(temperature));
    let lowest = bounds.low[token as usize];
    let log_arrival = |id: u32| f64::from(log2(arrival(request, id)));
    let own = log_arrival(token);
    let is_beaten_by = |id: u32| {
        let low = bounds.low[id as usize];
        let [low_of_id, highest, lowest, most_of_all] = [low, highest, lowest, most].map(f64::from);
        let slack = OF_SCORES * (((most_of_all - low_of_id) + (most_of_all - lowest)) * s + ARRIVALS);
        low - most > f32::NEG_INFINITY && (low_of_id - highest) * s > (log_arrival(id) - own) + slack
    };
    may[token as usize] && !others().any(|id| sure[id as usize] && is_beaten_by(id))
}

/// The least and the largest logit that each token can have had, after the edits.
struct Bounds {
    /// The ids above -inf.
    ids: Vec<u32>,
    low: Vec<f32>,
    high: Vec<f32>,
}

/// Which tokens are kept for sure, and which may be, by their ids.
struct Kept {
    sure: Vec<bool>,
    may: Vec<bool>,
}

impl Bounds {
    fn new(low: Vec<f32>, high: Vec<f32>) -> Self {
        let ids = (0..low.len() as u32).filter(|id| low[*id as usize] > f32::NEG_INFINITY).collect();
        Self { ids, low, high }
    }

    /// Returns the largest logit of all.
    fn most(&self) -> f32 {
        self.ids.iter().map(|id| self.high[*id as usize]).fold(f32::NEG_INFINITY, f32::max)
    }

    /// Returns what the filters keep, `s` being their scale.
    fn kept(&self, params: &SamplingParams, s: f32) -> Kept {
        let mut whole = vec![false; self.low.len()];
        self.ids.iter().for_each(|id| whole[*id as usize] = true);
        let mut kept = Kept { sure: whole.clone(), may: whole.clone() };
        let whole = Kept { sure: whole.clone(), may: whole };
        for filter in params.filters(self.low.len()) {
            let joint = params.order == FilterOrder::Joint;
            let of = Given::new(self, if joint { &whole } else { &kept }, s).cut(filter, params);
            for id in self.ids.iter().map(|id| *id as usize) {
                kept.sure[id] &= of.sure[id];
                kept.may[id] &= of.may[id];
            }
        }
        kept
    }
}

/// Tokens sorted by one of their bounds, the largest first.
struct Sorted {
    by: Vec<f32>,
    /// Of each place the weights of all tokens in front of it, at their least and at their most.
    least: Vec<u64>,
    most: Vec<u64>,
}

/// What a filter is given.
struct Given<'a> {
    bounds: &'a Bounds,
    kept: &'a Kept,
    /// The filter's scale, and the logit whose weight is 2^43.
    s: f32,
    unit: f32,
    /// Here the least weight of a token that may be absent is 0.
    by_high: Sorted,
    by_low: Sorted,
}

impl<'a> Given<'a> {
    fn new(bounds: &'a Bounds, kept: &'a Kept, s: f32) -> Self {
        let none = || Sorted { by: Vec::new(), least: Vec::new(), most: Vec::new() };
        let mut given = Self { bounds, kept, s, unit: bounds.most(), by_high: none(), by_low: none() };
        given.by_high = given.sorted(&bounds.high, |id| given.sure(id));
        given.by_low = given.sorted(&bounds.low, |id| given.least(id));
        given
    }

    fn sorted(&self, by: &[f32], least: impl Fn(u32) -> u64) -> Sorted {
        let mut ids: Vec<u32> = self.may().collect();
        ids.sort_by(|a, b| by[*b as usize].total_cmp(&by[*a as usize]));
        let running = |weight: &dyn Fn(u32) -> u64| {
            let mut sums = vec![0];
            for id in &ids {
                sums.push(sums[sums.len() - 1] + weight(*id));
            }
            sums
        };
        let by = ids.iter().map(|id| by[*id as usize]).collect();
        Sorted { by, least: running(&least), most: running(&|id| self.most(id)) }
    }

    /// Returns the ids that may be given.
    fn may(&self) -> impl Iterator<Item = u32> + '_ {
        self.bounds.ids.iter().copied().filter(|id| self.kept.may[*id as usize])
    }

    /// Returns a weight in units of 2^-43, rounded down.
    fn weight(&self, z: f32) -> u64 {
        (exp2((z - self.unit) * self.s) * 8_796_093_022_208.0) as u64
    }

    fn least(&self, id: u32) -> u64 {
        self.weight(self.bounds.low[id as usize])
    }

    fn most(&self, id: u32) -> u64 {
        self.weight(self.bounds.high[id as usize]) + 1
    }

    /// Returns the weight that a token adds to what is given, at least.
    fn sure(&self, id: u32) -> u64 {
        if self.kept.sure[id as usize] { self.least(id) } else { 0 }
    }

    /// Returns which tokens the filter keeps.
    fn cut(&self, filter: Filter, params: &SamplingParams) -> Kept {
        let Self { by_high, by_low, .. } = self;
        let none = || vec![false; self.bounds.low.len()];
        let mut cut = Kept { sure: none(), may: none() };
        let f = |number: u64| number as f64;
        let square = |weight: u64| u128::from(weight).pow(2);
        let last = |sums: &[u64]| *sums.last().expect("begins with 0");
        let (sure, most) = (last(&by_high.least), last(&by_high.most));
        let (first_least, first_most) = (self.weight(by_low.by[0]), self.weight(by_high.by[0]) + 1);
        let squares_least = self.may().map(|id| square(self.sure(id))).sum::<u128>() as f64;
        let squares_most = self.may().map(|id| square(self.most(id))).sum::<u128>() as f64;
        let (more, less) = (1.0 + OF_THRESHOLDS, 1.0 - OF_THRESHOLDS);
        for id in self.may() {
            let [low, high] = [&self.bounds.low, &self.bounds.high].map(|bounds| bounds[id as usize]);
            let (own_least, own_most) = (self.least(id), self.most(id));
            // How many tokens may be in front of the next one, with this one; how many are in front of this
            // one.
            let near = by_high.by.partition_point(|z| *z >= low);
            let before = by_low.by.partition_point(|z| *z > high);
            let (stays, drops) = match filter {
                Filter::TopK => (near <= params.top_k as usize, before >= params.top_k as usize),
                Filter::TopP => {
                    let p = f(fraction_to_u32(params.top_p)) / 4_294_967_296.0;
                    let may_be_before = f(by_high.most[near] - own_most);
                    let all = may_be_before + f(own_least + (sure - by_high.least[near]));
                    let is_before = f(by_low.least[before]);
                    let total = is_before + f(most - by_low.most[before]);
                    (may_be_before + OF_SHARES * all < p * all, is_before - OF_SHARES * total >= p * total)
                }
                Filter::MinP => {
                    let least = log2(params.min_p);
                    let of_others = by_high.by.get(usize::from(by_high.by[0] == high)).copied();
                    let first = of_others.unwrap_or(low);
                    ((low - first) * self.s >= least, (high - by_low.by[0]) * self.s < least)
                }
                Filter::TopA => {
                    let a = f64::from(params.top_a);
                    let rest = sure.saturating_sub(first_least);
                    let needed = |first: u64| a * f(first) * f(first);
                    (
                        f(own_least) * f(first_most + rest) >= needed(first_most) * more,
                        f(own_most) * f(most) < needed(first_least) * less,
                    )
                }
                Filter::PLess => (
                    f(own_least) * f(sure) >= squares_most * more,
                    f(own_most) * f(most) < squares_least * less,
                ),
                Filter::EpsilonCutoff => {
                    let epsilon = f64::from(params.epsilon_cutoff);
                    (
                        f(own_least) >= epsilon * f(own_least + (most - own_most)) * more,
                        f(own_most) < epsilon * f(own_most + (sure - self.sure(id))) * less,
                    )
                }
                _ => (false, false),
            };
            // No filter drops the first token.
            cut.sure[id as usize] = near == 1 || stays;
            cut.may[id as usize] = before == 0 || !drops;
        }
        cut
    }
}
