//! Outputs emits what decoding without drafts does, whatever is drafted, and moves sequences on by that.

use std::sync::atomic::{AtomicUsize, Ordering};

use gumball_engine::{
    Batch, Drafts, Ids, Masks, Matrix, NONE, Outputs, PADDING, Pool, PoolConfig, Route, RowHook, Rows,
    SamplingParams, Slot, Tree, VerifyMode, Widths,
};
use gumball_spec::num::philox4x32_10;
use gumball_spec::verify::DraftTree;
use gumball_spec::verify::by_probabilities::{Judgement, Trial};
use gumball_spec::{Request, oracle};

use crate::cases::{KINDS, VOCAB, params, pool, row, rows, step};

/// The kind with mirostat.
pub const MIROSTAT: usize = 4;

/// Every mode, thresholds that change the law included.
pub const MODES: [VerifyMode; 5] = [
    VerifyMode::Coupled,
    VerifyMode::Greedy,
    VerifyMode::Rejection,
    VerifyMode::Block,
    VerifyMode::Threshold { single: 0.4, acc: 0.5 },
];

/// A model: rows are a function of the last two ids, and few, so that tokens repeat and penalties bite.
pub fn model(history: &[u32]) -> Vec<f32> {
    let seed = history.iter().rev().take(2).fold(1u64, |hash, id| (hash * 7 + u64::from(*id)) % 11);
    let mut row = row(seed);
    row[seed as usize * 80] += 7.0;
    row
}

/// Random numbers.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: usize) -> usize {
        self.0 += 1;
        philox4x32_10(5, [self.0 as u32, (self.0 >> 32) as u32, 0, 0])[0] as usize % end
    }
}

/// What proposes drafts.
#[derive(Clone, Copy, Debug)]
pub enum Drafter {
    /// Any ids, some of them no tokens.
    Random,
    /// The tokens that will come.
    Perfect,
    /// Those, mixed with others.
    Fair,
    /// What no drafter would say: no tokens, the same sibling again and again.
    Hostile,
}

impl Drafter {
    fn draft(self, random: &mut Random, coming: Option<u32>) -> i32 {
        let any = random.below(VOCAB + 20) as i32 - 10;
        let odd = [NONE, i32::MIN, i32::MAX, VOCAB as i32, 3][random.below(5)];
        let coming = coming.map_or(any, |id| id as i32);
        match self {
            Drafter::Random => any,
            Drafter::Perfect => coming,
            Drafter::Fair => [coming, coming, any][random.below(3)],
            Drafter::Hostile => [odd, coming][random.below(2)],
        }
    }
}

/// Decodes step by step.
fn decode(params: &SamplingParams, prompt: &[u32], count: usize) -> (Vec<u32>, Vec<Outputs>) {
    let mut pool = pool(1);
    let slot = pool.admit(params.clone(), prompt).unwrap();
    let outputs = (0..count).map(|_| {
        let row = model(pool.sequence(slot).unwrap().history().ids());
        step(&mut pool, &row, &[slot])
    });
    let outputs: Vec<Outputs> = outputs.collect();
    (outputs.iter().map(|out| out.tokens()[0] as u32).collect(), outputs)
}

/// Where the drafts of several requests are gathered.
#[derive(Default)]
pub struct Gathered {
    pub counts: Vec<u32>,
    pub ids: Vec<i32>,
    pub parents: Vec<i32>,
    pub data: Vec<f32>,
}

impl Gathered {
    /// Adds a request with drafts behind a history; `coming` are the tokens that decoding would draw.
    pub fn add(
        &mut self,
        random: &mut Random,
        drafter: Drafter,
        count: usize,
        history: &[u32],
        coming: &[u32],
    ) {
        let mut paths: Vec<Vec<u32>> = vec![history.to_vec()];
        self.data.extend(model(history));
        for node in 0..count {
            // Mostly behind the last one, else anywhere.
            let parent = if random.below(3) > 0 { node } else { random.below(node + 1) };
            let depth = paths[parent].len() - history.len();
            let draft = drafter.draft(random, coming.get(depth).copied());
            let path = [&paths[parent][..], &[draft as u32]].concat();
            self.data.extend(model(&path));
            paths.push(path);
            self.ids.push(draft);
            self.parents.push(parent as i32 - 1);
        }
        self.counts.push(count as u32);
    }

