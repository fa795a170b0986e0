//! A pool that gets hidden states for logits, and a certified head that has these logits.
//!
//! The head of n rows of logits has them as its columns, and row i has the hidden state with 1 at i and 0 elsewhere: its products are
//! the row, bit for bit but for the sign of zeros (H1). So every body of a rule is one about heads. Rows of which one holds a number that is not finite are
//! stepped as they are unless they are alone, since 0 times an infinity is NaN.

#[cfg(feature = "cuda")]
use gumball_engine::DeviceHead;
use gumball_engine::head::Certified;
use gumball_engine::{
    Batch, Drafts, Kind, Level, Logits, Outputs, PADDING, Pool, Proposals, Rows, SamplingParams, Scored,
    Sequence, Slot, State,
};
use gumball_spec::{Error, Result};

use super::verbs::{Verbs, read};
use crate::case::Dtype;
use crate::head_case::{ClusterCase, HeadCase};

/// A pool whose rows come from hidden states.
#[derive(Debug)]
pub struct Heads {
    pool: Pool,
    /// The head, if it is not to be made of the logits.
    given: Option<HeadCase>,
    /// The clusters by which it makes the rows of steps.
    clusters: Option<ClusterCase>,
}

impl Heads {
    /// Takes a pool.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        Self { pool, given: None, clusters: None }
    }

    /// Returns the head of rows of logits, with their hidden states; `None` where there is none. Rows that nothing reads are NaN.
    fn head_of(&self, logits: Logits<'_>, is_read: impl Fn(usize) -> bool) -> Option<HeadCase> {
        let read: Vec<usize> = (0..logits.rows()).filter(|row| is_read(*row)).collect();
        if logits.kind() != Kind::Logits || logits.vocab() != self.pool.vocab() {
            return None;
        }
        let place = |row: usize| read.iter().position(|read| *read == row);
        if let Some(head) = &self.given {
            let value = |row, i| place(row).map_or(f32::NAN, |n| head.state(n % head.rows()).logit(i));
            let hidden: Vec<f32> = (0..logits.rows())
                .flat_map(|row| (0..head.width).map(move |i| (row, i)))
                .map(|(row, i)| value(row, i))
                .collect();
            return Some(HeadCase { hidden: crate::Logits::new(Dtype::F32, &hidden), ..head.clone() });
        }
        let (vocab, width) = (logits.vocab(), read.len());
        let weights: Vec<f32> =
            (0..vocab).flat_map(|id| read.iter().map(move |row| logits.row(*row).logit(id))).collect();
        if width == 0 || width > 1 && weights.iter().any(|z| !z.is_finite()) {
            return None;
        }
        let state = |row| match place(row) {
            Some(place) => (0..width).map(|i| f32::from(i == place)).collect(),
            None => vec![f32::NAN; width],
        };
        let hidden: Vec<f32> = (0..logits.rows()).flat_map(state).collect();
        Some(HeadCase::new(Dtype::F32, &weights, &hidden, width))
    }
}

/// Works with hidden states of a certified head, or of a clustered one, which lies where the pool is.
fn with_head<T>(
    pool: &mut Pool,
    (head, clusters): (&HeadCase, Option<&ClusterCase>),
    work: impl FnOnce(&mut Pool, Rows<'_>) -> Result<T>,
) -> Result<T> {
    let level = pool.level().map_or_else(Level::detect, Ok)?;
    let certified = || Ok::<_, Error>(Certified::new(head.exact(level)?));
    let states = head.states()?;
    #[cfg(feature = "cuda")]
    if let Some(device) = pool.device() {
        let on_device = match clusters {
            Some(clusters) => DeviceHead::new(device, &head.clustered(clusters, level)?, head.rows())?,
            None => DeviceHead::new(device, &certified()?, head.rows())?,
        };
        return work(pool, Rows::hidden(&on_device, states));
    }
    match clusters {
        Some(clusters) => work(pool, Rows::hidden(&head.clustered(clusters, level)?, states)),
        None => work(pool, Rows::hidden(&certified()?.with_most_rows(usize::MAX), states)),
    }
}

/// Takes a step. On the host a certified head takes it twice: without kept sets, which decide more rows by a part of their logits, and as
/// asked.
fn step_from(
    pool: &mut Pool,
    head: (&HeadCase, Option<&ClusterCase>),
    batch: &Batch<'_>,
    out: &mut Outputs,
) -> Result<()> {
    let is_twice = pool.hooks() && head.1.is_none();
    with_head(pool, head, |pool, rows| {
        if !is_twice {
            return pool.step(rows, batch, out);
        }
        let mut plain = Outputs::new();
        pool.step(rows, batch, &mut plain)?;
        for (row, slot) in batch.slots.iter().enumerate() {
            if plain.tokens()[row] >= 0 {
                pool.shorten(&[*slot], &[1])?;
            }
        }
        pool.step(rows, batch, out)?;
        assert_eq!(plain.words(), out.words(), "kept sets change a result");
        Ok(())
    })
}

/// Whether a row has a request that reads it.
fn is_admitted(slots: &[Slot]) -> impl Fn(usize) -> bool {
    |row| slots.get(row).is_some_and(|slot| *slot != PADDING)
}

/// Returns a batch whose rows have hidden states of their own.
fn of_states<'a>(batch: &Batch<'a>) -> Batch<'a> {
    Batch { row_indices: &[], ..*batch }
}

