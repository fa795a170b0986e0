//! Steps of a pool: rows of logits in, tokens out; assignments, outputs, scores.

use gumball_engine::{
    Batch, Error, Kind, Layout, Masks, Result, SamplingParams, Scored, Slot, StepVariant, Work,
};
use pyo3::prelude::*;

use super::backend::{self, Backend};
use super::{Inner, Pool, variants};
use crate::arrays::{self, Array, Dtype, Location, Matrix};
use crate::device_array::{DeviceArray, Owner};
use crate::errors::{InvalidTypeError, to_py_err};
use crate::lists::{extract_int, integers};
use crate::options::{self, Keywords, Options};
use crate::outputs::Outputs;
use crate::params;
use crate::turns::Caller;

/// The arguments of a step.
struct Step<'py> {
    logits: Matrix,
    slots: Option<Vec<Slot>>,
    options: Options,
    stream: Option<usize>,
    /// The streams on which the owners of logits and masks write them, if they name one.
    others: [Option<usize>; 2],
    kind: Kind,
    variant: Option<StepVariant>,
    /// The arrays, which stay alive during the step.
    _held: (Array<'py>, Option<Array<'py>>),
}

/// The parts of a step that are needed without the GIL.
struct Call<'a> {
    logits: Matrix,
    slots: Option<&'a [Slot]>,
    options: &'a Options,
    others: [Option<usize>; 2],
    kind: Kind,
    variant: Option<StepVariant>,
    /// The objects whose turns the call keeps while its hooks run.
    caller: Caller<'a>,
}

impl Step<'_> {
    fn call<'a>(&'a self, pool: &'a Pool) -> Call<'a> {
        let Self { logits, options, others, kind, variant, .. } = self;
        let (slots, caller) = (self.slots.as_deref(), pool.caller());
        Call { logits: *logits, slots, options, others: *others, kind: *kind, variant: *variant, caller }
    }
}

/// Returns a batch to be assigned, and the masks on a device, which come with the work.
pub(super) fn split_masks(batch: Batch<'_>) -> (Batch<'_>, Masks<'_>) {
    match batch.masks {
        Masks::Device(_) => (Batch { masks: Masks::None, ..batch }, batch.masks),
        _ => (batch, Masks::None),
    }
}

impl Inner {
    /// Takes a step on the host, or enqueues one on the device.
    fn enqueue(&mut self, call: &Call<'_>, host_logits: bool) -> Result<()> {
        let Call { logits, slots, options, others, kind, variant, caller } = call;
        if matches!(self.backend, Backend::Device(_)) {
            options.refuse_hooks()?;
        }
        self.order_after(others)?;
        let rows = slots.map_or(self.rows, <[Slot]>::len);
        if slots.is_some() {
            self.outside_a_capture()?;
        }
        match &mut self.backend {
            Backend::Host(host) => {
                if let Some(slots) = slots {
                    host.assign(slots, &options.forced, &options.row_indices);
                    if let Some(masks) = &options.masks {
                        // SAFETY: `_held` of the step keeps the masks alive; Python's callers do not write
                        // them during the call.
                        let words = unsafe { masks.rows_of_words() };
                        host.assign_masks(words, (masks.rows, masks.width), &options.present);
                    }
                }
                // SAFETY: `_held` of the step keeps the logits alive; Python's callers do not write them
                // during the call.
                let rows = unsafe { logits.rows_of(*kind) }?;
                let hooks = options.hooks(caller);
                let hooks: Vec<_> = hooks.iter().map(|hook| hook.as_ref().map(|hook| hook as _)).collect();
                host.step(rows, &hooks, *variant, &mut self.out)?;
            }
            Backend::Device(pool) if host_logits => {
                let slots = slots.expect("seen to where the step was read");
                // SAFETY: `_held` of the step keeps the logits alive; Python's callers do not write them
                // during the call.
                let rows = unsafe { logits.rows_of(*kind) }?;
                // SAFETY: `_held` of the step keeps the masks alive; Python's callers do not write them
                // during the call.
                let batch = unsafe { options.batch(&Batch::of(slots)) }?;
                let stepped = pool.step(rows, &batch, &mut self.out);
                self.has_stepped = stepped.is_ok();
                // An error may have left the new assignment.
                return self.note_assigned().and(stepped);
            }
            Backend::Device(pool) => {
                // SAFETY: the logits lie on the device. Their owner reuses memory in stream order, so it is
                // not reused before the step is done. The caller ensures that nobody writes them until then.
                let rows = unsafe { logits.rows_there(*kind) }?;
                let of = Batch::of(slots.unwrap_or_default());
                // SAFETY: masks on the host are copied up before the call returns, and `_held` keeps their array alive until then.
                // The owner of masks on the device reuses memory in stream order, and nobody writes them until the step is done.
                let (batch, masks) = split_masks(unsafe { options.batch(&of) }?);
                let batch = slots.map(|_| &batch);
                let enqueued = backend::enqueue(pool, Work::Step(rows, masks), batch, *variant);
                // An error may have left the new assignment.
                return self.note_assigned().and(enqueued);
            }
        }
        (self.rows, self.requests) = (rows, 0);
        Ok(())
    }

