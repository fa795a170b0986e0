//! The radius: how far the logits of a row may move before another token is drawn (L7).
//!
//! ```text
//! the kept set, weighed again:   how far until the token leaves it, or others enter
//! the race of the kept set:      the runner-up
//! the race of all other tokens:  tokens that score nearly as much
//! ```

use gumball_spec::draw::arrival_by;
use gumball_spec::num::log2;
use gumball_spec::radius::{Edits, Facts, Limits, size};
use gumball_spec::survey::{Measure, log_mass};
use gumball_spec::watermark::Words;
use gumball_spec::{Filter, Forced, Kind, NONE};

use crate::Task;
use crate::cut::Cut;
use crate::draw::{first_arrivals, that_score};
use crate::filter::{Buffers, Given, Reader};
use crate::logprobs::count;
use crate::task::Stream;

/// How a row's token was chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) token: i32,
    pub(crate) temperature: f32,
    /// Whether the caller changed the row.
    pub(crate) hooked: bool,
}

/// Returns the radius of a row. `kept`: the set that its filters keep.
pub(crate) fn radius(
    reader: &Reader<'_>,
    filter: &mut Buffers,
    draw: &mut crate::draw::Buffers,
    kept: Option<&Given>,
    task: &Task<'_>,
    choice: Choice,
) -> f32 {
    let Choice { token, temperature, hooked } = choice;
    let params = task.prepared.params();
    let forced = task.emitted();
    if token == NONE {
        return f32::NEG_INFINITY;
    }
    if forced.and_then(Forced::kept).is_some() {
        return f32::INFINITY;
    }
    let is_drawn = task.kind == Kind::Logits && forced.is_none() && !hooked;
    let edits = Edits::of(params, params.temperature, reader.view.vocab()).filter(|_| is_drawn);
    let (Some(edits), Some(kept)) = (edits, kept) else { return 0.0 };
    let whole = Given::whole(reader);
    let after = |cut: Cut| Cut { first: cut.last - 1, last: whole.cut.last };
    let next = reader.largest(after(kept.cut));
    let count = count(reader, kept.cut) as usize;
    if count == 1 && next == f32::NEG_INFINITY {
        return f32::INFINITY;
    }
    if temperature == 0.0 {
        return edits.radius(reader.first - next, reader.first.abs());
    }

    let measure = Measure::new(task.kind, temperature);
    let filters = Measure::new(task.kind, if params.temperature_last { 1.0 } else { temperature });
    let [s, filter_s] = [measure, filters].map(Measure::scale);
    let h = 1.0 / s;
    let stream = task.stream();
    let token = token as u32;
    let score = |id: u32| {
        let z = reader.view.logit(id as usize) + 0.0;
        let Stream { seed, position, draw, .. } = stream;
        (z, measure.exponent(z, kept.first) - log2(arrival_by(Words { seed, position, draw }, id)))
    };
    let (own, won) = score(token);
    let mut first_two = [NONE; 2];
    first_arrivals(reader, draw, &filter.list.keys, kept, measure, stream, &mut first_two);
    let runner_up = u32::try_from(first_two[1]).map_or(f32::INFINITY, |id| (won - score(id).1) * h);

    let least = reader.least(kept.cut);
    let mut facts = Facts { first: reader.first, own, least, next, count, mass: 0, lz: [0.0; 2] };
    let on = task.prepared.filters();
    if on.contains(&Filter::TopP) {
        facts.mass = kept.total(reader, filter, filters);
    }
    if on.iter().any(|filter| matches!(filter, Filter::TopA | Filter::PLess | Filter::EpsilonCutoff)) {
        facts.lz = [filters, filters.squared()].map(|measure| log_mass(whole.total(reader, filter, measure)));
    }
    let mut limits = Limits::new(params, reader.view.vocab(), &facts, filter_s);
    let mut mass = |least| {
        let part = Given { cut: whole.cut.at_least(least), ..whole.clone() };
        (part.total(reader, filter, filters), crate::logprobs::count(reader, part.cut) as usize)
    };
    limits.leave_top_p(params, &facts, runner_up, &mut mass);
    let twice = limits.leaves.min(runner_up);
    let (mut most, mut nearest) = (f32::NEG_INFINITY, twice);
    if next > f32::NEG_INFINITY {
        // No other score is within this.
        let reach = (twice * s).min(f32::MAX) * 1.00001 + won.abs() * 1e-6;
        let others = Given { cut: after(kept.cut), first: kept.first, prefix: false, listed: None };
        let mut ids = Vec::new();
        that_score(reader, draw, &others, measure, stream, won - reach, &mut ids);
        for (z, scored) in ids.into_iter().map(score) {
            let after = ((won - scored) * h).max(limits.until_kept(z));
            if after < twice {
                (most, nearest) = (most.max(z), nearest.min(after));
            }
        }
    }
    let holds = nearest < twice && most + twice <= reader.first && {
        let [above, total] = [most + twice, limits.least_given(twice)].map(|least| mass(least).0);
        limits.holds_out(params, above, total, twice)
    };
    let twice = if holds { twice } else { nearest };
    edits.radius(twice, size(&facts, won, h, &limits))
}
