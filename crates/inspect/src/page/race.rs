//! The page's section on the draw: the race, the tiles that had to be opened, and the tokens that might have
//! won.

use gumball_spec::{Filter, FilterOrder};

use super::sections::{figure, label, section};
use crate::text::count;
use crate::trace::{Race, Token, Trace};

/// Tells how the winner was drawn.
pub(super) fn race(race: &Race, winner: &Token, trace: &Trace) -> String {
    let second =
        race.leaders.get(1).map_or_else(String::new, |second| format!(" {} came in second.", label(second)));
    let inner = format!(
        "<p>What is left is drawn by lot, each token as often as it is likely. Gumball does it with a race. Every token gets a random \
         <em>arrival</em>, the same kind for all; the arrival divided by the token\u{2019}s weight is its finishing time, so likely tokens \
         run faster. The first at the line wins. One can prove that this gives every token exactly its probability.</p>\n\
         <p>The arrivals come from the seed and from nothing else. Seed <code>{}</code> at position {} gives these, on \
         every machine, every time. {} won with an arrival of {}.{second}</p>\n{}{}",
        trace.seed,
        count(u64::from(trace.position)),
        label(winner),
        short(winner.arrival.unwrap_or_default()),
        figure(
            "lanes",
            "The finish, seen from the side: the tokens that came in first. Further right is later, on a logarithmic scale."
        ),
        figure(
            "field",
            "The whole field. Further right is likelier, further down is an earlier arrival. All points on a diagonal finish together; \
             the diagonal drawn is the winner\u{2019}s, and nobody is below it."
        )
    );
    section("The race", "race", &inner)
}

/// Tells which tiles had to be opened.
pub(super) fn tiles(race: &Race, trace: &Trace) -> String {
    let opened = match race.tiles - race.open_tiles {
        0 => format!("all {}, for there are so few", count(race.tiles as u64)),
        skipped => format!(
            "{} of {}. The other {} are never looked at again",
            count(race.open_tiles as u64),
            count(race.tiles as u64),
            count(skipped as u64)
        ),
    };
    let inner = format!(
        "<p>Rolling {} dice for one token would be slow. So tokens are grouped in <em>tiles</em> of 256, and a tile first draws when the \
         first of its tokens arrives. That and the tile\u{2019}s best logit say how good a score in it could possibly be. Only tiles that could \
         still beat the best score are opened: here {opened}, and the result is exactly the same.</p>\n{}",
        count(trace.candidates as u64),
        figure(
            "tiles",
            "The best score that each tile could hold, the most promising first. The line is the winner\u{2019}s score; tiles below it need \
             not be opened."
        )
    );
    section("Why it is fast", "tiles", &inner)
}

/// Offers the sliders.
pub(super) fn what_if(trace: &Trace) -> String {
    let params = &trace.params;
    let others = params
        .filters(trace.vocab)
        .any(|filter| !matches!(filter, Filter::TopK | Filter::TopP | Filter::MinP));
    let special = others
        || params.order != FilterOrder::Default
        || params.min_keep > 1
        || params.temperature_last
        || params.steered_by().is_some()
        || trace.temperature.in_use == 0.0;
    let differs = match special {
        true => {
            " This draw was made by other rules as well, so even its own values may give another winner here."
        }
        false => "",
    };
    let inner = format!(
        "<p>The same arrivals, other settings. Move the sliders and see whom the race would have let win. Edits stay as they are; \
         only these four act.{differs}</p>\n<div class=\"whatif\" data-whatif></div>\n\
         <p class=\"small\">Computed in this page in ordinary floating point: a tie at the last bit may come out differently in the engine.</p>\n"
    );
    section("Try it", "what-if", &inner)
}

/// Writes a positive number with two significant digits or more.
fn short(value: f32) -> String {
    let digits = (1.0 - value.max(1e-12).log10().floor()).clamp(0.0, 12.0) as usize;
    format!("{value:.digits$}")
}
