//! Rows put together: the parts that ranks have of the vocabulary, exchanged for whole rows.
//!
//! With `Gather` every rank wants all rows, with `Swap` those of its share.

use bytemuck::Pod;
use gumball_spec::Row;
use half::{bf16, f16};

use crate::group::{Group, What};
use crate::share::VocabSplit;
use gumball_spec::Result;

/// Whole rows, one after the other.
#[derive(Clone, Debug)]
pub enum WholeRows {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// bfloat16.
    Bf16(Vec<bf16>),
    /// IEEE half precision.
    F16(Vec<f16>),
}

impl WholeRows {
    /// Returns the rows as one slice.
    #[must_use]
    pub fn as_row(&self) -> Row<'_> {
        match self {
            Self::F32(rows) => Row::F32(rows),
            Self::Bf16(rows) => Row::Bf16(rows),
            Self::F16(rows) => Row::F16(rows),
        }
    }
}

/// Exchanges parts for whole rows: `wanted[r]` are the rows that rank r wants, and `part(row)` is this rank's part of a row, with
/// at least as many numbers as it has ids. Returns the rows that this rank wants, in that turn. Numbers travel as they are.
///
/// `like` is a row of the type of all parts, for a rank that has none.
///
/// # Errors
/// Those of [`Group::all_to_all`], and [`RanksError::Corrupt`](gumball_spec::RanksError::Corrupt) for a message of another length.
pub fn whole_rows<'a>(
    group: &mut Group,
    split: &VocabSplit,
    wanted: &[Vec<usize>],
    like: Row<'_>,
    part: impl Fn(usize) -> Row<'a>,
) -> Result<WholeRows> {
    Ok(match like {
        Row::F32(_) => WholeRows::F32(exchange(group, split, wanted, |row| match part(row) {
            Row::F32(part) => part,
            _ => unreachable!("all parts have one type"),
        })?),
        Row::Bf16(_) => WholeRows::Bf16(exchange(group, split, wanted, |row| match part(row) {
            Row::Bf16(part) => part,
            _ => unreachable!("all parts have one type"),
        })?),
        Row::F16(_) => WholeRows::F16(exchange(group, split, wanted, |row| match part(row) {
            Row::F16(part) => part,
            _ => unreachable!("all parts have one type"),
        })?),
    })
}

fn exchange<'a, E: Pod>(
    group: &mut Group,
    split: &VocabSplit,
    wanted: &[Vec<usize>],
    part: impl Fn(usize) -> &'a [E],
) -> Result<Vec<E>> {
    let own = group.rank();
    let columns = split.ids(own).len();
    let of_rank = |rows: &Vec<usize>| {
        let mut message = Vec::with_capacity(rows.len() * columns * size_of::<E>());
        for row in rows {
            message.extend_from_slice(bytemuck::cast_slice(&part(*row)[..columns]));
        }
        message
    };
    let messages: Vec<Vec<u8>> = wanted.iter().map(of_rank).collect();
    let (rows, vocab) = (wanted[own].len(), split.vocab());
    let most_bytes = |rank: usize| rows * split.ids(rank).len() * size_of::<E>();
    let received = group.all_to_all(What::Logits, &messages, most_bytes)?;
    let mut whole = vec![E::zeroed(); rows * vocab];
    for (rank, message) in received.iter().enumerate() {
        let ids = split.ids(rank);
        let row_bytes = ids.len() * size_of::<E>();
        if message.len() != rows * row_bytes {
            let what = format!("{} bytes of logits where {} were due", message.len(), rows * row_bytes);
            return Err(group.corrupt(rank, what));
        }
        if row_bytes > 0 {
            for (row, bytes) in whole.chunks_exact_mut(vocab).zip(message.chunks_exact(row_bytes)) {
                bytemuck::cast_slice_mut(&mut row[ids.clone()]).copy_from_slice(bytes);
            }
        }
    }
    Ok(whole)
}
