//! Merging sorted edits into the overlay, which stays sorted.

use std::ops::Range;

use gumball_spec::Row;
use gumball_spec::row::clean;

use crate::tiles::Overlay;

/// Buffers of a merge.
#[derive(Debug, Default)]
pub struct Merge {
    ids: Vec<u32>,
    z: Vec<f32>,
    raw: Vec<f32>,
}

/// Returns an edited logit: -inf stays, an infinite result becomes the largest finite one (E1).
pub fn edited(z: f32, edit: impl FnOnce(f32) -> f32) -> f32 {
    if z > f32::NEG_INFINITY { edit(z).clamp(-f32::MAX, f32::MAX) } else { z }
}

/// Returns the amounts of some ids, of ascending ones.
pub fn of_ids<'a>(amounts: &'a [(u32, f32)], ids: &Range<u32>) -> &'a [(u32, f32)] {
    let place = |id: u32| amounts.partition_point(|(other, _)| *other < id);
    &amounts[place(ids.start)..place(ids.end)]
}

impl Merge {
    /// Subtracts from the logits of ascending ids, of which the row's first is `start`.
    pub fn subtract(&mut self, overlay: &mut Overlay, row: Row<'_>, start: u32, amounts: &[(u32, f32)]) {
        self.change(
            overlay,
            row,
            amounts,
            |(id, _)| *id - start,
            |(_, amount), z, _| edited(z, |z| z - amount),
        );
    }

    /// Adds to the logits of ascending ids, of which the row's first is `start`.
    pub fn add(&mut self, overlay: &mut Overlay, row: Row<'_>, start: u32, amounts: &[(u32, f32)]) {
        self.change(
            overlay,
            row,
            amounts,
            |(id, _)| *id - start,
            |(_, amount), z, _| edited(z, |z| z + amount),
        );
    }

    /// Adds to the logits of the ascending ids that the overlay does not have yet.
    pub fn add_to_others(&mut self, overlay: &mut Overlay, row: Row<'_>, start: u32, amounts: &[(u32, f32)]) {
        let add = |(_, amount): &(u32, f32), z, there| if there { z } else { edited(z, |z| z + amount) };
        self.change(overlay, row, amounts, |(id, _)| *id - start, add);
    }

    /// Bans ascending ids.
    pub fn ban(&mut self, overlay: &mut Overlay, row: Row<'_>, ids: &[u32]) {
        self.change(overlay, row, ids, |id| *id, |_, _, _| f32::NEG_INFINITY);
    }

    /// Changes the logits of ascending ids, taking in ids that were not edited yet; `change` hears whether
    /// one was.
    fn change<T>(
        &mut self,
        overlay: &mut Overlay,
        row: Row<'_>,
        edits: &[T],
        id_of: impl Fn(&T) -> u32,
        change: impl Fn(&T, f32, bool) -> f32,
    ) {
        if edits.is_empty() {
            return;
        }
        self.ids.clear();
        self.z.clear();
        self.raw.clear();
        let mut from = 0;
        for edit in edits {
            let id = id_of(edit);
            let before = overlay.ids[from..].partition_point(|other| *other < id);
            self.ids.extend_from_slice(&overlay.ids[from..from + before]);
            self.z.extend_from_slice(&overlay.z[from..from + before]);
            self.raw.extend_from_slice(&overlay.raw[from..from + before]);
            from += before;
            let there = overlay.ids.get(from) == Some(&id);
            let (z, raw) = if there {
                from += 1;
                (overlay.z[from - 1], overlay.raw[from - 1])
            } else {
                let raw = clean(row.logit(id as usize));
                (raw, raw)
            };
            self.ids.push(id);
            self.z.push(change(edit, z, there) + 0.0);
            self.raw.push(raw);
        }
        self.ids.extend_from_slice(&overlay.ids[from..]);
        self.z.extend_from_slice(&overlay.z[from..]);
        self.raw.extend_from_slice(&overlay.raw[from..]);
        std::mem::swap(&mut self.ids, &mut overlay.ids);
        std::mem::swap(&mut self.z, &mut overlay.z);
        std::mem::swap(&mut self.raw, &mut overlay.raw);
    }
}
