//! Which ids a clustered head computes for a hidden state, and the row that comes of it, naively (rules H7
//! and H8).
//!
//! The ids stand in clusters, each with a centroid. The clusters whose centroids have the largest products
//! with the hidden state are probed: the logits of their ids are computed, and the logits of the special ids.

use half::bf16;

use super::{MAX_HIDDEN, Scaling, logits, product};
use crate::num::key;
use crate::row::clean;
use crate::{Error, Result, Row, memory};

/// Stands in the map of a cluster for no id, after its ids.
pub const NO_ID: u32 = u32::MAX;

/// How many places the maps of all clusters have at most.
pub const MAX_PLACES: usize = 1 << 28;

/// How many ids an error names at most.
const NAMED: usize = 8;

/// Returns centroids as bf16, if each of them is such a number: then scores are the same, from half the
/// bytes.
///
/// # Errors
/// - [`Error::Unavailable`] if the system refuses 2 bytes for each element.
pub fn short_centroids(centroids: &[f32]) -> Result<Option<Vec<bf16>>> {
    let is_short = |x: &f32| bf16::from_f32(*x).to_f32().to_bits() == x.to_bits();
    if !centroids.iter().all(is_short) {
        return Ok(None);
    }
    let mut short = memory::with_capacity("memory for centroids", centroids.len())?;
    short.extend(centroids.iter().map(|x| bf16::from_f32(*x)));
    Ok(Some(short))
}

/// Clusters of ids, and how many of them a hidden state probes.
#[derive(Clone, Copy, Debug)]
pub struct Clusters<'a> {
    /// `[clusters, capacity]`: each cluster's ids, and [`NO_ID`] after them where it has fewer. The last map
    /// may end with its ids.
    pub maps: &'a [u32],
    /// The most ids of a cluster.
    pub capacity: usize,
    /// `[clusters, width]`: a centroid for each cluster.
    pub centroids: &'a [f32],
    /// How many clusters are probed.
    pub probes: usize,
    /// Ids that are computed for every hidden state.
    pub special_ids: &'a [u32],
}

impl Clusters<'_> {
    /// Returns how many clusters there are.
    ///
    /// # Panics
    /// If the capacity is 0.
    #[must_use]
    pub fn count(&self) -> usize {
        self.maps.len().div_ceil(self.capacity)
    }

    /// Checks the clusters of a head with `vocab` ids and hidden states of `width` elements.
    ///
    /// # Errors
    /// - The errors of [`check_maps`] and [`check_special_ids`].
    /// - [`Error::Length`] if there is not one centroid of `width` elements for each cluster.
    /// - [`Error::OutOfRange`] for a width outside 1..=2^16, a centroid that is not finite, or `probes`
    ///   outside 1..=clusters.
    pub fn check(&self, vocab: usize, width: usize) -> Result<()> {
        if !(1..=MAX_HIDDEN).contains(&width) {
            return Err(Error::out_of_range("width", width, format!("in 1..={MAX_HIDDEN}")));
        }
        check_maps(self.maps, self.capacity, vocab)?;
        let count = self.count();
        if self.centroids.len() != count * width {
            let allowed = format!("{count} centroids of {width} elements, one for each cluster");
            return Err(Error::length("centroids", self.centroids.len(), allowed));
        }
        if let Some(place) = self.centroids.iter().position(|x| !x.is_finite()) {
            let value = format!("{} in that of cluster {}", self.centroids[place], place / width);
            return Err(Error::out_of_range("centroids", value, "finite"));
        }
        check_probes(self.probes, count)?;
        check_special_ids(self.special_ids, vocab)
    }

    /// Returns each cluster's product with a hidden state.
    fn products(&self, hidden: Row<'_>) -> Vec<f32> {
        let centroids = self.centroids.chunks(hidden.vocab());
        centroids.map(|centroid| product(Row::F32(centroid), hidden)).collect()
    }

    /// Returns the clusters that are probed, in the order of their scores, given each cluster's product with
    /// the hidden state (H7).
    #[must_use]
    pub fn probed(&self, products: &[f32]) -> Vec<u32> {
        let mut keys: Vec<(u64, u32)> =
            (0..).zip(products).map(|(cluster, z)| (key(clean(*z), cluster), cluster)).collect();
        keys.sort_unstable_by(|a, b| b.cmp(a));
        keys.into_iter().take(self.probes).map(|(_, cluster)| cluster).collect()
    }

    /// Returns whether each id below `vocab` is in the probed set, likewise.
    #[must_use]
    pub fn is_probed(&self, products: &[f32], vocab: usize) -> Vec<bool> {
        let maps: Vec<&[u32]> = self.maps.chunks(self.capacity).map(ids_of_map).collect();
        let mut is_probed = vec![false; vocab];
        for cluster in self.probed(products) {
            maps[cluster as usize].iter().for_each(|id| is_probed[*id as usize] = true);
        }
        self.special_ids.iter().for_each(|id| is_probed[*id as usize] = true);
        is_probed
    }

    /// Returns the row of a hidden state: the logits of the probed set, -inf elsewhere (H8).
    ///
    /// # Panics
    /// Where [`logits`] does.
    #[must_use]
    pub fn logits(
        &self,
        weights: Row<'_>,
        hidden: Row<'_>,
        bias: Option<&[f32]>,
        scaling: &Scaling,
    ) -> Vec<f32> {
        let whole = logits(weights, hidden, bias, scaling);
        let is_probed = self.is_probed(&self.products(hidden), whole.len());
        let row = whole.into_iter().zip(is_probed);
        row.map(|(z, is_probed)| if is_probed { z } else { f32::NEG_INFINITY }).collect()
    }
}

