//! Batches: whose rows they are, and the options of each row. Lists are read when a batch is made, so a call
//! with the same one reads only masks.

use std::ops::Deref;

use gumball_engine::{Batch as EngineBatch, Masks, Result, RowHook, Slot, VerifyMode};
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::plan::Plan;
use crate::arguments::argument;
use crate::arrays::{self, Array, Location, Matrix};
use crate::errors::{InvalidValueError, out_of_range, wrong_type};
use crate::hooks::Hook;
use crate::lists::{self, integers, number};
use crate::turns::Caller;

/// Whose rows they are, and the options of each row. A list or an array of slots is a batch as well.
///
/// slots: the slot of each request, -1 for padding, whose rows are not read. counts: how many drafts each
/// request has, 0 to 64, if the drafts do not say it themselves; of a DraftBatch how many stand in front of
/// each row, 0 to 63. mode: how drafts are judged, or will be. "coupled": a draft is accepted if it is the
/// token that the request would have drawn, so that the output equals decoding without drafts. "greedy": the
/// same at temperature 0. "rejection": by the ratio of the target's and the drafter's probability; emitted
/// tokens have the target's distribution. "block": chains as a whole, which accepts more and has the same
/// distribution. A Threshold accepts more than the distribution warrants.
///
/// masks: [rows, words] int32 or uint32; bit id % 32 of word id // 32 allows an id, missing words forbid.
/// mask_present: for each row whether its mask counts; not for masks on a device. forced: for each row an id
/// to emit in place of the drawn one, None or -1 for none. row_indices: for each row the row of the array
/// that it reads; several may read one. hooks: for each row a callable or None, as for Sampler.sample; on the
/// host only, and in direct calls. Rows run in parallel, and so may their hooks. plan: over ranks, that of
/// Pool.plan; None: the pool plans.
///
/// A call refuses what it does not read. Raises ValueError or TypeError for a list of another type.
#[pyclass(frozen, module = "gumball")]
#[derive(Debug, Default)]
pub struct Batch {
    pub slots: Vec<Slot>,
    pub counts: Vec<u32>,
    mode: VerifyMode,
    masks: Option<Py<PyAny>>,
    present: Vec<bool>,
    forced: Vec<Option<u32>>,
    pub row_indices: Vec<u32>,
    hooks: Vec<Option<Hook>>,
    plan: Option<gumball_engine::dist::Plan>,
}

/// Reads how drafts are judged.
fn mode(mode: &Bound<'_, PyAny>) -> PyResult<VerifyMode> {
    let Ok(name) = mode.cast::<PyString>() else {
        let part = |name: &str| {
            let part =
                mode.getattr(name).map_err(|_| wrong_type("mode", "a name or a gumball.Threshold", mode))?;
            number(&part, &format!("mode.{name}"))
        };
        return Ok(VerifyMode::Threshold { single: part("single")?, acc: part("acc")? });
    };
    let name =
        name.to_str().map_err(|error| InvalidValueError::new_err(format!("mode is no text: {error}")))?;
    match name {
        "coupled" => Ok(VerifyMode::Coupled),
        "greedy" => Ok(VerifyMode::Greedy),
        "rejection" => Ok(VerifyMode::Rejection),
        "block" => Ok(VerifyMode::Block),
        other => {
            let allowed = "\"coupled\", \"greedy\", \"rejection\", \"block\" or a Threshold";
            Err(out_of_range("mode", format!("{other:?}"), allowed))
        }
    }
}

#[pymethods]
impl Batch {
    #[new]
    #[pyo3(
        signature = (
            slots=None, *, counts=None, mode=None, masks=None, mask_present=None, forced=None, row_indices=None, hooks=None, plan=None,
        ),
        text_signature = "(slots=(), *, counts=None, mode='coupled', masks=None, mask_present=None, forced=None, row_indices=None, \
                          hooks=None, plan=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are fields")]
    fn new(
        slots: Option<&Bound<'_, PyAny>>,
        counts: Option<&Bound<'_, PyAny>>,
        mode: Option<&Bound<'_, PyAny>>,
        masks: Option<Py<PyAny>>,
        mask_present: Option<&Bound<'_, PyAny>>,
        forced: Option<&Bound<'_, PyAny>>,
        row_indices: Option<&Bound<'_, PyAny>>,
        hooks: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = argument)] plan: Option<Bound<'_, Plan>>,
    ) -> PyResult<Self> {
        if masks.is_none() && mask_present.is_some() {
            let text = "mask_present says which of the masks count, but there are no masks";
            return Err(InvalidValueError::new_err(text));
        }
        Ok(Self {
            slots: slots.map_or(Ok(Vec::new()), |slots| integers(slots, "slots"))?,
            counts: counts.map_or(Ok(Vec::new()), |counts| integers(counts, "counts"))?,
            mode: mode.map_or(Ok(VerifyMode::default()), self::mode)?,
            masks,
            present: mask_present.map_or(Ok(Vec::new()), |it| lists::truths(it, "mask_present"))?,
            forced: forced.map_or(Ok(Vec::new()), |it| lists::forced(it, "forced"))?,
            row_indices: row_indices.map_or(Ok(Vec::new()), |it| integers(it, "row_indices"))?,
            hooks: hooks.map_or(Ok(Vec::new()), Hook::read_all)?,
            plan: plan.map(|plan| plan.get().plan),
        })
    }

    fn __len__(&self) -> usize {
        self.slots.len()
    }

    fn __repr__(&self) -> String {
        format!("Batch({:?})", self.slots)
    }
}

