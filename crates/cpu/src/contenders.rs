//! Contenders: the tokens of a row that could still be chosen, told from upper bounds of its logits (H5).
//!
//! ```text
//! edits         every edit is monotone, so the row of bounds, edited, bounds the edited logits
//! greedy        logits of the token with the largest bound, then of all whose bound reaches that logit
//! top-k         the same with the first k tokens and the k-th logit
//! min-p         as greedy; then of all whose bound reaches the threshold
//! the race      as greedy; then of the token whose bound scores best; then of all whose bound scores at
//!               least the best score that is known
//! ```
//!
//! A row that has these logits, and -inf elsewhere, has the same token, kept set and logprobs as the whole
//! row: the stages run over it as over any row. The race over bounds is the draw's own, with another keeper
//! of the winners.

use std::cmp::Reverse;

use gumball_spec::num::{key_id, key_logit, log2};
use gumball_spec::survey::Measure;
use gumball_spec::{Reading, Result, Row};

use crate::cut::Cut;
use crate::draw;
use crate::edit::Edits;
use crate::filter::{Given, List, Reader};
use crate::float_env::FloatEnv;
use crate::lanes::Proven;
use crate::parts::Winner;
use crate::survey::Survey;
use crate::workspace::open;
use crate::{Level, Task};

/// Finds the contenders of one row at a time, in buffers that are kept between rows.
#[derive(Debug)]
pub struct Contest {
    level: Proven,
    bounds: Surveyed,
    known: Surveyed,
    filter: crate::filter::Buffers,
    draw: draw::Buffers,
    list: List,
    ids: Vec<u32>,
    logits: Vec<f32>,
    /// A bit for each id whose logit is known.
    is_known: Vec<u64>,
    count: usize,
}

/// A row and its survey.
#[derive(Debug, Default)]
struct Surveyed {
    edits: Edits,
    maxima: Vec<f32>,
    /// Of the row as it is; `None` if it has changed since.
    survey: Option<Survey>,
}

impl Surveyed {
    /// Returns the row, edited and surveyed, if that is not done yet.
    fn reader<'a>(&'a mut self, level: Proven, row: &'a [f32], task: &Task<'_>) -> Reader<'a> {
        let row = Row::F32(row);
        let Survey { first, odd } = match self.survey {
            Some(survey) => survey,
            None => {
                let (edits, maxima) = (&mut self.edits, &mut self.maxima);
                let reader = open(level, edits, maxima, LIST_LIMIT, row, task, None).0;
                Survey { first: reader.first, odd: reader.view.odd }
            }
        };
        self.survey = Some(Survey { first, odd });
        let mut view = self.edits.view(row);
        view.odd = odd;
        Reader { level, view, maxima: &self.maxima, first, list_limit: LIST_LIMIT, start: 0 }
    }
}

/// Sets of at most this many tokens are sorted rather than searched.
const LIST_LIMIT: usize = 1024;

/// What writes the logits of ids.
type LogitsOf<'a> = dyn FnMut(&[u32], &mut [f32]) -> Result<()> + 'a;

/// Which tokens a question is about.
enum Question {
    /// The tokens that could be among the first `k`.
    First(usize),
    /// The tokens whose logit could reach a number.
    Reaching(f32),
    /// The tokens of a set that could win the race.
    Race(Given),
}

/// The row that a contest is about.
struct Contested<'a> {
    task: &'a Task<'a>,
    bounds: &'a mut [f32],
    /// The logits that are known; -inf elsewhere.
    row: &'a mut [f32],
    /// How many logits may be computed.
    limit: usize,
    logits_of: &'a mut LogitsOf<'a>,
}

impl Contest {
    /// Makes an empty one for a level of this machine.
    ///
    /// # Errors
    /// The errors of [`Level::check`].
    pub fn new(level: Level) -> Result<Self> {
        Ok(Self {
            level: Proven::new(level)?,
            bounds: Surveyed::default(),
            known: Surveyed::default(),
            filter: crate::filter::Buffers::default(),
            draw: draw::Buffers::default(),
            list: List::default(),
            ids: Vec::new(),
            logits: Vec::new(),
            is_known: Vec::new(),
            count: 0,
        })
    }

