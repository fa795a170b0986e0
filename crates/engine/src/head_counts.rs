//! What heads have done.

/// The rows, logits and reads of a pool's heads since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeadCounts {
    /// Rows whose logits were all computed; of a clustered head the rows of calls with many rows.
    pub whole_rows: u64,
    /// Rows that a certified head decided by a part of their logits.
    pub certified_rows: u64,
    /// How many logits that took, for all of these rows.
    pub certified_logits: u64,
    /// Rows of which a clustered head computed the probed sets alone.
    pub clustered_rows: u64,
    /// How many logits that took, for all of these rows; one that several rows of a call need counts for
    /// each.
    pub clustered_logits: u64,
    /// How many times centroids were read: once for all rows of a call, or of a chunk of a score, by a
    /// clustered head.
    pub centroid_reads: u64,
    /// How many times all weights were read: once for all rows of a call, or of a chunk of a score, whose
    /// logits were all computed. Devices do not count it, nor the next.
    pub weight_reads: u64,
    /// How many times a screen was read: once for all rows of a call, or of a chunk of a score, that were
    /// screened.
    pub screen_reads: u64,
}

impl HeadCounts {
    /// Returns what was done since earlier counts of the same pool.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            whole_rows: self.whole_rows - earlier.whole_rows,
            certified_rows: self.certified_rows - earlier.certified_rows,
            certified_logits: self.certified_logits - earlier.certified_logits,
            clustered_rows: self.clustered_rows - earlier.clustered_rows,
            clustered_logits: self.clustered_logits - earlier.clustered_logits,
            centroid_reads: self.centroid_reads - earlier.centroid_reads,
            weight_reads: self.weight_reads - earlier.weight_reads,
            screen_reads: self.screen_reads - earlier.screen_reads,
        }
    }

    /// Returns these and other counts together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            whole_rows: self.whole_rows + other.whole_rows,
            certified_rows: self.certified_rows + other.certified_rows,
            certified_logits: self.certified_logits + other.certified_logits,
            clustered_rows: self.clustered_rows + other.clustered_rows,
            clustered_logits: self.clustered_logits + other.clustered_logits,
            centroid_reads: self.centroid_reads + other.centroid_reads,
            weight_reads: self.weight_reads + other.weight_reads,
            screen_reads: self.screen_reads + other.screen_reads,
        }
    }
}