    pub fn drafts(&self) -> Drafts<'_> {
        Drafts::tree(&self.ids, &self.parents)
    }

    pub fn logits(&self) -> Rows<'_> {
        Rows::logits(&self.data, self.data.len() / VOCAB, VOCAB).unwrap()
    }

    fn verify(&self, pool: &mut Pool, slots: &[Slot], out: &mut Outputs) {
        let batch = Batch { counts: &self.counts, ..Batch::of(slots) };
        pool.verify(self.logits(), &batch, &self.drafts(), out).unwrap();
    }
}

#[test]
fn the_stream_is_that_of_decoding_for_any_drafter_and_any_lengths() {
    const TOKENS: usize = 60;
    let prompt = [3, 7, 3];
    let plain: Vec<_> = (0..KINDS).map(|kind| decode(&params(kind, 9), &prompt, TOKENS + 70)).collect();
    for (threads, drafter) in [
        (1, Drafter::Random),
        (2, Drafter::Perfect),
        (2, Drafter::Fair),
        (1, Drafter::Fair),
        (2, Drafter::Hostile),
    ] {
        let mut random = Random(threads as u64);
        let mut pool = pool(threads);
        let slots: Vec<_> = (0..KINDS).map(|kind| pool.admit(params(kind, 9), &prompt).unwrap()).collect();
        let mut out = Outputs::new();
        let (mut accepted, mut calls) = (0, 0);
        let emitted = |pool: &mut Pool, slot| pool.sequence(slot).unwrap().history().output().len();
        while slots.iter().any(|slot| emitted(&mut pool, *slot) < TOKENS) {
            // Another batch each time, in another order, some requests left out, and padding between.
            let mut batch = Gathered::default();
            let mut rows = Vec::new();
            for kind in (0..KINDS).filter(|_| random.below(4) > 0).rev().collect::<Vec<_>>() {
                let history = pool.sequence(slots[kind]).unwrap().history();
                let coming = &plain[kind].0[history.output().len().min(TOKENS)..];
                let count = [0, 0, 1, 3, 5, 64][random.below(6)];
                let count = if kind == MIROSTAT { 0 } else { count };
                batch.add(&mut random, drafter, count, history.ids(), coming);
                rows.push(slots[kind]);
                if random.below(3) == 0 {
                    batch.add(&mut random, Drafter::Hostile, 2, &[1], &[]);
                    rows.push(PADDING);
                }
            }
            let before: Vec<usize> = rows
                .iter()
                .map(|slot| if *slot == PADDING { 0 } else { emitted(&mut pool, *slot) })
                .collect();
            batch.verify(&mut pool, &rows, &mut out);
            for (request, slot) in rows.iter().enumerate() {
                if *slot == PADDING {
                    assert!(out.request(request).tokens.is_empty());
                    continue;
                }
                let kind = slots.iter().position(|other| other == slot).unwrap();
                if kind != MIROSTAT && before[request] < TOKENS {
                    (accepted, calls) = (accepted + out.accepted()[request], calls + 1);
                }
                // Every token with all that a step says of it.
                for (place, number) in out.request(request).range.zip(before[request]..) {
                    let Some(wanted) = plain[kind].1.get(number) else { break };
                    let seen = &out;
                    assert_eq!(
                        seen.tokens()[place],
                        wanted.tokens()[0],
                        "{drafter:?}, kind {kind}, token {number}"
                    );
                    assert_eq!(seen.statuses()[place], wanted.statuses()[0]);
                    assert_eq!(seen.ranks()[place], wanted.ranks()[0]);
                    assert_eq!(seen.logprobs()[place].to_bits(), wanted.logprobs()[0].to_bits());
                    assert_eq!(seen.mirostat_mu()[place].to_bits(), wanted.mirostat_mu()[0].to_bits());
                    assert_eq!(seen.top_ids(place), wanted.top_ids(0));
                    assert_eq!(seen.id_ranks(place), wanted.id_ranks(0));
                }
            }
        }
        for (kind, slot) in slots.iter().enumerate() {
            let sequence = pool.sequence(*slot).unwrap();
            let output = sequence.history().output();
            assert_eq!(output[..TOKENS], plain[kind].0[..TOKENS], "{drafter:?}, kind {kind}");
            assert_eq!(sequence.position() as usize, prompt.len() + output.len());
        }
        let rate = f64::from(accepted) / f64::from(calls);
        let range = match drafter {
            Drafter::Random => 0.0..0.2,
            Drafter::Perfect => 1.0..64.0,
            _ => 0.2..64.0,
        };
        assert!(range.contains(&rate), "{drafter:?}: {rate} accepted drafts a request");
    }
}

