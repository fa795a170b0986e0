//! A trace in the terminal: readable in 100 columns, stage by stage.

use std::io::Write;

use gumball_spec::FilterOrder;

use crate::Result;
use crate::page::Context;
use crate::shown::shown;
use crate::text::{BAD, DIM, GOOD, HEAD, Table, WARN, count, probability};
use crate::trace::{FilterTrace, Race, Sides, Token, Trace};

/// How many tokens of the order are shown.
const SHOWN: usize = 12;
/// How many tiles are shown.
const TILES: usize = 6;

/// Writes the trace, with ANSI styles.
///
/// # Errors
/// What writing gives.
pub fn write(trace: &Trace, context: Option<&Context>, out: &mut dyn Write) -> Result<()> {
    writeln!(
        out,
        "{HEAD}{}{HEAD:#}  {DIM}{} logits{DIM:#}",
        shown(&trace.source),
        count(trace.vocab as u64)
    )?;
    if let Some(context) = context {
        writeln!(out, "{DIM}{}{DIM:#}", shown(&clip(&format!("{}  {}", context.prompt, context.said), 96)))?;
    }
    for bit in &trace.status {
        writeln!(out, "{WARN}status: {}{WARN:#}", status_words(bit))?;
    }
    let Some(winner) = trace.winner.as_ref().filter(|_| trace.candidates > 0) else {
        let yields = trace.winner.as_ref().map_or_else(
            || "the row yields none".to_owned(),
            |forced| format!("{} is emitted, since it was forced", label(forced)),
        );
        writeln!(out, "\n{BAD}No token is above -inf after the edits: {yields}.{BAD:#}")?;
        return Ok(());
    };
    edits(trace, out)?;
    order(trace, winner, out)?;
    temperature(trace, out)?;
    filters(trace, out)?;
    match &trace.race {
        Some(race) => self::race(race, trace, out)?,
        None => {
            head(out, "draw", "the temperature is 0: the first token of the order wins")?;
        }
    }
    writeln!(
        out,
        "\n{GOOD}{}{GOOD:#}  {DIM}rank {}, probability {} in the row, {} among what was kept{DIM:#}",
        label(winner),
        rank(winner),
        probability(winner.p),
        probability(winner.p_kept)
    )?;
    if let Some(radius) = trace.radius {
        writeln!(out, "{DIM}radius {radius:.3}: it stays while every logit moves by less{DIM:#}")?;
    }
    writeln!(out, "{DIM}seed {}, position {}, draw {}{DIM:#}", trace.seed, trace.position, trace.draw)?;
    if let Some(device) = trace.device.as_ref().filter(|device| device.differences.is_empty()) {
        writeln!(
            out,
            "{GOOD}{} comes to the same{GOOD:#}  {DIM}token, kept set, logprobs{DIM:#}",
            device.name
        )?;
    }
    Ok(())
}

fn head(out: &mut dyn Write, name: &str, words: &str) -> Result<()> {
    Ok(writeln!(out, "\n{HEAD}{name}{HEAD:#}  {words}")?)
}

fn edits(trace: &Trace, out: &mut dyn Write) -> Result<()> {
    let edits = &trace.edits;
    if edits.steps.is_empty() {
        return head(out, "edit", "nothing changed");
    }
    let words = format!(
        "{} logits changed, {} of them banned",
        count(edits.changed as u64),
        count(edits.banned as u64)
    );
    head(out, "edit", &words)?;
    for step in &edits.steps {
        let change = |change: &crate::trace::Change| {
            let after = change.after.map_or_else(|| "banned".to_owned(), |z| format!("{z:.2}"));
            format!("{} {:.2} to {after}", name(change.id, change.text.as_deref()), change.before)
        };
        let examples: Vec<_> = step.examples.iter().take(3).map(change).collect();
        writeln!(
            out,
            "  {:<20} {:>7}  {DIM}{}{DIM:#}",
            step.name,
            count(step.changed as u64),
            clip(&examples.join(", "), 66)
        )?;
    }
    Ok(())
}

