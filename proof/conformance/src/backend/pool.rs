//! The engine's pools as backends, on the host and on a device.
//!
//! A single case is a batch of one row. A batch of cases is split by vocabulary and type, and each part is
//! one step, over the threads of a pool of the host, its rows strided, with a padding row after every case.
//! On a device a case is stepped twice: from rows that lie there, with kept sets; and from the host's, asking
//! for as little as may be, so that as many bodies as may be hold the kernels that serve less.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use gumball_cpu::Output;
#[cfg(feature = "cuda")]
use gumball_cuda::{Prepared, Variant};
use gumball_engine::dist::{LogitsLayout, Ownership, TransportKind, VocabSplit};
use gumball_engine::unstable::DraftWords;
use gumball_engine::{
    Batch, DraftTreeCounts, DraftTrees, Draws, HostDraftTrees, LogitsMut, Matrix, Operators, Outputs, Place,
    PoolConfig, RowParams, Rows, RowsInOut, Widths,
};
use gumball_spec::verify::by_probabilities::{Emitted, Judgement, Trial};
use gumball_spec::{MAX_VOCAB, NONE, Result, SamplingParams, Status};

#[cfg(feature = "cuda")]
use super::device;
use super::drafting::draft;
use super::heads::Heads;
use super::pools::{Feed, Pools};
use super::steps::{resume, step_in, take_step};
use super::verified::verify;
use super::work::Work;
use super::{Backend, DRAWS, Oracle, draw_batch, draw_in_batches, in_parts, is_law, row_to_write};
use crate::case::{Case, Dtype};
use crate::drafted::{Drafted, Walked};
use crate::head_case::{ClusterCase, HeadCase};
use crate::observed::{Observed, differences};

/// Pools that are kept at most.
const MOST: usize = 64;

/// The settings of a pool: vocabulary, capacity for logprobs, and whether kept sets are told.
type Key = (usize, usize, usize, bool);

/// Cases that are stepped together at most.
const TOGETHER: usize = 128;

/// Makes the pools of a place.
type Make = Box<dyn Fn(PoolConfig) -> Result<Pools> + Send + Sync>;

/// Pools of the engine.
pub struct Pooled {
    name: &'static str,
    make: Make,
    pools: Mutex<HashMap<Key, Pools>>,
    lacking: AtomicUsize,
    /// What writes rows and judges drafts on the host.
    operators: Operators,
    /// The place of the pools, unless it is the host.
    #[cfg(feature = "cuda")]
    pub(super) place: Option<device::Place>,
    /// How a device gets its work with kept sets, and without.
    feeds: [Feed; 2],
    /// Whether steps are taken by a pool that tells no kept sets, too: other rows are decided by a part of
    /// their logits then.
    is_twice: bool,
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
        Self { is_twice: true, ..Self::new("ranks", Box::new(make)) }
    }

    /// Makes the backend of pools on the device of a name: with `_graph` each step is captured and replayed,
    /// with `_searching` short kept sets are searched as long ones are.
    ///
    /// # Errors
    /// The errors of [`device::device`].
    #[cfg(feature = "cuda")]
    pub fn on_device(name: &'static str) -> Result<Self> {
        let (device, searches) = (device::device(name)?, name.ends_with("_searching"));
        let place = device.clone();
        let make = move |config| {
            // More rows than the 256 hidden states that a fast head multiplies at once.
            let (device, rows) = (place.clone(), 3 * TOGETHER);
            let place = Place::Device { device, rows, history_growth: 1, keep_histories: false };
            let mut pools = Pools::new(PoolConfig { slots: rows, place, ..config })?;
            pools.each(|pool| {
                pool.set_searching(searches);
                Ok(())
            })?;
            Ok(pools)
        };
        Ok(Self {
            place: Some(device::Place::new(device)),
            feeds: match name {
                "cuda_graph" => [Feed::Graph; 2],
                // No other backend captures steps on the emulator.
                "cuda_emulated_searching" => [Feed::Graph, Feed::Host],
                _ => [Feed::Device, Feed::Host],
            },
            ..Self::new(name, Box::new(make))
        })
    }

    fn new(name: &'static str, make: Make) -> Self {
        let operators = Operators::new(None, None).expect("the machine has its best level");
        Self {
            name,
            make,
            pools: Mutex::default(),
            lacking: AtomicUsize::new(0),
            operators,
            #[cfg(feature = "cuda")]
            place: None,
            feeds: [Feed::Host; 2],
            is_twice: false,
        }
    }

    /// Returns whether the pools are on a device.
    fn is_on_device(&self) -> bool {
        #[cfg(feature = "cuda")]
        return self.place.is_some();
        #[cfg(not(feature = "cuda"))]
        false
    }

    /// Lets the oracle answer in place of a pool that has no means for that, and counts it.
    fn by_oracle<T>(&self, answer: impl FnOnce(Oracle) -> Result<T>) -> Result<T> {
        self.lacking.fetch_add(1, Ordering::Relaxed);
        answer(Oracle)
    }

    /// Holds a step without kept sets, and without lists of logprobs, to what a step with all of them gave,
    /// if other kernels serve it.
    #[cfg(feature = "cuda")]
    fn hold_less(&self, case: &Case, all: &Observed) -> Result<()> {
        let mut less = case.clone();
        if let Some(logprobs) = &mut less.params.logprobs {
            logprobs.top_n = 0;
            logprobs.ids.clear();
        }
        if Prepared::new(&less.params, less.vocab())?.variant() == Variant::General {
            return Ok(());
        }
        let mut seen = self.step_once(&[&less], false)?.pop().expect("one case, one answer")?;
        if let (Some(seen), Some(all)) = (&mut seen.logprobs, &all.logprobs) {
            (seen.top, seen.ids) = (all.top.clone(), all.ids.clone());
        }
        let differences = differences(all, &seen);
        assert!(differences.is_empty(), "asking for less changes\n{differences}of the case\n{case:?}");
        Ok(())
    }
}

