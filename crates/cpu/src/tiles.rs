//! A row seen tile by tile, as its later stages see it: converted, cleaned, edited and masked on the way.
//!
//! Nothing is copied that need not be: a whole f32 tile without edits is handed out where it lies. Edited
//! tiles are kept as patches; everything else is converted into a scratch tile in the first-level cache.

use gumball_spec::{Row, TILE};

use crate::lanes::{Element, Lanes, WIDTH};

/// The logits of one tile; -inf beyond the vocabulary.
pub type Tile = [f32; TILE];

/// A tile of nothing.
pub const EMPTY_TILE: Tile = [f32::NEG_INFINITY; TILE];

/// Mask words per tile.
pub const MASK_WORDS: usize = TILE / 32;

/// Tiles that edits touched, with all edits applied.
#[derive(Debug, Default)]
pub struct Patches {
    /// For each tile of the row, its place in `tiles` plus one, or 0.
    places: Vec<u32>,
    /// The tile numbers that have a patch, in order of first touch.
    touched: Vec<u32>,
    tiles: Vec<Tile>,
    banned: Vec<[u32; MASK_WORDS]>,
}

impl Patches {
    /// Forgets all patches and makes room for a row of `tiles` tiles.
    pub fn reset(&mut self, tiles: usize) {
        if self.places.len() == tiles {
            for tile in &self.touched {
                self.places[*tile as usize] = 0;
            }
        } else {
            self.places.clear();
            self.places.resize(tiles, 0);
        }
        self.touched.clear();
    }

    /// Returns the tiles that have a patch.
    pub fn touched(&self) -> &[u32] {
        &self.touched
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.touched.is_empty()
    }

    /// Returns the patch of a tile.
    #[inline(always)]
    pub fn get(&self, tile: usize) -> Option<&Tile> {
        let place = self.places[tile];
        (place > 0).then(|| &self.tiles[place as usize - 1])
    }

    /// Returns the patch of a tile and its bans, made from the row at the first touch.
    pub fn touch(&mut self, row: Row<'_>, tile: usize) -> (&mut Tile, &mut [u32; MASK_WORDS]) {
        if self.places[tile] == 0 {
            if self.tiles.len() == self.touched.len() {
                self.tiles.push(EMPTY_TILE);
                self.banned.push([0; MASK_WORDS]);
            }
            let place = self.touched.len();
            self.touched.push(tile as u32);
            self.places[tile] = place as u32 + 1;
            self.banned[place] = [0; MASK_WORDS];
            copy_tile(row, tile, &mut self.tiles[place]);
        }
        let place = self.places[tile] as usize - 1;
        (&mut self.tiles[place], &mut self.banned[place])
    }

    /// Returns the bans of a tile.
    pub fn banned(&self, tile: usize) -> [u32; MASK_WORDS] {
        match self.places[tile] {
            0 => [0; MASK_WORDS],
            place => self.banned[place as usize - 1],
        }
    }

    /// Patches every tile and returns all logits in one piece, tails included.
    pub fn touch_all(&mut self, row: Row<'_>) -> &mut [f32] {
        let tiles = self.places.len();
        if !self.touched.iter().copied().eq(0..tiles as u32) {
            // The pieces must lie in order; edits that came first are moved along.
            let mut ordered = vec![EMPTY_TILE; tiles];
            let mut banned = vec![[0; MASK_WORDS]; tiles];
            for (tile, (to, bans)) in ordered.iter_mut().zip(&mut banned).enumerate() {
                *bans = self.banned(tile);
                match self.get(tile) {
                    Some(patch) => *to = *patch,
                    None => copy_tile(row, tile, to),
                }
            }
            (self.tiles, self.banned) = (ordered, banned);
            self.touched = (0..tiles as u32).collect();
            self.places = (1..=tiles as u32).collect();
        }
        self.tiles[..tiles].as_flattened_mut()
    }
}

