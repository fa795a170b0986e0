//! Samplers, request pools and routes: the crate that inference engines add.
