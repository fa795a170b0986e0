//! Artefacts: the data that is derived from a head's weights once, in a file that is mapped when it is used.
//!
//! A safetensors file. Its metadata:
//!
//! | field | holds |
//! | --- | --- |
//! | `format`, `version` | `gumball-head`; the version of this table, 1 |
//! | `head` | the kind of head it is for: `certified` or `clustered` |
//! | `screen` | of a certified head the kind of screen: `int8`. Another kind has tensors of its own |
//! | `clusters`, `capacity` | of a clustered head how many clusters there are, and the most ids of one |
//! | `iterations` | how often rows were assigned to clusters at most; absent if they were not built here |
//! | `vocab`, `width` | the shape of the weights |
//! | `weights.name`, `weights.dtype`, `weights.sha256` | the tensor it was built from: its name, its type (`F32`, `BF16`, `F16`), the SHA-256 of its bytes |
//! | `bias.sha256` | the digest of the bias as f32; absent without one |
//! | `sha256` | the checksum |
//!
//! | tensor of `int8` | type and shape | holds |
//! | --- | --- | --- |
//! | `int8.codes` | I8 `[vocab, padded]` | the codes of each row, padded with zeros to a multiple of 32 |
//! | `int8.scales`, `int8.own`, `int8.code_norms` | F32 `[vocab]` | what the bounds of a row need besides |
//! | `int8.mean` | F32 `[width]` | the mean row |
//! | `int8.unscreened` | U32 `[n]` | the ids that are not screened, ascending |
//!
//! | tensor of a clustered head | type and shape | holds |
//! | --- | --- | --- |
//! | `clusters.ids` | U32 `[clusters, capacity]` | the ids of each cluster; after the ids of a cluster with fewer, 2^32 - 1 |
//! | `clusters.centroids` | F32 `[clusters, width]` | the centroids |
//!
//! The checksum is the SHA-256 of the metadata except for this field, in the order of their names, and of the
//! tensors, in the order of theirs. Each text is followed by a zero byte: name and text of a field; name,
//! type and each number of the shape of a tensor, after which another zero byte and the tensor's bytes
//! stand. The header is the one text that this build writes of the same fields and tensors, with its keys in
//! order: another one is refused as another checksum is, so no byte of the file is without a check, and the
//! same build gives the same bytes.
//!
//! The weights themselves are not in it: the caller brings them, and they must be the ones it was built from.
//! A certified head gives the right tokens only if its bounds are right, so a file is refused if its checksum
//! does not hold. [`Artefact::verify`] checks more: it builds every tensor from the weights again and
//! compares.

mod build;
mod build_clusters;
mod clusters;
mod error;
mod left_over;
mod names;
mod write;

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use gumball_cpu::MappedFile;
use gumball_spec::Row;
use gumball_spec::error::quoted;
use gumball_spec::hex::hex;
use safetensors::tensor::{Metadata, SafeTensors};
use sha2::{Digest, Sha256};

use crate::certified::Certified;
use crate::exact::Exact;
use crate::screen::{Screen, padded_width};
use crate::stored::{Bytes, Stored};
use crate::weights::Weights;
use write::{Part, header, parts, write_screen};

pub use build::{BuildProgress, build};
pub use build_clusters::build_clusters;
pub use clusters::open_clusters;
pub use error::ArtefactError;
pub use names::read_tensors;
pub use write::check_place;

type Result<T> = std::result::Result<T, ArtefactError>;

/// The version of the format.
pub const VERSION: u32 = 1;

const FORMAT: &str = "gumball-head";
const CERTIFIED: &str = "certified";
const CLUSTERED: &str = "clustered";
const INT8: &str = "int8";

/// An artefact that was opened, whose checksum was not looked at yet.
#[derive(Clone)]
pub struct Artefact {
    bytes: Bytes,
    info: ArtefactInfo,
    places: BTreeMap<String, Range<usize>>,
}

/// For which kind of head an artefact is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A certified head with an 8-bit screen.
    Certified,
    /// A clustered head.
    Clustered(ClusterInfo),
}

/// The sizes of a clustered head's clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterInfo {
    /// How many clusters there are.
    pub clusters: usize,
    /// The most ids of a cluster.
    pub capacity: usize,
    /// How often rows were assigned to clusters at most; `None` if these were not built here.
    pub iterations: Option<usize>,
}

