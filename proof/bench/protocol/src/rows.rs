//! The rows of a definition in memory, aligned to cache lines.
//!
//! Every Rust engine gets its rows from here, so that none is slowed by where its buffer begins.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use bytemuck::{Pod, Zeroable};
use half::bf16;

use crate::Dtype;

/// One cache line, which is the buffer's element for its alignment.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A row as its type has it.
#[derive(Clone, Copy, Debug)]
pub enum Row<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// bfloat16.
    Bf16(&'a [bf16]),
}

/// Some rows of the same vocabulary and type, back to back.
pub struct Rows {
    lines: Vec<Line>,
    vocab: usize,
    count: usize,
    dtype: Dtype,
}

impl Rows {
    /// Reads `count` rows of `vocab` logits from a file.
    ///
    /// # Errors
    /// What reading the file gives, and [`io::ErrorKind::InvalidData`] if its size is another.
    pub fn read(path: &Path, vocab: usize, dtype: Dtype, count: usize) -> io::Result<Self> {
        let bytes = vocab * dtype.bytes() * count;
        let mut file = File::open(path)?;
        let found = file.metadata()?.len();
        if found != bytes as u64 {
            let message = format!("rows file has {found} bytes; {count} x {vocab} of {dtype} are {bytes}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let mut lines = vec![Line::zeroed(); bytes.div_ceil(size_of::<Line>())];
        let buffer: &mut [u8] = bytemuck::cast_slice_mut(&mut lines);
        file.read_exact(&mut buffer[..bytes])?;
        Ok(Self { lines, vocab, count, dtype })
    }

    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The tokens of a row.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// One row.
    ///
    /// # Panics
    /// If `row` is not below [`Rows::count`].
    pub fn row(&self, row: usize) -> Row<'_> {
        assert!(row < self.count, "row {row} of {}", self.count);
        let range = row * self.vocab..(row + 1) * self.vocab;
        match self.dtype {
            Dtype::F32 => Row::F32(&bytemuck::cast_slice(&self.lines)[range]),
            Dtype::Bf16 => Row::Bf16(&bytemuck::cast_slice(&self.lines)[range]),
        }
    }
}

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rows({} x {} of {})", self.count, self.vocab, self.dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(name: &str, bytes: &[u8]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("gumball-bench-rows-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        path
    }

    #[test]
    fn rows_come_back_aligned_and_in_order() {
        let values: Vec<f32> = (0..48).map(|i| i as f32).collect();
        let path = file_of("f32", bytemuck::cast_slice(&values));
        let rows = Rows::read(&path, 16, Dtype::F32, 3).unwrap();
        std::fs::remove_file(path).unwrap();
        for row in 0..3 {
            let Row::F32(logits) = rows.row(row) else { panic!("another type") };
            assert_eq!(logits, &values[row * 16..][..16]);
            assert_eq!(logits.as_ptr().align_offset(64), 0);
        }
    }

    #[test]
    fn a_file_of_another_size_is_refused_with_both_sizes() {
        let path = file_of("short", &[0; 10]);
        let message = Rows::read(&path, 3, Dtype::Bf16, 2).unwrap_err().to_string();
        std::fs::remove_file(path).unwrap();
        assert_eq!(message, "rows file has 10 bytes; 2 x 3 of bf16 are 12");
    }
}