    /// Writes the logits of the tokens that decide a row, and -inf elsewhere. Returns how many that are, or
    /// `None` if they are more than `limit`, and then what is in `row` is of no use.
    ///
    /// # Shapes and units
    /// `bounds`: for each id a number that its logit is not above; finite, or of the ids in `odd`, for which
    /// any will do. They are changed. `odd`: ids whose logits are not bounded; they are always computed, and
    /// may be anything. `row`: as long as `bounds`. `logits_of`: writes the logits of ids.
    ///
    /// # Errors
    /// The errors of `logits_of`.
    ///
    /// # Panics
    /// If `row` is not as long as `bounds`, or an id of `odd` lies outside.
    #[expect(clippy::too_many_arguments, reason = "a row, its request, and where its logits come from")]
    pub fn settle(
        &mut self,
        reading: Reading,
        bounds: &mut [f32],
        odd: &[u32],
        task: &Task<'_>,
        limit: usize,
        row: &mut [f32],
        logits_of: &mut LogitsOf<'_>,
    ) -> Result<Option<usize>> {
        assert_eq!(bounds.len(), row.len(), "a bound for each logit");
        let _env = FloatEnv::enter();
        row.fill(f32::NEG_INFINITY);
        self.is_known.clear();
        self.is_known.resize(row.len().div_ceil(64), 0);
        self.count = 0;
        self.bounds.survey = None;
        self.known.survey = None;
        let mut contested = Contested { task, bounds, row, limit, logits_of };
        self.ids.clear();
        self.ids.extend_from_slice(odd);
        if !self.learn(&mut contested)? {
            return Ok(None);
        }
        // A logit is a bound of itself.
        for id in odd.iter().map(|id| *id as usize) {
            contested.bounds[id] = contested.row[id];
        }
        let settled = self.contend(reading, &mut contested);
        Ok(settled?.then_some(self.count))
    }

    /// Computes the logits of the contenders; returns whether they are few enough.
    fn contend(&mut self, reading: Reading, contested: &mut Contested<'_>) -> Result<bool> {
        let k = if let Reading::Top(k) = reading { k } else { 1 };
        if reading.whole().is_some() || k > contested.limit || !self.ask(&Question::First(k), contested)? {
            return Ok(false);
        }
        let (min_p, races) = match reading {
            Reading::Likely(min_p) => (min_p, false),
            Reading::Race(min_p) => (min_p, true),
            _ => return Ok(true),
        };
        // The row's first token is known now.
        let task = contested.task;
        let params = task.prepared.params();
        let temperature = if params.temperature_last { 1.0 } else { params.temperature };
        let measure = Measure::new(task.kind, temperature);
        let known = self.known.reader(self.level, contested.row, task);
        let first = known.first;
        if first == f32::NEG_INFINITY {
            return Ok(true);
        }
        let likely = |y: f32| y >= log2(min_p);
        let least = match min_p > 0.0 {
            true => Given::whole(&known).while_y(&known, &mut self.filter, measure, likely).cut.low(),
            false => Cut::all(task.kind).low(),
        };
        if !races {
            return self.ask(&Question::Reaching(least), contested);
        }
        let cut = Cut::all(task.kind).at_least(least);
        self.ask(&Question::Race(Given { cut, first, prefix: true, listed: None }), contested)
    }

    /// Computes the logits of the tokens that a question is about; returns whether they are few enough.
    fn ask(&mut self, question: &Question, contested: &mut Contested<'_>) -> Result<bool> {
        Ok(self.list(question, contested)? && self.learn(contested)?)
    }

    /// Lists the tokens that a question is about whose logits are not known, from what the bounds say;
    /// computes the logits that this takes, those of tokens that are likely by their bounds. Returns whether
    /// both are few enough.
    fn list(&mut self, question: &Question, contested: &mut Contested<'_>) -> Result<bool> {
        // Moved out, so that their reader can stay while logits are computed.
        let (mut of_bounds, bounds) =
            (std::mem::take(&mut self.bounds), std::mem::take(&mut contested.bounds));
        let reader = of_bounds.reader(self.level, bounds, contested.task);
        let listed = self.list_by(question, &reader, contested);
        (self.bounds, contested.bounds) = (of_bounds, bounds);
        let is_known = &self.is_known;
        self.ids.retain(|id| is_known[*id as usize / 64] >> (id % 64) & 1 == 0);
        Ok(listed? && self.ids.len() <= contested.limit)
    }

