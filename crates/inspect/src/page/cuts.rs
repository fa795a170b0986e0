//! The page's section on filters: one picture of all the cuts, one card a filter.

use super::html::{chip, escape, percent, tokens};
use super::sections::{figure, section, upper};
use crate::text::count;
use crate::trace::{FilterTrace, Side, Sides, Trace, filter_words};

/// Tells what the filters cut, all together and one by one.
pub(super) fn filters(trace: &Trace) -> String {
    if trace.filters.is_empty() {
        let inner = format!(
            "<p>None is on. All {} may be drawn, each as often as it is likely.</p>\n{}",
            tokens(trace.candidates),
            figure(
                "mass",
                "The share of the probability that the first tokens hold together, by how many there are."
            )
        );
        return section("Filters", "filters", &inner);
    }
    let kept = trace.kept.end - trace.kept.first;
    let cards: String = trace.filters.iter().enumerate().map(|(i, filter)| card(i, filter)).collect();
    let joint = trace.params.order == gumball_spec::FilterOrder::Joint;
    let how = if joint {
        "Each looks at the whole list, and what all of them keep stays."
    } else {
        "Each works on what the one before it left."
    };
    let stay = if kept == 1 { "1 token stays".to_owned() } else { format!("{} stay", tokens(kept)) };
    let inner = format!(
        "<p>Far down the list there are thousands of tokens, each very unlikely, that make no sense here. Together they would be drawn \
         too often. <em>Filters</em> cut the list. {how} In the end {stay}, with {} of the probability.</p>\n{}\
         <div class=\"cards\">\n{cards}</div>\n",
        percent(trace.kept.share),
        figure(
            "mass",
            "Above: the share of the probability that the first tokens hold together. Below: what each filter was given (pale) and \
             what it kept (full), on the same axis."
        )
    );
    section("Filters", "filters", &inner)
}

fn card(i: usize, filter: &FilterTrace) -> String {
    let (name, purpose) = filter_words(filter.name);
    let (given, kept) = (filter.given.1 - filter.given.0, filter.kept.1 - filter.kept.0);
    let mut facts = format!(
        "<dt>kept</dt><dd>{} of {}, with {} of their probability</dd>",
        count(kept as u64),
        count(given as u64),
        percent(filter.share)
    );
    if let Some(target) = filter.target {
        facts.push_str(&format!(
            "<dt>target</dt><dd>{} of the mass given</dd>",
            percent(target as f64 / filter.mass as f64)
        ));
    }
    if let Some(threshold) = filter.threshold {
        facts.push_str(&format!("<dt>bar</dt><dd>a probability of {}</dd>", percent(threshold)));
    }
    if let Some(entropy) = filter.entropy_bits {
        facts.push_str(&format!("<dt>entropy</dt><dd>{entropy:.2} bits</dd>"));
    }
    if let Some(start) = &filter.start {
        facts.push_str(&line("first kept", "last before it", start));
    }
    facts.push_str(&line("last kept", "first gone", &filter.end));
    format!(
        "<article class=\"card c{}\"><h3>{name} <span class=\"value\">{}</span></h3><p>{purpose}</p><p class=\"because\">{}.</p><dl>{facts}</dl></article>\n",
        i % 8,
        filter.value,
        upper(&escape(&filter.because))
    )
}

fn line(kept: &str, dropped: &str, sides: &Sides) -> String {
    let side = |side: &Side| {
        format!(
            "{} {} <span class=\"small\">rank {}</span>",
            chip(side.id, side.text.as_deref()),
            percent(side.p),
            count(side.place as u64 + 1)
        )
    };
    let gone = sides
        .dropped
        .as_ref()
        .map_or_else(String::new, |gone| format!("<dt>{dropped}</dt><dd>{}</dd>", side(gone)));
    format!("<dt>{kept}</dt><dd>{}</dd>{gone}", side(&sides.kept))
}
