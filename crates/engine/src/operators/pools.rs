//! Draws whose parameters lie in pools: columns with an element for each of many requests, of which a call
//! draws for some.

use std::borrow::Cow;

use gumball_spec::{Error, Result, Status, memory};

use super::MEMORY;
use super::draws::Draws;
use super::host::Host;
use super::params::{PerRow, RowParams};
use crate::logits::Logits;

/// Which elements of the pools the rows of a call read.
#[derive(Clone, Copy, Debug)]
pub struct PoolSlots<'a> {
    /// The slot of each request: the index of its elements in the pools.
    pub slots: PerRow<'a, u32>,
    /// The elements of each pool.
    pub size: usize,
    /// How many neighbouring rows a request has. Its j-th row, from 0, is j positions on.
    pub rows_per_slot: usize,
    /// Whether the high words of 64-bit positions in a column on a device are draw indices; then there are no
    /// others.
    pub high_draws: bool,
}

impl<'a> PoolSlots<'a> {
    /// Takes one row for each slot, from pools of `size` elements.
    #[must_use]
    pub fn new(slots: impl Into<PerRow<'a, u32>>, size: usize) -> Self {
        Self { slots: slots.into(), size, rows_per_slot: 1, high_draws: false }
    }

    /// Returns the slots of the requests that have `rows` rows together, for a list on the host.
    pub(super) fn listed(&self, rows: usize) -> Result<Cow<'a, [u32]>> {
        let each = self.rows_per_slot;
        if each == 0 || !rows.is_multiple_of(each) {
            let allowed = format!("at least 1, and divide the number of rows, {rows}");
            return Err(Error::out_of_range("rows_per_slot", each, allowed));
        }
        self.slots.indices("slots", rows / each, (self.size, "an element of the pools"))
    }
}

/// Returns the elements of a pool that rows read.
fn gathered<T: Copy>(
    pool: PerRow<'_, T>,
    parameter: &'static str,
    size: usize,
    slots: &[u32],
) -> Result<Vec<T>> {
    pool.check_host(parameter, size)?;
    let mut values = memory::with_capacity(MEMORY, slots.len())?;
    values.extend(slots.iter().map(|slot| pool.of(*slot as usize)));
    Ok(values)
}

impl Host {
    /// Draws a token for each row; see [`Operators::sample_from_pools`](super::Operators::sample_from_pools).
    pub(super) fn sample_from_pools(
        &self,
        rows: Logits<'_>,
        pools: &PoolSlots<'_>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        tokens: &mut [i32],
        statuses: Option<&mut [Status]>,
    ) -> Result<()> {
        if pools.high_draws {
            let allowed = "for positions of 64 bits, on a device; positions of the host have 32";
            return Err(Error::out_of_range("high_draws", true, allowed));
        }
        let each = pools.rows_per_slot;
        let slots = pools.listed(rows.rows())?;
        let slots: Vec<u32> = slots.iter().flat_map(|slot| std::iter::repeat_n(*slot, each)).collect();
        let (seeds, positions) = draws.seeds_and_positions()?;
        macro_rules! gather {
            ($($name:ident of $from:expr),*) => {
                $(let $name = $from
                    .map(|pool| gathered(pool, stringify!($name), pools.size, &slots))
                    .transpose()?;)*
            };
        }
        gather!(
            temperature of params.temperature, top_k of params.top_k, top_p of params.top_p, min_p of params.min_p,
            seeds of Some(seeds), positions of Some(positions)
        );
        let mut positions = positions.expect("there are some");
        positions.iter_mut().enumerate().for_each(|(row, position)| {
            *position = position.wrapping_add((row % each) as u32);
        });
        let numbers = draws.draws.map(|pool| gathered(pool, "draws", pools.size, &slots)).transpose()?;
        let params = RowParams {
            common: params.common,
            temperature: temperature.as_deref().map(PerRow::Host),
            top_k: top_k.as_deref().map(PerRow::Host),
            top_p: top_p.as_deref().map(PerRow::Host),
            min_p: min_p.as_deref().map(PerRow::Host),
        };
        let draws = Draws {
            seeds: seeds.as_deref().map(PerRow::Host),
            positions: Some(PerRow::Host(&positions)),
            draws: numbers.as_deref().map(PerRow::Host),
            ..*draws
        };
        self.sample(rows, None, &params, &draws, tokens, statuses)
    }
}
