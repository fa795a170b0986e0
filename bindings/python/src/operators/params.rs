//! The parameters of a call: temperature and filters of rows, and the keys of draws.

use gumball_engine::{Draws, RowParams, SamplingParams};
use gumball_inspect::fresh_seed;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use super::columns::{Number, Value};
use super::input::Input;
use crate::errors::{InvalidTypeError, InvalidValueError};
use crate::params;

/// Temperature and filters of a call: the common parameters, and the values that replace them.
#[derive(Default)]
pub struct Filters {
    common: SamplingParams,
    temperature: Option<Value<f32>>,
    top_k: Option<Value<i64>>,
    top_p: Option<Value<f32>>,
    min_p: Option<Value<f32>>,
}

impl Filters {
    /// A temperature alone.
    pub fn of_temperature(temperature: Option<Value<f32>>) -> Self {
        Self { temperature, ..Self::default() }
    }

    /// Reads the keywords temperature, top_k, top_p, min_p, order and params, all of which may be absent or
    /// None. `operator`: its name, for the error of another keyword.
    pub fn read<'py>(
        input: &mut Input<'_, 'py>,
        operator: &str,
        keywords: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Self> {
        const NAMES: [&str; 6] = ["temperature", "top_k", "top_p", "min_p", "order", "params"];
        let (py, mut common) = (input.object.py(), SamplingParams::default());
        for name in keywords.into_iter().flat_map(|keywords| keywords.keys()) {
            let name: String = name.extract()?;
            if !NAMES.contains(&&*name) {
                let text = format!("{operator}() got an unexpected keyword argument '{name}'");
                return Err(InvalidTypeError::new_err(text));
            }
        }
        let given = |name: &Bound<'py, PyString>| match keywords {
            Some(keywords) => Ok::<_, PyErr>(keywords.get_item(name)?.filter(|value| !value.is_none())),
            None => Ok(None),
        };
        if let Some(params) = given(intern!(py, "params"))? {
            common = params::read(&params)?;
        }
        if let Some(order) = given(intern!(py, "order"))? {
            common.order = params::order(&order)?;
        }
        macro_rules! value {
            ($name:literal) => {
                given(intern!(py, $name))?.map(|value| Value::read(input, &value, $name)).transpose()?
            };
        }
        let (temperature, top_k) = (value!("temperature"), value!("top_k"));
        Ok(Self { common, temperature, top_k, top_p: value!("top_p"), min_p: value!("min_p") })
    }

    /// Returns the parameters as the engine takes them.
    pub fn row_params(&self) -> RowParams<'_> {
        RowParams {
            common: &self.common,
            temperature: self.temperature.as_ref().map(Value::per_row),
            top_k: self.top_k.as_ref().map(Value::per_row),
            top_p: self.top_p.as_ref().map(Value::per_row),
            min_p: self.min_p.as_ref().map(Value::per_row),
        }
    }
}

/// The keys of a call's draws: seeds, positions and draw indices.
pub struct DrawKeys {
    seed: Option<Value<u64>>,
    position: Option<Value<u32>>,
    draw: Option<Value<u32>>,
    offsets: bool,
    zero_for_none: bool,
}

/// The keys as the caller gave them.
pub struct KeyArguments<'a, 'py> {
    pub seed: Option<&'a Bound<'py, PyAny>>,
    pub position: Option<&'a Bound<'py, PyAny>>,
    pub draw: Option<&'a Bound<'py, PyAny>>,
    /// Whether 64-bit positions in arrays are offsets; [`Draws::offsets`] says what that means.
    pub offsets: bool,
    pub zero_for_none: bool,
}

