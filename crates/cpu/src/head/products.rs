//! Products of weight rows and hidden states (H1): the partial sums of each are the lanes of one vector.

use crate::lanes::{Element, Kernel, Lanes, WIDTH};

/// How many rows of weights, and how many hidden states, are multiplied side by side: their sums stay in
/// registers.
const SIDE: usize = 4;

/// Products of all rows of weights with all hidden states.
pub struct OfRows<'a, 'o, E> {
    pub weights: &'a [E],
    pub width: usize,
    pub hidden: &'a [f32],
    pub out: &'a mut [&'o mut [f32]],
}

impl<E: Element> Kernel for OfRows<'_, '_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { weights, width, hidden, out } = self;
        let padded = super::padded_width(width);
        let mut id = 0;
        for rows in weights.chunks(SIDE * width) {
            let mut state = 0;
            if rows.len() == SIDE * width {
                let rows = split::<E, SIDE>(rows, width);
                while state + SIDE <= out.len() {
                    let states = split::<f32, SIDE>(&hidden[state * padded..(state + SIDE) * padded], padded);
                    let products = l.call(Block { rows, states });
                    for (row, products) in products.iter().enumerate() {
                        for (i, product) in products.iter().enumerate() {
                            out[state + i][id + row] = *product;
                        }
                    }
                    state += SIDE;
                }
                while state < out.len() {
                    let states = [&hidden[state * padded..(state + 1) * padded]];
                    let products = l.call(Block { rows, states });
                    for (row, [product]) in products.iter().enumerate() {
                        out[state][id + row] = *product;
                    }
                    state += 1;
                }
                id += SIDE;
                continue;
            }
            for row in rows.chunks(width) {
                for (state, logits) in out.iter_mut().enumerate() {
                    let states = [&hidden[state * padded..(state + 1) * padded]];
                    [[logits[id]]] = l.call(Block { rows: [row], states });
                }
                id += 1;
            }
        }
    }
}

/// Products of some rows of weights with one hidden state.
pub struct OfIds<'a, E> {
    pub weights: &'a [E],
    pub width: usize,
    pub hidden: &'a [f32],
    pub ids: &'a [u32],
    pub out: &'a mut [f32],
}

impl<E: Element> Kernel for OfIds<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { weights, width, hidden, ids, out } = self;
        let (fours, rest) = ids.as_chunks::<SIDE>();
        let (out_fours, out_rest) = out.as_chunks_mut::<SIDE>();
        for (ids, out) in fours.iter().zip(out_fours) {
            let mut rows = [&weights[..0]; SIDE];
            for (row, id) in rows.iter_mut().zip(ids) {
                *row = &weights[*id as usize * width..][..width];
            }
            let products = l.call(Block { rows, states: [hidden] });
            for (out, [product]) in out.iter_mut().zip(products) {
                *out = product;
            }
        }
        for (id, out) in rest.iter().zip(out_rest) {
            let rows = [&weights[*id as usize * width..][..width]];
            [[*out]] = l.call(Block { rows, states: [hidden] });
        }
    }
}

/// Splits what follows each other.
#[inline(always)]
fn split<T, const N: usize>(of: &[T], width: usize) -> [&[T]; N] {
    let mut parts = [&of[..0]; N];
    for (i, part) in parts.iter_mut().enumerate() {
        *part = &of[i * width..(i + 1) * width];
    }
    parts
}

/// The products of `R` rows with `B` hidden states, which are padded with zeros.
struct Block<'a, E, const R: usize, const B: usize> {
    rows: [&'a [E]; R],
    states: [&'a [f32]; B],
}

impl<E: Element, const R: usize, const B: usize> Kernel for Block<'_, E, R, B> {
    type Output = [[f32; B]; R];

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> [[f32; B]; R] {
        let mut sums = [[l.splat(0.0); B]; R];
        let whole = self.rows[0].len() / WIDTH;
        for i in 0..whole {
            let mut states = [l.splat(0.0); B];
            for (state, from) in states.iter_mut().zip(self.states) {
                *state = l.load(from[i * WIDTH..].first_chunk().expect("padded"));
            }
            for (sums, row) in sums.iter_mut().zip(self.rows) {
                let row = E::load(l, row[i * WIDTH..].first_chunk().expect("a whole chunk"));
                for (sum, state) in sums.iter_mut().zip(states) {
                    *sum = l.fma(row, state, *sum);
                }
            }
        }
        let rest = self.rows[0].len() % WIDTH;
        if rest > 0 {
            for (sums, row) in sums.iter_mut().zip(self.rows) {
                let mut padded = [E::from_f32(0.0); WIDTH];
                padded[..rest].copy_from_slice(&row[whole * WIDTH..]);
                let row = E::load(l, &padded);
                for (sum, from) in sums.iter_mut().zip(self.states) {
                    let state = l.load(from[whole * WIDTH..].first_chunk().expect("padded"));
                    *sum = l.fma(row, state, *sum);
                }
            }
        }
        let mut products = [[0.0; B]; R];
        for (products, sums) in products.iter_mut().zip(sums) {
            for (product, sum) in products.iter_mut().zip(sums) {
                let mut lanes = [0.0; WIDTH];
                l.store(sum, &mut lanes);
                *product = tree(lanes);
            }
        }
        products
    }
}

/// Adds sixteen partial sums: each of the lower half to its like in the upper half, until one is left.
#[inline(always)]
fn tree(sums: [f32; WIDTH]) -> f32 {
    let (mut eight, mut four) = ([0.0; 8], [0.0; 4]);
    for j in 0..8 {
        eight[j] = sums[j] + sums[j + 8];
    }
    for j in 0..4 {
        four[j] = eight[j] + eight[j + 4];
    }
    (four[0] + four[2]) + (four[1] + four[3])
}