impl Backend for Pooled {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn sample(&self, case: &Case) -> Result<Observed> {
        if self.is_on_device() && case.hook.is_some() {
            return self.by_oracle(|oracle| oracle.sample(case));
        }
        let seen = self.step(&[case])?.pop().expect("one case, one answer")?;
        #[cfg(feature = "cuda")]
        if self.is_on_device() {
            self.hold_less(case, &seen)?;
        }
        Ok(seen)
    }

    /// Writes what needs no sequence through the operators; the oracle answers for the rest, which is
    /// counted.
    fn write(&self, case: &Case, output: Output, to: Option<Dtype>) -> Result<(Vec<u32>, Status)> {
        let plain = case.prompt.is_empty() && case.output.is_empty() && case.mask.is_none();
        // A section may keep its end out of the first tokens.
        let plain = plain && case.params.section.is_none();
        let here = plain && case.mu == case.params.initial_mu() && case.params.xtc_probability == 0.0;
        if !here {
            return self.by_oracle(|oracle| oracle.write(case, output, to));
        }
        #[cfg(feature = "cuda")]
        if let Some(place) = &self.place {
            return match place.write(case, output, to) {
                // Operators on a device take no biases and no bans.
                Err(gumball_spec::Error::Unavailable { .. }) => {
                    self.by_oracle(|oracle| oracle.write(case, output, to))
                }
                written => written,
            };
        }
        let (params, mut out) = (RowParams::new(&case.params), row_to_write(case, to));
        let matrix = LogitsMut::new(out.row_mut(), 1, case.vocab())?.with_kind(case.kind);
        let rows = Rows::of(Matrix::new(case.logits.row(), 1, case.vocab())?, case.kind);
        let rows: RowsInOut<'_> = if to.is_some() { (rows, matrix).into() } else { matrix.into() };
        let mut status = [Status::default()];
        let statuses = Some(status[..].as_mut().into());
        match output {
            Output::Probabilities => self.operators.probabilities(rows, &params, statuses),
            Output::Masked => self.operators.mask_logits(rows, &params, statuses),
        }?;
        Ok((out.bits(), status[0]))
    }

