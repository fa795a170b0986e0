//! Chains of drafts on a CUDA device against the oracle.

mod random;

use std::sync::Arc;

use gumball_cuda::{
    Buffer, DeviceIntMatrix, DeviceIntMatrixMut, DeviceSlice, DraftTreeRows, DraftTrees, Draws, IntType,
    Judge, Judged, PerRow, Runtime,
};
use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::verify::{DraftChain, Verified};
use gumball_spec::{Error, Status};

pub use random::{hold, hold_vocab};

/// What becomes of a chain: its tokens, and what is said of it.
pub type Outcome = (Vec<i32>, Verified);

/// How chains lie in memory: elements before the first row and behind each row, of the drafter and of the target.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gaps {
    pub start: usize,
    pub row: usize,
    pub chain: usize,
}

/// How chains are handed in.
#[derive(Clone, Copy, Debug)]
struct Layout {
    draft: Gaps,
    target: Gaps,
    drafts: IntType,
    tokens: IntType,
    /// The type of seeds, positions and draw indices, each a column; `None`: the first chain's are those of all.
    numbers: [Option<IntType>; 3],
    /// Whether what all have in common is handed in as a column of one.
    alone: bool,
    /// Whether draw indices are the chains' numbers.
    own_draws: bool,
    adds: bool,
}

/// What the columns hold before.
const BEFORE: u32 = 1000;

/// A runtime where chains are verified, with memory that is kept.
#[derive(Debug)]
pub struct Verifier {
    runtime: Arc<dyn Runtime>,
    judge: Judge,
    input: Buffer,
    /// Seeds, positions and draw indices.
    numbers: [Buffer; 3],
    tokens: Buffer,
    /// The two counts and the statuses.
    columns: [Buffer; 3],
}

impl Verifier {
    /// Allocates the memory on a runtime.
    ///
    /// # Errors
    /// What the runtime says.
    pub fn new(runtime: &Arc<dyn Runtime>) -> Result<Self, Error> {
        let buffer = || Buffer::zeroed(runtime, 4);
        Ok(Self {
            runtime: Arc::clone(runtime),
            judge: Judge::new(Arc::clone(runtime))?,
            input: buffer()?,
            numbers: [buffer()?, buffer()?, buffer()?],
            tokens: buffer()?,
            columns: [buffer()?, buffer()?, buffer()?],
        })
    }

