//! The radius: how far the logits of a row may move before another token is drawn (rule L7), and what may be
//! reported once they moved (L8).
//!
//! All distances here are twice what a logit may move: where one moves up and another one down, they meet
//! after half of what lies between them.

use crate::draw::score;
use crate::filter::fraction_to_u32;
use crate::num::{exp2, log2};
use crate::params::{Filter, FilterOrder, Parameter, SamplingParams, Stage};
use crate::request::{Forced, Request};
use crate::row::{Kind, NONE, Row};
use crate::survey::{Given, Measure, scale};
use crate::within::may_draw;

/// The filters of which a radius is known, in any sequence.
const KNOWN: [Filter; 6] =
    [Filter::TopK, Filter::TopP, Filter::MinP, Filter::TopA, Filter::PLess, Filter::EpsilonCutoff];
/// Sums of rounded weights are off by less than this power of two of the whole.
const MASS_SLACK: u32 = 16;
/// A part of top-p that is no less than these errors, in units of 2^-32.
const TOP_P_SLACK: u64 = 1 << 14;
/// The error of a threshold that follows from masses, at most, in bits.
const THRESHOLD_SLACK: f32 = 1.0 / (1u32 << 13) as f32;
/// What roundings take of a radius, relative to the numbers that are rounded.
const ROUNDINGS: f32 = 1.0 / (1u32 << 19) as f32;
/// The logarithm of an arrival is not farther from 0.
const ARRIVALS: f32 = 80.0;

/// How a request's edits change the radius of its rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edits {
    /// By what they multiply it: 1 / max(1, r, 1 / r), r being the repetition penalty.
    pub shrink: f32,
    /// How large their intermediate results are, beside the row's own logits.
    pub size: f32,
}

impl Edits {
    /// Returns them at a temperature, which may stand in for the request's own; `None` where no radius is
    /// known.
    #[must_use]
    pub fn of(params: &SamplingParams, temperature: f32, vocab: usize) -> Option<Self> {
        let mut filters = params.filters(vocab).enumerate();
        let is_known = filters.all(|(place, filter)| {
            KNOWN.contains(&filter) && (filter != Filter::PLess || sees_all(params, place))
        });
        let is_drawn = !SamplingParams::is_greedy(temperature);
        // Filters do not act on greedy rows.
        let matters = |parameter: &Parameter| is_drawn || parameter.stage != Stage::Filter;
        if params.unforeseen().is_some_and(matters)
            || params.dynamic_temperature.is_some() && temperature != 0.0
            || is_drawn && (!is_known || params.steered_by().is_some() || params.min_keep > 1)
            || params.frequency_penalty < 0.0
        {
            return None;
        }
        let r = params.repetition_penalty;
        let biases = params.logit_bias.iter().map(|(_, bias)| bias.abs()).filter(|bias| bias.is_finite());
        let bias = biases.fold(0.0, f32::max);
        let is_edited = bias > 0.0
            || r != 1.0
            || params.frequency_penalty != 0.0
            || params.presence_penalty != 0.0
            || params.dry.multiplier != 0.0;
        let size = if is_edited { (256.0 + bias) + params.presence_penalty.abs() } else { 0.0 };
        Some(Self { shrink: 1.0 / r.max(1.0 / r).max(1.0), size })
    }

    /// Returns the radius, given twice what it is without roundings and edits, and how large the numbers are
    /// that were rounded.
    #[must_use]
    pub fn radius(self, twice: f32, size: f32) -> f32 {
        let reach = twice * 0.5;
        let radius = (reach - ((reach + size) + self.size) * ROUNDINGS) * self.shrink;
        // It is no number where logits are too far apart to be subtracted.
        if radius > 0.0 { radius } else { 0.0 }
    }

    /// Returns what roundings of the edits alone take of a radius.
    #[must_use]
    pub fn slack(self) -> f32 {
        self.size * ROUNDINGS * self.shrink
    }
}

/// A row's race, and the numbers that decide its cuts.
struct Race<'a> {
    request: &'a Request<'a>,
    drawn: &'a Drawn<'a>,
    kept: Given<'a>,
    /// The mass of the kept tokens at the filters' scale.
    mass: u64,
    /// As in [`Facts`].
    lz: [f32; 2],
    /// The filters' scale.
    filter_s: f32,
    /// 1 / s.
    h: f32,
}