/// Returns the ids of a cluster's map.
#[must_use]
pub fn ids_of_map(map: &[u32]) -> &[u32] {
    &map[..map.iter().position(|id| *id == NO_ID).unwrap_or(map.len())]
}

/// Checks that every id of a vocabulary stands in the maps of clusters once.
///
/// # Errors
/// - [`Error::OutOfRange`] for a capacity outside 1..=vocab, an id outside the vocabulary, after padding, in
///   two places or in none, or a map without ids.
/// - [`Error::Length`] if the maps have more than [`MAX_PLACES`] places.
pub fn check_maps(maps: &[u32], capacity: usize, vocab: usize) -> Result<()> {
    check_capacity(capacity, vocab)?;
    if maps.len() > MAX_PLACES {
        return Err(Error::length("vocab_maps", maps.len(), "at most 2^28 places".to_owned()));
    }
    let wrong = |value: String, allowed: String| Err(Error::out_of_range("vocab_maps", value, allowed));
    let mut clusters = vec![u32::MAX; vocab];
    let mut twice = None;
    for (cluster, map) in maps.chunks(capacity).enumerate() {
        let ids = ids_of_map(map);
        if ids.is_empty() {
            return wrong(format!("without an id in cluster {cluster}"), "one id or more in each".to_owned());
        }
        if let Some(id) = map[ids.len()..].iter().find(|id| **id != NO_ID) {
            let value = format!("{id} after padding in cluster {cluster}");
            return wrong(value, "the ids of a cluster, then padding".to_owned());
        }
        for id in ids {
            let Some(of_id) = clusters.get_mut(*id as usize) else {
                return wrong(
                    format!("{id} in cluster {cluster}"),
                    format!("ids in 0..{vocab}, or -1: padding"),
                );
            };
            if *of_id != u32::MAX {
                twice = twice.or(Some((*id, *of_id, cluster)));
            }
            *of_id = cluster as u32;
        }
    }
    let missing = || (0..vocab as u32).filter(|id| clusters[*id as usize] == u32::MAX);
    let allowed = format!("each id in 0..{vocab} once, and -1 as padding");
    let lacks = missing().next().map(|_| named(missing()));
    match (twice, lacks) {
        (None, None) => Ok(()),
        (None, Some(lacks)) => wrong(format!("without {lacks}"), allowed),
        (Some((id, first, second)), lacks) => {
            let lacks = lacks.map_or_else(String::new, |lacks| format!(", and lacks {lacks}"));
            wrong(format!("{id} in cluster {first} and in cluster {second}{lacks}"), allowed)
        }
    }
}

/// Checks how many ids a cluster has.
///
/// # Errors
/// - [`Error::OutOfRange`] if it is outside 1..=vocab.
pub fn check_capacity(capacity: usize, vocab: usize) -> Result<()> {
    if (1..=vocab).contains(&capacity) {
        return Ok(());
    }
    Err(Error::out_of_range("capacity", capacity, format!("in 1..={vocab}, the vocabulary")))
}

/// Checks a number of probes.
///
/// # Errors
/// - [`Error::OutOfRange`] if it is outside 1..=clusters.
pub fn check_probes(probes: usize, clusters: usize) -> Result<()> {
    if (1..=clusters).contains(&probes) {
        return Ok(());
    }
    Err(Error::out_of_range("probes", probes, format!("in 1..={clusters}, the number of clusters")))
}

/// Checks that special ids are ids, each of which stands in a map.
///
/// # Errors
/// - [`Error::OutOfRange`] if some lie outside the vocabulary; it names all of them.
pub fn check_special_ids(special_ids: &[u32], vocab: usize) -> Result<()> {
    let missing: Vec<String> =
        special_ids.iter().filter(|id| **id as usize >= vocab).map(u32::to_string).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let allowed = format!("ids in 0..{vocab}, which stand in the maps of clusters");
    Err(Error::out_of_range("special_ids", missing.join(", "), allowed))
}

