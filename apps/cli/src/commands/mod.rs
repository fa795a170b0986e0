//! The subcommands, one file each, with its arguments, its work and its output. `sample`, `detect` and
//! `explore` are in `gumball-inspect`.

pub mod check;
pub mod doctor;
pub mod generate;
pub mod head;
pub mod head_check;
pub mod inspect;
pub mod kernels;
pub mod verify_receipt;
