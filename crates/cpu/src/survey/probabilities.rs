//! The survey of a row of probabilities: tile maxima, and whether a number is negative or NaN.
//!
//! A negative number shows in its sign bit, so the signs of all numbers are joined and looked at once. The
//! sign of -0.0 shows too, which costs such a row some time and changes nothing.

use gumball_spec::TILE;

use super::no_nan;
use crate::lanes::{Element, Kernel, Lanes, Mask, WIDTH, see_pairs};
use crate::tiles::MASK_WORDS;

/// The maxima of the whole tiles of a row, not cleaned and without edits. Returns whether there is no NaN and
/// no sign.
pub struct Likeliest<'a, E> {
    pub mask: Option<&'a [u32]>,
    pub row: &'a [E],
    pub maxima: &'a mut [f32],
}

impl<E: Element> Kernel for Likeliest<'_, E> {
    type Output = bool;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> bool {
        let (tiles, _) = self.row.as_chunks::<TILE>();
        let mut seen = [l.seen_nothing(); 4];
        let mut signs = [l.splat_u(0); 4];
        for (t, (tile, to)) in tiles.iter().zip(self.maxima).enumerate() {
            let mask = self.mask.map(|mask| &mask[t * MASK_WORDS..][..MASK_WORDS]);
            if mask.is_some_and(|mask| mask.iter().all(|word| *word == 0)) {
                *to = 0.0;
                continue;
            }
            let mut max = [l.splat(0.0); 4];
            let (chunks, _) = tile.as_chunks::<WIDTH>();
            for (i, four) in chunks.chunks_exact(4).enumerate() {
                let p =
                    [E::load(l, &four[0]), E::load(l, &four[1]), E::load(l, &four[2]), E::load(l, &four[3])];
                see_pairs(l, p, i, &mut seen);
                for j in 0..4 {
                    signs[j] = l.or(signs[j], l.bits(p[j]));
                    max[j] = match mask {
                        None => l.max(p[j], max[j]),
                        Some(mask) => {
                            let half = mask[2 * i + j / 2] >> (16 * (j % 2));
                            l.max_where(half as Mask, p[j], max[j])
                        }
                    };
                }
            }
            *to = l.reduce_max(l.max(l.max(max[0], max[1]), l.max(max[2], max[3])));
        }
        let signs = l.or(l.or(signs[0], signs[1]), l.or(signs[2], signs[3]));
        // The least signed number is the only one with the sign bit alone.
        let negative = l.less_u(l.splat_u(i32::MAX as u32), signs);
        no_nan(l, seen) && negative == 0
    }
}
