//! Where a command takes its rows from: a file, or rows made up for it.

use std::path::PathBuf;

use clap::Args;

use super::{Chosen, Kind, Logits, Selection, file, generate};
use crate::output::shown;
use crate::text::count;
use crate::{Error, Result, reading};

/// The seed that made-up rows come from.
const ROWS_SEED: u64 = 1;

/// A file of logits, or the kind of rows to make up, and the rows that are meant.
#[derive(Args, Clone, Debug, Default)]
pub struct LogitsArgs {
    /// Logits: .npy or .safetensors of shape (vocab) or (rows, vocab) in f32, bf16 or f16 (in .npy, uint16 is
    /// taken as bf16), .json of numbers, or raw little-endian .f32, .bf16, .f16 with --vocab; - is standard
    /// input, all but raw
    #[arg(value_name = "LOGITS", conflicts_with = "kind")]
    pub file: Option<PathBuf>,
    /// Make rows up instead
    #[arg(long, value_name = "KIND")]
    pub kind: Option<Kind>,
    /// The tensor of a .safetensors file; may be left out if there is one only
    #[arg(long, value_name = "NAME", conflicts_with = "kind")]
    pub tensor: Option<String>,
    /// The length of a row of a raw file, or of a row made up
    #[arg(long, value_name = "N")]
    pub vocab: Option<usize>,
    /// Rows to use, from 0, such as 0,3,8-15
    #[arg(long, value_name = "ROWS")]
    pub rows: Option<Selection>,
}

/// The rows that a command makes up by default.
#[derive(Clone, Copy, Debug)]
pub struct Fallback {
    /// The kind, if any.
    pub kind: Option<Kind>,
    /// How many rows.
    pub rows: usize,
    /// How long they are.
    pub vocab: usize,
}

/// Rows, and which of them are meant.
#[derive(Clone, Debug)]
pub struct Source {
    /// The rows that are held: of a file the chosen ones.
    pub logits: Logits,
    /// The number of each in the file.
    pub numbers: Vec<usize>,
    /// The places of the chosen rows among them, in the order named.
    pub rows: Vec<usize>,
    /// Where they come from, in words.
    pub origin: String,
    /// That, with their number, length and type.
    pub name: String,
}

impl LogitsArgs {
    fn is_safetensors(&self) -> bool {
        self.file.as_ref().and_then(|path| path.extension()).is_some_and(|kind| kind == "safetensors")
    }

    /// Returns the first flag that says which rows are meant, if one was given.
    #[must_use]
    pub fn given(&self) -> Option<&'static str> {
        let flags = [
            ("LOGITS", self.file.is_some()),
            ("--kind", self.kind.is_some()),
            ("--tensor", self.tensor.is_some()),
            ("--vocab", self.vocab.is_some()),
            ("--rows", self.rows.is_some()),
        ];
        flags.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }

    /// Reads the file, or makes up the rows.
    ///
    /// # Errors
    /// - [`Error::File`] that names the file's defect and the remedy.
    /// - [`Error::Usage`] if there is no source, a row does not exist, or `--tensor` has nothing to name.
    /// - [`Error::Spec`] if rows cannot be made up in that shape.
    pub fn load(&self, fallback: Fallback) -> Result<Source> {
        if self.tensor.is_some() && !self.is_safetensors() {
            return Err(Error::Usage(
                "--tensor names a tensor of a .safetensors file; leave it out".to_owned(),
            ));
        }
        let (chosen, origin) = match (&self.file, self.kind.or(fallback.kind)) {
            (Some(path), _) => {
                let origin = shown(&reading::name(path).display().to_string());
                (file::read(path, self.tensor.as_deref(), self.vocab, self.rows.as_ref())?, origin)
            }
            (None, Some(kind)) => {
                let rows = self.rows.as_ref().map_or(fallback.rows, Selection::least_rows);
                let logits = generate(kind, rows, self.vocab.unwrap_or(fallback.vocab), ROWS_SEED)?;
                let named = |rows: &Selection| rows.of(logits.rows());
                let rows = self.rows.as_ref().map_or_else(|| Ok((0..logits.rows()).collect()), named);
                let rows = rows.map_err(|reason| Error::Usage(format!("--rows: {reason}")))?;
                (Chosen::all(logits, rows), format!("made-up {} rows", kind.name()))
            }
            (None, None) => {
                return Err(Error::Usage(
                    "name a file of logits (.npy, .safetensors, .json), or make rows up with --kind model-like"
                        .to_owned(),
                ));
            }
        };
        let Chosen { logits, numbers, rows } = chosen;
        let plural = if rows.len() == 1 { "row" } else { "rows" };
        let (length, dtype) = (count(logits.vocab() as u64), logits.dtype());
        let name = format!("{} {plural} of {length} logits in {dtype} from {origin}", rows.len());
        Ok(Source { logits, numbers, rows, origin, name })
    }
}
