//! Rows surveyed where they are: each rank keeps its part, and only what decides travels.
//!
//! ```text
//! rows that a winner decides     their maxima to all; then of each rank the best token to all
//! rows that a list decides       of each rank the first k tokens, to the row's owner
//! all others                     of each rank the tile maxima, to the owner; then in rounds, as long as
//!                                an owner has a query:
//!                                    the queries of all owners to all
//!                                    the responses of all ranks to the owners
//! ```
//!
//! Scores are formed with the maximum of the whole row, so scores of several ranks compare (S2). A tile that
//! a border cuts has its maximum from all its parts, whose sums are added before they are scaled (S1).

use gumball_cpu::{About, Chosen, PartRow, Query, Shard, Task, Winner, Workspace, has_raw_row};
use gumball_spec::logprobs::Logprobs;
use gumball_spec::num::key_id;
use gumball_spec::{Error, NONE, Reading, Result, Row, SamplingParams, Status};

use crate::group::{Group, What};
use crate::layout::Needs;
use crate::share::VocabSplit;
use crate::words::{
    Reader, RowQuery, bytes_of, most_response_words, pack_response, push_long, unpack_response, words_of,
};

/// A row of a step, of which this rank has a part.
#[derive(Clone, Copy, Debug)]
pub struct SurveyRow<'a> {
    /// The logits of this rank's ids.
    pub part: Row<'a>,
    /// The task of the whole row.
    pub task: Task<'a>,
    /// What decides it; all ranks have the same.
    pub needs: Needs,
    /// The rank that draws from it, unless a winner decides it.
    pub owner: usize,
}

/// Threads that work on several rows at a time.
pub trait Spread {
    /// Does all items, each on one thread with stages that no other thread is using.
    ///
    /// # Errors
    /// That of an item that has one.
    fn each<T: Send>(
        &self,
        items: Vec<T>,
        work: impl Fn(&mut T, &mut Workspace) -> Result<()> + Sync,
    ) -> Result<Vec<T>>;
}

/// The result of a row.
#[derive(Debug)]
pub struct Surveyed<'a> {
    /// Token, status and the like.
    pub chosen: Chosen,
    /// Its logprobs, if the request asks for them.
    pub logprobs: Option<&'a Logprobs>,
    /// The ids that its filters kept, if the workspace collects them.
    pub kept: &'a [u32],
}

/// Chooses the token of each row. `write` takes what came out: of a row that a winner decides on every rank,
/// and of any other on its owner.
///
/// # Errors
/// The errors of [`Group::all_to_all`], and [`RanksError::Corrupt`](gumball_spec::RanksError::Corrupt) for a
/// message that says what no rank says.
///
/// # Panics
/// If a row needs to be [whole](Needs::Whole).
pub fn survey_rows(
    group: &mut Group,
    split: &VocabSplit,
    (workspace, spread): (&mut Workspace, &impl Spread),
    rows: &[SurveyRow<'_>],
    shards: &mut Vec<Shard>,
    write: &mut dyn FnMut(usize, Surveyed<'_>),
) -> Result<()> {
    shards.resize_with(shards.len().max(rows.len()), Shard::default);
    let ids = split.ids(group.rank());
    spread.each(rows.iter().zip(shards.iter_mut()).collect(), |(row, shard), workspace| {
        assert!(row.needs < Needs::Whole, "a row that is needed whole");
        workspace.open_shard(row.part, ids.clone(), &row.task, shard)
    })?;
    let mut step = Step { group, split, workspace, spread, rows, shards, write };
    step.winners()?;
    step.lists()?;
    step.others()
}

/// A step under way.
struct Step<'s, 'a, S> {
    group: &'s mut Group,
    split: &'s VocabSplit,
    /// The stages of rows that this rank owns.
    workspace: &'s mut Workspace,
    spread: &'s S,
    rows: &'s [SurveyRow<'a>],
    shards: &'s [Shard],
    write: &'s mut dyn FnMut(usize, Surveyed<'_>),
}

