//! The CUDA backend: the kernels on a GPU, eagerly or in a graph, or emulated on the host.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gumball_cpu::Output;
use gumball_cuda::{
    Assignment, Buffer, Cache, DeviceSlice, DraftCounts, DraftIds, DraftRule, Dtype as CudaDtype, Emulator,
    Gpu, InitialState, IntType, Outputs, Prepared, Rows, Runtime, Step, StepInput, Variant, Workspace,
    WorkspaceLimits,
};
use gumball_spec::logprobs::{Logprobs, TokenLogprob};
use gumball_spec::request::check_hook;
use gumball_spec::verify::DraftTree;
use gumball_spec::verify::by_probabilities::{Emitted, Judgement, Trial};
use gumball_spec::verify::coupled::check_drafts;
use gumball_spec::{Error, Kind, NONE, Result, Row, SamplingParams, Status, Widths};
use half::{bf16, f16};

use crate::backend::{Backend, Oracle, draw_batch, draw_in_batches, in_parts};
use crate::case::{Case, Dtype};
use crate::draft_trees::Judger;
use crate::drafted::{Drafted, Walked};
use crate::head_case::{ClusterCase, HeadCase};
use crate::observed::{Observed, differences};

/// The rows of a single case: the case, padding, and the case again.
const TRIO: usize = 3;

/// Elements between the rows of a batch.
const GAP: usize = 3;

/// Rows of the padding in front of a request with drafts.
const FIRST: usize = 3;

/// How many draws go into a step.
const DRAWS: usize = 2048;

/// How many requests draw side by side where they do for long.
const REQUESTS: usize = 4096;

/// Workspaces that are kept at most.
const MOST: usize = 64;

/// The settings of a workspace: vocabulary, capacity for logprobs, rows, and whether it reports kept sets.
type Key = (usize, Widths, usize, bool);

/// A runtime with workspaces that are kept, so that anything that a row leaves there meets the next.
pub struct Cuda {
    name: &'static str,
    runtime: Arc<dyn Runtime>,
    /// Whether steps go through a graph.
    graphs: bool,
    /// Whether short sets are searched as long ones are.
    searching: bool,
    workspaces: Mutex<HashMap<Key, Workspace>>,
    /// Where trees are judged, once one was.
    judger: Mutex<Option<Judger>>,
    lacking: AtomicUsize,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {:?}", self.name, self.runtime)
    }
}

