//! The law of every mode of verification that keeps it, under every filter: streams of requests whose drafts
//! come from another distribution have the target's (rules S3 to S7), as many tokens as are asked for.
//!
//! A row does not depend on the history here, so all tokens of a stream are independent draws from it.
//! Streams are counted to the same length for any number of accepted drafts: to stop elsewhere would prefer
//! some tokens.

use gumball_engine::{Batch, Device, Drafts, Matrix, Outputs, Slot, Tree, VerifyMode};
use gumball_spec::{Result, SamplingParams};

use crate::case::Case;
use crate::decoder::{Decoder, On, Table};
use crate::draws::{Setting, settings};
use crate::law::{Counts, Law};
use crate::rows::Words;
use crate::statistics::ChiSquare;

/// The drafts of a request, except for the siblings: two.
const DRAFTS: usize = 3;

/// Where streams are verified, and how many at once.
#[derive(Clone, Copy, Debug)]
pub struct Place<'d> {
    /// The device; the host if there is none.
    pub device: Option<&'d Device>,
    /// How many streams there are in a call.
    pub streams: usize,
    /// How many tokens of each are counted.
    pub tokens: usize,
}

impl Place<'_> {
    /// The host.
    pub const HOST: Place<'static> = Place { device: None, streams: 64, tokens: 64 };
}

/// How drafts are made and judged, under a name.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Its name, which says what it is about.
    pub name: &'static str,
    mode: VerifyMode,
    /// Whether the drafter has probabilities, from which its drafts are drawn; otherwise they are any tokens.
    probs: bool,
    /// Whether drafts are siblings, drawn without replacement, rather than a chain.
    siblings: bool,
}

/// All ways whose tokens have the target's law. Thresholds of 1 are among them; greedy tokens have no law.
pub const WAYS: [Way; 8] = {
    const fn way(name: &'static str, mode: VerifyMode, probs: bool, siblings: bool) -> Way {
        Way { name, mode, probs, siblings }
    }
    let threshold = VerifyMode::Threshold { single: 1.0, acc: 1.0 };
    [
        way("coupled", VerifyMode::Coupled, false, false),
        way("coupled, siblings", VerifyMode::Coupled, false, true),
        way("rejection", VerifyMode::Rejection, true, false),
        way("rejection, siblings", VerifyMode::Rejection, true, true),
        way("rejection of any drafts", VerifyMode::Rejection, false, false),
        way("block", VerifyMode::Block, true, false),
        way("block of any drafts", VerifyMode::Block, false, false),
        way("thresholds of 1", threshold, false, true),
    ]
};

/// Returns the settings whose rows are small enough to be judged a million times.
pub fn small_settings() -> impl Iterator<Item = Setting> {
    settings().into_iter().filter(|setting| setting.row().len() <= 300)
}

/// Returns the drafter's probabilities: of a row like the target's that is flatter, turned by a few
/// ids.
fn drafter(row: &[f32]) -> Vec<f32> {
    let weights: Vec<f64> =
        (0..row.len()).map(|id| (0.6 * f64::from(row[(id + 1) % row.len()] + row[id])).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| (weight / sum) as f32).collect()
}

/// Draws an id from probabilities; ids that were taken before are left out.
fn draw(words: &mut Words, probs: &[f32], taken: &[i32]) -> i32 {
    let free = |id: &usize| !taken.contains(&(*id as i32));
    let all: f64 = (0..probs.len()).filter(free).map(|id| f64::from(probs[id])).sum();
    let mut left = all * (words.word() >> 11) as f64 / (1u64 << 53) as f64;
    for id in (0..probs.len()).filter(free) {
        left -= f64::from(probs[id]);
        if left < 0.0 {
            return id as i32;
        }
    }
    (0..probs.len()).rfind(free).expect("there are more ids than siblings") as i32
}

impl Way {
    /// Returns the number of drafts of a request.
    fn count(self) -> usize {
        if self.siblings { 2 } else { DRAFTS }
    }

    /// Adds the drafts of a request.
    fn draft(self, words: &mut Words, probs: &[f32], ids: &mut Vec<i32>) {
        let first = ids.len();
        for _ in 0..self.count() {
            let taken = if self.siblings { &ids[first..] } else { &[] };
            let id = if self.probs { draw(words, probs, taken) } else { words.below(probs.len()) as i32 };
            ids.push(id);
        }
    }