/// The rounds in which rows are asked about.
struct Rounds {
    /// Of each row whether its owner may ask about it.
    open: Vec<bool>,
    /// The most ids that the logprobs of a row are asked for.
    most_ids: usize,
    /// How many there were.
    done: usize,
}

/// How many rounds rows take at most, besides those for the ranks of ids.
const MOST_ROUNDS: usize = 256;

/// The bytes of a word of a message.
const WORD: usize = size_of::<u32>();

/// The bit that says that a rank has no token of a row; ids take those below.
const NO_TOKEN: u32 = 1 << 20;
/// Statuses take the bits from there on.
const STATUS: u32 = 24;

impl<S: Spread> Step<'_, '_, S> {
    fn with(&self, needs: Needs) -> Vec<usize> {
        (0..self.rows.len()).filter(|row| self.rows[*row].needs == needs).collect()
    }

    /// Returns the rows among some that this rank owns.
    fn own(&self, mut rows: Vec<usize>) -> Vec<usize> {
        rows.retain(|row| self.rows[*row].owner == self.group.rank());
        rows
    }

    fn corrupt<T>(&mut self, rank: usize, what: &str) -> Result<T> {
        Err(self.group.corrupt(rank, what))
    }

    /// Rows that a winner decides.
    fn winners(&mut self) -> Result<()> {
        let rows = self.with(Needs::Winner);
        let is_greedy =
            |row: usize| SamplingParams::is_greedy(self.rows[row].task.prepared.params().temperature);
        let raced: Vec<usize> = rows.iter().copied().filter(|row| !is_greedy(*row)).collect();
        let mut firsts = vec![f32::NEG_INFINITY; self.rows.len()];
        if !raced.is_empty() {
            let words: Vec<u32> = raced.iter().map(|row| self.shards[*row].first().to_bits()).collect();
            let messages =
                self.group.all_gather(What::RowMaxima, &bytes_of(&words), |_| WORD * raced.len())?;
            for (rank, message) in messages.iter().enumerate() {
                let words = words_of(message);
                if words.len() != raced.len() {
                    return self.corrupt(rank, "another number of maxima");
                }
                for (row, word) in raced.iter().zip(words) {
                    firsts[*row] = firsts[*row].max(f32::from_bits(word));
                }
            }
        }
        if rows.is_empty() {
            return Ok(());
        }
        let best = self.spread.each(
            rows.iter().map(|row| (*row, Winner::NONE)).collect(),
            |(row, best), stages| {
                let (SurveyRow { part, task, .. }, shard) = (&self.rows[*row], &self.shards[*row]);
                *best = stages.winner(*part, shard, task, firsts[*row]);
                Ok(())
            },
        )?;
        let mut words = Vec::with_capacity(2 * rows.len());
        for (row, Winner { score, id, logit }) in best {
            let score = if is_greedy(row) { logit } else { score };
            let id = if id == u32::MAX { NO_TOKEN } else { id };
            words.extend([score.to_bits(), id | self.shards[row].status().0 << STATUS]);
        }
        let messages = self.group.all_gather(What::Winners, &bytes_of(&words), |_| 2 * WORD * rows.len())?;
        let mut found = vec![(Winner::NONE, Status::default()); rows.len()];
        for (rank, message) in messages.iter().enumerate() {
            let words = words_of(message);
            if words.len() != 2 * rows.len() {
                return self.corrupt(rank, "another number of winners");
            }
            for (found, words) in found.iter_mut().zip(words.chunks_exact(2)) {
                let (score, id) = (f32::from_bits(words[0]), words[1] & ((1 << STATUS) - 1));
                found.1.insert(Status(words[1] >> STATUS));
                if id != NO_TOKEN {
                    if !self.split.ids(rank).contains(&(id as usize)) || score.is_nan() {
                        return self.corrupt(rank, "a winner that it does not have");
                    }
                    found.0 = found.0.or(Winner { score, id, logit: score });
                }
            }
        }
        for (row, (winner, mut status)) in rows.into_iter().zip(found) {
            let task = &self.rows[row].task;
            let params = task.prepared.params();
            let is_empty = winner.id == u32::MAX;
            if is_empty {
                status.insert(Status::EMPTY);
            }
            status.insert(task.forced_status());
            let drawn = if is_empty { NONE } else { winner.id as i32 };
            let is_greedy = SamplingParams::is_greedy(params.temperature) && !is_empty;
            let chosen = Chosen {
                token: task.emitted().map_or(drawn, |forced| forced.id as i32),
                status,
                mu: task.mu,
                temperature: if is_greedy { 0.0 } else { params.temperature },
            };
            let chosen = Chosen::unread(task).unwrap_or(chosen);
            (self.write)(row, Surveyed { chosen, logprobs: None, kept: &[] });
        }
        Ok(())
    }

