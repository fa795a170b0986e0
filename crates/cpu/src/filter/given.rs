//! A given set: an interval of the order of one row, listed if it is short.
//!
//! It has a first token. Where another thread writes the row while it is read, which no caller should let
//! happen, the tokens that were seen may be gone at the next look: then any token stands for them, and
//! nothing breaks.

use std::cmp::Reverse;
use std::ops::Range;

use gumball_spec::num::{from_ordered_bits, key, key_id, key_logit, ordered_bits};
use gumball_spec::survey::Measure;
use gumball_spec::{Kind, TILE};

use super::{Buffers, List};
use crate::cut::{Cut, CutLanes};
use crate::lanes::{Kernel, Lanes, Proven, WIDTH, dispatch};
use crate::tiles::{EMPTY_TILE, MASK_WORDS, View, for_tiles_reaching};

/// A row that was surveyed.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// The instructions in use.
    pub level: Proven,
    /// The row with its edits.
    pub view: View<'a>,
    /// Its tile maxima.
    pub maxima: &'a [f32],
    /// Its largest logit, above -inf.
    pub first: f32,
    /// A set of at most this many tokens is gathered and sorted rather than searched.
    pub list_limit: usize,
    /// The id of its first place: not 0 in a part of a row, where cuts speak of places.
    pub start: u32,
}

impl Reader<'_> {
    /// Returns the key of the row's first token.
    pub fn first_key(&self) -> u64 {
        self.view.need(self.first);
        key(self.first, dispatch(self.level, FirstId { reader: self }))
    }

    /// Returns the least logit of a cut; +inf if it has no token.
    pub fn least(&self, cut: Cut) -> f32 {
        self.view.need(cut.low());
        dispatch(self.level, Least { reader: self, cut })
    }

    /// Returns the largest logit of a cut; -inf if it has no token.
    pub fn largest(&self, cut: Cut) -> f32 {
        self.view.need(cut.low());
        dispatch(self.level, Largest { reader: self, cut })
    }

    /// Appends the keys of a cut's tokens to a list, unless there are more than `limit`.
    pub fn gather(&self, cut: Cut, limit: usize, list: &mut List) -> bool {
        self.view.need(cut.low());
        dispatch(self.level, Gather { reader: self, cut, limit, top: None, keys: &mut list.keys })
    }

    /// Fills an empty list with the keys of the first `k` tokens of a cut, or all its tokens if it has fewer
    /// than `k`; and maybe with more of its first tokens. Whenever the list exceeds `limit` tokens, `limit`
    /// being `k` or more, it is cut back to its first `k`, and only larger logits enter from there on.
    pub fn gather_top(&self, cut: Cut, k: usize, limit: usize, list: &mut List) {
        self.view.need(cut.low());
        dispatch(self.level, Gather { reader: self, cut, limit, top: Some(k), keys: &mut list.keys });
    }
}

/// The smallest id that has the row's largest logit.
struct FirstId<'a> {
    reader: &'a Reader<'a>,
}

impl Kernel for FirstId<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> u32 {
        let first = l.splat(self.reader.first);
        let (chunks, rest) = self.reader.maxima.as_chunks::<WIDTH>();
        let tile = find(l, chunks, first).unwrap_or_else(|| {
            let in_rest = rest.iter().position(|m| *m == self.reader.first);
            in_rest.map_or(0, |place| chunks.len() * WIDTH + place)
        });
        let mut scratch = EMPTY_TILE;
        let logits = self.reader.view.tile(l, tile, &mut scratch);
        // A tile has its maximum, and some tile the first logit, unless the row was written since its survey.
        let lane = find(l, logits.as_chunks().0, first).unwrap_or(0);
        (tile * TILE + lane) as u32
    }
}

/// The first place of a logit.
#[inline(always)]
fn find<L: Lanes>(l: L, chunks: &[[f32; WIDTH]], z: L::F) -> Option<usize> {
    for (i, chunk) in chunks.iter().enumerate() {
        let found = l.equal(l.load(chunk), z);
        if found != 0 {
            return Some(i * WIDTH + found.trailing_zeros() as usize);
        }
    }
    None
}

/// Collects the keys of a cut's tokens by id.
struct Gather<'a> {
    reader: &'a Reader<'a>,
    cut: Cut,
    limit: usize,
    /// How many of the first tokens are wanted, if not all.
    top: Option<usize>,
    keys: &'a mut Vec<u64>,
}