impl Cuda {
    /// Makes the backend of a name.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if this machine lacks what it needs.
    pub fn by_name(name: &str) -> Result<Self> {
        let made = |name: &'static str, runtime, graphs| Self {
            name,
            runtime,
            graphs,
            searching: name.ends_with("_searching"),
            workspaces: Mutex::default(),
            judger: Mutex::default(),
            lacking: AtomicUsize::new(0),
        };
        let opened = || Gpu::new(0, &Cache::user());
        let gpu = || -> Result<Arc<dyn Runtime>> { Ok(Arc::new(opened()?)) };
        match name {
            "cuda" => Ok(made("cuda", gpu()?, false)),
            "cuda_graph" => Ok(made("cuda_graph", gpu()?, true)),
            "cuda_searching" => Ok(made("cuda_searching", gpu()?, false)),
            "cuda_without_clusters" => {
                Ok(made("cuda_without_clusters", Arc::new(opened()?.without_clusters()), false))
            }
            _ => {
                let name =
                    if name.ends_with("_searching") { "cuda_emulated_searching" } else { "cuda_emulated" };
                let emulator = Emulator::new(&Cache::user());
                // Where there is no compiler tests are skipped; kernels that do not compile are a bug.
                if let Err(error @ gumball_cuda::Error::Compile { .. }) = &emulator {
                    panic!("{error}");
                }
                Ok(made(name, Arc::new(emulator?), false))
            }
        }
    }

    /// Returns the runtime.
    #[must_use]
    pub fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    /// Returns whether steps go through a graph.
    #[must_use]
    pub fn graphs(&self) -> bool {
        self.graphs
    }

    /// Returns a kept workspace, and makes it if there is none.
    fn workspace<'a>(&self, kept: &'a mut HashMap<Key, Workspace>, key: Key) -> Result<&'a mut Workspace> {
        if kept.len() >= MOST && !kept.contains_key(&key) {
            kept.clear();
        }
        Ok(match kept.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let (vocab, widths, rows, kept) = key;
                let limits = WorkspaceLimits { vocab, slots: rows + 1, rows, widths, kept };
                entry.insert(Workspace::new(Arc::clone(&self.runtime), limits)?)
            }
        })
    }

    /// Passes a batch through one step: cases of one vocabulary, type and capacity for logprobs; an absent
    /// one is padding. Without kept sets, rows that ask for little take kernels of their own.
    fn run(&self, cases: &[Option<&Case>], packed: &Packed, kept: bool) -> Result<Vec<Option<Observed>>> {
        let Packed { buffer, dtype, start, stride, count, lines } = packed;
        let case = cases.iter().flatten().next().expect("a batch has a case");
        let rows = || Rows::of(buffer, *dtype, *start, *count, case.vocab(), *stride);
        self.run_step(cases, lines, kept, |workspace| {
            workspace.fix(&StepInput::of(&rows()?.with_kind(case.kind)))
        })
    }

    /// Passes a batch through the step that `fix` makes, as [`Cuda::run`] does.
    pub(super) fn run_step<'b>(
        &self,
        cases: &[Option<&Case>],
        lines: &[u32],
        kept: bool,
        fix: impl FnOnce(&Workspace) -> Result<Step<'b>>,
    ) -> Result<Vec<Option<Observed>>> {
        let case = cases.iter().flatten().next().expect("a batch has a case");
        let prepared = cases.iter().map(|case| case.map(prepare).transpose()).collect::<Result<Vec<_>>>()?;
        let (vocab, widths) = (case.vocab(), widths(case));
        // One size serves batches of several, and slots are not the rows' numbers.
        let rows = cases.len().next_power_of_two();
        let slots: Vec<i32> =
            cases.iter().enumerate().map(|(row, case)| case.map_or(NONE, |_| (rows - row) as i32)).collect();
        let mut workspaces = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let workspace = self.workspace(&mut workspaces, (vocab, widths, rows, kept))?;
        for ((case, prepared), slot) in cases.iter().zip(&prepared).zip(&slots) {
            let (Some(case), Some(prepared)) = (case, prepared) else { continue };
            workspace.admit(*slot, prepared, &initial_state(case))?;
        }
        let forced = |case: &Option<&Case>| case.and_then(|case| case.forced).map_or(NONE, |id| id as i32);
        let forced: Vec<i32> = cases.iter().map(forced).collect();
        let masks: Vec<_> = cases.iter().map(|case| case.and_then(|case| case.mask.as_deref())).collect();
        let masks = if masks.iter().any(Option::is_some) { &masks[..] } else { &[] };
        workspace.assign(&Assignment {
            slots: &slots,
            forced: &forced,
            row_indices: lines,
            masks,
            ..Assignment::default()
        })?;

        let step = fix(workspace)?;
        let step = if self.searching { step.searching() } else { step };
        if self.graphs {
            workspace.replay(&workspace.capture(&[step])?)?;
        } else {
            workspace.enqueue(&step)?;
        }
        let outputs = workspace.results().outputs(cases.len())?;

        let mut seen = Vec::new();
        for (row, case) in cases.iter().enumerate() {
            let Some(case) = case else {
                let none = (outputs.token(row), outputs.status(row).0);
                assert_eq!(none, (NONE, 0), "padding yields nothing beside\n{:?}", cases[0]);
                seen.push(None);
                continue;
            };
            let moved = u32::from(outputs.token(row) != NONE);
            if cases.len() <= TRIO {
                let state = workspace.requests().state(slots[row])?;
                let wanted = case.position.wrapping_add(moved);
                assert_eq!(state.position, wanted, "the position moves with a token\n{case:?}");
                if let Some(history) = state.history {
                    let token = u32::try_from(outputs.token(row)).ok();
                    let ids = case.prompt.iter().chain(&case.output).copied().chain(token);
                    assert!(history.into_iter().eq(ids), "the history moves with a token\n{case:?}");
                }
            }
            seen.push(Some(observed(case, &outputs, row)));
        }
        Ok(seen)
    }

    /// Passes a case through a step twice, with padding between, its rows aligned differently.
    fn twice(&self, case: &Case) -> Result<Observed> {
        fn copies<T: Copy>(values: &[T]) -> Vec<T> {
            (0..TRIO).flat_map(|_| values.iter().copied().chain(values.first().copied())).collect()
        }
        let (buffer, start) = case.logits.buffer();
        let stride = buffer.vocab() + 1;
        let (buffer, dtype) = match buffer {
            Row::F32(values) => (Buffer::of(&self.runtime, &copies(values))?, CudaDtype::F32),
            Row::Bf16(values) => (Buffer::of(&self.runtime, &copies(values))?, CudaDtype::Bf16),
            Row::F16(values) => (Buffer::of(&self.runtime, &copies(values))?, CudaDtype::F16),
        };
        let packed = Packed { buffer, dtype, start, stride, count: TRIO, lines: vec![] };
        let trio = [Some(case), None, Some(case)];
        let seen = self.run(&trio, &packed, true)?;
        let [Some(one), _, Some(other)] = &seen[..] else { unreachable!("two cases, two answers") };
        let mut others = vec![("two slots", other.clone())];
        // Without lists of logprobs too, so that as many rules as may be hold kernels that serve less.
        let mut less = case.clone();
        if let Some(logprobs) = &mut less.params.logprobs {
            logprobs.top_n = 0;
            logprobs.ids.clear();
        }
        if prepare(&less)?.variant() < Variant::General {
            let trio = [Some(&less), None, Some(&less)];
            for mut lean in self.run(&trio, &packed, false)?.into_iter().flatten() {
                if let (Some(lean), Some(one)) = (&mut lean.logprobs, &one.logprobs) {
                    (lean.top, lean.ids) = (one.top.clone(), one.ids.clone());
                }
                others.push(("two variants", lean));
            }
        }
        for (what, other) in others {
            let differences = differences(one, &other);
            assert!(differences.is_empty(), "one case, {what}:\n{differences}{case:?}");
        }
        Ok(one.clone())
    }

    /// Verifies the drafts of a request after padding, and beside itself under another draw index.
    fn run_drafts(&self, drafted: &Drafted, kept: bool) -> Result<Walked> {
        let (drafts, parents) = drafted.tree();
        let (root, n) = (&drafted.root, drafts.len());
        let cases: Vec<Case> = (0..=n).map(|row| drafted.case(row, &[])).collect();
        let all: Vec<&Case> = std::iter::repeat_n(root, FIRST).chain(&cases).chain(&cases).collect();
        let packed = self.pack(&all, vec![])?;
        let rows = all.len().next_power_of_two();
        let (slots, counts) = ([NONE, rows as i32, 0], [FIRST - 1, n, n].map(|count| count as u32));

        let mut workspaces = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let workspace = self.workspace(&mut workspaces, (root.vocab(), widths(root), rows, kept))?;
        let prepared = Prepared::new(&root.params, root.vocab())?;
        for (slot, draw) in [(slots[1], root.draw), (slots[2], root.draw ^ 77)] {
            let start = InitialState { draw, history_growth: n + 1, ..initial_state(root) };
            workspace.admit(slot, &prepared, &start)?;
        }
        let forced: Vec<i32> = all.iter().map(|case| case.forced.map_or(NONE, |id| id as i32)).collect();
        let masks: Vec<_> = all.iter().map(|case| case.mask.as_deref()).collect();
        let masks = if masks.iter().any(Option::is_some) { &masks[..] } else { &[] };
        let rule = match drafted.judgement {
            Some(judgement) => DraftRule::Judged(judgement),
            None if drafted.greedy => DraftRule::Greedy,
            None => DraftRule::Coupled,
        };
        let drafts_of_all = Some(DraftCounts { counts: &counts, rule, batch_requests: &[] });
        workspace.assign(&Assignment {
            slots: &slots,
            forced: &forced,
            masks,
            drafts: drafts_of_all,
            ..Assignment::default()
        })?;
        // The drafts of padding are hostile; one of the two columns has 64 bits.
        let ids: Vec<i64> = [0, 1].into_iter().chain(drafts.repeat(2)).map(i64::from).collect();
        let parents = [&[9, i32::MIN], &parents[..], &parents[..]].concat();
        let (ids, parents) = (Buffer::of(&self.runtime, &ids)?, Buffer::of(&self.runtime, &parents)?);
        let count = FIRST - 1 + 2 * n;
        let on_device = DraftIds {
            ids: DeviceSlice::of(&ids, IntType::I64).first(count)?,
            parents: Some(DeviceSlice::of(&parents, IntType::I32).first(count)?),
            links: None,
            probs: None,
        };
        let probs = drafted.draft_probs.as_ref();
        let probs = probs.map(|probs| [&vec![f32::NAN; FIRST * root.vocab()], &probs[..], probs].concat());
        let probs = probs.map(|probs| Buffer::of(&self.runtime, &probs)).transpose()?;
        let rows_of = |buffer| Rows::of(buffer, CudaDtype::F32, 0, all.len(), root.vocab(), root.vocab());
        let on_device = DraftIds { probs: probs.as_ref().map(rows_of).transpose()?, ..on_device };
        let Packed { buffer, dtype, start, stride, .. } = &packed;
        let logits = Rows::of(buffer, *dtype, *start, all.len(), root.vocab(), *stride)?.with_kind(root.kind);
        let step = workspace.fix(&StepInput { drafts: Some(on_device), ..StepInput::of(&logits) })?;
        let step = if self.searching { step.searching() } else { step };
        if self.graphs {
            workspace.replay(&workspace.capture(&[step])?)?;
        } else {
            workspace.enqueue(&step)?;
        }

        let outputs = workspace.results().outputs(all.len())?;
        let (mut path, mut accepted) = (vec![0; all.len()], [0; 3]);
        workspace.results().read_walks(&mut path, &mut accepted)?;
        assert!(path[..FIRST].iter().all(|row| *row == u32::MAX), "padding yields nothing");
        let (mut walked, mut output) = (Walked::new(), Vec::new());
        for (place, row) in (FIRST..).zip(&path[FIRST..=FIRST + accepted[1] as usize]) {
            let row = *row as usize - FIRST;
            let seen = observed(&drafted.case(row, &output), &outputs, place);
            output.extend(u32::try_from(seen.token));
            walked.push((row, seen));
        }
        for place in (0..FIRST).chain(FIRST + walked.len()..FIRST + n + 1) {
            assert_eq!((outputs.token(place), outputs.status(place).0, path[place]), (NONE, 0, u32::MAX));
            assert!(outputs.kept(place, root.vocab()).is_none_or(|ids| ids.is_empty()));
        }
        let state = workspace.requests().state(slots[1])?;
        assert_eq!(state.position, root.position.wrapping_add(output.len() as u32));
        if let Some(history) = state.history {
            assert_eq!(history, [&root.prompt[..], &root.output, &output].concat());
        }
        Ok(walked)
    }

    /// Copies the rows of cases of one shape and type to the device; `lines` says which line each case reads.
    fn pack(&self, rows: &[&Case], lines: Vec<u32>) -> Result<Packed> {
        // The stride leaves a gap, so that only some rows lie on 16 bytes; what lies there must not be read.
        fn place<'a, T: Copy + 'a>(rows: impl Iterator<Item = &'a [T]>, gap: T) -> Vec<T> {
            rows.flat_map(|row| row.iter().copied().chain([gap; GAP])).collect()
        }
        macro_rules! packed {
            ($kind:ident, $gap:expr) => {
                place(
                    rows.iter().map(|case| match case.logits.row() {
                        Row::$kind(row) => row,
                        _ => unreachable!("cases of one type"),
                    }),
                    $gap,
                )
            };
        }
        let (buffer, dtype) = match rows[0].logits.row() {
            Row::F32(_) => (Buffer::of(&self.runtime, &packed!(F32, f32::INFINITY))?, CudaDtype::F32),
            Row::Bf16(_) => (Buffer::of(&self.runtime, &packed!(Bf16, bf16::INFINITY))?, CudaDtype::Bf16),
            Row::F16(_) => (Buffer::of(&self.runtime, &packed!(F16, f16::INFINITY))?, CudaDtype::F16),
        };
        Ok(Packed { buffer, dtype, start: 0, stride: rows[0].vocab() + GAP, count: rows.len(), lines })
    }

    /// Draws from a case's row by `REQUESTS` requests with seeds from `seed` on, step after step with no host
    /// work between but the reading of tokens, until there are `draws`; calls `see(seed, position, token)`
    /// for each.
    ///
    /// # Errors
    /// The runtime's errors.
    pub fn advance(
        &self,
        case: &Case,
        seed: u64,
        draws: u32,
        mut see: impl FnMut(u64, u32, i32),
    ) -> Result<()> {
        let prepared = prepare(case)?;
        let rows = REQUESTS.min(draws as usize);
        let limits =
            WorkspaceLimits { vocab: case.vocab(), slots: rows, rows, widths: widths(case), kept: false };
        let mut workspace = Workspace::new(Arc::clone(&self.runtime), limits)?;
        let slots: Vec<i32> = (0..rows as i32).collect();
        for slot in &slots {
            let start = InitialState {
                seed: seed + *slot as u64,
                position: case.position,
                ..InitialState::default()
            };
            workspace.admit(*slot, &prepared, &start)?;
        }
        let packed = self.pack(&[case], vec![0; rows])?;
        workspace.assign(&Assignment {
            slots: &slots,
            row_indices: &packed.lines,
            ..Assignment::default()
        })?;
        let line = Rows::of(&packed.buffer, packed.dtype, 0, 1, case.vocab(), packed.stride)?;
        let line = line.with_kind(case.kind);
        let step = [workspace.fix(&StepInput::of(&line))?];
        let graph = self.graphs.then(|| workspace.capture(&step)).transpose()?;
        for (number, _) in (0..draws).step_by(rows).enumerate() {
            match &graph {
                Some(graph) => workspace.replay(graph)?,
                None => workspace.enqueue(&step[0]).map(drop)?,
            }
            let outputs = workspace.results().outputs(rows)?;
            for slot in 0..rows {
                let position = case.position.wrapping_add(number as u32);
                see(seed + slot as u64, position, outputs.token(slot));
            }
        }
        Ok(())
    }
}