#[test]
fn rows_and_tokens_are_those_of_the_path() {
    let greedy = SamplingParams { temperature: 0.0, ..Default::default() };
    let mut pool = pool(2);
    let slots = [0, 1].map(|_| pool.admit(greedy.clone(), &[1]).unwrap());
    let sure = |id: usize| {
        let mut row = vec![0.0; VOCAB];
        row[id] = 9.0;
        row
    };
    // The first request is a chain 5 6 7 of which 7 is wrong, the second a tree.
    let ids = [5, 6, 7, 20, 21, 22, 23];
    let parents = [-1, 0, 1, -1, -1, 1, 1];
    let data = [sure(5), sure(6), sure(8), sure(0), sure(21), sure(1), sure(23), sure(2), sure(3)].concat();
    let (counts, drafts) = (&[3, 4], Drafts::tree(&ids, &parents));
    let logits = Rows::logits(&data, 9, VOCAB).unwrap();
    let mut out = Outputs::new();
    let none = Batch::default();
    pool.verify(logits, &Batch { slots: &slots, counts, ..none }, &drafts, &mut out).unwrap();
    assert_eq!((out.request(0).tokens, out.request(0).rows), (&[5, 6, 8][..], &[0, 1, 2][..]));
    assert_eq!((out.request(1).tokens, out.request(1).rows), (&[21, 23, 3][..], &[4, 6, 8][..]));
    assert_eq!(out.accepted(), [2, 2]);
    assert_eq!(out.tokens(), [5, 6, 8, NONE, 21, 23, 3, NONE, NONE]);
    assert_eq!(pool.sequence(slots[1]).unwrap().history().output(), [21, 23, 3]);

    // Chains need no parents, and rows may be selected.
    let (counts, drafts) = (&[2], Drafts::chain(&[5, 6]));
    let logits = Rows::logits(&data, 9, VOCAB).unwrap();
    let batch = Batch { counts, row_indices: &[0, 1, 2], ..Batch::of(&slots[..1]) };
    pool.verify(logits, &batch, &drafts, &mut out).unwrap();
    assert_eq!((out.request(0).tokens, out.request(0).rows), (&[5, 6, 8][..], &[0, 1, 2][..]));
}

