//! Batches of draft trees are judged, on the host and on a device, as the definition judges each tree alone.

#[cfg(feature = "emulator")]
use gumball_engine::{
    Device, DeviceBuffer, DeviceIntMatrix, DeviceIntMatrixMut, DeviceSlice, DraftTreeRows, IntType,
};
use gumball_engine::{
    DraftTreeCounts, DraftTrees, Draws, Error, HostDraftTrees, Judgement, NONE, Operators, Status,
};
use gumball_spec::verify::DraftTree;
use gumball_spec::verify::by_probabilities::{Emitted, Trial};

use crate::cases::VOCAB;

const TREES: usize = 12;
const DRAFTS: usize = 5;
const ROWS: usize = DRAFTS + 1;

/// Trees of one shape: siblings, and children of the first and of the last of them.
const PARENTS: [i32; DRAFTS] = [-1, -1, 0, -1, 3];

const THRESHOLDS: Judgement = Judgement::Threshold { single: 0.3, acc: 0.5 };

/// The arrays of a batch of trees.
struct Batch {
    drafts: Vec<i32>,
    parents: Vec<i32>,
    draft_probs: Vec<f32>,
    target_probs: Vec<f32>,
}

impl Batch {
    /// Makes rows of few likely tokens, and drafts that are often among them.
    fn new() -> Self {
        let probs = |salt: usize| -> Vec<f32> {
            let weight = |row: usize, id: usize| match (id + salt + row * 5) % 97 {
                place @ 0..4 => 0.1 * (place + 1) as f32,
                place => 1e-4 * place as f32,
            };
            (0..TREES * ROWS).flat_map(|row| (0..VOCAB).map(move |id| weight(row, id))).collect()
        };
        let (draft_probs, target_probs) = (probs(0), probs(1));
        let likely = |place: usize| {
            let (tree, node) = (place / DRAFTS, place % DRAFTS);
            let row = &draft_probs[(tree * ROWS + (PARENTS[node] + 1) as usize) * VOCAB..][..VOCAB];
            let mut ids: Vec<usize> = (0..VOCAB).collect();
            ids.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
            if place % 11 == 10 { NONE } else { ids[place % 4 * (VOCAB / 97)] as i32 }
        };
        let drafts = (0..TREES * DRAFTS).map(likely).collect();
        Self { drafts, parents: PARENTS.repeat(TREES), draft_probs, target_probs }
    }

    /// Returns what the definition makes of a tree.
    fn judged(&self, i: usize, case: Case) -> Emitted {
        let (nodes, numbers) = (i * DRAFTS..(i + 1) * DRAFTS, i * ROWS * VOCAB..(i + 1) * ROWS * VOCAB);
        let trial = Trial {
            tree: DraftTree {
                drafts: &self.drafts[nodes.clone()],
                parents: case.has_parents.then(|| &self.parents[nodes]),
            },
            draft_probs: case.has_q.then(|| &self.draft_probs[numbers.clone()]),
            target_probs: &self.target_probs[numbers],
            vocab: VOCAB,
            seed: 3,
            position: 17,
            draw: i as u32,
        };
        trial.judge(case.judgement).unwrap()
    }

    fn host(&self, case: Case) -> HostDraftTrees<'_> {
        HostDraftTrees {
            trees: TREES,
            drafts: DRAFTS,
            vocab: VOCAB,
            draft_probs: case.has_q.then_some(&self.draft_probs[..]),
            draft_token_ids: &self.drafts,
            parents: case.has_parents.then_some(&self.parents[..]),
            target_probs: &self.target_probs,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    judgement: Judgement,
    has_q: bool,
    has_parents: bool,
}

fn cases() -> impl Iterator<Item = Case> {
    let of = |(judgement, has_parents)| [true, false].map(|has_q| Case { judgement, has_q, has_parents });
    [
        (Judgement::Rejection, true),
        (Judgement::Rejection, false),
        (Judgement::Block, false),
        (THRESHOLDS, true),
        (THRESHOLDS, false),
    ]
    .into_iter()
    .flat_map(of)
}

/// What an operator wrote of a batch.
#[derive(Debug)]
struct Written {
    tokens: Vec<i32>,
    rows: Vec<i32>,
    accepted: Vec<u32>,
    statuses: Vec<Status>,
}

impl Written {
    fn new() -> Self {
        let filled = || vec![7; TREES * ROWS];
        let (accepted, statuses) = (vec![7; TREES], vec![Status(7); TREES]);
        Self { tokens: filled(), rows: filled(), accepted, statuses }
    }

