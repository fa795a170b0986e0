//! Edits: penalties, bias and bans as patches of the few tiles they touch (rules E1 to E7).
//!
//! Cost grows with the distinct ids touched: each is changed in a patched copy of its tile, and all other
//! tiles stay where the caller left them. The grammar bitmask is no patch: later stages apply it as they
//! read, and skip tiles that it forbids whole. Only the caller's own hook makes the row dense.

mod bans;
mod dry;

use gumball_spec::edit::Hook;
use gumball_spec::row::clean;
use gumball_spec::{Row, Scope, Status, TILE};

use crate::Level;
use crate::history::Entry;
use crate::lanes::{Kernel, Lanes, dispatch};
use crate::tiles::{MASK_WORDS, Patches, Tile, apply_mask};
use crate::workspace::Task;

/// The edits of one row.
#[derive(Debug, Default)]
pub struct Edits {
    patches: Patches,
    /// Allowed ids and grammar, joined, over whole tiles.
    mask: Vec<u32>,
    masked: bool,
    /// What the hook left, of ids that are not forbidden.
    hooked: Status,
    dry: dry::Buffers,
}

impl Edits {
    /// Applies all edits of a task to a row.
    pub fn edit(&mut self, level: Level, row: Row<'_>, task: &Task<'_>, hook: Option<Hook<'_>>) {
        let params = task.prepared.params();
        self.patches.reset(row.vocab().div_ceil(TILE));
        self.hooked = Status::default();
        let mut editor = Editor { row, patches: &mut self.patches };
        editor.penalties(task);
        if params.dry.multiplier > 0.0 {
            self.dry.lengths(task.history, &params.dry, |id, penalty| editor.change(id, |z| z - penalty));
        }
        for (id, bias) in &params.logit_bias {
            editor.change(*id, |z| z + bias);
        }
        self.join_masks(task);
        if let Some(hook) = hook {
            self.run_hook(row, hook);
        }
        let mut editor = Editor { row, patches: &mut self.patches };
        bans::bans(task, |id| editor.ban(id));
        if self.hooked != Status::default() {
            self.hooked = self.hooked_status(row);
        }
        let touched = self.patches.touched().len();
        let mask = self.masked.then_some(&self.mask[..]);
        for place in 0..touched {
            let tile = self.patches.touched()[place] as usize;
            let banned = self.patches.banned(tile);
            let mask =
                std::array::from_fn(|i| mask.map_or(u32::MAX, |m| m[tile * MASK_WORDS + i]) & !banned[i]);
            let (patch, _) = self.patches.touch(row, tile);
            dispatch(level, Finish { patch, mask });
        }
    }

    /// Returns the patched tiles, if any.
    pub fn patches(&self) -> Option<&Patches> {
        (!self.patches.is_empty()).then_some(&self.patches)
    }

    /// Returns the mask, if any.
    pub fn mask(&self) -> Option<&[u32]> {
        self.masked.then_some(&self.mask)
    }

    /// Returns whether the edited row is the row as it came.
    pub fn is_none(&self) -> bool {
        self.patches.is_empty() && !self.masked
    }

    /// Returns the exact status of a row (E7); `odd` is whether the row may hold NaN or +inf.
    pub fn status(&self, row: Row<'_>, odd: bool) -> Status {
        let mut status = self.hooked;
        if odd {
            for id in 0..row.vocab() {
                let z = row.logit(id);
                if (z.is_nan() || z == f32::INFINITY) && self.allows(id) {
                    status.insert(if z.is_nan() { Status::NAN } else { Status::INF });
                }
            }
        }
        status
    }

    /// Returns whether bans and mask allow an id.
    fn allows(&self, id: usize) -> bool {
        let banned = self.patches.banned(id / TILE)[id % TILE / 32] >> (id % 32) & 1 == 1;
        !banned && (!self.masked || self.mask[id / 32] >> (id % 32) & 1 == 1)
    }

