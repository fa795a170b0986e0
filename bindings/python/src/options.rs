//! Options of a step's rows, read from Python's keyword arguments.

use gumball_engine::{Batch, Error, Kind, Masks, Result};
use pyo3::prelude::*;

use crate::arrays::{self, Array, Location, Matrix};
use crate::errors::{InvalidTypeError, InvalidValueError, out_of_range};
use crate::hooks::Hook;
use crate::lists;
use crate::turns::Caller;

/// Reads what rows hold: logits or probabilities.
///
/// # Errors
/// - `ValueError` for another name.
pub fn kind(name: &str) -> PyResult<Kind> {
    match name {
        "logits" => Ok(Kind::Logits),
        "probabilities" => Ok(Kind::Probabilities),
        _ => Err(out_of_range("kind", name, "\"logits\" or \"probabilities\"")),
    }
}

/// The keyword arguments, unread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keywords<'a, 'py> {
    pub masks: Option<&'a Bound<'py, PyAny>>,
    pub mask_present: Option<&'a Bound<'py, PyAny>>,
    pub forced: Option<&'a Bound<'py, PyAny>>,
    pub row_indices: Option<&'a Bound<'py, PyAny>>,
    pub hooks: Option<&'a Bound<'py, PyAny>>,
}

/// The options that the keywords give. For masks this is their address and shape.
#[derive(Debug, Default)]
pub struct Options {
    pub masks: Option<Matrix>,
    pub present: Vec<bool>,
    pub forced: Vec<Option<u32>>,
    pub row_indices: Vec<u32>,
    pub hooks: Vec<Option<Hook>>,
}

impl<'py> Keywords<'_, 'py> {
    /// Reads the keywords. The caller keeps the returned array of masks alive while the options are in use.
    ///
    /// # Errors
    /// - `TypeError` or `ValueError` for a value of another type or shape.
    pub fn read(&self, stream: Option<usize>) -> PyResult<(Options, Option<Array<'py>>)> {
        let array = self.masks.map(|masks| arrays::read(masks, "masks", stream)).transpose()?;
        let options = Options {
            masks: array.as_ref().map(|array| array.matrix("masks")).transpose()?,
            present: self
                .mask_present
                .map(|it| lists::truths(it, "mask_present"))
                .transpose()?
                .unwrap_or_default(),
            forced: self.forced.map(|it| lists::forced(it, "forced")).transpose()?.unwrap_or_default(),
            row_indices: self
                .row_indices
                .map(|it| lists::integers(it, "row_indices"))
                .transpose()?
                .unwrap_or_default(),
            hooks: self.hooks.map(Hook::read_all).transpose()?.unwrap_or_default(),
        };
        if let Some(masks) = &options.masks {
            masks.check_words()?;
        }
        if options.masks.is_none() && self.mask_present.is_some() {
            return Err(InvalidValueError::new_err(
                "mask_present says which of the masks count, but there are no masks",
            ));
        }
        Ok((options, array))
    }

    /// Refuses `forced`, `row_indices` and `mask_present` in a call that names no slots.
    pub fn refuse_without_slots(&self) -> PyResult<()> {
        for (name, value) in
            [("forced", self.forced), ("row_indices", self.row_indices), ("mask_present", self.mask_present)]
        {
            if value.is_some() {
                let text = format!("{name} comes with slots: name them, or hand it to assign");
                return Err(InvalidTypeError::new_err(text));
            }
        }
        Ok(())
    }
}

impl Options {
    /// Returns whether the masks lie in a device's memory.
    pub fn has_device_masks(&self) -> bool {
        self.masks.is_some_and(|masks| masks.location != Location::Host)
    }

    /// Refuses masks in a device's memory, for calls that read masks on the host.
    pub fn masks_on_host(&self) -> PyResult<()> {
        match self.masks {
            Some(masks) if masks.location != Location::Host => Err(out_of_range(
                "masks",
                format!("on {}", masks.location),
                "on the host, where this call reads them",
            )),
            _ => Ok(()),
        }
    }

    /// Returns the masks, where they lie.
    ///
    /// # Safety
    /// The memory of the array `masks` is neither freed nor written for `'a`, nor, on a device, while work that reads it runs.
    unsafe fn masks<'a>(&'a self) -> Result<Masks<'a>> {
        match &self.masks {
            None => Ok(Masks::None),
            // SAFETY: `masks` lies in the host's memory, and the caller ensures that nobody frees or writes it for `'a`.
            Some(masks) if masks.location == Location::Host => unsafe { masks.masks(&self.present) },
            // SAFETY: `masks` lies in a device's memory, and the caller ensures that nobody frees or writes it while work reads it.
            Some(masks) => unsafe { masks.device_masks() }.map(Masks::Device),
        }
    }

    /// Returns the hooks as closures that run them for a call.
    pub fn hooks<'a>(&'a self, caller: &'a Caller<'a>) -> Vec<Option<impl Fn(&mut [f32]) + Sync + 'a>> {
        let each = |hook: &'a Hook| move |row: &mut [f32]| hook.run(caller, row);
        self.hooks.iter().map(|hook| hook.as_ref().map(each)).collect()
    }

    /// Returns a batch with its rows' masks, forced tokens and indices, without hooks.
    ///
    /// # Safety
    /// The memory of the array `masks` is neither freed nor written for `'a`, nor, on a device, while work that reads it runs.
    pub unsafe fn batch<'a>(&'a self, of: &Batch<'a>) -> Result<Batch<'a>> {
        // SAFETY: the caller ensures that nobody frees or writes the memory of `masks` meanwhile.
        let masks = unsafe { self.masks() }?;
        let (forced, row_indices) = (&self.forced, &self.row_indices);
        Ok(Batch { masks, forced, row_indices, ..*of })
    }

    /// Runs a call of rows with a batch and its rows' masks, forced tokens, indices and hooks.
    ///
    /// # Safety
    /// The memory of the array `masks` is neither freed nor written during the call.
    pub unsafe fn with_hooks<R, E: From<Error>>(
        &self,
        caller: &Caller<'_>,
        of: &Batch<'_>,
        call: impl FnOnce(&Batch<'_>) -> std::result::Result<R, E>,
    ) -> std::result::Result<R, E> {
        // SAFETY: the caller ensures that nobody frees or writes the memory of `masks` during the call.
        let batch = unsafe { self.batch(of) }?;
        let hooks = self.hooks(caller);
        let hooks: Vec<_> = hooks.iter().map(|hook| hook.as_ref().map(|hook| hook as _)).collect();
        call(&Batch { hooks: &hooks, ..batch })
    }

    /// Returns an error if a row has a hook, which only the host can run.
    pub fn refuse_hooks(&self) -> Result<()> {
        if self.hooks.iter().any(Option::is_some) {
            let reason = "a hook runs on the host; take a pool of the host".to_owned();
            return Err(Error::Unavailable { resource: "hooks on a device", reason });
        }
        Ok(())
    }

    /// Returns an error for `mask_present` with masks on a device, where every row's mask counts.
    pub fn check_present(&self) -> Result<()> {
        if self.has_device_masks() && !self.present.is_empty() {
            let reason = "masks on a device count for every row; set all bits in those that shall not";
            return Err(Error::Conflict { parameter: "mask_present", other: "masks", reason });
        }
        Ok(())
    }
}
