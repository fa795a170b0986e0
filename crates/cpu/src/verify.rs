//! Verify: drafts against the target's probabilities: a chain by rejection (S4); trees, blocks and thresholds
//! (S5 to S7), whose decisions are the definition's, over sums and draws of these lanes.
//!
//! Acceptance looks at two numbers a draft. Only the rows of the first draft that is not accepted are read
//! whole, and of them the residual is made, surveyed and raced as any row of probabilities is.

use gumball_spec::survey::Measure;
use gumball_spec::verify::by_probabilities::{Decision, Emitted, Judgement, Last, Siblings, Trial};
use gumball_spec::verify::weights::{Key, Weigh, sum_of, tags};
use gumball_spec::verify::{self, DraftChain, Verified};
use gumball_spec::{Kind, NONE, Result, Row, Status};

use crate::cut::Cut;
use crate::draw::draw;
use crate::filter::{Given, Reader};
use crate::float_env::FloatEnv;
use crate::lanes::{Kernel, Lanes, WIDTH, dispatch};
use crate::survey::{Survey, survey};
use crate::task::Stream;
use crate::tiles::View;
use crate::workspace::Workspace;

impl Workspace {
    /// Verifies a chain of drafts: writes its tokens, and returns the counts and the status.
    ///
    /// Reads two numbers for each draft and at most two rows whole. The outcome is that of
    /// [`DraftChain::verify`].
    ///
    /// # Errors
    /// - The errors of [`DraftChain::check`].
    /// - [`gumball_spec::Error::Length`] if `tokens` has not one place more than there are drafts.
    pub fn verify_chain(&mut self, chain: &DraftChain<'_>, tokens: &mut [i32]) -> Result<Verified> {
        chain.check(tokens.len())?;
        self.begin()?;
        let _env = FloatEnv::enter();
        let judged = chain.judge();
        let row = judged.accepted as usize;
        let (p, q) = (chain.target(row), judged.rejected.then(|| chain.draft(row)));
        let verify::Judged { accepted, accepted_alone, .. } = judged;
        let mut verified = Verified { accepted, accepted_alone, status: Status::default() };

        let mut weights = Row::F32(p);
        if let Some(q) = q {
            self.residual.resize(p.len(), 0.0);
            let residue = dispatch(self.level, Residue { p, q, residual: &mut self.residual });
            if residue.odd {
                q.iter().for_each(|q| verified.status.insert(Kind::Probabilities.status(*q)));
                p.iter().for_each(|p| verified.status.insert(Kind::Probabilities.status(*p)));
            }
            if residue.any {
                weights = Row::F32(&self.residual);
            }
        }
        let mut view = View::raw(Kind::Probabilities, weights);
        let Survey { first, odd } = survey(self.level, &view, &mut self.maxima);
        view.odd = odd;
        if odd {
            p.iter().for_each(|p| verified.status.insert(Kind::Probabilities.status(*p)));
        }
        tokens[..row].copy_from_slice(&chain.drafts[..row]);
        tokens[row..].fill(NONE);
        if first == f32::NEG_INFINITY {
            verified.status.insert(Status::EMPTY);
            self.end();
            return Ok(verified);
        }
        let position = chain.position.wrapping_add(row as u32);
        let stream = Stream { seed: chain.seed, position, draw: chain.draw, tags: tags(q.is_some()) };
        let reader = Reader {
            level: self.level,
            view,
            maxima: &self.maxima,
            first,
            list_limit: self.list_limit,
            start: 0,
        };
        let whole = Given::whole(&reader);
        tokens[row] = draw(&reader, &mut self.draw, &[], &whole, Measure::Probabilities, stream) as i32;
        self.end();
        Ok(verified)
    }
}

impl Workspace {
    /// Judges a tree of drafts, as [`Trial::judge`] does; a [`Trial::chain`] by [`Workspace::verify_chain`].
    ///
    /// # Errors
    /// The errors of [`Trial::judge`].
    pub fn judge(&mut self, trial: &Trial<'_>, judgement: Judgement) -> Result<Emitted> {
        if let Some(chain) = trial.chain(judgement) {
            let mut tokens = vec![NONE; chain.drafts.len() + 1];
            let verified = self.verify_chain(&chain, &mut tokens)?;
            return Ok(Emitted::of_chain(tokens, verified));
        }
        self.begin()?;
        let _env = FloatEnv::enter();
        let emitted = trial.judge_with(judgement, self);
        self.end();
        emitted
    }

