//! The rows of a call with masks, forced tokens and drafts: as numbers small enough to print, and as data.

use gumball_engine::{
    Drafts, HostMasks, HostMatrix, Kind, Masks, Matrix, PADDING, RowHook, Rows, Slot, Tree, VerifyMode,
};
use gumball_spec::Result;

use super::{VOCAB, WORDS};
use crate::bytes::Bytes;
use crate::case::{self, Dtype};
use crate::rows::{Words, bell};

/// The elements from the end of a row to the start of the next.
const GAP: usize = 3;

/// Rows for requests. The rows follow from one seed; masks, forced tokens, indices and drafts follow from
/// another one.
#[derive(Clone, Debug)]
pub struct Batch {
    pub slots: Vec<Slot>,
    pub rows_seed: u8,
    pub seed: u8,
    pub dtype: Dtype,
    pub kind: Kind,
    /// Whether some rows have bitmasks, whether some have forced tokens, and whether rows are read by their
    /// indices.
    pub masks: bool,
    pub forced: bool,
    pub by_index: bool,
    /// Whether the first row has an edit of the caller's.
    pub hook: bool,
    pub drafts: Option<DraftsOfBatch>,
}

/// The drafts of a batch: to be verified, or in front of the rows of a draft model.
#[derive(Clone, Debug)]
pub struct DraftsOfBatch {
    pub mode: VerifyMode,
    pub counts: Vec<u32>,
    pub trees: bool,
    /// Whether trees are given by links, and not by parents.
    pub links: bool,
    pub probs: bool,
    /// Whether some parent is no draft before its child.
    pub no_tree: bool,
}

/// The data of a batch.
#[derive(Debug)]
pub struct Made {
    numbers: case::Logits,
    lines: usize,
    pub row_indices: Vec<u32>,
    masks: Option<(Vec<u32>, Vec<bool>)>,
    forced: Vec<Option<u32>>,
    ids: Vec<i32>,
    parents: Vec<i32>,
    /// The first child and the next sibling of each row.
    links: [Vec<i32>; 2],
    probs: Vec<f32>,
}

impl Batch {
    /// Chooses a batch of requests in flight, or now and then of others.
    pub fn choose(bytes: &mut Bytes<'_>, live: &[Slot]) -> Self {
        let (left_out, order) = (bytes.byte(), bytes.byte());
        let mut slots: Vec<Slot> =
            live.iter().enumerate().filter(|(i, _)| left_out >> i & 1 == 0).map(|(_, slot)| *slot).collect();
        if order & 1 != 0 {
            slots.reverse();
        }
        if order & 2 != 0 {
            slots.insert(slots.len() / 2, PADDING);
        }
        if order >= 250 {
            slots.push([live.first().copied().unwrap_or(0), 77, -5][usize::from(order) % 3]);
        }
        let (options, of_rows) = (bytes.byte(), bytes.byte());
        Self {
            slots,
            rows_seed: bytes.byte(),
            seed: bytes.byte(),
            dtype: Dtype::ALL[usize::from(of_rows) % 3],
            kind: if of_rows % 16 == 15 { Kind::Probabilities } else { Kind::Logits },
            masks: options & 3 == 3,
            forced: options & 12 == 12,
            by_index: options & 48 == 48,
            hook: options >= 240,
            drafts: None,
        }
    }

