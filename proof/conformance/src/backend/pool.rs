//! The engine's pools as backends, on the host and on a device: each case is resumed in a slot, stepped, and
//! looked at afterwards.
//!
//! A single case is a batch of one row. A batch of cases is split by vocabulary and type, and each part is
//! one step, over the threads of a pool of the host, its rows strided, with a padding row after every case.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use gumball_cpu::Output;
#[cfg(feature = "cuda")]
use gumball_engine::Device;
use gumball_engine::dist::{LogitsLayout, Ownership, TransportKind, VocabSplit};
use gumball_engine::{
    Batch, DraftTreeCounts, DraftTrees, DraftWords, Draws, HostDraftTrees, HostMasks, HostMatrix, LogitsMut,
    Masks, Matrix, Operators, Outputs, PADDING, Place, PoolConfig, Proposals, RowHook, RowParams, Rows,
    RowsInOut, Slot, State, VerifyMode, Widths, bf16, f16,
};
use gumball_spec::verify::by_probabilities::{Emitted, Judgement, Trial};
use gumball_spec::{Error, MAX_VOCAB, NONE, Result, Row, Status};

use super::heads::Heads;
use super::pools::Pools;
use super::read_row::read_row;
use super::verified::verify;
use super::work::Work;
use super::{Backend, Oracle, in_parts, row_to_write};
use crate::case::{Case, Dtype};
use crate::drafted::{Drafted, Walked};
use crate::head_case::{ClusterCase, HeadCase};
use crate::observed::{Observed, differences};

/// Elements between rows, which hold what would win every draw.
const GAP: usize = 13;

/// Pools that are kept at most.
const MOST: usize = 64;

/// The settings of a pool: vocabulary, capacity for logprobs, and whether kept sets are told.
type Key = (usize, usize, usize, bool);

/// Cases that are stepped together at most.
const TOGETHER: usize = 128;

/// Draws drafts for a case, if the pool has a verb for that: the last tokens of the output are the path.
fn draft(pool: &mut Pools, case: &Case, words: DraftWords, count: usize) -> Option<Result<Vec<i32>>> {
    let (mode, depth) = match words {
        DraftWords::Position => (VerifyMode::Coupled, case.output.len().min(2)),
        DraftWords::Block { depth } => (VerifyMode::Block, depth as usize),
    };
    let before = case.output.len().checked_sub(depth)?;
    let (mut root, path) = (case.clone(), case.output[before..].iter().map(|id| *id as i32));
    root.output.truncate(before);
    root.position = case.position.wrapping_sub(depth as u32);
    let path: Vec<i32> = path.collect();
    // A path holds tokens, and only pools of the host have hooks.
    let is_token = |id: &i32| (0..case.vocab() as i32).contains(id);
    if case.hook.is_some() && !pool.hooks() || !path.iter().all(is_token) {
        return None;
    }
    let mut of = |root: &Case, mode| {
        let slot = resume(pool, root)?;
        let drafts = drafts(pool, slot, case, &path, mode, count);
        pool.each(|pool| pool.release(slot))?;
        drafts
    };
    let drafted = of(&root, mode);
    if words == DraftWords::Position && root.params.temperature == 0.0 {
        // `greedy` draws at any temperature as others do at 0.
        root.params.temperature = 1.0;
        assert_eq!(of(&root, VerifyMode::Greedy), drafted);
    }
    Some(drafted)
}