impl<'a> Race<'a> {
    fn new(request: &'a Request<'a>, drawn: &'a Drawn<'a>) -> Self {
        let Drawn { z, temperature, .. } = *drawn;
        let (s, kept) = (scale(temperature), drawn.kept());
        let filter_s = if request.params.temperature_last { scale(1.0) } else { s };
        let mass = Given::new(z, kept, Measure::Logits { s: filter_s }).total();
        let kept = Given::new(z, kept, Measure::Logits { s });
        let lz = [1.0, 2.0].map(|times| drawn.given(times * filter_s).lz());
        Self { request, drawn, kept, mass, lz, filter_s, h: 1.0 / s }
    }

    /// Returns the limits of a token with this logit, and the size of the numbers that decide on it. `score`:
    /// the token's. `until`: twice how far logits may move before a kept token beats it.
    fn limits(&self, own: f32, score: f32, until: f32) -> (Limits, f32) {
        let Self { drawn, mass, lz, filter_s, .. } = *self;
        let params = self.request.params;
        let kept = drawn.kept;
        let (first, least, next) = (drawn.at(0), drawn.at(kept - 1), drawn.at(kept));
        let facts = Facts { first, own, least, next, count: kept, mass, lz };
        let mut limits = Limits::new(params, drawn.z.len(), &facts, filter_s);
        limits.leave_top_p(params, &facts, until, |least| {
            let above = drawn.above(least);
            (drawn.given(filter_s).mass(above), above.len())
        });
        (limits, size(&facts, score, self.h, &limits))
    }

    /// Returns the score of a token, which need not be kept.
    fn score(&self, id: u32) -> f32 {
        score(self.request, &self.kept, id)
    }

    /// Returns what [`Limits::holds_out`] says of this row.
    fn holds_out(&self, limits: &Limits, most: f32, twice: f32) -> bool {
        let row = self.drawn.given(self.filter_s);
        let [above, total] =
            [most + twice, limits.least_given(twice)].map(|least| row.mass(self.drawn.above(least)));
        limits.holds_out(self.request.params, above, total, twice)
    }
}

/// Numbers of a row whose token is drawn, which its radius depends on.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The logit of the row's first token.
    pub first: f32,
    /// The token's logit.
    pub own: f32,
    /// The least kept logit.
    pub least: f32,
    /// The largest logit that is not kept; -inf if all tokens are.
    pub next: f32,
    /// How many tokens are kept.
    pub count: usize,
    /// With top-p, the mass of the kept tokens at the filters' scale.
    pub mass: u64,
    /// With top-a, p-less or epsilon, lz of the whole row at the filters' scale; with p-less at twice that,
    /// too (M5).
    pub lz: [f32; 2],
}

/// Thresholds of `y`, which move by as much as two logits do, and by twice as much; of filters in a row the
/// largest.
#[derive(Clone, Copy, Debug)]
struct Thresholds {
    /// From where filters keep a token, also after other filters.
    stay: [f32; 2],
    /// Below which they keep none.
    out: [f32; 2],
}

/// Returns whether the filter at a place of the list is given the whole row.
fn sees_all(params: &SamplingParams, place: usize) -> bool {
    place == 0 || params.order == FilterOrder::Joint
}

/// How far logits may move before the filters let another token win.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Twice how far until the token itself may be cut off.
    pub leaves: f32,
    /// Twice how far until another token may be the row's first, if that is the only one kept; else -inf.
    leads: f32,
    /// The least kept logit.
    least: f32,
    /// Whether the kept tokens are as many as top-k keeps.
    is_full: bool,
    /// The row's first logit, and the thresholds of all filters.
    first: f32,
    thresholds: Thresholds,
    /// With thresholds before top-p, these, and how many tokens top-k gives to top-p at most.
    given: Option<(Thresholds, usize)>,
    /// The scale of the filters, and 1 / s.
    s: f32,
    h: f32,
}

