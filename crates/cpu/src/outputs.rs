//! Outputs: a row of probabilities, or the row with all but its kept tokens dropped (rule P4).
//!
//! A softmax without filters is three visits to the row: maxima, sums, and the one that writes. With filters,
//! tiles that hold no kept token are filled without being read, and a listed set is written token by token.

use gumball_spec::edit::Hook;
use gumball_spec::num::{key_id, key_logit};
use gumball_spec::survey::{Measure, in_first_weights};
use gumball_spec::{Result, Row, Status, TILE};
use half::{bf16, f16};

use crate::Task;
use crate::cut::{Cut, CutLanes};
use crate::filter::Given;
use crate::float_env::FloatEnv;
use crate::lanes::{Element, Kernel, Lanes, Proven, WIDTH, dispatch};
use crate::measure::{Probabilities, Weights, measured};
use crate::tiles::{EMPTY_TILE, View};
use crate::workspace::{Workspace, choose, open};

/// A row to be written, in the caller's type.
#[derive(Debug)]
pub enum RowMut<'a> {
    /// Single precision.
    F32(&'a mut [f32]),
    /// Truncated single precision.
    Bf16(&'a mut [bf16]),
    /// Half precision.
    F16(&'a mut [f16]),
}

impl RowMut<'_> {
    /// Returns the number of ids.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.as_row().vocab()
    }

    /// Returns the row to be read.
    #[must_use]
    pub fn as_row(&self) -> Row<'_> {
        match self {
            RowMut::F32(row) => Row::F32(row),
            RowMut::Bf16(row) => Row::Bf16(row),
            RowMut::F16(row) => Row::F16(row),
        }
    }
}

macro_rules! row_from {
    ($($type:ty => $variant:ident),*) => {$(
        impl<'a> From<&'a mut [$type]> for RowMut<'a> {
            fn from(row: &'a mut [$type]) -> Self {
                RowMut::$variant(row)
            }
        }

        impl<'a> From<&'a mut Vec<$type>> for RowMut<'a> {
            fn from(row: &'a mut Vec<$type>) -> Self {
                RowMut::$variant(row)
            }
        }
    )*};
}

row_from!(f32 => F32, bf16 => Bf16, f16 => F16);

/// The output that a row is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// The distribution that the token is drawn from: the softmax of logits, or what is kept of
    /// probabilities, renormalised. 0 elsewhere; at temperature 0 the winner has 1; an empty row is all 0.
    Probabilities,
    /// The row after its edits with only the kept tokens left: other logits are -inf, other probabilities 0.
    Masked,
}

/// The status and the temperature of a written row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Written {
    /// The status of its data.
    pub status: Status,
    /// The temperature in use; 0 if greedy. That of the parameters in an empty row.
    pub temperature: f32,
}

impl Workspace {
    /// Writes the output of a row into another row. The task's draw matters to XTC alone; a forced token does
    /// not.
    ///
    /// Each number is rounded once, to the type of `out`.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Length`] if a row is not as long as the vocabulary of the parameters.
    /// - The errors of [`SamplingParams::validate_for`](gumball_spec::SamplingParams::validate_for) for a row
    ///   of probabilities.
    /// - [`gumball_spec::Error::OutOfRange`] if `mu` is NaN or +inf.
    /// - [`gumball_spec::Error::Conflict`] if a row of probabilities has a hook.
    pub fn write(
        &mut self,
        row: Row<'_>,
        task: &Task<'_>,
        hook: Option<Hook<'_>>,
        output: Output,
        mut out: RowMut<'_>,
    ) -> Result<Written> {
        task.validate(row, hook.is_some())?;
        task.check_length("out", out.vocab())?;
        self.begin()?;
        let _env = FloatEnv::enter();
        let (written, plan) = self.plan(row, task, hook, output);
        let view = View { odd: plan.odd, ..self.edits.view(row) };
        self.carry_out(&view, &plan, false, &mut out);
        self.end();
        Ok(written)
    }

    /// Writes the output of a row in its own place.
    ///
    /// # Errors
    /// The errors of [`Workspace::write`].
    pub fn write_in_place(
        &mut self,
        mut row: RowMut<'_>,
        task: &Task<'_>,
        output: Output,
    ) -> Result<Written> {
        task.validate(row.as_row(), false)?;
        self.begin()?;
        let _env = FloatEnv::enter();
        let (written, plan) = self.plan(row.as_row(), task, None, output);
        // The row is read as it is written, tile by tile.
        let view = View { odd: plan.odd, ..self.edits.view(Row::F32(&[])) };
        self.carry_out(&view, &plan, true, &mut row);
        self.end();
        Ok(written)
    }

    /// Finds the kept set and its sum.
    fn plan(
        &mut self,
        row: Row<'_>,
        task: &Task<'_>,
        hook: Option<Hook<'_>>,
        output: Output,
    ) -> (Written, Plan) {
        self.filter.mass.visits = 0;
        let (reader, mut status) =
            open(self.level, &mut self.edits, &mut self.maxima, self.list_limit, row, task, hook);
        let (temperature, set) = choose(&reader, &mut self.filter, task);
        if set.is_none() {
            status.insert(Status::EMPTY);
        }
        let certain = temperature == 0.0;
        let measure = Measure::new(task.kind, if certain { 1.0 } else { temperature });
        let mut sum = 1.0;
        if let Some(set) = set.as_ref().filter(|_| output == Output::Probabilities && !certain) {
            sum = in_first_weights(set.total(&reader, &mut self.filter, measure));
        }
        let plan = Plan { odd: reader.view.odd, output, measure, certain, set, sum };
        (Written { status, temperature }, plan)
    }

