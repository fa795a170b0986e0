//! The stages over SIMD lanes, chosen at run time, one row at a time.
//!
//! A [`Prepared`] request and its [`History`] meet a row in a [`Workspace`], which carries the row through
//! the stages: edit, survey, filter, draw, logprobs. The results equal the oracle of `gumball-spec`
//! bit for bit at every [`Level`].
#![deny(unsafe_op_in_unsafe_fn)]

mod contenders;
mod cut;
mod draft;
mod draw;
mod draws;
mod edit;
pub mod files;
mod filter;
mod float_env;
mod head;
mod history;
mod lanes;
mod level;
mod logprobs;
mod mapped;
mod mass;
mod measure;
mod num;
mod outputs;
mod part_row;
mod parts;
mod prepared;
pub mod private_files;
mod radius;
mod section;
mod shard;
mod survey;
mod task;
mod tile;
mod tiles;
mod verify;
mod workspace;

pub use contenders::Contest;
pub use draws::Draw;
pub use float_env::{FloatEnv, in_modes_of_a_host};
pub use head::{HeadLanes, ScreenRows, ScreenState, padded_codes, padded_width, widen};
pub use history::{Entry, History};
pub use level::Level;
pub use logprobs::gradient::Derivatives;
pub use mapped::MappedFile;
pub use outputs::{Output, RowMut, Written};
pub use part_row::PartRow;
pub use parts::{Moments, Query, RowSums, Winner};
pub use prepared::Prepared;
pub use shard::{About, Response, Shard, has_raw_row};
pub use task::Task;
pub use tile::TileSum;
pub use verify::Judged;
pub use workspace::{Chosen, Workspace};
