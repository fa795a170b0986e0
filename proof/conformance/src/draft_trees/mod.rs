//! Trees of drafts, chains among them, on a CUDA device, judged by probabilities, against the oracle.

pub mod chains;

use std::sync::Arc;

use gumball_cuda::{
    Buffer, DeviceIntMatrix, DeviceIntMatrixMut, DeviceSlice, DraftTreeRows, DraftTrees, Draws, IntType,
    Judge, Judged, PerRow, Runtime,
};
use gumball_spec::verify::DraftTree;
use gumball_spec::verify::by_probabilities::{Emitted, Judgement, Trial};
use gumball_spec::{Error, NONE, Status};

use crate::rows::Words;

/// How many places a tree is judged in side by side.
const PLACES: usize = 3;

/// How trees lie in memory: elements before the first row and after each row and tree, of the drafter and of
/// the target.
#[derive(Clone, Copy, Debug, Default)]
struct Gaps {
    start: usize,
    row: usize,
    tree: usize,
}

/// How trees are handed in.
#[derive(Clone, Copy, Debug)]
struct Layout {
    draft: Gaps,
    target: Gaps,
    /// The type of drafts and parents.
    drafts: IntType,
    tokens: IntType,
    /// The type of seeds, positions and draw indices, each a column; `None`: the first tree's are the values
    /// of all.
    numbers: [Option<IntType>; 3],
    /// Whether what all have in common is handed in as a column of one.
    alone: bool,
    /// Whether draw indices are the trees' numbers.
    own_draws: bool,
    adds: bool,
}

/// The content of the columns before.
const BEFORE: u32 = 1000;

/// A runtime where trees are judged, with memory that is kept.
#[derive(Debug)]
pub struct Judger {
    runtime: Arc<dyn Runtime>,
    judge: Judge,
    input: Buffer,
    /// Seeds, positions and draw indices.
    numbers: [Buffer; 3],
    tokens: Buffer,
    rows: Buffer,
    /// The two counts and the statuses.
    columns: [Buffer; 3],
}

impl Judger {
    /// Allocates the memory on a runtime.
    ///
    /// # Errors
    /// The runtime's errors.
    pub fn new(runtime: &Arc<dyn Runtime>) -> Result<Self, Error> {
        let buffer = || Buffer::zeroed(runtime, 4);
        Ok(Self {
            runtime: Arc::clone(runtime),
            judge: Judge::new(Arc::clone(runtime))?.few_at_a_time(2),
            input: buffer()?,
            numbers: [buffer()?, buffer()?, buffer()?],
            tokens: buffer()?,
            rows: buffer()?,
            columns: [buffer()?, buffer()?, buffer()?],
        })
    }

    /// Judges one tree, three times side by side, of which some lie on 16 bytes and some do not. A chain by
    /// rejection is also judged as the tree that it is.
    ///
    /// # Errors
    /// The errors of the oracle and of the runtime.
    ///
    /// # Panics
    /// If they differ.
    pub fn judge(&mut self, trial: &Trial<'_>, judgement: Judgement) -> Result<Emitted, Error> {
        // The host sees what a device only has a status for.
        trial.judge(judgement)?;
        let outcomes = self.judge_places(trial, judgement)?;
        let [first, others @ ..] = &outcomes[..] else { unreachable!("three trees") };
        others.iter().for_each(|other| assert_eq!(other, first, "one tree, three places: {trial:?}"));
        if trial.chain(judgement).is_some() {
            let parents: Vec<i32> = (-1..trial.tree.drafts.len() as i32 - 1).collect();
            let tree = DraftTree { parents: Some(&parents), ..trial.tree };
            let as_tree = self.judge_places(&Trial { tree, ..*trial }, judgement)?;
            let wanted = Emitted { accepted_alone: None, ..first.clone() };
            as_tree.iter().for_each(|seen| assert_eq!(*seen, wanted, "a chain as a tree: {trial:?}"));
        }
        Ok(first.clone())
    }

    /// Judges a tree that may be none, three times side by side.
    fn judge_places(&mut self, trial: &Trial<'_>, judgement: Judgement) -> Result<Vec<Emitted>, Error> {
        let Trial { tree, vocab, .. } = *trial;
        // The drafter's rows without children are not to be read.
        let drafter = trial.draft_probs.map(|probs| {
            let mut probs = probs.to_vec();
            for (row, probs) in probs.chunks_mut(vocab).enumerate() {
                if tree.check().is_ok() && tree.children(row).next().is_none() {
                    probs.fill(f32::NAN);
                }
            }
            probs
        });
        let gaps = Gaps { start: 0, row: vocab % 3, tree: 1 };
        let layout = Layout {
            draft: gaps,
            target: gaps,
            drafts: if vocab % 2 == 0 { IntType::I32 } else { IntType::I64 },
            tokens: IntType::I32,
            numbers: [None; 3],
            alone: false,
            own_draws: false,
            adds: false,
        };
        self.run(&[Trial { draft_probs: drafter.as_deref(), ..*trial }; PLACES], judgement, &layout)
    }

