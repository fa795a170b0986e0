//! The engine's pools as backends, on the host and on a device: each case is resumed in a slot, stepped, and looked at
//! afterwards.
//!
//! A single case is a batch of one row. A batch of cases is split by vocabulary and type, and each part is one
//! step, over the threads of a pool of the host, its rows strided, with a padding row behind every case.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use gumball_cpu::Output;
#[cfg(feature = "cuda")]
use gumball_engine::Device;
use gumball_engine::{
    Batch, DraftTreeCounts, DraftTrees, DraftWords, Drafts, Draws, HostDraftTrees, HostMasks, HostMatrix,
    Logits, LogitsMut, Masks, Matrix, Operators, Outputs, PADDING, Place, Pool, PoolConfig, Proposals,
    RowHook, RowParams, Rows, RowsInOut, SamplingParams, Scored, Sequence, Slot, State, VerifyMode, Widths,
    bf16, f16,
};
use gumball_spec::verify::by_probabilities::{Emitted, Judgement, Trial};
use gumball_spec::{Error, MAX_VOCAB, NONE, Result, Row, Status};

use super::heads::Heads;
#[cfg(feature = "cuda")]
use super::on_device::OnDevice;
use super::ranks::Ranks;
use super::read_row::read_row;
use super::verbs::Verbs;
#[cfg(feature = "cuda")]
use super::verbs::Work;
use super::verified::verify;
use super::{Backend, Oracle, in_parts, row_to_write};
use crate::case::{Case, Dtype};
use crate::drafted::{Drafted, Walked};
use crate::head_case::{ClusterCase, HeadCase};
use crate::observed::Observed;

/// Elements between rows, which hold what would win every draw.
const GAP: usize = 13;

/// Pools that are kept at most.
const MOST: usize = 64;

/// What a pool was made for: vocabulary and capacity for logprobs.
type Key = (usize, usize, usize);

/// Cases that are stepped together at most.
const TOGETHER: usize = 128;

impl Verbs for Pool {
    const ASSIGNS: bool = true;
    const PROPOSES: bool = true;

    fn hooks(&self) -> bool {
        is_on_host(self)
    }

    fn admit(&mut self, params: SamplingParams, prompt: &[u32]) -> Result<Slot> {
        self.admit(params, prompt)
    }

    fn push(&mut self, slot: Slot, id: u32) -> Result<()> {
        self.push(slot, id)
    }

    fn shorten(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()> {
        self.shorten(slots, counts)
    }

    fn score(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        scored: &Scored<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        self.score(rows, batch, scored, out)
    }

    fn resume(&mut self, params: SamplingParams, state: State<'_>) -> Result<Slot> {
        self.resume(params, state)
    }

    fn sequence(&mut self, slot: Slot) -> Result<&Sequence> {
        Self::sequence(self, slot)
    }

    fn step(&mut self, rows: Rows<'_>, batch: &Batch<'_>, out: &mut Outputs) -> Result<()> {
        self.step(rows, batch, out)
    }

    fn release(&mut self, slot: Slot) -> Result<()> {
        self.release(slot)
    }

    fn fork(&mut self, slot: Slot, draw: u32) -> Result<Slot> {
        self.fork(slot, draw)
    }

    fn verify(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        self.verify(rows, batch, drafts, out)
    }

    fn propose(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        paths: &[i32],
        out: &mut Proposals,
    ) -> Result<()> {
        self.draft(rows, batch, paths, out)
    }

    fn enqueue(&mut self, work: &Work<'_>, _out: &mut Outputs) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(device) = self.device() {
            let rows = OnDevice::of(device, work, self.vocab())?;
            self.assign(&work.batch)?;
            return self.enqueue(&[rows.work_with_host_drafts()?]);
        }
        self.assign(&work.batch)?;
        self.enqueue(&[work.of_engine()])
    }

    fn assign(&mut self, work: &Work<'_>) -> Result<()> {
        self.assign(&work.batch)
    }

