//! The launches of a step, in order: over ranks the digest of its drafts, then a part of a head, survey of
//! parts of rows, exchange of rows, begin of drafts, edits that match histories, head, softmax, judgement or
//! probabilities, survey, judgement by surveyed logits, finish or race, end of drafts, exchange of results.
//! Where ranks survey parts of all rows, the kernel that begins drafts comes before all exchanges, and the
//! kernel that ends them after all.
//!
//! Every kind of step is a part of this list. It neither allocates nor waits, so a step can be captured in a
//! graph and replayed; positions advance on the device.

use gumball_spec::Kind;
use gumball_spec::verify::by_probabilities::Judgement;

use crate::abi::{self, DraftStep, draft_flags, exchange_flags, flags};
use crate::launch::{head, tuning};
use crate::pipeline::draft_rows::StepDrafts;
use crate::pipeline::head::HeadLaunch;
use crate::pipeline::rank_rows::{Exchange, ExchangeLayout};
use crate::pipeline::row_batch::RowBatch;
use crate::pipeline::step::{Begin, Step};
use crate::pipeline::workspace::Workspace;
use crate::requests::step_features::{StepFeatures, Variant};

impl Step<'_> {
    /// Launches the kernels that support `needs`, which must include the features of the step's rows, and
    /// those that exchange rows and results with other ranks. The workspace must still have the step's batch.
    pub(crate) fn launch(&self, workspace: &Workspace, needs: StepFeatures) -> crate::Result<()> {
        assert_eq!(self.workspace, workspace.id, "a step goes to the workspace that fixed it");
        if let Some(exchange) = &self.terms.exchange {
            self.digest_drafts(workspace, exchange)?;
        }
        if let Some((head, step)) = self.part_head.as_deref().filter(|(_, step)| step.rows > 0) {
            launch_head(workspace, head, step)?;
        }
        match &self.terms.exchange {
            None => self.launch_rows(workspace, &self.argument, needs),
            Some(Exchange { shards: Some(shards), .. }) if self.terms.kind == Kind::Logits => {
                self.launch_shards(workspace, shards, needs)
            }
            Some(exchange) => {
                launch_exchanged(workspace, exchange, || self.launch_rows(workspace, &self.argument, needs))
            }
        }
    }

    /// Launches the kernel that adds the step's drafts to the digest that ranks compare, if it has some.
    fn digest_drafts(&self, workspace: &Workspace, of: &Exchange) -> crate::Result<()> {
        let batch = self.batch(workspace);
        let (addresses, path_stride, requests) = match &self.begin {
            Begin::Nothing => return Ok(()),
            Begin::Verify(drafts) => (drafts.addresses, 0, batch.requests()),
            Begin::Propose(paths) => (paths.addresses(), paths.stride, batch.requests()),
        };
        if requests == 0 {
            return Ok(());
        }
        let peers = &of.results.peers;
        let window = peers.windows[peers.rank as usize];
        let of_rows = (workspace.limits().vocab, of.layout == ExchangeLayout::Gather);
        let digest = batch.draft_rows().digest(&addresses, of_rows, (batch.slots(), window));
        let digest = abi::DigestDrafts { path_stride, ..digest };
        // SAFETY: the buffers belong to this workspace and the window to this rank, and `assign` wrote the
        // requests. The creators of the drafts' columns and of the paths guarantee these.
        unsafe { tuning::digest_drafts(requests, &digest).enqueue(&*workspace.runtime, &digest) }
    }

    /// Launches the kernels of a step under [`ExchangeLayout::Survey`](crate::ExchangeLayout::Survey): the
    /// kernels over this rank's parts of the rows, then the kernels that swap the rows which the parts do not
    /// decide. Of drafts each rank begins and ends those of all requests.
    fn launch_shards(
        &self,
        workspace: &Workspace,
        shards: &abi::ShardStep,
        needs: StepFeatures,
    ) -> crate::Result<()> {
        if shards.step.rows == 0 {
            return Ok(());
        }
        let abi::Step { vocab, tiles, .. } = self.argument;
        let whole = abi::Step { vocab, tiles, ..shards.step };
        let (needs, begun) = (with_masks(&whole, needs), self.begun(workspace, &whole));
        // Of the kernels over parts of rows, those under edits look for what sections and loops force.
        let needs = if needs.history { needs.union(StepFeatures::MASKS) } else { needs };
        self.begin_drafts(workspace, begun.as_ref(), needs)?;
        launch_history_edits(workspace, &whole, begun.is_some(), needs)?;
        let is_decided = needs.are_decided_in_shards(self.terms.kind);
        let swap_slots = if is_decided { 0 } else { shards.swap_slots };
        let shards = abi::ShardStep { swap_slots, ..*shards };
        let (runtime, device, row_type) =
            (&*workspace.runtime, &workspace.device, (self.terms.kind, self.dtype));
        if shards.step.tiles > 0 {
            let (argument, survey) = tuning::survey_shards(device, row_type, needs, &shards, begun.is_some());
            // SAFETY: the windows and this workspace outlive enqueued work, and `fix` checked their sizes
            // against the shape. The creator of `Rows` guarantees the logits.
            unsafe { survey.enqueue(runtime, &argument) }?;
        }
        // SAFETY: as above.
        unsafe { tuning::finish_shards(device, row_type, needs, &shards.step).enqueue(runtime, &shards) }?;
        if !is_decided && let Some(exchange) = &self.terms.exchange {
            // `history_edits` has run over all rows.
            let needs = StepFeatures { history: false, ..needs };
            self.launch_undecided(workspace, exchange, &shards, needs)?;
        }
        self.end_drafts(workspace, begun.as_ref())
    }

    /// Launches the kernels over the rows that words do not decide, between those that swap them. None of
    /// these rows advances a request that has drafts.
    fn launch_undecided(
        &self,
        workspace: &Workspace,
        exchange: &Exchange,
        shards: &abi::ShardStep,
        needs: StepFeatures,
    ) -> crate::Result<()> {
        let Exchange { rows, results, first_rows, .. } = exchange;
        let (slots, slot_count, flags) = (shards.swap_slots, shards.step.rows, exchange_flags::PARTIAL);
        let results = abi::SendResults {
            // The slots of rows after drafts are those of these rows' own tables.
            step: self.argument,
            requests: 0,
            first_requests: *first_rows,
            slots,
            flags: results.flags | flags,
            ..*results
        };
        let exchange = Exchange {
            rows: rows.map(|rows| abi::SendRows { slots, slot_count, flags: rows.flags | flags, ..rows }),
            results,
            ..exchange.clone()
        };
        let own_slots = slots + u64::from(results.first_row) * size_of::<i32>() as u64;
        let step = abi::Step { slots: own_slots, ..self.argument };
        launch_exchanged(workspace, &exchange, || self.launch_drawn(workspace, &step, None, needs))
    }

    /// Launches the kernels over rows that are here.
    fn launch_rows(&self, workspace: &Workspace, step: &abi::Step, needs: StepFeatures) -> crate::Result<()> {
        if step.rows == 0 {
            return Ok(());
        }
        let needs = with_masks(step, needs);
        let summed = if self.sums_judged(step, needs) { draft_flags::SUMMED } else { 0 };
        let begun = self.begun(workspace, step);
        let begun = begun.map(|begun| DraftStep { flags: begun.flags | summed, ..begun });
        self.begin_drafts(workspace, begun.as_ref(), needs)?;
        self.launch_drawn(workspace, step, begun.as_ref(), needs)?;
        if self.finishes { self.end_drafts(workspace, begun.as_ref()) } else { Ok(()) }
    }

    /// Launches the kernels that make the requests of rows after drafts, if the rows are such.
    fn begin_drafts(
        &self,
        workspace: &Workspace,
        begun: Option<&DraftStep>,
        needs: StepFeatures,
    ) -> crate::Result<()> {
        let Some(begun) = begun else { return Ok(()) };
        let runtime = &*workspace.runtime;
        if let Begin::Verify(of) = &self.begin
            && let Some(links) = self.batch(workspace).draft_rows().links(&of.addresses, of.requests.start)
        {
            // SAFETY: the parents have memory for each row, and `assign` wrote the requests. The creator of
            // the drafts' columns guarantees these.
            unsafe { tuning::parents_of_links(of.requests.len()).enqueue(runtime, &links) }?;
        }
        // SAFETY: the buffers belong to this workspace, and `assign` wrote what lies there. Their sizes
        // suffice for the rows and requests that `check` compared, and for the paths that `fix` did. The
        // creators of the drafts' columns and of the paths guarantee these.
        unsafe { tuning::begin_drafts(begun.step.rows as usize, needs).enqueue(runtime, begun) }
    }

    /// Launches the kernel that accepts drafts and advances the requests, if the rows verify some.
    fn end_drafts(&self, workspace: &Workspace, begun: Option<&DraftStep>) -> crate::Result<()> {
        match (&self.begin, begun) {
            // SAFETY: the conditions of `begin_drafts` hold here too.
            (Begin::Verify(of), Some(begun)) => unsafe {
                tuning::end_drafts(of.requests.len()).enqueue(&*workspace.runtime, begun)
            },
            _ => Ok(()),
        }
    }

    /// Launches the kernels that draw from rows that are here; `begun` made their requests, if they follow
    /// drafts and no kernel lies between.
    fn launch_drawn(
        &self,
        workspace: &Workspace,
        step: &abi::Step,
        begun: Option<&DraftStep>,
        needs: StepFeatures,
    ) -> crate::Result<()> {
        if step.rows == 0 {
            return Ok(());
        }
        let (runtime, device, row_type) =
            (&*workspace.runtime, &workspace.device, (self.terms.kind, self.dtype));
        let batch = self.batch(workspace);
        launch_history_edits(workspace, step, begun.is_some(), needs)?;
        self.launch_source(workspace, step)?;
        let by_logits = begun.zip(self.judged_by_logits(step, needs));
        let has_probabilities =
            by_logits.is_none() && self.launch_probabilities(batch, begun, step, needs)?;

        let (needs_of_rows, sums_judged) = (needs, self.sums_judged(step, needs));
        let (rows, tiles) = (step.rows as usize, step.tiles as usize);
        // `draft_race` cannot read the records of a survey that scores tokens.
        let scores = !matches!(self.begin, Begin::Propose(_))
            && self.shared.is_none()
            && self.terms.kind == Kind::Logits
            && step.flags & flags::NO_CANDIDATES == 0
            && by_logits.is_none()
            && tuning::scores_in_survey(device, rows, tiles);
        let needs = if scores { needs } else { needs.union(StepFeatures::SIMPLE) };
        let survey = match &self.shared {
            // If any row has edits or needs sums, all rows are surveyed separately.
            Some((step, survey)) if !needs.edits && !needs.sums => {
                // SAFETY: the conditions of the survey's launch below hold here too. There are no more logits
                // rows than rows, or sharing would save nothing, so the records fit.
                unsafe { survey.enqueue(runtime, step) }?;
                tuning::records_from_shared_rows(tiles)
            }
            _ => {
                let sums = needs.sums || (begun.is_some() && sums_judged);
                tuning::survey(device, (rows, tiles), row_type, StepFeatures { sums, ..needs })
            }
        };
        // A survey of each row waits by itself for what the kernel just before makes: the requests of rows
        // after drafts, or stamps of edits. Behind kernels that judge or write probabilities, or survey
        // shared rows, it begins when these are complete.
        let waits = match begun {
            Some(_) => !has_probabilities && (needs.edits || self.shared.is_none()),
            None => needs.history,
        };
        // A survey after a head or a softmax must not load before these are complete.
        let has_rows = self.head.is_none() && self.softmax_of.is_none();
        // A row after drafts has its own number as a slot, and begin_drafts gives padding parameters too, but
        // no lists.
        let known_slots = if begun.is_some() && waits && !needs.edits { flags::SLOT_IS_ROW } else { 0 };
        let step = abi::Step { flags: step.flags | known_slots, ..*step };
        let (step, survey) = survey.over(&step, waits && has_rows);
        let step = &step;
        // SAFETY: the buffers belong to this workspace, whose end waits for enqueued work. Their sizes
        // suffice for the shape that `fix` checked; a batch of drafts has no more rows than a step. `assign`
        // checked the slots. The creator of `Rows` guarantees the logits.
        unsafe { survey.enqueue(runtime, step) }?;
        if !self.finishes {
            return Ok(());
        }
        if let Some(race) = batch.race(step) {
            // SAFETY: the conditions of the survey's launch hold here too, and there are as many drafts for
            // each row.
            return unsafe { tuning::draft_race(device, rows, row_type).enqueue(runtime, &race) };
        }
        if let Some((begun, (of, judgement))) = by_logits {
            let surveyed = (needs_of_rows, Some(step));
            // SAFETY: as above. The rows have no edits, and the survey summed them if they have no filters.
            unsafe { batch.judge((begun, of), judgement, row_type, surveyed) }?;
        }
        let finish = tuning::finish_step(device, row_type, needs, step, by_logits.is_none());
        // SAFETY: the conditions of the survey's launch hold here too, and there is a draft for each row of a
        // draft model.
        unsafe { finish.enqueue(runtime, step) }
    }

    /// Returns the rows that the step is over.
    fn batch<'w>(&self, workspace: &'w Workspace) -> &'w RowBatch {
        workspace.batch(self.terms.of).expect("checked before a launch")
    }

    /// Returns the argument of the kernels that make the requests of rows after drafts, if the rows are such.
    fn begun(&self, workspace: &Workspace, step: &abi::Step) -> Option<DraftStep> {
        let (batch, requests) = (self.batch(workspace), &workspace.requests);
        match &self.begin {
            Begin::Nothing => None,
            Begin::Verify(of) => {
                let [path, accepted] = workspace.results.walks(step);
                let (firsts, addresses) =
                    ((of.first_row, of.requests.start), [batch.slots(), path, accepted]);
                let rows = batch.draft_rows();
                Some(rows.argument(step, &of.addresses, requests, of.rule, firsts, addresses))
            }
            Begin::Propose(paths) => {
                Some(batch.draft_rows().propose(step, paths, requests, batch.rule(), batch.slots()))
            }
        }
    }

    /// Launches the kernels that make the rows of logits, or of probabilities that the step draws from.
    fn launch_source(&self, workspace: &Workspace, step: &abi::Step) -> crate::Result<()> {
        self.head.as_ref().map_or(Ok(()), |head| launch_head(workspace, head, step))?;
        match (&self.softmax_of, &workspace.probability_rows) {
            (Some(logits), Some(own)) => {
                own.enqueue(logits).map_err(|error| crate::Error::call("the softmax of a step", error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the drafts and how they are judged, if that is by the logits of rows which the step surveys:
    /// rows without edits.
    fn judged_by_logits(&self, step: &abi::Step, needs: StepFeatures) -> Option<(&StepDrafts, Judgement)> {
        let Begin::Verify(of) = &self.begin else { return None };
        let has_edits = needs.edits || step.row_indices != 0 || self.shared.is_some();
        let is_surveyed_once = self.terms.kind == Kind::Logits && !has_edits;
        of.rule.judgement().filter(|_| is_surveyed_once).map(|judgement| (of, judgement))
    }

    /// Returns whether the survey of a step sums the weights of its rows for the judgement of drafts, which
    /// needs these sums of rows without filters.
    fn sums_judged(&self, step: &abi::Step, needs: StepFeatures) -> bool {
        needs.variant == Variant::SurveyDraw && self.judged_by_logits(step, needs).is_some()
    }

    /// Launches the kernels that judge drafts by probabilities, or write those that drafts are drawn from;
    /// returns whether there are some.
    fn launch_probabilities(
        &self,
        batch: &RowBatch,
        begun: Option<&DraftStep>,
        step: &abi::Step,
        needs: StepFeatures,
    ) -> crate::Result<bool> {
        let row_type = (self.terms.kind, self.dtype);
        if let (Begin::Verify(of), Some(begun)) = (&self.begin, begun)
            && let Some(judgement) = of.rule.judgement()
        {
            // SAFETY: the conditions of `begin_drafts` hold here too, and the kernels before have made the
            // rows' requests and stamped their edits.
            unsafe { batch.judge((begun, of), judgement, row_type, (needs, None)) }?;
            return Ok(true);
        }
        let Some(probs) = batch.proposals.as_ref().and_then(|drawn| drawn.probs.as_ref()) else {
            return Ok(false);
        };
        // SAFETY: as above.
        unsafe { probs.write(row_type, step, needs) }?;
        Ok(true)
    }
}

/// Launches the kernels over the rows that this rank samples, between those that exchange rows and results.
fn launch_exchanged(
    workspace: &Workspace,
    exchange: &Exchange,
    launch: impl FnOnce() -> crate::Result<()>,
) -> crate::Result<()> {
    // SAFETY: the windows and this workspace outlive enqueued work, and `fix` checked their sizes against the
    // shape. The creator of `Rows` guarantees the logits.
    unsafe { exchange.begin(workspace) }?;
    launch()?;
    // SAFETY: as above. The step's kernels write the outputs.
    unsafe { exchange.end(workspace) }
}

/// Returns features with those that the bitmasks of a step need.
fn with_masks(step: &abi::Step, needs: StepFeatures) -> StepFeatures {
    if step.masks == 0 { needs } else { needs.union(StepFeatures::MASKS) }
}

/// Launches the kernel that stamps the edits which match the ends of histories, and finds what sections and
/// loops force, if rows have such; `drafted`: after `begin_drafts`.
fn launch_history_edits(
    workspace: &Workspace,
    step: &abi::Step,
    drafted: bool,
    needs: StepFeatures,
) -> crate::Result<()> {
    if !needs.history {
        return Ok(());
    }
    let launch = tuning::history_edits(&workspace.device, step.rows as usize, drafted);
    // SAFETY: the requests and their lists belong to this workspace, whose end waits for enqueued work.
    // `assign` checked the slots.
    unsafe { launch.enqueue(&*workspace.runtime, step) }
}

/// Launches the kernels of a head over the hidden states of a step.
fn launch_head(workspace: &Workspace, head: &HeadLaunch, step: &abi::Step) -> crate::Result<()> {
    let (argument, centroids) = (abi::HeadStep { step: *step, ..head.head }, head.centroids.as_ref());
    // SAFETY: the head and the hidden states outlive enqueued work; `fix` checked the shapes. The kernels
    // before have made the rows' requests, of which those of a part of the vocabulary read nothing.
    unsafe { head::enqueue(&*workspace.runtime, &workspace.device, head.types, &argument, centroids) }
}
