//! The sections of the page, in the order data flows.

use super::html::{chip, escape, percent, plain_label, tokens};
use super::{Context, cuts, explain, race};
use crate::settings::settings;
use crate::text::count;
use crate::trace::{Change, Token, Trace};

/// Returns everything inside the body but data and script.
pub(super) fn body(trace: &Trace, context: Option<&Context>) -> String {
    let Some(winner) = trace.winner.as_ref().filter(|_| trace.candidates > 0) else { return empty(trace) };
    let mut sections = vec![head(trace, winner, context), model(), edits(trace), temperature(trace)];
    if let Some(race) = &trace.race {
        sections.push(cuts::filters(trace));
        if race.runners > 1 {
            sections.extend([race::race(race, winner, trace), race::tiles(race, trace)]);
        } else {
            let only = format!(
                "<p>{} is the only token left, so it wins whatever the arrivals are.</p>",
                label(winner)
            );
            sections.push(section("The race", "race", &only));
        }
    } else {
        sections.push(section(
            "The draw",
            "draw",
            "<p>There is none. The temperature is 0, so the first token of the order is taken, \
            every time, whatever the seed.</p>",
        ));
    }
    sections.extend([race::what_if(trace), again(trace)]);
    format!("<main>\n{}</main>\n{}", sections.join("\n"), footer())
}

pub(super) fn section(title: &str, id: &str, inner: &str) -> String {
    format!("<section id=\"{id}\">\n<h2>{title}</h2>\n{inner}\n</section>\n")
}

/// A plot that the script draws, with its caption.
pub(super) fn figure(plot: &str, caption: &str) -> String {
    format!(
        "<figure><div class=\"plot\" data-plot=\"{plot}\"></div><figcaption>{caption}</figcaption></figure>\n"
    )
}

/// Writes a token's place, from 1; a dash where it has none.
fn place(token: &Token) -> String {
    token.place.map_or_else(|| "-".to_owned(), |place| count(place as u64 + 1))
}

pub(super) fn label(token: &Token) -> String {
    chip(token.id, token.text.as_deref())
}

fn empty(trace: &Trace) -> String {
    let heading = match &trace.winner {
        Some(forced) => format!("The next token is {}.", label(forced)),
        None => "This row has no token.".to_owned(),
    };
    let yielded = match &trace.winner {
        Some(forced) => format!("and emits {}, which was forced", label(forced)),
        None => "and yields no token".to_owned(),
    };
    format!(
        "<main><header><p class=\"eyebrow\">gumball inspect</p><h1>{heading}</h1>\
         <p class=\"lede\">{}. None of its {} logits is above minus infinity once bans and masks are applied, so there \
         is nothing to draw. The engine says so with a status bit {yielded}.</p></header>{}</main>{}",
        escape(&trace.source),
        count(trace.vocab as u64),
        edits(trace),
        footer()
    )
}

fn head(trace: &Trace, winner: &Token, context: Option<&Context>) -> String {
    let kept = trace.kept.end - trace.kept.first;
    let chance = match trace.race {
        _ if winner.place.is_none() => "It was forced, although the edits ban it.".to_owned(),
        None => "It is the likeliest, and the temperature is 0.".to_owned(),
        Some(_) if kept == 1 => "It was the only one left to draw from.".to_owned(),
        Some(_) => format!(
            "{} let through, and this one, ranked {}, had a chance of {} among them.",
            if kept == trace.candidates {
                "All were".to_owned()
            } else {
                format!("{} of them were", count(kept as u64))
            },
            place(winner),
            percent(winner.p_kept)
        ),
    };
    // Blanks alone would not be seen.
    let text = winner.text.clone().unwrap_or_default();
    let chosen = if text.trim().is_empty() { plain_label(winner.id, Some(&text)) } else { text };
    let context = context.map_or_else(String::new, |context| {
        format!(
            "<blockquote><p class=\"prompt\">{}</p><p>{}<mark>{}</mark></p></blockquote>\n",
            escape(&context.prompt),
            escape(&context.said),
            escape(&chosen)
        )
    });
    let status: String =
        trace.status.iter().map(|bit| format!("<p class=\"warn\">{}</p>", status(bit))).collect();
    let balls = match trace.race {
        None => String::new(),
        Some(_) => figure(
            "balls",
            "The machine before the crank is turned. Each ball is a token that was let through; its area is its chance. \
             The one that came out is filled in.",
        ),
    };
    format!(
        "<header>\n<p class=\"eyebrow\">gumball inspect</p>\n<h1>The next token is {}.</h1>\n\
         <p class=\"lede\">{}. The model gave each of {} a number. {chance} This page shows how, step by step.</p>\n\
         {context}{status}{}</header>\n",
        label(winner),
        upper(&escape(&trace.source)),
        tokens(trace.vocab),
        balls
    )
}

pub(super) fn upper(text: &str) -> String {
    text.replacen(
        |c: char| c.is_lowercase(),
        &text.chars().next().unwrap_or(' ').to_uppercase().to_string(),
        usize::from(text.starts_with(char::is_lowercase)),
    )
}

