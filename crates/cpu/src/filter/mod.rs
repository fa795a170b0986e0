//! Filters: from a survey to a cut (rules F1 to F12).
//!
//! Every filter is a cut, so a chain of them only moves the ends of one interval. Three tools do it all:
//!
//! - A threshold on `y` is monotone in the logit, so the least logit that passes is found by bisection over
//!   floats, without looking at a token (`given.rs`).
//! - A short set is gathered and sorted once, and everything after works on the list (`list.rs`,
//!   `select.rs`).
//! - A mass or a count in a long set is searched by weighing its upper part at a few pivots (`search.rs`).
//!
//! No row is ever sorted whole.

mod given;
mod goal;
mod list;
mod profile;
mod search;
mod select;
mod sigma;
mod typical;

use std::cmp::Reverse;

use gumball_spec::filter::{
    TOP_H_TOKENS, dynamic_temperature, fraction_to_u32, target_mass, top_h, updated_mu,
};
use gumball_spec::num::{Tag, key, key_id, key_logit, log2, philox4x32_10};
use gumball_spec::survey::{Measure, log_mass};
use gumball_spec::{Filter, FilterOrder, SamplingParams};

pub(crate) use given::for_members;
pub use given::{Given, Reader};
pub use list::List;
pub use sigma::moments;

use self::goal::Goal;
use self::search::Search;
use crate::cut::Cut;
use crate::mass::{Mass, TWO_POW_43};
use crate::measure::Pace;
use crate::task::Task;

/// How many tokens a nucleus is first looked for among.
const NUCLEUS: [usize; 2] = [16, 128];

/// Buffers of the filter stage.
#[derive(Debug, Default)]
pub struct Buffers {
    pub mass: Mass,
    /// The listed tokens of a short set, in order.
    pub list: List,
    /// The maxima of sixteenths of the row's tiles.
    maxima: Vec<f32>,
    /// Tokens between two ends of a search.
    between: List,
    search: Search,
    /// How far listed tokens' surprise is from the entropy, and the tokens by that.
    distances: Vec<f32>,
    nearest: Vec<usize>,
}

/// Returns the temperature of a row: dynamic temperature applied, 0 where it is greedy (F7, N6).
pub fn temperature(reader: &Reader<'_>, buffers: &mut Buffers, params: &SamplingParams) -> f32 {
    let t = match params.dynamic_temperature {
        Some(dynamic) if params.temperature != 0.0 => {
            let whole = Given::whole(reader);
            whole.give(reader, buffers, Measure::new(reader.view.kind, 1.0));
            let (total, entropy) = buffers.mass.weigh_with_entropy(reader.level, &reader.view, whole.cut);
            dynamic_temperature(dynamic, entropy, total.count)
        }
        _ => params.temperature,
    };
    SamplingParams::zero_if_greedy(t)
}

/// Returns what the filters of a task keep of a row that is not empty, at a temperature above 0.
pub fn filter(reader: &Reader<'_>, buffers: &mut Buffers, task: &Task<'_>, temperature: f32) -> Given {
    let params = task.prepared.params();
    let mut kept = Given::whole(reader);
    if params.mirostat.is_some() {
        let measure = Measure::new(task.kind, temperature);
        let lz = log_mass(kept.total(reader, buffers, measure));
        return kept.while_y(reader, buffers, measure, |y| lz - y <= task.mu);
    }
    let measure = Measure::new(task.kind, if params.temperature_last { 1.0 } else { temperature });
    let filters = task.prepared.filters();
    if params.order == FilterOrder::Joint && filters.len() > 1 {
        let whole = kept;
        let mut cut = whole.cut;
        for filter in filters {
            cut = cut.and(apply(*filter, reader, buffers, &mut whole.clone(), task, measure).cut);
        }
        return whole.interval(reader, buffers, cut).unwrap_or_else(|| Given::only_first(reader));
    }
    for filter in filters {
        kept = apply(*filter, reader, buffers, &mut kept, task, measure);
    }
    kept
}