impl Limits {
    /// Returns them for parameters of which the radius is known. `s`: the scale of the filters.
    #[must_use]
    pub fn new(params: &SamplingParams, vocab: usize, facts: &Facts, s: f32) -> Self {
        const NONE: [f32; 2] = [f32::NEG_INFINITY; 2];
        let Facts { first, own, least, next, count, lz: [lz, lz_of_squares], .. } = *facts;
        let (h, thresholds) = (1.0 / s, Thresholds { stay: NONE, out: NONE });
        // The filters of which a radius is known keep their first token.
        let leads = if count == 1 { own - next } else { f32::NEG_INFINITY };
        let leaves = f32::INFINITY;
        let mut limits = Self { leaves, leads, least, is_full: false, first, thresholds, given: None, s, h };
        let mut most = usize::MAX;
        for (place, filter) in params.filters(vocab).enumerate() {
            let sees_all = sees_all(params, place);
            // Each with the place of its threshold.
            let (stay, out) = match filter {
                Filter::TopK => {
                    limits.leaves = limits.leaves.min(own - next);
                    most = params.top_k as usize;
                    limits.is_full = count >= most;
                    continue;
                }
                Filter::TopP => {
                    limits.leaves = limits.leaves.min(own - next);
                    limits.given = (limits.thresholds.stay != NONE).then_some((limits.thresholds, most));
                    if limits.given.is_none() {
                        let leaves = token_leaves(fraction_to_u32(params.top_p), facts, None, s) * h;
                        limits.leaves = limits.leaves.min(leaves);
                    }
                    continue;
                }
                Filter::TopA => {
                    let threshold = log2(params.top_a);
                    let of_all = threshold - lz;
                    let stay = if sees_all { (1, of_all + THRESHOLD_SLACK) } else { (0, threshold) };
                    (stay, (1, of_all - THRESHOLD_SLACK))
                }
                Filter::PLess => {
                    let threshold = lz_of_squares - lz;
                    ((1, threshold + THRESHOLD_SLACK), (1, threshold - THRESHOLD_SLACK))
                }
                Filter::EpsilonCutoff => {
                    let threshold = log2(params.epsilon_cutoff) + lz;
                    // The first token is kept in any case.
                    let out = (threshold - THRESHOLD_SLACK).min(0.0);
                    ((0, threshold + THRESHOLD_SLACK), (0, if sees_all { out } else { f32::NEG_INFINITY }))
                }
                _ => {
                    let threshold = log2(params.min_p);
                    ((0, threshold), (0, threshold))
                }
            };
            let Thresholds { stay: stays, out: outs } = &mut limits.thresholds;
            stays[stay.0] = stays[stay.0].max(stay.1);
            outs[out.0] = outs[out.0].max(out.1);
            let leaves = (((own - first) * s) - stay.1) * h;
            limits.leaves = limits.leaves.min(leaves / (1 + stay.0) as f32);
        }
        limits.leaves = limits.leaves.max(limits.leads);
        limits
    }

    /// With thresholds before top-p, lowers `leaves` to where top-p may cut the token off. `until`: twice how
    /// far logits may move before a kept token beats it. `above`: the mass and the number of the row's tokens
    /// whose logits are at least its argument, at the scale of the filters.
    pub fn leave_top_p(
        &mut self,
        params: &SamplingParams,
        facts: &Facts,
        until: f32,
        above: impl FnOnce(f32) -> (u64, usize),
    ) {
        let Some((Thresholds { stay, .. }, most)) = self.given else { return };
        let until = until.min(self.leaves);
        let least = self.logit(stay, until);
        let (mass, count) = if least <= self.first { above(least) } else { (0, 0) };
        let stay = (count < most).then_some(mass - (mass >> MASS_SLACK));
        let leaves = token_leaves(fraction_to_u32(params.top_p), facts, stay, self.s) * self.h;
        self.leaves = until.min(leaves).max(self.leads);
    }

    /// Returns the least logit of the tokens that top-p may be given before others have moved by half of
    /// `twice`.
    #[must_use]
    pub fn least_given(&self, twice: f32) -> f32 {
        self.given.map_or(f32::NEG_INFINITY, |(Thresholds { out, .. }, _)| self.logit(out, -twice))
    }

    /// Returns the logit of a threshold that has moved up by `by`, if it moves by two logits' movement, or
    /// by twice that, if it moves by twice as much.
    fn logit(&self, [once, twice]: [f32; 2], by: f32) -> f32 {
        self.first + (once * self.h + by).max(twice * self.h + 2.0 * by)
    }

