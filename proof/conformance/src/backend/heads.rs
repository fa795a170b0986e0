//! Hidden states in place of logits, and a certified head that has these logits.
//!
//! The head of n rows of logits has them as its columns, and row i has the hidden state with 1 at i and 0
//! elsewhere: its products are the row, bit for bit except for the sign of zeros (H1). So every body of a
//! rule is one about heads. Rows of which one holds a number that is not finite are stepped as they are
//! unless they are alone, since 0 times an infinity is NaN.

#[cfg(feature = "cuda")]
use gumball_engine::DeviceHead;
use gumball_engine::head::Certified;
use gumball_engine::{Kind, Level, PADDING, Pool, Row, Rows};
use gumball_spec::{Error, Result};

use super::work::Work;
use crate::case::Dtype;
use crate::head_case::{ClusterCase, HeadCase};

/// How rows are made from hidden states.
#[derive(Clone, Debug, Default)]
pub struct Heads {
    /// The head, if it is not to be made of the logits.
    pub given: Option<HeadCase>,
    /// Its clusters, by which it makes the rows of steps.
    pub clusters: Option<ClusterCase>,
}

impl Heads {
    /// Returns the head of the logits that work reads, with their hidden states; `None` where there is none.
    /// States that nothing reads are NaN.
    pub(super) fn states_of(&self, rows: &[Row<'_>], work: &Work<'_>, vocab: usize) -> Option<HeadCase> {
        if work.kind() != Kind::Logits || work.all_rows().width() != vocab {
            return None;
        }
        let (slots, counts) = (work.batch.slots, work.counts());
        let of_rows: Vec<_> =
            slots.iter().zip(&counts).flat_map(|(slot, count)| vec![*slot; *count]).collect();
        let is_read =
            |row: &usize| slots.is_empty() || of_rows.get(*row).is_some_and(|slot| *slot != PADDING);
        let read: Vec<usize> = (0..rows.len()).filter(is_read).collect();
        let place = |row: usize| read.iter().position(|read| *read == row);
        if let Some(head) = &self.given {
            let value = |row, i| place(row).map_or(f32::NAN, |n| head.state(n % head.rows()).logit(i));
            let hidden: Vec<f32> = (0..rows.len())
                .flat_map(|row| (0..head.width).map(move |i| (row, i)))
                .map(|(row, i)| value(row, i))
                .collect();
            return Some(HeadCase { hidden: crate::Logits::new(Dtype::F32, &hidden), ..head.clone() });
        }
        let width = read.len();
        let weights: Vec<f32> =
            (0..vocab).flat_map(|id| read.iter().map(move |row| rows[*row].logit(id))).collect();
        if width == 0 || width > 1 && weights.iter().any(|z| !z.is_finite()) {
            return None;
        }
        let state = |row| match place(row) {
            Some(place) => (0..width).map(|i| f32::from(i == place)).collect(),
            None => vec![f32::NAN; width],
        };
        let hidden: Vec<f32> = (0..rows.len()).flat_map(state).collect();
        Some(HeadCase::new(Dtype::F32, &weights, &hidden, width))
    }

    /// Works with hidden states of a certified head, or of a clustered one, which lies where the pool is.
    pub(super) fn with_states<T>(
        &self,
        pool: &mut Pool,
        head: &HeadCase,
        work: impl FnOnce(&mut Pool, Rows<'_>) -> Result<T>,
    ) -> Result<T> {
        let level = pool.level().map_or_else(Level::detect, Ok)?;
        let certified = || Ok::<_, Error>(Certified::new(head.exact(level)?));
        let states = head.states()?;
        #[cfg(feature = "cuda")]
        if let Some(device) = pool.device() {
            let on_device = match &self.clusters {
                Some(clusters) => DeviceHead::new(device, &head.clustered(clusters, level)?, head.rows())?,
                None => DeviceHead::new(device, &certified()?, head.rows())?.with_least_saved(0),
            };
            return work(pool, Rows::hidden(&on_device, states));
        }
        match &self.clusters {
            Some(clusters) => work(pool, Rows::hidden(&head.clustered(clusters, level)?, states)),
            None => work(pool, Rows::hidden(&certified()?.with_most_rows(usize::MAX), states)),
        }
    }
}