/// Returns what one filter keeps of a given set, which it may list.
fn apply(
    filter: Filter,
    reader: &Reader<'_>,
    buffers: &mut Buffers,
    given: &mut Given,
    task: &Task<'_>,
    measure: Measure,
) -> Given {
    let params = task.prepared.params();
    // These look at the first tokens alone before they ask for more, top-p at those of a whole row.
    let takes_first = match filter {
        Filter::TopH | Filter::TopK | Filter::MinP => true,
        Filter::TopP => given.cut == Cut::all(reader.view.kind) && reader.maxima.len() > 1,
        _ => false,
    };
    if !takes_first {
        given.list(reader, buffers);
    }
    if given.listed.as_ref().is_some_and(|range| range.is_empty() || range.end > buffers.list.keys.len()) {
        // Another thread wrote the row meanwhile, and the listed tokens are gone: some token stands for them.
        *given = Given::only_first(reader);
        given.list(reader, buffers);
    }
    let kept = match filter {
        Filter::TopNSigma => given.top_n_sigma(reader, buffers, params.top_n_sigma),
        Filter::TopH => given.top_h(reader, buffers, params.top_h, measure),
        Filter::TopK => given.take(reader, buffers, params.top_k as usize),
        Filter::TypicalP => given.typical_p(reader, buffers, params.typical_p, measure),
        Filter::TopP => given.top_p(reader, buffers, params.top_p, measure),
        Filter::MinP => given.min_p(reader, buffers, params.min_p, measure),
        Filter::TopA => {
            let threshold = log2(params.top_a) - log_mass(given.total(reader, buffers, measure));
            given.while_y(reader, buffers, measure, |y| y >= threshold)
        }
        Filter::PLess => {
            let squares = log_mass(given.total(reader, buffers, measure.squared()));
            let threshold = squares - log_mass(given.total(reader, buffers, measure));
            given.while_y(reader, buffers, measure, |y| y >= threshold)
        }
        Filter::EpsilonCutoff => {
            let threshold = log2(params.epsilon_cutoff) + log_mass(given.total(reader, buffers, measure));
            given.while_y(reader, buffers, measure, |y| y >= threshold)
        }
        Filter::EtaCutoff => {
            let (total, entropy) = given.total_and_entropy(reader, buffers, measure);
            let l = log2(params.eta_cutoff);
            let threshold = l.min(l / 2.0 - entropy) + log_mass(total);
            given.while_y(reader, buffers, measure, |y| y >= threshold)
        }
        Filter::Xtc => given.xtc(reader, buffers, task, measure),
    };
    given.keep_at_least(reader, buffers, kept, params.min_keep as usize)
}

/// What rough bounds of a row's mass say of its nucleus, and about the mass.
enum Nucleus {
    /// It is this one.
    Small(Given),
    /// It may have few tokens.
    Doubtful(f64),
    /// It has many, or nothing is known.
    Long(Option<f64>),
}

impl Given {
    /// Makes an unlisted set the given set of the mass, by a measure.
    fn give(&self, reader: &Reader<'_>, buffers: &mut Buffers, measure: Measure) {
        let Self { cut, first, prefix, .. } = *self;
        buffers.mass.give(reader.level, &reader.view, reader.maxima, cut, first, prefix, measure);
    }

    /// Weighs the set; returns its mass.
    pub fn total(&self, reader: &Reader<'_>, buffers: &mut Buffers, measure: Measure) -> u64 {
        match &self.listed {
            Some(range) => buffers.list.give(reader.level, range.clone(), measure),
            None => {
                self.give(reader, buffers, measure);
                if self.cut == Cut::all(reader.view.kind) {
                    return buffers.mass.weigh_all(reader.level, &reader.view);
                }
                buffers.mass.weigh(reader.level, &reader.view, self.cut).mass
            }
        }
    }

    /// Weighs the set; returns its mass and its entropy in bits.
    fn total_and_entropy(&self, reader: &Reader<'_>, buffers: &mut Buffers, measure: Measure) -> (u64, f32) {
        match &self.listed {
            Some(range) => {
                let total = buffers.list.give(reader.level, range.clone(), measure);
                (total, buffers.list.entropy(total, measure))
            }
            None => {
                self.give(reader, buffers, measure);
                let (total, entropy) = buffers.mass.weigh_with_entropy(reader.level, &reader.view, self.cut);
                (total.mass, entropy)
            }
        }
    }

    /// Weighs a set that is not listed; returns its mass and the sum of its weighted distances (M5).
    pub fn total_and_distances(
        &self,
        reader: &Reader<'_>,
        buffers: &mut Buffers,
        measure: Measure,
    ) -> (u64, u64) {
        self.give(reader, buffers, measure);
        let (total, _) = buffers.mass.weigh_with_entropy(reader.level, &reader.view, self.cut);
        (total.mass, buffers.mass.distances())
    }

