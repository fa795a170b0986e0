//! Coupled drafts change no token (rule S3): requests with any parameters, in batches that change, emit the
//! stream of decoding step by step, with any drafts, any number of them, and whenever drafting is switched on
//! and off. On the host, on a device and over ranks. With [`Extent::trained`] the logprobs of these tokens
//! over their kept sets are the trainer's, too ([`trained`]).

use std::time::Duration;

use gumball_engine::dist::{LogitsLayout, threads};
use gumball_engine::{Device, Drafts, Error, NONE, Operators, Outputs, Result, SamplingParams, Slot};

use crate::bytes::Bytes;
use crate::decoder::{Decoder, On, Table};
use crate::generate;
use crate::rows::{Words, bell};
use crate::trained::{self, Drawn};

const VOCAB: usize = 300;

/// The rows of a model's table.
const LINES: usize = 13;

/// The most drafts of a request.
const MOST: usize = 12;

/// How long a rank waits for the others.
const PATIENCE: Duration = Duration::from_secs(60);

/// How much is decoded.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    /// The requests that are decoded at once.
    pub requests: usize,
    /// The tokens of each.
    pub steps: usize,
    /// At least how many tokens are compared; other requests follow until then.
    pub tokens: usize,
    /// Whether their logprobs are held to the trainer's function.
    pub trained: bool,
    /// Over how many ranks of the host drafts are verified; 1: where the requests are decoded, too.
    pub ranks: usize,
}

/// The number of comparisons.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// The tokens.
    pub tokens: usize,
    /// How many of them were accepted drafts.
    pub accepted: usize,
    /// The logprobs.
    pub trained: usize,
}

/// A model: the row after a history is one of a few, by its last two ids.
struct Model(Vec<f32>);

impl Model {
    fn new(seed: u64) -> Self {
        let row = |near: usize| {
            let mut row = bell(VOCAB, 1.5, 100 * seed + near as u64);
            (0..3).for_each(|peak| row[(near * 41 + peak * 7) % VOCAB] += 6.0);
            row
        };
        Self((0..LINES).flat_map(row).collect())
    }

    /// Returns which row of the table stands after a history.
    fn line(history: &[u32]) -> u32 {
        let hash = history.iter().rev().take(2).fold(5u64, |hash, id| hash * 31 + u64::from(*id));
        (hash % LINES as u64) as u32
    }

    /// Returns the row after a history.
    fn row(&self, history: &[u32]) -> &[f32] {
        &self.0[Self::line(history) as usize * VOCAB..][..VOCAB]
    }
}

/// What proposes drafts.
#[derive(Clone, Copy, Debug)]
enum Drafter {
    /// The tokens that will come.
    Perfect,
    /// Those two times out of three, and others.
    Fair,
    /// Any ids, few of which are right.
    Random,
    /// What no drafter would say: no tokens, the same sibling again and again.
    Hostile,
}

impl Drafter {
    const ALL: [Self; 4] = [Self::Perfect, Self::Fair, Self::Random, Self::Hostile];

    fn draft(self, words: &mut Words, coming: Option<&u32>) -> i32 {
        let any = words.below(VOCAB) as i32;
        let coming = coming.map_or(any, |id| *id as i32);
        match self {
            Self::Perfect => coming,
            Self::Fair if words.below(3) > 0 => coming,
            Self::Fair | Self::Random => any,
            Self::Hostile => [NONE, i32::MIN, i32::MAX, VOCAB as i32, 3, coming][words.below(6)],
        }
    }
}

/// A request that is decoded twice.
#[derive(Clone)]
struct Decoded {
    params: SamplingParams,
    prompt: u32,
    slot: Slot,
    /// Prompt and output.
    history: Vec<u32>,
    /// The output of decoding step by step.
    plain: Vec<u32>,
    open: bool,
}

/// Drafts of several requests, gathered.
#[derive(Default)]
struct Batch {
    counts: Vec<u32>,
    ids: Vec<i32>,
    parents: Vec<i32>,
    lines: Vec<u32>,
    slots: Vec<Slot>,
}

impl Batch {
    /// Adds a request with a tree of drafts, or without one.
    fn add(&mut self, words: &mut Words, request: &Decoded, drafter: Drafter, count: usize) {
        let coming = request.plain.get(request.history.len() - 1..).unwrap_or(&[]);
        let mut paths = vec![request.history.clone()];
        self.lines.push(Model::line(&paths[0]));
        for node in 0..count {
            // Mostly after the last one, otherwise anywhere.
            let parent = if words.below(4) > 0 { node } else { words.below(node + 1) };
            let depth = paths[parent].len() - paths[0].len();
            let draft = drafter.draft(words, coming.get(depth));
            let path = [&paths[parent][..], &[draft as u32]].concat();
            self.lines.push(Model::line(&path));
            paths.push(path);
            self.ids.push(draft);
            self.parents.push(parent as i32 - 1);
        }
        self.counts.push(count as u32);
        self.slots.push(request.slot);
    }
}