/// Draws drafts after a path, in a batch with padding, and with another path of the same request that must
/// not matter.
fn drafts(
    pool: &mut Pools,
    slot: Slot,
    case: &Case,
    path: &[i32],
    mode: VerifyMode,
    count: usize,
) -> Result<Vec<i32>> {
    let vocab = case.vocab();
    let row: Vec<f32> = (0..vocab).map(|id| case.logits.row().logit(id)).collect();
    let data = [&vec![f32::NAN; vocab][..], &row, &row].concat();
    let ids: Vec<i32> = path.iter().chain(&[0]).copied().collect();
    let counts = &[0, path.len() as u32, 1];
    let edit = case.hook.map(|hook| move |z: &mut [f32]| hook.apply(z));
    let hook = edit.as_ref().map(|edit| edit as RowHook<'_>);
    let words = case.mask.clone().unwrap_or_default().repeat(3);
    let masks = match &case.mask {
        Some(mask) => Masks::new(&words, 3, mask.len(), mask.len())?,
        None => Masks::None,
    };
    let (slots, forced, hooks) = ([PADDING, slot, slot], [case.forced; 3], [hook; 3]);
    let batch = Batch { counts, mode, masks, forced: &forced, hooks: &hooks, ..Batch::of(&slots) };
    let rows = Rows::of(Matrix::new(&data, 3, vocab)?, case.kind);
    let mut out = Proposals::new(count);
    pool.draft(&Work { rows, dtype: Dtype::F32, batch, drafts: None }, &ids, &mut out)?;
    assert!(out.row(0).iter().all(|draft| *draft == NONE), "padding has no drafts");
    Ok(out.row(1).to_vec())
}

/// Makes the pools of a place.
type Make = Box<dyn Fn(PoolConfig) -> Result<Pools> + Send + Sync>;

/// Pools of the engine.
pub struct Pooled {
    name: &'static str,
    make: Make,
    pools: Mutex<HashMap<Key, Pools>>,
    lacking: AtomicUsize,
    /// What writes rows and judges drafts, on the host; a device has no means for that yet, nor for hooks.
    operators: Option<Operators>,
    /// Whether steps are taken by a pool that tells no kept sets, too: other rows are decided by a part of
    /// their logits then.
    is_twice: bool,
    /// By how much fewer draws are made where a law would like many.
    slowness: u32,
}

impl fmt::Debug for Pooled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Pooled {
    /// Makes the backend of the pool of the host, at the machine's best level and over rayon's threads.
    #[must_use]
    pub fn on_host() -> Self {
        Self::new("pool", Box::new(Pools::new))
    }

    /// Makes the backend of a pool of the host whose rows come from hidden states, by a certified head.
    #[must_use]
    pub fn on_hidden_states() -> Self {
        let make = |config| Pools::from_heads(PoolConfig { place: Place::threads(1), ..config });
        Self { is_twice: true, ..Self::new("pool_hidden", Box::new(make)) }
    }

    /// Makes the backend of a pool over ranks.
    #[must_use]
    pub fn on_ranks() -> Self {
        let make = |config: PoolConfig| {
            let config = PoolConfig { place: Place::threads(1), ..config };
            // Borders lie inside tiles.
            let borders = [0, config.vocab * 37 / 100, config.vocab * 71 / 100, config.vocab];
            let split =
                VocabSplit::of_sizes(&borders.array_windows().map(|[a, b]| b - a).collect::<Vec<_>>())?;
            Pools::over_ranks(
                split,
                || Ok(config.clone()),
                (TransportKind::Auto, Ownership::Blocks, &[LogitsLayout::Survey]),
                false,
            )
        };
        Self { is_twice: true, slowness: 100, ..Self::new("ranks", Box::new(make)) }
    }

    /// Makes the backend of a pool on a device.
    #[cfg(feature = "cuda")]
    #[must_use]
    pub fn on_device(name: &'static str, device: Device) -> Self {
        let make = move |config| {
            let (device, rows) = (device.clone(), 2 * TOGETHER);
            let place = Place::Device { device, rows, history_growth: 1, keep_histories: false };
            Pools::new(PoolConfig { slots: TOGETHER, place, ..config })
        };
        let slowness = if name.contains("emulated") { 10 } else { 1 };
        Self { operators: None, slowness, ..Self::new(name, Box::new(make)) }
    }

    fn new(name: &'static str, make: Make) -> Self {
        let operators = Operators::new(None, None).expect("the machine has its best level");
        Self {
            name,
            make,
            pools: Mutex::default(),
            lacking: AtomicUsize::new(0),
            operators: Some(operators),
            is_twice: false,
            slowness: 1,
        }
    }

    /// Lets the oracle answer for cases that a device cannot compute, and counts them.
    fn or_oracle(&self, case: &Case, answer: Result<Observed>) -> Result<Observed> {
        match answer {
            Err(Error::Unavailable { resource: "CUDA kernel" | "hooks on a device", .. }) => {
                self.lacking.fetch_add(1, Ordering::Relaxed);
                Oracle.sample(case)
            }
            answer => answer,
        }
    }
}

impl Backend for Pooled {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn sample(&self, case: &Case) -> Result<Observed> {
        let answer = self.step(&[case]).and_then(|mut answers| answers.pop().expect("one case, one answer"));
        self.or_oracle(case, answer)
    }

    /// Writes what needs no sequence through the operators; the oracle answers for the rest, which is
    /// counted.
    fn write(&self, case: &Case, output: Output, to: Option<Dtype>) -> Result<(Vec<u32>, Status)> {
        let plain = case.prompt.is_empty() && case.output.is_empty() && case.mask.is_none();
        let here = plain && case.mu == case.params.initial_mu() && case.params.xtc_probability == 0.0;
        let Some(operators) = self.operators.as_ref().filter(|_| here) else {
            self.lacking.fetch_add(1, Ordering::Relaxed);
            return Oracle.write(case, output, to);
        };
        let (params, mut out) = (RowParams::new(&case.params), row_to_write(case, to));
        let matrix = LogitsMut::new(out.row_mut(), 1, case.vocab())?.with_kind(case.kind);
        let rows = Rows::of(Matrix::new(case.logits.row(), 1, case.vocab())?, case.kind);
        let rows: RowsInOut<'_> = if to.is_some() { (rows, matrix).into() } else { matrix.into() };
        let mut status = [Status::default()];
        let statuses = Some(status[..].as_mut().into());
        match output {
            Output::Probabilities => operators.probabilities(rows, &params, statuses),
            Output::Masked => operators.mask_logits(rows, &params, statuses),
        }?;
        Ok((out.bits(), status[0]))
    }

    fn judge(&self, trial: &Trial<'_>, judgement: Judgement) -> Result<Emitted> {
        let Some(operators) = &self.operators else {
            self.lacking.fetch_add(1, Ordering::Relaxed);
            return Oracle.judge(trial, judgement);
        };
        // The operator checks a batch, and so says more than the oracle.
        trial.judge(judgement)?;
        let Trial { tree, draft_probs, target_probs, vocab, .. } = *trial;
        let (n, is_chain) = (tree.drafts.len(), trial.chain(judgement).is_some());
        let trees = HostDraftTrees {
            trees: 1,
            drafts: n,
            vocab,
            draft_probs,
            draft_token_ids: tree.drafts,
            parents: tree.parents,
            target_probs,
        };
        let draws = Draws { draws: Some(trial.draw.into()), ..Draws::new(trial.seed, trial.position) };
        let (mut tokens, mut rows) = (vec![0; n + 1], vec![0; n + 1]);
        let (mut accepted, mut alone, mut status) = ([0], [0], [Status::default()]);
        let counts = DraftTreeCounts {
            accepted: Some(accepted[..].as_mut().into()),
            accepted_alone: is_chain.then(|| alone[..].as_mut().into()),
            statuses: Some(status[..].as_mut().into()),
            adds: false,
        };
        let trees = DraftTrees::Host { trees, tokens: &mut tokens, rows: Some(&mut rows) };
        operators.judge(trees, judgement, &draws, counts)?;
        let end = accepted[0] as usize + 1;
        assert!(tokens[end..].iter().all(|id| *id == NONE) && rows[end..].iter().all(|row| *row == -1));
        tokens.truncate(end);
        let rows = rows[..end].iter().map(|row| usize::try_from(*row).expect("a row")).collect();
        Ok(Emitted { rows, tokens, status: status[0], accepted_alone: is_chain.then_some(alone[0]) })
    }

    fn walk(&self, drafted: &Drafted) -> Result<Walked> {
        if drafted.is_hooked() && self.operators.is_none() {
            return match drafted.judgement {
                Some(_) => Oracle.walk(drafted),
                None => drafted.walk_by_rows(|case| self.sample(case)),
            };
        }
        self.with_pool(&[&drafted.root], true, |pool| walk(pool, drafted))
    }

    fn walk_hidden(&self, head: &HeadCase, drafted: &Drafted) -> Result<Walked> {
        let heads = Heads { given: Some(head.clone()), clusters: None };
        self.with_pool(&[&drafted.root], true, |pool| pool.with_heads(heads, |pool| walk(pool, drafted)))
    }

    fn clustered(&self, head: &HeadCase, clusters: &ClusterCase, case: &Case) -> Result<Observed> {
        let heads = Heads { given: Some(head.clone()), clusters: Some(clusters.clone()) };
        let answer = self.with_pool(&[case], true, |pool| {
            let answers = pool.with_heads(heads, |pool| Self::step_in(pool, &[case], true));
            answers?.pop().expect("one case, one answer")
        });
        self.or_oracle(case, answer)
    }

    fn draft(&self, case: &Case, words: DraftWords, count: usize) -> Result<Vec<i32>> {
        let drafts = self.with_pool(&[case], true, |pool| Ok(draft(pool, case, words, count)))?;
        drafts.unwrap_or_else(|| Oracle.draft(case, words, count))
    }

    fn patience(&self, count: u32) -> u32 {
        count.div_ceil(self.slowness)
    }

    fn lacking(&self) -> usize {
        self.lacking.load(Ordering::Relaxed)
    }

    fn sample_batch(&self, cases: &[Case]) -> Vec<Result<Observed>> {
        in_parts(
            self,
            cases,
            |case| case.kind,
            TOGETHER,
            |part| {
                let answers = part.iter().zip(self.step(part)?);
                Ok(answers.map(|(case, answer)| self.or_oracle(case, answer)).collect())
            },
        )
    }
}

impl Pooled {
    /// Steps cases of one vocabulary and type together. The outer error is the step's, the inner ones are
    /// the errors of admission.
    fn step(&self, cases: &[&Case]) -> Result<Vec<Result<Observed>>> {
        let step = |kept| self.with_pool(cases, kept, |pool| Self::step_in(pool, cases, kept));
        let answers = step(true)?;
        if self.is_twice {
            for (with, without) in answers.iter().zip(step(false)?) {
                let Ok(with) = with else { continue };
                let differences = differences(&without?, with);
                assert!(differences.is_empty(), "kept sets change\n{differences}of the cases\n{cases:?}");
            }
        }
        Ok(answers)
    }

    /// Lends a pool of the vocabulary of cases with capacity for their logprobs.
    fn with_pool<T>(
        &self,
        cases: &[&Case],
        kept: bool,
        work: impl FnOnce(&mut Pools) -> Result<T>,
    ) -> Result<T> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if pools.len() >= MOST {
            pools.clear();
        }
        let (vocab, widths) = (cases[0].vocab(), widths(cases));
        let kind = (vocab, widths.top_n, widths.ids, kept);
        let mut pool = match pools.remove(&kind) {
            Some(pool) => pool,
            None => (self.make)(PoolConfig { widths, kept, ..PoolConfig::new(vocab) })?,
        };
        let answer = work(&mut pool);
        pools.insert(kind, pool);
        answer
    }

    fn step_in(pool: &mut Pools, cases: &[&Case], kept: bool) -> Result<Vec<Result<Observed>>> {
        let admitted: Vec<Result<Slot>> = cases.iter().map(|case| resume(pool, case)).collect();
        let rows: Vec<(&Case, Slot)> = cases
            .iter()
            .zip(&admitted)
            .filter_map(|(case, slot)| Some((*case, *slot.as_ref().ok()?)))
            .collect();
        let mut out = Outputs::new();
        let stepped = step(pool, &rows, &mut out);
        let mut observed = rows.iter().enumerate().map(|(i, (case, slot))| {
            let seen = observe(case, &out, 2 * i);
            follows(pool, *slot, case, &seen);
            Observed { kept: seen.kept.filter(|_| kept), ..seen }
        });
        let answers = stepped
            .map(|()| admitted.iter().cloned().map(|slot| slot.map(|_| observed.next().expect("stepped"))));
        let answers = answers.map(Iterator::collect);
        for (_, slot) in &rows {
            pool.each(|pool| pool.release(*slot))?;
        }
        answers
    }
}