#[test]
fn a_shortened_sequence_is_as_if_the_tokens_had_never_been() {
    let prompt = [3, 7, 3];
    let kinds: Vec<usize> = (0..KINDS).filter(|kind| *kind != MIROSTAT).collect();
    let plain: Vec<_> = kinds.iter().map(|kind| decode(&params(*kind, 4), &prompt, 12)).collect();
    let mut pool = pool(1);
    let slots: Vec<_> = kinds.iter().map(|kind| pool.admit(params(*kind, 4), &prompt).unwrap()).collect();
    let mut out = Outputs::new();
    for _ in 0..2 {
        let mut batch = Gathered::default();
        for (slot, (coming, _)) in slots.iter().zip(&plain) {
            let history = pool.sequence(*slot).unwrap().history();
            let coming = &coming[history.output().len()..];
            let mut random = Random(3);
            batch.add(&mut random, Drafter::Perfect, 5, history.ids(), coming);
        }
        batch.verify(&mut pool, &slots, &mut out);
        // All but the first stay away again.
        let counts: Vec<usize> = out.accepted().iter().map(|accepted| *accepted as usize).collect();
        assert!(counts.iter().all(|count| *count > 0));
        pool.shorten(&slots, &counts).unwrap();
    }
    for (slot, (tokens, _)) in slots.iter().zip(&plain) {
        assert_eq!(pool.sequence(*slot).unwrap().history().output(), &tokens[..2]);
    }
    let next = |slot: &Slot| model(pool.sequence(*slot).unwrap().history().ids());
    let next: Vec<f32> = slots.iter().flat_map(next).collect();
    let out = step(&mut pool, &next, &slots);
    plain.iter().enumerate().for_each(|(i, (tokens, _))| assert_eq!(out.tokens()[i] as u32, tokens[2]));

    let state = |pool: &mut Pool| {
        slots.iter().map(|slot| pool.sequence(*slot).unwrap().position()).collect::<Vec<_>>()
    };
    let before = state(&mut pool);
    for (slots, counts, message) in [
        (&slots[..2], &[1, 4][..], "counts is 4 of slot 1, but must be in 0..=3, its output tokens"),
        (&slots[..2], &[1], "counts has length 1, but must have one per slot, 2"),
        (
            &[slots[0], slots[0]],
            &[1, 1],
            "slots is 0 in row 1 again, but must be a slot that stands in a step once",
        ),
        (&[slots[0], PADDING], &[1, 0], "slot is -1, but must be an admitted slot"),
    ] {
        assert_eq!(pool.shorten(slots, counts).unwrap_err().to_string(), message);
        assert_eq!(state(&mut pool), before);
    }
}

#[test]
fn greedy_verification_of_a_request_that_samples_draws_the_first_tokens() {
    let hot = SamplingParams { temperature: 2.0, seed: Some(1), ..Default::default() };
    let cold = SamplingParams { temperature: 0.0, ..Default::default() };
    let (tokens, _) = decode(&SamplingParams { logprobs: None, ..cold }, &[5], 4);
    let mut pool = pool(1);
    let slot = pool.admit(hot, &[5]).unwrap();
    let mut batch = Gathered::default();
    batch.add(&mut Random(1), Drafter::Perfect, 0, &[5], &[]);
    let ids: Vec<i32> = tokens[..3].iter().map(|id| *id as i32).collect();
    let data: Vec<f32> = (0..4).flat_map(|i| model(&[&[5], &tokens[..i]].concat())).collect();
    let (counts, drafts) = (&[3], Drafts::chain(&ids));
    let logits = Rows::logits(&data, 4, VOCAB).unwrap();
    let mut out = Outputs::new();
    pool.verify(logits, &Batch { counts, mode: VerifyMode::Greedy, ..Batch::of(&[slot]) }, &drafts, &mut out)
        .unwrap();
    assert!(out.request(0).tokens.iter().zip(&tokens).all(|(a, b)| *a as u32 == *b) && out.accepted() == [3]);
    assert!(out.temperatures().iter().all(|t| *t == 0.0));
}

#[test]
fn hooks_run_for_the_rows_of_the_path_alone() {
    let greedy = SamplingParams { temperature: 0.0, ..Default::default() };
    let mut pool = pool(1);
    let slot = pool.admit(greedy, &[]).unwrap();
    let calls = [0, 1, 2, 3].map(|_| AtomicUsize::new(0));
    let hook = |row: usize| {
        let calls = &calls;
        move |z: &mut [f32]| {
            calls[row].fetch_add(1, Ordering::Relaxed);
            z[[8, 9, 10, 11][row]] = 1e6;
        }
    };
    let hooks = [hook(0), hook(1), hook(2), hook(3)];
    let hooks: Vec<Option<RowHook<'_>>> = hooks.iter().map(|hook| Some(hook as RowHook<'_>)).collect();
    let data = rows([0, 0, 0, 0]);
    let (counts, drafts) = (&[3], Drafts::tree(&[7, 8, 10], &[-1, -1, 1]));
    let logits = Rows::logits(&data, 4, VOCAB).unwrap();
    let options = Batch { hooks: &hooks, ..Default::default() };
    let mut out = Outputs::new();
    pool.verify(logits, &Batch { slots: &[slot], counts, ..options }, &drafts, &mut out).unwrap();
    assert_eq!((out.request(0).tokens, out.request(0).rows), (&[8, 10, 11][..], &[0, 2, 3][..]));
    assert_eq!(calls.map(|calls| calls.into_inner()), [1, 0, 1, 1]);
}

