//! Logprobs of given ids over a given set, its entropy, and the gradient of both (L4 and L5).
//!
//! The set is the row's bitmask, so tiles that hold no member are not read. Forward is a survey and one
//! weighing of the members; backward is one visit, in which a tile's derivatives may take the place of its
//! logits.

use gumball_spec::logprobs::gradient::{GivenIds, Slope, Weighed};
use gumball_spec::survey::Measure;
use gumball_spec::{Kind, Result, Row, SamplingParams, TILE};

use crate::Task;
use crate::filter::Given;
use crate::float_env::FloatEnv;
use crate::lanes::{Element, Kernel, Lanes, WIDTH, dispatch};
use crate::measure::{Exponents, Logits};
use crate::num;
use crate::outputs::RowMut;
use crate::tiles::{EMPTY_TILE, MASK_WORDS, View};
use crate::workspace::{Workspace, open};

/// The derivatives of a loss by the logprobs and the entropy of a row.
#[derive(Clone, Copy, Debug)]
pub struct Derivatives<'a> {
    /// By the logprob of each id.
    pub of_logprobs: &'a [f32],
    /// By the entropy.
    pub of_entropy: f32,
}

impl Workspace {
    /// Writes the logprobs of ids over the tokens that the task's mask allows, at the temperature of its
    /// parameters (L4); returns the weights of these tokens, with their mean distance if `entropy` is set.
    /// Filters and edits do not act.
    ///
    /// # Errors
    /// - [`gumball_spec::Error::Length`] if the row is not as long as the vocabulary of the parameters.
    ///
    /// # Panics
    /// If `out` has another length than the ids.
    pub fn logprobs_of(
        &mut self,
        row: Row<'_>,
        task: &Task<'_>,
        ids: &GivenIds<'_>,
        entropy: bool,
        out: &mut [f32],
    ) -> Result<Weighed> {
        assert_eq!(out.len(), ids.ids.len(), "a logprob for each id");
        task.validate(row, false)?;
        if ids.is_ignored() {
            out.fill(0.0);
            return Ok(Weighed::default());
        }
        self.begin()?;
        let _env = FloatEnv::enter();
        let temperature = task.prepared.params().temperature;
        let (reader, _) =
            open(self.level, &mut self.edits, &mut self.maxima, self.list_limit, row, task, None);
        let mut weighed = Weighed::default();
        if reader.first > f32::NEG_INFINITY && !SamplingParams::is_greedy(temperature) {
            let (members, measure) = (Given::whole(&reader), Measure::new(Kind::Logits, temperature));
            let (mass, distances) = match entropy {
                true => members.total_and_distances(&reader, &mut self.filter, measure),
                false => (members.total(&reader, &mut self.filter, measure), 0),
            };
            // Never 0, unless the row was written since its survey.
            weighed = Weighed::new(reader.first, mass.max(1), distances);
        }
        ids.logprobs(&weighed, temperature, |id| reader.view.logit(id) + 0.0, out);
        self.end();
        Ok(weighed)
    }

    /// Writes the derivatives of a loss by the logits of a row (L5), each rounded once to the type of `out`.
    /// `row`: the logits; `None`: the logits lie in `out` and are replaced. `weighed`: the result of
    /// [`Workspace::logprobs_of`] for this row and task.
    ///
    /// # Errors
    /// - The errors of [`Workspace::logprobs_of`].
    pub fn gradient(
        &mut self,
        row: Option<Row<'_>>,
        task: &Task<'_>,
        ids: &GivenIds<'_>,
        weighed: &Weighed,
        by: Derivatives<'_>,
        mut out: RowMut<'_>,
    ) -> Result<()> {
        task.validate(row.unwrap_or(out.as_row()), false)?;
        task.check_length("out", out.vocab())?;
        self.begin()?;
        let _env = FloatEnv::enter();
        self.edits.edit(self.level, row.unwrap_or(out.as_row()), task, None);
        let (all, own) = {
            let view = self.edits.view(row.unwrap_or(out.as_row()));
            ids.own(by.of_logprobs, |id| view.logit(id) + 0.0)
        };
        let slope = (weighed.mass > 0.0)
            .then(|| Slope::new(weighed, task.prepared.params().temperature, all, by.of_entropy));
        let own = slope.iter().flat_map(|slope| own.iter().map(|(id, z, own)| (*id, slope.of(*z, *own))));
        // Without a survey it is not known whether the row is odd, so its tiles are cleaned.
        let view = View { odd: true, ..self.edits.view(row.unwrap_or(Row::F32(&[]))) };
        macro_rules! write {
            ($out:expr) => {{
                match slope {
                    Some(slope) => {
                        let kernel = Write { view: &view, in_place: row.is_none(), slope, out: $out };
                        dispatch(self.level, kernel);
                    }
                    None => $out.fill(Element::from_f32(0.0)),
                }
                own.for_each(|(id, value)| $out[id] = Element::from_f32(value));
            }};
        }
        match &mut out {
            RowMut::F32(out) => write!(out),
            RowMut::Bf16(out) => write!(out),
            RowMut::F16(out) => write!(out),
        }
        self.end();
        Ok(())
    }
}

/// Writes the derivatives by the logits of all tokens, as if none were asked for.
struct Write<'a, E> {
    /// The row; if in place, only its mask.
    view: &'a View<'a>,
    in_place: bool,
    slope: Slope,
    out: &'a mut [E],
}

impl<E: Element> Kernel for Write<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { view, in_place, slope, out } = self;
        let Slope { first, s, factor, offset, inverse } = slope;
        let (origin, weights, nothing) = (l.splat(first), Logits { s }, l.splat(0.0));
        let mut scratch = EMPTY_TILE;
        for tile in 0..out.len().div_ceil(TILE) {
            let start = tile * TILE;
            let end = out.len().min(start + TILE);
            let has_member =
                |mask: &[u32]| mask[tile * MASK_WORDS..][..MASK_WORDS].iter().any(|word| *word != 0);
            if !view.mask.is_none_or(has_member) {
                out[start..end].fill(E::from_f32(0.0));
                continue;
            }
            let from = if in_place {
                view.make(l, E::row(out), tile, &mut scratch);
                &scratch
            } else {
                view.tile(l, tile, &mut scratch)
            };
            let mut last = [E::from_f32(0.0); TILE];
            let is_whole = end - start == TILE;
            let to = if is_whole { &mut out[start..end] } else { &mut last[..] };
            for (chunk, to) in from.as_chunks::<WIDTH>().0.iter().zip(to.as_chunks_mut::<WIDTH>().0) {
                let y = weights.exponent(l, l.load(chunk), origin);
                let share = l.mul(num::exp2(l, y), l.fma(l.splat(factor), y, l.splat(offset)));
                let share = l.select(l.ge(y, l.splat(-126.0)), share, nothing);
                E::store(l, l.mul(l.sub(nothing, share), l.splat(inverse)), to);
            }
            if !is_whole {
                out[start..end].copy_from_slice(&last[..end - start]);
            }
        }
    }
}
