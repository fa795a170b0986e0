//! What work reads where it lies in the memory of a device.

use gumball_cuda::{DeviceSlice, DraftIds, Rows as DeviceMatrix};
use gumball_spec::{Error, Result};

use crate::drafts::{Drafts, Ids, Tree};
use crate::matrix::Matrix;

/// The error of an argument that a device is to read, but that lies on the host.
fn on_the_host(parameter: &'static str) -> Error {
    let allowed = "in that of the device, where a replay reads it";
    Error::out_of_range(parameter, "in the memory of the host", allowed)
}

impl<'a> Matrix<'a> {
    pub(super) fn on_device(self, parameter: &'static str) -> Result<DeviceMatrix<'a>> {
        match self {
            Self::Device(matrix) => Ok(matrix),
            Self::Host(_) => Err(on_the_host(parameter)),
        }
    }
}

impl<'a> Ids<'a> {
    pub(super) fn on_device(self, parameter: &'static str) -> Result<DeviceSlice<'a>> {
        match self {
            Self::Device(ids) => Ok(ids),
            Self::Host(_) => Err(on_the_host(parameter)),
        }
    }
}

impl<'a> Drafts<'a> {
    pub(super) fn on_device(self) -> Result<DraftIds<'a>> {
        let (parents, links) = match self.tree {
            Tree::Chain => (None, None),
            Tree::Parents(parents) => (Some(parents.on_device("drafts.parents")?), None),
            Tree::Links { first_child, next_sibling } => {
                let first_child = first_child.on_device("first_child")?;
                (None, Some([first_child, next_sibling.on_device("next_sibling")?]))
            }
        };
        let probs = self.probs.map(|probs| probs.on_device("drafts.probs")).transpose()?;
        Ok(DraftIds { ids: self.ids.on_device("drafts.ids")?, parents, links, probs })
    }
}
