//! Mass: the integer sums that filters and logprobs are made of (rules M1 to M5).
//!
//! A [`Mass`] fixes a given set: the maxima of its tokens in each tile, its first number and a measure. Then
//! any part of the set can be weighed: one visit to the tiles that hold some of it, weights summed per tile,
//! each sum times the tile's factor.
//!
//! Sums fit their words as long as no token is above its tile's maximum. Where another thread writes the row meanwhile they wrap,
//! and nothing breaks.

use gumball_spec::TILE;
use gumball_spec::survey::{Factor, Measure, log_mass};

use crate::cut::{Cut, CutLanes};
use crate::lanes::{Kernel, Lanes, Proven, WIDTH, dispatch};
use crate::measure::{Weights, measured};
use crate::num;
use crate::tiles::{EMPTY_TILE, View};

/// A tile's sums over some part of a given set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TileSum {
    /// The sum of the weights.
    pub q: u64,
    /// The sum of the weights times their distance below the tile's maximum; 0 unless entropy was asked for.
    pub r: u64,
    /// How many tokens there are.
    pub count: u32,
}

/// Buffers that weigh parts of one given set.
#[derive(Debug)]
pub struct Mass {
    /// The maximum of the given set's tokens in each tile.
    maxima: Vec<f32>,
    /// Each tile's factor.
    factors: Vec<f32>,
    /// Each tile's sums of the part weighed last.
    pub sums: Vec<TileSum>,
    first: f32,
    measure: Measure,
    /// How often the tiles of a row were walked over since this was set to 0, by weighing or otherwise.
    pub visits: u32,
}

impl Default for Mass {
    fn default() -> Self {
        let (maxima, factors, sums) = Default::default();
        Self { maxima, factors, sums, first: 0.0, measure: Measure::Probabilities, visits: 0 }
    }
}

/// What a part of a given set comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Total {
    /// Its mass, in units of 2^-43 of the weight of the given set's first token.
    pub mass: u64,
    /// How many tokens it has.
    pub count: usize,
}

impl Mass {
    /// Fixes the given set: a cut of a view whose tile maxima are known.
    ///
    /// `first` is the logit of its first token; `prefix` says that this is the row's, so that the row's maxima
    /// are the set's own.
    #[expect(clippy::too_many_arguments, reason = "it is what a given set is made of")]
    pub fn give(
        &mut self,
        level: Proven,
        view: &View<'_>,
        maxima: &[f32],
        cut: Cut,
        first: f32,
        prefix: bool,
        measure: Measure,
    ) {
        self.measure = measure;
        self.first = first;
        self.maxima.clear();
        self.maxima.extend_from_slice(maxima);
        if !prefix {
            self.visits += 1;
            dispatch(level, GivenMaxima { view, cut, maxima: &mut self.maxima });
        } else if cut != Cut::all(view.kind) {
            let low = cut.low();
            self.maxima.iter_mut().filter(|m| **m < low).for_each(|m| *m = f32::NEG_INFINITY);
        }
        self.factors.clear();
        self.factors.resize(maxima.len().next_multiple_of(WIDTH), 0.0);
        measured!(measure, |weights| dispatch(level, Factors { mass: self, weights }));
        self.sums.clear();
        self.sums.resize(maxima.len(), TileSum::default());
    }

    /// Returns the measure.
    pub fn measure(&self) -> Measure {
        self.measure
    }

    /// Returns the maximum of each tile's tokens within the given set; -inf where a tile has none.
    pub fn maxima(&self) -> &[f32] {
        &self.maxima
    }

    /// Returns a tile's maximum within the given set.
    pub fn maximum(&self, tile: usize) -> f32 {
        self.maxima[tile]
    }

    /// Returns a tile's factor.
    pub fn factor(&self, tile: usize) -> Factor {
        factor(self.factors[tile])
    }

    /// Weighs the part of the given set inside a cut, which must lie inside the given set.
    pub fn weigh(&mut self, level: Proven, view: &View<'_>, cut: Cut) -> Total {
        if cut.is_at_least() {
            self.run::<AT_LEAST, false>(level, view, cut);
        } else {
            self.run::<INSIDE, false>(level, view, cut);
        }
        self.total()
    }

    /// Counts the tokens inside a cut, which must lie inside the given set, and weighs none.
    pub fn count(&mut self, level: Proven, view: &View<'_>, cut: Cut) -> Total {
        self.visits += 1;
        dispatch(level, Count { view, cut, mass: self });
        self.total()
    }

    /// Weighs the given set, if that is the whole row; counts every place of its tiles as a token.
    pub fn weigh_all(&mut self, level: Proven, view: &View<'_>) -> u64 {
        self.run::<ALL, false>(level, view, Cut::all(view.kind));
        self.total().mass
    }

    /// Weighs as [`Mass::weigh`] does, and sums what the entropy needs.
    pub fn weigh_with_entropy(&mut self, level: Proven, view: &View<'_>, cut: Cut) -> (Total, f32) {
        self.run::<INSIDE, true>(level, view, cut);
        let total = self.total();
        (total, self.entropy(total.mass))
    }