    /// Verifies chains of one length and vocabulary.
    fn run(&mut self, chains: &[DraftChain<'_>], layout: &Layout) -> Result<Vec<Outcome>, Error> {
        let (count, n, vocab) = (chains.len(), chains[0].drafts.len(), chains[0].vocab);
        let mut bytes = Bytes::default();
        let draft = bytes.rows(chains.iter().map(|chain| chain.draft_probs), vocab, layout.draft);
        let target = bytes.rows(chains.iter().map(|chain| chain.target_probs), vocab, layout.target);
        let drafts: Vec<i64> =
            chains.iter().flat_map(|chain| chain.drafts).map(|id| i64::from(*id)).collect();
        let drafts = bytes.integers(layout.drafts, &drafts);
        let column = |value: fn(&DraftChain<'_>) -> i64| chains.iter().map(value).collect::<Vec<i64>>();
        let numbers = [
            column(|chain| chain.seed as i64),
            column(|chain| i64::from(chain.position)),
            column(|chain| i64::from(chain.draw)),
        ];
        for (which, (buffer, numbers)) in self.numbers.iter_mut().zip(&numbers).enumerate() {
            let (numbers, dtype) = match layout.numbers[which] {
                Some(dtype) => (&numbers[..], dtype),
                None => (&numbers[..1], IntType::I64),
            };
            let words: Vec<u32> = numbers
                .iter()
                .flat_map(|number| [*number as u32, (*number as u64 >> 32) as u32])
                .enumerate()
                .filter(|(place, _)| dtype.bytes() == 8 || place % 2 == 0)
                .map(|(_, word)| word)
                .collect();
            fill(&self.runtime, buffer, &words)?;
        }
        grow(&self.runtime, &mut self.input, bytes.0.len())?;
        self.input.write(0, &bytes.0)?;

        let token_words = count * (n + 1) * layout.tokens.bytes() / 4;
        let runtime = &self.runtime;
        fill(runtime, &mut self.tokens, &vec![!6; token_words])?;
        self.columns.iter_mut().try_for_each(|column| fill(runtime, column, &vec![BEFORE; count]))?;
        let [accepted, accepted_alone, statuses] =
            self.columns.each_ref().map(|column| Some(DeviceSlice::of(column, IntType::U32)));
        let tokens = DeviceIntMatrixMut::of(&mut self.tokens, layout.tokens, 0, count, n + 1, n + 1)?;
        let place = Judged { tokens, rows: None, accepted, accepted_alone, statuses, adds: layout.adds };

        let input = &self.input;
        let buffers = &self.numbers;
        let each = |which: usize| match layout.numbers[which] {
            Some(dtype) => Some(DeviceSlice::of(&buffers[which], dtype)),
            None => layout.alone.then(|| DeviceSlice::of(&buffers[which], IntType::I64)),
        };
        let probabilities = |(start, strides): (usize, [usize; 2]), rows| {
            DraftTreeRows::of(input, start, [count, rows, vocab], strides)
        };
        let draws = each(2).map_or(PerRow::All(chains[0].draw), PerRow::Rows);
        let asked = DraftTrees {
            draft_probs: Some(probabilities(draft, n)?),
            draft_token_ids: DeviceIntMatrix::of(
                input,
                layout.drafts,
                drafts / layout.drafts.bytes(),
                count,
                n,
                n,
            )?,
            parents: None,
            target_probs: probabilities(target, n + 1)?,
            draws: Draws {
                seeds: each(0).map_or(PerRow::All(chains[0].seed), PerRow::Rows),
                positions: each(1).map_or(PerRow::All(chains[0].position), PerRow::Rows),
                draws: (!layout.own_draws).then_some(draws),
                ..Draws::new(0, 0)
            },
        };
        self.judge.enqueue(&asked, Judgement::Rejection, &place)?;

        let (mut tokens, mut columns) = (vec![0u32; token_words], [const { Vec::new() }; 3]);
        self.tokens.read(0, &mut tokens)?;
        for (column, words) in self.columns.iter().zip(&mut columns) {
            words.resize(count, 0u32);
            column.read(0, words)?;
        }
        let tokens: Vec<i64> = if layout.tokens.bytes() == 8 {
            tokens.chunks(2).map(|two| (u64::from(two[0]) | u64::from(two[1]) << 32) as i64).collect()
        } else {
            tokens.iter().map(|token| i64::from(*token as i32)).collect()
        };
        let less = if layout.adds { BEFORE } else { 0 };
        let outcome = |i: usize| {
            let token = |id: &i64| i32::try_from(*id).expect("ids are of the vocabulary, or none");
            let tokens = tokens[i * (n + 1)..][..n + 1].iter().map(token).collect();
            let count = |which: usize| columns[which][i].wrapping_sub(less);
            let verified =
                Verified { accepted: count(0), accepted_alone: count(1), status: Status(columns[2][i]) };
            (tokens, verified)
        };
        Ok((0..count).map(outcome).collect())
    }
}

/// Takes a larger buffer where one is too small.
fn grow(runtime: &Arc<dyn Runtime>, buffer: &mut Buffer, bytes: usize) -> Result<(), Error> {
    if buffer.bytes() < bytes {
        *buffer = Buffer::zeroed(runtime, bytes.next_power_of_two())?;
    }
    Ok(())
}

/// Writes words to a buffer, which is made anew if it is not as large.
fn fill(runtime: &Arc<dyn Runtime>, buffer: &mut Buffer, words: &[u32]) -> Result<(), Error> {
    if buffer.bytes() == 4 * words.len() {
        buffer.write(0, words)?;
    } else {
        *buffer = Buffer::of(runtime, words)?;
    }
    Ok(())
}

/// What is copied to the device.
#[derive(Default)]
pub(crate) struct Bytes(pub Vec<u8>);

impl Bytes {
    /// Adds the rows of chains; returns the element where they start, and their strides.
    pub fn rows<'a>(
        &mut self,
        chains: impl Iterator<Item = &'a [f32]>,
        vocab: usize,
        gaps: Gaps,
    ) -> (usize, [usize; 2]) {
        self.align();
        let put = |bytes: &mut Vec<u8>, values: &[f32]| {
            values.iter().for_each(|value| bytes.extend_from_slice(&value.to_ne_bytes()));
        };
        // What lies between rows would win each race.
        let gap = |count: usize| vec![f32::INFINITY; count];
        put(&mut self.0, &gap(gaps.start));
        let start = self.0.len() / 4;
        let mut chain_stride = 0;
        for chain in chains {
            let from = self.0.len() / 4;
            for row in chain.chunks(vocab) {
                put(&mut self.0, row);
                put(&mut self.0, &gap(gaps.row));
            }
            put(&mut self.0, &gap(gaps.chain));
            chain_stride = self.0.len() / 4 - from;
        }
        (start, [chain_stride, vocab + gaps.row])
    }

    /// Adds whole numbers; returns the byte where they start.
    pub fn integers(&mut self, int: IntType, values: &[i64]) -> usize {
        self.align();
        let start = self.0.len();
        for value in values {
            self.0.extend_from_slice(&value.to_ne_bytes()[..int.bytes()]);
        }
        start
    }

    fn align(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(16), 0);
    }
}
