//! Rows as Python hands them over: an array of logits, Probabilities, or Hidden with the head that makes
//! logits.

use gumball_engine::{Device, Head as EngineHead, Kind, Matrix as EngineMatrix, Result, Rows};
use pyo3::prelude::*;

use super::Pool;
use crate::arguments::argument;
use crate::arrays::{self, Array, FLOATS, Location, Matrix};
use crate::device_head::{DeviceHead, HeadTurn};
use crate::errors::{rows_names, wrong_type};
use crate::heads::{Head, InUse};
use crate::lists::extract_int;
use crate::values::{Hidden, Probabilities};

/// Rows, read.
pub struct GivenRows<'py> {
    pub place: RowsPlace,
    head: Option<GivenHead<'py>>,
    pub array: Array<'py>,
}

/// Where rows lie, and their kind.
#[derive(Clone, Copy, Debug)]
pub struct RowsPlace {
    pub matrix: Matrix,
    pub kind: Kind,
    name: &'static str,
}

enum GivenHead<'py> {
    Host(Bound<'py, Head>),
    Device(Bound<'py, DeviceHead>),
}

/// The head of a call's rows: one of the host, which no call changes meanwhile, or one that is taken when it
/// is the call's turn.
pub enum HeadInUse<'a> {
    None,
    Host(InUse<'a>),
    Device(&'a DeviceHead),
}

impl<'py> GivenRows<'py> {
    /// Returns the head for a call of a pool on a device.
    pub fn head(&self, py: Python<'_>, device: &str) -> PyResult<HeadInUse<'_>> {
        Ok(match &self.head {
            None => HeadInUse::None,
            Some(GivenHead::Host(head)) => HeadInUse::Host(head.get().get(py)?),
            Some(GivenHead::Device(head)) => {
                head.get().check(py, device)?;
                HeadInUse::Device(head.get())
            }
        })
    }

    /// Returns the head that lies on a device, for a graph.
    pub fn device_head(&self) -> Option<&Bound<'py, DeviceHead>> {
        match &self.head {
            Some(GivenHead::Device(head)) => Some(head),
            _ => None,
        }
    }

    /// Returns whether there is a head.
    pub fn has_head(&self) -> bool {
        self.head.is_some()
    }
}

impl Pool {
    /// Reads rows on the host or on the pool's device.
    pub(super) fn read_rows<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        stream: Option<usize>,
    ) -> PyResult<GivenRows<'py>> {
        let py = object.py();
        let (data, name, kind, head) = if let Ok(hidden) = object.cast::<Hidden>() {
            let head = hidden.get().head.bind(py);
            let head = match (head.cast::<Head>(), head.cast::<DeviceHead>()) {
                (Ok(head), _) => GivenHead::Host(head.clone()),
                (_, Ok(head)) => GivenHead::Device(head.clone()),
                _ => return Err(wrong_type("head", "a Head or a DeviceHead", head)),
            };
            (hidden.get().states.bind(py), "states", Kind::Logits, Some(head))
        } else if let Ok(probabilities) = object.cast::<Probabilities>() {
            (probabilities.get().rows.bind(py), "rows", Kind::Probabilities, None)
        } else {
            (object, "rows", Kind::Logits, None)
        };
        let array = arrays::read(data, name, stream)?;
        let matrix = array.matrix(name)?;
        matrix.check_float_of(name, FLOATS)?;
        if matrix.location != Location::Host {
            self.check_location(name, matrix.location, "")?;
        }
        Ok(GivenRows { place: RowsPlace { matrix, kind, name }, head, array })
    }
}

