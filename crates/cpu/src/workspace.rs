//! The workspace: one row at a time through all stages, in buffers that are kept between rows.

use gumball_spec::adaptive::Adaptive;
use gumball_spec::edit::Hook;
use gumball_spec::logprobs::{Logprobs, TokenLogprob};
use gumball_spec::num::key_id;
use gumball_spec::survey::Measure;
use gumball_spec::{Forced, Kind, LogprobMode, NONE, Result, Row, SamplingParams, Status};

use crate::draw::draw;
use crate::edit::Edits;
use crate::filter::{Given, Reader, filter, next_mu, temperature};
use crate::float_env::FloatEnv;
use crate::lanes::Proven;
use crate::logprobs::{Distribution, logprobs, token_logprob};
use crate::measure::Pace;
use crate::radius::{Choice, radius};
use crate::survey::{Survey, survey, survey_both};
use crate::tiles::View;
use crate::{Level, Task};

/// The result of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// The token, or [`gumball_spec::NONE`].
    pub token: i32,
    /// The status of the row's data.
    pub status: Status,
    /// Mirostat's limit, or the mean of adaptive-p, after this row.
    pub mu: f32,
    /// The temperature in use; 0 if greedy. That of the parameters in an empty row.
    pub temperature: f32,
}

impl Chosen {
    /// Returns the result of a row that is not read: its token is forced, and its request asks neither for
    /// logprobs nor for a dynamic temperature (D2).
    #[must_use]
    pub fn unread(task: &Task<'_>) -> Option<Self> {
        let params = task.prepared.params();
        let id = task.emitted().and_then(Forced::kept).filter(|_| !params.reads_forced_rows())?;
        let temperature = SamplingParams::zero_if_greedy(params.temperature);
        Some(Self { token: id as i32, status: task.forced_status(), mu: task.mu, temperature })
    }
}

/// Buffers for one row at a time; grows to the size that the rows need and then allocates no more.
#[derive(Debug)]
pub struct Workspace {
    pub(crate) level: Proven,
    pub(crate) list_limit: usize,
    pub(crate) edits: Edits,
    pub(crate) maxima: Vec<f32>,
    raw_maxima: Vec<f32>,
    pub(crate) filter: crate::filter::Buffers,
    pub(crate) draw: crate::draw::Buffers,
    pub(crate) kept: Vec<u32>,
    pub(crate) collects_kept: bool,
    pub(crate) logprobs: Logprobs,
    pub(crate) has_logprobs: bool,
    /// The row that a chain's last token is drawn from.
    pub(crate) residual: Vec<f32>,
    /// Whether a row is under way, or was when a hook broke it off: the buffers are between two states then.
    under_way: bool,
}

/// Sets of at most this many tokens are gathered and sorted rather than searched.
const LIST_LIMIT: usize = 1024;

impl Workspace {
    /// Makes an empty workspace for a level of this machine.
    ///
    /// # Errors
    /// The errors of [`Level::check`].
    pub fn new(level: Level) -> Result<Self> {
        Self::with_list_limit(level, LIST_LIMIT)
    }

    /// Makes a workspace that lists sets of at most `list_limit` tokens and searches longer ones. The limit
    /// changes speed alone; tests set it low so that small rows are searched too.
    ///
    /// # Errors
    /// The errors of [`Level::check`].
    pub fn with_list_limit(level: Level, list_limit: usize) -> Result<Self> {
        let none = TokenLogprob { id: NONE, logprob: f32::NEG_INFINITY, rank: 0 };
        Ok(Self {
            level: Proven::new(level)?,
            list_limit,
            edits: Edits::default(),
            maxima: Vec::new(),
            raw_maxima: Vec::new(),
            filter: crate::filter::Buffers::default(),
            draw: crate::draw::Buffers::default(),
            kept: Vec::new(),
            collects_kept: false,
            logprobs: Logprobs { token: none, top: Vec::new(), ids: Vec::new(), second: f32::NEG_INFINITY },
            has_logprobs: false,
            residual: Vec::new(),
            under_way: false,
        })
    }

