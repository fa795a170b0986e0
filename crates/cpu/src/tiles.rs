//! A row seen tile by tile, as its later stages see it: converted, cleaned, edited and masked on the way.
//!
//! Nothing is copied that need not be: a whole f32 tile without edits is handed out where it lies. Any other
//! tile is made in a scratch tile in the first-level cache each time it is visited, which few tiles are.

use std::ops::Range;

use gumball_spec::{Kind, Row, TILE};
use half::bf16;

use crate::lanes::{Element, Kernel, Lanes, WIDTH};
use crate::parts::Parts;
pub use crate::tile::{EMPTY_TILE, Tile};

/// Mask words per tile.
pub const MASK_WORDS: usize = TILE / 32;

/// Edited logits, by id: what stands in for the row's own.
#[derive(Debug, Default)]
pub struct Overlay {
    /// The ids, ascending.
    pub ids: Vec<u32>,
    /// Their logits; -inf where banned.
    pub z: Vec<f32>,
    /// The row's own logits of them, cleaned.
    pub raw: Vec<f32>,
    /// Where a tile's ids lie; empty ranges except for the tiles in `touched`.
    ranges: Vec<(u32, u32)>,
    touched: Vec<u32>,
}

impl Overlay {
    /// Forgets all edits.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.z.clear();
        self.raw.clear();
        for tile in self.touched.drain(..) {
            self.ranges[tile as usize] = (0, 0);
        }
    }

    /// Returns whether there is no edit.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Finds each tile's edits, once the ids are complete.
    pub fn index(&mut self, tiles: usize) {
        if self.ranges.len() < tiles {
            self.ranges.resize(tiles, (0, 0));
        }
        let mut start = 0;
        while start < self.ids.len() {
            let tile = self.ids[start] / TILE as u32;
            let rest = &self.ids[start..];
            let count = rest.iter().position(|id| id / TILE as u32 != tile).unwrap_or(rest.len());
            self.ranges[tile as usize] = (start as u32, (start + count) as u32);
            self.touched.push(tile);
            start += count;
        }
    }

    /// Returns the tiles that have edits.
    pub fn touched(&self) -> &[u32] {
        &self.touched
    }

    /// Returns the edits of a tile: ids and logits.
    #[inline(always)]
    pub fn of_tile(&self, tile: usize) -> (&[u32], &[f32]) {
        let range = self.range(tile);
        (&self.ids[range.clone()], &self.z[range])
    }

    /// Returns where the edits of a tile lie.
    #[inline(always)]
    pub fn range(&self, tile: usize) -> Range<usize> {
        let (start, end) = self.ranges[tile];
        start as usize..end as usize
    }
}

/// A row with its edits and its mask.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The row as it came, or as the caller's hook left it.
    pub row: Row<'a>,
    /// The kind of the row's numbers.
    pub kind: Kind,
    /// Whether the row may hold NaN, +inf or negative probabilities, so that its tiles want cleaning.
    pub odd: bool,
    /// Edited logits.
    pub overlay: Option<&'a Overlay>,
    /// Bit `id % 32` of word `id / 32` allows an id; has words for whole tiles.
    pub mask: Option<&'a [u32]>,
    /// The known facts of a row whose parts lie in several processes. It stands in for the row and its edits.
    pub parts: Option<&'a Parts>,
}

impl<'a> View<'a> {
    /// Returns a row without edits.
    pub fn raw(kind: Kind, row: Row<'a>) -> Self {
        Self { row, kind, odd: false, overlay: None, mask: None, parts: None }
    }

    /// Returns whether the view shows a row as it came.
    pub fn is_unedited(&self, row: Row<'_>) -> bool {
        let is_own = match (self.row, row) {
            (Row::F32(a), Row::F32(b)) => std::ptr::eq(a, b),
            (Row::Bf16(_), Row::Bf16(_)) | (Row::F16(_), Row::F16(_)) => true,
            _ => false,
        };
        is_own && self.overlay.is_none() && self.mask.is_none()
    }

    /// Returns the number of ids.
    pub fn vocab(&self) -> usize {
        self.parts.map_or_else(|| self.row.vocab(), Parts::vocab)
    }

    /// Makes sure that all tokens at or above a number are known, before they are read; of a row in parts it
    /// notes a query if not.
    #[inline(always)]
    pub fn need(&self, least: f32) {
        if let Some(parts) = self.parts {
            parts.need_tokens(least);
        }
    }

    /// Returns whether a query about a row in parts was noted, so that the result of the stages will be
    /// dropped.
    pub fn is_waiting(&self) -> bool {
        self.parts.is_some_and(Parts::has_query)
    }

    /// Returns the number of tiles.
    pub fn tiles(&self) -> usize {
        self.vocab().div_ceil(TILE)
    }

    /// Returns a tile as the later stages see it, except for -0.0; `scratch` is used if it must be made. What
    /// is no token is -inf there, or in a row of probabilities 0.
    #[inline(always)]
    pub fn tile<'s, L: Lanes>(&'s self, l: L, tile: usize, scratch: &'s mut Tile) -> &'s Tile {
        if let Some(parts) = self.parts {
            return parts.tile(tile);
        }
        if let Row::F32(row) = self.row
            && !self.odd
            && self.mask.is_none()
            && self.overlay.is_none_or(|overlay| overlay.range(tile).is_empty())
            && let Some(whole) = row[tile * TILE..].first_chunk::<TILE>()
        {
            return whole;
        }
        self.make(l, self.row, tile, scratch);
        scratch
    }