/// Numbers of drafts, drafts and what they follow.
type Given = (&'static [u32], &'static [i32], Tree<'static>);

#[test]
fn a_refused_verification_leaves_everything_unchanged() {
    let mut pool = pool(2);
    let a = pool.admit(params(3, 1), &[1]).unwrap();
    let b = pool.admit(params(MIROSTAT, 2), &[2]).unwrap();
    let data = rows(0..4);
    let logits = Rows::logits(&data, 4, VOCAB).unwrap();
    let none = Batch::default();
    let words = [u32::MAX; 90];
    let short = Batch { masks: Masks::new(&words, 3, 29, 29).unwrap(), ..none };
    let forced = Batch { forced: &[None, None, None, Some(900)], ..none };
    let good: Given = (&[2, 0], &[1, 2], Tree::Parents(Ids::Host(&[-1, 0])));
    let mirostat = "mirostat cannot be combined with drafts: its limit moves with every token that is drawn; let the \
        request step without drafts";
    let cases: [(&str, &[Slot], Given, Batch<'_>); 12] = [
        (
            "drafts.counts has length 1, but must have one per request, 2",
            &[a, b],
            (&[2], &[1, 2], Tree::Chain),
            none,
        ),
        (
            "drafts.ids has length 1, but must have 2, the sum of the counts",
            &[a, b],
            (&[2, 0], &[1], Tree::Chain),
            none,
        ),
        (
            "drafts.parents has length 0, but must have 2",
            &[a, b],
            (&[2, 0], &[1, 2], Tree::Parents(Ids::Host(&[]))),
            none,
        ),
        (
            "drafts.counts is 65 in request 0, but must be in 0..=64",
            &[a, b],
            (&[65, 0], &[1], Tree::Chain),
            none,
        ),
        ("logits has length 4, but must have 3 rows", &[a, b], (&[1, 0], &[1], Tree::Chain), none),
        (
            "parents is 1 for node 0 of request 0, but must be in -1..0, a node before it",
            &[a, b],
            (&[2, 0], &[1, 2], Tree::Parents(Ids::Host(&[1, 0]))),
            none,
        ),
        (
            "parents is 5 for node 1 of request 0",
            &[a, b],
            (&[2, 0], &[1, 2], Tree::Parents(Ids::Host(&[-1, 5]))),
            none,
        ),
        (mirostat, &[a, b], (&[1, 1], &[1, 2], Tree::Chain), none),
        ("slots is 0 in row 1 again", &[a, a], good, none),
        ("slots is 7 in row 1", &[a, 7], good, none),
        ("masks has length 3", &[a, b], good, short),
        ("forced is 900, but must be an id in 0..900", &[a, b], good, forced),
    ];
    let mut out = Outputs::new();
    let (counts, ids, tree) = good;
    let slots = [a, b];
    let whole = Batch { counts, ..Batch::of(&slots) };
    pool.verify(logits, &whole, &Drafts { tree, ..Drafts::chain(ids) }, &mut out).unwrap();
    let state = |pool: &mut Pool| [a, b].map(|slot| pool.sequence(slot).unwrap().history().ids().to_vec());
    let (before, words) = (state(&mut pool), out.words().to_vec());
    for (message, slots, (counts, ids, tree), options) in cases {
        let drafts = Drafts { tree, ..Drafts::chain(ids) };
        for mode in [VerifyMode::Coupled, VerifyMode::Greedy] {
            let error = pool
                .verify(logits, &Batch { slots, counts, mode, ..options }, &drafts, &mut out)
                .unwrap_err();
            assert!(error.to_string().starts_with(message), "{error}");
        }
        assert_eq!((state(&mut pool), out.words()), (before.clone(), &words[..]), "{message}");
    }
    // The drafts of padding are not looked at.
    let odd = Drafts::tree(&[1, 2], &[7, i32::MIN]);
    pool.verify(logits, &Batch { slots: &[PADDING, b], counts: &[2, 0], ..none }, &odd, &mut out).unwrap();
    assert_eq!(
        (out.request(0).tokens.len(), out.request(1).tokens.len(), out.accepted()),
        (0, 1, &[0, 0][..])
    );
}

#[test]
fn a_panic_in_a_hook_leaves_every_sequence_of_a_verification_as_it_was() {
    let mut pool = pool(2);
    let slots = [0, 1].map(|seed| pool.admit(params(3, seed), &[]).unwrap());
    let data = rows(0..4);
    let hook = |_: &mut [f32]| panic!("on purpose");
    let hooks: [Option<RowHook<'_>>; 4] = [None, None, Some(&hook), None];
    let (counts, drafts) = (&[1, 1], Drafts::chain(&[1, 1]));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let logits = Rows::logits(&data, 4, VOCAB).unwrap();
        let options = Batch { hooks: &hooks, ..Default::default() };
        pool.verify(logits, &Batch { slots: &slots, counts, ..options }, &drafts, &mut Outputs::new())
    }));
    assert!(result.is_err());
    assert!(slots.iter().all(|slot| pool.sequence(*slot).unwrap().position() == 0));
}

