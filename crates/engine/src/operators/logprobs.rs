//! Logprobs of given ids over given sets, entropies, and the gradient of both (rules L4 and L5), for
//! trainers.

use gumball_cpu::{Derivatives, History, RowMut, Task};
pub use gumball_spec::logprobs::gradient::WEIGHED_NUMBERS;
use gumball_spec::logprobs::gradient::{GivenIds, IGNORED, MAX_GIVEN_IDS, Weighed};
use gumball_spec::{Error, Kind, NONE, Result, SamplingParams, memory};

use super::arrays::{PerRowMut, host_column};
use super::host::{Host, task};
use super::params::{PerRow, PreparedRows, RowParams};
use super::{LogitsMut, MEMORY};
use crate::logits::Logits;
use crate::masks::Masks;

/// The ids whose logprobs are asked for, and over which tokens.
#[derive(Clone, Copy, Debug)]
pub struct GivenTokens<'a> {
    /// `[rows, width]`: ids of the vocabulary, -1 for none, or `ignored`. A single one holds for all rows if
    /// the width is 1.
    pub ids: PerRow<'a, i32>,
    /// The number of ids of each row, in 0..=1024.
    pub width: usize,
    /// The id that is ignored.
    pub ignored: i32,
    /// The temperature of each row, in 0..=2^100.
    pub temperature: PerRow<'a, f32>,
    /// The set of each row, as a bitmask.
    pub kept: Masks<'a>,
}

impl<'a> GivenTokens<'a> {
    /// Asks for one id of each row over the whole vocabulary, at temperature 1.
    #[must_use]
    pub fn new(ids: PerRow<'a, i32>) -> Self {
        Self { ids, width: 1, ignored: IGNORED, temperature: PerRow::All(1.0), kept: Masks::None }
    }
}

/// Columns that receive what is said of given ids.
#[derive(Debug)]
pub struct GivenLogprobs<'a> {
    /// `[rows, width]`.
    pub logprobs: PerRowMut<'a, f32>,
    /// `[rows]`, in nats.
    pub entropies: Option<PerRowMut<'a, f32>>,
    /// `[rows, 3]`: the weights of the rows' members, which the gradient takes.
    pub weighed: Option<PerRowMut<'a, f32>>,
}

/// The derivatives of a loss by what rows were asked for.
#[derive(Clone, Copy, Debug)]
pub struct LossDerivatives<'a> {
    /// `[rows, 3]`: what [`Operators::logprobs`](super::Operators::logprobs) wrote for these rows, tokens and
    /// entropies.
    pub weighed: PerRow<'a, f32>,
    /// `[rows, width]`: by the logprobs.
    pub of_logprobs: PerRow<'a, f32>,
    /// `[rows]`: by the entropies; `None`: 0.
    pub of_entropies: Option<PerRow<'a, f32>>,
}

/// Tokens that were checked for rows of the host.
struct HostTokens<'a> {
    ids: &'a [i32],
    width: usize,
    ignored: i32,
    prepared: PreparedRows,
    kept: Masks<'a>,
    history: History,
}

impl HostTokens<'_> {
    fn of(&self, row: usize) -> GivenIds<'_> {
        let first = if self.ids.len() == 1 { 0 } else { row * self.width };
        GivenIds { ids: &self.ids[first..][..self.width], ignored: self.ignored }
    }

    fn task(&self, row: usize) -> Task<'_> {
        Task { mask: self.kept.row(row), ..task(Kind::Logits, self.prepared.of(row), &self.history) }
    }
}

/// Returns an error unless as many ids may be asked for of a row.
fn check_width(width: usize) -> Result<()> {
    if width <= MAX_GIVEN_IDS {
        return Ok(());
    }
    Err(Error::out_of_range("width", width, format!("in 0..={MAX_GIVEN_IDS}")))
}

/// Checks an id that the host can see.
pub(super) fn check_id(id: i32, ignored: i32, vocab: usize) -> Result<()> {
    if id == ignored || id == NONE || usize::try_from(id).is_ok_and(|id| id < vocab) {
        return Ok(());
    }
    Err(Error::out_of_range("ids", id, format!("an id in 0..{vocab}, -1, or {ignored}")))
}

/// Returns an error unless rows hold logits: the rules speak of no others.
fn check_kind(kind: Kind) -> Result<()> {
    match kind {
        Kind::Logits => Ok(()),
        Kind::Probabilities => Err(Error::out_of_range("kind", "probabilities", "logits")),
    }
}

/// Returns the numbers of a list of the host, `wanted` of them.
fn listed<'a, T: Copy>(parameter: &'static str, list: &'a PerRow<'_, T>, wanted: usize) -> Result<&'a [T]> {
    list.check_host(parameter, wanted)?;
    match list {
        PerRow::Host(values) => Ok(values),
        PerRow::All(value) if wanted == 1 => Ok(std::slice::from_ref(value)),
        _ => Err(Error::out_of_range(parameter, "one for all rows", format!("a list of {wanted}"))),
    }
}

