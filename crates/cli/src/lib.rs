//! The gumball command.