    /// Compares with the definition. Returns how many drafts were accepted in all.
    fn check(&self, batch: &Batch, case: Case) -> u32 {
        for i in 0..TREES {
            let mut wanted = batch.judged(i, case);
            let mut rows: Vec<i32> = wanted.rows.iter().map(|row| *row as i32).collect();
            assert_eq!(self.accepted[i] as usize + 1, rows.len(), "{case:?}");
            wanted.tokens.resize(ROWS, NONE);
            rows.resize(ROWS, -1);
            assert_eq!(self.tokens[i * ROWS..][..ROWS], wanted.tokens, "{case:?}");
            assert_eq!(self.rows[i * ROWS..][..ROWS], rows, "{case:?}");
            assert_eq!(self.statuses[i], wanted.status, "{case:?}");
        }
        self.accepted.iter().sum()
    }
}

#[test]
fn mistakes_about_trees_are_named_and_nothing_is_written() {
    let batch = Batch::new();
    let operators = Operators::new(None, Some(1)).unwrap();
    let whole = batch.host(Case { judgement: THRESHOLDS, has_q: true, has_parents: true });
    let refused = |trees: HostDraftTrees<'_>, judgement: Judgement| {
        let mut tokens = vec![7; TREES * ROWS];
        let trees = DraftTrees::Host { trees, tokens: &mut tokens, rows: None };
        let done = operators.judge(trees, judgement, &Draws::new(0, 0), DraftTreeCounts::default());
        assert!(tokens.iter().all(|token| *token == 7));
        done.map_err(|error: Error| error.to_string()).unwrap_err()
    };
    let text = refused(HostDraftTrees { draft_probs: Some(&[0.5; 9]), ..whole }, THRESHOLDS);
    let (least, wanted) = (TREES * DRAFTS * VOCAB, TREES * ROWS * VOCAB);
    let shape = format!("for {TREES} trees of {DRAFTS} drafts and {VOCAB} ids");
    assert_eq!(text, format!("draft_probs has length 9, but must have {least} or {wanted} {shape}"));
    let text = refused(HostDraftTrees { drafts: 65, ..whole }, THRESHOLDS);
    assert_eq!(text, "drafts is 65, but must be in 0..=64, but for chains by rejection with draft_probs");
    let mut cycle = batch.parents.clone();
    cycle[DRAFTS + 1] = 4;
    let text = refused(HostDraftTrees { parents: Some(&cycle), ..whole }, Judgement::Rejection);
    assert_eq!(text, "parents is 4 for node 1 of tree 1, but must be in -1..1, a node before it");
    let text = refused(whole, Judgement::Block);
    assert_eq!(text, "parents is -1 for node 1 of tree 0, but must be 0 in a chain");
    let text = refused(whole, Judgement::Threshold { single: 1.5, acc: 0.5 });
    assert_eq!(text, "threshold_single is 1.5, but must be in 0..=1");
    let trees = DraftTrees::Host { trees: whole, tokens: &mut [7; 7], rows: None };
    let error =
        operators.judge(trees, THRESHOLDS, &Draws::new(0, 0), DraftTreeCounts::default()).unwrap_err();
    assert_eq!(error.to_string(), format!("tokens has length 7, but must have {} {shape}", TREES * ROWS));
    let (mut tokens, mut alone) = (vec![7; TREES * ROWS], [0; TREES]);
    let trees = DraftTrees::Host { trees: whole, tokens: &mut tokens, rows: None };
    let counts =
        DraftTreeCounts { accepted_alone: Some(alone[..].as_mut().into()), ..DraftTreeCounts::default() };
    let error = operators.judge(trees, Judgement::Rejection, &Draws::new(0, 0), counts).unwrap_err();
    assert!(matches!(error, Error::Conflict { parameter: "accepted_alone", .. }), "{error}");
    assert!(tokens.iter().all(|token| *token == 7));
}

