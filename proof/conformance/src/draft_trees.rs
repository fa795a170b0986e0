//! Trees of drafts on a CUDA device, judged by probabilities.

use std::sync::Arc;

use gumball_cuda::{
    Buffer, DeviceIntMatrix, DeviceIntMatrixMut, DeviceSlice, DraftTreeRows, DraftTrees, Draws, IntType,
    Judge, Judged, PerRow, Runtime,
};
use gumball_spec::verify::DraftTree;
use gumball_spec::verify::by_probabilities::{Emitted, Judgement, Trial};
use gumball_spec::{Error, NONE, Status};

use crate::draft_chains::{Bytes, Gaps};
use crate::rows::Words;

/// How many trees are judged side by side.
const TREES: usize = 3;

/// A runtime where trees are judged.
#[derive(Debug)]
pub struct Judger {
    runtime: Arc<dyn Runtime>,
    judge: Judge,
}

impl Judger {
    /// Allocates the memory on a runtime.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn new(runtime: &Arc<dyn Runtime>) -> Result<Self, Error> {
        Ok(Self { runtime: Arc::clone(runtime), judge: Judge::new(Arc::clone(runtime))?.few_at_a_time(2) })
    }

    /// Judges one tree, three times side by side, of which some lie on 16 bytes and some do not. A chain by rejection is also judged
    /// as the tree that it is.
    ///
    /// # Errors
    /// Those of the oracle, and what the runtime says.
    ///
    /// # Panics
    /// If they differ.
    pub fn judge(&self, trial: &Trial<'_>, judgement: Judgement) -> Result<Emitted, Error> {
        // The host sees what a device only has a status for.
        trial.judge(judgement)?;
        let outcomes = self.run(trial, judgement)?;
        let [first, others @ ..] = &outcomes[..] else { unreachable!("three trees") };
        others.iter().for_each(|other| assert_eq!(other, first, "one tree, three places: {trial:?}"));
        if trial.chain(judgement).is_some() {
            let parents: Vec<i32> = (-1..trial.tree.drafts.len() as i32 - 1).collect();
            let tree = DraftTree { parents: Some(&parents), ..trial.tree };
            let as_tree = self.run(&Trial { tree, ..*trial }, judgement)?;
            let wanted = Emitted { accepted_alone: None, ..first.clone() };
            as_tree.iter().for_each(|seen| assert_eq!(*seen, wanted, "a chain as a tree: {trial:?}"));
        }
        Ok(first.clone())
    }

    /// Judges a tree that may be none.
    fn run(&self, trial: &Trial<'_>, judgement: Judgement) -> Result<Vec<Emitted>, Error> {
        let Trial { tree, vocab, .. } = *trial;
        let (n, rows) = (tree.drafts.len(), tree.rows());
        let int = if vocab % 2 == 0 { IntType::I32 } else { IntType::I64 };
        let gaps = Gaps { start: 0, row: vocab % 3, chain: 1 };
        let mut bytes = Bytes::default();
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
        let drafter = drafter.map(|probs| bytes.rows([&probs[..]; TREES].into_iter(), vocab, gaps));
        let target = bytes.rows([trial.target_probs; TREES].into_iter(), vocab, gaps);
        let integers = |bytes: &mut Bytes, values: &[i32]| {
            let values: Vec<i64> = values.repeat(TREES).into_iter().map(i64::from).collect();
            bytes.integers(int, &values) / int.bytes()
        };
        let drafts = integers(&mut bytes, tree.drafts);
        let parents = tree.parents.map(|parents| integers(&mut bytes, parents));
        bytes.0.resize(bytes.0.len().max(16).next_multiple_of(16), 0);

        let runtime = &self.runtime;
        let input = Buffer::of(runtime, &bytes.0)?;
        let mut tokens = Buffer::of(runtime, &vec![7i32; TREES * rows])?;
        let mut path = Buffer::of(runtime, &vec![7i32; TREES * rows])?;
        let column = || Buffer::of(runtime, &[7u32; TREES]);
        let (accepted, accepted_alone, statuses) = (column()?, column()?, column()?);
        let is_chain = trial.chain(judgement).is_some();
        let probabilities = |(start, strides): (usize, [usize; 2]), rows| {
            DraftTreeRows::of(&input, start, [TREES, rows, vocab], strides)
        };
        let drafter_rows = trial.draft_probs.map_or(0, |probs| probs.len() / vocab);
        let matrix = |start: usize| DeviceIntMatrix::of(&input, int, start, TREES, n, n);
        let trees = DraftTrees {
            draft_probs: drafter.map(|place| probabilities(place, drafter_rows)).transpose()?,
            draft_token_ids: matrix(drafts)?,
            parents: parents.map(matrix).transpose()?,
            target_probs: probabilities(target, rows)?,
            draws: Draws { draws: Some(PerRow::All(trial.draw)), ..Draws::new(trial.seed, trial.position) },
        };
        let out = Judged {
            tokens: DeviceIntMatrixMut::of(&mut tokens, IntType::I32, 0, TREES, rows, rows)?,
            rows: Some(DeviceIntMatrixMut::of(&mut path, IntType::I32, 0, TREES, rows, rows)?),
            accepted: Some(DeviceSlice::of(&accepted, IntType::U32)),
            accepted_alone: is_chain.then(|| DeviceSlice::of(&accepted_alone, IntType::U32)),
            statuses: Some(DeviceSlice::of(&statuses, IntType::U32)),
            adds: false,
        };
        self.judge.enqueue(&trees, judgement, &out)?;

        let (mut ids, mut walked) = (vec![0i32; TREES * rows], vec![0i32; TREES * rows]);
        let [mut counts, mut alone, mut bits] = [[0u32; TREES]; 3];
        tokens.read(0, &mut ids)?;
        path.read(0, &mut walked)?;
        accepted.read(0, &mut counts)?;
        accepted_alone.read(0, &mut alone)?;
        statuses.read(0, &mut bits)?;
        let outcome = |i: usize| {
            let emitted = counts[i] as usize + 1;
            let (ids, walked) = (&ids[i * rows..][..rows], &walked[i * rows..][..rows]);
            assert!(ids[emitted..].iter().all(|id| *id == NONE), "{ids:?} behind {emitted}");
            assert!(walked[emitted..].iter().all(|row| *row == -1), "{walked:?} behind {emitted}");
            let rows = walked[..emitted].iter().map(|row| usize::try_from(*row).expect("a row")).collect();
            let accepted_alone = is_chain.then_some(alone[i]);
            Emitted { rows, tokens: ids[..emitted].to_vec(), status: Status(bits[i]), accepted_alone }
        };
        Ok((0..TREES).map(outcome).collect())
    }
}

/// Holds a device to the rule for parents that are no tree: no draft is accepted, and the status says so.
///
/// # Errors
/// What the runtime says.
///
/// # Panics
/// If the device does anything else.
pub fn hold_to_no_tree(runtime: &Arc<dyn Runtime>) -> Result<(), Error> {
    let judger = Judger::new(runtime)?;
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
        let outcomes = judger.run(&trial(parents), judgement)?;
        outcomes.iter().for_each(|seen| assert_eq!(*seen, expected, "{parents:?} {judgement:?}"));
    }
    Ok(())
}

/// Holds a device to the oracle on rows of a vocabulary: a tree and a chain by every rule, with and without the drafter's
/// probabilities.
///
/// # Errors
/// The first difference, as text.
pub fn hold_vocab(runtime: &Arc<dyn Runtime>, seed: u64, vocab: usize) -> Result<(), String> {
    let judger = Judger::new(runtime).map_err(|error| error.to_string())?;
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
