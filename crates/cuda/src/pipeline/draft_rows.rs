//! The rows of drafts: each follows the drafts on the path to it, and has a request of its own there.
//!
//! A step over such rows is a step like any other, over other tables: `begin_drafts` fills these from the
//! requests in the slots, and `end_drafts` advances those by what was emitted. The drafts are read on the
//! device; the host knows how many each request has.

use std::ops::Range;
use std::sync::Arc;

use gumball_spec::verify::MAX_DRAFTS;
use gumball_spec::verify::by_probabilities::{Judgement, check_draft_probs};
use gumball_spec::{Error, Result};

use crate::abi::dtype::{ColumnType, Dtype, IntType};
use crate::abi::{
    self, DIGEST_RUNS_APART, DigestDrafts, DraftLinks, DraftRequest, DraftRow, DraftStep, Params, Request,
    Slot, State, draft_flags, link_flags,
};
use crate::driver::runtime::Runtime;
use crate::launch::tuning;
use crate::memory::buffer::{Buffer, ROWS};
use crate::memory::columns::{DeviceSlice, SIGNED};
use crate::memory::rows::Rows;
use crate::pipeline::judged_rows::JudgedRows;
use crate::requests::request_table::Requests;

/// Names, in errors, the memory for what rows copy of their requests.
const LISTS: &str = "memory for the lists of drafts";

/// How many drafts each request of an assignment has, and by which rule they are accepted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftCounts<'a> {
    /// For each slot the number of drafts, in 0..=64. Its request has one row more.
    pub counts: &'a [u32],
    /// The rule.
    pub rule: DraftRule,
    /// The place of each request in the batch, whose drafts are handed over in that order; empty if the
    /// requests are assigned in it.
    pub batch_requests: &'a [u32],
}

/// The rule by which drafts are accepted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DraftRule {
    /// A draft is accepted if it is the token that its row draws (S3).
    Coupled,
    /// As `Coupled`, with rows drawn from at temperature 0.
    Greedy,
    /// Drafts are judged by the probabilities of their rows (S5 to S7). A request without drafts takes a
    /// step.
    Judged(Judgement),
}

impl DraftRule {
    /// Returns the mode of a verification by this rule, as errors name it.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Judged(judgement) => format!("{judgement:?}"),
            Self::Coupled | Self::Greedy => format!("{self:?}"),
        }
    }

    /// Returns how drafts are judged by probabilities, if they are.
    #[must_use]
    pub fn judgement(self) -> Option<Judgement> {
        match self {
            Self::Coupled | Self::Greedy => None,
            Self::Judged(judgement) => Some(judgement),
        }
    }

    /// Returns the bits of `DraftStep::flags`.
    fn flags(self) -> u32 {
        match self {
            Self::Coupled | Self::Greedy => 0,
            Self::Judged(Judgement::Block) => draft_flags::JUDGED | draft_flags::BLOCK,
            Self::Judged(_) => draft_flags::JUDGED,
        }
    }
}

/// The drafts of all requests of a step, in device memory: those of one request after those of another.
#[derive(Clone, Copy, Debug)]
pub struct DraftIds<'b> {
    /// The draft tokens, of 32 or 64 bits. One outside the vocabulary is never accepted.
    pub ids: DeviceSlice<'b>,
    /// For each draft its parent in the tree of its request: -1 for the end of the history, or the number of
    /// a draft of the same request before it. `None`: each draft follows the one before it.
    pub parents: Option<DeviceSlice<'b>>,
    /// The trees as links between rows instead of `parents`, as SGLang and TokenSpeed hold them: for each row
    /// of the step its first child and its next sibling, as the number of a row of the same request, after
    /// this one, or -1.
    pub links: Option<[DeviceSlice<'b>; 2]>,
    /// The probabilities that the drafts were drawn from, in f32: a row for each row of the step, of which
    /// those without a draft after them are not read. `None`: the drafter has none. Only
    /// [`Judgement::Rejection`] and [`Judgement::Block`] read them.
    pub probs: Option<Rows<'b>>,
}

