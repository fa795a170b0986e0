//! The way to the tokens: on which device, by which route of the engine, at which SIMD level.

use std::path::Path;

use clap::Args;
use gumball_engine::{Device, Level, Place, Route};

use crate::{Error, Result};

/// The host, as a device is named.
const CPU: &str = "cpu";

/// Where tokens are chosen. Every device gives the same ones.
#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    /// Where tokens are chosen: cpu, cuda, or cuda:N for the GPU of that number
    #[arg(long, value_name = "NAME", default_value = CPU)]
    pub device: String,
}

impl DeviceArgs {
    /// Opens the device; none if it is the host.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Unknown`] if there is none of that name.
    /// - [`gumball_spec::Error::Unavailable`] if it is not there; the error names the missing part and the
    ///   remedy.
    pub fn open(&self) -> Result<Option<Device>> {
        self.open_with(None)
    }

    /// Opens the device with the folder of compiled kernels that the program brings, if any; none if it is
    /// the host.
    ///
    /// # Errors
    /// The errors of [`DeviceArgs::open`].
    pub fn open_with(&self, kernels: Option<&Path>) -> Result<Option<Device>> {
        if self.device == CPU {
            return Ok(None);
        }
        let gpu = self.device.strip_prefix("cuda").map(|rest| rest.strip_prefix(':').unwrap_or("0").parse());
        let opened = match (kernels, gpu) {
            (Some(folder), Some(Ok(ordinal))) => Device::cuda_with_kernels(ordinal, folder),
            _ => Device::open(&self.device),
        };
        opened.map(Some).map_err(|error| match error {
            gumball_spec::Error::Unknown { parameter, name, known } => {
                gumball_spec::Error::Unknown { parameter, name, known: format!("{CPU}, {known}") }.into()
            }
            error => error.into(),
        })
    }
}

/// A device, a route and a level. Every exact route gives the same tokens at every level.
#[derive(Args, Clone, Debug)]
pub struct EngineArgs {
    /// The device.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// The way from logits to a token, by its name; on a device race or probabilities
    #[arg(long, value_name = "NAME", default_value = "race")]
    pub route: String,
    /// The SIMD level: scalar, avx2, avx512 or neon; the best if absent
    #[arg(long, value_name = "LEVEL", hide_short_help = true)]
    pub level: Option<Level>,
}

impl EngineArgs {
    /// Opens the device with the folder of compiled kernels that the program brings, if any; none if it is
    /// the host.
    ///
    /// # Errors
    /// - The errors of [`DeviceArgs::open`].
    /// - [`Error::Usage`] for a level together with a device: levels are the CPU's.
    /// - [`gumball_spec::Error::Unknown`] if a device has no such route.
    pub fn device(&self, kernels: Option<&Path>) -> Result<Option<Device>> {
        if self.device.device != CPU && self.level.is_some() {
            let reason = "--level is about the CPU; leave it out, or --device";
            return Err(Error::Usage(reason.to_owned()));
        }
        self.route()?;
        self.device.open_with(kernels)
    }

    /// Returns the route of a pool at the device.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Unknown`] if the device has no such route.
    pub fn route(&self) -> Result<Route> {
        match self.route.parse()? {
            Route::Oracle if self.device.device != CPU => {
                let (parameter, name) = ("route", self.route.clone());
                let known = "race, probabilities".to_owned();
                Err(gumball_spec::Error::Unknown { parameter, name, known }.into())
            }
            route => Ok(route),
        }
    }

    /// Returns the place of a pool that draws a row a step, and its route.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Unknown`] if there is no route of that name.
    /// - The errors of [`EngineArgs::device`] and [`EngineArgs::level`].
    pub fn place(&self, kernels: Option<&Path>) -> Result<(Place, Route)> {
        let place = match self.device(kernels)? {
            Some(device) => Place::device(device, 1),
            None => Place::Host { threads: Some(1), level: Some(self.level()?) },
        };
        Ok((place, self.route()?))
    }

    /// Returns the level.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::OutOfRange`] if this machine lacks it.
    pub fn level(&self) -> Result<Level> {
        Ok(self.level.map_or_else(Level::detect, Level::check)?)
    }
}
