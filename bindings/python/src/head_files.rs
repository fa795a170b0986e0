//! What is wrong with a file of a head, as Python exceptions.

use crate::errors::InvalidValueError;
use gumball_engine::head::ArtefactError;
use pyo3::prelude::*;

/// Returns the exception for what is wrong with a file.
pub fn of_file(parameter: &str, error: ArtefactError) -> PyErr {
    match error {
        ArtefactError::Io { source, path } => {
            let kind = source.kind();
            PyErr::from(std::io::Error::new(kind, format!("{}: {source}", path.display())))
        }
        error => InvalidValueError::new_err(format!("{parameter} cannot be used: {error}")),
    }
}