/// Copies a tile as its logits count: NaN as -inf, +inf as `f32::MAX`, -0.0 as +0.0.
fn copy_tile(row: Row<'_>, tile: usize, to: &mut Tile) {
    fn copy<E: Element>(row: &[E], tile: usize, to: &mut Tile) {
        let from = &row[tile * TILE..row.len().min((tile + 1) * TILE)];
        for (to, z) in to.iter_mut().zip(from) {
            *to = gumball_spec::row::clean(z.to_f32());
        }
        to[from.len()..].fill(f32::NEG_INFINITY);
    }
    match row {
        Row::F32(row) => copy(row, tile, to),
        Row::Bf16(row) => copy(row, tile, to),
        Row::F16(row) => copy(row, tile, to),
    }
}

/// A row with its edits and its mask.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The row as it came.
    pub row: Row<'a>,
    /// Whether the row may hold NaN or +inf, so that its tiles want cleaning.
    pub odd: bool,
    /// Edited tiles; their mask is applied already.
    pub patches: Option<&'a Patches>,
    /// Bit `id % 32` of word `id / 32` allows an id; has words for whole tiles.
    pub mask: Option<&'a [u32]>,
}

impl<'a> View<'a> {
    /// Returns a row as it came.
    pub fn raw(row: Row<'a>) -> Self {
        Self { row, odd: false, patches: None, mask: None }
    }

    /// Returns the number of tiles.
    pub fn tiles(&self) -> usize {
        self.row.vocab().div_ceil(TILE)
    }

    /// Returns a tile as the later stages see it, but for -0.0; `scratch` is used if it must be converted.
    #[inline(always)]
    pub fn tile<'s, L: Lanes>(&'s self, l: L, tile: usize, scratch: &'s mut Tile) -> &'s Tile {
        if let Some(patch) = self.patches.and_then(|patches| patches.get(tile)) {
            return patch;
        }
        match self.row {
            Row::F32(row) => {
                if !self.odd
                    && self.mask.is_none()
                    && let Some(whole) = row[tile * TILE..].first_chunk::<TILE>()
                {
                    return whole;
                }
                self.convert(l, row, tile, scratch);
            }
            Row::Bf16(row) => self.convert(l, row, tile, scratch),
            Row::F16(row) => self.convert(l, row, tile, scratch),
        }
        scratch
    }

    /// Returns one logit as the later stages see it, but for -0.0.
    pub fn logit(&self, id: usize) -> f32 {
        if let Some(patch) = self.patches.and_then(|patches| patches.get(id / TILE)) {
            return patch[id % TILE];
        }
        if self.mask.is_some_and(|mask| mask[id / 32] >> (id % 32) & 1 == 0) {
            return f32::NEG_INFINITY;
        }
        gumball_spec::row::clean(self.row.logit(id))
    }

    #[inline(always)]
    fn convert<L: Lanes, E: Element>(&self, l: L, row: &[E], tile: usize, scratch: &mut Tile) {
        let from = &row[tile * TILE..];
        let (lowest, largest) = (l.splat(f32::NEG_INFINITY), l.splat(f32::MAX));
        let (to, _) = scratch.as_chunks_mut::<WIDTH>();
        match from.first_chunk::<TILE>() {
            Some(whole) => {
                let (from, _) = whole.as_chunks::<WIDTH>();
                for (i, to) in to.iter_mut().enumerate() {
                    let z = l.min(l.max(E::load(l, &from[i]), lowest), largest);
                    l.store(z, to);
                }
            }
            None => {
                scratch.fill(f32::NEG_INFINITY);
                for (to, z) in scratch.iter_mut().zip(from) {
                    *to = gumball_spec::row::clean(z.to_f32());
                }
            }
        }
        if let Some(mask) = self.mask {
            apply_mask(l, &mask[tile * MASK_WORDS..], scratch);
        }
    }
}

/// Sets the logits that a mask forbids to -inf.
#[inline(always)]
pub fn apply_mask<L: Lanes>(l: L, mask: &[u32], tile: &mut Tile) {
    let (chunks, _) = tile.as_chunks_mut::<WIDTH>();
    for (i, chunk) in chunks.iter_mut().enumerate() {
        let bits = (mask[i / 2] >> (16 * (i % 2))) as u16;
        l.store(l.select(bits, l.load(chunk), l.splat(f32::NEG_INFINITY)), chunk);
    }
}
