//! Mass: the integer sums that filters and logprobs are made of (rules M1 to M5).
//!
//! A [`Mass`] fixes a given set: the maxima of its tokens in each tile, its first number and a measure. Then
//! any part of the set can be weighed: one visit to the tiles that hold some of it, weights summed per tile,
//! each sum times the tile's factor.
//!
//! Sums fit their words as long as no token is above its tile's maximum. Where another thread writes the row
//! meanwhile they wrap, and nothing breaks.

use gumball_spec::TILE;
use gumball_spec::survey::{Factor, Measure};

use crate::cut::{Cut, CutLanes};
use crate::lanes::{Element, Kernel, Lanes, Proven, WIDTH, dispatch};
use crate::measure::{Weights, measured};
use crate::num;
pub use crate::tile::{TileSum, Total, entropy_of, fixed_distance};
use crate::tiles::{EMPTY_TILE, View};

/// Buffers that weigh parts of one given set.
#[derive(Debug)]
pub struct Mass {
    /// The maximum of the given set's tokens in each tile.
    maxima: Vec<f32>,
    /// Each tile's factor.
    factors: Vec<f32>,
    /// Each tile's sums of the part weighed last.
    pub sums: Vec<TileSum>,
    /// The sum of the factors, about.
    factors_sum: f32,
    first: f32,
    measure: Measure,
    /// How often the tiles of a row were walked over since this was set to 0, by weighing or otherwise.
    pub visits: u32,
}

impl Default for Mass {
    fn default() -> Self {
        let (maxima, factors, sums, factors_sum, first, visits) = Default::default();
        Self { maxima, factors, sums, factors_sum, first, measure: Measure::Probabilities, visits }
    }
}

/// About the mass of a whole row, in units of the weight of its first token.
#[derive(Clone, Copy, Debug)]
pub struct Rough {
    /// The sum of rough weights.
    pub sum: f64,
    /// By how much each of them may be off, relative to the true one, and what they are of it on average.
    error: f64,
    mean: f64,
    tiles: f64,
}

impl Rough {
    /// Returns bounds of the mass. `listed` is the exact mass of some tokens, and `rough` their part of the
    /// rough sum.
    pub fn bounds(&self, listed: f64, rough: f64) -> (u64, u64) {
        // A tile's mass is rounded down, and each of its weights to 2^-28 of its largest. The sums are of
        // f32, all positive: each of their additions, one a tile and some more, errs by 2^-24 at most.
        let slack = self.sum * (1e-5 + self.tiles * 6e-8);
        let rest = self.sum - rough;
        let least = (rest - slack).max(0.0) / (1.0 + self.error);
        let most = (rest + slack).max(0.0) / (1.0 - self.error);
        let [least, most] = [least, most].map(|rest| (listed + rest) * TWO_POW_43);
        ((least - self.tiles).max(0.0) as u64, (most + self.tiles) as u64)
    }

    /// Returns an estimate of the mass.
    pub fn estimate(&self) -> f64 {
        self.sum / self.mean * TWO_POW_43
    }
}