    fn list_by(
        &mut self,
        question: &Question,
        reader: &Reader<'_>,
        contested: &mut Contested<'_>,
    ) -> Result<bool> {
        match question {
            _ if reader.first == f32::NEG_INFINITY => {
                self.ids.clear();
                Ok(true)
            }
            Question::First(k) => self
                .kth_known(reader, *k, contested)
                .map(|least| least.is_some_and(|least| self.list_reaching(reader, least, contested.limit))),
            Question::Reaching(least) => Ok(self.list_reaching(reader, *least, contested.limit)),
            Question::Race(kept) => self.list_racing(reader, kept, contested),
        }
    }

    /// Computes the logits of the first `k` tokens of a row of bounds, and returns the k-th logit
    /// that is known; if fewer than k are known, the least float, so that all will be computed. `None` if too
    /// many logits are.
    fn kth_known(
        &mut self,
        reader: &Reader<'_>,
        k: usize,
        contested: &mut Contested<'_>,
    ) -> Result<Option<f32>> {
        let top = Given::whole(reader).take(reader, &mut self.filter, k);
        let listed = top.keys(reader, &mut self.filter);
        self.ids.clear();
        self.ids.extend(listed.iter().take(k).map(|key| key_id(*key)));
        if !self.learn(contested)? {
            return Ok(None);
        }
        let known = self.known.reader(self.level, contested.row, contested.task);
        let list = &mut self.filter.list;
        list.clear();
        known.gather(Cut::all(known.view.kind), usize::MAX, list);
        Ok(Some(match list.keys.len() >= k {
            true => key_logit(*list.keys.select_nth_unstable_by_key(k - 1, |key| Reverse(*key)).1),
            false => -f32::MAX,
        }))
    }

    /// Lists all ids whose bound reaches a number, unless there are more than `limit` beside those that are
    /// known; returns whether it did.
    fn list_reaching(&mut self, reader: &Reader<'_>, least: f32, limit: usize) -> bool {
        self.list.clear();
        if !reader.gather(Cut::all(reader.view.kind).at_least(least), limit + self.count, &mut self.list) {
            return false;
        }
        self.ids.clear();
        self.ids.extend(self.list.keys.iter().map(|key| key_id(*key)));
        true
    }

    /// Lists the kept tokens that could win the race, by the score of the one that wins it over the
    /// bounds; computes that one's logit.
    fn list_racing(
        &mut self,
        reader: &Reader<'_>,
        kept: &Given,
        contested: &mut Contested<'_>,
    ) -> Result<bool> {
        let task = contested.task;
        let measure = Measure::new(task.kind, task.prepared.params().temperature);
        let winner = draw::winner(reader, &mut self.draw, kept, measure, task.stream());
        self.ids.clear();
        if winner != Winner::NONE {
            self.ids.push(winner.id);
        }
        if !self.learn(contested)? {
            return Ok(false);
        }
        let known = self.known.reader(self.level, contested.row, task);
        let best = draw::winner(&known, &mut self.draw, kept, measure, task.stream()).score;
        self.ids.clear();
        draw::that_score(reader, &mut self.draw, kept, measure, task.stream(), best, &mut self.ids);
        Ok(true)
    }

    /// Computes the logits of the listed ids that are not known yet; returns whether that leaves few enough.
    fn learn(&mut self, contested: &mut Contested<'_>) -> Result<bool> {
        let is_known = &mut self.is_known;
        self.ids.retain(|id| {
            let (word, bit) = (&mut is_known[*id as usize / 64], 1 << (id % 64));
            let is_new = *word & bit == 0;
            *word |= bit;
            is_new
        });
        self.count += self.ids.len();
        if self.count > contested.limit {
            return Ok(false);
        }
        if self.ids.is_empty() {
            return Ok(true);
        }
        self.logits.clear();
        self.logits.resize(self.ids.len(), 0.0);
        (contested.logits_of)(&self.ids, &mut self.logits)?;
        self.ids.iter().zip(&self.logits).for_each(|(id, z)| contested.row[*id as usize] = *z);
        self.known.survey = None;
        Ok(true)
    }
}
