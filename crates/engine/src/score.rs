//! Scores: the logprobs of tokens that are known already, as of a prompt.
//!
//! Each row is carried through the stages as in a step, with the known token in the place of a forced one, so
//! its logprob is, bit for bit, the one a step would report. Nothing is drawn and no sequence is involved.

use gumball_cpu::{History, Prepared, Task};
use gumball_spec::{
    Error, Filter, Forced, Kind, LogprobMode, LogprobsParams, Parameter, Result, SamplingParams,
};

use crate::batch::{Batch, Checked};
use crate::host::Host;
use crate::logits::Logits;
use crate::outputs::Outputs;
use crate::rows::{Rows, Source};
use crate::sink::RowsMut;
use crate::stages::Stages;
use crate::workers::blocks_of;
use gumball_spec::layout::{Layout, Widths};

/// How many rows a thread takes at a time, so that a history is built once for them.
const GRAIN: usize = 16;

/// A known sequence, some of whose tokens are to be scored.
///
/// Row i scores `ids[start + i]`, after all ids before it. To score a prompt: `prompt_len` its length,
/// `start` 1, and the logits of the prompt's ids but the last. To score an answer: `start` at `prompt_len`.
/// Long sequences can be handed in piecewise, `start` moving on. The draw index is 0.
#[derive(Clone, Copy, Debug)]
pub struct Scored<'a> {
    /// The parameters. Their `logprobs` say what to report; if absent, the token's raw logprob and rank.
    pub params: &'a SamplingParams,
    /// Prompt and output.
    pub ids: &'a [u32],
    /// How many of them are prompt, for the penalties that tell it from output.
    pub prompt_len: usize,
    /// The place in `ids` of the token that row 0 predicts.
    pub start: usize,
    /// For hidden states: how many rows' logits are computed and held at a time, 1 or more; `None`: the
    /// logits of all rows.
    pub chunk_rows: Option<usize>,
}

impl Scored<'_> {
    /// Checks that nothing is said of chunks, for rows that are there already.
    pub(crate) fn refuse_chunks(&self) -> Result<()> {
        match self.chunk_rows {
            None => Ok(()),
            Some(_) => Err(conflict(
                "chunk_rows",
                "logits",
                "only logits of hidden states are made in chunks, in one process; leave it out",
            )),
        }
    }
}

impl Host {
    /// Scores known tokens, from rows of logits or of hidden states.
    pub fn score(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        scored: &Scored<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let source = rows.read(batch, self.vocab)?;
        scored.params.check_kind(rows.kind())?;
        let scoring = Scoring::new(scored, rows.count(batch), self.vocab, batch)?;
        match source {
            Source::Given(logits) => {
                scored.refuse_chunks()?;
                let rows = out.reshape(Layout { rows: logits.rows(), widths: scoring.widths() })?;
                self.score_rows(&scoring, logits, rows)
            }
            Source::Hidden(head, states) => self.score_hidden(head, states, &scoring, out),
        }
    }

    /// Scores a part of the rows, whose logits are given.
    pub(crate) fn score_rows(
        &self,
        scoring: &Scoring<'_>,
        logits: Logits<'_>,
        rows: RowsMut<'_>,
    ) -> Result<()> {
        let first = rows.range().start;
        let work = |rows: &mut RowsMut<'_>, stages: &mut dyn Stages| {
            let mut history = None;
            for row in rows.range() {
                let task = scoring.task(row, logits.kind(), &mut history);
                rows.carry(logits.row(row - first), row, &task, scoring.batch.hook(row), stages)?;
            }
            Ok(())
        };
        self.workers.over(rows, &blocks_of(GRAIN), &work)
    }
}

/// Known tokens that were checked, and the options of their rows.
pub(crate) struct Scoring<'a> {
    pub(crate) prepared: Prepared,
    pub(crate) scored: &'a Scored<'a>,
    targets: &'a [u32],
    pub(crate) batch: Checked<'a>,
    reads_history: bool,
}

