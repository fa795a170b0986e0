//! The lists of a request: its table of entries, its bitmaps, its history, in one piece of memory a slot.
//!
//! Made on the host and copied at once. The memory only grows, so a slot that is used again takes none.

use std::sync::Arc;

use bytemuck::Zeroable;
use gumball_spec::{Error, Result, TILE};

use crate::abi::{Params, Request, TokenEntry, features};
use crate::edit::Edits;
use crate::runtime::{Buffer, Runtime};

/// A request's history when it is put into a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct History<'a> {
    pub prompt: &'a [u32],
    pub output: &'a [u32],
    /// How many more ids there shall be room for.
    pub room: usize,
}

impl History<'_> {
    fn ids(&self) -> impl Iterator<Item = u32> {
        self.prompt.iter().chain(self.output).copied()
    }

    fn len(&self) -> usize {
        self.prompt.len() + self.output.len()
    }

    /// Returns how many ids it can grow to.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if that is no u32.
    fn end(&self) -> Result<u32> {
        let end = self.len().checked_add(self.room).and_then(|end| u32::try_from(end).ok());
        end.ok_or_else(|| {
            Error::out_of_range("room", self.room, "less than 2^32 together with the history's length")
        })
    }
}

/// Lists being laid out in units of an entry, so that each begins where any of them may.
#[derive(Debug, Default)]
pub(crate) struct RequestBuffersBuilder {
    units: Vec<TokenEntry>,
}

const UNIT: usize = size_of::<TokenEntry>();

impl RequestBuffersBuilder {
    /// Appends zeros for a list of words and returns where it begins, in units.
    fn reserve(&mut self, bytes: usize) -> usize {
        let start = self.units.len();
        self.units.resize(start + bytes.div_ceil(UNIT), TokenEntry::zeroed());
        start
    }

    fn words(&mut self, start: usize) -> &mut [u32] {
        bytemuck::cast_slice_mut(&mut self.units[start..])
    }

    /// Appends a list and returns where it begins, in units.
    fn append(&mut self, list: &[u32]) -> usize {
        let start = self.reserve(size_of_val(list));
        self.words(start)[..list.len()].copy_from_slice(list);
        start
    }

    /// Appends the bitmap of touched ids, which begins at 0, and their table, at most half full with all ids that may
    /// join it; returns where the table begins and its size.
    fn table(&mut self, vocab: usize, edits: &Edits, history: History<'_>) -> (usize, usize) {
        let ends = edits.bad_word_ends.iter().map(|end| edits.bad_words[*end as usize - 1]);
        let biased = edits.bias.iter().map(|(id, _)| *id);
        let listed = biased.chain(edits.stop_ids.iter().copied()).chain(ends);
        let inside = |id: &u32| (*id as usize) < vocab;
        let bits = self.reserve(vocab.div_ceil(TILE) * TILE / 8);
        let touched = self.words(bits);
        let mut distinct = 0;
        for id in listed.clone().chain(history.ids().filter(inside)) {
            let (word, bit) = (id as usize / 32, 1 << (id % 32));
            distinct += usize::from(touched[word] & bit == 0);
            touched[word] |= bit;
        }

        let size = (2 * vocab.min(distinct + history.room)).next_power_of_two();
        let start = self.reserve(size * UNIT);
        let entries = &mut self.units[start..];
        listed.for_each(|id| _ = entry(entries, id));
        edits.bias.iter().for_each(|(id, bias)| entry(entries, *id).bias = *bias);
        history.prompt.iter().copied().filter(inside).for_each(|id| entry(entries, id).prompt_count += 1);
        history.output.iter().copied().filter(inside).for_each(|id| entry(entries, id).output_count += 1);
        (start, size)
    }
}

/// Returns the entry of an id, made if there is none: the twin of `find_entry` in `edits.cuh`. The number of entries is
/// a power of two, 2 or more, and one at least is empty. Kernels read them in pairs.
fn entry(entries: &mut [TokenEntry], id: u32) -> &mut TokenEntry {
    let mask = entries.len() - 1;
    let x = id.wrapping_mul(0x9E37_79B1);
    let mut place = (x ^ x >> 15) as usize & mask & !1;
    while ![0, id + 1].contains(&entries[place].id_plus_1) {
        place = (place + 1) & mask;
    }
    entries[place].id_plus_1 = id + 1;
    &mut entries[place]
}

/// The memory of a slot's lists.
#[derive(Debug, Default)]
pub(crate) struct RequestBuffers {
    memory: Option<Buffer>,
}

impl RequestBuffers {
    /// Writes the lists of a request and returns where they lie.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the history can grow beyond 2^32 ids.
    /// - [`Error::Unavailable`] if the machine has not enough memory, or fails.
    pub fn write(
        &mut self,
        machine: &Arc<dyn Runtime>,
        builder: &mut RequestBuffersBuilder,
        params: &Params,
        vocab: usize,
        edits: &Edits,
        history: History<'_>,
    ) -> Result<Request> {
        let has = |bits: u32| params.features & bits != 0;
        let mut request = Request::default();
        if !has(features::EDITS | features::BANNED_IDS | features::KEEP_HISTORY) {
            return Ok(request);
        }
        let end = history.end()?;
        builder.units.clear();
        let (touched, mut entries) = (0, 0);
        if has(features::EDITS) {
            let counted = if has(features::TOKEN_COUNTS) { history } else { History::default() };
            let (table, size) = builder.table(vocab, edits, counted);
            request.entries_mask = size as u32 - 1;
            entries = table;
        }
        let allowed = edits.allowed.as_ref().map(|allowed| builder.append(allowed));
        let lists = [&edits.stop_ids, &edits.breakers, &edits.bad_words, &edits.bad_word_ends];
        let [stop_ids, breakers, bad_words, ends] = lists.map(|list| builder.append(list));
        let mut ids = builder.units.len();
        let mut bytes = ids * UNIT;
        if has(features::TOKEN_COUNTS | features::HISTORY_EDITS | features::KEEP_HISTORY) {
            request.history_capacity = end;
            ids = builder.reserve(history.len() * size_of::<u32>());
            builder.words(ids).iter_mut().zip(history.ids()).for_each(|(place, id)| *place = id);
            // The last unit may reach beyond the last id.
            bytes += (end as usize * size_of::<u32>()).next_multiple_of(UNIT);
        }

        let memory = match &mut self.memory {
            Some(memory) if memory.bytes() >= bytes => memory,
            memory => memory.insert(Buffer::zeroed(machine, bytes.next_power_of_two())?),
        };
        memory.write(0, &builder.units)?;
        let at = |unit: usize| memory.address() + (unit * UNIT) as u64;
        request.entries = at(entries);
        request.touched = at(touched);
        request.allowed = allowed.map_or(0, at);
        request.stop_ids = at(stop_ids);
        request.breakers = at(breakers);
        request.bad_words = at(bad_words);
        request.bad_word_ends = at(ends);
        request.history = at(ids);
        request.stop_count = edits.stop_ids.len() as u32;
        request.breaker_count = edits.breakers.len() as u32;
        request.bad_word_count = edits.bad_word_ends.len() as u32;
        Ok(request)
    }

    /// Reads the ids of a history back.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if the machine fails.
    pub fn read_history(&self, request: &Request, length: u32) -> Result<Vec<u32>> {
        let mut ids = vec![0; length.min(request.history_capacity) as usize];
        if let Some(memory) = &self.memory {
            memory.read((request.history - memory.address()) as usize, &mut ids)?;
        }
        Ok(ids)
    }
}
