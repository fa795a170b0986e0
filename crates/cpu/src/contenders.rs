//! Contenders: the tokens of a row that could still be chosen, told from upper bounds of its logits (H5).
//!
//! ```text
//! edit the row of bounds                        every edit is monotone, so what comes out are bounds of the edited logits
//! greedy        logits of the token with the largest bound, then of all whose bound reaches that logit
//! top-k         the same with the first k tokens and the k-th logit
//! min-p         as greedy; then of all whose bound reaches the threshold
//! the race      as greedy; then of the token whose bound scores best; then of all whose bound scores at least the best score that is known
//! ```
//!
//! A row that has these logits, and -inf elsewhere, has the same token, kept set and logprobs as the whole row: the stages run over it as over
//! any row. The race over bounds is the draw's own, with another keeper of the winners.

use std::cmp::Reverse;

use gumball_spec::num::{key_id, key_logit, log2};
use gumball_spec::survey::Measure;
use gumball_spec::{Result, Row};

use crate::cut::Cut;
use crate::decisive::Decisive;
use crate::draw;
use crate::edit::Edits;
use crate::filter::{Given, List, Reader};
use crate::float_env::FloatEnv;
use crate::lanes::Proven;
use crate::parts::Winner;
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

#[derive(Debug, Default)]
struct Surveyed {
    edits: Edits,
    maxima: Vec<f32>,
}

impl Surveyed {
    fn reader<'a>(&'a mut self, level: Proven, row: &'a [f32], task: &Task<'_>) -> Reader<'a> {
        open(level, &mut self.edits, &mut self.maxima, LIST_LIMIT, Row::F32(row), task, None).0
    }
}

/// Sets of at most this many tokens are sorted rather than searched.
const LIST_LIMIT: usize = 1024;

/// Where the logits of ids come from.
pub type Logits<'a> = &'a mut dyn FnMut(&[u32], &mut [f32]) -> Result<()>;

impl Contest {
    /// Makes an empty one for a level of this machine.
    ///
    /// # Errors
    /// Those of [`Level::check`].
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

    /// Writes the logits of the tokens that decide a row, and -inf elsewhere. Returns how many that are, or `None` if they are more than
    /// `limit`, and then what is in `row` is of no use.
    ///
    /// # Shapes and units
    /// `bounds`: for each id a number that its logit is not above; finite, or of the ids in `odd`, for which any will do. `odd`: ids whose logits
    /// are not bounded; they are always computed, and may be anything. `row`: as long as `bounds`. `logits` writes the logits of ids.
    ///
    /// # Errors
    /// Those of `logits`.
    ///
    /// # Panics
    /// If `row` is not as long as `bounds`, or an id of `odd` lies outside.
    #[expect(clippy::too_many_arguments, reason = "a row, its request, and where its logits come from")]
    pub fn settle(
        &mut self,
        decisive: Decisive,
        bounds: &mut [f32],
        odd: &[u32],
        task: &Task<'_>,
        limit: usize,
        row: &mut [f32],
        logits: Logits<'_>,
    ) -> Result<Option<usize>> {
        assert_eq!(bounds.len(), row.len(), "a bound for each logit");
        let _env = FloatEnv::enter();
        row.fill(f32::NEG_INFINITY);
        self.is_known.clear();
        self.is_known.resize(row.len().div_ceil(64), 0);
        self.count = 0;
        self.ids.clear();
        self.ids.extend_from_slice(odd);
        if !self.learn(limit, row, logits)? {
            return Ok(None);
        }
        // A logit is a bound of itself.
        odd.iter().for_each(|id| bounds[*id as usize] = row[*id as usize]);
        // Moved out, so that its reader can stay while the contest goes on.
        let mut of_bounds = std::mem::take(&mut self.bounds);
        let reader = of_bounds.reader(self.level, bounds, task);
        let settled = self.contend(&reader, decisive, task, limit, row, logits);
        self.bounds = of_bounds;
        Ok(settled?.then_some(self.count))
    }