    /// Returns a whole tile of a bf16 row that the later stages see as it is.
    #[inline(always)]
    pub fn bare_bf16(&self, tile: usize) -> Option<&'a [bf16; TILE]> {
        let Row::Bf16(row) = self.row else { return None };
        let is_edited = self.overlay.is_some_and(|overlay| !overlay.range(tile).is_empty());
        if self.odd || self.mask.is_some() || is_edited { None } else { row[tile * TILE..].first_chunk() }
    }

    /// Makes a tile of a row that need not be the view's, with the view's edits and mask.
    #[inline(always)]
    pub fn make<L: Lanes>(&self, l: L, row: Row<'_>, tile: usize, scratch: &mut Tile) {
        l.call(Make { view: self, row, tile, scratch });
    }

    /// Returns one logit or probability as the later stages see it, except for -0.0; -inf for what is no
    /// token.
    pub fn logit(&self, id: usize) -> f32 {
        if let Some(parts) = self.parts {
            return parts.logit(id);
        }
        if !self.allows(id) {
            return f32::NEG_INFINITY;
        }
        if let Some(overlay) = self.overlay {
            let (ids, z) = overlay.of_tile(id / TILE);
            if let Ok(place) = ids.binary_search(&(id as u32)) {
                return z[place];
            }
        }
        self.kind.clean(self.row.logit(id))
    }

    /// Returns whether the mask allows an id.
    #[inline(always)]
    pub fn allows(&self, id: usize) -> bool {
        self.mask.is_none_or(|mask| mask[id / 32] >> (id % 32) & 1 == 1)
    }
}

/// Makes a tile of a row, with a view's edits and mask.
struct Make<'a> {
    view: &'a View<'a>,
    row: Row<'a>,
    tile: usize,
    scratch: &'a mut Tile,
}

impl Kernel for Make<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { view, row, tile, scratch } = self;
        match row {
            Row::F32(row) => convert(l, view, row, tile, scratch),
            Row::Bf16(row) => convert(l, view, row, tile, scratch),
            Row::F16(row) => convert(l, view, row, tile, scratch),
        }
        if let Some(overlay) = view.overlay {
            let (ids, z) = overlay.of_tile(tile);
            for (id, z) in ids.iter().zip(z) {
                scratch[*id as usize % TILE] = z.max(view.kind.dropped());
            }
        }
        if let Some(mask) = view.mask {
            apply_mask(l, &mask[tile * MASK_WORDS..], view.kind.dropped(), scratch);
        }
    }
}

/// Fills a tile with a row's numbers as they count, except for -0.0: of odd rows NaN, and negative
/// probabilities, as dropped ones, +inf as `f32::MAX`.
#[inline(always)]
fn convert<L: Lanes, E: Element>(l: L, view: &View<'_>, row: &[E], tile: usize, scratch: &mut Tile) {
    let from = &row[tile * TILE..];
    let (lowest, largest) = (l.splat(view.kind.dropped()), l.splat(f32::MAX));
    let (to, _) = scratch.as_chunks_mut::<WIDTH>();
    match from.first_chunk::<TILE>() {
        Some(whole) => {
            let (from, _) = whole.as_chunks::<WIDTH>();
            if view.odd {
                for (from, to) in from.iter().zip(to) {
                    l.store(l.min(l.max(E::load(l, from), lowest), largest), to);
                }
            } else {
                for (from, to) in from.iter().zip(to) {
                    l.store(E::load(l, from), to);
                }
            }
        }
        None => convert_last(view.kind, from, scratch),
    }
}

/// Fills a tile as `convert` does, from a row's last tile that is short.
#[cold]
fn convert_last<E: Element>(kind: Kind, from: &[E], scratch: &mut Tile) {
    scratch.fill(kind.dropped());
    for (to, z) in scratch.iter_mut().zip(from) {
        *to = kind.clean(z.to_f32()).max(kind.dropped());
    }
}

/// Sets what a mask forbids to `dropped`.
#[inline(always)]
pub fn apply_mask<L: Lanes>(l: L, mask: &[u32], dropped: f32, tile: &mut Tile) {
    let lowest = l.splat(dropped);
    let (pairs, _) = tile.as_chunks_mut::<{ 2 * WIDTH }>();
    for (pair, word) in pairs.iter_mut().zip(mask) {
        let (chunks, _) = pair.as_chunks_mut::<WIDTH>();
        l.store(l.select(*word as u16, l.load(&chunks[0]), lowest), &mut chunks[0]);
        l.store(l.select((*word >> 16) as u16, l.load(&chunks[1]), lowest), &mut chunks[1]);
    }
}

/// Calls for every tile whose maximum is at least `low`, above -inf; by sixteen maxima at a time, so that the
/// many tiles below cost no branch each.
macro_rules! for_tiles_reaching {
    ($l:expr, $maxima:expr, $low:expr, |$tile:ident| $body:block) => {{
        let low = $l.splat($low.max(-f32::MAX));
        let (chunks, rest) = $maxima.as_chunks::<{ $crate::lanes::WIDTH }>();
        for group in 0..=chunks.len() {
            let mut reach = match chunks.get(group) {
                Some(chunk) => $l.ge($l.load(chunk), low),
                None => {
                    let mut padded = [f32::NEG_INFINITY; $crate::lanes::WIDTH];
                    padded[..rest.len()].copy_from_slice(rest);
                    $l.ge($l.load(&padded), low)
                }
            };
            while reach != 0 {
                let $tile = group * $crate::lanes::WIDTH + reach.trailing_zeros() as usize;
                reach &= reach - 1;
                $body
            }
        }
    }};
}
pub(crate) use for_tiles_reaching;
