//! The survey: one pass over the row that learns every tile's maximum.
//!
//! The maxima bound everything later stages ask for, so that those stages read only the few tiles they need.
//! Sums are taken only where a rule wants them (`mass.rs`). Rows of probabilities have a pass of their own
//! (`probabilities.rs`); what follows it is the same.

mod probabilities;

use gumball_spec::{Kind, Row, TILE};

use self::probabilities::Likeliest;
use crate::lanes::{Element, Kernel, Lanes, Mask, Proven, WIDTH, dispatch, see_pairs};
use crate::tiles::{EMPTY_TILE, MASK_WORDS, Overlay, View, apply_mask};

/// The results of one pass over a row besides its tile maxima.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Survey {
    /// The largest logit or probability; -inf in a row of nothing.
    pub first: f32,
    /// Whether the row may hold NaN, +inf or negative probabilities.
    pub odd: bool,
}

/// Fills `maxima` with the maximum of each tile of a view, cleaned; tiles of nothing have -inf.
pub fn survey(level: Proven, view: &View<'_>, maxima: &mut Vec<f32>) -> Survey {
    maxima.resize(view.tiles(), f32::NEG_INFINITY);
    let whole = view.row.vocab() / TILE;
    let to = &mut maxima[..whole];
    let ordered = match view.row {
        Row::F32(row) => whole_tiles(level, view, &row[..whole * TILE], to),
        Row::Bf16(row) => whole_tiles(level, view, &row[..whole * TILE], to),
        Row::F16(row) => whole_tiles(level, view, &row[..whole * TILE], to),
    };
    complete(level, view, maxima, ordered)
}

/// Surveys a view of a row of logits, and in the same pass the row without its edits, whose maxima go to
/// `raw`. Returns what was learnt of the view, then of the row.
pub fn survey_both(
    level: Proven,
    view: &View<'_>,
    maxima: &mut Vec<f32>,
    raw: &mut Vec<f32>,
) -> (Survey, Survey) {
    let bare = View::raw(view.kind, view.row);
    raw.resize(view.tiles(), f32::NEG_INFINITY);
    maxima.resize(view.tiles(), f32::NEG_INFINITY);
    let whole = view.row.vocab() / TILE;
    let ordered = match view.mask {
        Some(mask) => {
            let (raw, maxima) = (&mut raw[..whole], &mut maxima[..whole]);
            match view.row {
                Row::F32(row) => dispatch(level, BothMaxima { mask, row: &row[..whole * TILE], raw, maxima }),
                Row::Bf16(row) => {
                    dispatch(level, BothMaxima { mask, row: &row[..whole * TILE], raw, maxima })
                }
                Row::F16(row) => dispatch(level, BothMaxima { mask, row: &row[..whole * TILE], raw, maxima }),
            }
        }
        None => {
            let ordered = match view.row {
                Row::F32(row) => whole_tiles(level, &bare, &row[..whole * TILE], raw),
                Row::Bf16(row) => whole_tiles(level, &bare, &row[..whole * TILE], raw),
                Row::F16(row) => whole_tiles(level, &bare, &row[..whole * TILE], raw),
            };
            maxima.clone_from(raw);
            ordered
        }
    };
    (complete(level, view, maxima, ordered), complete(level, &bare, raw, ordered))
}

/// Completes the maxima of a view's whole tiles, which are neither cleaned nor edited; `ordered` is whether
/// no number of those tiles is odd, except for +inf.
fn complete(level: Proven, view: &View<'_>, maxima: &mut [f32], mut ordered: bool) -> Survey {
    let whole = view.row.vocab() / TILE;
    if let [to] = &mut maxima[whole..] {
        // The rest of the row is no whole tile: padded with -inf it is one.
        let rest_ordered;
        (*to, rest_ordered) = dispatch(level, Rest { view, start: whole * TILE });
        ordered &= rest_ordered;
    }
    let raw_first = dispatch(level, Clean { maxima, kind: view.kind });
    let odd = !ordered || raw_first > f32::MAX;
    let first = view.kind.clean(raw_first);
    let Some(overlay) = view.overlay else { return Survey { first, odd } };
    let edited = View { odd, ..*view };
    dispatch(level, EditedMaxima { view: &edited, overlay, maxima });
    let first = dispatch(level, Clean { maxima, kind: view.kind });
    Survey { first: view.kind.clean(first), odd }
}

