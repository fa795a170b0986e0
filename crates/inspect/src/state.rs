//! The request that a row is drawn for: prompt and output so far, position, mask.

use std::path::{Path, PathBuf};

use clap::Args;
use gumball_spec::{Request, SamplingParams};

use crate::logits::{Element, Header};
use crate::output::without_middle;
use crate::reading::Numbers;
use crate::sampling::Ids;
use crate::{Error, Result, reading};

/// The state of a request at the rows of a file.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Request state")]
pub struct StateArgs {
    /// The ids of the prompt
    #[arg(long, value_name = "IDS")]
    pub prompt_ids: Option<Ids>,
    /// The ids generated so far
    #[arg(long, value_name = "IDS")]
    pub history: Option<Ids>,
    /// The number of tokens before the drawn one; as many as prompt and history have if absent
    #[arg(long, value_name = "N")]
    pub position: Option<u32>,
    /// A grammar bitmask: .npy of bool (one per id) or of 32-bit words, or raw little-endian words
    #[arg(long, value_name = "FILE")]
    pub mask: Option<PathBuf>,
}

/// The state, read and resolved.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The ids of the prompt.
    pub prompt: Vec<u32>,
    /// The ids generated so far.
    pub output: Vec<u32>,
    /// The number of tokens before the drawn one.
    pub position: u32,
    /// The words of the bitmask.
    pub mask: Option<Vec<u32>>,
}

impl StateArgs {
    /// Returns the first flag that was given, if one was.
    #[must_use]
    pub fn given(&self) -> Option<&'static str> {
        let flags = [
            ("--prompt-ids", self.prompt_ids.is_some()),
            ("--history", self.history.is_some()),
            ("--position", self.position.is_some()),
            ("--mask", self.mask.is_some()),
        ];
        flags.into_iter().find(|(_, given)| *given).map(|(flag, _)| flag)
    }

    /// Reads the state.
    ///
    /// # Errors
    /// - [`Error::File`] if the mask cannot be read.
    pub fn read(&self) -> Result<State> {
        let prompt = self.prompt_ids.clone().unwrap_or_default().0;
        let output = self.history.clone().unwrap_or_default().0;
        let position = self.position.unwrap_or((prompt.len() + output.len()) as u32);
        let mask = self.mask.as_deref().map(read_mask).transpose()?;
        Ok(State { prompt, output, position, mask })
    }
}

impl State {
    /// Returns the request at this state.
    #[must_use]
    pub fn request<'a>(&'a self, params: &'a SamplingParams, seed: u64, draw: u32) -> Request<'a> {
        Request {
            output: &self.output,
            position: self.position,
            draw,
            mask: self.mask.as_deref(),
            ..Request::new(params, &self.prompt, seed)
        }
    }
}

/// What to save where an array is to be a mask.
const MASK: &str = "save bool, one for each id, or words of 32 bits (numpy.uint32)";

/// The most bytes of a mask: more than the largest vocabulary has use for.
const LONGEST_MASK_BYTES: u64 = 4 * gumball_spec::MAX_VOCAB as u64;

/// Reads the words of a bitmask.
fn read_mask(path: &Path) -> Result<Vec<u32>> {
    let mut masks = read_masks(path, 1)?;
    Ok(masks.pop().expect("one line"))
}

/// Reads the words of at most `most` bitmasks: .npy of shape (ids), (words) or (masks, ids or words), or raw
/// little-endian words of one mask.
///
/// # Errors
/// - [`Error::File`] for a file that holds no masks, or more of them.
pub fn read_masks(path: &Path, most: usize) -> Result<Vec<Vec<u32>>> {
    masks_of(path, Numbers::open(path)?, most).map_err(|reason| Error::file(reading::name(path), reason))
}

fn masks_of(path: &Path, mut file: Numbers, most: usize) -> Result<Vec<Vec<u32>>, String> {
    let words = |bytes: &[u8]| bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    let (element, lines, start, bytes) = if path.extension().is_some_and(|kind| kind == "npy") {
        let Header { element, shape, start, bytes } = Header::read(&mut file, MASK)?;
        let lines = shape.iter().rev().skip(1).product::<usize>();
        if lines != 1 && !(most > 1 && shape.len() == 2 && (1..=most).contains(&lines)) {
            let shape = without_middle(&format!("{shape:?}"), 80);
            let wanted = match most {
                1 => "a mask is one line of ids or words for all rows".to_owned(),
                _ => format!("masks are 1 to {most} lines of ids or words"),
            };
            return Err(format!("{wanted}, but its shape is {shape}"));
        }
        (element, lines, start, bytes)
    } else {
        (Element::Word, 1, 0, file.known_bytes().map_or_else(|| file.bytes(), Ok)?)
    };
    let longest = LONGEST_MASK_BYTES * lines as u64;
    if bytes > longest {
        return Err(format!("a mask has at most {LONGEST_MASK_BYTES} bytes, but this one has {bytes}"));
    }
    let mut masks = Vec::new();
    file.read(start, bytes, &mut masks)?;
    let each = masks.len() / lines;
    match element {
        _ if masks.len() as u64 != bytes => Err("the file is cut short; save it again".to_owned()),
        Element::Word if !bytes.is_multiple_of(4) => {
            Err(format!("{bytes} bytes are no whole number of 32-bit words"))
        }
        _ if each == 0 => Ok(vec![Vec::new(); lines]),
        Element::Word => Ok(masks.chunks(each).map(words).collect()),
        Element::Bool => Ok(masks.chunks(each).map(pack).collect()),
        _ => Err(format!("a mask holds no logits; {MASK}")),
    }
}

/// Packs one byte per id into bits: id `i` is bit `i % 32` of word `i / 32`.
fn pack(allowed: &[u8]) -> Vec<u32> {
    let word = |chunk: &[u8]| {
        chunk.iter().enumerate().fold(0, |word, (bit, byte)| word | u32::from(*byte != 0) << bit)
    };
    allowed.chunks(32).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truth_values_pack_from_the_lowest_bit() {
        let mut allowed = [0u8; 40];
        allowed[0] = 1;
        allowed[33] = 1;
        assert_eq!(pack(&allowed), [1, 2]);
    }
}