    /// Judges trees of one shape, all with parents or none, and with probabilities of the drafter or none.
    fn run(
        &mut self,
        trials: &[Trial<'_>],
        judgement: Judgement,
        layout: &Layout,
    ) -> Result<Vec<Emitted>, Error> {
        let (count, first, is_chain) = (trials.len(), trials[0], trials[0].chain(judgement).is_some());
        let (n, vocab) = (first.tree.drafts.len(), first.vocab);
        let drafter_rows = first.draft_probs.map_or(0, |probs| probs.len() / vocab);
        let mut bytes = Bytes::default();
        let drafter = trials.iter().filter_map(|trial| trial.draft_probs);
        let draft = bytes.rows(drafter, vocab, layout.draft);
        let target = bytes.rows(trials.iter().map(|trial| trial.target_probs), vocab, layout.target);
        let mut integers = |values: Vec<i64>| bytes.integers(layout.drafts, &values) / layout.drafts.bytes();
        let drafts =
            integers(trials.iter().flat_map(|trial| trial.tree.drafts).map(|id| i64::from(*id)).collect());
        let parents = trials.iter().filter_map(|trial| trial.tree.parents).flatten();
        let parents = integers(parents.map(|parent| i64::from(*parent)).collect());
        let column = |value: fn(&Trial<'_>) -> i64| trials.iter().map(value).collect::<Vec<i64>>();
        let numbers = [
            column(|trial| trial.seed as i64),
            column(|trial| i64::from(trial.position)),
            column(|trial| i64::from(trial.draw)),
        ];
        for (which, (buffer, numbers)) in self.numbers.iter_mut().zip(&numbers).enumerate() {
            let (numbers, dtype) = match layout.numbers[which] {
                Some(dtype) => (&numbers[..], dtype),
                None => (&numbers[..1], IntType::I64),
            };
            let words: Vec<u32> = numbers
                .iter()
                .flat_map(|number| [*number as u32, (*number as u64 >> 32) as u32])
                .enumerate()
                .filter(|(place, _)| dtype.bytes() == 8 || place % 2 == 0)
                .map(|(_, word)| word)
                .collect();
            fill(&self.runtime, buffer, &words)?;
        }
        grow(&self.runtime, &mut self.input, bytes.0.len().max(16))?;
        self.input.write(0, &bytes.0)?;

        let (places, token_words) = (count * (n + 1), count * (n + 1) * layout.tokens.bytes() / 4);
        let runtime = &self.runtime;
        fill(runtime, &mut self.tokens, &vec![!6; token_words])?;
        fill(runtime, &mut self.rows, &vec![!6; places])?;
        self.columns.iter_mut().try_for_each(|column| fill(runtime, column, &vec![BEFORE; count]))?;
        let [accepted, accepted_alone, statuses] =
            self.columns.each_ref().map(|column| Some(DeviceSlice::of(column, IntType::U32)));
        let place = Judged {
            tokens: DeviceIntMatrixMut::of(&mut self.tokens, layout.tokens, 0, count, n + 1, n + 1)?,
            rows: Some(DeviceIntMatrixMut::of(&mut self.rows, IntType::I32, 0, count, n + 1, n + 1)?),
            accepted,
            accepted_alone: accepted_alone.filter(|_| is_chain),
            statuses,
            adds: layout.adds,
        };

        let input = &self.input;
        let buffers = &self.numbers;
        let each = |which: usize| match layout.numbers[which] {
            Some(dtype) => Some(DeviceSlice::of(&buffers[which], dtype)),
            None => layout.alone.then(|| DeviceSlice::of(&buffers[which], IntType::I64)),
        };
        let probabilities = |(start, strides): (usize, [usize; 2]), rows| {
            DraftTreeRows::of(input, start, [count, rows, vocab], strides)
        };
        let matrix = |start| DeviceIntMatrix::of(input, layout.drafts, start, count, n, n);
        let draws = each(2).map_or(PerRow::All(first.draw), PerRow::Rows);
        let asked = DraftTrees {
            draft_probs: first.draft_probs.map(|_| probabilities(draft, drafter_rows)).transpose()?,
            draft_token_ids: matrix(drafts)?,
            parents: first.tree.parents.map(|_| matrix(parents)).transpose()?,
            target_probs: probabilities(target, n + 1)?,
            draws: Draws {
                seeds: each(0).map_or(PerRow::All(first.seed), PerRow::Rows),
                positions: each(1).map_or(PerRow::All(first.position), PerRow::Rows),
                draws: (!layout.own_draws).then_some(draws),
                ..Draws::new(0, 0)
            },
        };
        self.judge.enqueue(&asked, judgement, &place)?;

        let (mut tokens, mut columns) = (vec![0u32; token_words], [const { Vec::new() }; 3]);
        let mut rows = vec![0i32; places];
        self.tokens.read(0, &mut tokens)?;
        self.rows.read(0, &mut rows)?;
        for (column, words) in self.columns.iter().zip(&mut columns) {
            words.resize(count, 0u32);
            column.read(0, words)?;
        }
        let tokens: Vec<i64> = if layout.tokens.bytes() == 8 {
            tokens.chunks(2).map(|two| (u64::from(two[0]) | u64::from(two[1]) << 32) as i64).collect()
        } else {
            tokens.iter().map(|token| i64::from(*token as i32)).collect()
        };
        let less = if layout.adds { BEFORE } else { 0 };
        let outcome = |i: usize| {
            let count = |which: usize| columns[which][i].wrapping_sub(less);
            let end = count(0) as usize + 1;
            let (ids, walked) = (&tokens[i * (n + 1)..][..n + 1], &rows[i * (n + 1)..][..n + 1]);
            assert!(ids[end..].iter().all(|id| *id == i64::from(NONE)), "{ids:?} behind {end}");
            assert!(walked[end..].iter().all(|row| *row == -1), "{walked:?} behind {end}");
            let token = |id: &i64| i32::try_from(*id).expect("ids are of the vocabulary, or none");
            Emitted {
                rows: walked[..end].iter().map(|row| usize::try_from(*row).expect("a row")).collect(),
                tokens: ids[..end].iter().map(token).collect(),
                status: Status(columns[2][i]),
                accepted_alone: is_chain.then(|| count(1)),
            }
        };
        Ok((0..count).map(outcome).collect())
    }
}

/// Holds a device to the rule for parents that are no tree: no draft is accepted, and the status says so.
///
/// # Errors
/// The runtime's errors.
///
/// # Panics
/// If the device does anything else.
pub fn hold_to_no_tree(runtime: &Arc<dyn Runtime>) -> Result<(), Error> {
    let mut judger = Judger::new(runtime)?;
    let target: Vec<f32> = (0..4 * 300).map(|place| (place * 7919 % 1009) as f32 / 1009.0).collect();
    let trial = |parents| Trial {
        tree: DraftTree { drafts: &[1, 2, 3], parents: Some(parents) },
        draft_probs: None,
        target_probs: &target,
        vocab: 300,
        seed: 5,
        position: 9,
        draw: 1,
    };
    let plain = trial(&[-1, 0, 1]);
    let plain = Trial { tree: DraftTree::default(), target_probs: &target[..300], ..plain };
    let plain = plain.judge(Judgement::Rejection)?;
    let thresholds = Judgement::Threshold { single: 0.0, acc: 0.0 };
    for (parents, judgement) in [
        (&[0, 0, 1], Judgement::Rejection),
        (&[-1, 2, 1], Judgement::Rejection),
        (&[-1, 0, i32::MIN], thresholds),
        (&[-1, 0, 3], thresholds),
        (&[-1, -1, 1], Judgement::Block),
    ] {
        let mut expected = plain.clone();
        expected.status.insert(Status::NO_TREE);
        let outcomes = judger.judge_places(&trial(parents), judgement)?;
        outcomes.iter().for_each(|seen| assert_eq!(*seen, expected, "{parents:?} {judgement:?}"));
    }
    Ok(())
}

/// Holds a device to the oracle on rows of a vocabulary: a tree and a chain by every rule, with and without
/// the drafter's probabilities.
///
/// # Errors
/// The first difference, as text.
pub fn hold_vocab(runtime: &Arc<dyn Runtime>, seed: u64, vocab: usize) -> Result<(), String> {
    let mut judger = Judger::new(runtime).map_err(|error| error.to_string())?;
    let mut words = Words(seed);
    // Half of a row's mass lies on few tokens, from which drafts are taken.
    let mut row = || -> Vec<f32> {
        let mut row: Vec<f32> = (0..vocab).map(|_| (words.word() >> 40) as f32 / vocab as f32).collect();
        for _ in 0..4 {
            let id = words.word() as usize % vocab;
            row[id] = (1 << 23) as f32 * (1 + words.word() % 3) as f32 / 8.0;
        }
        let sum: f64 = row.iter().map(|p| f64::from(*p)).sum();
        row.iter().map(|p| (f64::from(*p) / sum) as f32).collect()
    };
    let rows: Vec<Vec<f32>> = (0..6).map(|_| row()).collect();
    let parents = [-1, -1, 0, 0, -1];
    let likely = |row: &[f32], which: usize| {
        let ids: Vec<usize> = (0..vocab).filter(|id| row[*id] > 0.05).collect();
        ids.get(which % ids.len().max(1)).map_or(NONE, |id| *id as i32)
    };
    let drafts: Vec<i32> =
        parents.iter().enumerate().map(|(node, parent)| likely(&rows[(parent + 1) as usize], node)).collect();
    let chain: Vec<i32> = (0..5).map(|node| likely(&rows[node], node)).collect();
    let drafter = rows.concat();
    let mixed: Vec<Vec<f32>> = (0..6)
        .map(|i| {
            let other = &rows[(i + 1) % 6];
            rows[i].iter().zip(other).map(|(a, b)| 0.7 * a + 0.3 * b).collect()
        })
        .collect();
    let target = mixed.concat();
    let thresholds = Judgement::Threshold { single: 0.4, acc: 0.6 };
    for (judgement, is_chain) in [
        (Judgement::Rejection, false),
        (Judgement::Rejection, true),
        (Judgement::Block, true),
        (thresholds, false),
    ] {
        for draft_probs in [Some(&drafter[..]), None] {
            let trial = Trial {
                tree: DraftTree {
                    drafts: if is_chain { &chain } else { &drafts },
                    parents: (!is_chain).then_some(&parents[..]),
                },
                draft_probs,
                target_probs: &target,
                vocab,
                seed,
                position: 77,
                draw: 2,
            };
            let (wanted, seen) = (trial.judge(judgement), judger.judge(&trial, judgement));
            if wanted != seen {
                let has = draft_probs.is_some();
                return Err(format!("{vocab} ids, {judgement:?}, q {has}: {seen:?}, not {wanted:?}"));
            }
        }
    }
    Ok(())
}

/// Takes a larger buffer where one is too small.
fn grow(runtime: &Arc<dyn Runtime>, buffer: &mut Buffer, bytes: usize) -> Result<(), Error> {
    if buffer.bytes() < bytes {
        *buffer = Buffer::zeroed(runtime, bytes.next_power_of_two())?;
    }
    Ok(())
}

/// Writes words to a buffer, which is made again if it is too small.
fn fill(runtime: &Arc<dyn Runtime>, buffer: &mut Buffer, words: &[u32]) -> Result<(), Error> {
    if buffer.bytes() == 4 * words.len() {
        buffer.write(0, words)?;
    } else {
        *buffer = Buffer::of(runtime, words)?;
    }
    Ok(())
}

/// The data that is copied to the device.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    /// Adds the rows of trees; returns the element where they start, and their strides.
    fn rows<'a>(
        &mut self,
        trees: impl Iterator<Item = &'a [f32]>,
        vocab: usize,
        gaps: Gaps,
    ) -> (usize, [usize; 2]) {
        self.align();
        let put = |bytes: &mut Vec<u8>, values: &[f32]| {
            values.iter().for_each(|value| bytes.extend_from_slice(&value.to_ne_bytes()));
        };
        // What lies between rows would win each race.
        let gap = |count: usize| vec![f32::INFINITY; count];
        put(&mut self.0, &gap(gaps.start));
        let start = self.0.len() / 4;
        let mut tree_stride = 0;
        for tree in trees {
            let from = self.0.len() / 4;
            for row in tree.chunks(vocab) {
                put(&mut self.0, row);
                put(&mut self.0, &gap(gaps.row));
            }
            put(&mut self.0, &gap(gaps.tree));
            tree_stride = self.0.len() / 4 - from;
        }
        (start, [tree_stride, vocab + gaps.row])
    }

    /// Adds whole numbers; returns the byte where they start.
    fn integers(&mut self, int: IntType, values: &[i64]) -> usize {
        self.align();
        let start = self.0.len();
        for value in values {
            self.0.extend_from_slice(&value.to_ne_bytes()[..int.bytes()]);
        }
        start
    }

    fn align(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(16), 0);
    }
}