/// Fills the maxima of the whole tiles of a row, not cleaned and without edits. Returns whether no number of
/// it is odd, except for +inf.
fn whole_tiles<E: Element>(level: Proven, view: &View<'_>, row: &[E], maxima: &mut [f32]) -> bool {
    match view.kind {
        Kind::Logits => dispatch(level, Maxima { view, row, maxima }),
        Kind::Probabilities => dispatch(level, Likeliest { mask: view.mask, row, maxima }),
    }
}

/// The maxima of the whole tiles of a row, not cleaned and without edits. Returns whether there
/// is no NaN.
struct Maxima<'a, E> {
    view: &'a View<'a>,
    row: &'a [E],
    maxima: &'a mut [f32],
}

impl<E: Element> Kernel for Maxima<'_, E> {
    type Output = bool;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> bool {
        let (tiles, _) = self.row.as_chunks::<TILE>();
        let mut seen = [l.seen_nothing(); 4];
        // Reducing tile by tile costs nothing next to the loads; gathering sixteen tiles to reduce them
        // together was slower.
        match self.view.mask {
            None => {
                for (tile, to) in tiles.iter().zip(self.maxima) {
                    *to = l.reduce_max(E::max_of_tile(l, tile, &mut seen));
                }
            }
            Some(mask) => {
                let (masks, _) = mask.as_chunks::<MASK_WORDS>();
                for ((tile, mask), to) in tiles.iter().zip(masks).zip(self.maxima) {
                    *to = l.reduce_max(masked_maximum(l, tile, mask, &mut seen));
                }
            }
        }
        no_nan(l, seen)
    }
}

/// The maxima of the whole tiles of a row of logits, and of what a mask allows of it, not cleaned. Returns
/// whether there is no NaN.
struct BothMaxima<'a, E> {
    mask: &'a [u32],
    row: &'a [E],
    raw: &'a mut [f32],
    maxima: &'a mut [f32],
}

impl<E: Element> Kernel for BothMaxima<'_, E> {
    type Output = bool;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> bool {
        let (tiles, _) = self.row.as_chunks::<TILE>();
        let (masks, _) = self.mask.as_chunks::<MASK_WORDS>();
        let mut seen = [l.seen_nothing(); 4];
        for (((tile, mask), raw), to) in tiles.iter().zip(masks).zip(self.raw).zip(self.maxima) {
            *raw = l.reduce_max(E::max_of_tile(l, tile, &mut seen));
            // Mostly the largest logit of a tile is allowed.
            *to = if allows(l, tile, mask, *raw) {
                *raw
            } else {
                l.reduce_max(masked_maximum(l, tile, mask, &mut seen))
            };
        }
        no_nan(l, seen)
    }
}

/// Returns whether a mask allows a place of a tile that has a logit.
#[inline(always)]
fn allows<L: Lanes, E: Element>(l: L, tile: &[E; TILE], mask: &[u32; MASK_WORDS], z: f32) -> bool {
    let z = l.splat(z);
    for (pair, word) in tile.as_chunks::<WIDTH>().0.chunks_exact(2).zip(mask) {
        let places = [l.equal(E::load(l, &pair[0]), z), l.equal(E::load(l, &pair[1]), z)];
        if (u32::from(places[0]) | u32::from(places[1]) << 16) & word != 0 {
            return true;
        }
    }
    false
}

#[inline(always)]
fn no_nan<L: Lanes>(l: L, seen: [L::Seen; 4]) -> bool {
    !(l.has_seen_nan(seen[0])
        || l.has_seen_nan(seen[1])
        || l.has_seen_nan(seen[2])
        || l.has_seen_nan(seen[3]))
}

/// The part of a row after its last whole tile.
struct Rest<'a> {
    view: &'a View<'a>,
    start: usize,
}

