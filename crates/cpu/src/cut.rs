//! Cuts: intervals of the order, as the keys of their first and last token.

use gumball_spec::Kind;
use gumball_spec::num::{key, key_id, key_logit, ordered_bits};

use crate::lanes::{Lanes, Mask};

/// An interval of the order. Its ends need not be tokens of the row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The largest key inside.
    pub first: u64,
    /// The least key inside.
    pub last: u64,
}

impl Cut {
    /// Returns the cut of all tokens: logits above -inf, probabilities above 0.
    pub fn all(kind: Kind) -> Self {
        let last = match kind {
            Kind::Logits => ordered_bits(-f32::MAX),
            Kind::Probabilities => ordered_bits(f32::from_bits(1)),
        };
        Self { first: u64::MAX, last: u64::from(last) << 32 }
    }

    /// Returns the part of the cut at or above a logit.
    pub fn at_least(self, z: f32) -> Self {
        Self { last: self.last.max(key(z, u32::MAX)), ..self }
    }

    /// Returns whether the cut is all tokens at or above a logit, so that their keys need no test.
    pub fn is_at_least(self) -> bool {
        self.first == u64::MAX && self.last as u32 == 0
    }

    /// Returns whether a token lies inside.
    pub fn contains(self, key: u64) -> bool {
        self.last <= key && key <= self.first
    }

    /// Returns whether there is no key inside.
    pub fn is_empty(self) -> bool {
        self.last > self.first
    }

    /// Returns what two cuts share.
    pub fn and(self, other: Cut) -> Self {
        Self { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    /// Returns the least logit inside, as far as the keys tell.
    pub fn low(self) -> f32 {
        key_logit(self.last)
    }

    /// Returns the largest logit inside, as far as the keys tell.
    pub fn high(self) -> f32 {
        // Above the largest float there are only keys; +inf compares above every logit.
        // Keys of -0.0 belong to no token, but would compare equal to +0.0: the next float below stands in.
        match key_logit(self.first) {
            _ if self.first == u64::MAX => f32::INFINITY,
            z if z.to_bits() == (-0.0f32).to_bits() => -f32::from_bits(1),
            z => z,
        }
    }
}

/// A cut spread over lanes, to test tokens with.
#[derive(Clone, Copy, Debug)]
pub struct CutLanes<F, U> {
    high: F,
    low: F,
    first_id: U,
    last_id: U,
}

impl<F: Copy, U: Copy> CutLanes<F, U> {
    /// Spreads a cut.
    #[inline(always)]
    pub fn new<L: Lanes<F = F, U = U>>(l: L, cut: Cut) -> Self {
        Self {
            high: l.splat(cut.high()),
            low: l.splat(key_logit(cut.last)),
            first_id: l.splat_u(key_id(cut.first)),
            last_id: l.splat_u(key_id(cut.last)),
        }
    }

    /// Returns which tokens lie inside.
    #[inline(always)]
    pub fn members<L: Lanes<F = F, U = U>>(&self, l: L, z: F, id: U) -> Mask {
        // Equality with an end is rare, and then ids decide.
        let above = l.ge(z, self.low) & l.ge(self.high, z);
        let ties = (l.equal(z, self.low) | l.equal(z, self.high)) & above;
        if ties == 0 {
            return above;
        }
        let beyond_last = l.equal(z, self.low) & l.less_u(self.last_id, id);
        let before_first = l.equal(z, self.high) & l.less_u(id, self.first_id);
        above & !beyond_last & !before_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{Kernel, Proven, WIDTH, dispatch};

    struct Check;

    impl Kernel for Check {
        type Output = ();

        #[inline(always)]
        fn run<L: Lanes>(self, l: L) {
            let values = [1.0, 0.5, 0.5, -0.0, 0.0, -1.0, f32::NEG_INFINITY, f32::MAX];
            let z: [f32; WIDTH] = std::array::from_fn(|i| values[i % 8]);
            let key_of = |i: usize| key(z[i] + 0.0, i as u32);
            let all = Cut::all(Kind::Logits);
            let mut cuts = vec![all, Cut::all(Kind::Probabilities)];
            for (first, z) in z.iter().enumerate() {
                cuts.extend((0..WIDTH).map(|last| Cut { first: key_of(first), last: key_of(last) }));
                cuts.push(all.at_least(*z));
            }
            for cut in cuts.into_iter().filter(|cut| cut.low() > f32::NEG_INFINITY) {
                let got = CutLanes::new(l, cut).members(l, l.load(&z), l.iota());
                let want = (0..WIDTH).fold(0, |m, i| m | Mask::from(cut.contains(key_of(i))) << i);
                assert_eq!(got, want, "{cut:?}");
            }
        }
    }

    #[test]
    fn lanes_agree_with_keys() {
        for level in Proven::all() {
            dispatch(level, Check);
        }
    }
}
