//! Logprobs of given ids over a given set, the set's entropy, and the gradient of both (rules L4 and L5).

use crate::layout::holds_id;
use crate::num::{LN_2, exp2, fma, log2, log2_one_plus, log2_parts};
use crate::params::SamplingParams;
use crate::row::{Kind, Row};
use crate::survey::{Given, Measure, in_first_weights, mean_distance, order, scale};

/// The id that is ignored unless the caller names another.
pub const IGNORED: i32 = -100;

/// The most ids that a call asks for in a row.
pub const MAX_GIVEN_IDS: usize = 1024;

/// How many numbers the [weights](Weighed) of a row are.
pub const WEIGHED_NUMBERS: usize = 3;

/// The weights of a row's members, from which its logprobs, its entropy and its gradient are computed, with
/// single logits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weighed {
    /// The largest logit.
    pub first: f32,
    /// The mass in units of the first member's weight, n of L5. 0 if there is no gradient: without a member,
    /// at temperature 0, and in a row that is not read.
    pub mass: f32,
    /// How far members lie below the first, on average by weight, in powers of two: m of L5; 0 unless the
    /// entropy was asked for.
    pub distance: f32,
}

impl Weighed {
    /// Takes the largest logit of the members and their mass.
    #[must_use]
    pub fn of_mass(first: f32, mass: u64) -> Self {
        Self { first, mass: in_first_weights(mass), distance: 0.0 }
    }

    /// Takes the sum of the members' weighted distances besides.
    #[must_use]
    pub fn new(first: f32, mass: u64, distances: u64) -> Self {
        Self { distance: mean_distance(mass, distances), ..Self::of_mass(first, mass) }
    }

    /// Returns the natural log probability of a member's logit (L3); 0 at temperature 0.
    #[must_use]
    pub fn logprob(&self, z: f32, temperature: f32) -> f32 {
        if self.mass == 0.0 {
            return 0.0;
        }
        let (e, f) = log2_parts(self.mass);
        let p = log2_one_plus(f) * f;
        let difference = (f64::from(z) - f64::from(self.first)) / f64::from(temperature);
        (difference - LN_2 * (f64::from(e) + f64::from(p))) as f32
    }

    /// Returns the entropy in nats (L4).
    #[must_use]
    pub fn entropy(&self) -> f32 {
        if self.mass == 0.0 {
            return 0.0;
        }
        (LN_2 * f64::from(log2(self.mass) + self.distance)) as f32
    }
}

/// The derivative of a loss by the logits of a row (L5).
#[derive(Clone, Copy, Debug)]
pub struct Slope {
    /// The largest logit of the members.
    pub first: f32,
    /// The scale of differences of logits.
    pub s: f32,
    /// b of L5.
    pub factor: f32,
    /// c of L5.
    pub offset: f32,
    /// RN(1 / T).
    pub inverse: f32,
}

impl Slope {
    /// Returns the slope of a row that has a gradient. `of_members`: G of L5; `of_entropy`: h.
    #[must_use]
    pub fn new(weighed: &Weighed, temperature: f32, of_members: f64, of_entropy: f32) -> Self {
        let n = f64::from(weighed.mass);
        let factor = LN_2 * f64::from(of_entropy) / n;
        let offset = (of_members / n + factor * f64::from(weighed.distance)) as f32;
        let (s, inverse) = (scale(temperature), 1.0 / temperature);
        Self { first: weighed.first, s, factor: factor as f32, offset, inverse }
    }

    /// Returns the derivative by a member's logit. `own`: a_j of L5.
    #[must_use]
    pub fn of(&self, z: f32, own: f32) -> f32 {
        let y = (z - self.first) * self.s;
        let share = if y < -126.0 { 0.0 } else { exp2(y) * fma(self.factor, y, self.offset) };
        (own - share) * self.inverse
    }
}

/// The ids whose logprobs a call asks for in a row.
#[derive(Clone, Copy, Debug)]
pub struct GivenIds<'a> {
    /// Ids, of which any may come several times.
    pub ids: &'a [i32],
    /// The id that is ignored.
    pub ignored: i32,
}

