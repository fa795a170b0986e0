//! The sequences of a pool by slot, wherever its rows are computed: which slots are taken, and the host's
//! copy of each sequence.
//!
//! The host's copy is the record. A device may be ahead of it (`ahead.rs`), and catches it up before
//! anything here reads or changes the sequence (`device/catch_up.rs`).

use gumball_dist::{StepKind, StepShape};
use gumball_spec::request::check_hook;
use gumball_spec::{Error, Kind, NONE, Reading, Result, memory};

use crate::ahead::Ahead;
use crate::batch::Batch;
use crate::masks::Masks;
use crate::outputs::Outputs;
use crate::sequence::Sequence;
use crate::slot::{PADDING, Slot};
use crate::verify_mode::VerifyMode;

/// The table of a pool's sequences.
#[derive(Debug)]
pub(crate) struct Slots {
    /// The slots that were ever used. This list, `vacant` and `seen` have the capacity for all slots from the
    /// start.
    entries: Vec<Option<Entry>>,
    capacity: usize,
    /// Slots that were used and are free again.
    vacant: Vec<Slot>,
    /// The number of the check that last met each used slot. A check that meets a slot twice finds it here.
    seen: Vec<u64>,
    checks: u64,
}

/// How many kinds of requests the error of a lost device describes.
const MOST_OUTLINES: usize = 32;

/// The host's record of a sequence in flight.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The sequence without the tokens that `ahead` has.
    sequence: Sequence,
    pub ahead: Ahead,
}

/// The caller's change of a sequence.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// It was placed in its slot.
    Placed,
    /// This id was appended.
    Pushed(u32),
    /// The last ids, of this number, were taken away.
    Shortened(usize),
}

/// Where rows are computed, as far as the table must tell it what becomes of sequences.
pub(crate) trait Copies {
    /// Returns whether it has copies of sequences. If not, the host's are changed where they lie, and `write`
    /// can only fail where a sequence is placed.
    fn has_copies(&self) -> bool {
        false
    }

    /// Writes a sequence to its slot, as the caller has left it.
    fn write(&mut self, _slot: Slot, _sequence: &Sequence, _change: Change) -> Result<()> {
        Ok(())
    }

    /// Forgets the sequence of a slot; a row that is assigned to it becomes padding.
    fn forget(&mut self, slot: Slot) -> Result<()>;
}

impl Entry {
    fn new(sequence: Sequence) -> Self {
        Self { sequence, ahead: Ahead::default() }
    }

    /// Returns the sequence with all tokens that were fetched.
    pub fn known(&mut self) -> &mut Sequence {
        self.ahead.fetched.drain(..).for_each(|(id, mu)| self.sequence.push(id, mu));
        &mut self.sequence
    }

    /// Returns the number of ids in the history, those included that were fetched and not yet appended.
    pub fn length(&self) -> usize {
        self.sequence.history().ids().len() + self.ahead.fetched.len()
    }
}