    fn judge(&self, trial: &Trial<'_>, judgement: Judgement) -> Result<Emitted> {
        #[cfg(feature = "cuda")]
        if let Some(place) = &self.place {
            return place.judge(trial, judgement);
        }
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
        self.operators.judge(trees, judgement, &draws, counts)?;
        let end = accepted[0] as usize + 1;
        assert!(tokens[end..].iter().all(|id| *id == NONE) && rows[end..].iter().all(|row| *row == -1));
        tokens.truncate(end);
        let rows = rows[..end].iter().map(|row| usize::try_from(*row).expect("a row")).collect();
        Ok(Emitted { rows, tokens, status: status[0], accepted_alone: is_chain.then_some(alone[0]) })
    }

    fn walk(&self, drafted: &Drafted) -> Result<Walked> {
        if drafted.is_hooked() && self.is_on_device() {
            return match drafted.judgement {
                Some(_) => self.by_oracle(|oracle| oracle.walk(drafted)),
                None => drafted.walk_by_rows(|case| self.sample(case)),
            };
        }
        let verify = |kept| self.with_pool(&[&drafted.root], kept, |pool| walk(pool, drafted));
        let less = if self.is_on_device() { Some(verify(false)?) } else { None };
        let walked = verify(true)?;
        if let Some(less) = less {
            assert_eq!(walked.len(), less.len(), "{drafted:?}");
            for ((row, one), (other_row, other)) in walked.iter().zip(less) {
                let differences = differences(one, &Observed { kept: None, ..other });
                let is_same = *row == other_row && differences.is_empty();
                assert!(is_same, "without kept sets:\n{differences}{drafted:?}");
            }
        }
        Ok(walked)
    }

    fn walk_hidden(&self, head: &HeadCase, drafted: &Drafted) -> Result<Walked> {
        let heads = Heads { given: Some(head.clone()), clusters: None };
        self.with_pool(&[&drafted.root], true, |pool| pool.with_heads(heads, |pool| walk(pool, drafted)))
    }

    fn head(&self, case: &HeadCase) -> Result<Vec<u32>> {
        #[cfg(feature = "cuda")]
        if let Some(place) = &self.place {
            return self.head_there(place, case);
        }
        case.by_the_oracle()
    }

    fn fast_head(
        &self,
        case: &HeadCase,
        clusters: Option<&ClusterCase>,
        params: &SamplingParams,
    ) -> Result<Option<Vec<u32>>> {
        #[cfg(feature = "cuda")]
        if let Some(place) = &self.place {
            return self.fast_head_there(place, (case, clusters), params).map(Some);
        }
        let _ = (case, clusters, params);
        Ok(None)
    }

    fn certified(&self, head: &HeadCase, case: &Case) -> Result<Observed> {
        #[cfg(feature = "cuda")]
        if let Some(place) = self.place.as_ref().filter(|_| case.hook.is_none()) {
            return self.certified_there(place, head, case);
        }
        let _ = head;
        Ok(Observed { kept: None, ..self.by_oracle(|oracle| oracle.sample(case))? })
    }

    fn clustered(&self, head: &HeadCase, clusters: &ClusterCase, case: &Case) -> Result<Observed> {
        #[cfg(feature = "cuda")]
        if let Some(place) = &self.place {
            return match case.hook {
                None => self.clustered_there(place, (head, clusters), case),
                Some(_) => self.sample(case),
            };
        }
        let heads = Heads { given: Some(head.clone()), clusters: Some(clusters.clone()) };
        self.with_pool(&[case], true, |pool| {
            let answers = pool.with_heads(heads, |pool| step_in(pool, &[case], true));
            answers?.pop().expect("one case, one answer")
        })
    }

    fn draft(&self, case: &Case, words: DraftWords, count: usize) -> Result<Vec<i32>> {
        let drafts = self.with_pool(&[case], true, |pool| Ok(draft(pool, case, words, count)))?;
        drafts.unwrap_or_else(|| self.by_oracle(|oracle| oracle.draft(case, words, count)))
    }

