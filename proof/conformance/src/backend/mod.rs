//! Backends: places where the stages run, with one interface.

#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod device_heads;
mod drafting;
pub mod heads;
#[cfg(feature = "cuda")]
mod on_device;
mod pool;
pub mod pools;
mod read_row;
mod steps;
mod verified;
pub mod work;

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use gumball_cpu::{History, Level, Output, Prepared, Task, Workspace};
use gumball_spec::verify::DraftTree;
use gumball_spec::verify::by_probabilities::{Emitted, Judgement, Trial};
use gumball_spec::verify::coupled::{RowEdits, coupled, greedy};
use gumball_spec::verify::draft::{DraftWords, draft};
use gumball_spec::verify::judged::{Drafts, judged};
use gumball_spec::{Error, Forced, Request, Result, Row, SamplingParams, Status, oracle};

use crate::case::{Case, Dtype, Logits};
use crate::drafted::{Drafted, Walked};
use crate::head_case::{ClusterCase, HeadCase};
use crate::observed::{Observed, differences};

#[cfg(feature = "cuda")]
pub use device::device;
pub use pool::Pooled;
#[cfg(feature = "cuda")]
pub(crate) use read_row::read_row;

/// A place where the stages run.
pub trait Backend: fmt::Debug + Send + Sync {
    /// Returns its name.
    fn name(&self) -> String;

    /// Passes one row through all stages.
    ///
    /// # Errors
    /// The errors of the oracle, under the same conditions.
    fn sample(&self, case: &Case) -> Result<Observed>;

    /// Writes the output of a row, as the bits of each number: to a type, or in the row's place. With its
    /// status.
    ///
    /// # Errors
    /// The errors of the oracle, under the same conditions.
    fn write(&self, case: &Case, output: Output, to: Option<Dtype>) -> Result<(Vec<u32>, Status)>;

    /// Verifies drafts by the tokens drawn from the rows after them, or by the probabilities of these: row by
    /// row, where a backend has no verb for that. The oracle answers where it has none and drafts are judged
    /// by probabilities.
    ///
    /// # Errors
    /// The errors of the oracle, under the same conditions.
    fn walk(&self, drafted: &Drafted) -> Result<Walked> {
        if drafted.judgement.is_some() {
            return Oracle.walk(drafted);
        }
        drafted.walk_by_rows(|case| self.sample(case))
    }

    /// Judges a tree of drafts, or a chain, by probabilities. The oracle answers for a backend that has no
    /// operator for that.
    ///
    /// # Errors
    /// The errors of the oracle, under the same conditions.
    fn judge(&self, trial: &Trial<'_>, judgement: Judgement) -> Result<Emitted> {
        trial.judge(judgement)
    }

    /// Draws drafts from the row of a case. The oracle answers for a backend that drafts from no row.
    ///
    /// # Errors
    /// The errors of the oracle, under the same conditions.
    fn draft(&self, case: &Case, words: DraftWords, count: usize) -> Result<Vec<i32>> {
        case.with_hook(|hook| draft(case.logits.row(), &case.request(), words, count, hook))
    }

    /// Returns the bits of the logits of hidden states, `[rows, vocab]`. The oracle answers for a backend
    /// without heads.
    ///
    /// # Errors
    /// The errors of the oracle, under the same conditions.
    fn head(&self, case: &HeadCase) -> Result<Vec<u32>> {
        case.by_the_oracle()
    }

    /// Returns the bits of the logits that a fast head makes of hidden states, `[rows, vocab]`, after holding
    /// a step on them to the oracle's. With clusters the head is a fast clustered one. `None` from a backend
    /// without fast heads.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a scaling outside its range, and for weights of f32.
    fn fast_head(
        &self,
        _case: &HeadCase,
        _clusters: Option<&ClusterCase>,
        _params: &SamplingParams,
    ) -> Result<Option<Vec<u32>>> {
        Ok(None)
    }