    /// Gives each request of the batch drafts.
    pub fn with_drafts(self, bytes: &mut Bytes<'_>) -> Self {
        let modes = [
            VerifyMode::Coupled,
            VerifyMode::Greedy,
            VerifyMode::Rejection,
            VerifyMode::Block,
            VerifyMode::Threshold { single: 0.5, acc: 0.5 },
        ];
        let (mode, many, form) = (bytes.of(&modes), bytes.byte(), bytes.byte());
        let count = |request: usize| [1, 0, 2, 5][usize::from(many.rotate_left(2 * request as u32)) & 3];
        let mut counts: Vec<u32> = (0..self.slots.len()).map(count).collect();
        counts.first_mut().filter(|_| form & 63 == 60).into_iter().for_each(|count| *count = 65);
        let reads = matches!(mode, VerifyMode::Rejection | VerifyMode::Block);
        let drafts = DraftsOfBatch {
            mode,
            counts,
            trees: form & 1 != 0 && (mode != VerifyMode::Block || form >= 250),
            links: form & 4 != 0,
            probs: form & 2 != 0 && (reads || form >= 250),
            no_tree: form & 63 == 61,
        };
        Self { drafts: Some(drafts), ..self }
    }

    /// Returns how many rows there are: with drafts to verify, one for each request and one for each draft.
    pub fn rows(&self) -> usize {
        self.slots.len() + self.drafts.iter().flat_map(|drafts| &drafts.counts).sum::<u32>() as usize
    }

    /// Makes the data of a step, or of a verification.
    pub fn make(&self) -> Made {
        self.make_rows(self.rows())
    }

    /// Makes the data of rows of a draft model, one for each slot.
    pub fn make_drafter(&self) -> Made {
        self.make_rows(self.slots.len())
    }

    fn make_rows(&self, rows: usize) -> Made {
        let mut words = Words(u64::from(self.seed));
        let lines = if self.by_index { rows.div_ceil(2) } else { rows };
        let row_indices: Vec<u32> =
            if self.by_index { (0..rows).map(|_| words.below(lines) as u32).collect() } else { vec![] };
        let line_of = |row: usize| row_indices.get(row).map_or(row, |line| *line as usize);
        let table: Vec<Vec<f32>> = (0..lines).map(|line| self.line(line)).collect();
        let mut numbers = Vec::new();
        for line in &table {
            numbers.extend_from_slice(line);
            numbers.extend([f32::INFINITY; GAP]);
        }
        // Most drafts are the likeliest token of the row before them.
        let (mut ids, mut parents, mut row) = (Vec::new(), Vec::new(), 0);
        let counts = self.drafts.as_ref().map_or(&[][..], |drafts| &drafts.counts);
        for count in counts {
            for node in 0..*count as usize {
                let is_chain = !self.drafts.as_ref().is_some_and(|drafts| drafts.trees) || words.below(3) > 0;
                let before = if is_chain { node } else { words.below(node + 1) };
                parents.push(before as i32 - 1);
                let hostile = [-1, VOCAB as i32, i32::MIN, 3][words.below(4)];
                let likely = table.get(line_of(row + before)).map_or(0, |line| likeliest(line));
                ids.push(if words.below(12) == 0 { hostile } else { likely });
            }
            row += *count as usize + 1;
        }
        let mut links = links_of(counts, &parents);
        if self.drafts.as_ref().is_some_and(|drafts| drafts.no_tree) {
            let [parent, link] = [&mut parents, &mut links[1]].map(|list| list.last_mut());
            parent.into_iter().chain(link).for_each(|last| *last = 64);
        }
        let masks = self.masks.then(|| {
            let mask = (0..rows * WORDS).map(|_| (words.word() | words.word()) as u32).collect();
            (mask, (0..rows).map(|_| words.below(3) > 0).collect())
        });
        let token = |words: &mut Words| if words.below(60) == 0 { VOCAB } else { words.below(VOCAB) };
        let forced = |words: &mut Words| (words.below(3) == 0).then(|| token(words) as u32);
        let forced = if self.forced { (0..rows).map(|_| forced(&mut words)).collect() } else { vec![] };
        let probs = self.drafts.as_ref().is_some_and(|drafts| drafts.probs);
        let prob = |_| words.below(1000) as f32 / 1000.0;
        let probs = if probs { (0..rows * VOCAB).map(prob).collect() } else { vec![] };
        Made {
            numbers: case::Logits::new(self.dtype, &numbers),
            lines,
            row_indices,
            masks,
            forced,
            ids,
            parents,
            links,
            probs,
        }
    }