impl Kind {
    /// Returns its name: `certified` or `clustered`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Certified => CERTIFIED,
            Kind::Clustered(_) => CLUSTERED,
        }
    }

    /// Returns the kind of screen of a certified head, `int8`.
    #[must_use]
    pub fn screen(self) -> Option<&'static str> {
        match self {
            Kind::Certified => Some(INT8),
            Kind::Clustered(_) => None,
        }
    }
}

/// What an artefact says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArtefactInfo {
    /// The version of the format.
    pub version: u32,
    /// The kind of head it is for.
    pub kind: Kind,
    /// The number of ids.
    pub vocab: usize,
    /// The elements of a hidden state.
    pub width: usize,
    /// The name of the tensor it was built from.
    pub weights_name: String,
    /// That tensor's type: `F32`, `BF16` or `F16`.
    pub weights_dtype: String,
    /// The SHA-256 of that tensor's bytes, in hexadecimal digits.
    pub weights_sha256: String,
    /// That of the bias as f32, if there is one.
    pub bias_sha256: Option<String>,
    /// The checksum.
    pub sha256: String,
    /// The tensors, by name.
    pub tensors: Vec<TensorInfo>,
}

/// The name, type and shape of a tensor of an artefact.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its type, by its name in safetensors.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// How many bytes it has.
    pub bytes: usize,
}