    /// Notes how many rows are assigned on a device.
    pub(super) fn note_assigned(&mut self) -> Result<()> {
        if let Backend::Device(pool) = &mut self.backend {
            let shape = pool.on_device()?.assigned(None)?;
            (self.rows, self.requests) = (shape.rows, shape.requests);
        }
        Ok(())
    }

    /// Returns a copy of the last step's outputs; on a device, waits for them.
    pub(super) fn outputs(&mut self, kept: bool) -> Result<Outputs> {
        self.outside_a_capture()?;
        if let Backend::Device(pool) = &mut self.backend {
            match pool.fetch(&mut self.out) {
                // They are here already.
                Err(Error::Conflict { parameter: "fetch", .. }) if self.has_stepped => {}
                fetched => fetched?,
            }
        }
        Ok(Outputs::new(&self.out, kept))
    }
}

impl Pool {
    /// Reads the arguments of a step and makes the checks that do not need the pool.
    fn read_step<'py>(
        &self,
        py: Python<'py>,
        logits: &Bound<'py, PyAny>,
        slots: Option<&Bound<'py, PyAny>>,
        keywords: &Keywords<'_, 'py>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Step<'py>> {
        let stream = self.on(py, stream)?;
        let array = arrays::read(logits, "logits", stream)?;
        let matrix = array.matrix("logits")?;
        matrix.check_float()?;
        let slots = slots.map(|slots| integers(slots, "slots")).transpose()?;
        if slots.is_none() {
            keywords.refuse_without_slots()?;
        }
        let (options, masks) = keywords.read(stream)?;
        if let Some(masks) = &options.masks {
            if masks.location != Location::Host {
                self.check_location("masks", masks.location, " or the host")?;
            } else if slots.is_none() && self.location != Location::Host {
                return Err(InvalidTypeError::new_err(
                    "masks of the host come with slots: name them, or hand them to assign",
                ));
            } else if slots.is_none() {
                return Err(InvalidTypeError::new_err(
                    "masks come with slots: name them, or hand them to assign",
                ));
            }
        }
        options.check_present().map_err(to_py_err)?;
        let others = [array.stream, masks.as_ref().and_then(|masks| masks.stream)];
        let (kind, variant) = (Kind::Logits, None);
        Ok(Step { logits: matrix, slots, options, stream, others, kind, variant, _held: (array, masks) })
    }
}

/// A known sequence, some of whose tokens are to be scored.
pub struct ScoredIds {
    params: SamplingParams,
    ids: Vec<u32>,
    prompt_len: usize,
    start: usize,
}

impl ScoredIds {
    /// Reads the arguments of a score; without the last two, all ids are prompt, and the first one is not scored.
    pub fn read(
        params: &Bound<'_, PyAny>,
        ids: &Bound<'_, PyAny>,
        prompt_len: Option<&Bound<'_, PyAny>>,
        start: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let (params, ids): (_, Vec<u32>) = (params::read(params)?, integers(ids, "ids")?);
        let prompt_len = prompt_len.map_or(Ok(ids.len()), |it| extract_int(it, "prompt_len"))?;
        let start = start.map_or(Ok(1), |it| extract_int(it, "start"))?;
        Ok(Self { params, ids, prompt_len, start })
    }