    /// Joins the allowed ids and the grammar bitmask; missing words forbid.
    fn join_masks(&mut self, task: &Task<'_>) {
        self.masked = task.mask.is_some() || task.prepared.allowed().is_some();
        if !self.masked {
            return;
        }
        self.mask.clear();
        let words = task.prepared.vocab().div_ceil(TILE) * MASK_WORDS;
        match (task.mask, task.prepared.allowed()) {
            (Some(mask), None) => self.mask.extend_from_slice(&mask[..mask.len().min(words)]),
            (Some(mask), Some(allowed)) => self.mask.extend(mask.iter().zip(allowed).map(|(a, b)| a & b)),
            (None, allowed) => self.mask.extend_from_slice(allowed.unwrap_or_default()),
        }
        self.mask.resize(words, 0);
    }

    fn run_hook(&mut self, row: Row<'_>, hook: Hook<'_>) {
        let vocab = row.vocab();
        let z = &mut self.patches.touch_all(row)[..vocab];
        hook(z);
        for z in z {
            if z.is_nan() {
                self.hooked.insert(Status::NAN);
            } else if *z == f32::INFINITY {
                self.hooked.insert(Status::INF);
            }
        }
    }

    /// Returns what the hook left, of ids that are not forbidden.
    fn hooked_status(&self, row: Row<'_>) -> Status {
        let mut status = Status::default();
        for id in 0..row.vocab() {
            let z = self.patches.get(id / TILE).expect("the hook made the row dense")[id % TILE];
            if (z.is_nan() || z == f32::INFINITY) && self.allows(id) {
                status.insert(if z.is_nan() { Status::NAN } else { Status::INF });
            }
        }
        status
    }
}

/// Changes single logits in patches.
struct Editor<'a, 'r> {
    row: Row<'r>,
    patches: &'a mut Patches,
}

impl Editor<'_, '_> {
    /// Changes one logit: -inf stays, an infinite result becomes the largest finite one, and an id outside
    /// the vocabulary edits nothing (E1, E5).
    #[inline]
    fn change(&mut self, id: u32, edit: impl FnOnce(f32) -> f32) {
        let id = id as usize;
        if id < self.row.vocab() {
            let (tile, _) = self.patches.touch(self.row, id / TILE);
            let z = &mut tile[id % TILE];
            if *z > f32::NEG_INFINITY {
                *z = edit(*z).clamp(-f32::MAX, f32::MAX);
            }
        }
    }

    fn ban(&mut self, id: u32) {
        let id = id as usize;
        if id < self.row.vocab() {
            let (_, banned) = self.patches.touch(self.row, id / TILE);
            banned[id % TILE / 32] |= 1 << (id % 32);
        }
    }

    /// Repetition, frequency and presence penalty (E2), each id's in turn.
    fn penalties(&mut self, task: &Task<'_>) {
        let params = task.prepared.params();
        let (r, f, p) = (params.repetition_penalty, params.frequency_penalty, params.presence_penalty);
        if r == 1.0 && f == 0.0 && p == 0.0 {
            return;
        }
        for entry in task.history.entries() {
            let seen = r != 1.0 && count(entry, params.repetition_scope) > 0;
            let times = if f != 0.0 || p != 0.0 { count(entry, params.penalty_scope) } else { 0 };
            if seen {
                self.change(entry.id, |z| if z > 0.0 { z / r } else { z * r });
            }
            if times > 0 {
                self.change(entry.id, |z| z - f * times as f32);
                self.change(entry.id, |z| z - p);
            }
        }
    }
}

fn count(entry: &Entry, scope: Scope) -> u32 {
    match scope {
        Scope::Prompt => entry.prompt,
        Scope::Output => entry.output,
        Scope::Both => entry.prompt + entry.output,
    }
}

/// Cleans a patch and applies its bans and mask.
struct Finish<'a> {
    patch: &'a mut Tile,
    mask: [u32; MASK_WORDS],
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for z in self.patch.iter_mut() {
            *z = clean(*z);
        }
        apply_mask(l, &self.mask, self.patch);
    }
}