impl RowsPlace {
    /// Returns the rows' matrix, in the memory of the device if it is there.
    ///
    /// # Safety
    /// For `'a`, no code frees or writes the elements, on a device while work on them runs.
    pub unsafe fn engine<'a>(&self, is_there: bool) -> Result<EngineMatrix<'a>> {
        let matrix = match is_there {
            // SAFETY: the elements lie on a device, and the caller ensures that no code frees or writes them
            // while work on them runs.
            true => unsafe { self.matrix.device_logits() }.map(EngineMatrix::from),
            // SAFETY: the elements lie on the host, and the caller ensures that no code frees or writes them
            // for `'a`.
            false => unsafe { self.matrix.logits() }.map(Into::into),
        };
        matrix.map_err(|error| rows_names(error, self.name))
    }
}

/// The heads of a call, each device's taken once.
pub struct TakenHeads<'a> {
    in_use: &'a [HeadInUse<'a>],
    turns: Vec<(&'a DeviceHead, HeadTurn<'a>)>,
}

impl<'a> TakenHeads<'a> {
    /// Takes the heads for work that `device` runs from now on. Not to be called with the GIL.
    pub fn take(in_use: &'a [HeadInUse<'a>], device: Option<&Device>) -> Result<Self> {
        let mut heads: Vec<&DeviceHead> = in_use.iter().filter_map(HeadInUse::on_device).collect();
        // In the same order in all calls, so that no two wait for each other.
        heads.sort_by_key(|head| std::ptr::from_ref(*head));
        heads.dedup_by_key(|head| std::ptr::from_ref(*head));
        let mut turns: Vec<_> = heads.into_iter().map(|head| (head, head.take())).collect();
        if let Some(device) = device {
            turns.iter_mut().try_for_each(|(_, turn)| turn.order(device))?;
        }
        Ok(Self { in_use, turns })
    }

    /// Returns a head as the engine takes it, by its number.
    pub fn engine(&self, index: usize) -> Option<EngineHead<'_>> {
        match &self.in_use[index] {
            HeadInUse::None => None,
            HeadInUse::Host(head) => Some(head.head()),
            HeadInUse::Device(head) => {
                let turn = self.turns.iter().find(|(taken, _)| std::ptr::eq(*taken, *head));
                turn.map(|(_, turn)| turn.head().into())
            }
        }
    }
}

impl<'a> HeadInUse<'a> {
    fn on_device(&self) -> Option<&'a DeviceHead> {
        match self {
            HeadInUse::Device(head) => Some(head),
            _ => None,
        }
    }
}

/// Returns a matrix as rows of which the head makes logits, if there is one.
pub fn engine_rows<'a>(matrix: EngineMatrix<'a>, kind: Kind, head: Option<EngineHead<'a>>) -> Rows<'a> {
    head.map_or(Rows::of(matrix, kind), |head| Rows::hidden(head, matrix))
}

#[pymethods]
impl Head {
    /// Why an auto head must compute every logit of the rows of a pool's request, for every hidden state;
    /// None if there is no such reason.
    ///
    /// The reason is "hook" (hooked: whether the row has a hook; a pool on a device has none), "kept" (the
    /// pool reports kept sets, and no filter bounds them), "logprobs" (of a mode whose members are all
    /// tokens), "dynamic_temperature", "mirostat", "joint", "route", or the name of the filter that acts
    /// first, such as "top_p". A row may take the whole product all the same: for a hidden state that is not
    /// finite, where too many tokens could be chosen, or in a call of many rows.
    ///
    /// Raises ValueError for a vacant slot.
    #[staticmethod]
    #[pyo3(signature = (pool, slot, *, hooked=false))]
    fn needs_whole_row(
        #[pyo3(from_py_with = argument)] pool: Bound<'_, Pool>,
        slot: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = argument)] hooked: bool,
    ) -> PyResult<Option<&'static str>> {
        let slot = extract_int(slot, "slot")?;
        pool.get().with(pool.py(), None, |inner| {
            let pool = inner.pool()?;
            let reason = pool.needs_whole_row(slot, hooked && pool.device().is_none())?;
            Ok(reason.map(|reason| reason.name()))
        })
    }
}