impl Verbs for Heads {
    const PROPOSES: bool = true;

    fn hooks(&self) -> bool {
        self.pool.hooks()
    }

    fn admit(&mut self, params: SamplingParams, prompt: &[u32]) -> Result<Slot> {
        self.pool.admit(params, prompt)
    }

    fn push(&mut self, slot: Slot, id: u32) -> Result<()> {
        self.pool.push(slot, id)
    }

    fn shorten(&mut self, slots: &[Slot], counts: &[usize]) -> Result<()> {
        self.pool.shorten(slots, counts)
    }

    fn resume(&mut self, params: SamplingParams, state: State<'_>) -> Result<Slot> {
        self.pool.resume(params, state)
    }

    fn sequence(&mut self, slot: Slot) -> Result<&Sequence> {
        self.pool.sequence(slot)
    }

    fn release(&mut self, slot: Slot) -> Result<()> {
        self.pool.release(slot)
    }

    fn fork(&mut self, slot: Slot, draw: u32) -> Result<Slot> {
        self.pool.fork(slot, draw)
    }

    fn step(&mut self, rows: Rows<'_>, batch: &Batch<'_>, out: &mut Outputs) -> Result<()> {
        match self.head_of(read(rows, batch)?, is_admitted(batch.slots)) {
            None => self.pool.step(rows, batch, out),
            Some(head) => step_from(&mut self.pool, (&head, self.clusters.as_ref()), &of_states(batch), out),
        }
    }

    fn verify(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        drafts: &Drafts<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        let requests = batch.counts.iter().zip(batch.slots);
        let requests = requests.flat_map(|(count, slot)| vec![*slot; *count as usize + 1]);
        let of_rows: Vec<Slot> = requests.collect();
        match self.head_of(read(rows, batch)?, is_admitted(&of_rows)) {
            None => self.pool.verify(rows, batch, drafts, out),
            Some(head) => with_head(&mut self.pool, (&head, None), |pool, rows| {
                pool.verify(rows, &of_states(batch), drafts, out)
            }),
        }
    }

    fn propose(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        paths: &[i32],
        out: &mut Proposals,
    ) -> Result<()> {
        match self.head_of(read(rows, batch)?, is_admitted(batch.slots)).filter(|_| self.pool.hooks()) {
            None => self.pool.propose(rows, batch, paths, out),
            Some(head) => with_head(&mut self.pool, (&head, None), |pool, rows| {
                pool.draft(rows, &of_states(batch), paths, out)
            }),
        }
    }

    fn score(
        &mut self,
        rows: Rows<'_>,
        batch: &Batch<'_>,
        scored: &Scored<'_>,
        out: &mut Outputs,
    ) -> Result<()> {
        match self.head_of(read(rows, batch)?, |_| true).filter(|_| self.pool.hooks()) {
            None => self.pool.score(rows, batch, scored, out),
            Some(head) => with_head(&mut self.pool, (&head, None), |pool, rows| {
                // By chunks of rows.
                let scored = Scored { chunk_rows: Some(2), ..*scored };
                pool.score(rows, &of_states(batch), &scored, out)
            }),
        }
    }

    fn give_head(&mut self, head: Option<&HeadCase>) {
        self.given = head.cloned();
    }

    fn give_clusters(&mut self, clusters: Option<&ClusterCase>) {
        self.clusters = clusters.cloned();
    }
}