/// Rows in the device's memory.
struct Packed {
    buffer: Buffer,
    dtype: CudaDtype,
    /// The element at which the first row starts, how far rows are apart, and how many there are.
    start: usize,
    stride: usize,
    count: usize,
    /// The line each case reads; empty: line i for case i.
    lines: Vec<u32>,
}

pub(super) fn prepare(case: &Case) -> Result<Prepared> {
    let prepared = Prepared::new(&case.params, case.vocab())?;
    case.request().validate(case.vocab())?;
    let lacks = |what: &str| Err(Error::Unavailable { resource: "CUDA kernel", reason: what.to_owned() });
    if case.kind == Kind::Probabilities {
        case.params.check_kind(case.kind)?;
        check_hook(case.kind, case.hook.is_some())?;
    }
    if case.hook.is_some() {
        return lacks("a hook runs on the host");
    }
    Ok(prepared)
}

/// Returns the state of a case's request, with room for one more id.
fn initial_state(case: &Case) -> InitialState<'_> {
    InitialState {
        seed: case.seed,
        draw: case.draw,
        position: case.position,
        mu: case.mu,
        prompt: &case.prompt,
        output: &case.output,
        history_growth: 1,
        keep_history: false,
    }
}

/// The capacity for logprobs that a case needs.
fn widths(case: &Case) -> Widths {
    case.params.logprobs.as_ref().map_or_else(Widths::default, |logprobs| Widths {
        top_n: logprobs.top_n as usize,
        ids: logprobs.ids.len(),
    })
}