#[test]
fn an_empty_batch_is_verified() {
    let mut pool = Pool::new(PoolConfig { widths: Widths::default(), ..PoolConfig::new(VOCAB) }).unwrap();
    let logits = Rows::logits(&[0.0f32; 0], 0, VOCAB).unwrap();
    let mut out = Outputs::new();
    let none = Batch::default();
    pool.verify(
        logits,
        &Batch { slots: &[], mode: VerifyMode::default(), ..none },
        &Drafts::default(),
        &mut out,
    )
    .unwrap();
    assert!(out.accepted().is_empty());
}

/// A request's trial as the definition has it: the probabilities of each row behind its path.
fn trial_of(params: &SamplingParams, prompt: &[u32], batch: &Gathered) -> (Vec<f32>, Vec<Vec<u32>>) {
    let mut paths = vec![Vec::new()];
    for (draft, parent) in batch.ids.iter().zip(&batch.parents) {
        let path = [&paths[(parent + 1) as usize][..], &[*draft as u32]].concat();
        paths.push(path);
    }
    let probs = batch.data.chunks(VOCAB).zip(&paths).flat_map(|(row, path)| {
        let position = (prompt.len() + path.len()) as u32;
        let request = Request { output: path, position, ..Request::new(params, prompt, 9) };
        oracle::sample(row.into(), &request, None).unwrap().probabilities()
    });
    (probs.collect(), paths)
}

