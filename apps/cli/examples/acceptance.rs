//! How many drafts does each mode of verification accept, on a real model? Printed as two tables of Markdown.
//!
//! ```text
//! cargo run --release --package gumball-cli --example acceptance -- [--model FILE] \
//!     [--tokens N] [--seeds N] [--table N] [--drafter NAME]
//! ```
//!
//! The target is the default model, whose weights the command holds as Q8_0. Its drafters are the same
//! weights with the matrices of the blocks quantised to Q5_0 and Q4_0, as files of draft models have them;
//! rounded to 3 bits each in groups of 32 with a common scale, which stands for a poor draft model; and what
//! `generate --speculate ngram` looks up. All of them draft by the request's own race (rule S8). The prompts
//! are those below; N tokens are written after each (default 40).
//!
//! NAME is that of a drafter in the tables, `n-gram` for one; without it all are compared.
//!
//! The first table is about single rows, those of the texts: a draft, or a list of several, is drawn and
//! judged under N seeds (default 32), beside what the theory says of the same two distributions. The second
//! is about passes over recorded rows, in tokens a pass: every draft of a level stands before the row that
//! the text has there, whatever the draft is. So all modes are compared on the same rows under many seeds,
//! and a pass takes no forward pass of a model.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::quantized::{GgmlDType, QTensor, gguf_file};
use candle_core::{Device, Tensor};
use gumball_cli::model::{Llama, Message, Model};
use gumball_cli::speculate::lookup;
use gumball_engine::{
    Batch, Drafts, LogitsMut, Matrix, Operators, Outputs, Pool, PoolConfig, Proposals, RowParams, Rows,
    Sampler, SamplingParams, Slot, VerifyMode,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PROMPTS: [&str; 5] = [
    "chat: Why is the sky blue?",
    "chat: Write a short poem about the sea.",
    "It was a bright cold day in April, and the clocks were",
    "fn main() {\n    let mut total = 0;\n    for i in 0..10 {\n        total +=",
    "chat: Repeat three times: she sells sea shells by the sea shore.",
];

/// What a drafter's matrices are.
#[derive(Clone, Copy)]
enum Weights {
    /// Of a type of GGUF files: blocks of 32 with a scale each.
    Quantised(GgmlDType),
    /// Rounded to this number of bits each, in groups of 32 with a scale.
    Rounded(u32),
}

/// The drafters that are models.
const DRAFTERS: [(&str, Weights); 3] = [
    ("Q5_0", Weights::Quantised(GgmlDType::Q5_0)),
    ("Q4_0", Weights::Quantised(GgmlDType::Q4_0)),
    ("3 bits", Weights::Rounded(3)),
];

/// The settings that rows are drawn under.
const SETTINGS: [(&str, f32, f32); 2] = [("T 1", 1.0, 1.0), ("T 0.7, top-p 0.9", 0.7, 0.9)];

fn main() -> Result<()> {
    let (mut model, mut tokens, mut seeds, mut table, mut only) = (None, 40, 32, None, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or(format!("{argument} wants a value"))?;
        match argument.as_str() {
            "--model" => model = Some(PathBuf::from(value)),
            "--tokens" => tokens = value.parse()?,
            "--seeds" => seeds = value.parse()?,
            "--table" => table = Some(value.parse::<usize>()?),
            "--drafter" => only = Some(value),
            _ => return Err(format!("unknown option {argument}").into()),
        }
    }
    let path = model.map_or_else(Model::default_path, Ok)?;
    let model = Model::load(&path)?;
    let prompts = PROMPTS.map(|prompt| match prompt.strip_prefix("chat: ") {
        Some(question) => model.prompt(&[Message::new("user", question)]),
        None => model.tokenizer.encode_prompt(prompt),
    });
    let prompts: Vec<Vec<u32>> = prompts.into_iter().collect::<std::result::Result<_, _>>()?;
    let eos = model.eos().to_vec();
    let mut target = Cached { llama: model.llama, seen: Vec::new() };
    let folder = tempfile::tempdir()?;
    let mut drafters = Vec::new();
    for (name, weights) in DRAFTERS {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        let file = folder.path().join("drafter.gguf");
        write_drafter(&path, &file, weights)?;
        let llama = Model::load(&file)?.llama;
        drafters.push((name.to_owned(), Cached { llama, seen: Vec::new() }));
    }

    let with_ngrams = only.is_none_or(|only| only == NGRAM);
    if table != Some(2) {
        single_rows(&mut target, &mut drafters, with_ngrams, &prompts, &eos, (tokens, seeds))?;
    }
    if table != Some(1) {
        passes(&mut target, &mut drafters, with_ngrams, &prompts, &eos, (tokens, seeds))?;
    }
    Ok(())
}

/// Prints the first table.
fn single_rows(
    target: &mut Cached,
    drafters: &mut [(String, Cached)],
    with_ngrams: bool,
    prompts: &[Vec<u32>],
    eos: &[u32],
    (tokens, seeds): (usize, usize),
) -> Result<()> {
    let vocab = target.llama.vocab();
    println!(
        "| drafter | rows | TV | (1 - TV)/(1 + TV) | 1 - TV | coupled: 1 draft | 2 | 4 | rejection: 1 | 2 | 4 |"
    );
    println!("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for (setting, temperature, top_p) in SETTINGS {
        let params = SamplingParams { temperature, top_p, ..Default::default() };
        let texts = texts(target, prompts, &params, eos, tokens)?;
        for (name, drafter) in &mut *drafters {
            let mut totals = Totals::default();
            for (start, ids) in &texts {
                let p = target.rows(ids, ids.len() - start)?;
                let q = drafter.rows(ids, ids.len() - start)?;
                for (p, q) in p.chunks(vocab).zip(q.chunks(vocab)) {
                    totals.add(&params, p, q, seeds)?;
                }
            }
            println!("| {name} | {} at {setting} | {} |", totals.rows, totals.line(3));
        }
        if with_ngrams {
            let mut totals = Totals::default();
            for (start, ids) in &texts {
                let rows = target.rows(ids, ids.len() - start)?;
                for (place, p) in rows.chunks(vocab).enumerate() {
                    // Where something is found, it is drafted for certain.
                    if let Some(id) = lookup(&ids[..=start + place], LONGEST, 1).first() {
                        let mut q = vec![f32::NEG_INFINITY; vocab];
                        q[*id as usize] = 0.0;
                        totals.add(&params, p, &q, seeds)?;
                    }
                }
            }
            println!("| {NGRAM} | {} at {setting} | {} |", totals.rows, totals.line(1));
        }
    }
    Ok(())
}

/// Prints the second table.
fn passes(
    target: &mut Cached,
    drafters: &mut [(String, Cached)],
    with_ngrams: bool,
    prompts: &[Vec<u32>],
    eos: &[u32],
    (tokens, seeds): (usize, usize),
) -> Result<()> {
    let vocab = target.llama.vocab();
    println!("\n{PASSES}");
    for (setting, temperature, top_p) in SETTINGS {
        let params = SamplingParams { temperature, top_p, ..Default::default() };
        let texts = texts(target, prompts, &params, eos, tokens)?;
        let others = with_ngrams.then_some((NGRAM, None));
        for (name, drafter) in drafters.iter_mut().map(|(name, it)| (&**name, Some(it))).chain(others) {
            let shapes: &[(&str, &[usize])] = match drafter {
                Some(_) => &[("chain of 4", &[1; 4]), ("list of 4", &[4]), ("tree of 2, 2, 2", &[2; 3])],
                None => &[("chain of 4", &[1; 4])],
            };
            let windows = windows(target, drafter, &texts, vocab)?;
            for (shape, widths) in shapes {
                let mut cells = Vec::new();
                for mode in [VerifyMode::Coupled, VerifyMode::Rejection, VerifyMode::Block] {
                    // A block is a chain.
                    if mode == VerifyMode::Block && widths.iter().any(|width| *width > 1) {
                        cells.push("-".to_owned());
                        continue;
                    }
                    let mut tokens = 0.0;
                    for (number, window) in windows.iter().enumerate() {
                        let first = number * seeds;
                        tokens += 1.0 + window.accepted(&params, widths, mode, first..first + seeds)?;
                    }
                    cells.push(format!("{:.2}", tokens / windows.len() as f64));
                }
                println!("| {name} | {setting} | {shape} | {} | {} |", windows.len(), cells.join(" | "));
            }
        }
    }
    Ok(())
}

const PASSES: &str = "| drafter | setting | shape | windows | coupled | rejection | block |
| --- | --- | --- | ---: | ---: | ---: | ---: |";

/// Lets the model write behind each prompt; returns the texts with the lengths of their prompts.
fn texts(
    target: &mut Cached,
    prompts: &[Vec<u32>],
    params: &SamplingParams,
    eos: &[u32],
    tokens: usize,
) -> Result<Vec<(usize, Vec<u32>)>> {
    let mut texts = Vec::new();
    for (seed, prompt) in prompts.iter().enumerate() {
        let params = SamplingParams { seed: Some(seed as u64), ..params.clone() };
        let mut sampler = Sampler::new(params, target.llama.vocab())?.with_prompt(prompt);
        for _ in 0..tokens {
            let row = target.rows(sampler.history().ids(), 1)?;
            let id = sampler.sample(&row)?.id.ok_or("no token")?;
            if eos.contains(&id) {
                break;
            }
        }
        texts.push((prompt.len(), sampler.history().ids().to_vec()));
    }
    Ok(texts)
}

/// A pass over recorded rows: one of the target and one of the drafter for each level of drafts, and for the
/// end of the path.
struct Window {
    vocab: usize,
    target: Vec<f32>,
    drafter: Vec<f32>,
    /// What is drafted by other means.
    given: Option<Vec<i32>>,
}

/// The name of the drafter that `generate --speculate ngram` is, and the longest suffix that it looks up.
const NGRAM: &str = "n-gram";
const LONGEST: usize = 3;

/// How many levels of drafts there are.
const LEVELS: usize = 4;

/// Makes a window of every other position of the texts; without a drafter, drafts are what
/// `generate --speculate ngram` looks up, where it finds four.
fn windows(
    target: &mut Cached,
    mut drafter: Option<&mut Cached>,
    texts: &[(usize, Vec<u32>)],
    vocab: usize,
) -> Result<Vec<Window>> {
    let mut windows = Vec::new();
    for (start, ids) in texts {
        let count = ids.len() - start;
        let p = target.rows(ids, count)?;
        let q = drafter.as_mut().map_or(Ok(Vec::new()), |drafter| drafter.rows(ids, count))?;
        for first in (0..count.saturating_sub(LEVELS)).step_by(2) {
            let part = |rows: &[f32]| rows[first * vocab..(first + LEVELS + 1) * vocab].to_vec();
            let mut window = Window { vocab, target: part(&p), drafter: Vec::new(), given: None };
            if drafter.is_some() {
                window.drafter = part(&q);
            } else {
                let found = lookup(&ids[..=start + first], LONGEST, LEVELS);
                if found.len() < LEVELS {
                    continue;
                }
                window.given = Some(found.iter().map(|id| *id as i32).collect());
            }
            windows.push(window);
        }
    }
    Ok(windows)
}

impl Window {
    /// Returns how many drafts of a tree are accepted, on average over seeds; `widths` are the children of
    /// each node, level by level.
    fn accepted(
        &self,
        params: &SamplingParams,
        widths: &[usize],
        mode: VerifyMode,
        seeds: Range<usize>,
    ) -> Result<f64> {
        let (vocab, count) = (self.vocab, seeds.len());
        let mut pool = Pool::new(PoolConfig { slots: count, ..PoolConfig::new(vocab) })?;
        let admit = |seed| pool.admit(SamplingParams { seed: Some(seed as u64), ..params.clone() }, &[1]);
        let slots = seeds.map(admit).collect::<std::result::Result<Vec<Slot>, _>>()?;
        let tree = Shape::new(widths);
        let n = tree.parents.len();
        let mut ids = vec![vec![0; n]; count];
        match &self.given {
            Some(given) => ids.fill(given.clone()),
            None => {
                for (depth, width) in widths.iter().enumerate() {
                    self.draft(&mut pool, &slots, &tree, depth, *width, mode, &mut ids)?;
                }
            }
        }
        let lines: Vec<u32> = std::iter::once(0).chain(tree.levels.iter().map(|level| level + 1)).collect();
        let all_lines = lines.repeat(count);
        let reads_probs = matches!(mode, VerifyMode::Rejection | VerifyMode::Block) && self.given.is_none();
        let probs = if reads_probs { Some(self.probs(params, &lines, count)?) } else { None };
        let matrix = |probs| Matrix::new(probs, all_lines.len(), vocab);
        let (ids, parents) = (ids.concat(), tree.parents.repeat(count));
        let probs = probs.as_deref().map(matrix).transpose()?;
        let drafts = Drafts { probs, ..Drafts::tree(&ids, &parents) };
        let rows = Rows::logits(&self.target, LEVELS + 1, vocab)?;
        let counts = &vec![n as u32; count];
        let batch = Batch { counts, mode, row_indices: &all_lines, ..Batch::of(&slots) };
        let mut out = Outputs::new();
        pool.verify(rows, &batch, &drafts, &mut out)?;
        Ok(f64::from(out.accepted().iter().sum::<u32>()) / count as f64)
    }

    /// Drafts the nodes of a level for every seed, from the drafter's row of that level.
    #[expect(clippy::too_many_arguments, reason = "a part of the function above")]
    fn draft(
        &self,
        pool: &mut Pool,
        slots: &[Slot],
        tree: &Shape,
        depth: usize,
        width: usize,
        mode: VerifyMode,
        ids: &mut [Vec<i32>],
    ) -> Result<()> {
        let mut next = Proposals::new(width);
        for node in tree.nodes_above(depth) {
            // Behind a draft that is missing nothing is accepted, whatever stands there.
            let path =
                |ids: &Vec<i32>| tree.path(node).map(|on_path| ids[on_path].max(0)).collect::<Vec<_>>();
            let paths: Vec<i32> = ids.iter().flat_map(path).collect();
            let depths = vec![depth as u32; slots.len()];
            let rows = Rows::logits(&self.drafter, LEVELS + 1, self.vocab)?;
            let batch = Batch { counts: &depths, mode, row_indices: &depths, ..Batch::of(slots) };
            pool.draft(rows, &batch, &paths, &mut next)?;
            for (seed, ids) in ids.iter_mut().enumerate() {
                let children = (0..tree.parents.len()).filter(|child| tree.parents[*child] == node);
                children.zip(next.row(seed)).for_each(|(child, id)| ids[child] = *id);
            }
        }
        Ok(())
    }

    /// Returns the drafter's distributions in the rows of all trees.
    fn probs(&self, params: &SamplingParams, lines: &[u32], count: usize) -> Result<Vec<f32>> {
        let mut each = vec![0.0; self.drafter.len()];
        let rows = Rows::logits(&self.drafter, LEVELS + 1, self.vocab)?;
        let out = LogitsMut::new(&mut each[..], LEVELS + 1, self.vocab)?;
        Operators::new(None, None)?.probabilities((rows, out), &RowParams::new(params), None)?;
        let row = |line: &u32| &each[*line as usize * self.vocab..][..self.vocab];
        Ok(lines.iter().map(row).collect::<Vec<_>>().concat().repeat(count))
    }
}

/// The parents of the nodes of a tree, level by level, and the levels they are on.
struct Shape {
    parents: Vec<i32>,
    levels: Vec<u32>,
}

impl Shape {
    fn new(widths: &[usize]) -> Self {
        let mut shape = Shape { parents: Vec::new(), levels: Vec::new() };
        for (depth, width) in widths.iter().enumerate() {
            let below: Vec<i32> =
                shape.nodes_above(depth).iter().flat_map(|parent| vec![*parent; *width]).collect();
            shape.levels.extend(vec![depth as u32; below.len()]);
            shape.parents.extend(below);
        }
        shape
    }

    /// Returns the nodes whose children are on a level; -1 is the root.
    fn nodes_above(&self, depth: usize) -> Vec<i32> {
        match depth {
            0 => vec![-1],
            _ => (0..)
                .zip(&self.levels)
                .filter(|(_, level)| **level as usize + 1 == depth)
                .map(|(node, _)| node)
                .collect(),
        }
    }

    /// Returns the nodes from the root's child down to a node.
    fn path(&self, node: i32) -> impl Iterator<Item = usize> {
        let up = |node: &i32| Some(self.parents[*node as usize]).filter(|parent| *parent >= 0);
        let mut path: Vec<usize> = std::iter::successors(Some(node).filter(|node| *node >= 0), up)
            .map(|node| node as usize)
            .collect();
        path.reverse();
        path.into_iter()
    }
}

/// A model, and the tokens in its cache.
struct Cached {
    llama: Llama,
    seen: Vec<u32>,
}

impl Cached {
    /// Returns the logits behind each of the last `count` of some tokens.
    fn rows(&mut self, ids: &[u32], count: usize) -> Result<Vec<f32>> {
        let same = self.seen.iter().zip(ids).take_while(|(a, b)| a == b).count().min(ids.len() - count);
        self.llama.truncate(same);
        let hidden = self.llama.hidden(&ids[same..])?;
        self.seen = ids.to_vec();
        Ok(self.llama.logits_last(&hidden, count)?)
    }
}

/// What the first table adds up, over rows.
#[derive(Default)]
struct Totals {
    rows: usize,
    tv: f64,
    coupled_bound: f64,
    rejection_bound: f64,
    /// Accepted shares of coupled, then of rejection, for lists of 1, 2 and 4.
    shares: [[f64; 3]; 2],
}

impl Totals {
    fn add(&mut self, params: &SamplingParams, p: &[f32], q: &[f32], seeds: usize) -> Result<()> {
        let vocab = p.len();
        let operators = Operators::new(None, None)?;
        let probabilities = |row: &[f32]| -> Result<Vec<f32>> {
            let mut out = vec![0.0; vocab];
            let rows = (Rows::logits(row, 1, vocab)?, LogitsMut::new(&mut out[..], 1, vocab)?);
            operators.probabilities(rows, &RowParams::new(params), None)?;
            Ok(out)
        };
        let pairs = probabilities(p)?.into_iter().zip(probabilities(q)?);
        let tv = pairs.map(|(p, q)| f64::from((p - q).abs())).sum::<f64>() / 2.0;
        self.rows += 1;
        self.tv += tv;
        self.coupled_bound += (1.0 - tv) / (1.0 + tv);
        self.rejection_bound += 1.0 - tv;
        let mut pool = Pool::new(PoolConfig { slots: seeds, ..PoolConfig::new(vocab) })?;
        // Other coins and arrivals for each row.
        let first = (self.rows * seeds) as u64;
        let admit = |seed| pool.admit(SamplingParams { seed: Some(seed), ..params.clone() }, &[1]);
        let slots = (first..first + seeds as u64).map(admit).collect::<std::result::Result<Vec<_>, _>>()?;
        for (mode, shares) in [VerifyMode::Coupled, VerifyMode::Rejection].into_iter().zip(&mut self.shares) {
            for (siblings, share) in [1, 2, 4].into_iter().zip(shares) {
                let mut next = Proposals::new(siblings);
                let lines = vec![0; seeds];
                let batch = Batch { mode, row_indices: &lines, ..Batch::of(&slots) };
                pool.draft(Rows::logits(q, 1, vocab)?, &batch, &[], &mut next)?;
                // The row behind every draft is p again: only the first row matters. Rows without q behind
                // them are not read.
                let lines = vec![0; seeds * (siblings + 1)];
                let (counts, parents) = (vec![siblings as u32; seeds], vec![-1; seeds * siblings]);
                let probs = match mode {
                    VerifyMode::Coupled => None,
                    _ => {
                        let q = probabilities(q)?;
                        Some(
                            (0..seeds)
                                .flat_map(|_| [&q[..], &vec![0.0; siblings * vocab]].concat())
                                .collect(),
                        )
                    }
                };
                let probs: Option<Vec<f32>> = probs;
                let matrix = |probs| Matrix::new(probs, lines.len(), vocab);
                let probs = probs.as_deref().map(matrix).transpose()?;
                let drafts = Drafts { probs, ..Drafts::tree(next.ids(), &parents) };
                let mut out = Outputs::new();
                let batch = Batch { counts: &counts, mode, row_indices: &lines, ..Batch::of(&slots) };
                pool.verify(Rows::logits(p, 1, vocab)?, &batch, &drafts, &mut out)?;
                let accepted: u32 = out.accepted().iter().sum();
                *share += f64::from(accepted) / seeds as f64;
                let emitted: Vec<usize> = out.accepted().iter().map(|count| *count as usize + 1).collect();
                pool.shorten(&slots, &emitted)?;
            }
        }
        Ok(())
    }

    /// Returns the means; shares of the first `lists` lengths of lists.
    fn line(&self, lists: usize) -> String {
        let bounds = [self.tv, self.coupled_bound, self.rejection_bound].map(Some);
        let share = |(length, sum): (usize, &f64)| (length < lists).then_some(*sum);
        let shares = self.shares.iter().flat_map(|shares| shares.iter().enumerate().map(share));
        let text =
            |sum: Option<f64>| sum.map_or("-".to_owned(), |sum| format!("{:.3}", sum / self.rows as f64));
        bounds.into_iter().chain(shares).map(text).collect::<Vec<_>>().join(" | ")
    }
}

/// Writes a model with other matrices of its blocks; the embeddings, the head and the norms stay.
fn write_drafter(from: &Path, to: &Path, weights: Weights) -> Result<()> {
    let mut file = File::open(from)?;
    let content = gguf_file::Content::read(&mut file)?;
    let mut tensors: HashMap<&str, QTensor> = HashMap::new();
    for name in content.tensor_infos.keys() {
        let tensor = content.tensor(&mut file, name, &Device::Cpu)?;
        let written = if name.starts_with("blk") && tensor.shape().dims().len() == 2 {
            let floats = tensor.dequantize(&Device::Cpu)?;
            match weights {
                Weights::Quantised(dtype) => QTensor::quantize(&floats, dtype)?,
                Weights::Rounded(bits) => QTensor::quantize(&rounded(&floats, bits)?, GgmlDType::Q8_0)?,
            }
        } else {
            tensor
        };
        tensors.insert(name, written);
    }
    let metadata: Vec<_> = content.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    Ok(gguf_file::write(&mut File::create(to)?, &metadata, &tensors)?)
}

/// Rounds numbers to `bits` bits each, with a scale for each 32.
fn rounded(tensor: &Tensor, bits: u32) -> Result<Tensor> {
    let levels = f32::from(1u8 << (bits - 1)) - 1.0;
    let mut values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
    for group in values.chunks_mut(32) {
        let scale = group.iter().fold(0.0f32, |most, value| most.max(value.abs())) / levels;
        let round = |value: f32| if scale > 0.0 { (value / scale).round() * scale } else { 0.0 };
        group.iter_mut().for_each(|value| *value = round(*value));
    }
    Ok(Tensor::from_vec(values, tensor.shape().dims(), &Device::Cpu)?)
}
