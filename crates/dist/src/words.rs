//! Queries and responses about rows as words, for messages.

use gumball_cpu::{Moments, Query, Response, RowSums, TileSum, Winner};
use gumball_spec::row::clean;
use half::{bf16, f16};

/// A query about a row of a step, from its owner.
#[derive(Clone, Debug, PartialEq)]
pub struct RowQuery {
    /// The row.
    pub row: usize,
    /// Whether it is about the row without its edits.
    pub raw: bool,
    /// The largest logit of the whole row.
    pub first: f32,
    /// For sums: the maxima, in the whole row, of the tiles that lie in two ranks' parts.
    pub cut_maxima: Vec<f32>,
    /// The query.
    pub query: Query,
}

/// Reads words off the front of a message.
pub struct Reader<'a>(pub &'a [u32]);

impl<'a> Reader<'a> {
    /// Takes a word.
    pub fn word(&mut self) -> Option<u32> {
        self.0.split_off_first().copied()
    }

    /// Takes two words as one number.
    pub fn long(&mut self) -> Option<u64> {
        Some(u64::from(self.word()?) | u64::from(self.word()?) << 32)
    }

    /// Takes a number.
    pub fn float(&mut self) -> Option<f32> {
        self.word().map(f32::from_bits)
    }

    /// Takes a logit, which counts as it would in a row.
    pub fn logit(&mut self) -> Option<f32> {
        self.float().map(clean)
    }

    /// Takes a scale.
    fn scale(&mut self) -> Option<f32> {
        self.float().filter(|scale| *scale > 0.0 && *scale < f32::INFINITY)
    }

    /// Takes several words.
    pub fn words(&mut self, count: usize) -> Option<&'a [u32]> {
        self.0.split_off(..count)
    }
}

/// Appends a number of 64 bits.
pub fn push_long(to: &mut Vec<u32>, number: u64) {
    to.extend([number as u32, (number >> 32) as u32]);
}

