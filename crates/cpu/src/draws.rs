//! Many draws from one row: it is edited, surveyed and filtered once, and only the races are run for each.

use gumball_spec::adaptive::Adaptive;
use gumball_spec::draw::TAGS;
use gumball_spec::filter::fraction_to_u32;
use gumball_spec::num::{Tag, key_id, philox4x32_10};
use gumball_spec::survey::Measure;
use gumball_spec::{Error, Filter, NONE, Result, Row, Status};

use crate::Task;
use crate::draw::draw;
use crate::filter::Reader;
use crate::float_env::FloatEnv;
use crate::measure::Pace;
use crate::task::Stream;
use crate::workspace::{Workspace, choose, open};

/// Which of the independent draws from a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Draw {
    /// The seed.
    pub seed: u64,
    /// The position.
    pub position: u32,
    /// The draw index.
    pub draw: u32,
}

/// Kept sets of at most this many tokens are listed: then a race costs less than a walk over the tiles.
const LISTED: usize = 256;

impl Workspace {
    /// Draws a token for each of some draws, which stand in for the task's; returns the row's status.
    ///
    /// Each token is the token of [`Workspace::sample`] for the same draw; with mirostat or adaptive-p at the
    /// task's `mu`, which stays. A forced token does not matter. The row is edited and surveyed once, and
    /// filtered once, or twice with XTC. No logprobs and no kept set are reported.
    ///
    /// # Errors
    /// - The errors of [`Workspace::sample`].
    /// - [`Error::Length`] if there is not one token for each draw.
    pub fn sample_many(
        &mut self,
        row: Row<'_>,
        task: &Task<'_>,
        draws: &[Draw],
        tokens: &mut [i32],
    ) -> Result<Status> {
        task.validate(row, false)?;
        if tokens.len() != draws.len() {
            return Err(Error::length("tokens", tokens.len(), format!("one per draw, {}", draws.len())));
        }
        self.begin()?;
        let _env = FloatEnv::enter();
        self.has_logprobs = false;
        self.kept.clear();
        self.filter.mass.visits = 0;
        let (reader, mut status) =
            open(self.level, &mut self.edits, &mut self.maxima, self.list_limit, row, task, None);
        // Whether XTC acts is all that a filter asks of a draw.
        let params = task.prepared.params();
        let xtc = params.is_on(Filter::Xtc, task.prepared.vocab());
        let acts = |draw: &Draw| {
            let [word, ..] = philox4x32_10(draw.seed, [0, draw.position, Tag::Xtc as u32, draw.draw]);
            xtc && u64::from(word) < fraction_to_u32(params.xtc_probability)
        };
        for acting in [false, true] {
            let Some(like) = draws.iter().find(|draw| acts(draw) == acting) else { continue };
            let Draw { seed, position, draw: index } = *like;
            let (temperature, set) =
                choose(&reader, &mut self.filter, &Task { seed, position, draw: index, ..*task });
            let mut pick: Box<dyn FnMut(&Draw) -> i32> = match set {
                None => {
                    status.insert(Status::EMPTY);
                    Box::new(|_| NONE)
                }
                Some(set) if temperature == 0.0 => {
                    let winner = key_id(set.cut.first) as i32;
                    Box::new(move |_| winner)
                }
                Some(mut set) => {
                    let (measure, buffers) = (Measure::new(task.kind, temperature), &mut self.draw);
                    let adaptive =
                        Adaptive::new(params, task.mu, || set.total(&reader, &mut self.filter, measure));
                    let pace = Pace { measure, adaptive };
                    let short = Reader { list_limit: LISTED.min(reader.list_limit), ..reader };
                    set.listed = set.listed.filter(|range| range.len() <= LISTED);
                    set.list(&short, &mut self.filter);
                    let (keys, reader) = (&self.filter.list.keys, &reader);
                    Box::new(move |one: &Draw| {
                        let Draw { seed, position, draw: index } = *one;
                        let stream = Stream { seed, position, draw: index, tags: TAGS };
                        draw(reader, buffers, keys, &set, pace, stream) as i32
                    })
                }
            };
            for (one, token) in draws.iter().zip(tokens.iter_mut()).filter(|(one, _)| acts(one) == acting) {
                *token = pick(one);
            }
        }
        self.end();
        Ok(status)
    }
}