impl std::fmt::Debug for Artefact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Artefact").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Artefact {
    /// Maps a file and reads what it says of itself; of its tensors only names, types and shapes.
    ///
    /// # Errors
    /// - [`ArtefactError::Io`] if the file cannot be mapped.
    /// - The errors of [`Artefact::of`].
    pub fn open(path: &Path) -> Result<Self> {
        let map = MappedFile::open(path).map_err(ArtefactError::io(path))?;
        Self::of(Arc::new(map))
    }

    /// Reads what bytes say of themselves; of their tensors only names, types and shapes.
    ///
    /// # Errors
    /// - [`ArtefactError::NotSafetensors`], [`ArtefactError::NotAHead`], [`ArtefactError::Version`],
    ///   [`ArtefactError::Kind`], [`ArtefactError::Field`] and [`ArtefactError::Tensor`], as they are named.
    /// - [`ArtefactError::BigEndian`] on a machine that stores numbers the other way round.
    pub fn of(bytes: Bytes) -> Result<Self> {
        if cfg!(target_endian = "big") {
            return Err(ArtefactError::BigEndian);
        }
        let all = (*bytes).as_ref();
        let (start, metadata) = read_header(all)?;
        let fields = metadata.metadata().clone().unwrap_or_default();
        let tensors = metadata.tensors();
        let mut places = BTreeMap::new();
        let mut described = Vec::new();
        for (name, tensor) in &tensors {
            let (from, to) = tensor.data_offsets;
            places.insert(name.clone(), start + from..start + to);
            described.push(TensorInfo {
                name: name.clone(),
                dtype: format!("{:?}", tensor.dtype),
                shape: tensor.shape.clone(),
                bytes: to - from,
            });
        }
        described.sort_by(|a, b| a.name.cmp(&b.name));
        let info = ArtefactInfo::of(&fields, described)?;
        let artefact = Self { bytes, info, places };
        artefact.check_tensors()?;
        Ok(artefact)
    }

    /// Returns what it says of itself.
    #[must_use]
    pub fn info(&self) -> &ArtefactInfo {
        &self.info
    }

    /// Checks that the content is unchanged, reading all of it.
    ///
    /// # Errors
    /// - [`ArtefactError::Checksum`] or [`ArtefactError::Header`] if it is not.
    pub fn check(&self) -> Result<()> {
        let all = (*self.bytes).as_ref();
        let fields = self.info.fields();
        let tensors = self.info.tensors.iter().map(|tensor| {
            let data = &all[self.places[&tensor.name].clone()];
            (&*tensor.name, &*tensor.dtype, &*tensor.shape, data)
        });
        let found = checksum(&fields, tensors);
        if found != self.info.sha256 {
            return Err(ArtefactError::Checksum { stated: self.info.sha256.clone(), found });
        }
        let (start, metadata) = read_header(all)?;
        let infos = metadata.tensors();
        let infos = infos.iter().map(|(name, info)| (&**name, *info)).collect();
        if all[..start] != *header(&fields, &found, &infos) {
            return Err(ArtefactError::Header);
        }
        Ok(())
    }

    /// Makes the certified head of weights: its screen lies in the mapped file. All of the file and all of
    /// the weights are read once, to see that the content is unchanged, and that the weights are the ones
    /// it was built from.
    ///
    /// # Errors
    /// - [`ArtefactError::Kind`] if it is of another kind of head.
    /// - [`ArtefactError::Checksum`] or [`ArtefactError::Header`] if the content is not what was written.
    /// - [`ArtefactError::Source`] if the head has another shape, type, weights or bias.
    pub fn certified<'w>(&self, exact: Exact<'w>) -> Result<Certified<'w>> {
        self.expect_head(CERTIFIED)?;
        self.check()?;
        self.check_source(&exact)?;
        let screen = self.screen()?;
        Ok(Certified::with_screen(exact, screen))
    }

    /// Builds every tensor from these weights again, over rayon's threads, and checks that the artefact holds
    /// the same bytes.
    ///
    /// # Errors
    /// - The errors of [`Artefact::certified`].
    /// - [`ArtefactError::Rebuilt`] if something in it is not what the weights give.
    pub fn verify(&self, exact: &Exact<'_>) -> Result<()> {
        self.check()?;
        self.check_source(exact)?;
        if let Kind::Clustered(_) = self.info.kind {
            return self.verify_clusters(exact);
        }
        let screen = Screen::new(exact);
        for Part { name, data, .. } in parts(screen.arrays(), exact) {
            if *self.data(name) != *data {
                return Err(ArtefactError::Rebuilt { name: name.to_owned() });
            }
        }
        Ok(())
    }

    /// Writes the artefact of a certified head to a file, which appears when it is whole. `name`: the name of
    /// the tensor of weights.
    ///
    /// # Errors
    /// - [`ArtefactError::Io`] if it cannot be written.
    /// - [`ArtefactError::BigEndian`] on a machine that stores numbers the other way round.
    pub fn write(certified: &Certified<'_>, name: &str, path: &Path) -> Result<()> {
        let exact = certified.exact();
        write_screen(certified.screen(), exact, &Source::of(exact, name), path)
    }

    /// Returns the bytes of a tensor that was checked to be there.
    fn data(&self, name: &str) -> &[u8] {
        &(*self.bytes).as_ref()[self.places[name].clone()]
    }

    /// Checks that it is for a kind of head.
    fn expect_head(&self, name: &'static str) -> Result<()> {
        if self.info.kind.name() == name {
            return Ok(());
        }
        let found = self.info.kind.name().to_owned();
        Err(ArtefactError::Kind { what: "head", found, known: name })
    }

    fn screen(&self) -> Result<Screen> {
        fn stored<T: bytemuck::Pod>(artefact: &Artefact, name: &str) -> Result<Stored<T>> {
            let place = artefact.places[name].clone();
            Stored::shared(&artefact.bytes, place).ok_or_else(|| ArtefactError::Tensor {
                name: name.to_owned(),
                found: "at an odd address".to_owned(),
                wanted: "aligned, as safetensors writes it".to_owned(),
            })
        }
        let unscreened: Stored<u32> = stored(self, "int8.unscreened")?;
        let vocab = self.info.vocab;
        let ascending = unscreened.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || unscreened.last().is_some_and(|id| *id as usize >= vocab) {
            return Err(ArtefactError::Tensor {
                name: "int8.unscreened".to_owned(),
                found: "another list".to_owned(),
                wanted: format!("ids below {vocab}, ascending"),
            });
        }
        Ok(Screen::of_parts(
            stored(self, "int8.codes")?,
            stored(self, "int8.scales")?,
            stored(self, "int8.own")?,
            stored(self, "int8.code_norms")?,
            stored::<f32>(self, "int8.mean")?.to_vec(),
            unscreened.to_vec(),
        ))
    }

    /// Checks that the tensors of the kind are there, with their types and shapes.
    fn check_tensors(&self) -> Result<()> {
        if let Kind::Clustered(clusters) = self.info.kind {
            return self.check_cluster_tensors(clusters);
        }
        let ArtefactInfo { vocab, width, .. } = self.info;
        let wanted = [
            ("int8.codes", "I8", vec![vocab, padded_width(width)]),
            ("int8.scales", "F32", vec![vocab]),
            ("int8.own", "F32", vec![vocab]),
            ("int8.code_norms", "F32", vec![vocab]),
            ("int8.mean", "F32", vec![width]),
        ];
        let find = |name: &str| self.info.tensors.iter().find(|tensor| tensor.name == name);
        for (name, dtype, shape) in wanted {
            let found = find(name);
            if found.is_none_or(|found| found.dtype != dtype || found.shape != shape) {
                return Err(not_so(name, found, format!("{dtype} of shape {shape:?}")));
            }
        }
        let found = find("int8.unscreened");
        match found {
            Some(TensorInfo { dtype, shape, .. }) if dtype == "U32" && shape.len() == 1 => Ok(()),
            _ => Err(not_so("int8.unscreened", found, "U32 of one dimension".to_owned())),
        }
    }

    fn check_source(&self, exact: &Exact<'_>) -> Result<()> {
        let ArtefactInfo { vocab, width, weights_dtype, weights_sha256, bias_sha256, .. } = &self.info;
        let other = |what, stated: String, found: String| Err(ArtefactError::Source { what, stated, found });
        let source = Source::of_shape(exact);
        let shape = |dtype: &str, vocab, width| format!("type {dtype} and shape [{vocab}, {width}]");
        let (stated, found) =
            (shape(weights_dtype, *vocab, *width), shape(source.dtype, exact.vocab(), exact.width()));
        if stated != found {
            return other("weights", stated, found);
        }
        let source = source.with_digests(exact);
        if source.weights_sha256 != *weights_sha256 {
            return other("weights", format!("SHA-256 {weights_sha256}"), source.weights_sha256);
        }
        if source.bias_sha256 != *bias_sha256 {
            let of = |digest: &Option<String>| {
                digest.as_ref().map_or("none".to_owned(), |digest| format!("SHA-256 {digest}"))
            };
            return other("bias", of(bias_sha256), of(&source.bias_sha256));
        }
        Ok(())
    }
}

