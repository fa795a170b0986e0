//! Logprobs: how likely the token, its rivals and given ids were, in the mode asked for (rules L1 to L3, P3).

pub mod gradient;

use self::gradient::Weighed;
use crate::num::{LN_2, log2_one_plus, log2_parts};
use crate::params::LogprobsParams;
use crate::row::{Kind, NONE};

/// The distribution a logprob speaks of: the members of a mode, in order, at a temperature.
#[derive(Clone, Copy, Debug)]
pub struct Distribution<'a> {
    /// The kind of the row's numbers.
    pub kind: Kind,
    /// The logits or probabilities.
    pub z: &'a [f32],
    /// The members, sorted by the order; empty if the row has none.
    pub members: &'a [u32],
    /// The temperature; 0 if the first member is certain.
    pub temperature: f32,
    /// The mass of the members at that temperature; not read where that is 0.
    pub mass: u64,
}

/// A token with its logprob.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct TokenLogprob {
    /// The token; [`NONE`] where there is no further member.
    pub id: i32,
    /// Its natural log probability; -inf for a token that is no member.
    pub logprob: f32,
    /// Its place in the order of the mode, from 1; 0 for a token that is no member.
    pub rank: u32,
}

/// The logprobs of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the emitted token.
    pub token: TokenLogprob,
    /// Of the first `top_n` members.
    pub top: Vec<TokenLogprob>,
    /// Of the ids asked for, in their order.
    pub ids: Vec<TokenLogprob>,
    /// The emitted token's natural log probability in the second mode, or its row's radius; -inf if none was
    /// asked for.
    pub second: f32,
}

/// Returns the natural log probability of a logit (L3).
///
/// `first` is the first member's logit, `mass` the mass of all members.
#[must_use]
pub fn logprob(z: f32, first: f32, temperature: f32, mass: u64) -> f32 {
    Weighed::of_mass(first, mass).logprob(z, temperature)
}

/// Returns the natural log probability of a token of a probability row (P3).
///
/// `first` is the first member's probability, `mass` the mass of all members.
#[must_use]
pub fn logprob_of_probability(p: f32, first: f32, mass: u64) -> f32 {
    let log2 = |x: f32| {
        let (e, f) = log2_parts(x);
        f64::from(e) + f64::from(log2_one_plus(f) * f)
    };
    (LN_2 * (log2(p) - log2(first)) - LN_2 * (log2(mass as f32) - 43.0)) as f32
}

impl Distribution<'_> {
    /// Returns an id's logprob and rank.
    #[must_use]
    pub fn of(&self, id: i32) -> TokenLogprob {
        let place = self.members.iter().position(|member| *member as i32 == id);
        let (logprob, rank) = match place {
            None => (f32::NEG_INFINITY, 0),
            Some(0) if self.temperature == 0.0 => (0.0, 1),
            Some(_) if self.temperature == 0.0 => (f32::NEG_INFINITY, 0),
            Some(place) => {
                let [z, first] = [place, 0].map(|place| self.z[self.members[place] as usize]);
                let logprob = match self.kind {
                    Kind::Logits => logprob(z, first, self.temperature, self.mass),
                    Kind::Probabilities => logprob_of_probability(z, first, self.mass),
                };
                (logprob, place as u32 + 1)
            }
        };
        TokenLogprob { id, logprob, rank }
    }
}

/// Returns what was asked for about the emitted token and the distribution of the first mode. `second`: what
/// the second mode tells.
#[must_use]
pub fn logprobs(
    params: &LogprobsParams,
    distribution: &Distribution<'_>,
    second: f32,
    token: i32,
) -> Logprobs {
    let members = match distribution.temperature {
        0.0 => &distribution.members[..distribution.members.len().min(1)],
        _ => distribution.members,
    };
    let absent = TokenLogprob { id: NONE, logprob: f32::NEG_INFINITY, rank: 0 };
    let member = |place: usize| members.get(place).map_or(absent, |id| distribution.of(*id as i32));
    Logprobs {
        token: distribution.of(token),
        top: (0..params.top_n as usize).map(member).collect(),
        ids: params.ids.iter().map(|id| distribution.of(*id as i32)).collect(),
        second,
    }
}