    /// Begins a row: with new buffers if the last one was broken off.
    pub(crate) fn begin(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.under_way, true) {
            let fresh = Self::with_list_limit(self.level.level(), self.list_limit)?;
            *self = Self { collects_kept: self.collects_kept, under_way: true, ..fresh };
        }
        Ok(())
    }

    /// Ends a row.
    pub(crate) fn end(&mut self) {
        self.under_way = false;
    }

    /// Returns the level in use.
    #[must_use]
    pub fn level(&self) -> Level {
        self.level.level()
    }

    /// Asks for the kept set of every row from now on, or for none.
    pub fn collect_kept(&mut self, on: bool) {
        self.collects_kept = on;
    }

    /// Chooses the next token of a row.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Length`] if the row is not as long as the vocabulary of the parameters.
    /// - [`gumball_spec::Error::OutOfRange`] if the forced token is outside the vocabulary, or `mu` NaN or
    ///   +inf.
    pub fn sample(&mut self, row: Row<'_>, task: &Task<'_>, hook: Option<Hook<'_>>) -> Result<Chosen> {
        task.validate(row, hook.is_some())?;
        self.begin()?;
        let _env = FloatEnv::enter();
        let params = task.prepared.params();
        self.kept.clear();
        self.filter.mass.visits = 0;
        self.has_logprobs = params.logprobs.is_some();

        if let (Some(chosen), None) = (Chosen::unread(task), &hook) {
            self.kept.extend(self.collects_kept.then_some(chosen.token as u32));
            self.end();
            return Ok(chosen);
        }

        let is_raw = params.logprobs.as_ref().is_some_and(|params| params.mode.contains(LogprobMode::Raw));
        let raw_maxima = is_raw.then_some(&mut self.raw_maxima);
        let hooked = hook.is_some();
        let (edits, maxima) = (&mut self.edits, &mut self.maxima);
        let (reader, status, of_raw) =
            open_with_raw(self.level, edits, maxima, raw_maxima, self.list_limit, row, task, hook);
        let raw = (is_raw && !reader.view.is_unedited(row)).then(|| {
            let mut view = View::raw(task.kind, row);
            let Survey { first, odd } =
                of_raw.unwrap_or_else(|| survey(self.level, &view, &mut self.raw_maxima));
            view.odd = odd;
            Reader { view, maxima: &self.raw_maxima, first, ..reader }
        });
        let late = Late {
            filter: &mut self.filter,
            draw: &mut self.draw,
            kept: self.collects_kept.then_some(&mut self.kept),
            logprobs: &mut self.logprobs,
            hooked,
        };
        let chosen = late.finish(&reader, raw.as_ref(), status, task);
        self.end();
        Ok(chosen)
    }

    /// Returns how often at most the last row was read: surveyed, walked over for filters and sums, drawn
    /// from or written. Tiles that cannot matter are skipped on all walks but the first.
    ///
    /// A search for a mass or a count takes 66 at most, for any row: six guesses of two walks each, 18 pivots
    /// between the ends, then one for each bit of a float, and four at the start and the end. Two filters
    /// that both search took fewer than 50 visits on flat, on steep and on heaped rows.
    #[must_use]
    pub fn visits(&self) -> u32 {
        2 + self.filter.mass.visits
    }

    /// Returns the logprobs of the last row, if its request asked for them.
    #[must_use]
    pub fn logprobs(&self) -> Option<&Logprobs> {
        self.has_logprobs.then_some(&self.logprobs)
    }

    /// Returns the kept set of the last row, in the order of tokens, if [`Workspace::collect_kept`] asked for
    /// it; empty if the row was.
    #[must_use]
    pub fn kept(&self) -> &[u32] {
        &self.kept
    }
}

/// The buffers of the stages after the survey.
pub(crate) struct Late<'w> {
    pub(crate) filter: &'w mut crate::filter::Buffers,
    pub(crate) draw: &'w mut crate::draw::Buffers,
    /// The kept set, if the caller wants it.
    pub(crate) kept: Option<&'w mut Vec<u32>>,
    pub(crate) logprobs: &'w mut Logprobs,
    /// Whether the caller changed the row.
    pub(crate) hooked: bool,
}

