//! The subcommands, one file each: what it takes, what it does, what it writes. `sample` and `explore`
//! are in `gumball-inspect`.

pub mod check;
pub mod doctor;
pub mod generate;
pub mod head;
pub mod head_check;
pub mod inspect;
pub mod kernels;