fn status(bit: &str) -> &'static str {
    match bit {
        "nan" => "Some logits were not a number. They count as minus infinity.",
        "inf" => "Some logits were plus infinity. They count as the largest number there is.",
        _ => "",
    }
}

fn model() -> String {
    let inner = format!(
        "<p>A language model does not choose words. It ends with a list of numbers, one for every token it knows: the \
         <em>logits</em>. A token is a word or a piece of one. The larger its number, the better it fits, in the model\u{2019}s \
         opinion, after the text so far.</p>\n\
         <p>Put in order, the best first, the list begins like this. Where two numbers are equal the smaller id goes first, so \
         the order is always the same.</p>\n{}",
        figure(
            "order",
            "The first tokens of the order. Bar and number are the probability that the logit turns into; behind an arrow stands \
             the chance in the draw, once filters have cut the list. Crossed out is what a filter removed."
        )
    );
    section("What the model says", "order", &inner)
}

fn edits(trace: &Trace) -> String {
    let edits = &trace.edits;
    if edits.steps.is_empty() {
        return String::new();
    }
    let banned = match edits.banned {
        0 => String::new(),
        n => format!(", and {} of them can no longer be drawn at all", count(n as u64)),
    };
    let mut rows = String::new();
    for step in &edits.steps {
        let (name, does) = explain::edit(step.name);
        let change = |change: &Change| {
            let after = change.after.map_or_else(|| "ruled out".to_owned(), logit);
            format!(
                "{}\u{a0}{}\u{202f}\u{2192}\u{202f}{after}",
                chip(change.id, change.text.as_deref()),
                logit(change.before)
            )
        };
        let examples: Vec<_> = step.examples.iter().map(change).collect();
        rows.push_str(&format!(
            "<li><strong>{name}</strong> {does}: {}.<br><span class=\"small\">{}</span></li>\n",
            tokens(step.changed),
            examples.join(", &ensp;")
        ));
    }
    let inner = format!(
        "<p>Before anything is drawn, the caller may change the numbers: make repeated words less likely, rule some out, \
         favour others. Here {} changed{banned}.</p>\n<ul class=\"steps\">\n{rows}</ul>\n",
        tokens(edits.changed),
    );
    section("Edits", "edits", &inner)
}

fn temperature(trace: &Trace) -> String {
    let t = &trace.temperature;
    let choices = f64::from(t.entropy_bits).exp2();
    let sure = format!(
        "<p>How undecided is the model here? Its <em>entropy</em> is {:.2} bits: as undecided as if it had to choose among {} \
         equally good tokens.</p>\n",
        t.entropy_bits,
        if choices < 10.0 { format!("{choices:.1}") } else { count(choices.round() as u64) }
    );
    let in_use = match t.in_use {
        0.0 => "The temperature here is 0, which means: always the best.".to_owned(),
        1.0 => "The temperature here is 1, which leaves the model\u{2019}s opinion as it is.".to_owned(),
        x => {
            let how = if x < 1.0 {
                "sharper: the likely gets likelier"
            } else {
                "flatter: the unlikely gets a chance"
            };
            let instead = if x == t.asked {
                String::new()
            } else {
                format!(" (not {}: it follows the entropy)", t.asked)
            };
            format!(
                "The temperature here is {x}{instead}. That makes the opinion {how}, and the entropy {:.2} bits.",
                t.entropy_in_use_bits
            )
        }
    };
    let inner = format!(
        "<p>To become probabilities, the logits are divided by the <em>temperature</em>, raised as powers of e, and scaled so that they \
         sum to one. {in_use}</p>\n{sure}{}",
        figure(
            "temperature",
            "Probability by rank, for the temperature in use and for others. Both axes are logarithmic: each step to the right is \
             ten times further down the list, each step down ten times less likely."
        )
    );
    section("From numbers to probabilities", "temperature", &inner)
}

/// Writes a logit.
fn logit(z: f32) -> String {
    format!("{z:.2}").replace('-', "\u{2212}")
}

fn again(trace: &Trace) -> String {
    let settings = settings(&trace.params);
    let settings = if settings.is_empty() { "all neutral".to_owned() } else { escape(&settings) };
    let firm = trace.radius.map_or_else(String::new, |radius| {
        format!(
            " Another batch or another machine may change the logits a little: this token stays while every logit moves by less than \
             {radius:.3}, its <em>radius</em>."
        )
    });
    let inner = format!(
        "<p>A draw depends on the row of logits, the parameters, the text so far, and these three numbers. Give them again and the \
         same token comes out, on any machine, in any batch.{firm}</p>\n\
         <dl class=\"facts\"><dt>seed</dt><dd><code>{}</code></dd><dt>position</dt><dd>{}</dd><dt>draw</dt><dd>{}</dd>\
         <dt>parameters</dt><dd>{settings}</dd></dl>\n",
        trace.seed, trace.position, trace.draw
    );
    section("To get it again", "again", &inner)
}

fn footer() -> String {
    format!(
        "<footer><p>Made by gumball {}. This page is complete in itself: it loads nothing. The numbers behind the plots are in it as JSON.</p></footer>\n",
        env!("CARGO_PKG_VERSION")
    )
}