impl Kernel for Rest<'_> {
    type Output = (f32, bool);

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> (f32, bool) {
        let mut tile = [self.view.kind.dropped(); TILE];
        match self.view.row {
            Row::F32(row) => convert_all(&row[self.start..], &mut tile),
            Row::Bf16(row) => convert_all(&row[self.start..], &mut tile),
            Row::F16(row) => convert_all(&row[self.start..], &mut tile),
        }
        if let Some(mask) = self.view.mask {
            apply_mask(l, &mask[mask.len() - MASK_WORDS..], self.view.kind.dropped(), &mut tile);
        }
        if self.view.kind == Kind::Probabilities {
            let mut maximum = [0.0];
            let ordered = Likeliest { mask: None, row: &tile, maxima: &mut maximum }.run(l);
            return (maximum[0], ordered);
        }
        let mut seen = [l.seen_nothing(); 4];
        (l.reduce_max(f32::max_of_tile(l, &tile, &mut seen)), no_nan(l, seen))
    }
}

/// Converts the logits of a short tile, as they are.
#[inline(always)]
fn convert_all<E: Element>(from: &[E], to: &mut [f32; TILE]) {
    for (to, z) in to.iter_mut().zip(from) {
        *to = z.to_f32();
    }
}

/// Cleans maxima; returns the largest as it was.
struct Clean<'a> {
    maxima: &'a mut [f32],
    kind: Kind,
}

impl Kernel for Clean<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        let (largest, zero, lowest) = (l.splat(f32::MAX), l.splat(0.0), l.splat(f32::NEG_INFINITY));
        let mut max = lowest;
        // A tile of dropped tokens is one of nothing.
        let dropped = l.splat(self.kind.dropped());
        let (chunks, rest) = self.maxima.as_chunks_mut::<WIDTH>();
        for chunk in chunks {
            let m = l.load(chunk);
            max = l.max(m, max);
            l.store(l.select(l.gt(m, dropped), l.add(l.min(m, largest), zero), lowest), chunk);
        }
        let mut first = l.reduce_max(max);
        for m in rest {
            first = first.max(*m);
            *m = self.kind.clean(*m);
        }
        first
    }
}

/// Lane-wise maxima of the logits of a tile that a mask allows; a tile that it forbids is not read. NaN is
/// looked for in all of them.
#[inline(always)]
fn masked_maximum<L: Lanes, E: Element>(
    l: L,
    tile: &[E; TILE],
    mask: &[u32; MASK_WORDS],
    seen: &mut [L::Seen; 4],
) -> L::F {
    let lowest = l.splat(f32::NEG_INFINITY);
    let mut max = [lowest; 4];
    if *mask == [0; MASK_WORDS] {
        return lowest;
    }
    let (chunks, _) = tile.as_chunks::<WIDTH>();
    for (i, (words, four)) in mask.chunks_exact(2).zip(chunks.chunks_exact(4)).enumerate() {
        let z = [E::load(l, &four[0]), E::load(l, &four[1]), E::load(l, &four[2]), E::load(l, &four[3])];
        see_pairs(l, z, i, seen);
        for j in 0..4 {
            max[j] = l.max_where((words[j / 2] >> (16 * (j % 2))) as Mask, z[j], max[j]);
        }
    }
    l.max(l.max(max[0], max[1]), l.max(max[2], max[3]))
}

/// Corrects the maxima of edited tiles, from the maxima of the row without edits.
///
/// A tile is read again only if an edited logit was its maximum; otherwise the maximum is among what it was
/// and the edited logits.
struct EditedMaxima<'a> {
    view: &'a View<'a>,
    overlay: &'a Overlay,
    maxima: &'a mut [f32],
}

impl Kernel for EditedMaxima<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let mut scratch = EMPTY_TILE;
        for tile in self.overlay.touched() {
            let tile = *tile as usize;
            let mut edited = f32::NEG_INFINITY;
            let mut was_maximum = false;
            for i in self.overlay.range(tile) {
                if self.view.allows(self.overlay.ids[i] as usize) {
                    was_maximum |= self.overlay.raw[i] >= self.maxima[tile];
                    edited = edited.max(self.overlay.z[i]);
                }
            }
            self.maxima[tile] = if was_maximum {
                let logits = self.view.tile(l, tile, &mut scratch);
                l.reduce_max(f32::max_of_tile(l, logits, &mut [l.seen_nothing(); 4]))
            } else {
                self.maxima[tile].max(edited)
            };
        }
    }
}