/// Returns the widths that the logprobs of cases need, as far as a pool may have them: a request that asks
/// for more is refused.
fn widths(cases: &[&Case]) -> Widths {
    let asked = || cases.iter().filter_map(|case| case.params.logprobs.as_ref());
    Widths {
        top_n: asked().map(|logprobs| logprobs.top_n as usize).max().unwrap_or(0).min(MAX_VOCAB),
        ids: asked().map(|logprobs| logprobs.ids.len()).max().unwrap_or(0),
    }
}

fn resume(pool: &mut Pools, case: &Case) -> Result<Slot> {
    let state = State {
        prompt: &case.prompt,
        output: &case.output,
        seed: case.seed,
        position: case.position,
        draw: case.draw,
        mu: case.mu,
    };
    let slot = pool.each(|pool| pool.resume(case.params.clone(), state))?;
    assert_eq!(pool.sequence(slot)?.state(), state, "a state comes back as it was given");
    Ok(slot)
}

/// Verifies the drafts of a request.
fn walk(pool: &mut Pools, drafted: &Drafted) -> Result<Walked> {
    let slot = resume(pool, &drafted.root)?;
    let walked = verify(pool, slot, drafted);
    pool.each(|pool| pool.release(slot))?;
    walked
}

/// Steps rows, a padding row after each.
fn step(pool: &mut Pools, rows: &[(&Case, Slot)], out: &mut Outputs) -> Result<()> {
    let Some((first, _)) = rows.first() else { return Ok(()) };
    let (vocab, stride) = (first.vocab(), first.vocab() + GAP);
    let slots: Vec<Slot> = rows.iter().flat_map(|(_, slot)| [*slot, PADDING]).collect();
    let forced: Vec<Option<u32>> = rows.iter().flat_map(|(case, _)| [case.forced, None]).collect();

    let hooks: Vec<_> =
        rows.iter().map(|(case, _)| case.hook.map(|hook| move |z: &mut [f32]| hook.apply(z))).collect();
    let hooks: Vec<Option<RowHook<'_>>> =
        hooks.iter().flat_map(|hook| [hook.as_ref().map(|hook| hook as RowHook<'_>), None]).collect();

    // Words that are missing forbid, as the zeros do that lines are filled up with.
    let width = rows.iter().filter_map(|(case, _)| Some(case.mask.as_ref()?.len())).max().unwrap_or(0).max(1);
    let mut words = vec![0; slots.len() * width];
    let mut present = vec![false; slots.len()];
    for (i, (case, _)) in rows.iter().enumerate() {
        if let Some(mask) = &case.mask {
            words[2 * i * width..][..mask.len()].copy_from_slice(mask);
            present[2 * i] = true;
        }
    }
    let masks = Masks::Host(HostMasks::new(&words, slots.len(), width, width)?.with_present(&present)?);
    let batch = Batch { masks, forced: &forced, hooks: &hooks, ..Batch::of(&slots) };

    macro_rules! step {
        ($dtype:ident, $hostile:expr) => {{
            let mut data = Vec::with_capacity(slots.len() * stride);
            for (case, _) in rows {
                let Row::$dtype(row) = case.logits.row() else { unreachable!("one type a step") };
                data.extend_from_slice(row);
                data.resize(data.len() + GAP + stride, $hostile);
            }
            let rows = Rows::of(HostMatrix::strided(&data, slots.len(), vocab, stride)?, first.kind);
            pool.call(&Work { rows, dtype: first.logits.dtype(), batch, drafts: None }, out)
        }};
    }
    match first.logits.row() {
        Row::F32(_) => step!(F32, f32::INFINITY),
        Row::Bf16(_) => step!(Bf16, bf16::INFINITY),
        Row::F16(_) => step!(F16, f16::INFINITY),
    }
}

/// Reads a row's answer, and holds the padding row after it to nothing.
fn observe(case: &Case, out: &Outputs, row: usize) -> Observed {
    let padding = row + 1;
    assert_eq!((out.tokens()[padding], out.statuses()[padding]), (NONE, 0), "padding yields nothing");
    assert!(out.kept(padding).is_empty(), "padding keeps nothing");
    read_row(case, out, row)
}

/// Holds a sequence to have taken its token.
fn follows(pool: &mut Pools, slot: Slot, case: &Case, seen: &Observed) {
    let sequence = pool.sequence(slot).expect("not yet released");
    let taken = usize::from(seen.token != NONE);
    let output = sequence.history().output();
    assert_eq!(output.len(), case.output.len() + taken, "a token joins the output");
    if taken == 1 {
        assert_eq!(output.last().copied(), Some(seen.token as u32), "the token joins the output");
        assert_eq!(sequence.mu().to_bits(), seen.mu.to_bits(), "the limit moves with the token");
    }
    assert_eq!(sequence.position(), case.position.wrapping_add(taken as u32), "the position moves by one");
}