/// The addresses of drafts, as a step keeps them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DraftAddresses {
    ids: u64,
    parents: u64,
    /// Those of first children and next siblings; 0 if there are none.
    links: [u64; 2],
    /// Bits of `DraftLinks::flags`.
    link_flags: u32,
    /// The drafter's rows of probabilities and their stride in elements; 0 if it has none.
    pub probs: [u64; 2],
    /// Bits of `DraftStep::flags`.
    pub flags: u32,
}

/// The drafts of a step that verifies some.
#[derive(Clone, Debug)]
pub(crate) struct StepDrafts {
    pub addresses: DraftAddresses,
    pub rule: DraftRule,
    /// Which of the assigned requests the step is over, and the first of their rows.
    pub requests: Range<usize>,
    pub first_row: usize,
}

/// Where the paths in front of the rows of a draft model lie: the address of their ids, how many ids lie from
/// one to the next, and bits of `DraftStep::flags`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DraftPaths {
    pub ids: u64,
    pub stride: u32,
    pub flags: u32,
}

impl DraftCounts<'_> {
    /// Returns the number of rows of `requests` requests with these drafts.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not one count per request, or not one place where there are places.
    /// - [`Error::OutOfRange`] for more than 64 drafts, and for places that are not each request's own.
    pub(crate) fn rows(&self, requests: usize) -> Result<usize> {
        let places = self.batch_requests.len();
        for (parameter, length) in [("counts", self.counts.len()), ("batch_requests", places)] {
            if length != requests && (parameter == "counts" || length > 0) {
                return Err(Error::length(parameter, length, format!("one per slot, {requests}")));
            }
        }
        let mut is_taken = vec![false; places];
        for place in self.batch_requests {
            if is_taken.get_mut(*place as usize).is_none_or(|taken| std::mem::replace(taken, true)) {
                let allowed = format!("in 0..{requests}, each once");
                return Err(Error::out_of_range("batch_requests", place, allowed));
            }
        }
        match self.counts.iter().find(|count| **count as usize > MAX_DRAFTS) {
            Some(count) => Err(Error::out_of_range("counts", count, format!("in 0..={MAX_DRAFTS}"))),
            None => Ok(requests + self.counts.iter().map(|count| *count as usize).sum::<usize>()),
        }
    }

    /// Returns where the drafts of each request begin among those of the batch, and its rows.
    fn places(&self) -> Vec<(u32, u32)> {
        let mut in_batch: Vec<usize> = (0..self.counts.len()).collect();
        if !self.batch_requests.is_empty() {
            in_batch.sort_unstable_by_key(|request| self.batch_requests[*request]);
        }
        let (mut places, mut drafts) = (vec![(0, 0); in_batch.len()], 0);
        for (place, request) in in_batch.into_iter().enumerate() {
            places[request] = (drafts, drafts + place as u32);
            drafts += self.counts[request];
        }
        places
    }
}

impl DraftPaths {
    /// Returns the addresses of the drafts in front of the rows.
    pub(crate) fn addresses(&self) -> DraftAddresses {
        let flags = self.flags | draft_flags::PROPOSED;
        DraftAddresses { ids: self.ids, flags, ..DraftAddresses::default() }
    }
}

impl DraftIds<'_> {
    /// Checks types and lengths, and returns the addresses. A step has `rows` rows of `vocab` elements for
    /// `requests` requests.
    pub(crate) fn addresses(
        &self,
        (requests, rows, vocab): (usize, usize, usize),
        rule: DraftRule,
    ) -> Result<DraftAddresses> {
        let drafts = rows - requests;
        let is_64_bit = |column: &DeviceSlice<'_>| column.dtype == ColumnType::Int(IntType::I64);
        if self.parents.is_some() && self.links.is_some() {
            let reason = "a tree is held one way or the other";
            return Err(Error::Conflict { parameter: "parents", other: "first_child", reason });
        }
        let [first_child, next_sibling] =
            self.links.as_ref().map_or([None; 2], |links| links.each_ref().map(Some));
        let columns = [
            ("ids", Some(&self.ids), drafts),
            ("parents", self.parents.as_ref(), drafts),
            ("first_child", first_child, rows),
            ("next_sibling", next_sibling, rows),
        ];
        for (parameter, column, count) in columns {
            let Some(column) = column else { continue };
            column.check_type(parameter, SIGNED)?;
            if column.rows() != count {
                let of = if count == drafts {
                    "the sum of the counts"
                } else {
                    "one per request and one per draft"
                };
                return Err(Error::length(parameter, column.rows(), format!("{count}, {of}")));
            }
        }
        let probs = self.probs.as_ref().map(|probs| check_probs(probs, (rows, vocab), rule)).transpose()?;
        let flags = [
            (is_64_bit(&self.ids), draft_flags::IDS_I64),
            (self.parents.as_ref().is_some_and(is_64_bit), draft_flags::PARENTS_I64),
        ];
        let link_flags = [
            (first_child.is_some_and(is_64_bit), link_flags::FIRST_CHILD_I64),
            (next_sibling.is_some_and(is_64_bit), link_flags::NEXT_SIBLING_I64),
        ];
        let bits =
            |flags: [(bool, u32); 2]| flags.iter().filter(|(on, _)| *on).fold(0, |bits, (_, bit)| bits | bit);
        Ok(DraftAddresses {
            ids: self.ids.at(0),
            parents: self.parents.map_or(0, |parents| parents.at(0)),
            links: self.links.map_or([0; 2], |links| links.map(|links| links.at(0))),
            link_flags: bits(link_flags),
            probs: probs.unwrap_or([0; 2]),
            flags: bits(flags),
        })
    }
}