    fn carry_out(&self, view: &View<'_>, plan: &Plan, in_place: bool, out: &mut RowMut<'_>) {
        let maxima = &self.maxima[..];
        let keys = &self.filter.list.keys[..];
        match out {
            RowMut::F32(out) => plan.write(self.level, view, maxima, keys, in_place, out),
            RowMut::Bf16(out) => plan.write(self.level, view, maxima, keys, in_place, out),
            RowMut::F16(out) => plan.write(self.level, view, maxima, keys, in_place, out),
        }
    }
}

/// The output that is to be written.
struct Plan {
    odd: bool,
    output: Output,
    measure: Measure,
    /// Whether the first token has all.
    certain: bool,
    set: Option<Given>,
    sum: f32,
}

impl Plan {
    fn write<E: Element>(
        &self,
        level: Proven,
        view: &View<'_>,
        maxima: &[f32],
        keys: &[u64],
        in_place: bool,
        out: &mut [E],
    ) {
        let dropped = match self.output {
            Output::Probabilities => 0.0,
            Output::Masked => view.kind.dropped(),
        };
        let Some(set) = &self.set else { return out.fill(E::from_f32(dropped)) };
        if self.certain && self.output == Output::Probabilities {
            out.fill(E::from_f32(dropped));
            out[key_id(set.cut.first) as usize] = E::from_f32(1.0);
            return;
        }
        if let Some(range) = &set.listed {
            out.fill(E::from_f32(dropped));
            let keys = &keys[range.clone()];
            match self.output {
                Output::Masked => {
                    keys.iter().for_each(|key| out[key_id(*key) as usize] = E::from_f32(key_logit(*key)));
                }
                Output::Probabilities => measured!(self.measure, |weights| {
                    let put = &mut |keys: &[u64], values: &[f32; WIDTH]| {
                        for (key, value) in keys.iter().zip(values) {
                            out[key_id(*key) as usize] = E::from_f32(*value);
                        }
                    };
                    dispatch(level, WriteListed { keys, first: set.first, sum: self.sum, weights, put });
                }),
            }
            return;
        }
        let tiles =
            Tiles { view, maxima, cut: set.cut, first: set.first, in_place, sum: self.sum, dropped, out };
        let all = set.cut == Cut::all(view.kind);
        match self.output {
            // What is written as it is has no weight: any measure will do.
            Output::Masked => dispatch(level, Write::<_, _, MASKED>(tiles, Probabilities)),
            Output::Probabilities => measured!(self.measure, |weights| match all {
                true => dispatch(level, Write::<_, _, EVERY>(tiles, weights)),
                false => dispatch(level, Write::<_, _, INSIDE>(tiles, weights)),
            }),
        }
    }
}

/// The probabilities of all tokens; what is none has no weight.
const EVERY: u8 = 0;
/// The probabilities of the tokens of a cut.
const INSIDE: u8 = 1;
/// The tokens of a cut as they are.
const MASKED: u8 = 2;

struct Tiles<'a, E> {
    /// The row; if in place, only what is to be done to it.
    view: &'a View<'a>,
    maxima: &'a [f32],
    cut: Cut,
    first: f32,
    in_place: bool,
    sum: f32,
    dropped: f32,
    out: &'a mut [E],
}

struct Write<'a, E, W, const WHAT: u8>(Tiles<'a, E>, W);

impl<E: Element, W: Weights, const WHAT: u8> Kernel for Write<'_, E, W, WHAT> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self(Tiles { view, maxima, cut, first, in_place, sum, dropped, out }, weights) = self;
        let low = cut.low();
        let cut = CutLanes::new(l, cut);
        let (first, sum, none) = (l.splat(first), l.splat(sum), l.splat(dropped));
        let mut scratch = EMPTY_TILE;
        for (tile, maximum) in maxima.iter().enumerate() {
            let start = tile * TILE;
            let end = out.len().min(start + TILE);
            if *maximum < low {
                out[start..end].fill(E::from_f32(dropped));
                continue;
            }
            let from = if in_place {
                view.make(l, E::row(out), tile, &mut scratch);
                &scratch
            } else {
                view.tile(l, tile, &mut scratch)
            };
            let mut last = [E::from_f32(dropped); TILE];
            let is_whole = end - start == TILE;
            let to = if is_whole { &mut out[start..end] } else { &mut last[..] };
            let chunks = from.as_chunks::<WIDTH>().0.iter().zip(to.as_chunks_mut::<WIDTH>().0);
            for (i, (chunk, to)) in chunks.enumerate() {
                let z = l.load(chunk);
                let mut value = match WHAT {
                    MASKED => l.add(z, l.splat(0.0)),
                    _ => l.div(weights.ratio(l, z, first), sum),
                };
                if WHAT != EVERY {
                    let id = l.add_u(l.iota(), l.splat_u((start + i * WIDTH) as u32));
                    value = l.select(cut.members(l, z, id), value, none);
                }
                E::store(l, value, to);
            }
            if !is_whole {
                out[start..end].copy_from_slice(&last[..end - start]);
            }
        }
    }
}

/// The probabilities of listed tokens.
struct WriteListed<'a, W> {
    keys: &'a [u64],
    first: f32,
    sum: f32,
    weights: W,
    /// Writes the probabilities of up to sixteen tokens.
    put: &'a mut dyn FnMut(&[u64], &[f32; WIDTH]),
}

impl<W: Weights> Kernel for WriteListed<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let (first, sum) = (l.splat(self.first), l.splat(self.sum));
        for keys in self.keys.chunks(WIDTH) {
            let mut values = [self.first; WIDTH];
            for (value, key) in values.iter_mut().zip(keys) {
                *value = key_logit(*key);
            }
            l.store(l.div(self.weights.ratio(l, l.load(&values), first), sum), &mut values);
            (self.put)(keys, &values);
        }
    }
}