impl Kernel for Gather<'_> {
    type Output = bool;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> bool {
        let (cut, mut low) = (CutLanes::new(l, self.cut), self.cut.low());
        let mut least = l.splat(low);
        let high = l.splat(self.cut.high());
        // The mask is applied to what reaches, not to whole tiles.
        let unmasked = View { mask: None, ..self.reader.view };
        let mut scratch = EMPTY_TILE;
        for_tiles_reaching!(l, self.reader.maxima, low, |tile| {
            if self.keys.len() > self.limit {
                let Some(k) = self.top else { return false };
                // Tokens come by id, so later ones that equal the k-th lie after it.
                let (_, last, _) = self.keys.select_nth_unstable_by_key(k - 1, |key| Reverse(*key));
                low = from_ordered_bits((*last >> 32) as u32 + 1);
                least = l.splat(low);
                self.keys.truncate(k);
            }
            if self.reader.maxima[tile] < low {
                continue;
            }
            let logits = unmasked.tile(l, tile, &mut scratch);
            for (i, four) in logits.as_chunks::<{ 4 * WIDTH }>().0.iter().enumerate() {
                // One branch for four vectors: most hold nothing.
                let (z, _) = four.as_chunks::<WIDTH>();
                let reach = [
                    u64::from(l.within(l.load(&z[0]), least, high)),
                    u64::from(l.within(l.load(&z[1]), least, high)),
                    u64::from(l.within(l.load(&z[2]), least, high)),
                    u64::from(l.within(l.load(&z[3]), least, high)),
                ];
                let mut reach = reach[0] | reach[1] << 16 | reach[2] << 32 | reach[3] << 48;
                if let Some(mask) = self.reader.view.mask {
                    let words = &mask[tile * MASK_WORDS + 2 * i..][..2];
                    reach &= u64::from(words[0]) | u64::from(words[1]) << 32;
                }
                if reach.count_ones() > 8 {
                    // Many may be ties outside: leave those out all at once.
                    let mut start = l.add_u(l.iota(), l.splat_u((tile * TILE + i * 4 * WIDTH) as u32));
                    let mut inside = 0;
                    for (j, z) in z.iter().enumerate() {
                        inside |= u64::from(cut.members(l, l.load(z), start)) << (16 * j);
                        start = l.add_u(start, l.splat_u(WIDTH as u32));
                    }
                    reach &= inside;
                }
                while reach != 0 {
                    let lane = reach.trailing_zeros();
                    reach &= reach - 1;
                    let key = key(four[lane as usize] + 0.0, (tile * TILE + i * 4 * WIDTH) as u32 + lane);
                    if self.cut.contains(key) {
                        self.keys.push(key);
                    }
                }
            }
        });
        self.keys.len() <= self.limit
    }
}

/// A given set of a row: a cut with at least one token.
#[derive(Clone, Debug)]
pub struct Given {
    /// Its ends.
    pub cut: Cut,
    /// The logit of its first token.
    pub first: f32,
    /// Whether its first token is the row's.
    pub prefix: bool,
    /// Its tokens in the list of the buffers, if it was listed.
    pub listed: Option<Range<usize>>,
}

impl Given {
    /// Returns the set of all tokens above -inf.
    pub fn whole(reader: &Reader<'_>) -> Self {
        Self { cut: Cut::all(reader.view.kind), first: reader.first, prefix: true, listed: None }
    }

    /// Returns `y` of a logit relative to the first token.
    pub fn y(&self, z: f32, measure: Measure) -> f32 {
        measure.exponent(z, self.first)
    }

    /// Returns the key of the first token.
    pub fn first_key(&self, reader: &Reader<'_>, buffers: &mut Buffers) -> u64 {
        if let Some(range) = &self.listed {
            return buffers.list.keys[range.start];
        }
        if self.prefix {
            return reader.first_key();
        }
        let ties = Cut { last: key(self.first, u32::MAX), ..self.cut };
        buffers.between.clear();
        buffers.mass.visits += 1;
        reader.gather(ties, usize::MAX, &mut buffers.between);
        buffers.between.keys.iter().copied().max().unwrap_or_else(|| reader.first_key())
    }

    /// Returns the keys of the set's tokens, in any order; none only if the row was written since its survey.
    pub fn all_keys<'a>(&self, reader: &Reader<'_>, buffers: &'a mut Buffers) -> &'a [u64] {
        if let Some(range) = &self.listed {
            return &buffers.list.keys[range.clone()];
        }
        buffers.between.clear();
        buffers.mass.visits += 1;
        reader.gather(self.cut, usize::MAX, &mut buffers.between);
        &buffers.between.keys
    }

    /// Returns the prefix of the set down to `last`, which is at most the first token's key.
    pub fn keep(&self, buffers: &Buffers, last: u64) -> Given {
        let mut kept = self.clone();
        kept.cut.last = kept.cut.last.max(last);
        if let Some(range) = &mut kept.listed {
            let keys = &buffers.list.keys[range.clone()];
            // It holds the first token in any case, also where the row was written meanwhile and this lies
            // above it.
            range.end = range.start + keys.partition_point(|key| *key >= last).max(1);
        }
        kept
    }

    /// Returns the prefix of the set whose `y` satisfies a predicate that is monotone in it; the first token
    /// in any case (F2).
    pub fn while_y(
        &self,
        reader: &Reader<'_>,
        buffers: &mut Buffers,
        measure: Measure,
        passes: impl Fn(f32) -> bool,
    ) -> Given {
        self.while_value(reader, buffers, |z| passes(self.y(z, measure)))
    }