/// Names ids, the first ones if there are many.
fn named(ids: impl Iterator<Item = u32>) -> String {
    let ids: Vec<u32> = ids.collect();
    let mut text = ids.iter().take(NAMED).map(u32::to_string).collect::<Vec<_>>().join(", ");
    if ids.len() > NAMED {
        text += &format!(" and {} more", ids.len() - NAMED);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTERS: Clusters<'_> = Clusters {
        maps: &[4, 1, 0, 3, 2],
        capacity: 2,
        centroids: &[1.0, 0.0, 0.0, 1.0, 1.0, 0.0],
        probes: 1,
        special_ids: &[],
    };

    #[test]
    fn clusters_of_equal_scores_are_taken_by_number() {
        let probed = |probes, hidden: &[f32]| {
            Clusters { probes, ..CLUSTERS }.probed(&CLUSTERS.products(Row::F32(hidden)))
        };
        assert_eq!(probed(1, &[1.0, 0.0]), [0]);
        assert_eq!(probed(3, &[1.0, 0.0]), [0, 2, 1]);
        assert_eq!(probed(2, &[f32::NAN, 0.0]), [0, 1]);
        // -0 and +0 are equal.
        assert_eq!(probed(1, &[-0.0, 0.0]), [0]);
    }

    #[test]
    fn a_row_has_the_logits_of_probed_and_special_ids() {
        let (weights, hidden) = ([1.0, 2.0, 3.0, 4.0, 5.0].map(|w| [w, 0.5]).concat(), [0.0, 2.0]);
        let row = |clusters: Clusters<'_>| {
            clusters.logits(Row::F32(&weights), Row::F32(&hidden), None, &Scaling::default())
        };
        const NONE: f32 = f32::NEG_INFINITY;
        assert_eq!(row(CLUSTERS), [1.0, NONE, NONE, 1.0, NONE]);
        assert_eq!(row(Clusters { special_ids: &[2, 0], ..CLUSTERS }), [1.0, NONE, 1.0, 1.0, NONE]);
        assert_eq!(row(Clusters { probes: 3, ..CLUSTERS }), [1.0; 5]);
        // Of one id, and of three.
        let uneven = Clusters { maps: &[4, NO_ID, NO_ID, 1, 0, 3, 2], capacity: 3, ..CLUSTERS };
        assert_eq!(row(uneven), [1.0, 1.0, NONE, 1.0, NONE]);
    }

    #[test]
    fn what_is_wrong_with_clusters_is_named() {
        let refused = |clusters: Clusters<'_>| clusters.check(5, 2).unwrap_err().to_string();
        assert_eq!(CLUSTERS.check(5, 2), Ok(()));
        for (maps, said) in [
            (
                &[4, 1, 0, 4, 4][..],
                "4 in cluster 0 and in cluster 1, and lacks 2, 3, but must be each id in 0..5 once, and -1 as padding",
            ),
            (
                &[4, 1, 0, 0, 3, 2],
                "0 in cluster 1 and in cluster 1, but must be each id in 0..5 once, and -1 as padding",
            ),
            (&[4, 1, 5, 3, 2], "5 in cluster 1, but must be ids in 0..5, or -1: padding"),
            (&[4, 1, 0], "without 2, 3, but must be each id in 0..5 once, and -1 as padding"),
            (&[4, 1, NO_ID, NO_ID, 2], "without an id in cluster 1, but must be one id or more in each"),
            (&[4, 1, NO_ID, 3, 2], "without an id in cluster 1, but must be one id or more in each"),
        ] {
            assert_eq!(refused(Clusters { maps, ..CLUSTERS }), format!("vocab_maps is {said}"));
        }
        assert_eq!(
            refused(Clusters { maps: &[4, NO_ID, 0, 3, 2], capacity: 3, ..CLUSTERS }),
            "vocab_maps is 0 after padding in cluster 0, but must be the ids of a cluster, then padding"
        );
        for capacity in [0, 6] {
            assert!(refused(Clusters { capacity, ..CLUSTERS }).starts_with("capacity is"));
        }
        assert!(refused(Clusters { centroids: &[0.0; 5], ..CLUSTERS }).contains("3 centroids of 2 elements"));
        assert_eq!(
            refused(Clusters { centroids: &[0.0, 0.0, 0.0, f32::NAN, 0.0, 0.0], ..CLUSTERS }),
            "centroids is NaN in that of cluster 1, but must be finite"
        );
        for probes in [0, 4] {
            assert!(refused(Clusters { probes, ..CLUSTERS }).starts_with("probes is"));
        }
        assert_eq!(
            refused(Clusters { special_ids: &[1, 7, 5], ..CLUSTERS }),
            "special_ids is 7, 5, but must be ids in 0..5, which stand in the maps of clusters"
        );
    }
}