/// Checks the drafter's rows of a step, and returns their address and their stride.
fn check_probs(probs: &Rows<'_>, (rows, vocab): (usize, usize), rule: DraftRule) -> Result<[u64; 2]> {
    check_draft_probs("probs", rule.judgement())?;
    if probs.dtype != Dtype::F32 {
        return Err(Error::out_of_range("probs", probs.dtype.name(), "f32"));
    }
    if (probs.rows, probs.vocab) != (rows, vocab) {
        let allowed = format!("[{rows}, {vocab}], a row for each row of the step");
        return Err(Error::out_of_range("probs", format!("[{}, {}]", probs.rows, probs.vocab), allowed));
    }
    Ok([probs.address, probs.stride as u64])
}

/// The tables of the rows of drafts, and what the host writes of an assignment.
#[derive(Debug)]
pub(crate) struct DraftRows {
    runtime: Arc<dyn Runtime>,
    /// `[requests]` each.
    pub requests: Buffer,
    greedy_params: Buffer,
    /// `[rows]` each.
    rows: Buffer,
    row_slots: Buffer,
    row_params: Buffer,
    row_requests: Buffer,
    row_states: Buffer,
    /// The parents that links of drafts say.
    linked_parents: Buffer,
    /// The stop ids of all requests.
    stop_ids: Buffer,
    /// What rows copy of the lists of their requests.
    lists: Buffer,
    /// The rows that drafts are judged by, once some were.
    pub judged: Option<JudgedRows>,
    /// The counts of the assignment: how many drafts each request has; or, with `is_proposed`, how many stand
    /// in front of each row.
    pub counts: Vec<u32>,
    /// How many rows any assignment had.
    most_rows: usize,
    /// Whether the rows are those of a draft model, so that each has a request of its own.
    is_proposed: bool,
}

impl DraftRows {
    /// Allocates the tables of `rows` rows.
    pub fn new(runtime: &Arc<dyn Runtime>, rows: usize) -> Result<Self> {
        let alloc = |bytes: usize| Buffer::sized(runtime, ROWS, &[rows, bytes]);
        Ok(Self {
            requests: alloc(size_of::<DraftRequest>())?,
            greedy_params: alloc(size_of::<Params>())?,
            rows: alloc(size_of::<DraftRow>())?,
            row_slots: alloc(size_of::<Slot>())?,
            row_params: alloc(size_of::<Params>())?,
            row_requests: alloc(size_of::<Request>())?,
            row_states: alloc(size_of::<State>())?,
            linked_parents: alloc(size_of::<i32>())?,
            stop_ids: Buffer::zeroed(runtime, 0)?,
            lists: Buffer::zeroed(runtime, 0)?,
            judged: None,
            counts: Vec::new(),
            most_rows: 0,
            is_proposed: false,
            runtime: Arc::clone(runtime),
        })
    }