    /// Rows that a list decides.
    fn lists(&mut self) -> Result<()> {
        let rows = self.with(Needs::List);
        if rows.is_empty() {
            return Ok(());
        }
        let mut messages = vec![Vec::new(); self.group.world()];
        let lists = self.spread.each(
            rows.iter().map(|row| (*row, Vec::new())).collect(),
            |(row, keys), stages| {
                let SurveyRow { part, task, .. } = &self.rows[*row];
                stages.list_shard(*part, &self.shards[*row], k_of(task), keys);
                Ok(())
            },
        )?;
        for (row, keys) in lists {
            let message = &mut messages[self.rows[row].owner];
            message.push(keys.len() as u32 | self.shards[row].status().0 << STATUS);
            keys.iter().for_each(|key| push_long(message, *key));
        }
        let messages: Vec<Vec<u8>> = messages.iter().map(|words| bytes_of(words)).collect();
        let own = self.own(rows);
        let most_words: usize = own.iter().map(|row| 1 + 2 * k_of(&self.rows[*row].task)).sum();
        let received = self.group.all_to_all(What::Lists, &messages, |_| WORD * most_words)?;
        let received: Vec<Vec<u32>> = received.iter().map(|message| words_of(message)).collect();
        let mut readers: Vec<Reader<'_>> = received.iter().map(|words| Reader(words)).collect();
        for row in own {
            let task = &self.rows[row].task;
            let (mut keys, mut status) = (Vec::new(), Status::default());
            for (rank, reader) in readers.iter_mut().enumerate() {
                let ids = self.split.ids(rank);
                let list = read_list(reader, k_of(task), &ids, &mut keys, &mut status);
                if list.is_none() {
                    return self.corrupt(rank, "a list that is none");
                }
            }
            let mut row_of_list = PartRow::of_list(self.split.vocab(), keys.into_iter());
            row_of_list.add_status(status);
            let Ok(chosen) = self.workspace.conclude(&mut row_of_list, task)? else {
                unreachable!("a list is all that the filters are given");
            };
            self.write(row, chosen);
        }
        Ok(())
    }

