//! top-n-sigma: the standard deviation of a set as integer sums (rule F5).

use gumball_spec::TILE;
use gumball_spec::num::key_logit;

use super::{Buffers, Given, Reader};
use crate::cut::{Cut, CutLanes};
use crate::lanes::{Kernel, Lanes, WIDTH, dispatch};
use crate::parts::Moments;
use crate::tiles::{EMPTY_TILE, for_tiles_reaching};

/// The largest deviation, in units of 2^-12.
const LARGEST: f32 = 4_194_303.0;

/// How far a logit lies below the first, in units of 2^-12.
fn deviation(first: f32, z: f32) -> u64 {
    ((first - z) * 4096.0).round_ties_even().min(LARGEST) as u64
}

/// Returns the moments of a cut's deviations from `first`.
pub fn moments(reader: &Reader<'_>, cut: Cut, first: f32) -> Moments {
    if let Some(parts) = reader.view.parts.filter(|parts| !parts.is_whole()) {
        if cut == Cut::all(reader.view.kind) {
            return parts.need_moments();
        }
        parts.need_tokens(cut.low());
    }
    dispatch(reader.level, Deviations { reader, cut, first })
}

impl Given {
    /// Keeps the tokens within `n` standard deviations of the first logit.
    pub fn top_n_sigma(&self, reader: &Reader<'_>, buffers: &mut Buffers, n: f32) -> Given {
        let moments = match &self.listed {
            Some(range) => {
                let mut moments = Moments::default();
                for key in &buffers.list.keys[range.clone()] {
                    let x = deviation(self.first, key_logit(*key));
                    moments.count += 1;
                    moments.sum += x;
                    moments.squares += x * x;
                }
                moments
            }
            None => moments(reader, self.cut, self.first),
        };
        let count = u128::from(moments.count);
        // Never less than 0, unless the row was written meanwhile.
        let d = (count * u128::from(moments.squares)).saturating_sub(u128::from(moments.sum).pow(2));
        let limit = f64::from(n) * ((d as f64).sqrt() / count as f64);
        self.while_value(reader, buffers, |z| deviation(self.first, z) as f64 <= limit)
    }
}

/// The moments of a cut's deviations.
struct Deviations<'a> {
    reader: &'a Reader<'a>,
    cut: Cut,
    first: f32,
}

impl Kernel for Deviations<'_> {
    type Output = Moments;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Moments {
        let (cut, low) = (CutLanes::new(l, self.cut), self.cut.low());
        let (first, zero) = (l.splat(self.first), l.splat_u(0));
        let mut moments = Moments::default();
        let mut scratch = EMPTY_TILE;
        for_tiles_reaching!(l, self.reader.maxima, low, |tile| {
            let logits = self.reader.view.tile(l, tile, &mut scratch);
            let (mut sum, mut squares) = (zero, [zero; 3]);
            for (i, chunk) in logits.as_chunks::<WIDTH>().0.iter().enumerate() {
                let z = l.load(chunk);
                let id = l.add_u(l.iota(), l.splat_u((tile * TILE + i * WIDTH) as u32));
                let members = cut.members(l, z, id);
                moments.count += u64::from(members.count_ones());
                let x = l.round(l.mul(l.sub(first, z), l.splat(4096.0)));
                let x = l.select_u(members, l.to_int(l.min(x, l.splat(LARGEST))), zero);
                sum = l.add_u(sum, x);
                let (high, low) = l.mul_wide(x, x);
                squares[0] = l.add_u(squares[0], l.and(low, l.splat_u(0xFFFF)));
                squares[1] = l.add_u(squares[1], l.shr::<16>(low));
                squares[2] = l.add_u(squares[2], high);
            }
            moments.sum += l.sum_u(sum);
            let (low, middle, high) = (l.sum_u(squares[0]), l.sum_u(squares[1]), l.sum_u(squares[2]));
            let squares = low.wrapping_add(middle << 16).wrapping_add(high << 32);
            moments.squares = moments.squares.wrapping_add(squares);
        });
        moments
    }
}
