//! The arguments beside the rows of a batch: bitmasks, forced tokens, hooks, and which row each slot reads.

use gumball_engine::{Batch, Error, HostMasks, Masks, RowHook};
use js_sys::{Array, Function};
use wasm_bindgen::JsValue;

use crate::error::{Failure, Result};
use crate::hooks;
use crate::sampler::words;
use crate::values::{Options, elements, integer, is_absent};

/// The names of these options.
pub const NAMES: [&str; 5] = ["masks", "mask_present", "forced", "row_indices", "hooks"];

/// The arguments beside the rows of a batch.
#[derive(Debug, Default)]
pub struct Extras {
    /// The rows of the masks and the words of each; none if no row has a mask.
    masks: Option<(Vec<u32>, usize, usize)>,
    present: Option<Vec<bool>>,
    forced: Vec<Option<u32>>,
    hooks: Vec<Option<Function>>,
    /// For each output the row that it reads.
    row_indices: Option<Vec<u32>>,
}

impl Extras {
    /// Reads what comes with `rows` rows of logits.
    pub fn read(options: &Options, rows: usize) -> Result<Self> {
        let row_indices = options.get("row_indices")?.map(|_| options.ids("row_indices")).transpose()?;
        let outputs = row_indices.as_ref().map_or(rows, Vec::len);
        let mut extras = Self { row_indices, ..Self::default() };
        if let Some(masks) = options.get("masks")? {
            if Array::is_array(&masks) {
                extras.read_list(&masks)?;
            } else {
                let words = words(&masks, "masks")?;
                if outputs == 0 || !words.len().is_multiple_of(outputs) {
                    let allowed = format!("as many words for each of {outputs} rows");
                    return Err(Failure::length("masks", words.len(), allowed));
                }
                let width = words.len() / outputs;
                extras.masks = Some((words, outputs, width));
            }
        }
        if let Some(present) = options.get("mask_present")? {
            let one = |value: &JsValue| {
                value
                    .as_bool()
                    .or(value.as_f64().map(|number| number != 0.0))
                    .ok_or_else(|| Failure::wrong_type("mask_present", value, "true or false for each row"))
            };
            if extras.masks.is_none() {
                return Err(Failure::length("masks", 0, "one per row, since there is mask_present"));
            }
            let mut given: Vec<bool> =
                elements(&present, "mask_present")?.iter().map(one).collect::<Result<_>>()?;
            // A mask that is null in a list is absent, even if this list says otherwise.
            for (present, listed) in given.iter_mut().zip(extras.present.iter().flatten()) {
                *present &= listed;
            }
            extras.present = Some(given);
        }
        if let Some(list) = options.get("forced")? {
            extras.forced = forced(&list)?;
        }
        if let Some(list) = options.get("hooks")? {
            extras.hooks = hooks::read_all(&list)?;
        }
        Ok(extras)
    }

    /// Reads a list with a mask for each row, or none. A mask that is shorter than the longest gets words of
    /// 0, which forbid as missing ones do.
    fn read_list(&mut self, list: &JsValue) -> Result<()> {
        let one = |mask: &JsValue| {
            if is_absent(mask) { Ok(None) } else { words(mask, "masks").map(Some) }
        };
        let masks: Vec<Option<Vec<u32>>> = elements(list, "masks")?.iter().map(one).collect::<Result<_>>()?;
        let width = masks.iter().flatten().map(Vec::len).max().unwrap_or(0);
        let mut all = Vec::with_capacity(masks.len() * width);
        for mask in &masks {
            let mask = mask.as_deref().unwrap_or_default();
            all.extend_from_slice(mask);
            all.resize(all.len() + width - mask.len(), 0);
        }
        self.present = Some(masks.iter().map(Option::is_some).collect());
        self.masks = Some((all, masks.len(), width));
        Ok(())
    }

    /// Calls `call` with a batch that has no slots. Returns what a hook threw, after which the call's tokens
    /// do not count.
    pub fn with(
        &self,
        call: impl FnOnce(&Batch<'_>) -> gumball_engine::Result<()>,
    ) -> Result<std::result::Result<(), Failure>> {
        let masks = match &self.masks {
            None => Masks::None,
            Some((words, rows, width)) => {
                let masks = HostMasks::new(words, *rows, *width, *width)?;
                match &self.present {
                    None => masks.into(),
                    Some(present) => masks.with_present(present).map_err(named)?.into(),
                }
            }
        };
        let row_indices = self.row_indices.as_deref().unwrap_or_default();
        let batch = Batch { masks, forced: &self.forced, row_indices, ..Batch::default() };
        let run = |hooks: &[Option<RowHook<'_>>]| call(&Batch { hooks, ..batch });
        let (result, failure) = hooks::with(self.hooks.clone(), run);
        result.map_err(named)?;
        Ok(failure.map_or(Ok(()), Err))
    }
}

/// Calls what the engine says of masks by the names of JavaScript's options.
fn named(error: Error) -> Error {
    error.with_parameter(|name| match name {
        "masks.width" => "masks",
        "masks.present" => "mask_present",
        name => name,
    })
}

/// Reads one value a row, some of which are absent.
fn forced(list: &JsValue) -> Result<Vec<Option<u32>>> {
    let one = |value: &JsValue| {
        if is_absent(value) || value.as_f64() == Some(-1.0) {
            Ok(None)
        } else {
            integer(value, "forced").map(Some)
        }
    };
    elements(list, "forced")?.iter().map(one).collect()
}