    /// All other rows.
    fn others(&mut self) -> Result<()> {
        let rows = self.with(Needs::Mass);
        if rows.is_empty() {
            return Ok(());
        }
        let mut messages = vec![Vec::new(); self.group.world()];
        for row in &rows {
            let (message, shard) = (&mut messages[self.rows[*row].owner], &self.shards[*row]);
            message.push(shard.status().0);
            for maxima in [Some(shard.maxima()), shard.raw_maxima()].into_iter().flatten() {
                message.extend(maxima.iter().map(|maximum| maximum.to_bits()));
            }
        }
        let messages: Vec<Vec<u8>> = messages.iter().map(|words| bytes_of(words)).collect();
        let own_rows = self.own(rows.clone());
        let maxima_of = |row: &usize| 1 + usize::from(has_raw_row(&self.rows[*row].task));
        let maxima: usize = own_rows.iter().map(maxima_of).sum();
        let most_words = |rank: usize| own_rows.len() + maxima * self.split.tiles(rank).len();
        let received = self.group.all_to_all(What::TileMaxima, &messages, |rank| WORD * most_words(rank))?;
        let received: Vec<Vec<u32>> = received.iter().map(|message| words_of(message)).collect();
        let mut readers: Vec<Reader<'_>> = received.iter().map(|words| Reader(words)).collect();
        let mut own = Vec::new();
        for row in own_rows {
            let has_raw = has_raw_row(&self.rows[row].task);
            let mut known = PartRow::new(self.split.vocab(), has_raw);
            for (rank, reader) in readers.iter_mut().enumerate() {
                if read_maxima(reader, self.split, rank, has_raw, &mut known).is_none() {
                    return self.corrupt(rank, "tile maxima that are none");
                }
            }
            own.push((row, known));
        }
        let ids_of = |row: &usize| {
            let logprobs = self.rows[*row].task.prepared.params().logprobs.as_ref();
            logprobs.map_or(0, |logprobs| logprobs.ids.len())
        };
        let mut rounds = Rounds {
            open: vec![false; self.rows.len()],
            most_ids: rows.iter().map(ids_of).max().unwrap_or(0),
            done: 0,
        };
        rows.iter().for_each(|row| rounds.open[*row] = true);
        loop {
            let mut open = Vec::new();
            let mut sent = Vec::new();
            for (row, mut known) in own {
                match self.workspace.conclude(&mut known, &self.rows[row].task)? {
                    Ok(chosen) => self.write(row, chosen),
                    Err((raw, query)) => {
                        let first = known.first(raw);
                        let cut_maxima = match query {
                            Query::Sums { .. } => {
                                let tiles = self.split.cut_tiles();
                                tiles.iter().map(|tile| known.maximum(raw, *tile)).collect()
                            }
                            _ => Vec::new(),
                        };
                        sent.push(RowQuery { row, raw, first, cut_maxima, query });
                        open.push((row, known));
                    }
                }
            }
            if !self.round(&sent, &mut open, &mut rounds)? {
                return Ok(());
            }
            own = open;
        }
    }

    fn write(&mut self, row: usize, chosen: Chosen) {
        let (logprobs, kept) = (self.workspace.logprobs(), self.workspace.kept());
        (self.write)(row, Surveyed { chosen, logprobs, kept });
    }

    /// Sends this rank's queries, responds to the queries of all ranks, and adds the responses to its rows;
    /// returns whether any rank had a query.
    fn round(
        &mut self,
        sent: &[RowQuery],
        open: &mut [(usize, PartRow)],
        rounds: &mut Rounds,
    ) -> Result<bool> {
        let mut words = Vec::new();
        sent.iter().for_each(|sent| sent.pack(&mut words));
        let cut_tiles = self.split.cut_tiles();
        let most_words = RowQuery::most_words(cut_tiles.len(), rounds.most_ids);
        let open_rows = |rank: usize| {
            self.rows.iter().zip(&rounds.open).filter(|(row, open)| **open && row.owner == rank).count()
        };
        let most_bytes = |rank| WORD * most_words * open_rows(rank);
        let queries = self.group.all_gather(What::Queries, &bytes_of(&words), most_bytes)?;
        let Some(asking) = queries.iter().position(|queries| !queries.is_empty()) else { return Ok(false) };
        rounds.done += 1;
        // The rank of each id takes one query, of the row with and without its edits.
        if rounds.done > MOST_ROUNDS + 2 * (1 + rounds.most_ids) {
            return self.corrupt(asking, "more queries than a row has");
        }
        let was_open = std::mem::replace(&mut rounds.open, vec![false; self.rows.len()]);
        let mut all = Vec::new();
        for (rank, message) in queries.iter().enumerate() {
            let words = words_of(message);
            let mut reader = Reader(&words);
            while !reader.0.is_empty() {
                let sent = RowQuery::unpack(&mut reader, cut_tiles.len());
                // A row that had no query in the round before is done, and one that has one in this round has
                // no other.
                let is_due = |sent: &RowQuery| {
                    let is_own = self.rows.get(sent.row).is_some_and(|row| row.owner == rank);
                    is_own && was_open[sent.row] && !rounds.open[sent.row]
                };
                let Some(sent) = sent.filter(is_due) else {
                    return self.corrupt(rank, "a query that is none");
                };
                rounds.open[sent.row] = true;
                all.push((rank, sent, Vec::new()));
            }
        }
        let own_ends = ends(self.split, self.group.rank(), &cut_tiles);
        let all = self.spread.each(all, |(_, sent, response), stages| {
            let (SurveyRow { part, task, .. }, shard) = (&self.rows[sent.row], &self.shards[sent.row]);
            let cut_maxima = own_ends.map(|end| sent.cut_maxima.get(end?).copied());
            let about = About { raw: sent.raw, first: sent.first, cut_maxima };
            let own = stages.respond(*part, shard, task, &sent.query, about);
            pack_response(&own, own_ends.map(|end| end.is_some()), response);
            Ok(())
        })?;
        let mut messages: Vec<Vec<u8>> = vec![Vec::new(); self.group.world()];
        for (rank, _, response) in &all {
            if messages[*rank].try_reserve(WORD * response.len()).is_err() {
                let reason = format!("the responses to the queries of rank {rank} do not fit");
                return Err(Error::Unavailable { resource: "memory for an exchange", reason });
            }
            messages[*rank].extend(bytes_of(response));
        }
        drop(all);
        let most_words = |rank| -> usize {
            let ids = self.split.ids(rank).len();
            sent.iter().map(|sent| most_response_words(&sent.query, ids)).sum()
        };
        let received = self.group.all_to_all(What::Responses, &messages, |rank| WORD * most_words(rank))?;
        let received: Vec<Vec<u32>> = received.iter().map(|message| words_of(message)).collect();
        let mut readers: Vec<Reader<'_>> = received.iter().map(|words| Reader(words)).collect();
        for (sent, (_, known)) in sent.iter().zip(open) {
            let mut responses = Vec::new();
            for (rank, reader) in readers.iter_mut().enumerate() {
                let (ids, cut) =
                    (self.split.ids(rank), ends(self.split, rank, &cut_tiles).map(|end| end.is_some()));
                let Some(response) = unpack_response(&sent.query, &ids, cut, reader) else {
                    return self.corrupt(rank, "an response that is none");
                };
                responses.push((ids, cut, response));
            }
            known.add(sent.raw, &sent.query, responses);
        }
        Ok(true)
    }
}