/// Reads a row of the outputs.
pub(crate) fn observed(case: &Case, outputs: &Outputs, row: usize) -> Observed {
    let layout = outputs.layout();
    let word = |section: std::ops::Range<usize>, place: usize| outputs.words()[section][place];
    let entry =
        |id: i32, logprob: u32, rank: u32| TokenLogprob { id, logprob: f32::from_bits(logprob), rank };
    let logprobs = case.params.logprobs.as_ref().map(|asked| Logprobs {
        token: entry(outputs.token(row), word(layout.logprobs(), row), word(layout.ranks(), row)),
        top: (0..asked.top_n as usize)
            .map(|place| {
                let at = row * asked.top_n as usize + place;
                let id = word(layout.top_ids(), at) as i32;
                let rank = if id == NONE { 0 } else { place as u32 + 1 };
                entry(id, word(layout.top_logprobs(), at), rank)
            })
            .collect(),
        ids: (0..asked.ids.len())
            .map(|place| {
                let at = row * asked.ids.len() + place;
                entry(asked.ids[place] as i32, word(layout.id_logprobs(), at), word(layout.id_ranks(), at))
            })
            .collect(),
    });
    // The device says which ids it kept; their order is the definition's.
    let kept = outputs.kept(row, case.vocab()).map(|ids| case.in_order(ids));
    Observed {
        token: outputs.token(row),
        status: outputs.status(row),
        temperature: outputs.temperature(row),
        mu: outputs.mu(row),
        kept,
        logprobs,
    }
}

