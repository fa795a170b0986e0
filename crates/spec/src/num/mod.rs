//! The numbers that every place computes alike, bit for bit.
//!
//! Only integer operations and IEEE f32 operations with one rounding each are used (`docs/numerics.md`
//! has the errors and the proofs). A backend writes its own vector form of these and is tested against
//! them over every input.

mod arrival;
mod exp2;
mod fma;
mod log2;
mod order;
mod philox;

pub use arrival::{SWITCH_32, SWITCH_64, exp_of_u32, exp_of_u64};
pub use exp2::{EXP2_COEFFICIENTS, exp2};
pub use fma::fma;
pub use log2::{LOG2_COEFFICIENTS, LOG2_SPLIT, log2, log2_one_plus, log2_parts};
pub use order::{from_ordered_bits, key, key_id, key_logit, ordered_bits};
pub use philox::{PHILOX_M0, PHILOX_M1, PHILOX_W0, PHILOX_W1, Tag, philox4x32_10};

/// `log2(e)` as f32: a logit difference times this over T is an exponent of two (N6).
pub const LOG2_E: f32 = f32::from_bits(0x3FB8_AA3B);

/// `ln(2)` as f64: base-two logarithms become natural ones in logprobs (L3).
pub const LN_2: f64 = f64::from_bits(0x3FE6_2E42_FEFA_39EF);
