//! A request's lists, in one buffer per slot: the table of entries, the bitmaps, and the history.
//!
//! The host lays them out and copies them at once. A slot's buffer only grows, so a later request of at most
//! its size allocates nothing.

use std::sync::Arc;

use bytemuck::Zeroable;
use gumball_spec::{Error, Result, TILE};

use crate::abi::{ENTRY_HASH, Params, Request, TokenEntry, features};
use crate::driver::runtime::Runtime;
use crate::memory::buffer::Buffer;
use crate::requests::edit_params::EditLists;

/// A request's history when it enters a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct History<'a> {
    pub prompt: &'a [u32],
    pub output: &'a [u32],
    /// How many more ids the history must be able to take.
    pub growth: usize,
}

impl History<'_> {
    fn ids(&self) -> impl Iterator<Item = u32> {
        self.prompt.iter().chain(self.output).copied()
    }

    fn len(&self) -> usize {
        self.prompt.len() + self.output.len()
    }

    /// Returns the largest number of ids that the history can hold.
    fn capacity(&self) -> Result<u32> {
        let capacity = self.len().checked_add(self.growth).and_then(|ids| u32::try_from(ids).ok());
        capacity.ok_or_else(|| {
            let allowed = "less than 2^32 together with the history's length";
            Error::out_of_range("history_growth", self.growth, allowed)
        })
    }
}

/// Lays lists out in units of a [`TokenEntry`], so that every list is aligned for entries.
#[derive(Debug, Default)]
pub(crate) struct RequestBuffersBuilder {
    units: Vec<TokenEntry>,
}

const UNIT: usize = size_of::<TokenEntry>();

impl RequestBuffersBuilder {
    /// Appends zeros for a list of `bytes` bytes, and returns its offset in units.
    fn reserve(&mut self, bytes: usize) -> usize {
        let start = self.units.len();
        self.units.resize(start + bytes.div_ceil(UNIT), TokenEntry::zeroed());
        start
    }

    fn words(&mut self, start: usize) -> &mut [u32] {
        bytemuck::cast_slice_mut(&mut self.units[start..])
    }

    /// Appends a list, and returns its offset in units.
    fn append(&mut self, list: &[u32]) -> usize {
        let start = self.reserve(size_of_val(list));
        self.words(start)[..list.len()].copy_from_slice(list);
        start
    }

    /// Appends the bitmap of touched ids, whose offset is 0, and the table of their entries. Returns the
    /// table's offset in units and its size in entries. All ids that may join the table fill at most half of
    /// it.
    fn table(&mut self, vocab: usize, edits: &EditLists, history: History<'_>) -> (usize, usize) {
        let last_ids = edits.bad_word_ends.iter().map(|end| edits.bad_words[*end as usize - 1]);
        let biased = edits.bias.iter().map(|(id, _)| *id);
        let listed = biased.chain(edits.stop_ids.iter().copied()).chain(last_ids).chain(edits.last_of_close);
        let inside = |id: &u32| (*id as usize) < vocab;
        let bits = self.reserve(vocab.div_ceil(TILE) * TILE / 8);
        let touched = self.words(bits);
        let mut distinct = 0;
        for id in listed.clone().chain(history.ids().filter(inside)) {
            let (word, bit) = (id as usize / 32, 1 << (id % 32));
            distinct += usize::from(touched[word] & bit == 0);
            touched[word] |= bit;
        }

        let size = (2 * vocab.min(distinct + history.growth)).next_power_of_two();
        let start = self.reserve(size * UNIT);
        let entries = &mut self.units[start..];
        listed.for_each(|id| _ = entry(entries, id));
        edits.bias.iter().for_each(|(id, bias)| entry(entries, *id).bias = *bias);
        history.prompt.iter().copied().filter(inside).for_each(|id| entry(entries, id).prompt_count += 1);
        history.output.iter().copied().filter(inside).for_each(|id| entry(entries, id).output_count += 1);
        (start, size)
    }
}