    /// Samples the row of a head by a certified head: `case` is the request, with the logits of the first
    /// hidden state, which the head does not see. The kept set is left out. A backend without heads takes the
    /// logits.
    ///
    /// # Errors
    /// The errors of the oracle, under the same conditions.
    fn certified(&self, _head: &HeadCase, case: &Case) -> Result<Observed> {
        Ok(Observed { kept: None, ..Oracle.sample(case)? })
    }

    /// Samples the row of a head by a clustered head, from the first hidden state: `case` is the request,
    /// with the logits of the definition's row, which the head does not see. A backend without heads takes
    /// the logits.
    ///
    /// # Errors
    /// The errors of the oracle, under the same conditions.
    fn clustered(&self, _head: &HeadCase, _clusters: &ClusterCase, case: &Case) -> Result<Observed> {
        self.sample(case)
    }

    /// Verifies drafts from hidden states: the head's are the request's rows, in turn, and the drafts'
    /// rows hold their logits. A backend without heads takes these.
    ///
    /// # Errors
    /// The errors of the oracle, under the same conditions.
    fn walk_hidden(&self, _head: &HeadCase, drafted: &Drafted) -> Result<Walked> {
        self.walk(drafted)
    }

    /// Returns how many rows the backend had no means for, and left to the oracle.
    fn lacking(&self) -> usize {
        0
    }

    /// Passes rows through all stages as one batch.
    fn sample_batch(&self, cases: &[Case]) -> Vec<Result<Observed>> {
        cases.iter().map(|case| self.sample(case)).collect()
    }

    /// Returns how many draws shall be made where a law would like `count`; fewer where a draw takes long.
    fn patience(&self, count: u32) -> u32 {
        count
    }

    /// Returns how many drafts shall be judged one after the other where a law would like `count`: fewer than
    /// [`Backend::patience`] where a call takes long though many calls at once would not.
    fn patience_one_by_one(&self, count: u32) -> u32 {
        self.patience(count)
    }

    /// Draws `count` tokens of a case; `vary` gives it the seed, the position and the draw index of each.
    ///
    /// # Errors
    /// The errors of [`Backend::sample`].
    fn draws(&self, case: &Case, count: u32, vary: &dyn Fn(&mut Case, u32)) -> Result<Vec<i32>> {
        draw_in_batches(case, count, DRAWS, vary, |cases| draw_batch(self, cases))
    }
}

/// Draws of a case that are made in one batch.
const DRAWS: usize = 512;

/// Draws a token of each case.
pub(crate) fn draw_batch(backend: &(impl Backend + ?Sized), cases: &[Case]) -> Result<Vec<i32>> {
    backend.sample_batch(cases).into_iter().map(|seen| Ok(seen?.token)).collect()
}

/// Draws a case's tokens by `draw`, at most `most` in a batch.
pub(crate) fn draw_in_batches(
    case: &Case,
    count: u32,
    most: usize,
    vary: &dyn Fn(&mut Case, u32),
    draw: impl Fn(&[Case]) -> Result<Vec<i32>>,
) -> Result<Vec<i32>> {
    let mut batch = vec![case.clone(); most.min(count as usize)];
    let mut tokens = Vec::with_capacity(count as usize);
    for first in (0..count).step_by(most) {
        batch.truncate((count - first) as usize);
        batch.iter_mut().zip(first..).for_each(|(case, i)| vary(case, i));
        tokens.extend(draw(&batch)?);
    }
    Ok(tokens)
}