    /// Returns it as the engine takes it.
    pub fn of(&self) -> Scored<'_> {
        let Self { params, ids, prompt_len, start } = self;
        Scored { params, ids, prompt_len: *prompt_len, start: *start, chunk_rows: None }
    }
}

/// Where one of a batch's outputs lies in the memory of a device.
pub struct OutputPlace {
    start: usize,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl OutputPlace {
    /// Finds an output by its name, behind the drafts of `requests` requests or behind a step.
    pub fn of(name: &str, layout: Layout, requests: usize) -> PyResult<Self> {
        let (rows, widths, end) = (layout.rows, layout.widths, layout.words());
        let (section, dtype, width) = match name {
            "tokens" => (layout.tokens(), Dtype::I32, None),
            "statuses" => (layout.statuses(), Dtype::U32, None),
            "logprobs" => (layout.logprobs(), Dtype::F32, None),
            "ranks" => (layout.ranks(), Dtype::U32, None),
            "temperatures" => (layout.temperatures(), Dtype::F32, None),
            "mirostat_mu" => (layout.mirostat_mu(), Dtype::F32, None),
            "top_ids" => (layout.top_ids(), Dtype::I32, Some(widths.top_n)),
            "top_logprobs" => (layout.top_logprobs(), Dtype::F32, Some(widths.top_n)),
            "id_logprobs" => (layout.id_logprobs(), Dtype::F32, Some(widths.ids)),
            "id_ranks" => (layout.id_ranks(), Dtype::U32, Some(widths.ids)),
            // Of drafts, behind the outputs.
            "rows" => (end..end + rows, Dtype::U32, None),
            "accepted" => (end + rows..end + rows + requests, Dtype::U32, None),
            _ => return Err(crate::errors::out_of_range("name", name, "an attribute of Outputs")),
        };
        let shape = std::iter::once(if name == "accepted" { requests } else { rows }).chain(width).collect();
        Ok(Self { start: section.start, dtype, shape })
    }

    /// Returns the array there, in a pool's memory from an address on.
    pub fn array(self, pool: Owner, address: u64, location: Location) -> DeviceArray {
        let address = address as usize + self.start * size_of::<u32>();
        DeviceArray::new(pool, address, location, self.dtype, self.shape)
    }
}

#[pymethods]
impl Pool {
    /// Chooses the next token of each row, appends it to the sequence in the row's slot, and returns the Outputs.
    ///
    /// logits: [rows, vocab], or [vocab] for one row; float32, bfloat16 or float16; rows may be strided. For
    /// a device pool they may lie on the device, or on the host, from where they are copied. slots: one per
    /// row, -1 for padding; if omitted, those of assign. masks: [rows, words] int32 or uint32; bit id % 32 of
    /// word id // 32 allows an id, missing words forbid. mask_present: for each row whether its mask counts.
    /// forced: for each row an id to emit whatever is drawn, None or -1 for none. row_indices: for each slot
    /// the row of logits that it reads. hooks: for each row a callable or None, as for Sampler.sample; on the
    /// host only. Rows run in parallel, and so may their hooks. kind: "logits", or "probabilities" for rows
    /// that hold those and need not sum to 1; a sequence may change its kind from step to step. stream: a
    /// CUDA stream's handle.
    ///
    /// Raises ValueError or TypeError for another shape, type or device; ValueError for a slot that is vacant
    /// or occurs twice, for a forced id outside the vocabulary, and for parameters that apply to logits only
    /// if rows hold probabilities; UnavailableError for hooks on a device; and the exceptions of hooks. After
    /// an error no sequence has changed.
    #[pyo3(
        signature = (
            logits, slots=None, *, masks=None, mask_present=None, forced=None, row_indices=None, hooks=None, kind=None, stream=None,
        ),
        text_signature = "($self, logits, slots=None, *, masks=None, mask_present=None, forced=None, row_indices=None, hooks=None, \
                          kind='logits', stream=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn step<'py>(
        &self,
        py: Python<'py>,
        logits: &Bound<'py, PyAny>,
        slots: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        forced: Option<&Bound<'py, PyAny>>,
        row_indices: Option<&Bound<'py, PyAny>>,
        hooks: Option<&Bound<'py, PyAny>>,
        kind: Option<&str>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Outputs> {
        let kind = kind.map_or(Ok(Kind::Logits), options::kind)?;
        let keywords = Keywords { masks, mask_present, forced, row_indices, hooks };
        let step = Step { kind, ..self.read_step(py, logits, slots, &keywords, stream)? };
        let copied = self.location != step.logits.location;
        if copied {
            if step.logits.location != Location::Host {
                self.check_location("logits", step.logits.location, "")?;
            }
            step.options.masks_on_host()?;
            if step.slots.is_none() {
                return Err(InvalidTypeError::new_err("logits of the host come with slots: name them"));
            }
        }
        let (call, kept) = (step.call(self), self.kept);
        self.with(py, step.stream, |inner| {
            inner.outside_a_capture()?;
            inner.enqueue(&call, copied)?;
            inner.outputs(kept)
        })
    }

