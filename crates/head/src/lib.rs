//! LM heads: from hidden states to the logits of rows.
//!
//! [`Exact`] computes every logit by the order of adding that rule H1 fixes: the same bits at every level,
//! over any number of threads and in any batch.
//!
//! ```
//! use gumball_head::{Exact, HeadOptions, HostMatrix, Spread, Widened};
//!
//! // Three ids, hidden states of two elements.
//! let weights = [1.0f32, 0.0, 0.0, 1.0, 0.5, 0.5];
//! let head = Exact::new(&weights, 3, 2, HeadOptions::default())?;
//! let states = Widened::of(HostMatrix::new(&[2.0f32, 4.0], 1, 2)?);
//! let mut logits = [0.0; 3];
//! head.logits(&states, Spread::Caller, &mut logits)?;
//! assert_eq!(logits, [2.0, 4.0, 3.0]);
//! # Ok::<(), gumball_spec::Error>(())
//! ```
//!
//! [`Certified`] reads a small copy of the weights and a few rows of their own, where those decide the token.
//!
//! [`Clustered`] reads the weights of the [`Clusters`] of ids whose centroids look likeliest, and is
//! approximate.
//!
//! [`Artefact`] is what such a head derives from its weights, in a file ([`artefact`]).
//!
//! It draws no tokens: `gumball-engine` does, from these logits.
#![forbid(unsafe_code)]

mod spread;
mod states;
mod stored;
mod weights;

mod exact;

mod measure;

mod screen;

mod certified;

mod cluster_build;
mod clusters;
mod grouping;

mod clustered;

pub mod artefact;

pub use artefact::{Artefact, ArtefactError};
pub use certified::{Bounds, Certified};
pub use cluster_build::{ClusterBuild, ClusterProgress};
pub use clustered::{Clustered, ClusteredOptions, Probed, Probes};
pub use clusters::{Clusters, WeightsMut};
pub use exact::{Exact, HeadOptions};
pub use gumball_cpu::{Contest, Level, MappedFile};
pub use gumball_spec::head::{MAX_HIDDEN, Scaling};
pub use gumball_spec::{HostMatrix, Reading, WholeRow};
pub use screen::{ScreenArrays, ScreenedStates};
pub use spread::Spread;
pub use states::Widened;
pub use stored::Bytes;
pub use weights::Weights;
