//! The gumball command.
fn main() {}
