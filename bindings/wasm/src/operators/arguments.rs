//! What operators take besides rows: filters, a number or one per row; seeds, positions and draw indices.

use gumball_engine::{Draws, PerRow, RowParams, SamplingParams};
use gumball_spec::memory::{product, with_capacity};
use wasm_bindgen::prelude::*;

use crate::error::{Result, entropy};
use crate::params;
use crate::values::{Integer, Options, elements, integer, number};

/// The name in errors of the memory for repeated seeds and positions.
const MEMORY: &str = "memory for outputs";

/// A number, or one per row.
#[derive(Debug)]
pub enum Column<T> {
    All(T),
    Each(Vec<T>),
}

impl<T: Copy> Column<T> {
    fn read(value: &JsValue, name: &str, one: impl Fn(&JsValue, &str) -> Result<T>) -> Result<Self> {
        if !value.is_object() {
            return one(value, name).map(Column::All);
        }
        elements(value, name)?.iter().map(|value| one(value, name)).collect::<Result<_>>().map(Column::Each)
    }

    fn per_row(&self) -> PerRow<'_, T> {
        match self {
            Column::All(value) => PerRow::All(*value),
            Column::Each(values) => PerRow::Host(values),
        }
    }

    /// Returns the column with each value `n` times.
    fn repeated(self, n: usize) -> Result<Self> {
        Ok(match self {
            Column::All(value) => Column::All(value),
            Column::Each(values) => {
                product(MEMORY, &[values.len(), n, size_of::<T>()])?;
                let mut all = with_capacity(MEMORY, values.len() * n)?;
                all.extend(values.into_iter().flat_map(|value| std::iter::repeat_n(value, n)));
                Column::Each(all)
            }
        })
    }
}

/// Reads a column of integers.
fn integers<T: Integer + Copy>(options: &Options, name: &str) -> Result<Option<Column<T>>> {
    options.get(name)?.map(|value| Column::read(&value, name, integer)).transpose()
}

/// Reads a column of numbers.
fn numbers(options: &Options, name: &str) -> Result<Option<Column<f32>>> {
    options.get(name)?.map(|value| Column::read(&value, name, number)).transpose()
}

/// The names of the filters' options.
pub const FILTERS: [&str; 6] = ["temperature", "top_k", "top_p", "min_p", "order", "params"];

/// The filters of rows.
#[derive(Debug)]
pub struct Filters {
    common: SamplingParams,
    temperature: Option<Column<f32>>,
    top_k: Option<Column<i64>>,
    top_p: Option<Column<f32>>,
    min_p: Option<Column<f32>>,
}

impl Filters {
    /// Reads them.
    pub fn read(options: &Options) -> Result<Self> {
        let mut common = params::read(&options.get("params")?.unwrap_or(JsValue::UNDEFINED))?;
        if let Some(order) = options.get("order")? {
            common.order = params::read(&crate::values::object([("order", order)]))?.order;
        }
        Ok(Self {
            common,
            temperature: numbers(options, "temperature")?,
            top_k: integers(options, "top_k")?,
            top_p: numbers(options, "top_p")?,
            min_p: numbers(options, "min_p")?,
        })
    }

    /// Returns them as the engine takes them.
    pub fn row_params(&self) -> RowParams<'_> {
        RowParams {
            temperature: self.temperature.as_ref().map(Column::per_row),
            top_k: self.top_k.as_ref().map(Column::per_row),
            top_p: self.top_p.as_ref().map(Column::per_row),
            min_p: self.min_p.as_ref().map(Column::per_row),
            ..RowParams::new(&self.common)
        }
    }

    /// Returns the temperature; 1 where there is none.
    pub fn temperature(&self) -> PerRow<'_, f32> {
        self.temperature.as_ref().map_or(PerRow::All(1.0), Column::per_row)
    }
}

/// The names of the options that say which numbers are drawn with.
pub const KEYS: [&str; 3] = ["seed", "position", "draw"];

/// Seeds, positions and draw indices.
#[derive(Debug)]
pub struct Keys {
    seeds: Column<u64>,
    positions: Option<Column<u32>>,
    draws: Option<Column<u32>>,
}

impl Keys {
    /// Reads them; `n`: how many outputs each seed and position is for.
    pub fn read(options: &Options, n: usize) -> Result<Self> {
        let positions: Option<Column<u32>> = integers(options, "position")?;
        // The engine has no source of entropy in WebAssembly, so the seed comes from the host program's.
        let (seeds, positions) = match integers(options, "seed")? {
            Some(seeds) => (seeds, positions),
            None => (Column::All(entropy()), positions.or(Some(Column::All(0)))),
        };
        Ok(Self {
            seeds: seeds.repeated(n)?,
            positions: positions.map(|positions| positions.repeated(n)).transpose()?,
            draws: integers(options, "draw")?,
        })
    }

    /// Returns them as the engine takes them.
    pub fn draws(&self) -> Draws<'_> {
        Draws {
            seeds: Some(self.seeds.per_row()),
            positions: self.positions.as_ref().map(Column::per_row),
            draws: self.draws.as_ref().map(Column::per_row),
            ..Draws::default()
        }
    }
}