impl Backend for Cuda {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    /// Samples through the kernels. The oracle answers for cases without a kernel, which are counted.
    fn sample(&self, case: &Case) -> Result<Observed> {
        match self.twice(case) {
            Err(Error::Unavailable { resource: "CUDA kernel", .. }) => {
                self.lacking.fetch_add(1, Ordering::Relaxed);
                Oracle.sample(case)
            }
            result => result,
        }
    }

    fn sample_batch(&self, cases: &[Case]) -> Vec<Result<Observed>> {
        in_parts(
            self,
            cases,
            |case| (widths(case), case.kind),
            usize::MAX,
            |part| {
                let batch: Vec<Option<&Case>> = part.iter().copied().map(Some).collect();
                let answers = self.run(&batch, &self.pack(part, vec![])?, true)?;
                Ok(answers.into_iter().map(|answer| Ok(answer.expect("a case, an answer"))).collect())
            },
        )
    }

    /// Verifies twice: with kept sets, and by the kernels that suffice without. Hooks run on the host, so
    /// rows that have some are taken one by one.
    fn walk(&self, drafted: &Drafted) -> Result<Walked> {
        let (drafts, parents) = drafted.tree();
        let tree = DraftTree { drafts: &drafts, parents: Some(&parents) };
        let is_block = drafted.judgement == Some(Judgement::Block);
        if is_block { tree.check_chain() } else { tree.check() }?;
        check_drafts(&drafted.root.params, drafts.len())?;
        if (0..=drafts.len()).any(|row| prepare(&drafted.case(row, &[])).is_err()) {
            return match drafted.judgement {
                Some(_) => Oracle.walk(drafted),
                None => drafted.walk_by_rows(|case| self.sample(case)),
            };
        }
        let (one, other) = (self.run_drafts(drafted, true)?, self.run_drafts(drafted, false)?);
        assert_eq!(one.len(), other.len(), "{drafted:?}");
        for ((row, one), (other_row, mut other)) in one.iter().zip(other) {
            other.kept.clone_from(&one.kept);
            let differences = differences(one, &other);
            assert!(*row == other_row && differences.is_empty(), "two variants:\n{differences}{drafted:?}");
        }
        Ok(one)
    }