    /// Counts the tokens of streams that the decoder has slots for; returns how many there were.
    fn streams(
        self,
        decoder: &mut Decoder,
        Place { streams, tokens, .. }: Place<'_>,
        (row, params): (&[f32], &SamplingParams),
        seed: u64,
        counts: &mut Counts,
    ) -> Result<u32> {
        let words = &mut Words(seed);
        let seeds: Vec<u64> = (0..streams).map(|_| words.word()).collect();
        let admit =
            |seed: &u64| decoder.pool.admit(SamplingParams { seed: Some(*seed), ..params.clone() }, &[]);
        let slots: Vec<Slot> = seeds.iter().map(admit).collect::<Result<_>>()?;
        let q = drafter(row);
        let parents = [-1; 2].repeat(streams);
        let (mut done, mut out) = (vec![0; streams], Outputs::new());
        let mut case = Case::of(row, params.clone());
        loop {
            let open: Vec<usize> = (0..streams).filter(|stream| done[*stream] < tokens).collect();
            if open.is_empty() {
                break;
            }
            let mut ids = Vec::new();
            open.iter().for_each(|_| self.draft(words, &q, &mut ids));
            let rows = open.len() + ids.len();
            // A device takes another way for rows that are named.
            let (names, probs) = (open.len() % 4 == 1, q.repeat(if self.probs { rows } else { 0 }));
            let lines = vec![0; if names { rows } else { 0 }];
            let tree =
                if self.siblings { Tree::Parents((&parents[..ids.len()]).into()) } else { Tree::Chain };
            let probs = self.probs.then(|| Matrix::new(&probs, rows, q.len())).transpose()?;
            let drafts = Drafts { ids: (&ids).into(), tree, probs };
            let open_slots: Vec<Slot> = open.iter().map(|stream| slots[*stream]).collect();
            let counts_of_drafts = vec![self.count() as u32; open.len()];
            let batch = Batch { counts: &counts_of_drafts, mode: self.mode, ..Batch::of(&open_slots) };
            decoder.verify(&lines, &batch, &drafts, &mut out)?;
            for (request, stream) in open.into_iter().enumerate() {
                for token in out.request(request).tokens {
                    if done[stream] < tokens {
                        (case.seed, case.position) = (seeds[stream], done[stream] as u32);
                        counts.add(&case, *token);
                    }
                    done[stream] += 1;
                }
            }
        }
        slots.into_iter().try_for_each(|slot| decoder.pool.release(slot))?;
        Ok((streams * tokens) as u32)
    }

    /// Counts at least `draws` tokens of a setting and tests them; XTC's two laws give two tests.
    ///
    /// # Errors
    /// The errors of [`gumball_engine::Pool::verify`].
    ///
    /// # Panics
    /// If a token outside the cut was emitted.
    pub fn run(self, place: Place<'_>, setting: &Setting, seed: u64, draws: u32) -> Result<Vec<ChiSquare>> {
        let (row, params) = (setting.row(), setting.params());
        let table = Table { rows: row.repeat(place.streams * (DRAFTS + 1)), vocab: row.len() };
        let on = place.device.map_or(On::Host, On::Device);
        let mut decoder = Decoder::new(on, table, (place.streams, DRAFTS), false)?;
        let law = Law::new(row, params);
        let (mut counts, mut done) = (law.counts(), 0);
        for batch in 0.. {
            if done >= draws {
                break;
            }
            let seed = (seed << 32) + batch;
            done += self.streams(&mut decoder, place, (row, params), seed, &mut counts)?;
        }
        Ok(law.test(&counts).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::FALSE_ALARM;

    fn p_values(way: Way, draws: u32) -> Vec<f64> {
        let run = |(setting, seed): (Setting, u64)| {
            way.run(Place::HOST, &setting, seed, draws).expect("valid parameters")
        };
        small_settings().zip(7..).flat_map(run).map(|test| test.p_value).collect()
    }

    #[test]
    fn every_way_has_the_law_of_the_target() {
        for way in WAYS {
            assert!(p_values(way, 4096).into_iter().all(|p| p >= FALSE_ALARM), "{}", way.name);
        }
    }

    #[test]
    fn thresholds_below_1_are_seen_to_lean_towards_the_drafts() {
        let mode = VerifyMode::Threshold { single: 1.0, acc: 0.5 };
        let leaning = Way { name: "a threshold of 0.5", mode, probs: false, siblings: true };
        assert!(p_values(leaning, 65536).into_iter().any(|p| p < FALSE_ALARM));
    }
}