/// Returns where the tensors of a file begin, and what its header says, in which each name stands once.
fn read_header(all: &[u8]) -> Result<(usize, Metadata)> {
    let unread = |reason: String| ArtefactError::NotSafetensors { reason };
    let (length, metadata) = SafeTensors::read_metadata(all).map_err(|error| unread(error.to_string()))?;
    let start = size_of::<u64>() + length;
    read_tensors(&all[size_of::<u64>()..start]).map_err(unread)?;
    Ok((start, metadata))
}

fn not_so(name: &str, found: Option<&TensorInfo>, wanted: String) -> ArtefactError {
    let found =
        found.map_or("missing".to_owned(), |found| format!("{} of shape {:?}", found.dtype, found.shape));
    ArtefactError::Tensor { name: name.to_owned(), found, wanted }
}

impl ArtefactInfo {
    fn of(fields: &HashMap<String, String>, tensors: Vec<TensorInfo>) -> Result<Self> {
        if fields.get("format").is_none_or(|format| format != FORMAT) {
            // Files of others have none of these, and an artefact with a damaged byte has most of them.
            if ["sha256", "weights.name", "weights.dtype", "weights.sha256"]
                .iter()
                .all(|of_ours| !fields.contains_key(*of_ours))
            {
                return Err(ArtefactError::NotAHead);
            }
            let found =
                fields.get("format").map_or("nothing".to_owned(), |format| quoted(format.as_bytes(), 40));
            return Err(ArtefactError::Field { field: "format", found, wanted: FORMAT.to_owned() });
        }
        let text = |field: &'static str| {
            fields.get(field).cloned().ok_or_else(|| ArtefactError::Field {
                field,
                found: "nothing".to_owned(),
                wanted: "a text".to_owned(),
            })
        };
        let version = text("version")?;
        if version.parse() != Ok(VERSION) {
            return Err(ArtefactError::Version { found: version, known: VERSION });
        }
        let number = |field: &'static str, most: usize| {
            let text = text(field)?;
            text.parse().ok().filter(|number| (1..=most).contains(number)).ok_or_else(|| {
                ArtefactError::Field { field, found: text, wanted: format!("a number in 1..={most}") }
            })
        };
        let vocab = number("vocab", gumball_spec::MAX_VOCAB)?;
        let unknown = |what, found: String, known| Err(ArtefactError::Kind { what, found, known });
        let kind = match (text("head")?, fields.get("screen")) {
            (head, _) if head == CLUSTERED => {
                let capacity = number("capacity", vocab)?;
                let clusters = number("clusters", vocab)?;
                let fewest = vocab.div_ceil(capacity);
                if clusters < fewest {
                    return Err(ArtefactError::Field {
                        field: "clusters",
                        found: clusters.to_string(),
                        wanted: format!("{fewest} or more, as {vocab} ids need"),
                    });
                }
                let iterations = fields.get("iterations").map(|_| number("iterations", u32::MAX as usize));
                Kind::Clustered(ClusterInfo { clusters, capacity, iterations: iterations.transpose()? })
            }
            (head, _) if head != CERTIFIED => return unknown("head", head, "certified, clustered"),
            (_, Some(screen)) if screen == INT8 => Kind::Certified,
            _ => return unknown("screen", text("screen")?, INT8),
        };
        Ok(Self {
            version: VERSION,
            kind,
            vocab,
            width: number("width", gumball_spec::head::MAX_HIDDEN)?,
            weights_name: text("weights.name")?,
            weights_dtype: text("weights.dtype")?,
            weights_sha256: text("weights.sha256")?,
            bias_sha256: fields.get("bias.sha256").cloned(),
            sha256: text("sha256")?,
            tensors,
        })
    }

    /// Returns the metadata, except for the checksum.
    fn fields(&self) -> BTreeMap<&'static str, String> {
        let mut fields = BTreeMap::from([
            ("format", FORMAT.to_owned()),
            ("version", self.version.to_string()),
            ("head", self.kind.name().to_owned()),
            ("vocab", self.vocab.to_string()),
            ("width", self.width.to_string()),
            ("weights.name", self.weights_name.clone()),
            ("weights.dtype", self.weights_dtype.clone()),
            ("weights.sha256", self.weights_sha256.clone()),
        ]);
        if let Some(screen) = self.kind.screen() {
            fields.insert("screen", screen.to_owned());
        }
        if let Kind::Clustered(ClusterInfo { clusters, capacity, iterations }) = self.kind {
            fields.insert("clusters", clusters.to_string());
            fields.insert("capacity", capacity.to_string());
            iterations.map(|iterations| fields.insert("iterations", iterations.to_string()));
        }
        if let Some(digest) = &self.bias_sha256 {
            fields.insert("bias.sha256", digest.clone());
        }
        fields
    }
}