    /// Computes the logits of the contenders, of the row as its bounds show it; returns whether they are few enough.
    fn contend(
        &mut self,
        reader: &Reader<'_>,
        decisive: Decisive,
        task: &Task<'_>,
        limit: usize,
        row: &mut [f32],
        logits: Logits<'_>,
    ) -> Result<bool> {
        let k = if let Decisive::Top(k) = decisive { k } else { 1 };
        if reader.first == f32::NEG_INFINITY {
            return Ok(true);
        }
        if k > limit || !self.learn_first(reader, k, task, limit, row, logits)? {
            return Ok(false);
        }
        let (min_p, races) = match decisive {
            Decisive::First | Decisive::Top(_) => return Ok(true),
            Decisive::Likely(min_p) => (min_p, false),
            Decisive::Race(min_p) => (min_p, true),
        };
        // The row's first token is known now.
        let params = task.prepared.params();
        let temperature = if params.temperature_last { 1.0 } else { params.temperature };
        let measure = Measure::new(task.kind, temperature);
        let (first, least) = self.with_known(row, task, |known, buffers, _| {
            let likely = |y: f32| y >= log2(min_p);
            let cut = match min_p > 0.0 && known.first > f32::NEG_INFINITY {
                true => Given::whole(known).while_y(known, buffers, measure, likely).cut,
                false => Cut::all(known.view.kind),
            };
            (known.first, cut.low())
        });
        if first == f32::NEG_INFINITY {
            return Ok(true);
        }
        if !races {
            return self.learn_from(reader, least, limit, row, logits);
        }
        let cut = Cut::all(reader.view.kind).at_least(least);
        let kept = Given { cut, first, prefix: true, listed: None };
        self.learn_race(reader, &kept, task, limit, row, logits)
    }

    /// Computes the logits of the tokens that could be among the first `k`.
    fn learn_first(
        &mut self,
        reader: &Reader<'_>,
        k: usize,
        task: &Task<'_>,
        limit: usize,
        row: &mut [f32],
        logits: Logits<'_>,
    ) -> Result<bool> {
        let top = Given::whole(reader).take(reader, &mut self.filter, k);
        let listed = top.keys(reader, &mut self.filter);
        self.ids.clear();
        self.ids.extend(listed.iter().take(k).map(|key| key_id(*key)));
        if !self.learn(limit, row, logits)? {
            return Ok(false);
        }
        // The k-th logit that is known; if fewer than k are known, the least float, so that all are computed.
        let least = self.with_known(row, task, |known, buffers, _| {
            let list = &mut buffers.list;
            list.clear();
            known.gather(Cut::all(known.view.kind), usize::MAX, list);
            match list.keys.len() >= k {
                true => key_logit(*list.keys.select_nth_unstable_by_key(k - 1, |key| Reverse(*key)).1),
                false => -f32::MAX,
            }
        });
        self.learn_from(reader, least, limit, row, logits)
    }

    /// Computes the logits of the kept tokens that could win the race.
    fn learn_race(
        &mut self,
        reader: &Reader<'_>,
        kept: &Given,
        task: &Task<'_>,
        limit: usize,
        row: &mut [f32],
        logits: Logits<'_>,
    ) -> Result<bool> {
        let measure = Measure::new(task.kind, task.prepared.params().temperature);
        let winner = draw::winner(reader, &mut self.draw, kept, measure, task.stream());
        self.ids.clear();
        if winner != Winner::NONE {
            self.ids.push(winner.id);
        }
        if !self.learn(limit, row, logits)? {
            return Ok(false);
        }
        let best = self.with_known(row, task, |known, _, draw| {
            draw::winner(known, draw, kept, measure, task.stream()).score
        });
        self.ids.clear();
        draw::that_score(reader, &mut self.draw, kept, measure, task.stream(), best, &mut self.ids);
        self.learn(limit, row, logits)
    }

    /// Reads the row of the known logits.
    fn with_known<T>(
        &mut self,
        row: &[f32],
        task: &Task<'_>,
        read: impl FnOnce(&Reader<'_>, &mut crate::filter::Buffers, &mut draw::Buffers) -> T,
    ) -> T {
        let reader = self.known.reader(self.level, row, task);
        read(&reader, &mut self.filter, &mut self.draw)
    }

    /// Computes the logits of all ids whose bound reaches a number; returns whether they are few enough.
    fn learn_from(
        &mut self,
        reader: &Reader<'_>,
        least: f32,
        limit: usize,
        row: &mut [f32],
        logits: Logits<'_>,
    ) -> Result<bool> {
        self.list.clear();
        if !reader.gather(Cut::all(reader.view.kind).at_least(least), limit, &mut self.list) {
            return Ok(false);
        }
        self.ids.clear();
        self.ids.extend(self.list.keys.iter().map(|key| key_id(*key)));
        self.learn(limit, row, logits)
    }

    /// Computes the logits of the listed ids that are not known yet; returns whether that leaves few enough.
    fn learn(&mut self, limit: usize, row: &mut [f32], logits: Logits<'_>) -> Result<bool> {
        let is_known = &mut self.is_known;
        self.ids.retain(|id| {
            let (word, bit) = (&mut is_known[*id as usize / 64], 1 << (id % 64));
            let is_new = *word & bit == 0;
            *word |= bit;
            is_new
        });
        self.count += self.ids.len();
        if self.count > limit {
            return Ok(false);
        }
        self.logits.clear();
        self.logits.resize(self.ids.len(), 0.0);
        logits(&self.ids, &mut self.logits)?;
        self.ids.iter().zip(&self.logits).for_each(|(id, z)| row[*id as usize] = *z);
        Ok(true)
    }
}
