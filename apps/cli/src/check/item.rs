//! The items of a check, each with its figures and its verdict.

use std::collections::{HashMap, HashSet};

use gumball_spec::{NONE, oracle};
use serde::Serialize;

use super::{Draw, Exact, FALSE_ALARM_RATE, Opened, Setting, Subject, chi_square};
use crate::logits::Source;
use crate::text::probability;
use crate::{Error, Result};

/// One item of one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Item {
    /// The setting.
    pub setting: String,
    /// The row, or none if the item is about all of them.
    pub row: Option<usize>,
    /// The name of the question.
    pub name: &'static str,
    /// The figures that answer it.
    pub figures: String,
    /// Whether it holds.
    pub holds: bool,
}

/// How thoroughly to check.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Draws in each test of a distribution.
    pub draws: u32,
    /// Draws compared with the oracle, for each row.
    pub oracle_draws: u32,
    /// The seed the tests start from.
    pub seed: u64,
}

/// Draws per position: draw index and position both move.
const DRAWS_PER_POSITION: u32 = 1000;
/// Draws that are asked for at once.
const AT_ONCE: u32 = 1 << 16;
/// Rows in a batch.
const BATCH: usize = 33;

impl Check {
    /// Checks a subject at a setting on all rows of a source.
    ///
    /// # Errors
    /// Parameters that do not fit the rows or leave them no token, or what the subject refuses.
    pub fn run(&self, subject: &dyn Subject, setting: &Setting, source: &Source) -> Result<Vec<Item>> {
        let mut opened = subject.open(&setting.params, &setting.state, source.logits.vocab())?;
        let (mut items, mut has_tokens) = (Vec::new(), false);
        for row in source.rows.iter().copied() {
            let mut found = Vec::new();
            let request = setting.state.request(&setting.params, self.seed, 0);
            let exact = Exact::of(source.logits.row(row), &request)?;
            has_tokens |= !exact.ids.is_empty();
            found.push(self.oracle(opened.as_mut(), setting, source, row)?);
            let start = setting.state.position;
            let logits = source.logits.row(row);
            let by_draw = |i: u32| {
                let position = start.wrapping_add(i / DRAWS_PER_POSITION);
                Draw { row: logits, seed: self.seed, position, draw: i % DRAWS_PER_POSITION }
            };
            let by_seed = |i: u32| Draw {
                row: logits,
                seed: self.seed ^ (u64::from(i) << 1),
                position: start,
                draw: 0,
            };
            let over_draws = self.counts(opened.as_mut(), by_draw)?;
            let over_seeds = self.counts(opened.as_mut(), by_seed)?;
            found.push(distribution("distribution over draws", &over_draws, self.draws, &exact));
            found.push(distribution("distribution over seeds", &over_seeds, self.draws, &exact));
            found.push(outside(&[over_draws, over_seeds], &exact));
            for item in &mut found {
                item.row = Some(source.numbers[row]);
            }
            items.extend(found);
        }
        if !has_tokens {
            let reason = "no token is left to draw in any row, so nothing would be checked";
            return Err(Error::Usage(format!("{}: {reason}", setting.name)));
        }
        items.push(self.seeds(opened.as_mut(), source)?);
        items.push(self.batches(opened.as_mut(), setting, source)?);
        for item in &mut items {
            item.setting.clone_from(&setting.name);
        }
        Ok(items)
    }