    /// Enqueues a decoding step and returns without waiting for the device; on a host pool, the step is done
    /// on return.
    ///
    /// While slots and options stay the same, the call only launches kernels. To capture a step with torch,
    /// call assign first, omit slots here, and call reserve_replays before replays. logits: [rows, vocab], on
    /// the pool's device; until the step is done, write or free them only in stream order. variant: the name of
    /// the one whose kernels to launch, as variants lists them; if omitted, the kernels that the rows need, and
    /// under a capture those of "full". Other arguments: as for step, without hooks.
    ///
    /// Raises the errors of step, and ValueError if logits do not lie on the pool's device, or if the variant
    /// does not serve a row. No sequence has changed then.
    #[pyo3(
        signature = (
            logits, slots=None, *, masks=None, mask_present=None, forced=None, row_indices=None, kind="logits", variant=None,
            stream=None,
        )
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn enqueue<'py>(
        &self,
        py: Python<'py>,
        logits: &Bound<'py, PyAny>,
        slots: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        forced: Option<&Bound<'py, PyAny>>,
        row_indices: Option<&Bound<'py, PyAny>>,
        kind: &str,
        variant: Option<&str>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let (kind, variant) = (options::kind(kind)?, variants::variant(variant)?);
        let keywords = Keywords { masks, mask_present, forced, row_indices, hooks: None };
        let step = Step { kind, variant, ..self.read_step(py, logits, slots, &keywords, stream)? };
        self.check_location("logits", step.logits.location, "; step copies rows of the host up")?;
        let call = step.call(self);
        self.with(py, step.stream, |inner| inner.enqueue(&call, false))
    }