    /// Returns twice how far logits may move before a token that is not kept may be.
    #[must_use]
    pub fn until_kept(&self, z: f32) -> f32 {
        let by_count = if self.is_full { self.least - z } else { 0.0 };
        let y = (z - self.first) * self.s;
        let [once, twice] = self.thresholds.out.map(|out| (out - y) * self.h);
        by_count.max(once).max(twice / 2.0)
    }

    /// Returns whether top-p holds all tokens out whose logits are at most `most` until others have moved by
    /// half of `twice`. `above`: the mass of the tokens whose logits are at least `most + twice`. `total`:
    /// that of the tokens whose logits are at least [`Self::least_given`].
    #[must_use]
    pub fn holds_out(&self, params: &SamplingParams, above: u64, total: u64, twice: f32) -> bool {
        let above = above.saturating_sub(total >> MASS_SLACK);
        let p = fraction_to_u32(params.top_p) + TOP_P_SLACK;
        above > 0 && p < 1 << 32 && log_odds(above, total) - log_odds(p, 1 << 32) >= twice * self.s
    }
}

/// Returns `log2` of a mass relative to the rest of a total.
fn log_odds(mass: u64, total: u64) -> f32 {
    log2(mass as f32) - log2(total.saturating_sub(mass) as f32)
}

/// Returns by how many bits odds may change before the tokens in front of the drawn one reach top-p. `p`: in
/// units of 2^-32.
///
/// In front of it are at most all other kept tokens. What top-p is given weighs at least `stay`; without
/// that, at least as much as the kept tokens, and so much that these reach p, but not without their last one.
fn token_leaves(p: u64, facts: &Facts, stay: Option<u64>, s: f32) -> f32 {
    if p <= TOP_P_SLACK {
        return 0.0;
    }
    let weight =
        |z: f32| u64::from((exp2((z - facts.first) * s) * 268_435_456.0).round_ties_even() as u32) << 15;
    let before = facts.mass.saturating_sub(weight(facts.own)) + (facts.mass >> MASS_SLACK);
    let at_least = facts.mass.saturating_sub(weight(facts.least)) as f32 * (4_294_967_296.0 / p as f32);
    let given = stay.map_or((facts.mass as f32).max(at_least), |stay| stay as f32);
    let after = given - before as f32;
    if after <= 0.0 {
        return 0.0;
    }
    let p = p - TOP_P_SLACK;
    (log_odds(p, 1 << 32) - (log2(before as f32) - log2(after))).max(0.0)
}

/// Returns how large the numbers are of which scores and cuts are made.
#[must_use]
pub fn size(facts: &Facts, won: f32, h: f32, limits: &Limits) -> f32 {
    facts.first.abs().max(facts.own.abs()) + (won.abs() + ARRIVALS) * h.max(limits.h)
}

/// A row whose token was chosen.
#[derive(Clone, Copy, Debug)]
pub struct Drawn<'a> {
    /// The logits after the edits.
    pub z: &'a [f32],
    /// The ids above -inf, in order, of which the first `kept` ones are kept.
    pub order: &'a [u32],
    /// How many tokens the filters keep, if they keep the first ones.
    pub kept: usize,
    /// The token.
    pub token: i32,
    /// The temperature in use.
    pub temperature: f32,
    /// Whether the caller changed the row.
    pub hooked: bool,
}

impl Drawn<'_> {
    /// Returns the ids that the filters keep.
    fn kept(&self) -> &[u32] {
        &self.order[..self.kept]
    }

    /// Returns the ids whose logits are at least `least`.
    fn above(&self, least: f32) -> &[u32] {
        &self.order[..self.order.partition_point(|id| self.z[*id as usize] >= least)]
    }

    /// Returns the whole row as a given set.
    fn given(&self, s: f32) -> Given<'_> {
        Given::new(self.z, self.order, Measure::Logits { s })
    }

    /// Returns the logit at a place of the order, -inf after its end.
    fn at(&self, place: usize) -> f32 {
        self.order.get(place).map_or(f32::NEG_INFINITY, |id| self.z[*id as usize])
    }

    /// Returns the edits of a row whose token was drawn; `None` if none was, or no radius is known.
    fn edits(&self, request: &Request<'_>) -> Option<Edits> {
        let is_drawn = request.kind == Kind::Logits && request.forced.is_none() && !self.hooked;
        Edits::of(request.params, request.params.temperature, self.z.len()).filter(|_| is_drawn)
    }
}