    /// The shortest prefix of mass `p` (F1).
    fn top_p(&self, reader: &Reader<'_>, buffers: &mut Buffers, p: f32, measure: Measure) -> Given {
        if let Some(range) = &self.listed {
            let target = target_mass(p, self.total(reader, buffers, measure));
            let kept = buffers.list.reach_in(0..range.len(), target);
            let last = buffers.list.keys[range.start + kept - 1];
            return self.keep(buffers, last);
        }
        let in_parts = reader.view.parts.is_some_and(|parts| !parts.is_whole());
        if self.cut != Cut::all(reader.view.kind) || in_parts {
            let target = target_mass(p, self.total(reader, buffers, measure));
            if let Some(kept) = self.small_nucleus(reader, buffers, target) {
                return kept;
            }
            if in_parts && self.cut == Cut::all(reader.view.kind) {
                // A long nucleus is searched for in the whole row.
                reader.view.need(-f32::MAX);
            }
            let whole = buffers.mass.total();
            let last = self.search(reader, buffers, Goal::Mass(target), whole, None);
            return self.keep(buffers, last);
        }
        self.give(reader, buffers, measure);
        // Most nuclei are small, and end at a token that all targets within the bounds of the mass agree on.
        // But the tiles' first tokens may show that a list would be too short: no token has more mass than
        // the first.
        let mut nucleus = Nucleus::Long(None);
        let may_be_small = p * buffers.mass.of_maxima() <= NUCLEUS[1] as f32;
        if may_be_small {
            nucleus = self.rough_nucleus::<false>(reader, buffers, p);
            if matches!(nucleus, Nucleus::Doubtful(_)) && measure != Measure::Probabilities {
                nucleus = self.rough_nucleus::<true>(reader, buffers, p);
            }
        }
        let (estimate, may_be_small) = match nucleus {
            Nucleus::Small(kept) => return kept,
            Nucleus::Doubtful(mass) => (Some(mass), true),
            // Where the bounds of the mass are known, no list reaches it.
            Nucleus::Long(mass) => (mass, may_be_small && mass.is_none()),
        };
        // The first pivot is weighed with the whole row.
        let (whole, pivot) = self.first_pivot(reader, buffers, p, estimate);
        let target = target_mass(p, whole.mass);
        if may_be_small && let Some(kept) = self.small_nucleus(reader, buffers, target) {
            return kept;
        }
        let last = self.search(reader, buffers, Goal::Mass(target), whole, Some(pivot));
        self.keep(buffers, last)
    }

    /// Looks for a small nucleus of the whole row by rough bounds of its mass. The given set must be known to
    /// the mass.
    fn rough_nucleus<const FINE: bool>(&self, reader: &Reader<'_>, buffers: &mut Buffers, p: f32) -> Nucleus {
        let Some(rough) = buffers.mass.rough::<FINE>(reader.level, &reader.view) else {
            return Nucleus::Long(None);
        };
        let mut is_long = true;
        for tokens in NUCLEUS {
            if self.list_top(reader, buffers, tokens) {
                // Only what is not listed is in doubt.
                let [listed, roughly, last_mass] = self.listed_mass::<FINE>(reader, buffers);
                let (least, most) = rough.bounds(listed, roughly);
                // A longer list hardly reaches the mass if its tokens do not at a third of the last one's
                // mass.
                let more = NUCLEUS[1].saturating_sub(buffers.list.keys.len()) as f64;
                if listed + more * last_mass / 3.0 < f64::from(p) * least as f64 / TWO_POW_43 {
                    break;
                }
                if let Some((last, mass)) = self.reach_in_list(reader, buffers, target_mass(p, least)) {
                    if mass >= target_mass(p, most) {
                        let listed = Some(0..buffers.list.keys.len());
                        return Nucleus::Small(Given { listed, ..self.clone() }.keep(buffers, last));
                    }
                    is_long = false;
                }
            }
        }
        if is_long { Nucleus::Long(Some(rough.estimate())) } else { Nucleus::Doubtful(rough.estimate()) }
    }