    /// Assigns slots and options to the rows of the next steps, those of captured graphs included.
    ///
    /// Arguments as for step; masks lie on the host and are copied. The call does not wait for the device,
    /// and it copies nothing that is unchanged.
    #[pyo3(signature = (slots, *, masks=None, mask_present=None, forced=None, row_indices=None, stream=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn assign<'py>(
        &self,
        py: Python<'py>,
        slots: &Bound<'py, PyAny>,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        forced: Option<&Bound<'py, PyAny>>,
        row_indices: Option<&Bound<'py, PyAny>>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<()> {
        let stream = self.on(py, stream)?;
        let slots: Vec<Slot> = integers(slots, "slots")?;
        let (options, _held) =
            Keywords { masks, mask_present, forced, row_indices, hooks: None }.read(stream)?;
        options.masks_on_host()?;
        self.with(py, stream, |inner| {
            match inner.outside_a_capture()? {
                Backend::Host(host) => {
                    host.check(&slots, &options.forced, &options.row_indices)?;
                    host.assign(&slots, &options.forced, &options.row_indices);
                    if let Some(masks) = &options.masks {
                        // SAFETY: `_held` keeps the masks alive; Python's callers do not write them during
                        // the call.
                        let words = unsafe { masks.rows_of_words() };
                        host.assign_masks(words, (masks.rows, masks.width), &options.present);
                    }
                }
                Backend::Device(pool) => {
                    // SAFETY: `_held` keeps the masks alive until the call has copied them; Python's callers
                    // do not write them meanwhile.
                    pool.assign(&unsafe { options.batch(&Batch::of(&slots)) }?)?;
                }
            }
            (inner.rows, inner.requests) = (slots.len(), 0);
            Ok(())
        })
    }

    /// Waits for the enqueued steps and returns the Outputs of the last one.
    #[pyo3(signature = (*, stream=None))]
    fn fetch(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<Outputs> {
        let (stream, kept) = (self.on(py, stream)?, self.kept);
        self.with(py, stream, |inner| inner.outputs(kept))
    }

    /// The tokens of the last step, [rows] int32, with as many rows as are assigned. On a device this is a
    /// DeviceArray whose address stays; it needs no copy and no wait. On the host it is a numpy array.
    #[getter]
    fn tokens<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        Self::outputs_on_device(slf, "tokens")
    }

    /// One of the last step's outputs, by its name in Outputs, in the memory that tokens describes. Of drafts also
    /// "rows", [rows] uint32, the row that each output comes from, 2^32 - 1 where no token was emitted, and "accepted",
    /// [requests] uint32.
    ///
    /// Raises ValueError for another name.
    fn outputs_on_device<'py>(slf: &Bound<'py, Self>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let found = this.with(py, None, |inner| {
            Ok(match &mut inner.backend {
                Backend::Host(_) => None,
                Backend::Device(pool) => {
                    let there = pool.on_device()?;
                    let layout = Layout { rows: inner.rows, ..there.outputs_layout() };
                    Some((there.outputs_address(), layout, inner.requests))
                }
            })
        })?;
        let (address, layout, requests) = found.unwrap_or_default();
        let place = OutputPlace::of(name, layout, requests)?;
        if found.is_none() {
            return this.fetch(py, None)?.into_pyobject(py)?.into_any().getattr(name);
        }
        let array = place.array(Owner::Pool(slf.clone().unbind()), address, this.location);
        Ok(Bound::new(py, array)?.into_any())
    }

    /// Returns the logprobs of given tokens, in the Outputs that steps would return in which these tokens are
    /// forced.
    ///
    /// logits: [rows, vocab] on the host. params: SamplingParams, whose logprobs say what to report. ids:
    /// prompt and output; row i scores ids[start + i]. prompt_len: the number of ids that are prompt; None:
    /// all. masks, hooks: as for step. No slot changes.
    ///
    /// Raises ValueError if a shape differs, or in mode "processed" for mirostat, or for XTC without a seed.
    #[pyo3(
        signature = (logits, params, ids, *, prompt_len=None, start=None, masks=None, mask_present=None, hooks=None),
        text_signature = "($self, logits, params, ids, *, prompt_len=None, start=1, masks=None, mask_present=None, \
                          hooks=None)"
    )]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn score<'py>(
        &self,
        py: Python<'py>,
        logits: &Bound<'py, PyAny>,
        params: &Bound<'py, PyAny>,
        ids: &Bound<'py, PyAny>,
        prompt_len: Option<&Bound<'py, PyAny>>,
        start: Option<&Bound<'py, PyAny>>,
        masks: Option<&Bound<'py, PyAny>>,
        mask_present: Option<&Bound<'py, PyAny>>,
        hooks: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Outputs> {
        let keywords = Keywords { masks, mask_present, hooks, ..Keywords::default() };
        let (options, _masks) = keywords.read(None)?;
        options.masks_on_host()?;
        let array = arrays::read(logits, "logits", None)?;
        let matrix = array.matrix("logits")?;
        if matrix.location != Location::Host {
            return Err(crate::errors::out_of_range(
                "logits",
                format!("on {}", matrix.location),
                "on the host",
            ));
        }
        matrix.check_float()?;
        // SAFETY: `array` keeps the logits alive during the call; Python's callers do not write them
        // meanwhile.
        let rows = unsafe { matrix.rows_of(Kind::Logits) }.map_err(to_py_err)?;
        // SAFETY: `_masks` keeps the masks alive during the call; Python's callers do not write them
        // meanwhile.
        let batch = unsafe { options.batch(&Batch::default()) }.map_err(to_py_err)?;
        let caller = self.caller();
        let hooks = options.hooks(&caller);
        let scored = ScoredIds::read(params, ids, prompt_len, start)?;
        let stream = self.on(py, None)?;
        self.with(py, stream, |inner| {
            let mut out = gumball_engine::Outputs::new();
            let hooks: Vec<_> = hooks.iter().map(|hook| hook.as_ref().map(|hook| hook as _)).collect();
            inner.backend.score(rows, &Batch { hooks: &hooks, ..batch }, &scored.of(), &mut out)?;
            Ok(Outputs::new(&out, false))
        })
    }
}