impl Batch {
    /// Reads the masks, which the caller keeps alive.
    pub fn masks<'py>(
        &self,
        py: Python<'py>,
        stream: Option<usize>,
    ) -> PyResult<Option<(Matrix, Array<'py>)>> {
        let read = self.masks.as_ref().map(|masks| read_masks(masks.bind(py), stream)).transpose()?;
        if let Some((masks, _)) = &read
            && masks.location != Location::Host
            && !self.present.is_empty()
        {
            let text = "mask_present cannot be combined with masks: masks on a device count for every row; set all bits in those that \
                        shall not";
            return Err(InvalidValueError::new_err(text));
        }
        Ok(read)
    }

    /// Returns the hooks as closures that run them for a call.
    pub fn hooks<'a>(&'a self, caller: &'a Caller<'a>) -> Vec<Option<impl Fn(&mut [f32]) + Sync + 'a>> {
        let each = |hook: &'a Hook| move |row: &mut [f32]| hook.run(caller, row);
        self.hooks.iter().map(|hook| hook.as_ref().map(each)).collect()
    }

    /// Returns the batch as the engine takes it. An assignment refuses hooks before.
    ///
    /// # Safety
    /// The memory of `masks` is neither freed nor written for `'a`, nor, on a device, while work that reads
    /// it runs.
    pub unsafe fn engine<'a>(
        &'a self,
        masks: Option<&Matrix>,
        hooks: &'a [Option<RowHook<'a>>],
    ) -> Result<EngineBatch<'a>> {
        let masks = match masks {
            None => Masks::None,
            // SAFETY: `masks` lies in the host's memory, and the caller ensures that no code frees or writes
            // it for `'a`.
            Some(masks) if masks.location == Location::Host => unsafe { masks.masks(&self.present) }?,
            // SAFETY: `masks` lies in a device's memory, and the caller ensures that no code frees or writes
            // it while work reads it.
            Some(masks) => unsafe { masks.device_masks() }.map(Masks::Device)?,
        };
        let Self { slots, counts, mode, forced, row_indices, plan, .. } = self;
        let (mode, plan) = (*mode, *plan);
        Ok(EngineBatch {
            slots,
            counts,
            mode,
            masks,
            forced,
            row_indices,
            hooks,
            plan,
            ..EngineBatch::default()
        })
    }

    /// Refuses hooks, which an assignment would outlive.
    pub fn refuse_hooks(&self) -> PyResult<()> {
        if self.hooks.iter().all(Option::is_none) {
            return Ok(());
        }
        let text = "hooks cannot be combined with assign: a hook runs in the call that it is handed to; step with the batch";
        Err(InvalidValueError::new_err(text))
    }
}

/// Reads bitmasks.
pub fn read_masks<'py>(masks: &Bound<'py, PyAny>, stream: Option<usize>) -> PyResult<(Matrix, Array<'py>)> {
    let array = arrays::read(masks, "masks", stream)?;
    let matrix = array.matrix("masks")?;
    matrix.check_words("masks")?;
    Ok((matrix, array))
}

/// A batch of a call: a value, or one that was made of slots.
pub enum GivenBatch<'py> {
    Value(Bound<'py, Batch>),
    Made(Batch),
}

impl<'py> GivenBatch<'py> {
    pub fn read(batch: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(value) = batch.cast::<Batch>() {
            return Ok(Self::Value(value.clone()));
        }
        Ok(Self::Made(Batch { slots: integers(batch, "slots")?, ..Batch::default() }))
    }
}

impl Deref for GivenBatch<'_> {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        match self {
            Self::Value(value) => value.get(),
            Self::Made(batch) => batch,
        }
    }
}