/// The radius of a row: by a rule alone, or from distances.
enum Reach {
    /// The row is none of which distances are known, or no distance bounds it.
    Ruled(f32),
    Measured {
        edits: Edits,
        /// What [`nearest`] returns.
        twice: f32,
        size: f32,
    },
}

impl Reach {
    fn of(request: &Request<'_>, drawn: &Drawn<'_>) -> Self {
        if drawn.token == NONE {
            return Self::Ruled(f32::NEG_INFINITY);
        }
        if request.forced.and_then(Forced::kept).is_some() {
            return Self::Ruled(f32::INFINITY);
        }
        let Some(edits) = drawn.edits(request) else { return Self::Ruled(0.0) };
        if drawn.order.len() == 1 {
            return Self::Ruled(f32::INFINITY);
        }
        let (twice, size) = nearest(request, drawn);
        Self::Measured { edits, twice, size }
    }

    fn radius(&self) -> f32 {
        match *self {
            Self::Ruled(radius) => radius,
            Self::Measured { edits, twice, size } => edits.radius(twice, size),
        }
    }
}

/// Returns the radius of a row (L7).
#[must_use]
pub fn radius(request: &Request<'_>, drawn: &Drawn<'_>) -> f32 {
    Reach::of(request, drawn).radius()
}

/// Returns twice how far logits may move before another token is drawn, without edits and roundings, and how
/// large the numbers are that were rounded.
fn nearest(request: &Request<'_>, drawn: &Drawn<'_>) -> (f32, f32) {
    let Drawn { z, order, token, temperature, .. } = *drawn;
    if temperature == 0.0 {
        return (drawn.at(0) - drawn.at(1), drawn.at(0).abs());
    }
    let (token, kept) = (token as u32, drawn.kept());
    let race = Race::new(request, drawn);
    let won = race.score(token);
    let wins = |id: u32| (won - race.score(id)) * race.h;
    let others = kept.iter().filter(|id| **id != token);
    let until = others.map(|id| wins(*id)).fold(f32::INFINITY, f32::min);
    let (limits, size) = race.limits(z[token as usize], won, until);
    let twice = until.min(limits.leaves);
    // The tokens that are not kept and would win sooner.
    let nearer = order[kept.len()..].iter().map(|id| (z[*id as usize], wins(*id)));
    let nearer =
        nearer.map(|(z, wins)| (z, wins.max(limits.until_kept(z)))).filter(|(_, after)| *after < twice);
    let (most, nearest) = nearer
        .fold((f32::NEG_INFINITY, twice), |(most, nearest), (z, after)| (most.max(z), nearest.min(after)));
    let holds = nearest < twice && race.holds_out(&limits, most, twice);
    (if holds { twice } else { nearest }, size)
}

/// Returns whether a row whose logits differ from this row's by at most `by` each may report a token and its
/// radius, if that is known: false is proven (L8). `None` where no radius is known, or the token is known.
#[must_use]
pub fn may_report(
    row: Row<'_>,
    request: &Request<'_>,
    drawn: &Drawn<'_>,
    token: u32,
    radius: Option<f32>,
    by: f32,
) -> Option<bool> {
    if drawn.token != token as i32 {
        if request.forced.and_then(Forced::kept).is_some() || drawn.token == NONE {
            return Some(false);
        }
        drawn.edits(request)?;
        let is_near = radius.is_none_or(|radius| radius <= by);
        return Some(is_near && may_draw(row, request, drawn.temperature, token, by));
    }
    let Some(radius) = radius else { return Some(true) };
    let reach = Reach::of(request, drawn);
    let own = reach.radius();
    if radius.to_bits() == own.to_bits() {
        return Some(true);
    }
    if radius.is_infinite() || own.is_infinite() {
        return Some(false);
    }
    let Reach::Measured { edits, twice, size } = reach else { return None };
    let mut filters = request.params.filters(drawn.z.len());
    let is_exact = drawn.temperature == 0.0
        || matches!((filters.next(), filters.next()), (None | Some(Filter::TopK | Filter::MinP), None));
    let slack = 4.0 * ROUNDINGS * ((0.5 * twice + size) + (edits.size + by));
    Some(!is_exact || (radius - own).abs() <= by + slack)
}