impl Mass {
    /// Fixes the given set: a cut of a view whose tile maxima are known.
    ///
    /// `first` is the logit of its first token; `prefix` says that this is the row's, so that the row's
    /// maxima are the set's own.
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
            view.need(cut.low());
            self.visits += 1;
            dispatch(level, GivenMaxima { view, cut, maxima: &mut self.maxima });
        } else if cut != Cut::all(view.kind) {
            let low = cut.low();
            self.maxima.iter_mut().filter(|m| **m < low).for_each(|m| *m = f32::NEG_INFINITY);
        }
        self.factors.clear();
        self.factors.resize(maxima.len().next_multiple_of(WIDTH), 0.0);
        self.factors_sum = measured!(measure, |weights| dispatch(level, Factors { mass: self, weights }));
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

    /// Returns a tile's factor as a number.
    pub fn factor_value(&self, tile: usize) -> f64 {
        f64::from(self.factors[tile])
    }

    /// Returns a tile's factor.
    pub fn factor(&self, tile: usize) -> Factor {
        factor(self.factors[tile])
    }

    /// Weighs the part of the given set inside a cut, which must lie inside the given set.
    pub fn weigh(&mut self, level: Proven, view: &View<'_>, cut: Cut) -> Total {
        view.need(cut.low());
        if cut.is_at_least() {
            self.run::<AT_LEAST, false>(level, view, cut);
        } else {
            self.run::<INSIDE, false>(level, view, cut);
        }
        self.total()
    }

    /// Counts the tokens inside a cut, which must lie inside the given set, and weighs none.
    pub fn count(&mut self, level: Proven, view: &View<'_>, cut: Cut) -> Total {
        view.need(cut.low());
        self.visits += 1;
        dispatch(level, Count { view, cut, mass: self });
        self.total()
    }

    /// Weighs the given set, if that is the whole row; counts every place of its tiles as a token.
    pub fn weigh_all(&mut self, level: Proven, view: &View<'_>) -> u64 {
        if let Some(parts) = view.parts.filter(|parts| !parts.is_whole()) {
            return parts.need_sums(self.measure).0.mass;
        }
        self.run::<ALL, false>(level, view, Cut::all(view.kind));
        self.total().mass
    }

    /// Weighs as [`Mass::weigh`] does, and sums what the entropy needs.
    pub fn weigh_with_entropy(&mut self, level: Proven, view: &View<'_>, cut: Cut) -> (Total, f32) {
        if let Some(parts) = view.parts.filter(|parts| !parts.is_whole()) {
            if cut == Cut::all(view.kind) {
                return parts.need_sums(self.measure);
            }
            parts.need_tokens(cut.low());
        }
        self.run::<INSIDE, true>(level, view, cut);
        let total = self.total();
        (total, self.entropy(total.mass))
    }

    /// Weighs the given set, if that is the whole row, as [`Mass::weigh_all`] does, and its part at or above
    /// a value as [`Mass::weigh`] does, in one visit. The sums that are kept are the part's.
    pub fn weigh_all_and(&mut self, level: Proven, view: &View<'_>, least: f32) -> (u64, Total) {
        view.need(-f32::MAX);
        let whole = self.run::<ALL_AND, false>(level, view, Cut::all(view.kind).at_least(least));
        (whole, self.total())
    }

    /// Runs the kernel of a part; returns the mass of the whole row where that is weighed along with a part.
    fn run<const PART: u8, const ENTROPY: bool>(&mut self, level: Proven, view: &View<'_>, cut: Cut) -> u64 {
        self.visits += 1;
        measured!(self.measure, |weights| {
            dispatch(level, Weigh::<_, PART, ENTROPY> { view, cut, mass: self, weights })
        })
    }

    /// Returns about the mass of the whole row, if that is the given set, in less time than it takes to
    /// weigh. `None` where the numbers are too large for it.
    pub fn rough<const FINE: bool>(&mut self, level: Proven, view: &View<'_>) -> Option<Rough> {
        view.need(-f32::MAX);
        let reach = measured!(self.measure, |weights| weights.rough_reach(self.first));
        if reach > 1e-3 {
            return None;
        }
        self.visits += 1;
        let sum = measured!(self.measure, |weights| {
            dispatch(level, RoughMass::<_, FINE> { view, mass: self, weights })
        });
        let (error, mean) = if FINE { (num::FINE_ERROR, 1.0) } else { (num::COARSE_ERROR, num::COARSE_MEAN) };
        Some(Rough { sum, error: error + reach, mean, tiles: self.maxima.len() as f64 + 1.0 })
    }

    /// Returns about how much mass the tiles' first tokens have, in units of the weight of the set's first:
    /// no more than the set.
    pub fn of_maxima(&self) -> f32 {
        self.factors_sum
    }

    /// Returns the total of the part that was weighed last.
    pub fn total(&self) -> Total {
        self.total_of(&self.sums)
    }

    /// Returns the number of tokens and the mass of a part, from its sums.
    pub fn total_of(&self, sums: &[TileSum]) -> Total {
        let mut total = Total::default();
        for (sum, part) in sums.iter().zip(&self.factors) {
            total.mass = total.mass.saturating_add(factor(*part).mass(sum.q));
            total.count += sum.count as usize;
        }
        total
    }

    /// Returns the entropy in bits of the part weighed last, which was the given set (M5).
    fn entropy(&self, mass: u64) -> f32 {
        entropy_of(mass, self.distances())
    }

    /// Returns the sum of the weighted distances below the first token, of the part weighed last, which was
    /// the given set.
    pub fn distances(&self) -> u64 {
        let mut sum = 0u64;
        for (tile, part) in self.sums.iter().enumerate().filter(|(_, part)| part.q > 0) {
            let d = fixed_distance(self.measure.exponent(self.first, self.maxima[tile]));
            sum = sum.wrapping_add(self.factor(tile).mass(part.r.wrapping_add(part.q.wrapping_mul(d)) >> 24));
        }
        sum
    }
}