impl Late<'_> {
    /// Carries a row through the stages after its survey. `raw` is the row without its edits, if it has any
    /// and logprobs speak of it.
    pub(crate) fn finish(
        self,
        reader: &Reader<'_>,
        raw: Option<&Reader<'_>>,
        status: Status,
        task: &Task<'_>,
    ) -> Chosen {
        let params = task.prepared.params();
        if let Some(chosen) = Chosen::unread(task) {
            self.kept.into_iter().for_each(|ids| ids.push(chosen.token as u32));
            return chosen;
        }
        let forced = task.emitted();
        let only = forced.and_then(Forced::kept);
        let forced = forced.map(|forced| forced.id as i32);
        let mut chosen =
            Chosen { token: forced.unwrap_or(NONE), status, mu: task.mu, temperature: params.temperature };
        chosen.status.insert(task.forced_status());
        let is_empty = reader.first == f32::NEG_INFINITY;
        let mut kept = only.map(Given::only);
        match only {
            None => (chosen.temperature, kept) = choose(reader, self.filter, task),
            Some(_) if is_empty => {}
            Some(_) => chosen.temperature = temperature(reader, self.filter, params),
        }
        if reader.view.is_waiting() {
            return chosen;
        }
        if is_empty {
            chosen.status.insert(Status::EMPTY);
        }
        match (only, &mut kept) {
            (Some(id), _) => self.kept.into_iter().for_each(|ids| ids.push(id)),
            (None, None) => {}
            (None, Some(set)) => {
                if chosen.temperature == 0.0 {
                    chosen.token = forced.unwrap_or(key_id(set.cut.first) as i32);
                } else if forced.is_none() {
                    let measure = Measure::new(task.kind, chosen.temperature);
                    let adaptive = Adaptive::new(params, task.mu, || set.total(reader, self.filter, measure));
                    let (keys, pace) = (&self.filter.list.keys, Pace { measure, adaptive });
                    let id = draw(reader, self.draw, keys, set, pace, task.stream());
                    let value = reader.view.logit(id as usize);
                    chosen.mu = next_mu(reader, self.filter, task, set, pace, value);
                    chosen.token = id as i32;
                }
                if let Some(ids) = self.kept {
                    ids.extend(set.keys(reader, self.filter).iter().map(|key| key_id(*key)));
                    if set.listed.is_none() {
                        set.listed = Some(0..ids.len());
                    }
                }
            }
        }
        if reader.view.is_waiting() {
            return chosen;
        }
        if let Some(params) = &params.logprobs {
            let distribution = |mode| {
                let (reader, temperature) = match mode {
                    LogprobMode::Raw => (raw.unwrap_or(reader), 1.0),
                    LogprobMode::Edited => (reader, 1.0),
                    LogprobMode::Tempered | LogprobMode::Processed => (reader, chosen.temperature),
                    LogprobMode::Radius => unreachable!("it has no distribution"),
                };
                let members = match mode {
                    LogprobMode::Processed => kept.clone(),
                    _ => (reader.first > f32::NEG_INFINITY).then(|| Given::whole(reader)),
                };
                Distribution { reader: *reader, members, temperature }
            };
            // Before the first mode, whose lists may take the place of a kept set's.
            self.logprobs.second = match params.mode.second {
                None => f32::NEG_INFINITY,
                Some(LogprobMode::Radius) => {
                    let (Chosen { token, temperature, .. }, hooked) = (chosen, self.hooked);
                    let choice = Choice { token, temperature, hooked };
                    radius(reader, self.filter, self.draw, kept.as_ref(), task, choice)
                }
                Some(mode) => token_logprob(&distribution(mode), self.filter, chosen.token),
            };
            logprobs(params, &distribution(params.mode.first), self.filter, chosen.token, self.logprobs);
        }
        chosen
    }
}

/// Edits and surveys a row; returns it ready for the later stages, with its status except for `EMPTY`.
pub(crate) fn open<'a>(
    level: Proven,
    edits: &'a mut Edits,
    maxima: &'a mut Vec<f32>,
    list_limit: usize,
    row: Row<'a>,
    task: &Task<'_>,
    hook: Option<Hook<'_>>,
) -> (Reader<'a>, Status) {
    let (reader, status, _) = open_with_raw(level, edits, maxima, None, list_limit, row, task, hook);
    (reader, status)
}

/// Does the same, and where `raw_maxima` are given and edits lie over a row of logits, surveys the row
/// without them as well.
#[expect(clippy::too_many_arguments, reason = "the buffers are parts of a workspace that is borrowed")]
fn open_with_raw<'a>(
    level: Proven,
    edits: &'a mut Edits,
    maxima: &'a mut Vec<f32>,
    raw_maxima: Option<&mut Vec<f32>>,
    list_limit: usize,
    row: Row<'a>,
    task: &Task<'_>,
    hook: Option<Hook<'_>>,
) -> (Reader<'a>, Status, Option<Survey>) {
    edits.edit(level, row, task, hook);
    let mut view = edits.view(row);
    let is_plain = edits.is_hooked() || task.kind != Kind::Logits || view.is_unedited(row);
    let (Survey { first, odd }, of_raw) = match raw_maxima.filter(|_| !is_plain) {
        Some(raw_maxima) => {
            let (of_view, of_raw) = survey_both(level, &view, maxima, raw_maxima);
            (of_view, Some(of_raw))
        }
        None => (survey(level, &view, maxima), None),
    };
    view.odd = odd;
    (Reader { level, view, maxima, first, list_limit, start: 0 }, edits.status(row, odd), of_raw)
}

/// Returns the temperature of a row and what may be drawn from it: the first token at temperature 0, nothing
/// if the row is empty, whose temperature is the parameters'.
pub(crate) fn choose(
    reader: &Reader<'_>,
    buffers: &mut crate::filter::Buffers,
    task: &Task<'_>,
) -> (f32, Option<Given>) {
    let params = task.prepared.params();
    if reader.first == f32::NEG_INFINITY {
        return (params.temperature, None);
    }
    let temperature = temperature(reader, buffers, params);
    let set = match temperature {
        0.0 => Given::only_first(reader),
        _ => filter(reader, buffers, task, temperature),
    };
    (temperature, Some(set))
}
