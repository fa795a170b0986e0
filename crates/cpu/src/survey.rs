//! The survey: one pass over the row that learns every tile's maximum.
//!
//! The maxima bound everything later stages ask for, so that those stages read only the few tiles they
//! need. Sums are taken only where a rule wants them (`mass.rs`).

use gumball_spec::{Row, TILE};

use crate::Level;
use crate::lanes::{Element, Kernel, Lanes, WIDTH, dispatch};
use crate::tiles::{MASK_WORDS, View};

/// Fills `maxima` with the maximum of each tile of a view and returns whether the row may hold NaN or +inf.
///
/// The maxima are cleaned; tiles of nothing have -inf.
pub fn survey(level: Level, view: &View<'_>, maxima: &mut Vec<f32>) -> bool {
    let tiles = view.tiles();
    maxima.clear();
    maxima.resize(tiles, f32::NEG_INFINITY);
    let whole = view.row.vocab() / TILE;
    let mut nan = match view.row {
        Row::F32(row) => dispatch(level, Maxima { view, row: &row[..whole * TILE], maxima }),
        Row::Bf16(row) => dispatch(level, Maxima { view, row: &row[..whole * TILE], maxima }),
        Row::F16(row) => dispatch(level, Maxima { view, row: &row[..whole * TILE], maxima }),
    };
    if whole < tiles {
        let mut maximum = f32::NEG_INFINITY;
        for id in whole * TILE..view.row.vocab() {
            nan |= view.row.logit(id).is_nan();
            nan |= view.row.logit(id) == f32::INFINITY;
            maximum = maximum.max(view.logit(id));
        }
        maxima[whole] = maximum + 0.0;
    }
    if let Some(patches) = view.patches {
        for tile in patches.touched() {
            let patch = patches.get(*tile as usize).expect("touched");
            maxima[*tile as usize] = dispatch(level, TileMaximum(patch)) + 0.0;
        }
    }
    nan
}

/// The maxima of the whole tiles of a row, sixteen tiles at a time; patched tiles may get any value.
struct Maxima<'a, E> {
    view: &'a View<'a>,
    row: &'a [E],
    maxima: &'a mut [f32],
}

impl<E: Element> Kernel for Maxima<'_, E> {
    type Output = bool;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> bool {
        let lowest = l.splat(f32::NEG_INFINITY);
        let largest = l.splat(f32::MAX);
        let mut odd = 0;
        let (tiles, _) = self.row.as_chunks::<TILE>();
        for (group, tiles) in tiles.chunks(WIDTH).enumerate() {
            let mut rows = [lowest; WIDTH];
            match self.view.mask {
                None => {
                    for (row, tile) in rows.iter_mut().zip(tiles) {
                        *row = tile_maximum(l, tile, &mut odd);
                    }
                }
                Some(mask) => {
                    let mask = &mask[group * WIDTH * MASK_WORDS..];
                    for (j, (row, tile)) in rows.iter_mut().zip(tiles).enumerate() {
                        *row = masked_maximum(l, tile, &mask[j * MASK_WORDS..], &mut odd);
                    }
                }
            }
            let maxima = l.reduce_max_16(&rows);
            odd |= l.gt(maxima, largest);
            let mut out = [0.0; WIDTH];
            l.store(l.add(l.min(maxima, largest), l.splat(0.0)), &mut out);
            self.maxima[group * WIDTH..][..tiles.len()].copy_from_slice(&out[..tiles.len()]);
        }
        odd != 0
    }
}

/// The lane-wise maximum of a tile, NaN left out; sets `odd` where there is one.
#[inline(always)]
fn tile_maximum<L: Lanes, E: Element>(l: L, tile: &[E; TILE], odd: &mut u16) -> L::F {
    let (chunks, _) = tile.as_chunks::<WIDTH>();
    let mut max = [l.splat(f32::NEG_INFINITY); 4];
    for four in chunks.chunks_exact(4) {
        let z = [E::load(l, &four[0]), E::load(l, &four[1]), E::load(l, &four[2]), E::load(l, &four[3])];
        *odd |= l.unordered(z[0], z[1]) | l.unordered(z[2], z[3]);
        for i in 0..4 {
            max[i] = l.max(z[i], max[i]);
        }
    }
    l.max(l.max(max[0], max[1]), l.max(max[2], max[3]))
}

/// The same of the logits a mask allows; a tile that it forbids is not read.
#[inline(always)]
fn masked_maximum<L: Lanes, E: Element>(l: L, tile: &[E; TILE], mask: &[u32], odd: &mut u16) -> L::F {
    let lowest = l.splat(f32::NEG_INFINITY);
    let mut max = [lowest; 2];
    let (chunks, _) = tile.as_chunks::<WIDTH>();
    if mask[..MASK_WORDS].iter().all(|word| *word == 0) {
        return lowest;
    }
    for (word, two) in mask.iter().zip(chunks.chunks_exact(2)) {
        let z = [
            l.select(*word as u16, E::load(l, &two[0]), lowest),
            l.select((*word >> 16) as u16, E::load(l, &two[1]), lowest),
        ];
        *odd |= l.unordered(z[0], z[1]);
        for i in 0..2 {
            max[i] = l.max(z[i], max[i]);
        }
    }
    l.max(max[0], max[1])
}

struct TileMaximum<'a>(&'a [f32; TILE]);

impl Kernel for TileMaximum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        l.reduce_max(tile_maximum(l, self.0, &mut 0))
    }
}