    /// Writes what kernels read of an assignment.
    pub fn assign(&mut self, table: &Requests, slots: &[Slot], drafts: &DraftCounts<'_>) -> Result<()> {
        let prepared = || slots.iter().map(|slot| table.prepared(*slot));
        let stop_ids: Vec<u32> =
            prepared().flatten().flat_map(|request| &request.stop_ids).copied().collect();
        grow(&self.runtime, &mut self.stop_ids, size_of_val(&stop_ids[..]))?;
        self.stop_ids.write(0, &stop_ids)?;
        self.write_greedy_params(table, slots, drafts.rule)?;
        let (mut first_row, mut first_stop_id) = (0, self.stop_ids.address());
        let requests = prepared().zip(drafts.counts).zip(drafts.places()).map(|((request, count), place)| {
            let stop_count = request.map_or(0, |request| request.stop_ids.len());
            let request = DraftRequest {
                stop_ids: first_stop_id,
                stop_count: stop_count as u32,
                first_row,
                draft_count: *count,
                first_draft: place.0,
                batch_row: place.1,
                ..DraftRequest::default()
            };
            first_row += count + 1;
            first_stop_id += (stop_count * size_of::<u32>()) as u64;
            request
        });
        self.requests.write(0, &requests.collect::<Vec<_>>())?;
        self.counts = drafts.counts.to_vec();
        self.place_lists(table, slots)
    }

    /// Writes what kernels read of the rows of a draft model, each of which follows `counts` drafts of its
    /// slot's request.
    pub fn assign_paths(
        &mut self,
        table: &Requests,
        slots: &[Slot],
        counts: &[u32],
        rule: DraftRule,
    ) -> Result<()> {
        self.is_proposed = true;
        self.write_greedy_params(table, slots, rule)?;
        // Nothing is judged yet, so stop ids on a path end nothing.
        let request = |count: &u32| DraftRequest { draft_count: *count, ..DraftRequest::default() };
        self.requests.write(0, &counts.iter().map(request).collect::<Vec<_>>())?;
        self.counts = counts.to_vec();
        self.place_lists(table, slots)
    }