/// Splits a factor, which is at most 1 unless the row was written since its maxima were taken.
pub fn factor(value: f32) -> Factor {
    Factor::new(value.min(1.0))
}

/// The tiles' factors (M3), and about what they sum to.
struct Factors<'a, W> {
    mass: &'a mut Mass,
    weights: W,
}

impl<W: Weights> Kernel for Factors<'_, W> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        let first = l.splat(self.mass.first);
        let (factors, _) = self.mass.factors.as_chunks_mut::<WIDTH>();
        let mut sum = l.splat(0.0);
        for (to, maxima) in factors.iter_mut().zip(self.mass.maxima.chunks(WIDTH)) {
            let mut m = [f32::NEG_INFINITY; WIDTH];
            m[..maxima.len()].copy_from_slice(maxima);
            let ratio = self.weights.ratio(l, l.load(&m), first);
            sum = l.add(sum, ratio);
            l.store(ratio, to);
        }
        l.reduce_add(sum)
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
/// The tokens at or above a logit, while the mass of all is added up beside.
const ALL_AND: u8 = 3;

/// The sums of a part of the given set, tile by tile.
struct Weigh<'a, W, const PART: u8, const ENTROPY: bool> {
    view: &'a View<'a>,
    cut: Cut,
    mass: &'a mut Mass,
    weights: W,
}

impl<W: Weights, const PART: u8, const ENTROPY: bool> Kernel for Weigh<'_, W, PART, ENTROPY> {
    type Output = u64;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> u64 {
        let Mass { maxima, sums, factors, .. } = self.mass;
        let part = Part::<_, _, W, PART, ENTROPY> {
            cut: CutLanes::new(l, self.cut),
            least: l.splat(self.cut.low()),
            weights: self.weights,
        };
        let (mut scratch, mut whole) = (EMPTY_TILE, 0u64);
        for (tile, (maximum, sum)) in maxima.iter().zip(sums.iter_mut()).enumerate() {
            *sum = TileSum::default();
            if PART != ALL_AND && *maximum < self.cut.low() || *maximum == f32::NEG_INFINITY {
                continue;
            }
            let of_all;
            // Where the ids do not matter, nor does the order.
            (*sum, of_all) = match self.view.bare_bf16(tile) {
                Some(logits) if PART != INSIDE && !ENTROPY => part.tile(l, tile, logits, *maximum),
                _ => part.tile(l, tile, self.view.tile(l, tile, &mut scratch), *maximum),
            };
            if PART == ALL_AND {
                whole = whole.saturating_add(factor(factors[tile]).mass(of_all));
            }
        }
        whole
    }
}

/// The part that is weighed, spread over lanes.
struct Part<F, U, W, const PART: u8, const ENTROPY: bool> {
    cut: CutLanes<F, U>,
    least: F,
    weights: W,
}