    fn head(&self, case: &HeadCase) -> Result<Vec<u32>> {
        self.head_logits(case)
    }

    fn fast_head(&self, case: &HeadCase, params: &SamplingParams) -> Result<Option<Vec<u32>>> {
        self.fast_logits(case, params).map(Some)
    }

    fn certified(&self, head: &HeadCase, case: &Case) -> Result<Observed> {
        self.certified_row(head, case)
    }

    fn clustered(&self, head: &HeadCase, clusters: &ClusterCase, case: &Case) -> Result<Observed> {
        self.clustered_row(head, clusters, case)
    }

    /// The emulator takes a thousand times as long as a GPU, so it makes a twentieth of what a rule asks for.
    /// Of laws, which ask for many draws, it makes a sixtieth: its draws equal the CPU's, which makes all of
    /// them.
    fn patience(&self, count: u32) -> u32 {
        let is_law = count >= 10_000;
        if self.name.starts_with("cuda_emulated") {
            count.div_ceil(if is_law { 60 } else { 20 })
        } else {
            count
        }
    }

    /// A call copies its rows there and its results back.
    fn patience_one_by_one(&self, count: u32) -> u32 {
        self.patience(count).min(count.div_ceil(10))
    }

    /// Draws many rows in a step, all of which read one line.
    fn draws(&self, case: &Case, count: u32, vary: &dyn Fn(&mut Case, u32)) -> Result<Vec<i32>> {
        draw_in_batches(case, count, DRAWS, vary, |cases| {
            if prepare(case).is_err() {
                return draw_batch(self, cases);
            }
            let batch: Vec<Option<&Case>> = cases.iter().map(Some).collect();
            let packed = self.pack(&[case], vec![0; batch.len()])?;
            let seen = self.run(&batch, &packed, false)?;
            Ok(seen.into_iter().flatten().map(|seen| seen.token).collect())
        })
    }

    fn write(&self, case: &Case, output: Output, to: Option<Dtype>) -> Result<(Vec<u32>, Status)> {
        self.lacking.fetch_add(1, Ordering::Relaxed);
        Oracle.write(case, output, to)
    }

    fn judge(&self, trial: &Trial<'_>, judgement: Judgement) -> Result<Emitted> {
        let mut judger = self.judger.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *judger {
            Some(judger) => judger.judge(trial, judgement),
            none => none.insert(Judger::new(&self.runtime)?).judge(trial, judgement),
        }
    }

    fn lacking(&self) -> usize {
        self.lacking.load(Ordering::Relaxed)
    }
}