#[test]
fn chains_by_rejection_have_any_length() {
    let drafts = 200;
    let probs = vec![0.5; 2 * (drafts + 1)];
    let chain = HostDraftTrees {
        trees: 1,
        drafts,
        vocab: 2,
        draft_probs: Some(&probs),
        draft_token_ids: &vec![1; drafts],
        parents: None,
        target_probs: &probs,
    };
    let (mut tokens, mut accepted) = (vec![7; drafts + 1], [5]);
    let trees = DraftTrees::Host { trees: chain, tokens: &mut tokens, rows: None };
    let counts = DraftTreeCounts {
        accepted: Some(accepted[..].as_mut().into()),
        adds: true,
        ..DraftTreeCounts::default()
    };
    let operators = Operators::new(None, Some(1)).unwrap();
    operators.judge(trees, Judgement::Rejection, &Draws::new(3, 17), counts).unwrap();
    assert_eq!((&tokens[..drafts], accepted), (&[1; 200][..], [205]));
}

#[cfg(feature = "emulator")]
#[test]
fn a_device_judges_trees_as_the_host_does() {
    let Some(device) = gumball_bench_protocol::skipped::or_skip(Device::emulated()) else { return };
    let (batch, runtime) = (Batch::new(), device.runtime().clone());
    let operators = Operators::on_device(device);
    let floats = |values: &[f32]| DeviceBuffer::of(&runtime, values).unwrap();
    let ints = |values: &[i32]| DeviceBuffer::of(&runtime, values).unwrap();
    let (draft_probs, target_probs) = (floats(&batch.draft_probs), floats(&batch.target_probs));
    let (drafts, parents) = (ints(&batch.drafts), ints(&batch.parents));
    let probs = |buffer| DraftTreeRows::of(buffer, 0, [TREES, ROWS, VOCAB], [ROWS * VOCAB, VOCAB]).unwrap();
    let nodes = |buffer| DeviceIntMatrix::of(buffer, IntType::I32, 0, TREES, DRAFTS, DRAFTS).unwrap();
    for case in cases() {
        let mut written = Written::new();
        let (mut tokens, mut rows) = (ints(&written.tokens), ints(&written.rows));
        let (accepted, statuses) = (ints(&[7; TREES]), ints(&[7; TREES]));
        let trees = DraftTrees::Device {
            draft_probs: case.has_q.then(|| probs(&draft_probs)),
            draft_token_ids: nodes(&drafts),
            parents: case.has_parents.then(|| nodes(&parents)),
            target_probs: probs(&target_probs),
            tokens: DeviceIntMatrixMut::of(&mut tokens, IntType::I32, 0, TREES, ROWS, ROWS).unwrap(),
            rows: Some(DeviceIntMatrixMut::of(&mut rows, IntType::I32, 0, TREES, ROWS, ROWS).unwrap()),
        };
        let counts = DraftTreeCounts {
            accepted: Some(gumball_engine::PerRowMut::Device(DeviceSlice::of(&accepted, IntType::I32))),
            statuses: Some(gumball_engine::PerRowMut::Device(DeviceSlice::of(&statuses, IntType::I32))),
            ..DraftTreeCounts::default()
        };
        operators.judge(trees, case.judgement, &Draws::new(3, 17), counts).unwrap();
        tokens.read(0, &mut written.tokens).unwrap();
        rows.read(0, &mut written.rows).unwrap();
        accepted.read(0, &mut written.accepted).unwrap();
        let mut bits = [0u32; TREES];
        statuses.read(0, &mut bits).unwrap();
        written.statuses = bits.map(Status).to_vec();
        written.check(&batch, case);
    }
}