#[test]
fn drafts_are_judged_by_the_probabilities_of_their_rows() {
    let prompt = [3, 7, 3];
    let modes = [
        (VerifyMode::Rejection, Judgement::Rejection),
        (VerifyMode::Block, Judgement::Block),
        (VerifyMode::Threshold { single: 0.6, acc: 0.5 }, Judgement::Threshold { single: 0.6, acc: 0.5 }),
    ];
    let (mut accepted, mut out) = ([0; 3], Outputs::new());
    for kind in (0..KINDS).filter(|kind| *kind != MIROSTAT) {
        let params = params(kind, 9);
        let coming = decode(&params, &prompt, 8).0;
        for (number, (mode, judgement)) in modes.into_iter().enumerate() {
            for seed in 0..6 {
                let mut random = Random(100 * seed + kind as u64);
                let mut batch = Gathered::default();
                let count = 1 + random.below(6);
                batch.add(&mut random, Drafter::Fair, count, &prompt, &coming);
                if mode == VerifyMode::Block {
                    batch.parents = (-1..batch.ids.len() as i32 - 1).collect();
                }
                let (p, paths) = trial_of(&params, &prompt, &batch);
                // A drafter that is less sure.
                let q: Vec<f32> = p.iter().map(|p| 0.8 * p + 0.2 / VOCAB as f32).collect();
                let q = (seed % 2 == 0 && judgement.reads_draft_probs()).then_some(&q[..]);
                let tree = DraftTree { drafts: &batch.ids, parents: Some(&batch.parents) };
                let wanted = Trial {
                    tree,
                    draft_probs: q,
                    target_probs: &p,
                    vocab: VOCAB,
                    seed: 9,
                    position: 3,
                    draw: 0,
                }
                .judge(judgement)
                .unwrap();

                let mut pool = pool(1);
                let slot = pool.admit(params.clone(), &prompt).unwrap();
                let (counts, drafts) = (
                    &batch.counts,
                    Drafts {
                        probs: q.map(|q| Matrix::new(q, batch.data.len() / VOCAB, VOCAB).unwrap()),
                        ..batch.drafts()
                    },
                );
                let logits = Rows::logits(&batch.data, batch.data.len() / VOCAB, VOCAB).unwrap();
                pool.verify(logits, &Batch { counts, mode, ..Batch::of(&[slot]) }, &drafts, &mut out)
                    .unwrap();
                assert_eq!(out.request(0).tokens, wanted.tokens, "{mode:?}, kind {kind}, seed {seed}");
                assert!(out.request(0).rows.iter().map(|row| *row as usize).eq(wanted.rows.iter().copied()));
                accepted[number] += wanted.rows.len() - 1;
                for (place, row) in out.request(0).range.zip(&wanted.rows) {
                    let path = &paths[*row];
                    let request = Request {
                        output: path,
                        position: 3 + path.len() as u32,
                        forced: Some(wanted.tokens[place] as u32),
                        ..Request::new(&params, &prompt, 9)
                    };
                    let data = batch.data[row * VOCAB..][..VOCAB].into();
                    let seen = oracle::sample(data, &request, None).unwrap().logprobs.unwrap().token;
                    assert_eq!(out.logprobs()[place].to_bits(), seen.logprob.to_bits());
                    assert_eq!(out.ranks()[place], seen.rank);
                }
                let output = pool.sequence(slot).unwrap().history().output().to_vec();
                assert!(output.iter().map(|id| *id as i32).eq(wanted.tokens));
            }
        }
    }
    assert!(accepted.iter().all(|accepted| *accepted > 15), "{accepted:?}");
}

#[test]
fn stop_ids_and_forced_tokens_hold_however_drafts_are_judged() {
    let sure = |id: usize| {
        let mut row = vec![0.0; VOCAB];
        row[id] = 200.0;
        row
    };
    let data = [sure(5), sure(6), sure(7), sure(8)].concat();
    let logits = Rows::logits(&data, 4, VOCAB).unwrap();
    let (counts, drafts) = (&[3], Drafts::chain(&[5, 6, 7]));
    let mut out = Outputs::new();
    let none = Batch::default();
    let thresholds = VerifyMode::Threshold { single: 1.0, acc: 1.0 };
    for mode in [VerifyMode::Coupled, VerifyMode::Rejection, VerifyMode::Block, thresholds] {
        let params = SamplingParams { stop_ids: vec![6], ..Default::default() };
        let mut pool = pool(1);
        let slots = [pool.admit(SamplingParams::default(), &[]).unwrap(), pool.admit(params, &[]).unwrap()];
        pool.verify(logits, &Batch { slots: &slots[..1], counts, mode, ..none }, &drafts, &mut out).unwrap();
        assert_eq!(
            (out.request(0).tokens, out.request(0).rows),
            (&[5, 6, 7, 8][..], &[0, 1, 2, 3][..]),
            "{mode:?}"
        );
        pool.verify(logits, &Batch { slots: &slots[1..], counts, mode, ..none }, &drafts, &mut out).unwrap();
        assert_eq!((out.request(0).tokens, out.request(0).rows), (&[5, 6][..], &[0, 1][..]), "{mode:?}");
        let forced = Batch { forced: &[None, Some(6), Some(9), None], ..none };
        let verified =
            pool.verify(logits, &Batch { slots: &slots[..1], counts, mode, ..forced }, &drafts, &mut out);
        if mode == VerifyMode::Block {
            let error = verified.unwrap_err().to_string();
            assert!(error.starts_with("forced cannot be combined with block"), "{error}");
        } else {
            verified.unwrap();
            assert_eq!(
                (out.request(0).tokens, out.request(0).rows),
                (&[5, 6, 9][..], &[0, 1, 2][..]),
                "{mode:?}"
            );
        }
        // Without drafts it is a step, whatever the mode; mirostat's limit moves.
        let mirostat = pool.admit(params_of_mirostat(), &[]).unwrap();
        let (alone_counts, alone) = (&[0], Drafts::chain(&[]));
        let row = Rows::logits(&data[..VOCAB], 1, VOCAB).unwrap();
        pool.verify(row, &Batch { slots: &[mirostat], counts: alone_counts, mode, ..none }, &alone, &mut out)
            .unwrap();
        assert_eq!((out.request(0).tokens, out.accepted()), (&[5][..], &[0][..]));
        assert!(pool.sequence(mirostat).unwrap().mu() > 6.0, "{mode:?}");
    }
}

