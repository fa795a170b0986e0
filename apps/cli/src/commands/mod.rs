//! The subcommands, one file each, with its arguments, its work and its output. `sample` and
//! `detect` are in `gumball-inspect`, and so is `explore` without a model.

pub mod check;
pub mod doctor;
pub mod explore;
pub mod generate;
pub mod head;
pub mod head_check;
pub mod inspect;
pub mod kernels;
pub mod verify_receipt;