    /// Returns the shortest prefix that reaches a mass, if it has few tokens. The given set must be known to
    /// the mass.
    fn small_nucleus(&self, reader: &Reader<'_>, buffers: &mut Buffers, target: u64) -> Option<Given> {
        for tokens in NUCLEUS {
            if self.list_top(reader, buffers, tokens)
                && let Some((last, _)) = self.reach_in_list(reader, buffers, target)
            {
                let listed = Some(0..buffers.list.keys.len());
                return Some(Given { listed, ..self.clone() }.keep(buffers, last));
            }
        }
        None
    }

    /// The first tokens that have at most a share `h` of the entropy of the first [`TOP_H_TOKENS`] (F12).
    fn top_h(&self, reader: &Reader<'_>, buffers: &mut Buffers, h: f32, measure: Measure) -> Given {
        let given = self.take(reader, buffers, TOP_H_TOKENS);
        let (mut keys, all) = ([0; TOP_H_TOKENS], given.all_keys(reader, buffers));
        let keys = &mut keys[..all.len().min(TOP_H_TOKENS)];
        keys.copy_from_slice(&all[..keys.len()]);
        if keys.is_empty() {
            // The row was written meanwhile.
            return Given::only_first(reader);
        }
        keys.sort_unstable_by_key(|key| Reverse(*key));
        let kept = top_h(keys.iter().map(|key| key_logit(*key)), measure, h);
        given.keep(buffers, keys[kept - 1])
    }

    /// The tokens that are at least `min_p` times as likely as the first: by `y` of logits (F2), by the
    /// numbers themselves of probabilities (P1a).
    fn min_p(&self, reader: &Reader<'_>, buffers: &mut Buffers, min_p: f32, measure: Measure) -> Given {
        match measure {
            Measure::Logits { .. } => {
                let threshold = log2(min_p);
                self.while_y(reader, buffers, measure, |y| y >= threshold)
            }
            Measure::Probabilities => {
                // Where the product rounds to 0 the least of all tokens passes, and 0 is none.
                let least = (min_p * self.first).max(f32::from_bits(1));
                self.keep(buffers, key(least, u32::MAX))
            }
        }
    }

    /// Drops the tokens at or above the threshold but the last of them, if it acts and none of them is exempt
    /// (F4).
    fn xtc(&self, reader: &Reader<'_>, buffers: &mut Buffers, task: &Task<'_>, measure: Measure) -> Given {
        let params = task.prepared.params();
        let [word, ..] = philox4x32_10(task.seed, [0, task.position, Tag::Xtc as u32, task.draw]);
        if u64::from(word) >= fraction_to_u32(params.xtc_probability) {
            return self.clone();
        }
        let threshold = log2(params.xtc_threshold) + log_mass(self.total(reader, buffers, measure));
        if self.y(self.first, measure) < threshold {
            return self.clone();
        }
        let top = self.while_y(reader, buffers, measure, |y| y >= threshold);
        let keys = top.all_keys(reader, buffers);
        let first = keys.iter().copied().min().unwrap_or_else(|| reader.first_key());
        let is_exempt = |key: &u64| *key > first && params.xtc_exempt_ids.contains(&key_id(*key));
        if !params.xtc_exempt_ids.is_empty() && keys.iter().any(is_exempt) {
            return self.clone();
        }
        // The last top choice is kept, unless the row was written meanwhile.
        let kept = self.interval(reader, buffers, Cut { first, ..self.cut });
        kept.unwrap_or_else(|| Given::only_first(reader))
    }
}

/// Returns mirostat's limit (F6), or the mean of adaptive-p (D3), after a token was drawn from a kept set.
pub fn next_mu(
    reader: &Reader<'_>,
    buffers: &mut Buffers,
    task: &Task<'_>,
    kept: &Given,
    Pace { measure, adaptive }: Pace,
    value: f32,
) -> f32 {
    let params = task.prepared.params();
    let mu = match (params.mirostat, adaptive) {
        (Some(mirostat), _) => {
            let lz = log_mass(kept.total(reader, buffers, measure));
            updated_mu(mirostat.tau, mirostat.eta, task.mu, lz - kept.y(value, measure))
        }
        (None, Some(adaptive)) => adaptive.next_mu(params, task.mu, measure.ratio(value, kept.first)),
        (None, None) => return task.mu,
    };
    // A number, unless the row was written meanwhile.
    if mu < f32::INFINITY { mu } else { task.mu }
}
