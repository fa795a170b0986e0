//! Operators, steps and softmaxes at the sizes where a kernel takes another path, and at both neighbours of
//! each size.
//!
//! Random cases rarely meet a size exactly. This walk visits the limits of the candidate list and of the
//! searches, counted in tokens and in tiles; numbers of rows and tiles at which the launches change; all ways
//! in which a parameter arrives; and rows that are made to fill each list to its brim. Everything is held to
//! the oracle, bit for bit.

use std::sync::Arc;

use gumball_cuda::{Dtype, Runtime, Variant};
use gumball_engine::Device;
use gumball_spec::{Error, Filter, FilterOrder, Kind, LogprobsParams, MOST_LISTED, SamplingParams, TILE};

use crate::backend::{Backend, Oracle, by_name, device};
use crate::batch::{self, Shape};
use crate::case::{self, Case, Logits};
use crate::draft_trees;
use crate::observed::differences;
use crate::operators::{self, Asked, Columns, Outputs, To};
use crate::rows::{self, Words};
use crate::softmax;

/// Limits of lists in the kernels, in tokens or in tiles: parts of a row that blocks share, the most tokens
/// of a list that are sorted without bins, the largest top-k for which a list is tried, and the capacity of
/// that list.
const LIST_LIMITS: [usize; 4] = [64, 96, MOST_LISTED, 416];

/// Limits of the search for a nucleus, in tokens: half of its list, the tiles that it opens, and its list.
const SEARCH_LIMITS: [usize; 3] = [1024, 1536, 2048];

/// Numbers of tiles of real vocabularies: 128256, 151936 and 200064 ids.
const REAL_TILES: [usize; 3] = [501, 594, 782];

/// Where a row's large values lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Anywhere.
    Spread,
    /// Two in every tile, close to each other, so that every tile has several candidates.
    Pairs,
    /// All in one tile.
    OneTile,
    /// Few distinct values, so that cuts fall on ties.
    Ties,
    /// Most of one value, so that ids decide a cut.
    Heap,
    /// As many tokens as a filter keeps, and no others.
    Few,
    /// Of few distinct values, in one of many ways.
    FewValues,
}

impl Family {
    const ALL: [Self; 7] =
        [Self::Spread, Self::Pairs, Self::OneTile, Self::Ties, Self::Heap, Self::Few, Self::FewValues];

    /// Returns a row of logits; `count` is how many tokens [`Family::Few`] has.
    fn row(self, vocab: usize, count: usize, seed: u64) -> Vec<f32> {
        let mut words = Words(seed);
        let mut row = rows::bell(vocab, 1.0, seed);
        match self {
            Self::Spread => row = rows::model_like(vocab, seed),
            Self::Pairs => row.chunks_mut(TILE).for_each(|tile| {
                for _ in 0..2 {
                    let id = words.below(tile.len());
                    tile[id] = 9.0 + 0.01 * words.bell();
                }
            }),
            Self::OneTile => {
                let tiles = vocab.div_ceil(TILE);
                let tile = row.chunks_mut(TILE).nth(words.below(tiles)).expect("the row has the tile");
                tile.iter_mut().for_each(|z| *z = 12.0 + words.bell());
            }
            Self::Ties => row = rows::grid(vocab, 1.0, 3, seed),
            Self::Heap => row = rows::heap(vocab, seed),
            Self::FewValues => row = rows::few_values(vocab, seed * 1000 + count as u64),
            Self::Few => {
                let logits = row.clone();
                row.fill(f32::NEG_INFINITY);
                // An odd number of steps around the row meets `count` different ids.
                for i in 0..count.min(vocab) {
                    let id = (seed as usize + i * (vocab / count.min(vocab))) % vocab;
                    row[id] = logits[id];
                }
            }
        }
        row
    }
}

/// How a parameter reaches an operator.
#[derive(Clone, Copy, Debug)]
enum Arrival {
    /// One number, known to the host.
    Number,
    /// One number in the device's memory.
    OfAll,
    /// One number for each line in the device's memory.
    OfEach,
}

const ARRIVALS: [Arrival; 3] = [Arrival::Number, Arrival::OfAll, Arrival::OfEach];

/// Filters that begin with top-k or top-p: alone, one after the other, and jointly.
const SETTINGS: usize = 4;

/// Which sizes are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The sizes that a sanitizer can afford, which slows everything down.
    Reduced,
    /// All of them.
    Full,
}

