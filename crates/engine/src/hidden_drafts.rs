//! Drafts verified and drawn from hidden states (H6): heads compute the logits, and the rest is as from logits.
//!
//! Coupled verification reads a row behind drafts only if these drafts are the tokens that were drawn. So the history that the row is
//! drawn with is known before the walk: the request's, followed by the drafts on the path to the row. A certified head therefore decides
//! all rows of a call together, and the walk then reads off the decisions of the rows that it visits.

use gumball_cpu::{Prepared, Task, decisive};
use gumball_head::{HiddenStates, decisive_of_drafts};
use gumball_spec::verify::DraftTree;
use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::{Kind, Result};

use crate::draft::{Paths, Proposals};
use crate::hidden::check_slots;
use crate::hidden_rows::{Needs, RowTasks, check_states};
use crate::lm_head::Head;
use crate::options::BatchOptions;
use crate::pool::{PADDING, Pool, Slot};
use crate::score::reads_history;
use crate::sequence::Sequence;
use crate::verify::{Drafts, Verification, VerifyMode, request_of};

impl Pool {
    /// Verifies the drafts of each request against the target's hidden states, and appends the emitted tokens to its sequence.
    ///
    /// What comes out is, bit for bit, what [`Pool::verify`] makes of the head's rows: of the logits that rules H1 and H2 give, with a clustered head of those of probed ids (H8). A
    /// certified head computes a part of a row in the modes [`VerifyMode::Coupled`] and [`VerifyMode::Greedy`], and in any mode for a request
    /// without drafts, under the conditions of [`Pool::needs_whole_row`]; rows that are judged by probabilities take the exact head.
    /// Rows behind a draft outside the vocabulary are not computed. The logits of all others are held at once.
    ///
    /// # Shapes and units
    /// `head`: of the pool's vocabulary. `states`: as many hidden states, of the head's width, as there are requests and drafts
    /// together, in the order of [`Pool::verify`]'s rows. The rest: as there.
    ///
    /// # Errors
    /// - Those of [`Pool::verify`], under the same conditions.
    /// - [`Error::Length`](crate::Error::Length) if the head's vocabulary is not the pool's, or hidden states have another width than the head.
    /// - [`Error::Unavailable`](crate::Error::Unavailable) if the system refuses the memory of logits and bounds, 4 to 12 bytes for each id
    ///   of each row.
    ///
    /// No sequence was changed then.
    #[expect(clippy::too_many_arguments, reason = "those of `verify`, and a head")]
    pub fn verify_hidden<'h>(
        &mut self,
        head: impl Into<Head<'h>>,
        states: HiddenStates<'_>,
        slots: &[Slot],
        drafts: &Drafts<'_>,
        mode: VerifyMode,
        options: &BatchOptions<'_>,
        out: &mut Verification,
    ) -> Result<()> {
        let head = head.into();
        self.check_head(head, states)?;
        drafts.check(slots.len(), self.vocab, mode)?;
        let (starts, judgement) = (drafts.starts(), mode.judgement());
        let rows = starts.last().copied().unwrap_or(0);
        check_states(states, rows, "one per request and one per draft")?;
        options.check(rows, self.vocab)?;
        self.check_requests(Kind::Logits, slots, drafts, &starts, judgement, options)?;
        let greedy = self.greedy(slots, mode)?;
        self.with_head_buffers(|pool, buffers| {
            let keep_ids = out.outputs().collects_kept();
            let tasks = VerifyTasks {
                pool,
                slots,
                drafts,
                starts: &starts,
                judgement,
                greedy: &greedy,
                options,
                keep_ids,
            };
            pool.fill_rows(head, states, &tasks, buffers)?;
            pool.judge(buffers.rows(pool.vocab)?, slots, drafts, mode, options, out)
        })?;
        out.outputs.mark_approximate(head.is_approximate());
        self.append(slots, out);
        Ok(())
    }

    /// Draws drafts from the hidden states of a draft model, for the requests in `slots`, and changes no sequence.
    ///
    /// What comes out is, bit for bit, what [`Pool::draft`] makes of the head's rows: of the logits that rules H1 and H2 give, with a clustered head of those of probed ids (H8). A
    /// certified head computes a part of a row where that decides its drafts: at temperature 0, behind top-k or min-p, and, for
    /// one draft of a row that no block judges and without probabilities, in a plain race. What logprobs the request asks for does not matter.
    ///
    /// # Shapes and units
    /// `head`: of the pool's vocabulary. `states`: R hidden states of the head's width. The rest: as for [`Pool::draft`].
    ///
    /// # Errors
    /// - Those of [`Pool::draft`], under the same conditions.
    /// - [`Error::Length`](crate::Error::Length) if the head's vocabulary is not the pool's, or hidden states have another width than the head.
    /// - [`Error::Unavailable`](crate::Error::Unavailable) if the system refuses the memory of logits and bounds, 4 to 12 bytes for each id
    ///   of each row.
    #[expect(clippy::too_many_arguments, reason = "those of `draft`, and a head")]
    pub fn draft_hidden<'h>(
        &mut self,
        head: impl Into<Head<'h>>,
        states: HiddenStates<'_>,
        slots: &[Slot],
        paths: &Paths<'_>,
        mode: VerifyMode,
        options: &BatchOptions<'_>,
        out: &mut Proposals,
    ) -> Result<()> {
        let head = head.into();
        self.check_head(head, states)?;
        check_slots(slots, states)?;
        let places = self.check_draft(Kind::Logits, slots, paths, options)?;
        let greedy = self.greedy(slots, mode)?;
        self.with_head_buffers(|pool, buffers| {
            let path = |row: usize| &paths.ids[places[row].clone()];
            let races = mode != VerifyMode::Block && !out.has_probs();
            let tasks =
                DraftTasks { pool, slots, path, greedy: &greedy, options, siblings: out.siblings(), races };
            pool.fill_rows(head, states, &tasks, buffers)?;
            pool.draft(buffers.rows(pool.vocab)?, slots, paths, mode, options, out)
        })
    }
}

