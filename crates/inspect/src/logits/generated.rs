//! Rows made up from a seed: like a model's, or flat.
//!
//! Model-like rows are normal with deviation 2, and twenty tokens are raised by 6 to 14, as the few that
//! fit the context are. Flat rows vary by 2^-4 at most. Words come from Philox under a seed of their own,
//! so a row is the same on every machine; the normals pass through libm and are rounded to 2^-10, coarse
//! enough that they are the same too.

use clap::ValueEnum;
use gumball_spec::num::philox4x32_10;
use gumball_spec::shape::check_vocab;
use gumball_spec::{Error, Result};

use super::{Data, Logits};

/// What kind of rows to make up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Normal, with twenty tokens raised far above.
    ModelLike,
    /// Nearly equal.
    Flat,
}

impl Kind {
    /// Returns the name of the kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::ModelLike => "model-like",
            Kind::Flat => "flat",
        }
    }
}

/// How many tokens of a model-like row are raised.
const PEAKS: u32 = 20;

/// The most logits that are made up: a gibibyte of them.
const MOST: usize = 1 << 28;

/// Makes `rows` rows of `vocab` logits in f32.
///
/// # Errors
/// - [`Error::OutOfRange`] if the shape is none, or of more than 2^28 logits.
/// - [`Error::Unavailable`] if there is no memory for them.
pub fn generate(kind: Kind, rows: usize, vocab: usize, seed: u64) -> Result<Logits> {
    check_vocab(vocab)?;
    let most_rows = MOST / vocab;
    if !(1..=most_rows).contains(&rows) {
        let allowed = format!("in 1..={most_rows} where rows of {vocab} logits are made up");
        return Err(Error::out_of_range("rows", rows, allowed));
    }
    let mut data = Vec::new();
    data.try_reserve_exact(rows * vocab).map_err(|error| Error::Unavailable {
        resource: "memory",
        reason: format!("{rows} rows of {vocab} logits: {error}"),
    })?;
    for row in 0..rows as u32 {
        let words = |id: u32, tag: u32| philox4x32_10(seed, [id, row, tag, kind as u32]);
        match kind {
            Kind::ModelLike => {
                let first = data.len();
                data.extend((0..vocab as u32).map(|id| 2.0 * normal(words(id, 100))));
                for peak in 0..PEAKS {
                    let [place, height, ..] = words(peak, 101);
                    let id = ((u64::from(place) * vocab as u64) >> 32) as usize;
                    data[first + id] += 6.0 + 8.0 * unit(height) as f32;
                }
            }
            Kind::Flat => data.extend((0..vocab as u32).map(|id| unit(words(id, 100)[0]) as f32 / 16.0)),
        }
    }
    Ok(Logits::new(Data::F32(data), vocab).expect("the shape was checked"))
}

/// Returns a number in (0, 1).
fn unit(word: u32) -> f64 {
    (f64::from(word) + 0.5) / 4_294_967_296.0
}

/// Returns a normal variable (Box and Muller), rounded to 2^-10.
fn normal([u, v, ..]: [u32; 4]) -> f32 {
    let normal = (-2.0 * unit(u).ln()).sqrt() * (std::f64::consts::TAU * unit(v)).cos();
    ((normal * 1024.0).round() / 1024.0) as f32
}
