//! The goal of a search.

use crate::mass::Total;

/// The amount that a prefix shall reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// A number of tokens.
    Count(usize),
    /// A mass of the set that was weighed last.
    Mass(u64),
}

impl Goal {
    /// Returns how much of a total counts.
    pub fn amount(self, total: Total) -> f64 {
        match self {
            Goal::Count(_) => total.count as f64,
            Goal::Mass(_) => total.mass as f64,
        }
    }

    /// Returns the amount that is to be reached.
    pub fn wanted(self) -> f64 {
        match self {
            Goal::Count(count) => count as f64,
            Goal::Mass(mass) => mass as f64,
        }
    }

    /// Returns whether a total reaches it.
    pub fn is_reached(self, total: Total) -> bool {
        match self {
            Goal::Count(count) => total.count >= count,
            Goal::Mass(mass) => total.mass >= mass,
        }
    }
}