/// The pairs of a number of tiles and a top-k that are visited.
fn pairs(extent: Extent) -> Vec<(usize, usize)> {
    let around = |limit: usize| [limit - 1, limit, limit + 1];
    let mut pairs = Vec::new();
    for limit in LIST_LIMITS {
        pairs.extend(around(limit).iter().flat_map(|tiles| around(limit).map(|k| (*tiles, k))));
    }
    for tiles in REAL_TILES {
        // As many tokens as tiles, and somewhat fewer, so that every tile's maximum is a candidate.
        pairs.extend([tiles * 15 / 16, tiles - 16, tiles - 1, tiles, tiles + 1].map(|k| (tiles, k)));
        pairs.extend(around(416).map(|k| (tiles, k)));
    }
    for limit in SEARCH_LIMITS {
        pairs.extend(around(limit).map(|k| (300, k)));
    }
    if extent == Extent::Reduced {
        pairs.retain(|(tiles, k)| *tiles <= 502 && tiles.abs_diff(*k) <= 1 || *tiles == 501);
    }
    pairs
}

/// Holds operators and steps of a device's backend at all boundaries; returns how many cases there were.
///
/// # Errors
/// A text that names the first case that differs from the oracle, or what the runtime said.
pub fn hold(name: &str, extent: Extent) -> Result<usize, String> {
    let text = |error: Error| error.to_string();
    let (backend, device) = (by_name(name).map_err(text)?, device(name).map_err(text)?);
    let runtime = device.runtime();
    let mut cases = 0;
    for (number, (tiles, k)) in pairs(extent).into_iter().enumerate() {
        for (place, family) in Family::ALL.into_iter().enumerate() {
            // Settings and kinds take turns, so that neighbouring sizes meet all of them.
            let turn = number + place;
            let all = if extent == Extent::Full || tiles == 501 {
                &ARRIVALS[..]
            } else {
                &ARRIVALS[turn % 3..][..1]
            };
            for (offset, arrival) in all.iter().copied().enumerate() {
                operator(runtime, tiles, k, family, arrival, turn + offset)?;
                cases += 1;
            }
        }
        if tiles <= 502 {
            step(&*backend, tiles, k, number)?;
            cases += 1;
        }
    }
    println!("boundaries of lists: {cases} cases equal the oracle");
    cases += batches(&device, extent)?;
    println!("and of launches: {cases}");
    cases += drafts(runtime, extent)?;
    println!("and of drafts: {cases}");
    for (rows, vocab) in shapes(runtime.limits().multiprocessors, extent) {
        softmaxes(runtime, rows, vocab)?;
        cases += 1;
    }
    Ok(cases)
}

/// The parameters of a setting: top-k, top-k then top-p, both jointly, and a nucleus of about `k` tokens.
fn params(setting: usize, k: usize, family: Family, vocab: usize) -> SamplingParams {
    let top_k = k as i64;
    match setting % SETTINGS {
        0 => SamplingParams { top_k, ..Default::default() },
        1 => SamplingParams { top_k, top_p: 0.95, ..Default::default() },
        2 => SamplingParams { top_k, top_p: 0.95, order: FilterOrder::Joint, ..Default::default() },
        _ => {
            // Of about equal weights a fraction of the mass is as large a fraction of the tokens.
            let tokens = match family {
                Family::Pairs => 2 * vocab.div_ceil(TILE),
                Family::Few => k + 1,
                Family::OneTile => TILE,
                Family::Ties => vocab / 3,
                Family::Heap | Family::Spread | Family::FewValues => vocab,
            };
            let top_p = (k as f32 / tokens as f32).min(0.98);
            SamplingParams { top_p, min_p: 1e-6, ..Default::default() }
        }
    }
}

fn operator(
    runtime: &Arc<dyn Runtime>,
    tiles: usize,
    k: usize,
    family: Family,
    arrival: Arrival,
    turn: usize,
) -> Result<(), String> {
    // The last tile is short, whole, or has one token.
    let vocab = tiles * TILE - [0, 100, TILE - 1][turn % 3];
    let lines = 1 + turn % 2;
    let kind = [Kind::Logits, Kind::Probabilities][turn / 2 % 2];
    let dtype = [Dtype::F32, Dtype::F32, Dtype::Bf16, Dtype::F16][turn % 4];
    let mut common = params(turn / 3, k, family, vocab);
    let mut columns = Columns::default();
    let length = match arrival {
        Arrival::Number => 0,
        Arrival::OfAll => 1,
        Arrival::OfEach => lines,
    };
    if common.top_k > 0 {
        columns.top_k = (0..length as i64).map(|line| common.top_k - line).collect();
    }
    if common.top_p < 1.0 && turn.is_multiple_of(5) {
        columns.top_p = vec![common.top_p; length];
    }
    if common.min_p > 0.0 {
        columns.min_p = vec![common.min_p; length];
    }
    if length > 0 && turn.is_multiple_of(7) {
        // A filter that is off in the common parameters arrives with each line.
        common.top_k = if columns.top_k.is_empty() { common.top_k } else { 0 };
    }
    let rows: Vec<Vec<f32>> = (0..lines)
        .map(|line| {
            let row = family.row(vocab, k, (turn * 7 + line) as u64);
            match kind {
                Kind::Logits => row,
                Kind::Probabilities => row.into_iter().map(|z| (z - 12.0).exp()).collect(),
            }
        })
        .collect();
    let (start, gap) = [(0, 0), (1, 3), (8, 8)][turn / 4 % 3];
    let asked =
        Asked { vocab, lines, dtype, kind, start, gap, common, columns, wide: turn.is_multiple_of(2) };
    let differences = if turn.is_multiple_of(3) {
        let (seeds, positions, draws) = (vec![turn as i64], vec![3], vec![]);
        let outputs = Outputs { lines: None, seeds, positions, draws, count: lines, wide: false };
        operators::draw(runtime, &asked, &rows, &outputs)
    } else {
        let to = To { masks: turn % 3 == 1, in_place: turn % 4 == 2, dtype, start, gap };
        operators::write(runtime, &asked, &rows, &to)
    };
    let what = || format!("{tiles} tiles, k {k}, {family:?}, {arrival:?}, turn {turn}");
    match differences {
        Ok(differences) if differences.is_empty() => Ok(()),
        Ok(differences) => Err(format!("{}: {differences}", what())),
        Err(error) => Err(format!("{}: {error}", what())),
    }
}