impl<'a> Scoring<'a> {
    /// Checks what is to be scored.
    pub(crate) fn new(scored: &'a Scored<'a>, rows: usize, vocab: usize, batch: &Batch<'a>) -> Result<Self> {
        let batch = batch.check_score(rows, vocab)?;
        let prepared = prepare(scored.params, vocab)?;
        let targets = targets(scored, rows, vocab)?;
        let reads_history = reads_history(prepared.params());
        Ok(Self { prepared, scored, targets, batch, reads_history })
    }

    /// Returns the widths that the request asks for.
    pub(crate) fn widths(&self) -> Widths {
        Widths::of(self.prepared.params().logprobs.as_ref())
    }

    /// Returns what a row is for; `history` is brought forward to it.
    pub(crate) fn task<'b>(&'b self, row: usize, kind: Kind, history: &'b mut Option<History>) -> Task<'b> {
        let Scored { ids, prompt_len, start, .. } = *self.scored;
        let (params, place) = (self.prepared.params(), start + row);
        let before = if self.reads_history { &ids[..place] } else { &[] };
        Task {
            kind,
            prepared: &self.prepared,
            history: advance(history, &self.prepared, before, prompt_len),
            // Read by XTC alone, which mode `processed` refuses without one.
            seed: params.seed.unwrap_or(0),
            position: place as u32,
            draw: 0,
            mu: params.initial_mu(),
            mask: self.batch.masks.row(row),
            forced: Some(Forced::known(self.targets[row])),
        }
    }
}

pub(crate) fn conflict(parameter: &'static str, other: &'static str, reason: &'static str) -> Error {
    Error::Conflict { parameter, other, reason }
}

/// Validates parameters for scores, and sees to it that they ask for logprobs.
pub(crate) fn prepare(params: &SamplingParams, vocab: usize) -> Result<Prepared> {
    let mut params = params.clone();
    let mode = params.logprobs.get_or_insert_with(LogprobsParams::default).mode;
    if mode.contains(LogprobMode::Processed) {
        if params.mirostat.is_some() {
            return Err(conflict(
                "mirostat",
                "score",
                "its limit depends on draws; use another logprob mode",
            ));
        }
        if params.is_on(Filter::Xtc, vocab) && params.seed.is_none() {
            return Err(conflict("xtc", "score", "whether it acts depends on the seed; give the request's"));
        }
    }
    Prepared::new(params, vocab)
}

fn targets<'a>(scored: &Scored<'a>, rows: usize, vocab: usize) -> Result<&'a [u32]> {
    let len = scored.ids.len();
    if scored.prompt_len > len {
        return Err(Error::out_of_range("prompt_len", scored.prompt_len, format!("in 0..={len}")));
    }
    let targets = scored.start.checked_add(rows).and_then(|end| scored.ids.get(scored.start..end));
    let targets = targets.ok_or_else(|| {
        Error::length("ids", len, format!("an id for each of {rows} rows from {} on", scored.start))
    })?;
    match targets.iter().find(|id| **id as usize >= vocab) {
        Some(id) => Err(Error::out_of_range("ids", id, format!("an id in 0..{vocab}"))),
        None => Ok(targets),
    }
}

/// Returns whether any edit of the parameters depends on the history.
pub(crate) fn reads_history(params: &SamplingParams) -> bool {
    // A banned word of one id needs no history.
    let reads = |switch: &Parameter| {
        switch.reads_history
            && (switch.name != "bad_words" || params.bad_words.iter().any(|word| word.len() > 1))
    };
    params.switched_on().any(reads)
}

/// Brings a history forward to `before`, of which `prompt_len` ids are prompt.
pub(crate) fn advance<'a>(
    history: &'a mut Option<History>,
    prepared: &Prepared,
    before: &[u32],
    prompt_len: usize,
) -> &'a History {
    let prompt_len = prompt_len.min(before.len());
    let stale = |history: &History| history.prompt().len() != prompt_len;
    if history.as_ref().is_none_or(stale) {
        *history = Some(History::of(prepared, &before[..prompt_len]));
    }
    let history = history.as_mut().expect("just set");
    for id in &before[history.ids().len()..] {
        history.push(*id);
    }
    history
}
