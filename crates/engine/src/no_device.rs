//! Stands in for devices in a build without them: types without values, so that what would work on a device
//! is left out.

use std::convert::Infallible;
use std::marker::PhantomData;

use gumball_spec::{Kind, Result};

use crate::backend::Backend;
use crate::config::{PoolConfig, Ranks};

/// Declares types without values.
macro_rules! nothing {
    ($($name:ident $(<$lifetime:lifetime>)?),*) => {$(
        /// A part or an array of a device. There is none in this build, which lacks the feature `cuda`.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name$(<$lifetime>)?(Infallible, PhantomData<($(&$lifetime (),)?)>);
    )*};
}

nothing!(Device, DeviceHead<'a>, DeviceIntMatrix<'a>, DeviceIntMatrixMut<'a>, DeviceMasks<'a>);
nothing!(DeviceMatrix<'a>, DeviceRows<'a>, DeviceSlice<'a>, DraftBatch, DraftTreeRows<'a>);
nothing!(ProgramCommunicator);

/// A place on a device.
pub(crate) trait DeviceBackend {}

impl Device {
    pub(crate) fn backend(&self, _: &PoolConfig, _: Option<Ranks>) -> Result<Box<dyn Backend>> {
        match self.0 {}
    }
}

impl DeviceHead<'_> {
    pub(crate) fn is_approximate(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn vocab(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn width(&self) -> usize {
        match self.0 {}
    }
}

impl DeviceMatrix<'_> {
    pub(crate) fn rows(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn vocab(&self) -> usize {
        match self.0 {}
    }

    pub(crate) fn kind(&self) -> Kind {
        match self.0 {}
    }

    pub(crate) fn with_kind(self, _: Kind) -> Self {
        match self.0 {}
    }
}

impl<'a> DeviceRows<'a> {
    pub(crate) fn rows(&self) -> &DeviceMatrix<'a> {
        match self.0 {}
    }
}
