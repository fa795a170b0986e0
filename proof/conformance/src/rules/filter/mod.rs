//! The rules of temperature and filters: by hand one by one and together, and at random against f64.

pub mod agreement;
pub mod chains;
pub mod intervals;
pub mod prefixes;
pub mod temperature;