/// What an artefact is built from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Source {
    name: String,
    dtype: &'static str,
    weights_sha256: String,
    bias_sha256: Option<String>,
}

impl Source {
    fn of(exact: &Exact<'_>, name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::of_shape(exact).with_digests(exact) }
    }

    fn of_shape(exact: &Exact<'_>) -> Self {
        let dtype = match exact.weights() {
            Weights::F32(_) => "F32",
            Weights::Bf16(_) => "BF16",
            Weights::F16(_) => "F16",
        };
        Self { dtype, ..Self::default() }
    }

    fn with_digests(self, exact: &Exact<'_>) -> Self {
        let bias = exact.bias().map(|bias| sha256(bytemuck::cast_slice(bias)));
        Self { weights_sha256: sha256(bytes_of(exact.weights().all())), bias_sha256: bias, ..self }
    }

    fn fields(&self, exact: &Exact<'_>, kind: Kind) -> BTreeMap<&'static str, String> {
        let info = ArtefactInfo {
            version: VERSION,
            kind,
            vocab: exact.vocab(),
            width: exact.width(),
            weights_name: self.name.clone(),
            weights_dtype: self.dtype.to_owned(),
            weights_sha256: self.weights_sha256.clone(),
            bias_sha256: self.bias_sha256.clone(),
            sha256: String::new(),
            tensors: Vec::new(),
        };
        info.fields()
    }
}

/// Returns the checksum of an artefact, as the module's documentation defines it.
fn checksum<'a>(
    fields: &BTreeMap<&'static str, String>,
    tensors: impl Iterator<Item = (&'a str, &'a str, &'a [usize], &'a [u8])>,
) -> String {
    let mut digest = Sha256::new();
    let text = |digest: &mut Sha256, text: &str| {
        digest.update(text);
        digest.update([0]);
    };
    for (field, value) in fields {
        text(&mut digest, field);
        text(&mut digest, value);
    }
    for (name, dtype, shape, data) in tensors {
        text(&mut digest, name);
        text(&mut digest, dtype);
        shape.iter().for_each(|size| text(&mut digest, &size.to_string()));
        digest.update([0]);
        digest.update(data);
    }
    hex(&digest.finalize())
}

/// Returns the bytes of weights.
fn bytes_of(weights: Row<'_>) -> &[u8] {
    match weights {
        Row::F32(all) => bytemuck::cast_slice(all),
        Row::Bf16(all) => bytemuck::cast_slice(all),
        Row::F16(all) => bytemuck::cast_slice(all),
    }
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}