/// Returns words as bytes.
pub fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns bytes as words; the last bytes, if they make up no word, are left out.
pub fn words_of(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

impl RowQuery {
    /// Appends the query to a message.
    pub fn pack(&self, to: &mut Vec<u32>) {
        let tag = match &self.query {
            Query::Tokens { .. } => 0,
            Query::Sums { .. } => 1,
            Query::Deviations => 2,
            Query::Rank { .. } => 3,
            Query::Logits { .. } => 4,
            Query::Race { .. } => 5,
        };
        to.extend([self.row as u32, tag << 1 | u32::from(self.raw), self.first.to_bits()]);
        match &self.query {
            Query::Tokens { least, known } => to.extend([least.to_bits(), known.to_bits()]),
            Query::Sums { scale } => {
                to.push(scale.to_bits());
                to.extend(self.cut_maxima.iter().map(|maximum| maximum.to_bits()));
            }
            Query::Deviations => {}
            Query::Rank { key } => push_long(to, *key),
            Query::Logits { ids } => {
                to.push(ids.len() as u32);
                to.extend_from_slice(ids);
            }
            Query::Race { first_key, last_key, first, scale } => {
                push_long(to, *first_key);
                push_long(to, *last_key);
                to.extend([first.to_bits(), scale.to_bits()]);
            }
        }
    }

    /// Returns the most words of a query about a row, where borders cut `cut_tiles` tiles, and of which `ids`
    /// logprobs may be asked for.
    pub fn most_words(cut_tiles: usize, ids: usize) -> usize {
        // Row, tag and largest logit; then the words of a race, of sums, or of logits: their count and ids,
        // with the token's id.
        3 + 6.max(1 + cut_tiles).max(2 + ids)
    }

    /// Takes a query off a message, where borders cut `cut_tiles` tiles; `None` if there is none.
    pub fn unpack(from: &mut Reader<'_>, cut_tiles: usize) -> Option<Self> {
        let (row, tag, first) = (from.word()? as usize, from.word()?, from.logit()?);
        let mut cut_maxima = Vec::new();
        let query = match tag >> 1 {
            0 => Query::Tokens { least: from.logit()?, known: from.float()?.max(-f32::MAX) },
            1 => {
                let scale = from.scale()?;
                let maxima = from.words(cut_tiles)?.iter();
                cut_maxima.extend(maxima.map(|word| clean(f32::from_bits(*word))));
                Query::Sums { scale }
            }
            2 => Query::Deviations,
            3 => Query::Rank { key: from.long()? },
            4 => {
                let count = from.word()? as usize;
                Query::Logits { ids: from.words(count)?.to_vec() }
            }
            5 => Query::Race {
                first_key: from.long()?,
                last_key: from.long()?,
                first: from.logit()?,
                scale: from.scale()?,
            },
            _ => return None,
        };
        Some(Self { row, raw: tag & 1 == 1, first, cut_maxima, query })
    }
}

/// In the place of a number of tokens: the logits of all ids follow, as f32, or two in a word as bf16 or f16.
const ALL: u32 = u32::MAX;
const ALL_BF16: u32 = u32::MAX - 1;
const ALL_F16: u32 = u32::MAX - 2;

/// Appends the logits of all ids, in the shortest type that has all of them.
fn push_all(logits: &[f32], to: &mut Vec<u32>) {
    let mut push_half = |tag: u32, half: &dyn Fn(f32) -> u16| {
        to.push(tag);
        let bits =
            |pair: &[f32]| u32::from(half(pair[0])) | pair.get(1).map_or(0, |z| u32::from(half(*z))) << 16;
        to.extend(logits.chunks(2).map(bits));
    };
    if logits.iter().all(|z| bf16::from_f32(*z).to_f32() == *z) {
        push_half(ALL_BF16, &|z| bf16::from_f32(z).to_bits());
    } else if logits.iter().all(|z| f16::from_f32(*z).to_f32() == *z) {
        push_half(ALL_F16, &|z| f16::from_f32(z).to_bits());
    } else {
        to.push(ALL);
        to.extend(logits.iter().map(|z| z.to_bits()));
    }
}

/// Takes the logits of `count` ids off a message, in the type that the tag names.
fn read_all(tag: u32, count: usize, from: &mut Reader<'_>) -> Option<Vec<f32>> {
    if tag == ALL {
        let words = from.words(count)?.iter();
        return Some(words.map(|word| clean(f32::from_bits(*word))).collect());
    }
    let of_bits = |bits: u16| match tag {
        ALL_BF16 => bf16::from_bits(bits).to_f32(),
        _ => f16::from_bits(bits).to_f32(),
    };
    let halves = from.words(count.div_ceil(2))?.iter().flat_map(|word| [*word as u16, (word >> 16) as u16]);
    Some(halves.take(count).map(|bits| clean(of_bits(bits))).collect())
}

/// Appends an response to a message, where borders cut a part's first and last tile or not.
pub fn pack_response(response: &Response, cut: [bool; 2], to: &mut Vec<u32>) {
    match response {
        Response::Tokens(tokens) => {
            to.push(tokens.len() as u32);
            to.extend(tokens.iter().flat_map(|(z, id)| [z.to_bits(), *id]));
        }
        Response::All(logits) => push_all(logits, to),
        Response::Sums(RowSums { mass, distances, count }, sums) => {
            push_long(to, *mass);
            push_long(to, *distances);
            to.push(*count as u32);
            for (sum, _) in sums.iter().zip(cut).filter(|(_, cut)| *cut) {
                push_long(to, sum.q);
                push_long(to, sum.r);
            }
        }
        Response::Moments(Moments { count, sum, squares }) => {
            [count, sum, squares].into_iter().for_each(|number| push_long(to, *number));
        }
        Response::Count(count) => to.push(*count),
        Response::Logits(logits) => to.extend(logits.iter().map(|z| z.to_bits())),
        Response::Winner(Winner { score, id, logit }) => to.extend([score.to_bits(), *id, logit.to_bits()]),
    }
}

/// Returns the most words of the response to a query, from a part of `ids` ids.
pub fn most_response_words(query: &Query, ids: usize) -> usize {
    match query {
        Query::Tokens { .. } => 1 + 2 * ids,
        Query::Sums { .. } => 5 + 2 * 4,
        Query::Deviations => 6,
        Query::Rank { .. } => 1,
        Query::Logits { ids } => ids.len(),
        Query::Race { .. } => 3,
    }
}

/// Takes the response to a query off a message, from a part of `ids`; `None` if there is none.
pub fn unpack_response(
    query: &Query,
    ids: &std::ops::Range<usize>,
    cut: [bool; 2],
    from: &mut Reader<'_>,
) -> Option<Response> {
    Some(match query {
        Query::Tokens { .. } => match from.word()? {
            tag @ (ALL | ALL_BF16 | ALL_F16) => Response::All(read_all(tag, ids.len(), from)?),
            count if count as usize > ids.len() => return None,
            count => {
                let token = |from: &mut Reader<'_>| {
                    let (z, id) = (from.logit()?, from.word()?);
                    ids.contains(&(id as usize)).then_some((z, id))
                };
                Response::Tokens((0..count).map(|_| token(from)).collect::<Option<_>>()?)
            }
        },
        Query::Sums { .. } => {
            let own = RowSums { mass: from.long()?, distances: from.long()?, count: u64::from(from.word()?) };
            let mut sums = [TileSum::default(); 2];
            for (sum, _) in sums.iter_mut().zip(cut).filter(|(_, cut)| *cut) {
                // A tile's weights sum to 2^36 at most, and their distances to 2^61.
                (sum.q, sum.r) = (from.long()?.min(1 << 36), from.long()?.min(1 << 61));
            }
            Response::Sums(own, sums)
        }
        Query::Deviations => {
            Response::Moments(Moments { count: from.long()?, sum: from.long()?, squares: from.long()? })
        }
        Query::Rank { .. } => Response::Count(from.word()?),
        Query::Logits { ids: sent } => {
            let logits = from.words(sent.len())?.iter();
            Response::Logits(logits.map(|word| clean(f32::from_bits(*word))).collect())
        }
        Query::Race { .. } => {
            let (score, id, logit) = (from.float()?, from.word()?, from.logit()?);
            let is_token = id == u32::MAX || ids.contains(&(id as usize));
            if !is_token || score.is_nan() {
                return None;
            }
            Response::Winner(Winner { score, id, logit })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_of_all_ids_travel_in_the_shortest_type_that_has_them() {
        let halves = [1.5f32, -0.25, f32::NEG_INFINITY, 0.0, 3.0];
        let bf16s = [131_072.0f32, -0.5, f32::NEG_INFINITY];
        let f16s = [1.0 + 1.0 / 1024.0, -2.0, 7.0, 0.5];
        let floats = [0.1f32, -f32::MAX, 1.0];
        for (logits, words) in [(&halves[..], 3), (&bf16s, 2), (&f16s, 2), (&floats, 3), (&[], 0)] {
            let mut message = Vec::new();
            pack_response(&Response::All(logits.to_vec()), [false; 2], &mut message);
            assert_eq!(message.len(), 1 + words, "{logits:?}");
            let query = Query::Tokens { least: 0.0, known: f32::INFINITY };
            let mut reader = Reader(&message);
            let response = unpack_response(&query, &(7..7 + logits.len()), [false; 2], &mut reader);
            assert_eq!(response, Some(Response::All(logits.to_vec())));
            assert!(reader.0.is_empty());
        }
    }

    #[test]
    fn queries_and_responses_are_read_as_they_are_written_and_not_beyond() {
        let winner = Response::Winner(Winner { score: 0.5, id: 9, logit: 2.0 });
        let sums = RowSums { mass: 1 << 50, distances: 3, count: 4 };
        let parts = [TileSum { q: 5, r: 6, count: 0 }, TileSum::default()];
        let race = Query::Race { first_key: 1 << 40, last_key: 7, first: 1.0, scale: 1.5 };
        for (query, response) in [
            (Query::Tokens { least: -1.0, known: 3.0 }, Response::Tokens(vec![(0.5, 8), (-0.5, 9)])),
            (Query::Sums { scale: 2.0 }, Response::Sums(sums, parts)),
            (Query::Deviations, Response::Moments(Moments { count: 1, sum: 1 << 33, squares: 1 << 60 })),
            (Query::Rank { key: 1 << 63 }, Response::Count(12)),
            (Query::Logits { ids: vec![8, 300] }, Response::Logits(vec![1.0, f32::NEG_INFINITY])),
            (race, winner),
        ] {
            let is_sums = matches!(query, Query::Sums { .. });
            let cut_maxima = if is_sums { vec![4.0, 5.0] } else { Vec::new() };
            let sent = RowQuery { row: 3, raw: true, first: 6.0, cut_maxima, query };
            let (mut message, cut) = (Vec::new(), [true, false]);
            sent.pack(&mut message);
            assert!(message.len() <= RowQuery::most_words(2, 2));
            assert_eq!(RowQuery::unpack(&mut Reader(&message), 2), Some(sent.clone()));
            for end in 0..message.len() {
                assert_eq!(RowQuery::unpack(&mut Reader(&message[..end]), 2), None);
            }
            message.clear();
            pack_response(&response, cut, &mut message);
            let ids = 8..10;
            assert!(message.len() <= most_response_words(&sent.query, ids.len()));
            assert_eq!(unpack_response(&sent.query, &ids, cut, &mut Reader(&message)), Some(response));
            for end in 0..message.len() {
                assert_eq!(unpack_response(&sent.query, &ids, cut, &mut Reader(&message[..end])), None);
            }
        }
    }
}