/// Holds the logprobs of the last tokens of requests to the trainer's function; returns how many there are.
/// Each has its first row of the outputs, its history and how many of its ids are the last.
fn hold_trained<'a>(
    operators: &Operators,
    model: &Model,
    out: &Outputs,
    of: impl Iterator<Item = (&'a SamplingParams, usize, &'a [u32], usize)>,
) -> std::result::Result<usize, String> {
    let drawn = of.flat_map(|(params, first, history, count)| {
        (0..count).map(move |token| {
            let before = &history[..history.len() - count + token];
            Drawn { params, before, prompt_len: 1, row: model.row(before), place: first + token }
        })
    });
    trained::hold(operators, out, &drawn.collect::<Vec<_>>())
}

/// Returns requests of all kinds of parameters.
fn requests(seed: u64, count: usize, trained: bool) -> Vec<Decoded> {
    let mut words = Words(seed);
    let request = |_| {
        let data: Vec<u8> = (0..300).map(|_| words.word() as u8).collect();
        let params = generate::params(&mut Bytes(&data), VOCAB);
        let params = SamplingParams { logprobs: None, seed: Some(words.word()), ..params };
        let params = if trained { trained::asking(params) } else { params };
        let prompt = words.below(VOCAB) as u32;
        Decoded { params, prompt, slot: 0, history: vec![prompt], plain: vec![], open: true }
    };
    (0..count).map(request).collect()
}

/// Admits the requests to a new pool.
fn admitted(on: On<'_>, model: &Model, requests: &mut [Decoded], trained: bool) -> Result<Decoder> {
    let table = Table { rows: model.0.clone(), vocab: VOCAB };
    let mut decoder = Decoder::new(on, table, (requests.len(), MOST), trained)?;
    for request in requests {
        request.slot = decoder.pool.admit(request.params.clone(), &[request.prompt])?;
    }
    Ok(decoder)
}

/// Decodes requests step by step, as what the stream must be.
fn decode(on: On<'_>, model: &Model, requests: &mut [Decoded], steps: usize) -> Result<()> {
    let mut decoder = admitted(on, model, requests, false)?;
    let mut out = Outputs::new();
    let slots: Vec<Slot> = requests.iter().map(|request| request.slot).collect();
    let mut histories: Vec<Vec<u32>> = requests.iter().map(|request| request.history.clone()).collect();
    for _ in 0..steps {
        let lines: Vec<u32> = histories.iter().map(|history| Model::line(history)).collect();
        decoder.step(&lines, &slots, &mut out)?;
        for (history, token) in histories.iter_mut().zip(out.tokens()) {
            history.extend(u32::try_from(*token).ok());
        }
    }
    for (request, history) in requests.iter_mut().zip(histories) {
        request.plain = history[1..].to_vec();
    }
    Ok(())
}