fn params_of_mirostat() -> SamplingParams {
    params(MIROSTAT, 1)
}

#[test]
fn what_a_mode_cannot_judge_is_refused() {
    let mut pool = pool(1);
    let slot = pool.admit(params(0, 1), &[1]).unwrap();
    let data = rows(0..3);
    let logits = Rows::logits(&data, 3, VOCAB).unwrap();
    let (counts, drafts) = (&[2], Drafts::chain(&[1, 2]));
    let tree = Drafts { tree: Tree::Parents(Ids::Host(&[-1, -1])), ..drafts };
    let short = Drafts { probs: Some(Matrix::new(&data[VOCAB..], 2, VOCAB).unwrap()), ..drafts };
    let mut refused = |drafts: Drafts<'_>, mode, message: &str| {
        let out = &mut Outputs::new();
        let error =
            pool.verify(logits, &Batch { counts, mode, ..Batch::of(&[slot]) }, &drafts, out).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
        assert_eq!(pool.sequence(slot).unwrap().position(), 1);
    };
    let thresholds = |single, acc| VerifyMode::Threshold { single, acc };
    refused(drafts, thresholds(1.5, 1.0), "threshold_single is 1.5, but must be in 0..=1");
    refused(drafts, thresholds(1.0, f32::NAN), "threshold_acc is NaN, but must be in 0..=1");
    refused(tree, VerifyMode::Block, "parents is -1 for node 1 of request 0, but must be 0 in a chain");
    refused(short, VerifyMode::Rejection, "drafts.probs has length 1800, but must have 2700");

    let mut pool = Pool::new(PoolConfig { route: Route::Probabilities, ..PoolConfig::new(VOCAB) }).unwrap();
    let slot = pool.admit(SamplingParams::default(), &[1]).unwrap();
    let (out, none) = (&mut Outputs::new(), Batch::default());
    let error = pool
        .verify(logits, &Batch { slots: &[slot], counts, mode: VerifyMode::Rejection, ..none }, &drafts, out)
        .unwrap_err();
    assert!(error.to_string().starts_with("no probabilities of rows on this route"), "{error}");
    assert_eq!(pool.sequence(slot).unwrap().position(), 1);
    pool.verify(logits, &Batch { slots: &[slot], counts, ..none }, &drafts, out).unwrap();
}

#[test]
fn every_route_verifies_in_the_modes_that_it_can_judge() {
    let mut data = vec![0.0; 2 * VOCAB];
    (data[1], data[VOCAB + 2]) = (20.0, 20.0);
    let (logits, drafts) = (Rows::logits(&data, 2, VOCAB).unwrap(), Drafts::chain(&[1]));
    for (route, modes) in
        [(Route::Race, &MODES[..]), (Route::Oracle, &MODES), (Route::Probabilities, &MODES[..2])]
    {
        let mut pool = Pool::new(PoolConfig { route: route.clone(), ..PoolConfig::new(VOCAB) }).unwrap();
        let slots = [pool.admit(SamplingParams { seed: Some(1), ..Default::default() }, &[1]).unwrap()];
        let mut out = Outputs::new();
        for mode in modes {
            let batch = Batch { counts: &[1], mode: *mode, ..Batch::of(&slots) };
            pool.verify(logits, &batch, &drafts, &mut out).unwrap();
            let emitted = out.request(0);
            assert_eq!((emitted.tokens, emitted.rows), (&[1, 2][..], &[0, 1][..]), "{route:?}, {mode:?}");
        }
    }
}
