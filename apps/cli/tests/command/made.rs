//! GGUF files made for a test.

use std::collections::BTreeMap;
use std::io::{Cursor, Write};

use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::{self, Value};
use gumball_cli::model::{Error, Gguf};

/// Metadata by key.
pub type Metadata = BTreeMap<String, Value>;

/// Returns the bytes of a file.
pub fn bytes(metadata: &Metadata, tensors: &[(String, QTensor)]) -> Vec<u8> {
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut bytes = Cursor::new(Vec::new());
    gguf_file::write(&mut bytes, &metadata, &tensors).expect("the file is written");
    bytes.into_inner()
}

/// Writes a file and opens it.
pub fn open(metadata: &Metadata, tensors: &[(String, QTensor)]) -> Result<Gguf, Error> {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(&bytes(metadata, tensors)).expect("the file is written");
    Gguf::open(file.path())
}