/// Answers cases in parts of one vocabulary and type, and of one `key`, each of at most `most`: as few as
/// that allows. `answer` has an answer for each case of a part, or an error for the part, and then each case
/// answers for itself.
pub(crate) fn in_parts<K: Eq + Hash>(
    backend: &(impl Backend + ?Sized),
    cases: &[Case],
    key: impl Fn(&Case) -> K,
    most: usize,
    answer: impl Fn(&[&Case]) -> Result<Vec<Result<Observed>>>,
) -> Vec<Result<Observed>> {
    let mut parts: HashMap<_, Vec<usize>> = HashMap::new();
    for (place, case) in cases.iter().enumerate() {
        let dtype = std::mem::discriminant(&case.logits.row());
        parts.entry((case.vocab(), dtype, key(case))).or_default().push(place);
    }
    let mut seen: Vec<Option<Result<Observed>>> = cases.iter().map(|_| None).collect();
    for places in parts.values().flat_map(|places| places.chunks(most)) {
        let part: Vec<&Case> = places.iter().map(|place| &cases[*place]).collect();
        // A step is refused whole.
        let answers = answer(&part);
        let answers = answers.unwrap_or_else(|_| part.iter().map(|case| backend.sample(case)).collect());
        for (place, answer) in places.iter().zip(answers) {
            seen[*place] = Some(answer);
        }
    }
    seen.into_iter().map(|answer| answer.expect("every case is in a part")).collect()
}

/// The definition itself: what every other backend is held to.
#[derive(Clone, Copy, Debug)]
pub struct Oracle;

impl Backend for Oracle {
    fn name(&self) -> String {
        "oracle".to_owned()
    }

    fn sample(&self, case: &Case) -> Result<Observed> {
        let outcome = case.with_hook(|hook| oracle::sample(case.logits.row(), &case.request(), hook))?;
        Ok(Observed::of(&outcome))
    }

    fn write(&self, case: &Case, output: Output, to: Option<Dtype>) -> Result<(Vec<u32>, Status)> {
        // No token is emitted, so its section forces none.
        let request = Request { forced: Some(Forced::known(0)), ..case.request() };
        let outcome = oracle::sample(case.logits.row(), &request, None)?;
        let values = match output {
            Output::Probabilities => outcome.probabilities(),
            Output::Masked => outcome.masked(),
        };
        let dtype = to.unwrap_or_else(|| case.logits.dtype());
        Ok((Logits::new(dtype, &values).bits(), outcome.status))
    }

    fn walk(&self, drafted: &Drafted) -> Result<Walked> {
        let (drafts, parents) = drafted.tree();
        let tree = DraftTree { drafts: &drafts, parents: Some(&parents) };
        let mut edit =
            |row: usize, z: &mut [f32]| drafted.hook(row).into_iter().for_each(|hook| hook.apply(z));
        let edits: Option<RowEdits<'_>> = if drafted.is_hooked() { Some(&mut edit) } else { None };
        let (root, rows) = (drafted.root.request(), drafted.rows());
        let walk = match drafted.judgement {
            Some(judgement) => {
                let drafts = Drafts { tree, probs: drafted.draft_probs.as_deref() };
                judged(&root, &drafts, &rows, judgement, edits)
            }
            None if drafted.greedy => greedy(&root, &tree, &rows, edits),
            None => coupled(&root, &tree, &rows, edits),
        }?;
        Ok(walk.rows.iter().copied().zip(walk.outcomes.iter().map(Observed::of)).collect())
    }
}

/// Returns a row of zeros to write to: of a type, or the row of a case.
fn row_to_write(case: &Case, to: Option<Dtype>) -> Logits {
    match to {
        Some(dtype) => Logits::new(dtype, &vec![f32::NAN; case.vocab()]),
        None => case.logits.clone(),
    }
}

/// Returns whether as many draws as `count` are asked for to hold a law.
fn is_law(count: u32) -> bool {
    count >= 10_000
}

/// Below this many tokens the CPU lists what it filters; so few that small rows are searched as well.
const SEARCH_FROM: usize = 3;

/// The CPU at one level. One workspace serves all rows, so that anything that a row leaves there meets the
/// next.
#[derive(Debug)]
pub struct Cpu {
    workspace: Mutex<Workspace>,
    name: String,
}