    fn write_greedy_params(&mut self, table: &Requests, slots: &[Slot], rule: DraftRule) -> Result<()> {
        if rule == DraftRule::Greedy {
            let params = slots.iter().map(|slot| table.greedy_params(*slot));
            self.greedy_params.write(0, &params.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Writes the parameters and list addresses of requests again that have changed since the assignment.
    pub fn follow(&mut self, table: &Requests, slots: &[Slot], rule: DraftRule) -> Result<()> {
        self.write_greedy_params(table, slots, rule)?;
        self.place_lists(table, slots)
    }

    /// Gives each row memory for its copies of the lists of its request, which may have grown since the
    /// assignment.
    fn place_lists(&mut self, table: &Requests, slots: &[Slot]) -> Result<()> {
        let mut rows = Vec::new();
        let mut bytes = 0;
        for (request, (slot, count)) in slots.iter().zip(&self.counts).enumerate() {
            let own_bytes = table.list_bytes(*slot);
            // A row that no draft stands before reads the lists themselves: a request's first one.
            let paths = if self.is_proposed { *count..=*count } else { 0..=*count };
            for has_lists in paths.map(|depth| depth > 0 && own_bytes > 0) {
                let lists = if has_lists { bytes as u64 + 1 } else { 0 };
                rows.push(DraftRow { lists, request: request as u32, reserved: 0 });
                bytes += if has_lists { own_bytes } else { 0 };
            }
        }
        grow(&self.runtime, &mut self.lists, bytes)?;
        let start = self.lists.address();
        rows.iter_mut().filter(|row| row.lists > 0).for_each(|row| row.lists += start - 1);
        // Rows that only earlier assignments had have no lists, which may have moved.
        self.most_rows = self.most_rows.max(rows.len());
        rows.resize(self.most_rows, DraftRow::default());
        Ok(self.rows.write(0, &rows)?)
    }

    /// Returns the rows that drafts are judged by.
    ///
    /// # Panics
    /// If none were reserved.
    pub fn judged(&self) -> &JudgedRows {
        self.judged.as_ref().expect("reserved when drafts to judge were assigned")
    }

    /// Returns a step over these rows, from the first on, whichever of the assigned rows they are.
    pub fn step(&self, step: abi::Step, rule: DraftRule) -> abi::Step {
        let judged = rule.judgement().map(|_| self.judged());
        abi::Step {
            forced: judged.map_or(step.forced, |judged| judged.forced.address()),
            slots: self.row_slots.address(),
            params: self.row_params.address(),
            requests: self.row_requests.address(),
            states: self.row_states.address(),
            flags: step.flags | abi::flags::NO_ADVANCE,
            ..step
        }
    }

    /// Returns the argument of the kernel that makes parents of links, for requests from `first` on; none if
    /// the drafts have no links.
    pub fn links(&self, drafts: &DraftAddresses, first: usize) -> Option<DraftLinks> {
        let [first_child, next_sibling] = drafts.links;
        (first_child != 0).then(|| DraftLinks {
            first_child,
            next_sibling,
            requests: self.requests.address() + (first * size_of::<DraftRequest>()) as u64,
            parents: self.linked_parents.address(),
            flags: drafts.link_flags,
            reserved: 0,
        })
    }

    /// Returns the argument of the kernel that begins a step over rows of a draft model.
    pub fn propose(
        &self,
        step: &abi::Step,
        paths: &DraftPaths,
        table: &Requests,
        rule: DraftRule,
        slots: u64,
    ) -> DraftStep {
        let rule = if rule == DraftRule::Greedy { rule } else { DraftRule::Coupled };
        let begun = self.argument(step, &paths.addresses(), table, rule, (0, 0), [slots, 0, 0]);
        DraftStep { path_stride: paths.stride, ..begun }
    }

    /// Returns the argument of the kernel that adds drafts to the digest of a step over ranks, in the window
    /// at an address. `slots` is the address of the requests' slots, or of the rows' of a draft model;
    /// `decides`: whether each rank draws all rows.
    pub fn digest(
        &self,
        drafts: &DraftAddresses,
        (vocab, decides): (usize, bool),
        (slots, window): (u64, u64),
    ) -> DigestDrafts {
        let runs_apart = if decides { 1 } else { DIGEST_RUNS_APART };
        let ([first_child, next_sibling], [draft_probs, draft_stride]) = (drafts.links, drafts.probs);
        DigestDrafts {
            window,
            ids: drafts.ids,
            parents: drafts.parents,
            first_child,
            next_sibling,
            draft_probs,
            draft_stride,
            requests: self.requests.address(),
            slots,
            vocab: vocab as u32,
            flags: drafts.flags,
            link_flags: drafts.link_flags,
            blocks: if draft_probs == 0 { 1 } else { tuning::digest_blocks(vocab, runs_apart) },
            runs_apart,
            ..DigestDrafts::default()
        }
    }

    /// Returns the argument of the kernels that begin and end a step over the assigned rows from a first row
    /// and request on. `slots` is the address of the requests' slots; the walks go to `path` and `accepted`.
    pub fn argument(
        &self,
        step: &abi::Step,
        drafts: &DraftAddresses,
        table: &Requests,
        rule: DraftRule,
        (first_row, first_request): (usize, usize),
        [slots, path, accepted]: [u64; 3],
    ) -> DraftStep {
        DraftStep {
            step: *step,
            ids: drafts.ids,
            parents: self.links(drafts, 0).map_or(drafts.parents, |links| links.parents),
            requests: self.requests.address(),
            slots,
            greedy_params: if rule == DraftRule::Greedy { self.greedy_params.address() } else { 0 },
            rows: self.rows.address(),
            slot_params: table.params.address(),
            slot_requests: table.requests.address(),
            slot_states: table.states.address(),
            row_slots: self.row_slots.address(),
            row_params: self.row_params.address(),
            row_requests: self.row_requests.address(),
            row_states: self.row_states.address(),
            judged_slots: rule.judgement().map_or(0, |_| self.judged().slots.address()),
            path,
            accepted,
            flags: drafts.flags | rule.flags(),
            path_stride: 0,
            first_row: first_row as u32,
            first_request: first_request as u32,
        }
    }
}

/// Makes sure that a buffer has `bytes` bytes; what it held is lost if it had fewer.
fn grow(runtime: &Arc<dyn Runtime>, buffer: &mut Buffer, bytes: usize) -> Result<()> {
    if buffer.bytes() < bytes {
        let slack = bytes / 4;
        *buffer = Buffer::sized(runtime, LISTS, &[bytes + slack])?;
    }
    Ok(())
}
