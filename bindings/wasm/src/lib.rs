//! The npm package: the engine for JavaScript, in browsers and in Node.
//!
//! | file | holds |
//! | --- | --- |
//! | `sampler`, `pool`, `verify`, `operators`, `parameters`, `inspect` | what JavaScript calls |
//! | `values`, `rows`, `params`, `state`, `step`, `hooks` | arguments |
//! | `outputs`, `error` | results and exceptions |
//! | `types.ts`, `whole.ts` | the types of arguments and results: of samplers, and of all other classes |
//!
//! Without the feature `whole` the module has the sampler alone. `ci/wasm package` makes the package, with
//! both modules. Everything that a call takes is checked here or by the engine before anything is drawn. The
//! tokens equal every other surface's, bit for bit.
#![forbid(unsafe_code)]
#![cfg_attr(not(feature = "whole"), expect(dead_code, reason = "pools and operators use it"))]

mod error;
mod hooks;
#[cfg(feature = "whole")]
mod inspect;
#[cfg(feature = "whole")]
mod marks;
#[cfg(feature = "whole")]
mod operators;
#[cfg(feature = "whole")]
mod outputs;
#[cfg(feature = "whole")]
mod parameters;
mod params;
#[cfg(feature = "whole")]
mod pool;
mod rows;
mod sampler;
mod state;
#[cfg(feature = "whole")]
mod step;
mod values;
#[cfg(feature = "whole")]
mod verify;

use wasm_bindgen::prelude::*;

#[cfg(feature = "whole")]
pub use pool::Pool;
pub use sampler::Sampler;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = include_str!("types.ts");

#[cfg(feature = "whole")]
#[wasm_bindgen(typescript_custom_section)]
const TYPES_OF_THE_WHOLE: &str = include_str!("whole.ts");

/// The status of a row, as bits.
#[wasm_bindgen]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// A logit that bans and bitmask allow was NaN; it counted as -Infinity.
    NAN = 1,
    /// A logit that bans and bitmask allow was Infinity; it counted as the largest f32.
    INF = 2,
    /// No token was above -Infinity.
    EMPTY = 4,
    /// The token was forced by the end of its request's section.
    SECTION = 32,
    /// Bans or bitmask forbid the token that the end of a section or of a loop forced.
    FORBIDDEN = 64,
    /// A loop was found at the row, or the token was forced because of one.
    LOOP = 128,
    /// The caller forced the token.
    FORCED = 256,
    /// The row draws by the words of its request's watermark.
    MARKED = 512,
}

/// Returns the version of the package.
#[wasm_bindgen]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

#[wasm_bindgen(start)]
fn start() {
    error::panics_throw();
}
