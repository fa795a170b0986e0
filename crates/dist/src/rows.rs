//! Rows put together: the parts that ranks have of the vocabulary, exchanged for whole rows.
//!
//! With `Gather` every rank wants all rows, with `Swap` the rows of its share.

use bytemuck::Pod;
use gumball_spec::Row;
use half::{bf16, f16};

use crate::group::{Group, What};
use crate::share::VocabSplit;
use gumball_spec::Result;

/// Whole rows, one after the other; none of f32 at first.
#[derive(Clone, Debug)]
pub enum WholeRows {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// bfloat16.
    Bf16(Vec<bf16>),
    /// IEEE half precision.
    F16(Vec<f16>),
}

impl Default for WholeRows {
    fn default() -> Self {
        Self::F32(Vec::new())
    }
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

/// Exchanges parts for whole rows: `wanted[r]` are the rows that rank r wants, and `part(row)` is this rank's
/// part of a row, with at least as many numbers as it has ids. Writes the rows that this rank wants, in that
/// turn, into `whole`, whose memory is kept. Numbers travel as they are.
///
/// `like` is a row of the type of all parts, for a rank that has none.
///
/// # Errors
/// The errors of [`Group::all_to_all`], and [`RanksError::Corrupt`](gumball_spec::RanksError::Corrupt) for a
/// message of another length.
pub fn whole_rows<'a>(
    group: &mut Group,
    split: &VocabSplit,
    wanted: &[Vec<usize>],
    like: Row<'_>,
    part: impl Fn(usize) -> Row<'a>,
    whole: &mut WholeRows,
) -> Result<()> {
    macro_rules! exchange {
        ($type:ident) => {{
            if !matches!(whole, WholeRows::$type(_)) {
                *whole = WholeRows::$type(Vec::new());
            }
            let WholeRows::$type(rows) = whole else { unreachable!("just made") };
            let part = |row| match part(row) {
                Row::$type(part) => part,
                _ => unreachable!("all parts have one type"),
            };
            exchange(group, split, wanted, part, rows)
        }};
    }
    match like {
        Row::F32(_) => exchange!(F32),
        Row::Bf16(_) => exchange!(Bf16),
        Row::F16(_) => exchange!(F16),
    }
}

fn exchange<'a, E: Pod>(
    group: &mut Group,
    split: &VocabSplit,
    wanted: &[Vec<usize>],
    part: impl Fn(usize) -> &'a [E],
    whole: &mut Vec<E>,
) -> Result<()> {
    let own = group.rank();
    let columns = split.ids(own).len();
    let (rows, vocab) = (wanted[own].len(), split.vocab());
    let write = |rank: usize, message: &mut Vec<u8>| {
        // What this rank has it need not send.
        for row in wanted[rank].iter().filter(|_| rank != own) {
            message.extend_from_slice(bytemuck::cast_slice(&part(*row)[..columns]));
        }
    };
    let row_bytes = |rank: usize| split.ids(rank).len() * size_of::<E>();
    group.exchange(What::Logits, write, |rank| rows * row_bytes(rank))?;
    whole.resize(rows * vocab, E::zeroed());
    for rank in (0..split.world()).filter(|rank| row_bytes(*rank) > 0) {
        let ids = split.ids(rank);
        let places = whole.chunks_exact_mut(vocab).map(|row| &mut row[ids.clone()]);
        if rank == own {
            places.zip(&wanted[own]).for_each(|(place, row)| place.copy_from_slice(&part(*row)[..columns]));
            continue;
        }
        let (found, due) = (group.received(rank).len(), rows * row_bytes(rank));
        if found != due {
            return Err(group.corrupt(rank, format!("{found} bytes of logits where {due} were due")));
        }
        let parts = group.received(rank).chunks_exact(row_bytes(rank));
        places.zip(parts).for_each(|(place, part)| bytemuck::cast_slice_mut(place).copy_from_slice(part));
    }
    Ok(())
}