impl Cpu {
    /// Makes a backend of a level of this machine.
    ///
    /// # Errors
    /// The errors of [`Level::check`].
    pub fn new(level: Level) -> Result<Self> {
        Ok(Self { workspace: Mutex::new(Workspace::new(level)?), name: level.to_string() })
    }

    /// Makes a backend of a level of this machine that searches even short rows, as it does long ones.
    ///
    /// # Errors
    /// The errors of [`Level::check`].
    pub fn searching(level: Level) -> Result<Self> {
        let workspace = Workspace::with_list_limit(level, SEARCH_FROM)?;
        Ok(Self { workspace: Mutex::new(workspace), name: format!("{level}_searching") })
    }
}

impl Backend for Cpu {
    fn name(&self) -> String {
        self.name.clone()
    }

    /// Where a law asks for many draws, a level makes one draw of ten: its draws equal the oracle's, which
    /// makes all of them, as a pool does. A search takes several times as long as a list of the same row,
    /// which other backends have.
    fn patience(&self, count: u32) -> u32 {
        count.div_ceil(match self.name.ends_with("_searching") {
            _ if is_law(count) => 10,
            true => 4,
            false => 1,
        })
    }

    /// Samples twice, without the kept set and with it, which takes other paths to the same end.
    ///
    /// # Panics
    /// If the two differ.
    fn sample(&self, case: &Case) -> Result<Observed> {
        let (prepared, history) = prepare(case)?;
        let task = task(case, &prepared, &history);
        let mut workspace = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pass = |collects_kept| pass(&mut workspace, case, case.logits.row(), &task, collects_kept);
        let (without, with) = (pass(false)?, pass(true)?);
        let differences = differences(&without, &with);
        assert!(
            differences.is_empty(),
            "asking for the kept set changes\n{differences}of the case\n{case:?}"
        );
        Ok(with)
    }

    fn write(&self, case: &Case, output: Output, to: Option<Dtype>) -> Result<(Vec<u32>, Status)> {
        let (prepared, history) = prepare(case)?;
        let task = task(case, &prepared, &history);
        let mut workspace = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = row_to_write(case, to);
        let written = match to {
            Some(_) => workspace.write(case.logits.row(), &task, None, output, out.row_mut())?,
            None => workspace.write_in_place(out.row_mut(), &task, output)?,
        };
        Ok((out.bits(), written.status))
    }

    fn draft(&self, case: &Case, words: DraftWords, count: usize) -> Result<Vec<i32>> {
        let (prepared, history) = prepare(case)?;
        let task = task(case, &prepared, &history);
        let mut workspace = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        let mut drafts = vec![7; count];
        case.with_hook(|hook| workspace.draft(case.logits.row(), &task, hook, words, &mut drafts))?;
        Ok(drafts)
    }

    fn head(&self, case: &HeadCase) -> Result<Vec<u32>> {
        let level = self.workspace.lock().unwrap_or_else(PoisonError::into_inner).level();
        case.by_the_cpu(level)
    }

    fn certified(&self, head: &HeadCase, case: &Case) -> Result<Observed> {
        let (prepared, history) = prepare(case)?;
        let task = task(case, &prepared, &history);
        let mut workspace = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        let row = head.certified_row(workspace.level(), &task, case.hook.is_some())?;
        pass(&mut workspace, case, Row::F32(&row), &task, false)
    }

    fn clustered(&self, head: &HeadCase, clusters: &ClusterCase, case: &Case) -> Result<Observed> {
        let level = self.workspace.lock().unwrap_or_else(PoisonError::into_inner).level();
        let row = head.clustered_row(clusters, level)?;
        self.sample(&Case { logits: Logits::new(Dtype::F32, &row), ..case.clone() })
    }

    fn judge(&self, trial: &Trial<'_>, judgement: Judgement) -> Result<Emitted> {
        let mut workspace = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        workspace.judge(trial, judgement)
    }
}

