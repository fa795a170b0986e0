//! Entries: files that hold what a compiler made, each bound to the sources that it was made from.
//!
//! A file has eight bytes that name the layout, a SHA-256, and the value. The digest is that of the key and
//! the value, so a truncated or damaged file and one of another key are not mistaken for an entry.

use std::io::{self, Read, Write};

use gumball_spec::hex::hex;
use lzma_rust2::{DICT_SIZE_MIN, LzmaOptions, LzmaReader, LzmaWriter};
use sha2::{Digest, Sha256};

use crate::driver::arch::Arch;
use crate::driver::nvrtc::OPTIONS;
use crate::programs::kernels::Program;

/// The first bytes of a file; change them whenever its layout changes.
const MAGIC: &[u8; 8] = b"gumball3";

/// The bytes of a SHA-256.
const DIGEST_BYTES: usize = 32;

/// The most bytes of an expanded value, and the most KiB of memory for expanding it.
const MAX_EXPANDED_BYTES: u64 = 64 << 20;
const MAX_MEMORY_KIB: u32 = 64 << 10;

/// What a value was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// What was made, for people who look into a folder.
    name: String,
    /// The digest of everything that the value depends on.
    digest: [u8; DIGEST_BYTES],
}

impl Key {
    /// Returns the key of a value that depends on `text`. The name is part of a file's name.
    pub fn new(name: impl Into<String>, text: impl AsRef<[u8]>) -> Self {
        Self { name: name.into(), digest: Sha256::digest(text).into() }
    }

    /// Returns the key of a program's machine code for an architecture. It does not depend on the compiler's
    /// version, so that machine code is found without a compiler.
    pub fn of(program: Program, arch: Arch) -> Self {
        let text = [&program.digest()[..], format!("{arch} {OPTIONS:?}").as_bytes()].concat();
        Self::new(Self::name_of(program, arch), text)
    }

    /// Returns the name of a program's machine code for an architecture.
    pub fn name_of(program: Program, arch: Arch) -> String {
        format!("{}-{arch}", program.name())
    }

    /// Returns the name of the key's file.
    pub fn file(&self) -> String {
        format!("{}-{}.bin", self.name, hex(&self.digest[..8]))
    }

    /// Returns the digest of this key and a value.
    fn sum(&self, value: &[u8]) -> [u8; DIGEST_BYTES] {
        let key = Sha256::new_with_prefix(&self.name).chain_update([0]).chain_update(self.digest);
        key.chain_update(value).finalize().into()
    }

    /// Returns the file that holds a value.
    pub fn encode(&self, value: &[u8]) -> Vec<u8> {
        [&MAGIC[..], &self.sum(value), value].concat()
    }

    /// Returns whether a file is an entry, of any key and version.
    pub fn is_entry(file: &[u8]) -> bool {
        file.starts_with(b"gumball")
    }

    /// Returns the value that a file holds; `None` if it is damaged, or of another key.
    pub fn decode<'f>(&self, file: &'f [u8]) -> Option<&'f [u8]> {
        let (sum, value) = file.strip_prefix(MAGIC)?.split_first_chunk::<DIGEST_BYTES>()?;
        (*sum == self.sum(value)).then_some(value)
    }
}

/// Compresses a value.
pub(crate) fn compress(value: &[u8]) -> io::Result<Vec<u8>> {
    let mut options = LzmaOptions::with_preset(9);
    // A reader allocates the whole window.
    options.dict_size = u32::try_from(value.len()).map_err(io::Error::other)?.max(DICT_SIZE_MIN);
    let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(value.len() as u64))?;
    writer.write_all(value)?;
    writer.finish()
}

/// Expands a compressed value. Any bytes give a value or an error, within bounded memory.
pub(crate) fn expand(compressed: &[u8]) -> io::Result<Vec<u8>> {
    let reader = LzmaReader::new_mem_limit(compressed, MAX_MEMORY_KIB, None)?;
    let mut value = Vec::new();
    reader.take(MAX_EXPANDED_BYTES).read_to_end(&mut value)?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_returns_from_its_file() {
        let value: Vec<u8> = (0..100_000_u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
        let compressed = compress(&value).unwrap();
        assert!(compressed.len() < value.len() / 4);
        assert_eq!(expand(&compressed).unwrap(), value);
        let key = Key::new("a", "text");
        assert_eq!(key.decode(&key.encode(&compressed)), Some(&compressed[..]));
        assert_eq!(Key::new("a", "other").decode(&key.encode(&value)), None);
        assert_eq!(Key::new("b", "text").decode(&key.encode(&value)), None);
    }

    #[test]
    fn damaged_bytes_expand_to_anything_or_an_error_but_within_bounds() {
        let whole = compress(&[7; 5000]).unwrap();
        for length in 0..whole.len() {
            let _ = expand(&whole[..length]);
        }
        for place in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[place] ^= 1 << bit;
                let _ = expand(&bytes);
            }
        }
        assert!(expand(&[]).is_err());
        assert!(expand(&[0xFF; 64]).is_err());
    }

    #[test]
    fn programs_and_architectures_have_keys_of_their_own() {
        let keys = Program::all().flat_map(|program| Arch::CARRIED.map(|arch| Key::of(program, arch).file()));
        let mut files: Vec<String> = keys.collect();
        let count = files.len();
        files.sort_unstable();
        files.dedup();
        assert_eq!(files.len(), count);
        assert_eq!(Key::of(Program::all().next().unwrap(), Arch::OLDEST).name, "history_edits-sm_80");
    }
}