impl Slots {
    /// Makes a table without sequences. The system provides each slot's memory when the slot is first used.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a number of slots outside 1..2^31.
    /// - [`Error::Unavailable`] if the system refuses the memory of the slots.
    pub fn new(capacity: usize) -> Result<Self> {
        if !(1..=i32::MAX as usize).contains(&capacity) {
            return Err(Error::out_of_range("slots", capacity, "in 1..2^31"));
        }
        let resource = "memory for slots";
        Ok(Self {
            entries: memory::with_capacity(resource, capacity)?,
            capacity,
            vacant: memory::with_capacity(resource, capacity)?,
            seen: memory::with_capacity(resource, capacity)?,
            checks: 0,
        })
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Adds to the error of a lost device what the sequences had asked for, for a server's log.
    pub fn told(&self, error: Error) -> Error {
        let Error::DeviceLost { mut reason } = error else { return error };
        let mut asked: Vec<(String, usize)> = Vec::new();
        for entry in self.entries.iter().flatten() {
            let line = entry.sequence.params().outline();
            match asked.iter_mut().find(|(known, _)| *known == line) {
                Some((_, count)) => *count += 1,
                None => asked.push((line, 1)),
            }
        }
        let mut lines: Vec<String> = asked
            .iter()
            .take(MOST_OUTLINES)
            .map(|(line, count)| format!("{count} with parameters: {line}"))
            .collect();
        if asked.len() > lines.len() {
            lines.push(format!("{} kinds more", asked.len() - lines.len()));
        }
        reason += &format!("; sequences of the pool: {}", lines.join("; "));
        Error::DeviceLost { reason }
    }

    fn entry(&self, slot: Slot) -> Option<&Entry> {
        usize::try_from(slot).ok().and_then(|slot| self.entries.get(slot)).and_then(Option::as_ref)
    }

    /// Returns the entry of a slot that was checked.
    pub fn entry_mut(&mut self, slot: Slot) -> &mut Entry {
        self.entries[slot as usize].as_mut().expect("checked: admitted")
    }

    /// Returns the host's copy of a slot's sequence, which a device may be ahead of.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant.
    pub fn sequence(&self, slot: Slot) -> Result<&Sequence> {
        let entry = self.entry(slot).ok_or_else(|| Error::out_of_range("slot", slot, "an admitted slot"))?;
        Ok(&entry.sequence)
    }

    /// Returns the host's copy of the sequence in a slot that was checked.
    pub fn admitted(&self, slot: Slot) -> &Sequence {
        &self.entry(slot).expect("checked: admitted").sequence
    }

    /// Returns the host's copy of the sequence in a slot that was checked, with all tokens that were fetched.
    pub fn admitted_mut(&mut self, slot: Slot) -> &mut Sequence {
        self.entry_mut(slot).known()
    }

    /// Does work with the tokens that devices are ahead by, for each of `slots` that is no padding; they were
    /// checked.
    pub fn each_ahead(&mut self, slots: &[Slot], mut work: impl FnMut(&mut Ahead)) {
        for slot in slots.iter().filter(|slot| **slot != PADDING) {
            work(&mut self.entry_mut(*slot).ahead);
        }
    }

    /// Takes the host's copies of all sequences for equal to the device's.
    pub fn forget_unseen(&mut self) {
        self.entries.iter_mut().flatten().for_each(|entry| entry.ahead.forget_unseen());
    }

    /// Places a sequence in a vacant slot.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if all slots are taken.
    /// - The errors of [`Copies::write`]. Nothing was changed then.
    pub fn place(&mut self, sequence: Sequence, copies: &mut (impl Copies + ?Sized)) -> Result<Slot> {
        let slot = self.vacant.last().copied().unwrap_or(self.entries.len() as Slot);
        if slot as usize == self.capacity {
            let full = format!("at most {}, all taken; release one first", self.capacity);
            return Err(Error::out_of_range("slots", self.capacity + 1, full));
        }
        copies.write(slot, &sequence, Change::Placed)?;
        if self.vacant.pop().is_none() {
            self.entries.push(None);
            self.seen.push(0);
        }
        self.entries[slot as usize] = Some(Entry::new(sequence));
        Ok(slot)
    }

    /// Makes a slot vacant, once the sequence is forgotten where its rows are computed.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant already.
    /// - The errors of [`Copies::forget`]. The slot is taken then.
    pub fn release(&mut self, slot: Slot, copies: &mut (impl Copies + ?Sized)) -> Result<()> {
        self.sequence(slot)?;
        copies.forget(slot)?;
        self.entries[slot as usize] = None;
        self.vacant.push(slot);
        Ok(())
    }

    /// Appends a token to an up-to-date sequence; `mu` stays.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if the slot is vacant.
    /// - The errors of [`Copies::write`]. Nothing was changed then.
    pub fn push(&mut self, slot: Slot, id: u32, copies: &mut (impl Copies + ?Sized)) -> Result<()> {
        self.sequence(slot)?;
        self.change(slot, Change::Pushed(id), copies)
    }

    /// Checks the slots from which tokens are to be taken away, before their sequences are brought up to
    /// date.
    ///
    /// # Errors
    /// - [`Error::Length`] if there is not one count for each slot.
    /// - [`Error::OutOfRange`] for a vacant slot, and one that stands there twice.
    pub fn check_counts(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()> {
        if counts.len() != slots.len() {
            return Err(Error::length("counts", counts.len(), format!("one per slot, {}", slots.len())));
        }
        slots.iter().try_for_each(|slot| self.sequence(*slot).map(drop))?;
        self.check(slots)
    }

    /// Takes away the last `counts[i]` output tokens of the up-to-date sequence in `slots[i]`, which
    /// [`Slots::check_counts`] has checked.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for more tokens than can be taken away. Nothing was changed then.
    /// - The errors of [`Copies::write`].
    pub fn shorten(
        &mut self,
        slots: &[Slot],
        counts: &[usize],
        copies: &mut (impl Copies + ?Sized),
    ) -> Result<()> {
        let counted = || slots.iter().copied().zip(counts.iter().copied());
        for (slot, count) in counted() {
            let most = self.admitted(slot).most_to_take_away();
            if count > most {
                let value = format!("{count} of slot {slot}");
                return Err(Error::out_of_range(
                    "counts",
                    value,
                    format!("in 0..={most}, its output tokens"),
                ));
            }
        }
        for (slot, count) in counted().filter(|(_, count)| *count > 0) {
            self.change(slot, Change::Shortened(count), copies)?;
        }
        Ok(())
    }

    /// Changes an up-to-date sequence on the host and where its rows are computed. If an error occurs, both
    /// keep the old one.
    fn change(&mut self, slot: Slot, change: Change, copies: &mut (impl Copies + ?Sized)) -> Result<()> {
        let apply = |sequence: &mut Sequence| match change {
            Change::Placed => Ok(()),
            Change::Pushed(id) => {
                sequence.push(id, sequence.mu());
                Ok(())
            }
            Change::Shortened(count) => sequence.shorten(count),
        };
        if !copies.has_copies() {
            apply(self.admitted_mut(slot))?;
            return copies.write(slot, self.admitted(slot), change);
        }
        let mut sequence = self.admitted(slot).clone();
        apply(&mut sequence)?;
        copies.write(slot, &sequence, change)?;
        *self.entry_mut(slot) = Entry::new(sequence);
        Ok(())
    }

    /// Checks that the slots of a step are admitted, and none but padding stands there twice.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if not, with the row.
    pub fn check(&mut self, slots: &[Slot]) -> Result<()> {
        self.checks += 1;
        for (row, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
            if self.entry(*slot).is_none() {
                let value = format!("{slot} in row {row}");
                return Err(Error::out_of_range("slots", value, "an admitted slot, or -1 for padding"));
            }
            let seen = &mut self.seen[*slot as usize];
            if *seen == self.checks {
                let value = format!("{slot} in row {row} again");
                return Err(Error::out_of_range("slots", value, "a slot that stands in a step once"));
            }
            *seen = self.checks;
        }
        Ok(())
    }

    /// Checks that a request may have a row of a kind, with or without a hook.
    pub fn check_row(&self, slot: Slot, kind: Kind, hooked: bool) -> Result<()> {
        if kind == Kind::Logits {
            return Ok(());
        }
        self.sequence(slot)?.params().check_kind(kind)?;
        check_hook(kind, hooked)
    }

    /// Returns the shape of a step of a batch: what its requests need on the host or on a device, without a
    /// graph. `drafts`: the most of a request; `on_device`: whether rows lie on devices.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a vacant slot.
    pub fn shape(
        &self,
        batch: &Batch<'_>,
        drafts: usize,
        kind: StepKind,
        on_device: bool,
    ) -> Result<StepShape> {
        let (requests, edits) = (batch.slots.len(), !matches!(batch.masks, Masks::None));
        let mut shape = StepShape { requests, drafts, kind, edits, ..StepShape::default() };
        for slot in batch.slots.iter().filter(|slot| **slot != PADDING) {
            let prepared = self.sequence(*slot)?.prepared();
            let reading = match batch.mode {
                VerifyMode::Greedy => Reading::of(prepared.params(), 0.0, prepared.filters(), false),
                _ => prepared.reading(),
            };
            shape.add(prepared.params(), reading, on_device);
        }
        Ok(shape)
    }

    /// Appends the tokens of a step to the sequences.
    pub fn advance(&mut self, slots: &[Slot], out: &Outputs) {
        for (row, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
            self.append_token(*slot, row, out);
        }
    }

    /// Appends the emitted tokens of a verification.
    pub fn append(&mut self, slots: &[Slot], out: &Outputs) {
        for (request, slot) in slots.iter().enumerate().filter(|(_, slot)| **slot != PADDING) {
            out.request(request).places.for_each(|place| self.append_token(*slot, place, out));
        }
    }

    fn append_token(&mut self, slot: Slot, place: usize, out: &Outputs) {
        let (token, mu) = (out.tokens()[place], out.mirostat_mu()[place]);
        if token != NONE {
            self.admitted_mut(slot).push(token as u32, mu);
        }
    }
}
