//! Writing an artefact.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use gumball_cpu::files::{self, NewFile};
use safetensors::tensor::{Dtype, TensorInfo};
use serde::Serialize;

use super::{ArtefactError, Kind, Result, Source, checksum, left_over};
use crate::exact::Exact;
use crate::screen::{ScreenArrays, padded_width};

/// A tensor to be written.
pub(super) struct Part<'a> {
    pub(super) name: &'static str,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) data: &'a [u8],
}

/// Checks that an artefact can be built at a path, before there is one: only a plain file or nothing lies
/// there, and beside it only the `.part` file of a build or nothing.
///
/// # Errors
/// - [`ArtefactError::Io`] if it cannot.
pub fn check_place(path: &Path) -> Result<()> {
    files::check_place(path).map_err(ArtefactError::io(path))?;
    let part = left_over::place(path);
    left_over::check(&part).map_err(ArtefactError::io(&part))
}

/// Returns the tensors of a screen.
pub(super) fn parts<'a>(arrays: ScreenArrays<'a>, exact: &Exact<'_>) -> [Part<'a>; 6] {
    let (vocab, width) = (exact.vocab(), exact.width());
    let floats = |name, data: &'a [f32]| Part {
        name,
        dtype: Dtype::F32,
        shape: vec![data.len()],
        data: bytemuck::cast_slice(data),
    };
    [
        Part {
            name: "int8.codes",
            dtype: Dtype::I8,
            shape: vec![vocab, padded_width(width)],
            data: bytemuck::cast_slice(arrays.codes),
        },
        floats("int8.scales", arrays.scales),
        floats("int8.own", arrays.own),
        floats("int8.code_norms", arrays.code_norms),
        floats("int8.mean", arrays.mean),
        Part {
            name: "int8.unscreened",
            dtype: Dtype::U32,
            shape: vec![arrays.unscreened.len()],
            data: bytemuck::cast_slice(arrays.unscreened),
        },
    ]
}

/// Writes the artefact of a screen.
pub(super) fn write_screen(
    screen: ScreenArrays<'_>,
    exact: &Exact<'_>,
    source: &Source,
    path: &Path,
) -> Result<()> {
    write(&source.fields(exact, Kind::Certified), parts(screen, exact).into(), path)
}

/// Writes an artefact of some tensors, which appears when it is whole.
pub(super) fn write(
    fields: &BTreeMap<&'static str, String>,
    mut tensors: Vec<Part<'_>>,
    path: &Path,
) -> Result<()> {
    if cfg!(target_endian = "big") {
        return Err(ArtefactError::BigEndian);
    }
    let mut file = NewFile::beside(path).map_err(ArtefactError::io(path))?;
    tensors.sort_by_key(|part| part.name);
    let sum = {
        let dtypes: Vec<String> = tensors.iter().map(|part| format!("{:?}", part.dtype)).collect();
        checksum(
            fields,
            tensors.iter().zip(&dtypes).map(|(part, dtype)| (part.name, &**dtype, &*part.shape, part.data)),
        )
    };
    // As they follow the header: the widest elements first, so that each is aligned.
    tensors.sort_by_key(|part| (Reverse(part.dtype), part.name));
    let mut end = 0;
    let infos = tensors.iter().map(|part| {
        let start = end;
        end += part.data.len();
        let (dtype, shape) = (part.dtype, part.shape.clone());
        (part.name, TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let infos: Vec<_> = infos.collect();
    let header = header(fields, &sum, &infos.iter().map(|(name, info)| (*name, info)).collect());
    let mut pieces = [&header[..]].into_iter().chain(tensors.iter().map(|part| part.data));
    let written = pieces.try_for_each(|bytes| file.write_all(bytes)).and_then(|()| file.keep());
    written.map_err(ArtefactError::io(path))
}

/// Returns the length and the header of an artefact's file: one text for the same fields, checksum and
/// tensors.
pub(super) fn header(
    fields: &BTreeMap<&'static str, String>,
    sum: &str,
    tensors: &BTreeMap<&str, &TensorInfo>,
) -> Vec<u8> {
    let mut metadata: BTreeMap<&str, &str> = fields.iter().map(|(field, text)| (*field, &**text)).collect();
    metadata.insert("sha256", sum);
    let header = Header { metadata, tensors };
    let mut bytes = serde_json::to_vec(&header).expect("plain data");
    bytes.resize(bytes.len().next_multiple_of(size_of::<u64>()), b' ');
    [&(bytes.len() as u64).to_le_bytes(), &bytes[..]].concat()
}

/// A header, its keys in order.
#[derive(Serialize)]
struct Header<'a> {
    #[serde(rename = "__metadata__")]
    metadata: BTreeMap<&'a str, &'a str>,
    #[serde(flatten)]
    tensors: &'a BTreeMap<&'a str, &'a TensorInfo>,
}
