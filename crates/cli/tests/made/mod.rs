//! GGUF files made for a test.

use std::collections::BTreeMap;
use std::fs::File;

use candle_core::quantized::QTensor;
use candle_core::quantized::gguf_file::{self, Value};
use gumball_cli::model::{Error, Gguf};

/// Metadata by key.
pub type Metadata = BTreeMap<String, Value>;

/// Writes a file and opens it.
pub fn open(metadata: &Metadata, tensors: &[(String, QTensor)]) -> Result<Gguf, Error> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("made.gguf");
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut file = File::create(&path).expect("a file");
    gguf_file::write(&mut file, &metadata, &tensors).expect("the file is written");
    Gguf::open(&path)
}