    /// The emulator takes a thousand times as long as a GPU, so it makes a twentieth of what a rule asks for.
    /// Of the many draws of a law it makes one in 200, and the pool of hidden states one in ten: the CPU's
    /// pool draws the same tokens, and as many as the law asks for.
    fn patience(&self, count: u32) -> u32 {
        count.div_ceil(match self.name {
            "ranks" => 100,
            "pool_hidden" if is_law(count) => 10,
            name if !name.contains("emulated") => 1,
            _ if is_law(count) => 200,
            _ => 20,
        })
    }

    /// A call on a device copies its rows there and its results back.
    fn patience_one_by_one(&self, count: u32) -> u32 {
        self.patience(count).min(if self.is_on_device() { count.div_ceil(10) } else { count })
    }

    /// Draws many rows of a device in a step, all of which read one line.
    fn draws(&self, case: &Case, count: u32, vary: &dyn Fn(&mut Case, u32)) -> Result<Vec<i32>> {
        if !self.is_on_device() || case.hook.is_some() {
            return draw_in_batches(case, count, DRAWS, vary, |cases| draw_batch(self, cases));
        }
        draw_in_batches(case, count, 2 * TOGETHER, vary, |cases| {
            let line = Rows::of(Matrix::new(case.logits.row(), 1, case.vocab())?, case.kind);
            let (rows, lines): (Vec<Option<&Case>>, _) =
                (cases.iter().map(Some).collect(), vec![0; cases.len()]);
            let seen = self.take_step(&rows, |pool, batch, out| {
                let batch = Batch { row_indices: &lines, ..batch };
                pool.call(&Work { rows: line, dtype: case.logits.dtype(), batch, drafts: None }, out)
            })?;
            Ok(seen.into_iter().flatten().map(|seen| seen.token).collect())
        })
    }

    fn lacking(&self) -> usize {
        self.lacking.load(Ordering::Relaxed)
    }

    fn sample_batch(&self, cases: &[Case]) -> Vec<Result<Observed>> {
        in_parts(self, cases, |case| case.kind, TOGETHER, |part| self.step(part))
    }
}

impl Pooled {
    /// Steps cases of one vocabulary and type together. The outer error is the step's, the inner ones are
    /// the errors of admission.
    fn step(&self, cases: &[&Case]) -> Result<Vec<Result<Observed>>> {
        let answers = self.step_once(cases, true)?;
        if self.is_twice {
            for (with, without) in answers.iter().zip(self.step_once(cases, false)?) {
                let Ok(with) = with else { continue };
                let differences = differences(&without?, with);
                assert!(differences.is_empty(), "kept sets change\n{differences}of the cases\n{cases:?}");
            }
        }
        Ok(answers)
    }

    fn step_once(&self, cases: &[&Case], kept: bool) -> Result<Vec<Result<Observed>>> {
        self.with_pool(cases, kept, |pool| step_in(pool, cases, kept))
    }

    /// Takes a step of cases in a pool without kept sets: a row for each, and padding for an absent one.
    pub(super) fn take_step(
        &self,
        cases: &[Option<&Case>],
        take: impl FnOnce(&mut Pools, Batch<'_>, &mut Outputs) -> Result<()>,
    ) -> Result<Vec<Option<Observed>>> {
        let there: Vec<&Case> = cases.iter().copied().flatten().collect();
        self.with_pool(&there, false, |pool| {
            let mut admit = |case: &Case| resume(pool, case);
            let rows = cases.iter().map(|case| case.map(|case| Ok((case, admit(case)?))).transpose());
            let rows: Vec<_> = rows.collect::<Result<_>>()?;
            take_step(pool, &rows, false, take)
        })
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
        pool.feed = self.feeds[usize::from(!kept)];
        let answer = work(&mut pool);
        pools.insert(kind, pool);
        answer
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

/// Verifies the drafts of a request.
fn walk(pool: &mut Pools, drafted: &Drafted) -> Result<Walked> {
    let slot = resume(pool, &drafted.root)?;
    let walked = verify(pool, slot, drafted);
    pool.each(|pool| pool.release(slot))?;
    walked
}