/// Holds a step whose rows are of all families and have all settings, some with edits or logprobs.
fn step(backend: &dyn Backend, tiles: usize, k: usize, number: usize) -> Result<(), String> {
    let vocab = tiles * TILE - [0, 100, TILE - 1][number % 3];
    let kind = [Kind::Logits, Kind::Probabilities][number / 3 % 2];
    let mut cases = Vec::new();
    for (place, family) in Family::ALL.into_iter().enumerate() {
        let mut params = params(number + place, k, family, vocab);
        if place % 3 == 2 && kind == Kind::Logits {
            params.repetition_penalty = 1.2;
        }
        if place % 2 == 1 {
            params.order = FilterOrder::List(vec![Filter::TopK, Filter::TopP, Filter::MinP]);
        }
        params.logprobs = Some(LogprobsParams { top_n: 2, ..Default::default() });
        let row = family.row(vocab, k, number as u64);
        let values: Vec<f32> = match kind {
            Kind::Logits => row,
            Kind::Probabilities => row.into_iter().map(|z| (z - 12.0).exp()).collect(),
        };
        let case = Case::new(Logits::new(case::Dtype::F32, &values), params).after(&[1, 2], &[3]);
        cases.push(Case { kind, ..case });
    }
    // Alone a case also takes the kernels that serve less than everything.
    let seen = if number.is_multiple_of(2) {
        backend.sample_batch(&cases)
    } else {
        cases.iter().map(|case| backend.sample(case)).collect()
    };
    for (case, seen) in cases.iter().zip(seen) {
        let text = |what: String| format!("{tiles} tiles, k {k}, a step: {what}");
        let seen = seen.map_err(|error| text(error.to_string()))?;
        let wanted = Oracle.sample(case).map_err(|error| text(error.to_string()))?;
        let differences = differences(&wanted, &seen);
        if !differences.is_empty() {
            return Err(text(format!("{differences}{case:?}")));
        }
    }
    Ok(())
}

/// Holds mixed batches in every variant where the number of blocks, warps or helpers of a launch changes.
fn batches(device: &Device, extent: Extent) -> Result<usize, String> {
    let multiprocessors = device.runtime().limits().multiprocessors;
    let mut shapes: Vec<(usize, usize, usize)> = Vec::new();
    // Rows that leave multiprocessors to helpers, have one each, and share them.
    for rows in [multiprocessors / 33, multiprocessors / 2, multiprocessors, 2 * multiprocessors] {
        shapes.extend([rows - rows.min(1), rows, rows + 1].map(|rows| (rows.max(1), rows.max(1), 5 * TILE)));
    }
    // Tiles for each multiprocessor at which the survey takes other blocks, and threads of a block that ends
    // a row.
    let rows = match extent {
        Extent::Full => multiprocessors,
        // Few, but so many that no row is longer than a vocabulary may be.
        Extent::Reduced => multiprocessors.min(2).max(multiprocessors / 16),
    };
    for per_row in
        [24, 40, 48, 160].map(|tiles| tiles * multiprocessors / rows).into_iter().chain([8, 32, 64])
    {
        shapes.extend([per_row - 1, per_row, per_row + 1].map(|tiles| (rows, rows, tiles * TILE - 7)));
    }
    // Rows that blocks race together, by as many as fit the device, where the survey does not score their
    // tokens.
    for most in device.runtime().limits().clusters[1..8].iter().filter(|rows| **rows > 0) {
        let race = |rows: usize| (rows, rows, (24 * multiprocessors / rows + 1).max(128) * TILE);
        shapes.extend([*most, most + 1].map(race));
    }
    // Rows that share lines, which are surveyed once where that pays.
    for tiles in [127, 128, 129] {
        shapes.push((2 * rows, rows, tiles * TILE));
    }
    let mut cases = 0;
    for (number, (rows, lines, vocab)) in shapes.into_iter().enumerate() {
        for (place, ends) in Variant::ALL.into_iter().enumerate() {
            let turn = number + place;
            let kind = if ends == Variant::SurveyDraw || turn.is_multiple_of(3) {
                Kind::Logits
            } else {
                Kind::Probabilities
            };
            let dtype = [Dtype::F32, Dtype::Bf16, Dtype::F16][turn % 3];
            if extent == Extent::Reduced && !turn.is_multiple_of(4) {
                continue;
            }
            batch::hold(device, false, Shape { kind, dtype, rows, lines, vocab, steps: 2, ends })?;
            cases += 1;
        }
    }
    Ok(cases)
}