    /// Returns the prefix of the set whose logits or probabilities satisfy a monotone predicate; the first
    /// token in any case.
    pub fn while_value(
        &self,
        reader: &Reader<'_>,
        buffers: &mut Buffers,
        passes: impl Fn(f32) -> bool,
    ) -> Given {
        if !passes(self.first) {
            let first = self.first_key(reader, buffers);
            return self.keep(buffers, first);
        }
        self.keep(buffers, key(least_value(reader.view.kind, self.first, passes), u32::MAX))
    }

    /// Returns the part of the set inside a cut, or `None` if there is none.
    pub fn interval(&self, reader: &Reader<'_>, buffers: &Buffers, cut: Cut) -> Option<Given> {
        let cut = self.cut.and(cut);
        if let Some(range) = &self.listed {
            let keys = &buffers.list.keys[range.clone()];
            let start = range.start + keys.partition_point(|key| *key > cut.first);
            let end = range.start + keys.partition_point(|key| *key >= cut.last);
            let first = key_logit(*buffers.list.keys[..end].get(start)?);
            return Some(Given {
                cut,
                first,
                prefix: self.prefix && start == range.start,
                listed: Some(start..end),
            });
        }
        let first = reader.largest(cut);
        let prefix = self.prefix && cut.first == u64::MAX;
        (first > f32::NEG_INFINITY).then_some(Given { cut, first, prefix, listed: None })
    }

    /// Returns the set of the row's first token.
    pub fn only_first(reader: &Reader<'_>) -> Given {
        let key = reader.first_key();
        Given { cut: Cut { first: key, last: key }, first: reader.first, prefix: true, listed: None }
    }

    /// Returns the set of one forced token, whose logit does not matter.
    pub fn only(id: u32) -> Given {
        let key = key(0.0, id);
        Given { cut: Cut { first: key, last: key }, first: 0.0, prefix: true, listed: None }
    }

    /// Returns the set's token if it has one alone.
    pub fn only_id(&self) -> Option<i32> {
        (self.cut.first == self.cut.last).then_some(key_id(self.cut.first) as i32)
    }

    /// Lists the set if it is short.
    pub fn list(&mut self, reader: &Reader<'_>, buffers: &mut Buffers) {
        let whole = self.cut == Cut::all(reader.view.kind) && reader.view.vocab() > reader.list_limit;
        if self.listed.is_none() && !whole {
            buffers.list.clear();
            buffers.mass.visits += 1;
            if reader.gather(self.cut, reader.list_limit, &mut buffers.list) {
                buffers.list.sort();
                if buffers.list.keys.is_empty() {
                    // The row was written since its survey, and its set is gone: some token stands for it.
                    buffers.list.keys.push(reader.first_key());
                }
                self.listed = Some(0..buffers.list.keys.len());
            }
        }
    }
}

/// Returns the least token's number that passes, given that `first` does and the predicate is monotone.
pub fn least_value(kind: Kind, first: f32, passes: impl Fn(f32) -> bool) -> f32 {
    let (mut fails, mut high) = (ordered_bits(kind.dropped()), ordered_bits(first));
    while high.saturating_sub(fails) > 1 {
        let middle = fails + (high - fails) / 2;
        if passes(from_ordered_bits(middle)) { high = middle } else { fails = middle }
    }
    from_ordered_bits(high)
}

/// Visits the tiles that a cut reaches, sixteen logits at a time, with the mask of those inside it.
macro_rules! for_members {
    ($l:expr, $reader:expr, $cut:expr, |$z:ident, $members:ident| $body:block) => {{
        let cut = $crate::cut::CutLanes::new($l, $cut);
        let mut scratch = $crate::tiles::EMPTY_TILE;
        $crate::tiles::for_tiles_reaching!($l, $reader.maxima, $cut.low(), |tile| {
            let logits = $reader.view.tile($l, tile, &mut scratch);
            for (i, chunk) in logits.as_chunks::<{ $crate::lanes::WIDTH }>().0.iter().enumerate() {
                let start = (tile * gumball_spec::TILE + i * $crate::lanes::WIDTH) as u32;
                let $z = $l.load(chunk);
                let $members = cut.members($l, $z, $l.add_u($l.iota(), $l.splat_u(start)));
                $body
            }
        });
    }};
}
pub(crate) use for_members;

/// The least logit of a cut; +inf if it has no token.
struct Least<'a> {
    reader: &'a Reader<'a>,
    cut: Cut,
}

impl Kernel for Least<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        let (zero, mut negated) = (l.splat(0.0), l.splat(f32::NEG_INFINITY));
        for_members!(l, self.reader, self.cut, |z, members| {
            negated = l.max_where(members, l.sub(zero, z), negated);
        });
        -l.reduce_max(negated) + 0.0
    }
}

/// The largest logit of a cut; -inf if it has no token.
struct Largest<'a> {
    reader: &'a Reader<'a>,
    cut: Cut,
}

impl Kernel for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> f32 {
        if self.cut.is_empty() {
            return f32::NEG_INFINITY;
        }
        let mut max = l.splat(f32::NEG_INFINITY);
        for_members!(l, self.reader, self.cut, |z, members| {
            max = l.max_where(members, z, max);
        });
        l.reduce_max(max) + 0.0
    }
}