    fn enqueue_assigned(&mut self, work: &Work<'_>, _out: &mut Outputs) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(device) = self.device() {
            let rows = OnDevice::of(device, work, self.vocab())?;
            return self.enqueue(&[rows.work()?]);
        }
        self.enqueue(&[work.of_engine()])
    }

    fn fetch(&mut self, out: &mut Outputs) -> Result<()> {
        self.fetch(out)
    }

    fn replay(&mut self, work: &Work<'_>, turns: &[Vec<Slot>], out: &mut Outputs) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let Some(device) = self.device() {
            let rows = OnDevice::of(device, work, self.vocab())?;
            let Some(first) = turns.first() else { return Ok(()) };
            Verbs::assign(self, &work.of_slots(first))?;
            let graph = self.capture(&[rows.work()?])?;
            for slots in turns {
                Verbs::assign(self, &work.of_slots(slots))?;
                self.replay(&graph)?;
            }
            return Ok(());
        }
        turns.iter().try_for_each(|slots| Verbs::enqueue(self, &work.of_slots(slots), out))
    }

    fn enqueue_shorten(&mut self, _slots: &[Slot], counts: &[u32]) -> Result<()> {
        let counts: Vec<i32> = counts.iter().map(|count| *count as i32).collect();
        self.enqueue(&[gumball_engine::Work::Shorten((&counts).into())])
    }
}

fn is_on_host(pool: &Pool) -> bool {
    pool.level().is_some()
}

