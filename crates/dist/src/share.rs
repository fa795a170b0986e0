//! Shares: which part of the vocabulary and which requests a rank has.

use std::ops::Range;

use gumball_spec::{Error, MAX_VOCAB, Result, TILE};

/// The parts of a vocabulary, one for each rank in turn.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VocabSplit {
    /// The first id of each part, and the end of the last.
    borders: Vec<usize>,
    /// The number of columns that a rank's logits have: as many on all ranks.
    width: usize,
}

impl VocabSplit {
    /// Splits a vocabulary evenly: each rank has `vocab / world` ids, rounded up, as long as there are ids.
    /// The last columns of a rank with fewer are padding, and hold no tokens.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for no rank, or a vocabulary outside 1..=2^20.
    pub fn even(vocab: usize, world: usize) -> Result<Self> {
        check(vocab, world)?;
        let width = vocab.div_ceil(world);
        let borders = (0..=world).map(|rank| (rank * width).min(vocab)).collect();
        Ok(Self { borders, width })
    }

    /// Splits a vocabulary into parts of these numbers of ids, which may be 0.
    ///
    /// # Errors
    /// The errors of [`VocabSplit::even`].
    pub fn of_sizes(sizes: &[usize]) -> Result<Self> {
        let mut borders = vec![0];
        for size in sizes {
            borders.push(size.saturating_add(borders[borders.len() - 1]));
        }
        check(borders[sizes.len()], sizes.len())?;
        Ok(Self { borders, width: sizes.iter().copied().max().unwrap_or(0) })
    }

    /// Returns the number of ids.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.borders[self.world()]
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn world(&self) -> usize {
        self.borders.len() - 1
    }

    /// Returns the ids of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    #[must_use]
    pub fn ids(&self, rank: usize) -> Range<usize> {
        self.borders[rank]..self.borders[rank + 1]
    }

    /// Returns the number of columns of each rank's logits where all have as many; the columns after a rank's
    /// ids are padding.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the first id of each part, and the number of ids.
    #[must_use]
    pub fn borders(&self) -> &[usize] {
        &self.borders
    }

    /// Returns the tiles of which a rank has at least one id, and which others may have a part of.
    #[must_use]
    pub fn tiles(&self, rank: usize) -> Range<usize> {
        let ids = self.ids(rank);
        if ids.is_empty() { 0..0 } else { ids.start / TILE..ids.end.div_ceil(TILE) }
    }

    /// Returns the tiles that borders cut, ascending: several ranks have a part of each (S1).
    #[must_use]
    pub fn cut_tiles(&self) -> Vec<usize> {
        let inner = self.borders.iter().filter(|border| **border < self.vocab() && **border % TILE != 0);
        let mut tiles: Vec<usize> = inner.map(|border| border / TILE).collect();
        tiles.dedup();
        tiles
    }
}

fn check(vocab: usize, world: usize) -> Result<()> {
    if world == 0 {
        return Err(Error::out_of_range("world", world, "at least 1"));
    }
    if !(1..=MAX_VOCAB).contains(&vocab) {
        return Err(Error::out_of_range("vocab", vocab, "in 1..=2^20"));
    }
    Ok(())
}

/// Which rank owns which requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ownership {
    /// Each rank in turn owns a block of neighbours: `requests / world` of them, rounded up, as long as there
    /// are any.
    #[default]
    Blocks,
    /// Rank `request % world` owns a request.
    Modulo,
}

/// The requests of a step, shared out over the ranks. A request has one row, and one after each of its
/// drafts; these stay together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shares {
    ownership: Ownership,
    requests: usize,
    world: usize,
}

impl Shares {
    /// Shares requests out.
    ///
    /// # Panics
    /// If `world` is 0.
    #[must_use]
    pub fn new(ownership: Ownership, requests: usize, world: usize) -> Self {
        assert!(world > 0, "a world has a rank");
        Self { ownership, requests, world }
    }

    /// Returns the number of requests that are shared out.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests
    }

    /// Returns the number of requests of each rank's share, padding included: as many on all ranks.
    #[must_use]
    pub fn padded(&self) -> usize {
        self.requests.div_ceil(self.world)
    }

    /// Returns the rank that owns a request.
    #[must_use]
    pub fn owner(&self, request: usize) -> usize {
        match self.ownership {
            Ownership::Blocks => request / self.padded().max(1),
            Ownership::Modulo => request % self.world,
        }
    }

    /// Returns the requests of a rank, ascending; none if there are fewer requests than ranks.
    pub fn of(&self, rank: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, step, most) = match self.ownership {
            Ownership::Blocks => (rank * self.padded(), 1, self.padded()),
            Ownership::Modulo => (rank, self.world, self.padded()),
        };
        (first..self.requests).step_by(step).take(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_split_pads_the_last_ranks() {
        let split = VocabSplit::even(10, 4).unwrap();
        let ids: Vec<_> = (0..4).map(|rank| split.ids(rank)).collect();
        assert_eq!((ids, split.width()), (vec![0..3, 3..6, 6..9, 9..10], 3));
        let split = VocabSplit::even(3, 5).unwrap();
        assert_eq!((split.ids(2), split.ids(3), split.ids(4)), (2..3, 3..3, 3..3));
        assert_eq!(VocabSplit::even(151_936, 2).unwrap().cut_tiles(), [296]);
    }

    #[test]
    fn any_sizes_make_a_split() {
        let split = VocabSplit::of_sizes(&[100, 0, 156, 512, 1]).unwrap();
        assert_eq!((split.vocab(), split.world(), split.width()), (769, 5, 512));
        let tiles: Vec<_> = (0..5).map(|rank| split.tiles(rank)).collect();
        assert_eq!(tiles, [0..1, 0..0, 0..1, 1..3, 3..4]);
        // The border at 100 is met twice, those at 256 and 768 cut nothing.
        assert_eq!(split.cut_tiles(), [0]);
        assert_eq!(VocabSplit::of_sizes(&[]).unwrap_err().to_string(), "world is 0, but must be at least 1");
        assert!(VocabSplit::of_sizes(&[0, 0]).is_err());
        assert!(VocabSplit::of_sizes(&[usize::MAX, 2]).is_err());
    }

    #[test]
    fn every_request_has_one_owner_and_shares_are_no_longer_than_padded() {
        for ownership in [Ownership::Blocks, Ownership::Modulo] {
            for world in 1..=8 {
                for requests in 0..40 {
                    let shares = Shares::new(ownership, requests, world);
                    let mut owners = vec![None; requests];
                    for rank in 0..world {
                        let share: Vec<usize> = shares.of(rank).collect();
                        assert!(share.len() <= shares.padded() && share.is_sorted());
                        for request in share {
                            assert_eq!(owners[request].replace(rank), None);
                        }
                    }
                    for (request, owner) in owners.into_iter().enumerate() {
                        assert_eq!(owner, Some(shares.owner(request)), "{ownership:?} {requests} {world}");
                    }
                }
            }
        }
    }
}
