//! Logits from a tensor of a `.safetensors` file.

use gumball_engine::head::artefact::read_tensors;
use gumball_engine::unstable::shown;
use safetensors::Dtype;

use super::Data;
use super::chosen::Layout;
use crate::output::without_middle;
use crate::reading::Numbers;

/// The longest header that safetensors allows.
const LONGEST_HEADER_BYTES: u64 = 100_000_000;

/// Finds one tensor by the file's header: the named one, or the only one.
pub(super) fn find(file: &mut Numbers, name: Option<&str>) -> Result<Layout, String> {
    let whole = |reason: &str| {
        let reason = without_middle(reason, 200);
        format!("no whole .safetensors file ({reason}); save or download it again")
    };
    // The length of the header, and the brace that it begins with.
    let start = file.head(9)?;
    let Some((length, b"{")) = start.split_first_chunk::<8>() else {
        return Err(whole("it has no header"));
    };
    let length = u64::from_le_bytes(*length);
    if length > LONGEST_HEADER_BYTES {
        return Err(whole(&format!("its header is to have {length} bytes")));
    }
    let mut header = Vec::new();
    file.read(8, length, &mut header)?;
    if header.len() as u64 != length {
        return Err(whole("it ends inside its header"));
    }
    let tensors = read_tensors(&header).map_err(|reason| whole(&reason))?;
    let start = 8 + length;
    if file.known_bytes().is_some_and(|bytes| bytes != start + tensors.data_len() as u64) {
        return Err(whole("it has another length than its header says"));
    }
    let infos = tensors.tensors();
    let names: Vec<&str> = infos.keys().map(String::as_str).collect();
    let name = match (name, names.as_slice()) {
        (_, []) => return Err("the file holds no tensors; save the logits as one".to_owned()),
        (Some(name), _) => name,
        (None, [only]) => only,
        (None, _) => return Err(format!("the file holds several tensors; add --tensor {}", list(&names))),
    };
    let tensor = infos
        .get(name)
        .ok_or_else(|| format!("there is no tensor \"{}\"; pass --tensor {}", shown(name), list(&names)))?;
    let data = match tensor.dtype {
        Dtype::F32 => Data::F32(Vec::new()),
        Dtype::BF16 => Data::Bf16(Vec::new()),
        Dtype::F16 => Data::F16(Vec::new()),
        other => return Err(format!("tensor \"{}\" is {other:?}; logits are F32, BF16 or F16", shown(name))),
    };
    Ok(Layout { data, shape: tensor.shape.clone(), start: start + tensor.data_offsets.0 as u64 })
}

/// Lists some names, for a message.
fn list(names: &[&str]) -> String {
    let mut names = names.to_vec();
    names.sort_unstable();
    let first: Vec<String> = names.iter().take(8).map(|name| shown(name)).collect();
    let first = first.join(", ");
    let more = names.len().saturating_sub(8);
    match more {
        0 => format!("NAME, one of: {first}"),
        more => format!("NAME, one of: {first} and {more} more"),
    }
}