/// Draws drafts for a case, if the pool has a verb for that: the last tokens of the output are the path.
fn draft<P: Verbs>(pool: &mut P, case: &Case, words: DraftWords, count: usize) -> Option<Result<Vec<i32>>> {
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
    if !P::PROPOSES || case.hook.is_some() && !pool.hooks() || !path.iter().all(is_token) {
        return None;
    }
    let mut of = |root: &Case, mode| {
        let slot = resume(pool, root)?;
        let drafts = drafts(pool, slot, case, &path, mode, count);
        pool.release(slot)?;
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

/// Draws drafts behind a path, in a batch with padding, and with another path of the same request that must not matter.
fn drafts(
    pool: &mut impl Verbs,
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
    pool.propose(rows, &batch, &ids, &mut out)?;
    assert!(out.row(0).iter().all(|draft| *draft == NONE), "padding has no drafts");
    Ok(out.row(1).to_vec())
}

/// Makes a pool of a vocabulary, with capacity for logprobs.
type Make<P> = Box<dyn Fn(usize, Widths) -> Result<P> + Send + Sync>;

/// A pool of the engine.
pub struct Pooled<P> {
    name: &'static str,
    make: Make<P>,
    pools: Mutex<HashMap<Key, P>>,
    lacking: AtomicUsize,
    /// What writes rows and judges drafts; a device has no means for that yet.
    operators: Option<Operators>,
    /// Whether its pools take hooks.
    hooks: bool,
}

impl<P> fmt::Debug for Pooled<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Pooled<Pool> {
    /// Makes the backend of the pool of the host, at the machine's best level and over rayon's threads.
    #[must_use]
    pub fn on_host() -> Self {
        let make = |vocab, widths| Pool::new(PoolConfig { widths, ..PoolConfig::new(vocab) });
        let operators = Some(Operators::new(None, None).expect("the machine has its best level"));
        Self { operators, ..Self::new("pool", Box::new(make)) }
    }
}

impl Pooled<Heads> {
    /// Makes the backend of a pool of the host whose rows come from hidden states, by a certified head.
    #[must_use]
    pub fn on_hidden_states() -> Self {
        let make = |vocab, widths| {
            Ok(Heads::new(Pool::new(PoolConfig {
                widths,
                place: Place::threads(1),
                ..PoolConfig::new(vocab)
            })?))
        };
        let operators = Some(Operators::new(None, None).expect("the machine has its best level"));
        Self { operators, ..Self::new("pool_hidden", Box::new(make)) }
    }
}

impl Pooled<Ranks> {
    /// Makes the backend of a pool over ranks.
    #[must_use]
    pub fn on_ranks() -> Self {
        let make = |vocab, widths| Ranks::new(&PoolConfig { widths, ..PoolConfig::new(vocab) });
        let operators = Some(Operators::new(None, None).expect("the machine has its best level"));
        Self { operators, ..Self::new("ranks", Box::new(make)) }
    }
}

#[cfg(feature = "cuda")]
impl Pooled<Pool> {
    /// Makes the backend of a pool on a device.
    #[must_use]
    pub fn on_device(name: &'static str, device: Device) -> Self {
        let make = move |vocab, widths| {
            let (slots, rows) = (TOGETHER, 2 * TOGETHER);
            let device = device.clone();
            let place = Place::Device { device, rows, history_growth: 1, keep_histories: false };
            Pool::new(PoolConfig { slots, widths, kept: true, place, ..PoolConfig::new(vocab) })
        };
        Self { hooks: false, ..Self::new(name, Box::new(make)) }
    }
}

impl<P> Pooled<P> {
    fn new(name: &'static str, make: Make<P>) -> Self {
        Self {
            name,
            make,
            pools: Mutex::default(),
            lacking: AtomicUsize::new(0),
            operators: None,
            hooks: true,
        }
    }

    /// Lets the oracle answer for what a device has no means for, and counts that.
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

impl<P: Verbs> Backend for Pooled<P> {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn sample(&self, case: &Case) -> Result<Observed> {
        let answer = self.step(&[case]).and_then(|mut answers| answers.pop().expect("one case, one answer"));
        self.or_oracle(case, answer)
    }

    /// Writes what needs no sequence through the operators; the oracle answers for the rest, which is counted.
    fn write(&self, case: &Case, output: Output, to: Option<Dtype>) -> Result<(Vec<u32>, Status)> {
        let plain = case.prompt.is_empty() && case.output.is_empty() && case.mask.is_none();
        let here = plain && case.mu == case.params.initial_mu() && case.params.xtc_probability == 0.0;
        let Some(operators) = self.operators.as_ref().filter(|_| here) else {
            self.lacking.fetch_add(1, Ordering::Relaxed);
            return Oracle.write(case, output, to);
        };
        let (params, mut out) = (RowParams::new(&case.params), row_to_write(case, to));
        let matrix = LogitsMut::new(out.row_mut(), 1, case.vocab())?.with_kind(case.kind);
        let rows = Logits::new(case.logits.row(), 1, case.vocab())?.with_kind(case.kind);
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
        if drafted.is_hooked() && !self.hooks {
            return match drafted.judgement {
                Some(_) => Oracle.walk(drafted),
                None => drafted.walk_by_rows(|case| self.sample(case)),
            };
        }
        let case = &drafted.root;
        self.with_pool(case.vocab(), widths(&[case]), |pool| {
            let slot = resume(pool, case)?;
            let walked = verify(pool, slot, drafted);
            pool.release(slot)?;
            walked
        })
    }

    fn walk_hidden(&self, head: &HeadCase, drafted: &Drafted) -> Result<Walked> {
        let case = &drafted.root;
        self.with_pool(case.vocab(), widths(&[case]), |pool| {
            let slot = resume(pool, case)?;
            pool.give_head(Some(head));
            let walked = verify(pool, slot, drafted);
            pool.give_head(None);
            pool.release(slot)?;
            walked
        })
    }

    fn clustered(&self, head: &HeadCase, clusters: &ClusterCase, case: &Case) -> Result<Observed> {
        let answer = self.with_pool(case.vocab(), widths(&[case]), |pool| {
            pool.give_head(Some(head));
            pool.give_clusters(Some(clusters));
            let answers = Self::step_in(pool, &[case]);
            pool.give_clusters(None);
            pool.give_head(None);
            answers?.pop().expect("one case, one answer")
        });
        self.or_oracle(case, answer)
    }

    fn draft(&self, case: &Case, words: DraftWords, count: usize) -> Result<Vec<i32>> {
        let draft = |pool: &mut P| Ok(draft(pool, case, words, count));
        let drafts = self.with_pool(case.vocab(), widths(&[case]), draft)?;
        drafts.unwrap_or_else(|| Oracle.draft(case, words, count))
    }

    fn patience(&self, count: u32) -> u32 {
        count.div_ceil(P::SLOWNESS)
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

impl<P: Verbs> Pooled<P> {
    /// Steps cases of one vocabulary and type together. The outer error is the step's, the inner ones are those
    /// of admission.
    fn step(&self, cases: &[&Case]) -> Result<Vec<Result<Observed>>> {
        self.with_pool(cases[0].vocab(), widths(cases), |pool| Self::step_in(pool, cases))
    }

    /// Lends a pool of a vocabulary with capacity for logprobs.
    fn with_pool<T>(
        &self,
        vocab: usize,
        widths: Widths,
        work: impl FnOnce(&mut P) -> Result<T>,
    ) -> Result<T> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if pools.len() >= MOST {
            pools.clear();
        }
        let kind = (vocab, widths.top_n, widths.ids);
        let mut pool = match pools.remove(&kind) {
            Some(pool) => pool,
            None => (self.make)(vocab, widths)?,
        };
        let answer = work(&mut pool);
        pools.insert(kind, pool);
        answer
    }

    fn step_in(pool: &mut P, cases: &[&Case]) -> Result<Vec<Result<Observed>>> {
        let admitted: Vec<Result<Slot>> = cases.iter().map(|case| resume(pool, case)).collect();
        let rows: Vec<(&Case, Slot)> = cases
            .iter()
            .zip(&admitted)
            .filter_map(|(case, slot)| Some((*case, *slot.as_ref().ok()?)))
            .collect();
        let mut out = Outputs::with_kept();
        let stepped = step(pool, &rows, &mut out);
        let mut observed = rows.iter().enumerate().map(|(i, (case, slot))| {
            let seen = observe(case, &out, 2 * i);
            follows(pool, *slot, case, &seen);
            seen
        });
        let answers = stepped
            .map(|()| admitted.iter().cloned().map(|slot| slot.map(|_| observed.next().expect("stepped"))));
        let answers = answers.map(Iterator::collect);
        for (_, slot) in &rows {
            pool.release(*slot)?;
        }
        answers
    }
}

/// Returns the widths that the logprobs of cases need, as far as a pool may have them: a request that asks for more is refused.
fn widths(cases: &[&Case]) -> Widths {
    let asked = || cases.iter().filter_map(|case| case.params.logprobs.as_ref());
    Widths {
        top_n: asked().map(|logprobs| logprobs.top_n as usize).max().unwrap_or(0).min(MAX_VOCAB),
        ids: asked().map(|logprobs| logprobs.ids.len()).max().unwrap_or(0),
    }
}

fn resume(pool: &mut impl Verbs, case: &Case) -> Result<Slot> {
    let state = State {
        prompt: &case.prompt,
        output: &case.output,
        seed: case.seed,
        position: case.position,
        draw: case.draw,
        mu: case.mu,
    };
    let slot = pool.resume(case.params.clone(), state)?;
    assert_eq!(pool.sequence(slot)?.state(), state, "a state comes back as it was given");
    Ok(slot)
}

/// Steps rows, a padding row behind each.
fn step(pool: &mut impl Verbs, rows: &[(&Case, Slot)], out: &mut Outputs) -> Result<()> {
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
            pool.step(
                Rows::of(HostMatrix::strided(&data, slots.len(), vocab, stride)?, first.kind),
                &batch,
                out,
            )
        }};
    }
    match first.logits.row() {
        Row::F32(_) => step!(F32, f32::INFINITY),
        Row::Bf16(_) => step!(Bf16, bf16::INFINITY),
        Row::F16(_) => step!(F16, f16::INFINITY),
    }
}

/// Reads a row's answer, and holds the padding row behind it to nothing.
fn observe(case: &Case, out: &Outputs, row: usize) -> Observed {
    let padding = row + 1;
    assert_eq!((out.tokens()[padding], out.statuses()[padding]), (NONE, 0), "padding yields nothing");
    assert!(out.kept(padding).is_empty(), "padding keeps nothing");
    read_row(case, out, row)
}

/// Holds a sequence to have taken its token.
fn follows(pool: &mut impl Verbs, slot: Slot, case: &Case, seen: &Observed) {
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