/// Returns the place among the cut tiles of a rank's first tile, and of its last, where a border cuts them;
/// of one that is both, once.
fn ends(split: &VocabSplit, rank: usize, cut_tiles: &[usize]) -> [Option<usize>; 2] {
    let tiles = split.tiles(rank);
    if tiles.is_empty() {
        return [None; 2];
    }
    let place = |tile: usize| cut_tiles.binary_search(&tile).ok();
    let last = if tiles.len() == 1 { None } else { place(tiles.end - 1) };
    [place(tiles.start), last]
}

/// Returns how many first tokens decide a row that a list decides.
fn k_of(task: &Task<'_>) -> usize {
    match task.prepared.reading() {
        Reading::Top(k) => k,
        _ => unreachable!("other rows have no list"),
    }
}

/// Takes a rank's list of a row off its message.
fn read_list(
    from: &mut Reader<'_>,
    k: usize,
    ids: &std::ops::Range<usize>,
    keys: &mut Vec<u64>,
    status: &mut Status,
) -> Option<()> {
    let word = from.word()?;
    status.insert(Status(word >> STATUS));
    let count = (word & ((1 << STATUS) - 1)) as usize;
    if count > k {
        return None;
    }
    for _ in 0..count {
        let key = from.long()?;
        // No key of -inf or NaN.
        let is_token = gumball_spec::num::key_logit(key).abs() <= f32::MAX;
        if !is_token || !ids.contains(&(key_id(key) as usize)) {
            return None;
        }
        keys.push(key);
    }
    Some(())
}

/// Takes a rank's tile maxima of a row off its message.
fn read_maxima(
    from: &mut Reader<'_>,
    split: &VocabSplit,
    rank: usize,
    has_raw: bool,
    known: &mut PartRow,
) -> Option<()> {
    known.add_status(Status(from.word()?));
    let tiles = split.tiles(rank);
    for raw in [false, true].into_iter().take(1 + usize::from(has_raw)) {
        let maxima: Option<Vec<f32>> = tiles.clone().map(|_| from.logit()).collect();
        known.add_maxima(raw, tiles.start, &maxima?);
    }
    Some(())
}