fn order(trace: &Trace, winner: &Token, out: &mut dyn Write) -> Result<()> {
    head(out, "order", &format!("{} tokens above -inf, likeliest first", count(trace.candidates as u64)))?;
    let with_text = trace.tokens.iter().any(|token| token.text.is_some());
    let edited = !trace.edits.steps.is_empty();
    let mut headings = vec![">rank", ">id"];
    if with_text {
        headings.push("token");
    }
    headings.push(">logit");
    if edited {
        headings.push(">edited");
    }
    headings.extend([">probability", ">kept", ">arrival", ">score", ""]);
    let mut table = Table::new(&headings);
    let mut row = |token: &Token| {
        let mut cells = vec![rank(token), token.id.to_string()];
        if with_text {
            cells.push(clip(&visible(token.text.as_deref().unwrap_or("")), 20));
        }
        cells.push(format!("{:.3}", token.raw));
        if edited {
            cells.push(format!("{:.3}", token.logit));
        }
        let number =
            |value: Option<f32>, digits| value.map_or_else(String::new, |value| format!("{value:.digits$}"));
        let kept = if token.p_kept > 0.0 { probability(token.p_kept) } else { "-".to_owned() };
        cells.extend([probability(token.p), kept, number(token.arrival, 4), number(token.score, 3)]);
        let wins = token.id == winner.id;
        cells.push(if wins { "wins".to_owned() } else { String::new() });
        table.styled(
            if wins {
                GOOD
            } else if token.p_kept > 0.0 {
                anstyle::Style::new()
            } else {
                DIM
            },
            cells,
        );
    };
    trace.tokens.iter().take(SHOWN).for_each(&mut row);
    if winner.place.is_none_or(|place| place >= SHOWN) {
        row(winner);
    }
    Ok(table.write(out)?)
}

fn temperature(trace: &Trace, out: &mut dyn Write) -> Result<()> {
    let t = &trace.temperature;
    let words = if t.in_use == 0.0 {
        format!("0, greedy; the row's entropy is {:.2} bits", t.entropy_bits)
    } else if t.in_use == t.asked {
        format!(
            "{}; entropy {:.2} bits, {:.2} at temperature 1",
            t.in_use, t.entropy_in_use_bits, t.entropy_bits
        )
    } else {
        format!("{} instead of {}, for an entropy of {:.2} bits", t.in_use, t.asked, t.entropy_bits)
    };
    head(out, "temperature", &words)
}

fn filters(trace: &Trace, out: &mut dyn Write) -> Result<()> {
    if trace.filters.is_empty() {
        return head(out, "filter", "none is on: every token may run");
    }
    let how = if trace.params.order == FilterOrder::Joint {
        "each on the whole row"
    } else {
        "each on what is left"
    };
    let kept = match trace.kept.end - trace.kept.first {
        1 => "1 token is".to_owned(),
        n => format!("{} tokens are", count(n as u64)),
    };
    head(
        out,
        "filter",
        &format!("{kept} kept, {:.2} % of the probability; {how}", trace.kept.share * 100.0),
    )?;
    for filter in &trace.filters {
        self::filter(filter, out)?;
    }
    Ok(())
}

fn filter(filter: &FilterTrace, out: &mut dyn Write) -> Result<()> {
    let (given, kept) = (filter.given.1 - filter.given.0, filter.kept.1 - filter.kept.0);
    writeln!(
        out,
        "  {HEAD}{} {}{HEAD:#}  keeps {} of {}, {:.2} % of their probability",
        filter.name,
        filter.value,
        count(kept as u64),
        count(given as u64),
        filter.share * 100.0
    )?;
    for line in wrap(&filter.because, 94) {
        writeln!(out, "    {}", shown(&line))?;
    }
    if let Some(target) = filter.target {
        writeln!(out, "    {DIM}mass given {}, target {target}{DIM:#}", filter.mass)?;
    }
    if let Some(threshold) = filter.threshold {
        writeln!(out, "    {DIM}threshold: probability {}{DIM:#}", probability(threshold))?;
    }
    if let Some(entropy) = filter.entropy_bits {
        writeln!(out, "    {DIM}entropy {entropy:.3} bits{DIM:#}")?;
    }
    if let Some(start) = &filter.start {
        sides("first", "just before it went", start, out)?;
    }
    sides("last", "next went", &filter.end, out)
}