    fn run<const PART: u8, const ENTROPY: bool>(&mut self, level: Proven, view: &View<'_>, cut: Cut) {
        self.visits += 1;
        measured!(self.measure, |weights| {
            dispatch(level, Weigh::<_, PART, ENTROPY> { view, cut, mass: self, weights });
        });
    }

    /// Returns bounds of the mass of the whole row, if that is the given set, in less time than it takes to weigh.
    pub fn bounds(&mut self, level: Proven, view: &View<'_>) -> (u64, u64) {
        self.visits += 1;
        let rough = measured!(self.measure, |weights| dispatch(level, Rough { view, mass: self, weights }));
        let rough = rough * TWO_POW_43;
        // A tile's mass is rounded down, and each of its weights to 2^-28 of its largest. The sums are of f32, all
        // positive: each of their additions, one a tile and some more, errs by 2^-24 at most.
        let tiles = self.maxima.len() as f64 + 1.0;
        let error = num::ROUGH_ERROR + 1e-5 + tiles * 6e-8;
        (((rough * (1.0 - error) - tiles).max(0.0)) as u64, (rough * (1.0 + error) + tiles) as u64)
    }

    /// Returns what the part weighed last comes to.
    pub fn total(&self) -> Total {
        let mut total = Total::default();
        for (sum, part) in self.sums.iter().zip(&self.factors) {
            total.mass = total.mass.saturating_add(factor(*part).mass(sum.q));
            total.count += sum.count as usize;
        }
        total
    }

    /// Returns the entropy in bits of the part weighed last, which was the given set (M5).
    fn entropy(&self, mass: u64) -> f32 {
        let mut sum = 0u64;
        for (tile, part) in self.sums.iter().enumerate().filter(|(_, part)| part.q > 0) {
            let d = fixed_distance(self.measure.exponent(self.first, self.maxima[tile]));
            sum = sum.wrapping_add(self.factor(tile).mass(part.r.wrapping_add(part.q.wrapping_mul(d)) >> 24));
        }
        entropy_of(mass, sum)
    }
}

/// Splits a factor, which is at most 1 unless the row was written since its maxima were taken.
pub fn factor(value: f32) -> Factor {
    Factor::new(value.min(1.0))
}

/// Returns a distance in units of 2^-20, capped at 32 (M5).
pub fn fixed_distance(d: f32) -> u64 {
    (1_048_576.0 * d.min(32.0)).round_ties_even() as u64
}

/// Returns the entropy of a set of the given mass whose weighted distances sum to `sum` (M5).
pub fn entropy_of(mass: u64, sum: u64) -> f32 {
    log_mass(mass) + 16.0 * (sum as f32 / mass as f32)
}

/// The tiles' factors (M3).
struct Factors<'a, W> {
    mass: &'a mut Mass,
    weights: W,
}

impl<W: Weights> Kernel for Factors<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let first = l.splat(self.mass.first);
        let (factors, _) = self.mass.factors.as_chunks_mut::<WIDTH>();
        for (to, maxima) in factors.iter_mut().zip(self.mass.maxima.chunks(WIDTH)) {
            let mut m = [f32::NEG_INFINITY; WIDTH];
            m[..maxima.len()].copy_from_slice(maxima);
            l.store(self.weights.ratio(l, l.load(&m), first), to);
        }
    }
}

/// The maxima of the tokens of a cut in each tile.
struct GivenMaxima<'a> {
    view: &'a View<'a>,
    cut: Cut,
    maxima: &'a mut [f32],
}

impl Kernel for GivenMaxima<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let lowest = l.splat(f32::NEG_INFINITY);
        let (cut, low) = (CutLanes::new(l, self.cut), self.cut.low());
        let mut scratch = EMPTY_TILE;
        for (tile, maximum) in self.maxima.iter_mut().enumerate() {
            if *maximum < low || *maximum == f32::NEG_INFINITY {
                *maximum = f32::NEG_INFINITY;
                continue;
            }
            let mut max = lowest;
            let (chunks, _) = self.view.tile(l, tile, &mut scratch).as_chunks::<WIDTH>();
            for (i, chunk) in chunks.iter().enumerate() {
                let z = l.load(chunk);
                let id = l.add_u(l.iota(), l.splat_u((tile * TILE + i * WIDTH) as u32));
                max = l.max(l.select(cut.members(l, z, id), z, lowest), max);
            }
            *maximum = l.reduce_max(max) + 0.0;
        }
    }
}

/// The unit of a mass, inverted.
pub const TWO_POW_43: f64 = (1u64 << 43) as f64;

/// All tokens; places below -inf have no weight.
const ALL: u8 = 0;
/// The tokens at or above a logit.
const AT_LEAST: u8 = 1;
/// The tokens of a cut.
const INSIDE: u8 = 2;

/// The sums of a part of the given set, tile by tile.
struct Weigh<'a, W, const PART: u8, const ENTROPY: bool> {
    view: &'a View<'a>,
    cut: Cut,
    mass: &'a mut Mass,
    weights: W,
}

