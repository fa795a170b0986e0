//! Logits from a tensor of a `.safetensors` file.

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};

use super::{Data, elements};

/// Reads one tensor: the named one, or the only one. Returns its logits and shape.
pub(super) fn read(file: &[u8], name: Option<&str>) -> Result<(Data, Vec<usize>), String> {
    let tensors = SafeTensors::deserialize(file)
        .map_err(|error| format!("no whole .safetensors file ({error}); save or download it again"))?;
    let names = tensors.names();
    let name = match (name, names.as_slice()) {
        (_, []) => return Err("the file holds no tensors; save the logits as one".to_owned()),
        (Some(name), _) => name,
        (None, [only]) => only,
        (None, _) => return Err(format!("the file holds several tensors; add --tensor {}", list(&names))),
    };
    let tensor = tensors
        .tensor(name)
        .map_err(|_| format!("there is no tensor {name:?}; pass --tensor {}", list(&names)))?;
    let data = match tensor.dtype() {
        Dtype::F32 => Data::F32(elements(tensor.data())),
        Dtype::BF16 => Data::Bf16(elements::<bf16>(tensor.data())),
        Dtype::F16 => Data::F16(elements::<f16>(tensor.data())),
        other => return Err(format!("tensor {name:?} is {other:?}; logits are F32, BF16 or F16")),
    };
    Ok((data, tensor.shape().to_vec()))
}

/// Lists some names, for a message.
fn list(names: &[&str]) -> String {
    let mut names = names.to_vec();
    names.sort_unstable();
    let shown = names[..names.len().min(8)].join(", ");
    let more = names.len().saturating_sub(8);
    match more {
        0 => format!("NAME, one of: {shown}"),
        more => format!("NAME, one of: {shown} and {more} more"),
    }
}