/// Passes a row through all stages, with the hook of a case.
fn pass(
    workspace: &mut Workspace,
    case: &Case,
    row: Row<'_>,
    task: &Task<'_>,
    collects_kept: bool,
) -> Result<Observed> {
    workspace.collect_kept(collects_kept);
    let chosen = case.with_hook(|hook| workspace.sample(row, task, hook))?;
    Ok(Observed {
        token: chosen.token,
        status: chosen.status,
        temperature: chosen.temperature,
        mu: chosen.mu,
        kept: collects_kept.then(|| workspace.kept().to_vec()),
        logprobs: workspace.logprobs().cloned(),
    })
}

/// Validates what a case is drawn by.
fn prepare(case: &Case) -> Result<(Prepared, History)> {
    let prepared = Prepared::new(case.params.clone(), case.vocab())?;
    let mut history = History::of(&prepared, &case.prompt);
    case.output.iter().for_each(|id| history.push(*id));
    Ok((prepared, history))
}

/// Returns a case as the CPU takes it.
fn task<'a>(case: &'a Case, prepared: &'a Prepared, history: &'a History) -> Task<'a> {
    Task {
        kind: case.kind,
        prepared,
        history,
        seed: case.seed,
        position: case.position,
        draw: case.draw,
        mu: case.mu,
        mask: case.mask.as_deref(),
        forced: case.forced.map(Forced::by_caller),
    }
}

/// Returns the backends of this machine, the oracle first.
#[must_use]
pub fn available() -> Vec<Box<dyn Backend>> {
    NAMES.iter().filter_map(|name| by_name(name).ok()).collect()
}

/// The names of all backends.
pub const NAMES: [&str; 20] = [
    "oracle",
    "scalar",
    "avx2",
    "avx512",
    "neon",
    "simd128",
    "scalar_searching",
    "avx2_searching",
    "avx512_searching",
    "neon_searching",
    "simd128_searching",
    "pool",
    "pool_hidden",
    "ranks",
    "cuda_emulated",
    "cuda_emulated_searching",
    "cuda",
    "cuda_graph",
    "cuda_searching",
    "cuda_without_clusters",
];

/// Returns a backend of this machine by its name.
///
/// # Errors
/// - [`Error::Unknown`] if no backend has the name.
/// - [`Error::OutOfRange`] or [`Error::Unavailable`] if this machine lacks it.
pub fn by_name(name: &str) -> Result<Box<dyn Backend>> {
    let known = || Error::Unknown { parameter: "backend", name: name.to_owned(), known: NAMES.join(", ") };
    let name = *NAMES.iter().find(|known| **known == name).ok_or_else(known)?;
    match name.strip_suffix("_searching") {
        #[cfg(feature = "cuda")]
        _ if name.starts_with("cuda") => Ok(Box::new(Pooled::on_device(name)?)),
        #[cfg(not(feature = "cuda"))]
        _ if name.starts_with("cuda") => Err(lacking("device", "this program was compiled without CUDA")),
        Some(level) => Ok(Box::new(Cpu::searching(level.parse()?)?)),
        None if name == "oracle" => Ok(Box::new(Oracle)),
        None if name == "ranks" && cfg!(target_family = "wasm") => {
            Err(lacking("ranks", "each is a thread, and WebAssembly has one"))
        }
        None if name == "ranks" => Ok(Box::new(Pooled::on_ranks())),
        None if name == "pool" => Ok(Box::new(Pooled::on_host())),
        None if name == "pool_hidden" => Ok(Box::new(Pooled::on_hidden_states())),
        None => Ok(Box::new(Cpu::new(name.parse()?)?)),
    }
}

/// Returns the error for what this program or its machine has not.
fn lacking(resource: &'static str, reason: &str) -> Error {
    Error::Unavailable { resource, reason: reason.to_owned() }
}
