//! Logprobs: the drawn token's, the most likely tokens' and given ids', in the mode asked for (L1 to L3, P3).
//!
//! A logprob needs the mass of its distribution, which is one visit to the tiles; a rank counts the tokens of
//! the few tiles whose maximum is above the token; the top n are found as top-k is.

pub mod gradient;

use gumball_spec::logprobs::{Logprobs, TokenLogprob, logprob, logprob_of_probability};
use gumball_spec::num::{key, key_id, key_logit};
use gumball_spec::survey::Measure;
use gumball_spec::{Kind, LogprobsParams, NONE};

use crate::cut::Cut;
use crate::filter::{Buffers, Given, Reader, for_members};
use crate::lanes::{Kernel, Lanes, dispatch};

/// The members of a mode at its temperature.
#[derive(Debug)]
pub struct Distribution<'a> {
    /// The row the mode speaks of.
    pub reader: Reader<'a>,
    /// Its members; `None` if there are none.
    pub members: Option<Given>,
    /// The temperature; 0 if the first member is certain.
    pub temperature: f32,
}

/// Writes what was asked for about the emitted token.
pub fn logprobs(
    params: &LogprobsParams,
    distribution: &Distribution<'_>,
    buffers: &mut Buffers,
    token: i32,
    out: &mut Logprobs,
) {
    let Distribution { reader, members, temperature } = distribution;
    out.top.clear();
    out.ids.clear();
    let absent = |id: i32| TokenLogprob { id, logprob: f32::NEG_INFINITY, rank: 0 };
    let top_n = params.top_n as usize;
    let Some(members) = members else {
        out.token = absent(token);
        out.top.resize(top_n, absent(NONE));
        out.ids.extend(params.ids.iter().map(|id| absent(*id as i32)));
        return;
    };

    if let Some(winner) = members.winner(reader, buffers, *temperature) {
        let of = |id: i32| {
            if id == winner { TokenLogprob { id, logprob: 0.0, rank: 1 } } else { absent(id) }
        };
        out.token = of(token);
        out.top.extend((top_n > 0).then(|| of(winner)));
        out.top.resize(top_n, absent(NONE));
        out.ids.extend(params.ids.iter().map(|id| of(*id as i32)));
        return;
    }

    reader.need_logits(token, &params.ids);
    let logprob = members.logprobs_at(reader, buffers, *temperature);
    let of = |id: i32, buffers: &Buffers| {
        let Some(key) = members.key(reader, id) else { return absent(id) };
        TokenLogprob { id, logprob: logprob(key_logit(key)), rank: members.rank(reader, buffers, key) }
    };
    out.token = of(token, buffers);
    out.ids.extend(params.ids.iter().map(|id| of(*id as i32, buffers)));
    if top_n > 0 {
        let top = members.take(reader, buffers, top_n);
        let keys = top.keys(reader, buffers);
        for (place, key) in keys.iter().take(top_n).enumerate() {
            let logprob = logprob(key_logit(*key));
            out.top.push(TokenLogprob { id: key_id(*key) as i32, logprob, rank: place as u32 + 1 });
        }
        out.top.resize(top_n, absent(NONE));
    }
}

/// Returns the logprob of the emitted token alone.
pub fn token_logprob(distribution: &Distribution<'_>, buffers: &mut Buffers, token: i32) -> f32 {
    let Distribution { reader, members: Some(members), temperature } = distribution else {
        return f32::NEG_INFINITY;
    };
    if let Some(winner) = members.winner(reader, buffers, *temperature) {
        return if token == winner { 0.0 } else { f32::NEG_INFINITY };
    }
    reader.need_logits(token, &[]);
    let logprob = members.logprobs_at(reader, buffers, *temperature);
    members.key(reader, token).map_or(f32::NEG_INFINITY, |key| logprob(key_logit(key)))
}

impl Reader<'_> {
    /// Asks for the logits of the token and of ids, if this is a part of a row.
    fn need_logits(&self, token: i32, ids: &[u32]) {
        if let Some(parts) = self.view.parts {
            parts.need_logits(u32::try_from(token).into_iter().chain(ids.iter().copied()));
        }
    }
}

impl Given {
    /// Returns the token that has all of the probability: the first one at temperature 0, and one that has no
    /// other beside it.
    fn winner(&self, reader: &Reader<'_>, buffers: &mut Buffers, temperature: f32) -> Option<i32> {
        let first = || (temperature == 0.0).then(|| key_id(self.first_key(reader, buffers)) as i32);
        self.only_id().or_else(first)
    }

    /// Weighs the set, and returns the logprob that a member has by its logit or probability.
    fn logprobs_at(
        &self,
        reader: &Reader<'_>,
        buffers: &mut Buffers,
        temperature: f32,
    ) -> impl Fn(f32) -> f32 + use<> {
        let (kind, first) = (reader.view.kind, self.first);
        // Never 0, unless the row was written since its survey.
        let mass = self.total(reader, buffers, Measure::new(kind, temperature)).max(1);
        move |z| match kind {
            Kind::Logits => logprob(z, first, temperature, mass),
            Kind::Probabilities => logprob_of_probability(z, first, mass),
        }
    }

    /// Returns the key of an id that is a member.
    fn key(&self, reader: &Reader<'_>, id: i32) -> Option<u64> {
        let z = reader.view.logit(usize::try_from(id).ok()?) + 0.0;
        let key = key(z, id as u32);
        (z > f32::NEG_INFINITY && self.cut.contains(key)).then_some(key)
    }

    /// Returns the place of a token of the set in its order, from 1.
    fn rank(&self, reader: &Reader<'_>, buffers: &Buffers, key: u64) -> u32 {
        if let Some(range) = &self.listed {
            return buffers.list.keys[range.clone()].partition_point(|other| *other > key) as u32 + 1;
        }
        if let Some(parts) = reader.view.parts.filter(|parts| !parts.is_whole())
            && self.cut.first == u64::MAX
        {
            return parts.need_rank(key);
        }
        let earlier = Cut { first: self.cut.first, last: key + 1 };
        1 + if earlier.is_empty() { 0 } else { count(reader, earlier) }
    }

    /// Returns the keys of the set, in order.
    pub fn keys<'b>(&self, reader: &Reader<'_>, buffers: &'b mut Buffers) -> &'b [u64] {
        let range = self.listed.clone().unwrap_or_else(|| {
            buffers.list.clear();
            reader.gather(self.cut, usize::MAX, &mut buffers.list);
            buffers.list.sort();
            0..buffers.list.keys.len()
        });
        &buffers.list.keys[range]
    }
}

/// Returns how many tokens a cut has.
pub fn count(reader: &Reader<'_>, cut: Cut) -> u32 {
    reader.view.need(cut.low());
    dispatch(reader.level, Count { reader, cut })
}

/// How many tokens a cut has.
struct Count<'a> {
    reader: &'a Reader<'a>,
    cut: Cut,
}

impl Kernel for Count<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> u32 {
        let mut count = 0;
        for_members!(l, self.reader, self.cut, |z, members| {
            count += members.count_ones();
        });
        count
    }
}