/// Decodes the requests of a seed again, with drafts, and compares.
fn decode_with_drafts(
    on: On<'_>,
    model: &Model,
    requests: &mut [Decoded],
    (seed, trainer): (u64, Option<&Operators>),
) -> std::result::Result<Counted, String> {
    let text = |error: Error| format!("seed {seed}: {error}");
    let mut decoder = admitted(on, model, requests, trainer.is_some()).map_err(text)?;
    let (mut words, mut out, mut counted) = (Words(!seed), Outputs::new(), Counted::default());
    while requests.iter().any(|request| request.open) {
        // Some requests are left out, and now and then there are no drafts.
        let chosen: Vec<usize> =
            (0..requests.len()).rev().filter(|i| requests[*i].open && words.below(5) > 0).collect();
        // No row indices would mean all rows of the table.
        if chosen.is_empty() {
            continue;
        }
        let is_step = words.below(6) == 0;
        let mut batch = Batch::default();
        for i in &chosen {
            let has_mu = requests[*i].params.steered_by().is_some();
            let count = if is_step || has_mu { 0 } else { [0, 1, 4, MOST][words.below(4)] };
            batch.add(&mut words, &requests[*i], Drafter::ALL[(seed as usize + i) % 4], count);
        }
        let emitted: Vec<Vec<i32>> = if is_step {
            decoder.step(&batch.lines, &batch.slots, &mut out).map_err(text)?;
            out.tokens().iter().map(|token| vec![*token]).collect()
        } else {
            let Batch { counts, ids, parents, lines, slots } = &batch;
            let of_requests = gumball_engine::Batch { counts, ..gumball_engine::Batch::of(slots) };
            decoder.verify(lines, &of_requests, &Drafts::tree(ids, parents), &mut out).map_err(text)?;
            counted.accepted += out.accepted().iter().map(|accepted| *accepted as usize).sum::<usize>();
            (0..chosen.len()).map(|place| out.request(place).tokens.to_vec()).collect()
        };
        for (i, tokens) in chosen.iter().zip(&emitted) {
            let request = &mut requests[*i];
            let ended = tokens.last() == Some(&NONE);
            request.history.extend(tokens.iter().filter_map(|token| u32::try_from(*token).ok()));
            let (output, plain) = (&request.history[1..], &request.plain);
            let common = output.len().min(plain.len());
            if output[..common] != plain[..common] || ended && output.len() != plain.len() {
                let params = &request.params;
                return Err(format!("seed {seed}, request {i}: {output:?} instead of {plain:?}\n{params:?}"));
            }
            request.open = !ended && output.len() < plain.len();
        }
        if let Some(operators) = trainer {
            let of = chosen.iter().zip(&emitted).enumerate().map(|(place, (i, tokens))| {
                let Decoded { params, history, .. } = &requests[*i];
                let count = tokens.iter().filter(|token| **token != NONE).count();
                (params, out.request(place).places.start, &history[..], count)
            });
            let held = hold_trained(operators, model, &out, of);
            counted.trained += held.map_err(|text| format!("seed {seed}, {text}"))?;
        }
    }
    for (i, request) in requests.iter().enumerate() {
        let output = decoder.pool.sequence(request.slot).map_err(text)?.history().output();
        if *output != request.history[1..] {
            return Err(format!("seed {seed}, request {i}: the sequence has {output:?}"));
        }
        counted.tokens += output.len();
    }
    Ok(counted)
}

/// Decodes the requests of a seed again on all ranks, whose layout another seed changes.
fn decode_over_ranks(
    world: usize,
    model: &Model,
    requests: &[Decoded],
    (seed, trainer): (u64, Option<&Operators>),
) -> std::result::Result<Counted, String> {
    let layout = [LogitsLayout::Gather, LogitsLayout::Swap, LogitsLayout::Survey][seed as usize % 3];
    std::thread::scope(|scope| {
        let ranks = threads(world, PATIENCE).into_iter().map(|rank| {
            let mut requests = requests.to_vec();
            let on = On::Rank(rank, layout);
            scope.spawn(move || decode_with_drafts(on, model, &mut requests, (seed, trainer)))
        });
        let ranks: Vec<_> = ranks.collect();
        let mut counted = Ok(Counted::default());
        for rank in ranks {
            counted = counted.and(rank.join().expect("no rank panics"));
        }
        counted
    })
}

/// Holds the stream of requests with drafts to the stream of decoding step by step, on a device, on the host
/// or over its ranks.
///
/// # Errors
/// A text that says what differs, or what the pool said, or that too few tokens were drafts to tell anything.
pub fn hold(device: Option<&Device>, extent: Extent) -> std::result::Result<Counted, String> {
    let mut counted = Counted::default();
    let trainer = extent.trained.then(|| Operators::new(None, None)).transpose();
    let trainer = trainer.map_err(|error| error.to_string())?;
    for seed in 1.. {
        let (model, mut requests) = (Model::new(seed), requests(seed, extent.requests, extent.trained));
        let on = || device.map_or(On::Host, On::Device);
        let plain = decode(on(), &model, &mut requests, extent.steps);
        plain.map_err(|error| format!("seed {seed}: {error}"))?;
        let of = (seed, trainer.as_ref());
        let more = match extent.ranks {
            1 => decode_with_drafts(on(), &model, &mut requests, of),
            world => decode_over_ranks(world, &model, &requests, of),
        }?;
        counted.tokens += more.tokens;
        counted.accepted += more.accepted;
        counted.trained += more.trained;
        if counted.tokens >= extent.tokens {
            break;
        }
    }
    // Perfect drafters and fair ones have most of their drafts accepted; few requests may have few of these.
    if counted.accepted <= counted.tokens / if counted.tokens < 1_000 { 8 } else { 5 } {
        return Err(format!("only {} of {} tokens were drafts", counted.accepted, counted.tokens));
    }
    Ok(counted)
}
