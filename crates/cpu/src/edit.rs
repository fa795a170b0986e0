//! Edits: penalties, bias and bans as an overlay of the ids they touch (rules E1 to E7).
//!
//! Cost grows with the distinct ids touched: each gets its new logit in a sorted list, and the row stays
//! where the caller left it. A tile is made from both when a later stage visits it. The grammar bitmask is
//! applied as the row is read, and tiles that it forbids whole are not read at all. Only the caller's own
//! hook makes a dense copy of the row.

mod bans;
mod dry;
mod overlay;
mod penalties;

use gumball_spec::edit::Hook;
use gumball_spec::layout::holds_id;
use gumball_spec::{Kind, Row, Status, TILE};

use crate::history::Entry;
use crate::lanes::Proven;
use crate::task::Task;
use crate::tiles::{MASK_WORDS, Overlay, View};

impl Task<'_> {
    /// Returns what the row's status says of a loop, of a forced token and of a mark (B2, B5, W2).
    #[must_use]
    pub fn forced_status(&self) -> Status {
        if let Some(forced) = self.forced {
            return forced.by;
        }
        let mut ending = self.history.ending(self.prepared);
        if ending.forced.is_some_and(|id| forbids(self, id)) {
            ending.status.insert(Status::FORBIDDEN);
        }
        if self.mark().is_some() {
            ending.status.insert(Status::MARKED);
        }
        ending.status
    }
}

/// Returns whether bans or bitmask forbid an id.
fn forbids(task: &Task<'_>, id: u32) -> bool {
    let clears = |mask: &[u32]| !holds_id(mask, id);
    let mut is_banned = task.mask.is_some_and(clears) || task.prepared.allowed().is_some_and(clears);
    bans::bans(task, |banned| is_banned |= banned == id);
    is_banned
}

/// The edits of one row.
#[derive(Debug, Default)]
pub struct Edits {
    kind: Kind,
    overlay: Overlay,
    merge: overlay::Merge,
    window: Vec<Entry>,
    /// Allowed ids and grammar, joined, over whole tiles.
    mask: Vec<u32>,
    masked: bool,
    /// The row as the hook left it.
    dense: Vec<f32>,
    hooked: bool,
    banned: Vec<u32>,
    repeats: Vec<(u32, f32)>,
    dry: dry::Buffers,
}

impl Edits {
    /// Applies all edits of a task to a row.
    pub fn edit(&mut self, level: Proven, row: Row<'_>, task: &Task<'_>, hook: Option<Hook<'_>>) {
        self.edit_from(level, row, task, hook, 0);
    }

    /// Applies all edits of a task to the part of its row that begins with the id `start`, where a tile
    /// starts.
    pub fn edit_from(
        &mut self,
        level: Proven,
        row: Row<'_>,
        task: &Task<'_>,
        hook: Option<Hook<'_>>,
        start: usize,
    ) {
        let ids = start as u32..(start + row.vocab()) as u32;
        let params = task.prepared.params();
        self.kind = task.kind;
        self.overlay.clear();
        let bias = overlay::of_ids(task.prepared.bias(), &ids);
        let (first, last) = if params.bias_first { (bias, &[][..]) } else { (&[][..], bias) };
        penalties::penalties(level, row, task, ids.clone(), first, &mut self.window, &mut self.overlay);
        self.merge.add_to_others(&mut self.overlay, row, start as u32, first);
        if params.dry.multiplier > 0.0 {
            let repeats = &mut self.repeats;
            repeats.clear();
            self.dry.lengths(task.history, &params.dry, |id, penalty| repeats.push((id, penalty)));
            self.merge.subtract(&mut self.overlay, row, start as u32, overlay::of_ids(repeats, &ids));
        }
        self.merge.add(&mut self.overlay, row, start as u32, last);
        self.hooked = hook.is_some();
        if let Some(hook) = hook {
            self.run_hook(row, hook);
        }
        self.banned.clear();
        let banned = &mut self.banned;
        bans::bans(task, |id| banned.push(id));
        if !banned.is_empty() {
            banned.retain(|id| ids.contains(id));
            banned.iter_mut().for_each(|id| *id -= ids.start);
            banned.sort_unstable();
            banned.dedup();
            let row = if self.hooked { Row::F32(&self.dense) } else { row };
            self.merge.ban(&mut self.overlay, row, banned);
        }
        self.overlay.index(row.vocab().div_ceil(TILE));
        self.join_masks(task, row.vocab(), start);
    }

    /// Returns the row as the later stages see it, to be surveyed.
    pub fn view<'a>(&'a self, row: Row<'a>) -> View<'a> {
        View {
            row: if self.hooked { Row::F32(&self.dense) } else { row },
            kind: self.kind,
            odd: false,
            overlay: (!self.overlay.is_empty()).then_some(&self.overlay),
            mask: self.masked.then_some(&self.mask),
            parts: None,
        }
    }

    /// Returns whether a hook changed the row.
    pub fn is_hooked(&self) -> bool {
        self.hooked
    }

    /// Returns the exact status of a row (E7); `odd` is whether the survey found the row odd.
    pub fn status(&self, row: Row<'_>, odd: bool) -> Status {
        let mut status = Status::default();
        let mut look = |row: Row<'_>| {
            for id in 0..row.vocab() {
                let said = self.kind.status(row.logit(id));
                if said != Status::default() && self.allows(id) {
                    status.insert(said);
                }
            }
        };
        if odd || self.hooked {
            look(row);
        }
        if self.hooked {
            look(Row::F32(&self.dense));
        }
        status
    }

    /// Returns whether bans and mask allow an id.
    fn allows(&self, id: usize) -> bool {
        let banned = self.banned.binary_search(&(id as u32)).is_ok();
        !banned && (!self.masked || self.mask[id / 32] >> (id % 32) & 1 == 1)
    }

    /// Joins the allowed ids and the grammar bitmask; missing words forbid.
    fn join_masks(&mut self, task: &Task<'_>, vocab: usize, start: usize) {
        self.masked = task.mask.is_some() || task.prepared.allowed().is_some();
        if !self.masked {
            return;
        }
        self.mask.clear();
        let (from, words) = (start / 32, vocab.div_ceil(TILE) * MASK_WORDS);
        let mask = task.mask.map(|mask| mask.get(from..).unwrap_or_default());
        let allowed = task.prepared.allowed().map(|mask| mask.get(from..).unwrap_or_default());
        match (mask, allowed) {
            (Some(mask), None) => self.mask.extend_from_slice(&mask[..mask.len().min(words)]),
            (Some(mask), Some(allowed)) => {
                self.mask.extend(mask.iter().zip(allowed).take(words).map(|(a, b)| a & b));
            }
            (None, allowed) => self.mask.extend(allowed.unwrap_or_default().iter().take(words)),
        }
        self.mask.resize(words, 0);
    }

    /// Makes the row dense, with the edits so far, and lets the hook change it.
    fn run_hook(&mut self, row: Row<'_>, hook: Hook<'_>) {
        self.dense.clear();
        self.dense.extend((0..row.vocab()).map(|id| gumball_spec::row::clean(row.logit(id))));
        for (id, z) in self.overlay.ids.iter().zip(&self.overlay.z) {
            self.dense[*id as usize] = *z;
        }
        self.overlay.clear();
        hook(&mut self.dense);
    }
}