impl DrawKeys {
    /// Reads the keys of draws.
    pub fn read<'py>(input: &mut Input<'_, 'py>, arguments: &KeyArguments<'_, 'py>) -> PyResult<Self> {
        let KeyArguments { seed, position, draw, offsets, zero_for_none } = *arguments;
        let (draw, seed) = (given(input, draw, "draw")?, given(input, seed, "seed")?);
        let (seed, position) = match offsets && !input.is_on_device() {
            true => match given(input, position, "position")? {
                Some(offset) => {
                    let seed = seed.unwrap_or_else(|| Value::All(fresh_seed()));
                    let (seed, position) = folded(seed, offset);
                    (Some(seed), Some(position))
                }
                None => (seed, None),
            },
            false => (seed, given(input, position, "position")?),
        };
        Ok(Self { seed, position, draw, offsets, zero_for_none })
    }

    /// Reads keys that lie in pools; returns whether the high words of positions are draw indices for the
    /// engine as well: on the host they become such here.
    pub fn pooled<'py>(
        input: &mut Input<'_, 'py>,
        arguments: &KeyArguments<'_, 'py>,
        high_draws: bool,
    ) -> PyResult<(Self, bool)> {
        if !high_draws || input.is_on_device() {
            return Ok((Self::read(input, arguments)?, high_draws));
        }
        let KeyArguments { seed, position, draw, offsets, zero_for_none } = *arguments;
        if draw.is_some() {
            let text = "high_draws conflicts with draw: the high word of a position says one thing";
            return Err(InvalidValueError::new_err(text));
        }
        let (seed, words) = (given(input, seed, "seed")?, given::<u64>(input, position, "position")?);
        let position = words.as_ref().map(|words| halves(words, |word| word as u32));
        let draw = words.as_ref().map(|words| halves(words, |word| (word >> 32) as u32));
        Ok((Self { seed, position, draw, offsets, zero_for_none }, false))
    }

    /// Returns how many seeds there are; `None` for one for all.
    pub fn seeds(&self) -> Option<usize> {
        match self.seed.as_ref()? {
            Value::All(_) => None,
            Value::List(seeds) => Some(seeds.len()),
            Value::Device(column) => Some(column.rows()),
        }
    }

    /// Returns the keys as the engine takes them.
    pub fn draws(&self) -> Draws<'_> {
        Draws {
            seeds: self.seed.as_ref().map(Value::per_row),
            positions: self.position.as_ref().map(Value::per_row),
            draws: self.draw.as_ref().map(Value::per_row),
            offsets: self.offsets,
            zero_for_none: self.zero_for_none,
        }
    }
}

/// Reads a key, if it is there.
fn given<'py, T: Number>(
    input: &mut Input<'_, 'py>,
    object: Option<&Bound<'py, PyAny>>,
    name: &str,
) -> PyResult<Option<Value<T>>> {
    object.map(|object| Value::read(input, object, name)).transpose()
}

/// Returns a half of each word that lies on the host.
fn halves(words: &Value<u64>, half: impl Fn(u64) -> u32) -> Value<u32> {
    match words {
        Value::All(word) => Value::All(half(*word)),
        Value::List(words) => Value::List(words.iter().map(|word| half(*word)).collect()),
        Value::Device(_) => unreachable!("the arrays lie on the host"),
    }
}

/// Splits 64-bit offsets on the host into seeds and positions, as kernels do on a device; a list of one
/// number holds for all outputs, as there.
fn folded(seed: Value<u64>, offset: Value<u64>) -> (Value<u64>, Value<u32>) {
    const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
    let moved = |seed: u64, offset: u64| {
        let high = i64::from((offset >> 32) as i32).cast_unsigned();
        seed.wrapping_add(high.wrapping_mul(STEP))
    };
    let all = |value: Value<u64>| match value {
        Value::List(values) if values.len() == 1 => Value::All(values[0]),
        value => value,
    };
    match (all(seed), all(offset)) {
        (Value::All(seed), Value::All(offset)) => {
            (Value::All(moved(seed, offset)), Value::All(offset as u32))
        }
        (Value::List(seeds), Value::All(offset)) => {
            let seeds = seeds.into_iter().map(|seed| moved(seed, offset)).collect();
            (Value::List(seeds), Value::All(offset as u32))
        }
        (seed, Value::List(offsets)) => {
            let seeds = match seed {
                Value::List(seeds) => seeds.iter().zip(&offsets).map(|(a, b)| moved(*a, *b)).collect(),
                Value::All(seed) => offsets.iter().map(|offset| moved(seed, *offset)).collect(),
                Value::Device(_) => unreachable!("the arrays lie on the host"),
            };
            (Value::List(seeds), Value::List(offsets.into_iter().map(|offset| offset as u32).collect()))
        }
        _ => unreachable!("the arrays lie on the host"),
    }
}