/// Returns an id's entry, and makes it if there is none: the twin of `find_entry` in `edits.cuh`.
///
/// The number of entries is a power of two and at least 2, and at least one entry is empty. The probe starts
/// at an even index because kernels read entries in pairs.
fn entry(entries: &mut [TokenEntry], id: u32) -> &mut TokenEntry {
    let mask = entries.len() - 1;
    let x = id.wrapping_mul(ENTRY_HASH);
    let mut index = (x ^ x >> 15) as usize & mask & !1;
    while ![0, id + 1].contains(&entries[index].id_plus_1) {
        index = (index + 1) & mask;
    }
    entries[index].id_plus_1 = id + 1;
    &mut entries[index]
}

/// The device memory of a slot's lists.
#[derive(Debug, Default)]
pub(crate) struct RequestBuffers {
    memory: Option<Buffer>,
}

impl RequestBuffers {
    /// Writes a request's lists to the device, and returns their addresses and lengths.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the history's capacity exceeds a u32.
    /// - [`Error::Unavailable`] if the device has not enough memory, or fails.
    pub fn write(
        &mut self,
        runtime: &Arc<dyn Runtime>,
        builder: &mut RequestBuffersBuilder,
        params: &Params,
        vocab: usize,
        edits: &EditLists,
        history: History<'_>,
    ) -> Result<Request> {
        let has = |bits: u32| params.features & bits != 0;
        let mut request = Request::default();
        let has_exempt = !edits.xtc_exempt_ids.is_empty();
        let needed =
            features::EDITS | features::BANNED_IDS | features::HISTORY_EDITS | features::KEEP_HISTORY;
        if !(has(needed) || has_exempt) {
            return Ok(request);
        }
        let capacity = history.capacity()?;
        builder.units.clear();
        let (touched, mut entries) = (0, 0);
        if has(features::EDITS) {
            let counted = if has(features::TOKEN_COUNTS) { history } else { History::default() };
            let (table, size) = builder.table(vocab, edits, counted);
            request.entries_mask = size as u32 - 1;
            entries = table;
        }
        let allowed = edits.allowed.as_ref().map(|allowed| builder.append(allowed));
        let EditLists { stop_ids, breakers, bad_words, bad_word_ends, section, .. } = edits;
        let exempt = [&edits.xtc_exempt_ids, &edits.no_repeat_ngram_exempt_ids];
        let watermark = edits.watermark_words();
        let lists = [stop_ids, breakers, bad_words, bad_word_ends, section, &watermark];
        let [stop_ids, breakers, bad_words, ends, section, watermark] =
            lists.map(|list| builder.append(list));
        let [xtc_exempt_ids, no_repeat_ngram_exempt_ids] = exempt.map(|list| builder.append(list));
        let mut ids = builder.units.len();
        let mut bytes = ids * UNIT;
        if has(features::TOKEN_COUNTS | features::HISTORY_EDITS | features::KEEP_HISTORY) {
            request.history_capacity = capacity;
            ids = builder.reserve(history.len() * size_of::<u32>());
            builder.words(ids).iter_mut().zip(history.ids()).for_each(|(word, id)| *word = id);
            // The capacity is rounded up to whole units, so it may end after the last id.
            bytes += (capacity as usize * size_of::<u32>()).next_multiple_of(UNIT);
        }

        let memory = match &mut self.memory {
            Some(memory) if memory.bytes() >= bytes => memory,
            memory => memory.insert(Buffer::zeroed(runtime, bytes.next_power_of_two())?),
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
        request.xtc_exempt_ids = at(xtc_exempt_ids);
        request.no_repeat_ngram_exempt_ids = at(no_repeat_ngram_exempt_ids);
        request.section = at(section);
        request.watermark = at(watermark);
        request.history = at(ids);
        request.stop_count = edits.stop_ids.len() as u32;
        request.breaker_count = edits.breakers.len() as u32;
        request.bad_word_count = edits.bad_word_ends.len() as u32;
        Ok(request)
    }

    /// Reads the first `length` ids of a history back.
    pub fn read_history(&self, request: &Request, length: u32) -> Result<Vec<u32>> {
        let mut ids = vec![0; length.min(request.history_capacity) as usize];
        if let Some(memory) = &self.memory {
            memory.read((request.history - memory.address()) as usize, &mut ids)?;
        }
        Ok(ids)
    }
}
