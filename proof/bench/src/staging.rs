//! Files of rows, which engines of any language read.
//!
//! All tasks over the same rows share one file. Files live in a folder of the run and go with it.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use gumball_bench_protocol::{Definition, Dtype, Residence, RowKind, generated};
use gumball_cpu::files::{NewFile, temporary_folder};
use half::bf16;

use crate::definitions::REAL_VOCAB;

/// The seed of all generated rows of a run.
const SEED: u64 = 0x6d75_6267;

/// A file of rows.
#[derive(Clone, Debug)]
pub struct RowsFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its rows.
    pub row_count: usize,
    of: Definition,
}

/// The folder of a run's rows; dropped, it takes its files along.
#[derive(Debug)]
pub struct Staging {
    folder: PathBuf,
    real_rows: PathBuf,
    latest: Option<RowsFile>,
}

impl Staging {
    /// A folder for the rows of this process, with the recorded rows from the file `real_rows`.
    ///
    /// # Errors
    /// What making the folder gives.
    pub fn new(real_rows: &Path) -> io::Result<Self> {
        let folder = temporary_folder("gumball-bench")?;
        Ok(Self { folder, real_rows: real_rows.into(), latest: None })
    }

    /// The rows of a definition, at least `samples` of them, and for a stream at least `stream_bytes`.
    ///
    /// Only the latest file is kept: definitions over the same rows should follow each other.
    ///
    /// # Errors
    /// What reading or writing gives; for real rows [`io::ErrorKind::NotFound`] without a recording.
    pub fn rows(
        &mut self,
        definition: &Definition,
        samples: usize,
        stream_bytes: usize,
    ) -> io::Result<RowsFile> {
        if let Some(latest) = &self.latest {
            let same_rows = Definition { task: latest.of.task, ..*definition };
            if latest.of == same_rows {
                return Ok(latest.clone());
            }
        }
        let row_count = match definition.residence {
            Residence::Cache => samples,
            Residence::Dram => samples.max(stream_bytes.div_ceil(definition.row_bytes())),
        };
        if let Some(old) = self.latest.take() {
            fs::remove_file(old.path)?;
        }
        let path = self.folder.join(definition.to_string().replace('/', "-"));
        write(&path, definition, SEED, row_count, &self.real_rows)?;
        let file = RowsFile { path, row_count, of: *definition };
        self.latest = Some(file.clone());
        Ok(file)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Nothing to do about a folder that will not go: it is the system's temporary one.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Writes `row_count` rows of a definition; recorded rows come round again when there are too few.
///
/// # Errors
/// What reading or writing gives.
pub fn write(path: &Path, of: &Definition, seed: u64, row_count: usize, real_rows: &Path) -> io::Result<()> {
    let recorded = match of.rows {
        RowKind::Real => read_recorded(real_rows, of.vocab)?,
        _ => Vec::new(),
    };
    let mut file = BufWriter::new(NewFile::beside(path)?);
    for number in 0..row_count {
        let logits = match of.rows {
            RowKind::Real => recorded[number % recorded.len()].clone(),
            kind => generated::row(kind, of.vocab, seed, number),
        };
        match of.dtype {
            Dtype::F32 => logits.iter().try_for_each(|z| file.write_all(&z.to_le_bytes()))?,
            Dtype::Bf16 => {
                logits.iter().try_for_each(|&z| file.write_all(&bf16::from_f32(z).to_le_bytes()))?;
            }
        }
    }
    file.into_inner()?.keep()
}

fn read_recorded(path: &Path, vocab: usize) -> io::Result<Vec<Vec<f32>>> {
    let bytes = fs::read(path).map_err(|error| {
        io::Error::new(error.kind(), format!("recorded rows {}: {error}", path.display()))
    })?;
    let rows = bytes.chunks_exact(vocab * 2).map(|row| {
        row.chunks_exact(2).map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f32()).collect()
    });
    if vocab != REAL_VOCAB || bytes.is_empty() || !bytes.len().is_multiple_of(vocab * 2) {
        let message = format!("{} bytes of recorded rows are no rows of {vocab} bf16", bytes.len());
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(rows.collect())
}

#[cfg(test)]
mod tests {
    use gumball_bench_protocol::{Row, Rows, Task};

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("gumball-bench-staging-{name}-{}", std::process::id()))
    }

    fn definition(rows: RowKind, vocab: usize, dtype: Dtype) -> Definition {
        Definition { vocab, dtype, rows, residence: Residence::Cache, task: Task::Greedy }
    }

    #[test]
    fn what_is_written_is_what_engines_read() {
        let path = scratch("generated");
        for dtype in [Dtype::F32, Dtype::Bf16] {
            write(&path, &definition(RowKind::Model, 100, dtype), 3, 2, Path::new("")).unwrap();
            let rows = Rows::read(&path, 100, dtype, 2).unwrap();
            let made = generated::row(RowKind::Model, 100, 3, 1);
            match rows.row(1) {
                Row::F32(logits) => assert_eq!(logits, made),
                Row::Bf16(logits) => {
                    assert_eq!(logits, made.iter().map(|&z| bf16::from_f32(z)).collect::<Vec<_>>());
                }
            }
        }
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn recorded_rows_come_round_again_and_widen_exactly() {
        let recorded: Vec<bf16> =
            (0..2 * REAL_VOCAB).map(|i| bf16::from_f32((i % 200) as f32 + (i / REAL_VOCAB) as f32)).collect();
        let (source, path) = (scratch("recorded"), scratch("real"));
        let bytes: Vec<u8> = recorded.iter().flat_map(|z| z.to_le_bytes()).collect();
        fs::write(&source, bytes).unwrap();
        write(&path, &definition(RowKind::Real, REAL_VOCAB, Dtype::F32), 0, 3, &source).unwrap();
        let rows = Rows::read(&path, REAL_VOCAB, Dtype::F32, 3).unwrap();
        let Row::F32(third) = rows.row(2) else { panic!("another type") };
        assert!(third.iter().zip(&recorded).all(|(&got, want)| got == want.to_f32()));
        fs::remove_file(source).unwrap();
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn no_recording_is_an_error_that_names_the_file() {
        let definition = definition(RowKind::Real, REAL_VOCAB, Dtype::Bf16);
        let error = write(&scratch("none"), &definition, 0, 1, Path::new("no/such.bf16")).unwrap_err();
        assert!(error.to_string().contains("no/such.bf16"), "{error}");
    }

    #[test]
    fn a_stream_has_as_many_rows_as_its_bytes_want() {
        let mut staging = Staging::new(Path::new("")).unwrap();
        let cached = definition(RowKind::Equal, 64, Dtype::F32);
        assert_eq!(staging.rows(&cached, 3, 10_000).unwrap().row_count, 3);
        let streamed = Definition { residence: Residence::Dram, ..cached };
        let file = staging.rows(&streamed, 3, 10_000).unwrap();
        assert_eq!((file.row_count, file.path.exists()), (40, true));
        let again = staging.rows(&Definition { task: Task::TopP, ..streamed }, 3, 10_000).unwrap();
        assert_eq!(again.path, file.path);
        drop(staging);
        assert!(!file.path.exists());
    }
}
