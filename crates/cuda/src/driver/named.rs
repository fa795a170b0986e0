//! Paths of code in variables of the environment. A relative path would let the current folder choose the
//! code that a program runs.

use std::path::PathBuf;

/// Returns the path of a library that a variable names, or the name by which the system's loader finds it;
/// `None` if the variable is unset or empty.
///
/// # Errors
/// The reason for which a path relative to the current folder is refused.
pub(crate) fn library(variable: &str) -> Result<Option<PathBuf>, String> {
    let Some(path) = path(variable) else { return Ok(None) };
    let is_name = path.file_name() == Some(path.as_os_str());
    if path.is_absolute() || is_name {
        return Ok(Some(path));
    }
    let path = path.display();
    Err(format!(
        "{variable} is {path}, but must be an absolute path, or a name that the system's loader finds"
    ))
}

/// Returns the path that a variable has; `None` if it is unset or empty.
pub(crate) fn path(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}