impl GivenIds<'_> {
    /// Returns whether the row is not read, since all ids are ignored.
    #[must_use]
    pub fn is_ignored(&self) -> bool {
        !self.ids.is_empty() && self.ids.iter().all(|id| *id == self.ignored)
    }

    /// Writes the logprobs of the ids. `logit`: what an id counts as in the row, -inf if it is no member.
    pub fn logprobs(
        &self,
        weighed: &Weighed,
        temperature: f32,
        logit: impl Fn(usize) -> f32,
        out: &mut [f32],
    ) {
        for (id, out) in self.ids.iter().zip(out) {
            let z = usize::try_from(*id).map_or(f32::NEG_INFINITY, &logit);
            *out = match z > f32::NEG_INFINITY {
                _ if *id == self.ignored => 0.0,
                true => weighed.logprob(z, temperature),
                false => f32::NEG_INFINITY,
            };
        }
    }

    /// Sums the derivatives by the logprobs of members. Returns G of L5, and for each entry of `ids` that is
    /// a member its id, its logit and a_j, which is complete in the last entry of an id.
    pub fn own(&self, of_logprobs: &[f32], logit: impl Fn(usize) -> f32) -> (f64, Vec<(usize, f32, f32)>) {
        let (mut all, mut each) = (0.0, Vec::<(usize, f32, f64)>::new());
        for (id, g) in self.ids.iter().zip(of_logprobs) {
            let Ok(id) = usize::try_from(*id) else { continue };
            let z = logit(id);
            if z == f32::NEG_INFINITY || id as i32 == self.ignored {
                continue;
            }
            all += f64::from(*g);
            let before = each.iter().rev().find(|own| own.0 == id).map_or(0.0, |own| own.2);
            each.push((id, z, before + f64::from(*g)));
        }
        (all, each.into_iter().map(|(id, z, own)| (id, z, own as f32)).collect())
    }
}

/// A row as a trainer sees it.
#[derive(Clone, Copy, Debug)]
pub struct GivenRow<'a> {
    /// The logits.
    pub row: Row<'a>,
    /// The set: bit `id % 32` of word `id / 32` holds an id, missing words hold none. `None`: all ids.
    pub kept: Option<&'a [u32]>,
    /// The temperature, in 0..=2^100.
    pub temperature: f32,
    /// The ids.
    pub ids: GivenIds<'a>,
}

impl GivenRow<'_> {
    fn members(&self) -> Vec<f32> {
        let holds = |id: usize| self.kept.is_none_or(|kept| holds_id(kept, id as u32));
        let of = |id| if holds(id) { Kind::Logits.clean(self.row.logit(id)) } else { f32::NEG_INFINITY };
        (0..self.row.vocab()).map(of).collect()
    }

    /// Returns the logprobs of the ids, and the members' weights, which have the entropy (L4).
    #[must_use]
    pub fn logprobs(&self) -> (Vec<f32>, Weighed) {
        let z = self.members();
        let order = order(&z);
        let has_gradient =
            !order.is_empty() && !SamplingParams::is_greedy(self.temperature) && !self.ids.is_ignored();
        let weighed = if has_gradient {
            let given = Given::new(&z, &order, Measure::new(Kind::Logits, self.temperature));
            Weighed::new(given.first(), given.total(), given.distances())
        } else {
            Weighed::default()
        };
        let mut out = vec![0.0; self.ids.ids.len()];
        self.ids.logprobs(&weighed, self.temperature, |id| z[id], &mut out);
        (out, weighed)
    }

    /// Returns the derivatives by the logits, as f32, of a loss with these derivatives by the logprobs and by
    /// the entropy (L5).
    #[must_use]
    pub fn gradient(&self, of_logprobs: &[f32], of_entropy: f32) -> Vec<f32> {
        let (z, (_, weighed)) = (self.members(), self.logprobs());
        if weighed.mass == 0.0 {
            return vec![0.0; z.len()];
        }
        let (all, each) = self.ids.own(of_logprobs, |id| z[id]);
        let slope = Slope::new(&weighed, self.temperature, all, of_entropy);
        let mut out: Vec<f32> = z.iter().map(|z| slope.of(*z, 0.0)).collect();
        for (id, z, own) in each {
            out[id] = slope.of(z, own);
        }
        out
    }
}
