//! One test body per rule; the backend is its argument.