    /// Judges the children of a row, as [`Siblings::judge`] does; where none is accepted, draws the token
    /// that comes in their place, [`NONE`] if there is none.
    ///
    /// # Errors
    /// The errors of [`Workspace::new`].
    ///
    /// # Panics
    /// As [`Siblings::judge`] does.
    pub fn judge_siblings(&mut self, siblings: &Siblings<'_>, judgement: Judgement) -> Result<Judged> {
        self.begin()?;
        let _env = FloatEnv::enter();
        let judged = match siblings.judge(judgement, self) {
            Decision::Accepted(number) => Judged::Accepted(number),
            Decision::Ended(Last { weights, residual }) => {
                let token = Weigh::draw(self, &weights, siblings.key, residual);
                Judged::Drawn(token.map_or(NONE, |id| id as i32))
            }
        };
        self.end();
        Ok(judged)
    }
}

/// What became of the children of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The child of this number among its siblings was accepted.
    Accepted(usize),
    /// None was, and this token was drawn.
    Drawn(i32),
}

impl Weigh for Workspace {
    fn sum(&mut self, weights: &[f32]) -> f32 {
        let view = View::raw(Kind::Probabilities, Row::F32(weights));
        let Survey { first, .. } = survey(self.level, &view, &mut self.maxima);
        if first == f32::NEG_INFINITY {
            return 0.0;
        }
        let (mass, all) = (&mut self.filter.mass, Cut::all(Kind::Probabilities));
        mass.give(self.level, &view, &self.maxima, all, first, true, Measure::Probabilities);
        sum_of(first, mass.weigh_all(self.level, &view))
    }

    fn draw(&mut self, weights: &[f32], key: Key, residual: bool) -> Option<u32> {
        let view = View::raw(Kind::Probabilities, Row::F32(weights));
        let Survey { first, .. } = survey(self.level, &view, &mut self.maxima);
        if first == f32::NEG_INFINITY {
            return None;
        }
        let stream = Stream { seed: key.seed, position: key.position, draw: key.draw, tags: tags(residual) };
        let reader = Reader {
            level: self.level,
            view,
            maxima: &self.maxima,
            first,
            list_limit: self.list_limit,
            start: 0,
        };
        let whole = Given::whole(&reader);
        Some(draw(&reader, &mut self.draw, &[], &whole, Measure::Probabilities, stream))
    }
}

/// Properties of a residual.
struct Found {
    /// Whether a number of it is above 0.
    any: bool,
    /// Whether a number of the two rows may be NaN, negative or +inf.
    odd: bool,
}

/// The residual of two rows: `max(p - q, 0)`, each as it counts.
struct Residue<'a> {
    p: &'a [f32],
    q: &'a [f32],
    residual: &'a mut [f32],
}

impl Kernel for Residue<'_> {
    type Output = Found;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> Found {
        let (zero, largest) = (l.splat(0.0), l.splat(f32::MAX));
        let mut seen = l.seen_nothing();
        let (mut signs, mut most, mut max) = (l.splat_u(0), zero, zero);
        for start in (0..self.p.len()).step_by(WIDTH) {
            let end = self.p.len().min(start + WIDTH);
            let [mut p, mut q] = [[0.0; WIDTH]; 2];
            p[..end - start].copy_from_slice(&self.p[start..end]);
            q[..end - start].copy_from_slice(&self.q[start..end]);
            let (p, q) = (l.load(&p), l.load(&q));
            seen = l.see(seen, p, q);
            signs = l.or(signs, l.or(l.bits(p), l.bits(q)));
            most = l.max(p, l.max(q, most));
            let (p, q) = (l.min(l.max(p, zero), largest), l.min(l.max(q, zero), largest));
            let residual = l.max(l.sub(p, q), zero);
            max = l.max(residual, max);
            let mut out = [0.0; WIDTH];
            l.store(residual, &mut out);
            self.residual[start..end].copy_from_slice(&out[..end - start]);
        }
        let negative = l.less_u(l.splat_u(i32::MAX as u32), signs) != 0;
        let odd = negative || l.has_seen_nan(seen) || l.reduce_max(most) > f32::MAX;
        Found { any: l.reduce_max(max) > 0.0, odd }
    }
}
