//! Drafts: the first tokens of a request's race over the row of a drafter (S8).

use gumball_spec::edit::Hook;
use gumball_spec::num::key_id;
use gumball_spec::survey::Measure;
use gumball_spec::verify::coupled::check_drafts;
use gumball_spec::verify::draft::DraftWords;
use gumball_spec::{NONE, Result, Row};

use crate::Task;
use crate::draw::first_arrivals;
use crate::filter::Given;
use crate::float_env::FloatEnv;
use crate::task::Stream;
use crate::workspace::{Workspace, choose, open};

impl Workspace {
    /// Draws as many drafts from a row as there are places for, [`NONE`] where there are no more; no logprobs
    /// and no kept set are reported.
    ///
    /// # Errors
    /// - The errors of [`Workspace::sample`].
    /// - [`gumball_spec::Error::Conflict`] for a request with mirostat or adaptive-p.
    pub fn draft(
        &mut self,
        row: Row<'_>,
        task: &Task<'_>,
        hook: Option<Hook<'_>>,
        words: DraftWords,
        drafts: &mut [i32],
    ) -> Result<()> {
        task.validate(row, hook.is_some())?;
        check_drafts(task.prepared.params(), 1)?;
        words.check(task.prepared.params())?;
        self.begin()?;
        let _env = FloatEnv::enter();
        self.has_logprobs = false;
        self.kept.clear();
        self.filter.mass.visits = 0;
        let (reader, _) =
            open(self.level, &mut self.edits, &mut self.maxima, self.list_limit, row, task, hook);
        let (temperature, set) = choose(&reader, &mut self.filter, task);
        drafts.fill(NONE);
        match set {
            _ if task.emitted().is_some() => {
                drafts.iter_mut().zip(task.emitted()).for_each(|(draft, forced)| *draft = forced.id as i32);
            }
            Some(_) if temperature == 0.0 && !drafts.is_empty() => {
                let whole = Given::whole(&reader);
                let first = whole.take(&reader, &mut self.filter, drafts.len());
                let keys = first.keys(&reader, &mut self.filter);
                drafts.iter_mut().zip(keys).for_each(|(draft, key)| *draft = key_id(*key) as i32);
            }
            Some(set) => {
                let measure = Measure::new(task.kind, temperature);
                let of_row = task.stream();
                let stream =
                    Stream { position: words.position(of_row.position), tags: words.tags(), ..of_row };
                let keys = &self.filter.list.keys;
                first_arrivals(&reader, &mut self.draw, keys, &set, measure, stream, drafts);
            }
            None => {}
        }
        self.end();
        Ok(())
    }
}
