//! The survey: one pass over the row that learns every tile's maximum.
//!
//! The maxima bound everything later stages ask for, so that those stages read only the few tiles they
//! need. Sums are taken only where a rule wants them (`mass.rs`).

use gumball_spec::{Row, TILE};

use crate::Level;
use crate::lanes::{Element, Kernel, Lanes, Mask, WIDTH, dispatch};
use crate::tiles::{MASK_WORDS, Patches, View};

/// What one pass over a row learns besides its tile maxima.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Survey {
    /// The largest logit; -inf in a row of nothing.
    pub first: f32,
    /// Whether the row may hold NaN or +inf.
    pub odd: bool,
}

/// Fills `maxima` with the maximum of each tile of a view, cleaned; tiles of nothing have -inf.
pub fn survey(level: Level, view: &View<'_>, maxima: &mut Vec<f32>) -> Survey {
    let tiles = view.tiles();
    maxima.resize(tiles, f32::NEG_INFINITY);
    let whole = view.row.vocab() / TILE;
    let mut odd = match view.row {
        Row::F32(row) => dispatch(level, Maxima { view, row: &row[..whole * TILE], maxima }),
        Row::Bf16(row) => dispatch(level, Maxima { view, row: &row[..whole * TILE], maxima }),
        Row::F16(row) => dispatch(level, Maxima { view, row: &row[..whole * TILE], maxima }),
    };
    if whole < tiles {
        let mut maximum = f32::NEG_INFINITY;
        for id in whole * TILE..view.row.vocab() {
            let z = view.row.logit(id);
            odd |= z.is_nan() || z == f32::INFINITY;
            maximum = maximum.max(view.logit(id));
        }
        maxima[whole] = maximum + 0.0;
    }
    if let Some(patches) = view.patches {
        dispatch(level, PatchMaxima { patches, maxima });
    }
    Survey { first: dispatch(level, Largest(maxima)), odd }
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

/// The lane-wise maximum of a tile, NaN left out; sets `odd` where there may be one.
///
/// A sum is NaN if any of its terms is, so one comparison serves the whole tile. It also is where +inf
/// meets -inf, which makes the row odd as well, or where huge logits overflow both ways, which only costs
/// a look.
#[inline(always)]
fn tile_maximum<L: Lanes, E: Element>(l: L, tile: &[E; TILE], odd: &mut Mask) -> L::F {
    let (chunks, _) = tile.as_chunks::<WIDTH>();
    let mut max = [l.splat(f32::NEG_INFINITY); 4];
    let mut sum = [l.splat(0.0); 4];
    for four in chunks.chunks_exact(4) {
        for i in 0..4 {
            let z = E::load(l, &four[i]);
            sum[i] = l.add(sum[i], z);
            max[i] = l.max(z, max[i]);
        }
    }
    let sum = l.add(l.add(sum[0], sum[1]), l.add(sum[2], sum[3]));
    *odd |= l.unordered(sum, sum);
    l.max(l.max(max[0], max[1]), l.max(max[2], max[3]))
}

/// The same of the logits a mask allows; a tile that it forbids is not read.
#[inline(always)]
fn masked_maximum<L: Lanes, E: Element>(l: L, tile: &[E; TILE], mask: &[u32], odd: &mut Mask) -> L::F {
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

/// The maxima of patched tiles.
struct PatchMaxima<'a> {
    patches: &'a Patches,
    maxima: &'a mut [f32],
}

impl Kernel for PatchMaxima<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        for tile in self.patches.touched() {
            let patch = self.patches.get(*tile as usize).expect("touched");
            self.maxima[*tile as usize] = l.reduce_max(tile_maximum(l, patch, &mut 0)) + 0.0;
        }
    }
}

/// The largest of some logits.
struct Largest<'a>(&'a [f32]);

impl Kernel for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        let (chunks, rest) = self.0.as_chunks::<WIDTH>();
        let mut max = [l.splat(f32::NEG_INFINITY); 2];
        for (i, chunk) in chunks.iter().enumerate() {
            max[i % 2] = l.max(l.load(chunk), max[i % 2]);
        }
        rest.iter().copied().fold(l.reduce_max(l.max(max[0], max[1])), f32::max)
    }
}