/// Holds chains of drafts at numbers of tiles at which warps of the survey take another number of them.
fn drafts(runtime: &Arc<dyn Runtime>, extent: Extent) -> Result<usize, String> {
    let tiles = 40 * runtime.limits().multiprocessors;
    let vocabs =
        [tiles - 1, tiles, tiles + 1, 2 * tiles, 4 * tiles + 1].map(|tiles| (tiles * TILE).min(1 << 18));
    let vocabs = vocabs.into_iter().chain([31, 32, 33, 255, 256, 257].map(|tiles| tiles * TILE - 3));
    let seeds = if extent == Extent::Full { 3 } else { 1 };
    let mut cases = 0;
    for (vocab, seed) in vocabs.flat_map(|vocab| (0..seeds).map(move |seed| (vocab, seed))) {
        draft_trees::chains::hold_vocab(runtime, seed, vocab)?;
        cases += 1;
    }
    // A block judges a tree, a warp a tile.
    for tiles in [1, 31, 32, 33, 257] {
        for vocab in [tiles * TILE - 1, tiles * TILE] {
            draft_trees::hold_vocab(runtime, 5, vocab)?;
            cases += 1;
        }
    }
    draft_trees::hold_to_no_tree(runtime).map_err(|error| error.to_string())?;
    Ok(cases + 1)
}

/// Numbers of rows and vocabularies at which a softmax is cut up differently, with both neighbours of each.
fn shapes(multiprocessors: usize, extent: Extent) -> Vec<(usize, usize)> {
    let mut shapes = Vec::new();
    // Two reads instead of one, and blocks with one row more.
    let tiles = 160 * multiprocessors;
    let rows = match extent {
        Extent::Full => multiprocessors,
        // Few, but so many that no row is longer than a vocabulary may be.
        Extent::Reduced => multiprocessors.min(2).max(multiprocessors / 16),
    };
    for tiles in [tiles / rows - 1, tiles / rows, tiles / rows + 1] {
        shapes.push((rows, tiles * TILE));
    }
    for rows in [rows - 1, rows, rows + 1] {
        shapes.push((rows.max(1), 33 * TILE + 5));
    }
    // As many pairs of tiles as the warps of a cluster's blocks take at once, for each size of a cluster.
    for blocks in [1, 2, 3, 4, 6, 8, 16] {
        let pairs = 19 * blocks * 2 * TILE;
        shapes.extend([pairs - 1, pairs, pairs + 1].map(|vocab| (2, vocab)));
    }
    shapes
}

fn softmaxes(runtime: &Arc<dyn Runtime>, rows: usize, vocab: usize) -> Result<(), String> {
    for (place, reads) in [0, 1, 2].into_iter().enumerate() {
        let dtype = [Dtype::F32, Dtype::Bf16, Dtype::F16][(rows + vocab + place) % 3];
        let lines: Vec<Vec<f32>> =
            (0..rows).map(|row| Family::ALL[row % 4].row(vocab, 9, row as u64)).collect();
        let (start, gap) = [(0, 0), (3, 1), (8, (8 - vocab % 8) % 8)][place];
        let temperatures = vec![0.7; if place == 1 { rows } else { 1 }];
        let asked = softmax::Asked {
            vocab,
            rows,
            dtype,
            out: if place == 2 { Dtype::F32 } else { dtype },
            in_place: place == 1,
            start,
            gap,
            out_start: start,
            out_gap: gap,
            temperatures,
            reads,
        };
        let text =
            |what: String| format!("softmax of {rows} rows of {vocab}, {reads} reads, {dtype:?}: {what}");
        let differences =
            softmax::compare(runtime, &asked, &lines).map_err(|error| text(error.to_string()))?;
        if !differences.is_empty() {
            return Err(text(differences));
        }
    }
    Ok(())
}