/// What the rows of a verification are for.
struct VerifyTasks<'a> {
    pool: &'a Pool,
    slots: &'a [Slot],
    drafts: &'a Drafts<'a>,
    starts: &'a [usize],
    judgement: Option<Judgement>,
    greedy: &'a [Option<Prepared>],
    options: &'a BatchOptions<'a>,
    keep_ids: bool,
}

impl VerifyTasks<'_> {
    fn request(&self, row: usize) -> usize {
        request_of(self.starts, row)
    }

    fn tree(&self, request: usize) -> DraftTree<'_> {
        self.drafts.tree(self.starts[request]..self.starts[request + 1], request)
    }

    /// Returns the drafts between the end of the history and a row.
    fn path(&self, row: usize, request: usize) -> Vec<i32> {
        let tree = self.tree(request);
        let mut path = Vec::new();
        let mut node = row - self.starts[request];
        while node > 0 {
            path.push(tree.drafts[node - 1]);
            node = tree.parents.map_or(node - 1, |parents| (parents[node - 1] + 1) as usize);
        }
        path.reverse();
        path
    }

    fn prepared(&self, request: usize) -> &Prepared {
        let own = self.pool.admitted(self.slots[request]).prepared();
        self.greedy[request].as_ref().unwrap_or(own)
    }
}

impl RowTasks for VerifyTasks<'_> {
    fn needs(&self, row: usize) -> Needs {
        let request = self.request(row);
        let is_token = |id: &i32| (0..self.pool.vocab as i32).contains(id);
        if self.slots[request] == PADDING || !self.path(row, request).iter().all(is_token) {
            return Needs::Nothing;
        }
        if self.judgement.is_some() && !self.tree(request).drafts.is_empty() {
            return Needs::Whole;
        }
        let hooked = self.options.hook(row).is_some();
        decisive(self.prepared(request), hooked, self.keep_ids).into()
    }

    fn with_task<R>(&self, row: usize, work: impl FnOnce(&Task<'_>) -> R) -> R {
        let request = self.request(row);
        let sequence = self.pool.admitted(self.slots[request]);
        behind(sequence, self.prepared(request), &self.path(row, request), row, self.options, work)
    }
}

/// What the rows of a draft model are for.
struct DraftTasks<'a, P> {
    pool: &'a Pool,
    slots: &'a [Slot],
    path: P,
    greedy: &'a [Option<Prepared>],
    options: &'a BatchOptions<'a>,
    siblings: usize,
    races: bool,
}

impl<'a, P: Fn(usize) -> &'a [i32] + Sync> DraftTasks<'a, P> {
    fn prepared(&self, row: usize) -> &Prepared {
        let own = self.pool.admitted(self.slots[row]).prepared();
        self.greedy[row].as_ref().unwrap_or(own)
    }
}

impl<'a, P: Fn(usize) -> &'a [i32] + Sync> RowTasks for DraftTasks<'a, P> {
    fn needs(&self, row: usize) -> Needs {
        if self.slots[row] == PADDING {
            return Needs::Nothing;
        }
        let hooked = self.options.hook(row).is_some();
        let decisive = decisive_of_drafts(self.prepared(row), hooked, self.siblings, self.races);
        decisive.map_or(Needs::Whole, Needs::Deciding)
    }

    fn with_task<R>(&self, row: usize, work: impl FnOnce(&Task<'_>) -> R) -> R {
        let sequence = self.pool.admitted(self.slots[row]);
        behind(sequence, self.prepared(row), (self.path)(row), row, self.options, work)
    }
}

/// Works with what a row behind a path of drafts is drawn for.
fn behind<R>(
    sequence: &Sequence,
    prepared: &Prepared,
    path: &[i32],
    row: usize,
    options: &BatchOptions<'_>,
    work: impl FnOnce(&Task<'_>) -> R,
) -> R {
    let task = sequence.task(Kind::Logits, options.masks.row(row), options.forced(row));
    let extended = (!path.is_empty() && reads_history(prepared.params())).then(|| {
        let mut history = task.history.clone();
        path.iter().for_each(|id| history.push(*id as u32));
        history
    });
    let position = task.position.wrapping_add(path.len() as u32);
    work(&Task { prepared, history: extended.as_ref().unwrap_or(task.history), position, ..task })
}