impl<W: Weights, const PART: u8, const ENTROPY: bool> Kernel for Weigh<'_, W, PART, ENTROPY> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Mass { maxima, sums, .. } = self.mass;
        let (cut, low) = (CutLanes::new(l, self.cut), self.cut.low());
        let least = l.splat(low);
        let mut scratch = EMPTY_TILE;
        for (tile, (maximum, sum)) in maxima.iter().zip(sums.iter_mut()).enumerate() {
            *sum = TileSum::default();
            if *maximum < low || *maximum == f32::NEG_INFINITY {
                continue;
            }
            let m = l.splat(*maximum);
            let origin = if ENTROPY { self.weights.origin(l, m) } else { m };
            let (chunks, _) = self.view.tile(l, tile, &mut scratch).as_chunks::<WIDTH>();
            let zero = l.splat_u(0);
            if PART == ALL {
                sum.count = TILE as u32;
            }
            // Eight weights of at most 2^28 fit a u32.
            for (half, chunks) in chunks.chunks_exact(8).enumerate() {
                let mut q_sum = zero;
                let mut r_sums = [zero; 3];
                for (i, chunk) in chunks.iter().enumerate() {
                    let z = l.load(chunk);
                    let members = match PART {
                        ALL => u16::MAX,
                        AT_LEAST => l.ge(z, least),
                        _ => {
                            let place = (tile * TILE + (half * 8 + i) * WIDTH) as u32;
                            cut.members(l, z, l.add_u(l.iota(), l.splat_u(place)))
                        }
                    };
                    if PART != ALL {
                        sum.count += members.count_ones();
                    }
                    let q = self.weights.weight(l, z, m);
                    let q = if PART == ALL { q } else { l.select_u(members, q, zero) };
                    q_sum = l.add_u(q_sum, q);
                    if ENTROPY {
                        let d = self.weights.exponent(l, z, origin);
                        let below = l.min(l.sub(l.splat(0.0), d), l.splat(32.0));
                        let fixed = l.to_int(l.mul(below, l.splat(1_048_576.0)));
                        let (high, low) = l.mul_wide(q, fixed);
                        r_sums[0] = l.add_u(r_sums[0], l.and(low, l.splat_u(0xFFFF)));
                        r_sums[1] = l.add_u(r_sums[1], l.shr::<16>(low));
                        r_sums[2] = l.add_u(r_sums[2], high);
                    }
                }
                sum.q += l.sum_u(q_sum);
                if ENTROPY {
                    let (low, middle, high) = (l.sum_u(r_sums[0]), l.sum_u(r_sums[1]), l.sum_u(r_sums[2]));
                    sum.r = sum.r.wrapping_add(low).wrapping_add(middle << 16).wrapping_add(high << 32);
                }
            }
        }
    }
}

/// The numbers of tokens of a part of the given set, tile by tile.
struct Count<'a> {
    view: &'a View<'a>,
    cut: Cut,
    mass: &'a mut Mass,
}

impl Kernel for Count<'_> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Mass { maxima, sums, .. } = self.mass;
        let (cut, low) = (CutLanes::new(l, self.cut), self.cut.low());
        let (least, at_least) = (l.splat(low), self.cut.is_at_least());
        let mut scratch = EMPTY_TILE;
        for (tile, (maximum, sum)) in maxima.iter().zip(sums.iter_mut()).enumerate() {
            *sum = TileSum::default();
            if *maximum < low || *maximum == f32::NEG_INFINITY {
                continue;
            }
            let (chunks, _) = self.view.tile(l, tile, &mut scratch).as_chunks::<WIDTH>();
            for (i, chunk) in chunks.iter().enumerate() {
                let z = l.load(chunk);
                let members = if at_least {
                    l.ge(z, least)
                } else {
                    cut.members(l, z, l.add_u(l.iota(), l.splat_u((tile * TILE + i * WIDTH) as u32)))
                };
                sum.count += members.count_ones();
            }
        }
    }
}

/// The mass of the whole row in units of the first token's weight, to within `num::ROUGH_ERROR`.
struct Rough<'a, W> {
    view: &'a View<'a>,
    mass: &'a Mass,
    weights: W,
}

impl<W: Weights> Kernel for Rough<'_, W> {
    type Output = f64;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f64 {
        let Mass { maxima, factors, .. } = self.mass;
        let mut scratch = EMPTY_TILE;
        let mut total = l.splat(0.0);
        for (tile, (maximum, factor)) in maxima.iter().zip(factors).enumerate() {
            if *maximum == f32::NEG_INFINITY {
                continue;
            }
            let m = l.splat(*maximum);
            let (chunks, _) = self.view.tile(l, tile, &mut scratch).as_chunks::<WIDTH>();
            let mut sums = [l.splat(0.0); 2];
            for (i, chunk) in chunks.iter().enumerate() {
                let weight = self.weights.rough(l, l.load(chunk), m);
                sums[i % 2] = l.add(sums[i % 2], weight);
            }
            total = l.fma(l.add(sums[0], sums[1]), l.splat(*factor), total);
        }
        f64::from(l.reduce_add(total))
    }
}