fn sides(which: &str, beyond: &str, sides: &Sides, out: &mut dyn Write) -> Result<()> {
    let side = |side: &crate::trace::Side| {
        format!("{} p {}", name(side.id, side.text.as_deref()), probability(side.p))
    };
    let dropped = match &sides.dropped {
        Some(dropped) => format!("{beyond} {}", side(dropped)),
        None => "nothing beyond it".to_owned(),
    };
    Ok(writeln!(
        out,
        "    {DIM}{which} kept {} (up to it {:.4}); {dropped}{DIM:#}",
        side(&sides.kept),
        sides.kept.cumulative
    )?)
}

fn race(race: &Race, trace: &Trace, out: &mut dyn Write) -> Result<()> {
    let words = format!(
        "{} of {} tiles can hold the winner; score = y - log2(arrival), the largest wins",
        count(race.open_tiles as u64),
        count(race.tiles as u64)
    );
    head(out, "draw", &words)?;
    let mut table = Table::new(&[">tile", "ids", ">first arrival", ">bound", "best score reached?"]);
    for tile in race.bounds.iter().take(TILES.max(race.open_tiles.min(TILES) + 2)) {
        let last = ((tile.tile as usize + 1) * 256).min(trace.vocab) - 1;
        let inside = tile.bound >= race.best;
        let cells = vec![
            tile.tile.to_string(),
            format!("{}-{last}", tile.tile * 256),
            format!("{:.6}", tile.arrival),
            format!("{:.3}", tile.bound),
            if inside { "yes: scored".to_owned() } else { "no: skipped".to_owned() },
        ];
        table.styled(if inside { anstyle::Style::new() } else { DIM }, cells);
    }
    table.write(out)?;
    writeln!(out)?;
    let mut table = Table::new(&["leaders", ">rank", ">y", ">arrival", ">score"]);
    for (i, token) in race.leaders.iter().take(6).enumerate() {
        let (arrival, score) = (token.arrival.unwrap_or_default(), token.score.unwrap_or_default());
        let cells = vec![
            clip(&label(token), 30),
            rank(token),
            format!("{:.3}", score + arrival.log2()),
            format!("{arrival:.6}"),
            format!("{score:.3}"),
        ];
        table.styled(if i == 0 { GOOD } else { anstyle::Style::new() }, cells);
    }
    Ok(table.write(out)?)
}

fn status_words(bit: &str) -> &'static str {
    match bit {
        "nan" => "some logits were NaN; they count as -inf",
        "inf" => "some logits were +inf; they count as the largest number",
        _ => "no token is above -inf",
    }
}

/// Writes a token's place, from 1; a dash where it has none.
fn rank(token: &Token) -> String {
    token.place.map_or_else(|| "-".to_owned(), |place| count(place as u64 + 1))
}

fn label(token: &Token) -> String {
    name(token.id, token.text.as_deref())
}

/// Names a token by its text, else by its id.
fn name(id: u32, text: Option<&str>) -> String {
    text.map_or_else(|| format!("token {id}"), |text| format!("\"{}\"", visible(text)))
}

/// Makes blanks and control characters visible.
fn visible(text: &str) -> String {
    let one = |c: char| match c {
        ' ' => "\u{b7}".to_owned(),
        c => c.to_string(),
    };
    shown(&text.chars().map(one).collect::<String>())
}

/// Cuts a text to a width.
fn clip(text: &str, width: usize) -> String {
    let flat = text.replace(['\n', '\r', '\t'], " ");
    if flat.chars().count() <= width {
        return flat;
    }
    flat.chars().take(width - 1).chain(['\u{2026}']).collect()
}

/// Breaks a text into lines.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}