impl<F: Copy, U: Copy, W: Weights, const PART: u8, const ENTROPY: bool> Part<F, U, W, PART, ENTROPY> {
    /// Returns the sums of a tile, and where the mass of all is added up beside, the sum of all its weights.
    #[inline(always)]
    fn tile<L: Lanes<F = F, U = U>, E: Element>(
        &self,
        l: L,
        tile: usize,
        logits: &[E; TILE],
        maximum: f32,
    ) -> (TileSum, u64) {
        let (zero, m) = (l.splat_u(0), l.splat(maximum));
        let origin = if ENTROPY { self.weights.origin(l, m) } else { m };
        let (mut sum, mut of_all) = (TileSum::default(), 0);
        let (chunks, _) = logits.as_chunks::<WIDTH>();
        let mut kept = [[0; WIDTH]; TILE / WIDTH];
        // Eight weights of at most 2^28 fit a u32.
        for (half, (chunks, kept)) in chunks.chunks_exact(8).zip(kept.chunks_exact_mut(8)).enumerate() {
            let mut q_sum = zero;
            let mut r_sums = [zero; 3];
            for (i, (chunk, kept)) in chunks.iter().zip(kept).enumerate() {
                let z = E::load_in_any_order(l, chunk);
                let mut q = self.weights.weight(l, z, m);
                if PART == INSIDE {
                    let place = (tile * TILE + (half * 8 + i) * WIDTH) as u32;
                    let members = self.cut.members(l, z, l.add_u(l.iota(), l.splat_u(place)));
                    sum.count += members.count_ones();
                    q = l.select_u(members, q, zero);
                }
                if PART == AT_LEAST || PART == ALL_AND {
                    l.store_u(q, kept);
                }
                if PART != AT_LEAST {
                    q_sum = l.add_u(q_sum, q);
                }
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
            match PART {
                AT_LEAST => {}
                ALL_AND => of_all += l.sum_u(q_sum),
                _ => sum.q += l.sum_u(q_sum),
            }
            if ENTROPY {
                let (low, middle, high) = (l.sum_u(r_sums[0]), l.sum_u(r_sums[1]), l.sum_u(r_sums[2]));
                sum.r = sum.r.wrapping_add(low).wrapping_add(middle << 16).wrapping_add(high << 32);
            }
        }
        if PART == AT_LEAST || PART == ALL_AND {
            // In a loop of its own, since the first has no register to spare.
            let mut counts = zero;
            for (chunks, kept) in chunks.chunks_exact(8).zip(kept.chunks_exact(8)) {
                let mut q_sum = zero;
                for (chunk, q) in chunks.iter().zip(kept) {
                    let z = E::load_in_any_order(l, chunk);
                    q_sum = l.add_u(q_sum, l.where_ge(z, self.least, l.load_u(q)));
                    counts = l.add_u(counts, l.where_ge(z, self.least, l.splat_u(1)));
                }
                sum.q += l.sum_u(q_sum);
            }
            sum.count = l.sum_u(counts) as u32;
        }
        if PART == ALL {
            sum.count = TILE as u32;
        }
        (sum, of_all)
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
        let (zero, one) = (l.splat_u(0), l.splat_u(1));
        let mut scratch = EMPTY_TILE;
        for (tile, (maximum, sum)) in maxima.iter().zip(sums.iter_mut()).enumerate() {
            *sum = TileSum::default();
            if *maximum < low || *maximum == f32::NEG_INFINITY {
                continue;
            }
            let (chunks, _) = self.view.tile(l, tile, &mut scratch).as_chunks::<WIDTH>();
            if at_least {
                let mut counts = [zero; 2];
                for pair in chunks.chunks_exact(2) {
                    counts[0] = l.add_u(counts[0], l.where_ge(l.load(&pair[0]), least, one));
                    counts[1] = l.add_u(counts[1], l.where_ge(l.load(&pair[1]), least, one));
                }
                sum.count = l.sum_u(l.add_u(counts[0], counts[1])) as u32;
                continue;
            }
            for (i, chunk) in chunks.iter().enumerate() {
                let id = l.add_u(l.iota(), l.splat_u((tile * TILE + i * WIDTH) as u32));
                sum.count += cut.members(l, l.load(chunk), id).count_ones();
            }
        }
    }
}

/// The sum of the rough weights of the whole row.
struct RoughMass<'a, W, const FINE: bool> {
    view: &'a View<'a>,
    mass: &'a Mass,
    weights: W,
}

impl<W: Weights, const FINE: bool> Kernel for RoughMass<'_, W, FINE> {
    type Output = f64;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f64 {
        let Mass { maxima, factors, .. } = self.mass;
        let mut scratch = EMPTY_TILE;
        let mut total = l.splat(0.0);
        for (tile, (maximum, factor)) in maxima.iter().zip(factors).enumerate() {
            if *factor == 0.0 || *maximum == f32::NEG_INFINITY {
                continue;
            }
            let m = l.splat(*maximum);
            let sum = match self.view.bare_bf16(tile) {
                Some(tile) => self.tile(l, tile, m),
                None => self.tile(l, self.view.tile(l, tile, &mut scratch), m),
            };
            total = l.fma(sum, l.splat(*factor), total);
        }
        f64::from(l.reduce_add(total))
    }
}

impl<W: Weights, const FINE: bool> RoughMass<'_, W, FINE> {
    /// Adds up the rough weights of a tile.
    #[inline(always)]
    fn tile<L: Lanes, E: Element>(&self, l: L, tile: &[E; TILE], m: L::F) -> L::F {
        let origin = self.weights.rough_origin(l, m);
        let (mut even, mut odd) = (l.splat(0.0), l.splat(0.0));
        for pair in tile.as_chunks::<WIDTH>().0.chunks_exact(2) {
            let (a, b) = (E::load_in_any_order(l, &pair[0]), E::load_in_any_order(l, &pair[1]));
            even = self.weights.add_rough::<L, FINE>(l, even, a, origin);
            odd = self.weights.add_rough::<L, FINE>(l, odd, b, origin);
        }
        l.add(even, odd)
    }
}
