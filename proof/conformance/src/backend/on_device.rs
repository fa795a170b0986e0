//! Rows and drafts of work in a device's memory.

use gumball_engine::{
    Device, DeviceBuffer, DeviceMatrix, DeviceSlice, Drafts, Dtype, HostMatrix, Ids, IntType, Kind, Matrix,
    Tree, bf16, f16,
};
use gumball_spec::{Error, Result, Row};

use super::work::Work;
use crate::case;

/// Elements in front of the first row and between rows, so that only some rows lie on 16 bytes; what lies
/// there would win every draw.
const GAP: usize = 3;

/// What work reads, in the memory of a pool's device.
pub struct OnDevice<'a> {
    rows: HostMatrix<'a>,
    kind: Kind,
    dtype: Dtype,
    vocab: usize,
    requests: usize,
    logits: DeviceBuffer,
    /// With their ids, the two lists of their tree, and their probabilities.
    drafts: Option<(Drafts<'a>, [DeviceBuffer; 4])>,
}

impl<'a> OnDevice<'a> {
    /// Copies all rows of work, and its drafts, whose probabilities are of a whole vocabulary.
    pub fn of(device: &Device, work: &Work<'a>, vocab: usize) -> Result<Self> {
        let (rows, requests) = (work.all_rows(), work.batch.slots.len());
        let runtime = device.runtime();
        macro_rules! copied {
            ($dtype:ident, $gap:expr) => {{
                let mut numbers = vec![$gap; GAP];
                for row in 0..rows.rows() {
                    let Row::$dtype(row) = rows.row(row) else { unreachable!("one type a batch") };
                    numbers.extend(row.iter().copied().chain([$gap; GAP]));
                }
                DeviceBuffer::of(runtime, &numbers)?
            }};
        }
        let logits = match work.dtype {
            case::Dtype::F32 => copied!(F32, f32::INFINITY),
            case::Dtype::Bf16 => copied!(Bf16, bf16::INFINITY),
            case::Dtype::F16 => copied!(F16, f16::INFINITY),
        };
        let copy = |drafts: Drafts<'a>| -> Result<_> {
            let ids: Vec<i64> = of_host(drafts.ids).iter().copied().map(i64::from).collect();
            let ids = DeviceBuffer::of(runtime, &ids)?;
            let [tree, siblings] = lists_of(&drafts.tree).map(|list| DeviceBuffer::of(runtime, list));
            let mut probs: Vec<f32> = Vec::new();
            if let Some(Matrix::Host(matrix)) = drafts.probs {
                let rows = (0..matrix.rows()).map(|row| matrix.row(row));
                probs.extend(rows.flat_map(|row| (0..row.vocab()).map(move |id| row.logit(id))));
            }
            let probs = DeviceBuffer::of(runtime, &probs)?;
            Ok((drafts, [ids, tree?, siblings?, probs]))
        };
        let drafts = work.drafts.map(copy).transpose()?;
        Ok(Self { rows, kind: work.kind(), dtype: work.dtype.into(), vocab, requests, logits, drafts })
    }

    /// Returns the rows.
    pub fn rows(&self) -> Result<DeviceMatrix<'_>> {
        let (rows, vocab) = (self.rows.rows(), self.rows.width());
        let rows = DeviceMatrix::of(&self.logits, self.dtype, GAP, rows, vocab, vocab + GAP)?;
        Ok(rows.with_kind(self.kind))
    }

    /// Returns the work that reads them.
    pub fn work(&self) -> Result<gumball_engine::Work<'_>> {
        let rows = self.rows()?;
        Ok(match self.drafts()? {
            None => gumball_engine::Work::step(rows),
            Some(drafts) => gumball_engine::Work::verify(rows, drafts),
        })
    }

    /// Returns the work that reads the rows, and drafts of the host.
    pub fn work_with_host_drafts(&self) -> Result<gumball_engine::Work<'_>> {
        let rows = self.rows()?;
        Ok(match &self.drafts {
            None => gumball_engine::Work::step(rows),
            Some((drafts, _)) => gumball_engine::Work::verify(rows, *drafts),
        })
    }

    /// Returns the drafts.
    pub fn drafts(&self) -> Result<Option<Drafts<'_>>> {
        let Some((drafts, [ids, tree, siblings, probs])) = &self.drafts else { return Ok(None) };
        let count = of_host(drafts.ids).len();
        let column_of =
            |buffer, dtype, count| Ok::<Ids<'_>, Error>(DeviceSlice::of(buffer, dtype).first(count)?.into());
        let column = |buffer, count| column_of(buffer, IntType::I32, count);
        let rows = self.requests + count;
        let tree = match drafts.tree {
            Tree::Chain => Tree::Chain,
            Tree::Parents(_) => Tree::Parents(column(tree, count)?),
            Tree::Links { .. } => {
                Tree::Links { first_child: column(tree, rows)?, next_sibling: column(siblings, rows)? }
            }
        };
        let of = |_| DeviceMatrix::of(probs, Dtype::F32, 0, rows, self.vocab, self.vocab);
        let probs = drafts.probs.map(of).transpose()?.map(Matrix::from);
        Ok(Some(Drafts { ids: column_of(ids, IntType::I64, count)?, tree, probs }))
    }
}

/// Returns the lists that a tree is given by, the parents or the links.
fn lists_of<'a>(tree: &Tree<'a>) -> [&'a [i32]; 2] {
    match *tree {
        Tree::Chain => [&[], &[]],
        Tree::Parents(parents) => [of_host(parents), &[]],
        Tree::Links { first_child, next_sibling } => [first_child, next_sibling].map(of_host),
    }
}

/// Returns ids of the host, which all cases have.
fn of_host(ids: Ids<'_>) -> &[i32] {
    let Ids::Host(ids) = ids else { unreachable!("a case lies on the host: {ids:?}") };
    ids
}
