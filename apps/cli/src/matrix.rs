//! Reads the output matrix of a model, from which the artefact of a head is built: from a GGUF file as f32,
//! from a safetensors file in the type that the file has.

use std::fs::OpenOptions;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use gumball_engine::Level;
use gumball_engine::head::artefact::read_tensors;
use gumball_engine::head::{Exact, HeadOptions, MappedFile, Weights};
use gumball_engine::unstable::files::{Links, open_plain};
use gumball_engine::unstable::shown;
use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};

use crate::logits::elements;
use crate::model::{Gguf, HeadMatrix, Llama};
use crate::{Error, Result};

/// Names of the output matrix in safetensors files of models, and of the embedding that models without one
/// use in its place, in the order in which they are looked for.
const NAMES: [&str; 5] = [
    "lm_head.weight",
    "model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "transformer.wte.weight",
    "gpt_neox.embed_in.weight",
];

/// A model's output matrix.
#[derive(Debug)]
pub struct OutputMatrix {
    /// The tensor's name in the file.
    pub name: String,
    /// Ids.
    pub vocab: usize,
    /// Elements of a hidden state.
    pub width: usize,
    data: Data,
    bias: Option<Vec<f32>>,
}

#[derive(Debug)]
enum Data {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
    Mapped { file: MappedFile, place: Range<usize>, dtype: Dtype },
}

impl OutputMatrix {
    /// Reads the matrix of a file, by the tensor's name or by the names that models give it.
    ///
    /// # Errors
    /// [`Error::File`] or [`Error::Model`] for a file that cannot be read, or has no such matrix.
    pub fn load(path: &Path, tensor: Option<&str>) -> Result<Self> {
        let mut magic = Vec::new();
        let opened = open_plain(OpenOptions::new().read(true), path, Links::Followed)
            .and_then(|file| file.take(4).read_to_end(&mut magic));
        opened.map_err(|error| Error::io(path, &error))?;
        if magic == b"GGUF" {
            if tensor.is_some() {
                let reason =
                    "--tensor names a tensor of a safetensors file; a GGUF file says itself which one it is";
                return Err(Error::Usage(reason.to_owned()));
            }
            return Self::of_gguf(path);
        }
        Self::of_safetensors(path, tensor)
    }

    fn of_gguf(path: &Path) -> Result<Self> {
        let HeadMatrix { name, weights, vocab, width, bias } = Llama::output_matrix(&mut Gguf::open(path)?)?;
        Ok(Self { name, vocab, width, data: Data::F32(weights), bias })
    }

    fn of_safetensors(path: &Path, wanted: Option<&str>) -> Result<Self> {
        let refuse = |reason: String| Error::file(path, reason);
        let file = MappedFile::open(path).map_err(|error| Error::io(path, &error))?;
        let all = file.as_ref();
        let unread =
            |error| refuse(format!("neither GGUF nor whole safetensors ({error}); download it again"));
        let (length, _) = SafeTensors::read_metadata(all).map_err(unread)?;
        read_tensors(&all[8..8 + length]).map_err(|reason| refuse(format!("{reason}; download it again")))?;
        let tensors = SafeTensors::deserialize(all).map_err(unread)?;
        let name = match wanted {
            Some(name) => name.to_owned(),
            None => {
                let found = NAMES.into_iter().find(|name| tensors.tensor(name).is_ok());
                let found = found.ok_or_else(|| {
                    refuse(format!("it has none of {}; name its output matrix by --tensor", NAMES.join(", ")))
                });
                found?.to_owned()
            }
        };
        let tensor =
            tensors.tensor(&name).map_err(|_| refuse(format!("it has no tensor \"{}\"", shown(&name))))?;
        let &[vocab, width] = tensor.shape() else {
            let shape = tensor.shape();
            return Err(refuse(format!(
                "tensor \"{}\" has shape {shape:?}, but must be [vocab, hidden]",
                shown(&name)
            )));
        };
        let dtype = tensor.dtype();
        if !matches!(dtype, Dtype::F32 | Dtype::BF16 | Dtype::F16) {
            return Err(refuse(format!(
                "tensor \"{}\" is {dtype:?}, but must be F32, BF16 or F16",
                shown(&name)
            )));
        }
        let bias = name.strip_suffix("weight").map(|stem| format!("{stem}bias"));
        let bias = bias.and_then(|bias| tensors.tensor(&bias).ok()).filter(|bias| bias.shape() == [vocab]);
        let bias = bias.map(|bias| floats(bias.dtype(), bias.data())).transpose().map_err(&refuse)?;
        let data = tensor.data();
        let start = data.as_ptr() as usize - all.as_ptr() as usize;
        let place = start..start + data.len();
        let aligned = match dtype {
            Dtype::F32 => data.as_ptr().cast::<f32>().is_aligned(),
            _ => data.as_ptr().cast::<u16>().is_aligned(),
        };
        let data = match dtype {
            _ if aligned => Data::Mapped { file, place, dtype },
            Dtype::F32 => Data::F32(elements(data)),
            Dtype::BF16 => Data::Bf16(elements(data)),
            _ => Data::F16(elements(data)),
        };
        Ok(Self { name, vocab, width, data, bias })
    }

    /// Returns the exact head of it.
    ///
    /// # Errors
    /// A size outside its range.
    pub fn exact(&self, level: Option<Level>) -> Result<Exact<'_>> {
        let weights: Weights<'_> = match &self.data {
            Data::F32(all) => all.into(),
            Data::Bf16(all) => all.into(),
            Data::F16(all) => all.into(),
            Data::Mapped { file, place, dtype } => {
                let bytes = &file.as_ref()[place.clone()];
                match dtype {
                    Dtype::F32 => bytemuck::cast_slice::<u8, f32>(bytes).into(),
                    Dtype::BF16 => bytemuck::cast_slice::<u8, bf16>(bytes).into(),
                    _ => bytemuck::cast_slice::<u8, f16>(bytes).into(),
                }
            }
        };
        let bias = self.bias.as_deref().map(Into::into);
        Ok(Exact::new(
            weights,
            self.vocab,
            self.width,
            HeadOptions { bias, level, ..HeadOptions::default() },
        )?)
    }
}

fn floats(dtype: Dtype, bytes: &[u8]) -> Result<Vec<f32>, String> {
    match dtype {
        Dtype::F32 => Ok(elements(bytes)),
        Dtype::BF16 => Ok(elements::<bf16>(bytes).into_iter().map(bf16::to_f32).collect()),
        Dtype::F16 => Ok(elements::<f16>(bytes).into_iter().map(f16::to_f32).collect()),
        other => Err(format!("its bias is {other:?}, but must be F32, BF16 or F16")),
    }
}