    /// Draws as often as each test of a distribution does, and counts the tokens.
    fn counts<'a>(&self, opened: &mut dyn Opened, draw: impl Fn(u32) -> Draw<'a>) -> Result<Counts> {
        let mut counts = Counts::new();
        for first in (0..self.draws).step_by(AT_ONCE as usize) {
            let draws: Vec<_> = (first..first.saturating_add(AT_ONCE).min(self.draws)).map(&draw).collect();
            for token in opened.draws(&draws)? {
                *counts.entry(token).or_insert(0) += 1;
            }
        }
        Ok(counts)
    }

    /// Compares draws with the oracle's, token for token.
    fn oracle(
        &self,
        opened: &mut dyn Opened,
        setting: &Setting,
        source: &Source,
        row: usize,
    ) -> Result<Item> {
        let logits = source.logits.row(row);
        let mut same = 0;
        for draw in 0..self.oracle_draws {
            let request = setting.state.request(&setting.params, self.seed, draw);
            let expected = oracle::sample(logits, &request, None)?.token;
            let asked = Draw { row: logits, seed: self.seed, position: setting.state.position, draw };
            same += u32::from(opened.draw(&asked)? == expected);
        }
        let figures = format!("{same} of {} draws", self.oracle_draws);
        Ok(item("equals the oracle", figures, same == self.oracle_draws))
    }

    /// Draws a sequence twice, the second time backwards, and once with another seed.
    fn seeds(&self, opened: &mut dyn Opened, source: &Source) -> Result<Item> {
        let n = self.draws.min(500);
        let mut sequence = |seed: u64, backwards: bool| -> Result<Vec<i32>> {
            let mut order: Vec<u32> = (0..n).collect();
            if backwards {
                order.reverse();
            }
            let mut tokens = vec![NONE; n as usize];
            for i in order {
                let row = source.logits.row(source.rows[i as usize % source.rows.len()]);
                tokens[i as usize] = opened.draw(&Draw { row, seed, position: i, draw: 0 })?;
            }
            Ok(tokens)
        };
        let (first, again, other) =
            (sequence(self.seed, false)?, sequence(self.seed, true)?, sequence(self.seed ^ 0x5EED, false)?);
        let same = first.iter().zip(&again).filter(|(a, b)| a == b).count();
        let moved = first.iter().zip(&other).filter(|(a, b)| a != b).count();
        let figures = format!("{same} of {n} again; another seed moves {moved}");
        // Where several tokens come up, another seed must show it; where one does, it cannot.
        let varied = first.iter().collect::<HashSet<_>>().len() > source.rows.len();
        Ok(item("seed reproduces", figures, same == n as usize && (moved > 0 || !varied)))
    }

    /// Draws rows one by one, in one step of a pool, and in a shuffled one.
    fn batches(&self, opened: &mut dyn Opened, setting: &Setting, source: &Source) -> Result<Item> {
        let lines: Vec<u32> = (0..BATCH).map(|i| source.rows[i % source.rows.len()] as u32).collect();
        let seeds: Vec<u64> = (0..BATCH).map(|i| self.seed.wrapping_add(i as u64 / 3)).collect();
        let position = (setting.state.prompt.len() + setting.state.output.len()) as u32;
        let alone = |(line, seed): (&u32, &u64)| {
            opened.draw(&Draw { row: source.logits.row(*line as usize), seed: *seed, position, draw: 0 })
        };
        let alone = lines.iter().zip(&seeds).map(alone).collect::<Result<Vec<_>>>()?;
        let together = opened.step(source.logits.batch()?, &lines, &seeds)?;

        // 5 and 33 have no common divisor: a shuffle of all places.
        let places: Vec<_> = (0..BATCH).map(|i| i * 5 % BATCH).collect();
        let shuffled_lines: Vec<_> = places.iter().map(|place| lines[*place]).collect();
        let shuffled_seeds: Vec<_> = places.iter().map(|place| seeds[*place]).collect();
        let shuffled = opened.step(source.logits.batch()?, &shuffled_lines, &shuffled_seeds)?;
        let same = (0..BATCH).filter(|i| alone[*i] == together[*i]).count();
        let moved = (0..BATCH).filter(|i| shuffled[*i] == alone[places[*i]]).count();
        let figures = format!("{same} and, shuffled, {moved} of {BATCH} rows as alone");
        Ok(item("batch invariance", figures, same == BATCH && moved == BATCH))
    }
}

fn item(name: &'static str, figures: String, holds: bool) -> Item {
    Item { setting: String::new(), row: None, name, figures, holds }
}

/// How often each token came.
type Counts = HashMap<i32, u64>;

/// Tests counts of tokens against the exact distribution.
fn distribution(name: &'static str, counts: &Counts, draws: u32, exact: &Exact) -> Item {
    let counts: Vec<u64> =
        exact.ids.iter().map(|id| counts.get(&(*id as i32)).copied().unwrap_or(0)).collect();
    let expected: Vec<f64> = exact.p.iter().map(|p| p * f64::from(draws)).collect();
    let test = chi_square(&counts, &expected);
    let figures = format!(
        "chi-square {:.1} at {} degrees of freedom, p = {}",
        test.statistic,
        test.degrees,
        probability(test.p_value)
    );
    item(name, figures, test.p_value >= FALSE_ALARM_RATE)
}

/// Counts tokens outside the kept set.
fn outside(found: &[Counts], exact: &Exact) -> Item {
    let kept: HashSet<i32> = exact.ids.iter().map(|id| *id as i32).collect();
    let allowed = |token: &i32| kept.contains(token) || kept.is_empty() && *token == NONE;
    let all = || found.iter().flatten();
    let draws: u64 = all().map(|(_, count)| count).sum();
    let outside: u64 = all().filter(|(token, _)| !allowed(token)).map(|(_, count)| count).sum();
    let figures = format!("{outside} of {draws} draws; the cut keeps {}", exact.ids.len());
    item("never outside the cut", figures, outside == 0)
}
