//! What can be wrong with an artefact, in words that say what to do.

use std::io;
use std::path::PathBuf;

/// Why an artefact cannot be written, read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArtefactError {
    /// The system refuses a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// The bytes are no whole safetensors file.
    #[error("no whole safetensors file ({reason}); build it again")]
    NotSafetensors {
        /// What its reader says.
        reason: String,
    },
    /// A safetensors file, but of something else.
    #[error(
        "a safetensors file, but no artefact of a head: its metadata have no `format` of `gumball-head`; \
         `gumball head build` writes one, with --clusters FILE of clusters that it holds"
    )]
    NotAHead,
    /// Written by another version of the format.
    #[error("its format has version {found}, and this build reads version {known}; build it again")]
    Version {
        /// Its version.
        found: String,
        /// The version that is read here.
        known: u32,
    },
    /// A kind of head or of screen that this build does not know.
    #[error("it holds a {what} of kind `{found}`, and this build knows {known}")]
    Kind {
        /// `head` or `screen`.
        what: &'static str,
        /// Its name.
        found: String,
        /// The names that are known.
        known: &'static str,
    },
    /// A field of the metadata that is missing or makes no sense.
    #[error("its metadata have {found} for `{field}`, but must have {wanted}; build it again")]
    Field {
        /// The field.
        field: &'static str,
        /// What stands there.
        found: String,
        /// What should.
        wanted: String,
    },
    /// A tensor that is missing, or has another type or shape.
    #[error("its tensor `{name}` is {found}, but must be {wanted}; build it again")]
    Tensor {
        /// The tensor.
        name: String,
        /// The value that it has.
        found: String,
        /// The value that it must have.
        wanted: String,
    },
    /// A tensor of clusters that somebody else built is missing, or has another type or shape.
    #[error("its tensor `{name}` is {found}, but must be {wanted}")]
    Given {
        /// The tensor.
        name: &'static str,
        /// The value that it has.
        found: String,
        /// How to write it.
        wanted: String,
    },
    /// The content is not what was written.
    #[error(
        "its content has the SHA-256 {found}, but was written with {stated}: the file was damaged or changed; build it again"
    )]
    Checksum {
        /// The digest in the metadata.
        stated: String,
        /// The digest of the content.
        found: String,
    },
    /// The header is not as it was written.
    #[error("its header is not the text that was written: the file was damaged or changed; build it again")]
    Header,
    /// It was built from other weights or another bias.
    #[error(
        "it is of another head: the {what} it was built from: {stated}; of this head: {found}; build it from this model"
    )]
    Source {
        /// `weights` or `bias`.
        what: &'static str,
        /// The SHA-256, type or shape that the metadata say.
        stated: String,
        /// That of the head.
        found: String,
    },
    /// A tensor of the artefact differs from the one that the weights give.
    #[error("its tensor `{name}` is not what these weights give; build it again")]
    Rebuilt {
        /// The tensor.
        name: String,
    },
    /// The clusters that it holds, or that are to be built, are no clusters of this head.
    #[error("no clusters of this head: {0}")]
    Clusters(#[from] gumball_spec::Error),
    /// The caller asked to stop; the finished part is kept.
    #[error("interrupted; the same call goes on where it stopped")]
    Interrupted,
    /// This machine stores numbers the other way round.
    #[error("artefacts are for little-endian machines")]
    BigEndian,
}

impl ArtefactError {
    /// Says of which file an error of the system is.
    pub(crate) fn io(path: &std::path::Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        |source| Self::Io { path, source }
    }
}