/// Checks the tokens of rows of the host.
fn checked<'a>(tokens: &'a GivenTokens<'_>, kind: Kind, rows: usize, vocab: usize) -> Result<HostTokens<'a>> {
    let GivenTokens { ids, width, ignored, temperature, kept } = tokens;
    check_kind(kind)?;
    check_width(*width)?;
    let ids = match ids {
        PerRow::All(id) if *width == 1 => std::slice::from_ref(id),
        ids => listed("ids", ids, rows * width)?,
    };
    ids.iter().try_for_each(|id| check_id(*id, *ignored, vocab))?;
    kept.check(rows, vocab)?;
    let common = SamplingParams::default();
    let params = RowParams { temperature: Some(*temperature), ..RowParams::new(&common) };
    let prepared = params.prepare(kind, rows, vocab)?;
    let history = History::new(&[]);
    Ok(HostTokens { ids, width: *width, ignored: *ignored, prepared, kept: *kept, history })
}

/// Returns the parts of a column of the host, one for each row; no parts without a column.
fn parts<'a>(
    parameter: &'static str,
    column: Option<PerRowMut<'a, f32>>,
    (rows, width): (usize, usize),
) -> Result<Vec<&'a mut [f32]>> {
    match host_column(parameter, column, rows * width)? {
        Some(column) if width > 0 => memory::collected(MEMORY, column.chunks_mut(width)),
        _ => Ok(Vec::new()),
    }
}

impl Host {
    /// Writes logprobs and entropies; see [`Operators::logprobs`](super::Operators::logprobs).
    pub(super) fn logprobs(
        &self,
        rows: Logits<'_>,
        tokens: &GivenTokens<'_>,
        out: GivenLogprobs<'_>,
    ) -> Result<()> {
        let (count, width) = (rows.rows(), tokens.width);
        let tokens = checked(tokens, rows.kind(), count, rows.vocab())?;
        let mut logprobs = parts("logprobs", Some(out.logprobs), (count, width))?;
        logprobs.resize_with(count, Default::default);
        let entropies = host_column("entropies", out.entropies, count)?;
        let weighed = parts("weighed", out.weighed, (count, WEIGHED_NUMBERS))?;
        let items = memory::collected(MEMORY, logprobs.into_iter().enumerate())?;
        let found = self.over(items, |workspace, (row, logprobs)| {
            let (task, ids) = (tokens.task(row), tokens.of(row));
            workspace.logprobs_of(rows.row(row), &task, &ids, entropies.is_some(), logprobs)
        })?;
        for (to, found) in entropies.into_iter().flatten().zip(&found) {
            *to = found.entropy();
        }
        for (to, found) in weighed.into_iter().zip(&found) {
            to.copy_from_slice(&[found.first, found.mass, found.distance]);
        }
        Ok(())
    }

    /// Writes derivatives; see [`Operators::logprobs_gradient`](super::Operators::logprobs_gradient).
    pub(super) fn logprobs_gradient(
        &self,
        from: Option<Logits<'_>>,
        to: LogitsMut<'_>,
        tokens: &GivenTokens<'_>,
        by: &LossDerivatives<'_>,
    ) -> Result<()> {
        let (count, width) = (to.rows(), tokens.width);
        if let Some(from) = &from {
            if from.rows() != count {
                return Err(Error::length("out", count, format!("a row for each of {}", from.rows())));
            }
            if from.vocab() != to.vocab() {
                return Err(Error::out_of_range("out.vocab", to.vocab(), format!("{}", from.vocab())));
            }
        }
        let kind = from.as_ref().map_or(to.kind(), Logits::kind);
        let tokens = checked(tokens, kind, count, to.vocab())?;
        let of_logprobs = listed("of_logprobs", &by.of_logprobs, count * width)?;
        let weighed = listed("weighed", &by.weighed, count * WEIGHED_NUMBERS)?;
        let of_entropies = by.of_entropies.unwrap_or(PerRow::All(0.0));
        of_entropies.check_host("of_entropies", count)?;
        self.over(to.into_rows()?, |workspace, (row, out): (usize, RowMut<'_>)| {
            let number = |i| weighed[row * WEIGHED_NUMBERS + i];
            let weighed = Weighed { first: number(0), mass: number(1), distance: number(2) };
            let of_logprobs = &of_logprobs[row * width..][..width];
            let by = Derivatives { of_logprobs, of_entropy: of_entropies.of(row) };
            let from = from.as_ref().map(|from| from.row(row));
            workspace.gradient(from, &tokens.task(row), &tokens.of(row), &weighed, by, out)
        })?;
        Ok(())
    }
}
