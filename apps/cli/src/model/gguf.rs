//! What does a GGUF file say? Its metadata by key, its tensors by name, each read checked.
//!
//! The parsing is candle's. Here its answers get types and errors that say what to do, and a truncated
//! file is found before anything is loaded. It does not know what the keys mean.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read, Seek};
use std::path::{Path, PathBuf};

use candle_core::Device;
use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::{Content, Value};
use gumball_engine::unstable::files::{Links, open_plain};

use super::error::{Error, Result};
use super::header;

/// An open GGUF file whose header was read and whose tensors all lie inside it.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    file: BufReader<File>,
    content: Content,
}

impl Gguf {
    /// Opens a file, reads its header and proves that it is long enough for its tensors.
    ///
    /// # Errors
    /// - [`Error::NotFound`], [`Error::NotGguf`], [`Error::Truncated`], as named.
    /// - [`Error::Malformed`] if the header does not parse; a cut inside the header looks the same.
    /// - [`Error::Unsupported`] if a tensor has a type that candle does not know.
    pub fn open(path: &Path) -> Result<Self> {
        let io = |source| Error::Io { action: "read", path: path.into(), source };
        let file = match open_plain(OpenOptions::new().read(true), path, Links::Followed) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::NotFound { path: path.into() });
            }
            Err(error) => return Err(io(error)),
        };
        let found = file.metadata().map_err(io)?.len();
        let mut file = BufReader::new(file);

        let mut magic = Vec::new();
        file.by_ref().take(4).read_to_end(&mut magic).map_err(io)?;
        if magic != b"GGUF" {
            let found = format!("\"{}\"", magic.escape_ascii());
            return Err(Error::NotGguf { path: path.into(), found });
        }
        if let Some(reason) = header::unfit(&mut file) {
            return Err(Error::Malformed { path: path.into(), reason });
        }
        file.rewind().map_err(io)?;
        let content = Content::read(&mut file).map_err(|error| {
            let reason = first_line(&error);
            match reason.contains("unknown dtype") {
                true => Error::Unsupported {
                    path: path.into(),
                    what: format!("a quantisation of its own ({reason})"),
                    supported: "F32, F16, BF16, Q4_0 to Q8_0 and Q2_K to Q8_K are",
                },
                false => Error::Malformed { path: path.into(), reason },
            }
        })?;

        // Candle would make a slice of a dangling pointer of it.
        let empty = content.tensor_infos.iter().find(|(_, info)| info.shape.dims().contains(&0));
        if let Some((name, _)) = empty {
            let reason = format!("tensor `{name}` has no elements");
            return Err(Error::Malformed { path: path.into(), reason });
        }
        let expected = content.tensor_infos.values().map(|info| {
            // Sizes from a damaged header may be anything.
            let dims = info.shape.dims().iter();
            let elements = dims.fold(1_u64, |elements, &size| elements.saturating_mul(size as u64));
            let blocks = elements.div_ceil(info.ggml_dtype.block_size() as u64);
            let bytes = blocks.saturating_mul(info.ggml_dtype.type_size() as u64);
            content.tensor_data_offset.saturating_add(info.offset).saturating_add(bytes)
        });
        let expected = expected.max().unwrap_or(0);
        if expected > found {
            return Err(Error::Truncated { path: path.into(), found, expected });
        }
        Ok(Gguf { path: path.into(), file, content })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The error of a file that does not make sense.
    pub fn malformed(&self, reason: impl Into<String>) -> Error {
        Error::Malformed { path: self.path.clone(), reason: reason.into() }
    }

    /// The error of a sound file that asks for too much.
    pub fn unsupported(&self, what: impl Into<String>, supported: &'static str) -> Error {
        Error::Unsupported { path: self.path.clone(), what: what.into(), supported }
    }

    /// The text under a key, `None` where the key is absent.
    ///
    /// # Errors
    /// - [`Error::Malformed`] if the value has another type; so for all keys below.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.value(key, "a text", |value| value.to_string().ok().map(String::as_str))
    }

    /// The non-negative integer under a key, of any width.
    ///
    /// # Errors
    /// - [`Error::Malformed`] if the value has another type or is negative.
    pub fn integer(&self, key: &str) -> Result<Option<usize>> {
        self.value(key, "an integer", integer)
    }

    /// The number under a key.
    ///
    /// # Errors
    /// - [`Error::Malformed`] if the value has another type.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.value(key, "a number", |value| match value {
            Value::F32(x) => Some(f64::from(*x)),
            Value::F64(x) => Some(*x),
            _ => integer(value).map(|x| x as f64),
        })
    }

    /// The truth value under a key.
    ///
    /// # Errors
    /// - [`Error::Malformed`] if the value has another type.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.value(key, "true or false", |value| value.to_bool().ok())
    }

    /// The list of texts under a key.
    ///
    /// # Errors
    /// - [`Error::Malformed`] if the value has another type.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<String>>> {
        self.value(key, "a list of texts", |value| {
            value.to_vec().ok()?.iter().map(|item| item.to_string().ok().cloned()).collect()
        })
    }

    /// The list of numbers under a key.
    ///
    /// # Errors
    /// - [`Error::Malformed`] if the value has another type.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.value(key, "a list of numbers", |value| {
            let number = |item: &Value| match item {
                Value::F32(x) => Some(f64::from(*x)),
                Value::F64(x) => Some(*x),
                item => integer(item).map(|x| x as f64),
            };
            value.to_vec().ok()?.iter().map(number).collect()
        })
    }

    /// A value that must be there.
    ///
    /// # Errors
    /// - [`Error::Malformed`] if `value` is `None`, naming the key.
    pub fn required<T>(&self, key: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| self.malformed(format!("it has no metadata `{key}`")))
    }

    /// True if the file holds a tensor of that name.
    pub fn has(&self, name: &str) -> bool {
        self.content.tensor_infos.contains_key(name)
    }

    /// The shape of a tensor, if the file holds one of that name.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.content.tensor_infos.get(name).map(|info| info.shape.dims())
    }

    /// Reads a tensor as it is stored.
    ///
    /// # Errors
    /// - [`Error::Malformed`] if it is absent or cannot be read.
    pub fn tensor(&mut self, name: &str) -> Result<QTensor> {
        if !self.has(name) {
            return Err(self.malformed(format!("it has no tensor `{name}`")));
        }
        let tensor = self.content.tensor(&mut self.file, name, &Device::Cpu);
        tensor.map_err(|error| self.malformed(format!("tensor `{name}`: {}", first_line(&error))))
    }

    fn value<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.content.metadata.get(key) else { return Ok(None) };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(self.malformed(format!("metadata `{key}` is not {wanted}"))),
        }
    }
}

/// Returns what candle says went wrong, without the backtrace that it adds under `RUST_BACKTRACE`.
fn first_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}

fn integer(value: &Value) -> Option<usize> {
    let integer = match value {
        Value::Bool(_) => return None,
        Value::I8(x) => i64::from(*x),
        Value::I16(x) => i64::from(*x),
        Value::I32(x) => i64::from(*x),
        Value::I64(x) => *x,
        value => return usize::try_from(value.to_u64().ok()?).ok(),
    };
    usize::try_from(integer).ok()
}
