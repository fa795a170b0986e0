//! Slots: the places of a pool in which its sequences are.

/// A place in a [`Pool`](crate::Pool), from 0; [`PADDING`] stands for none.
pub type Slot = i32;

/// The slot of a row that yields nothing and touches nothing.
pub const PADDING: Slot = -1;