    /// Returns a row of the table: some tokens are far likelier than the others, and now and then there are
    /// numbers that no model gives.
    fn line(&self, line: usize) -> Vec<f32> {
        let mut words = Words(1000 * u64::from(self.rows_seed) + line as u64);
        let mut row = bell(VOCAB, 1.5, words.word());
        (0..3).for_each(|_| row[words.below(VOCAB)] += 6.0);
        if words.below(10) == 0 {
            let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30];
            (0..4).for_each(|_| row[words.below(VOCAB)] = odd[words.below(4)]);
        }
        match self.kind {
            Kind::Logits => row,
            Kind::Probabilities => row.into_iter().map(|z| z.exp2().min(1e30)).collect(),
        }
    }
}

/// Returns the links between the rows of requests, each row's next sibling being the next one with its
/// parent.
fn links_of(counts: &[u32], parents: &[i32]) -> [Vec<i32>; 2] {
    let (mut links, mut rest) = ([vec![], vec![]], parents);
    for count in counts {
        let parents = rest.split_off(..*count as usize).expect("a parent for each draft");
        let child_from = |from: usize, parent: i32| {
            (from..parents.len()).find(|draft| parents[*draft] == parent).map_or(-1, |draft| draft as i32 + 1)
        };
        links[0].extend((0..=parents.len()).map(|row| child_from(row, row as i32 - 1)));
        links[1].push(-1);
        links[1].extend((0..parents.len()).map(|draft| child_from(draft + 1, parents[draft])));
    }
    links
}

/// Returns the id of the largest number.
fn likeliest(row: &[f32]) -> i32 {
    let ids = 0..row.len();
    ids.max_by(|a, b| row[*a].total_cmp(&row[*b])).map_or(0, |id| id as i32)
}

impl Made {
    /// Returns the table of rows.
    pub fn rows(&self, batch: &Batch) -> Result<Rows<'_>> {
        Ok(Rows::of(HostMatrix::strided(self.numbers.row(), self.lines, VOCAB, VOCAB + GAP)?, batch.kind))
    }

    /// Returns what comes with the rows, and the numbers of drafts.
    pub fn batch<'a>(
        &'a self,
        batch: &'a Batch,
        hooks: &'a [Option<RowHook<'a>>],
    ) -> Result<gumball_engine::Batch<'a>> {
        let masks = match &self.masks {
            Some((words, present)) => {
                Masks::Host(HostMasks::new(words, present.len(), WORDS, WORDS)?.with_present(present)?)
            }
            None => Masks::None,
        };
        let (row_indices, mut of) = (&self.row_indices, gumball_engine::Batch::of(&batch.slots));
        if let Some(drafts) = &batch.drafts {
            (of.counts, of.mode) = (&drafts.counts, drafts.mode);
        }
        Ok(gumball_engine::Batch { masks, forced: &self.forced, row_indices, hooks, ..of })
    }

    /// Returns the paths in front of the rows of a draft model.
    pub fn paths(&self) -> &[i32] {
        &self.ids
    }

    /// Returns the drafts of a batch that is verified.
    pub fn drafts(&self, batch: &Batch) -> Option<Drafts<'_>> {
        let of = batch.drafts.as_ref()?;
        let [first_child, next_sibling] = self.links.each_ref().map(|list| list.into());
        let tree = match (of.trees, of.links) {
            (false, _) => Tree::Chain,
            (true, false) => Tree::Parents((&self.parents).into()),
            (true, true) => Tree::Links { first_child, next_sibling },
        };
        let probs = of.probs.then(|| Matrix::new(&self.probs, self.probs.len() / VOCAB, VOCAB));
        Some(Drafts { ids: (&self.ids).into(), tree, probs: probs.transpose().expect("whole rows") })
    }
}

/// The caller's edit of a row that has one.
pub fn edit(row: &mut [f32]) {
    row.reverse();
}
