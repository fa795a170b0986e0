//! Edited logits after known tokens, for trainers: what penalties, DRY and biases make of some columns of
//! rows.
//!
//! A kept set tells bans alone. The edited logit less the raw one would not tell the rest: added to the raw
//! one it is rounded, so that the edited one does not always come back, and a trainer's own raw logit is
//! another anyway. So the trainer's logits are edited, by the code that edits a step's. Penalties, DRY and
//! biases only tell ids apart; so the ids in question are numbered, and make a row of their own.

use gumball_cpu::{Entry, Level, Output, Prepared, Task, Workspace};
use gumball_spec::{Error, Kind, Parameter, Parameters, Result, Row, SamplingParams, Scope, Stage};

use crate::score::{Scored, advance};

/// Edits logits by penalties, DRY and biases, as a step does after the same tokens; not by bans (L6).
///
/// `values` has the logits of the ids `columns`, row by row; row i comes after `known.ids[..start + i]`.
/// `slopes` gets the derivative of each edited logit by the raw one. Other ids than those of the tokens and
/// of the biases are not edited.
///
/// # Errors
/// - The errors of [`SamplingParams::validate`] for what edits logits.
/// - [`Error::Length`] if `values` are no rows of `columns`, if there are not as many slopes, or more rows
///   than tokens.
pub fn edit_columns(
    known: &Scored<'_>,
    columns: &[u32],
    values: &mut [f32],
    slopes: &mut [f32],
) -> Result<()> {
    let Scored { ids, prompt_len, start, .. } = *known;
    let width = columns.len();
    if width == 0 || !values.len().is_multiple_of(width) {
        return Err(Error::length("values", values.len(), format!("rows of {width} columns")));
    }
    if slopes.len() != values.len() {
        return Err(Error::length("slopes", slopes.len(), format!("{} of the values", values.len())));
    }
    if start > ids.len() || values.len() / width > ids.len() + 1 - start {
        let allowed = format!("those before {} rows from place {start} on", values.len() / width);
        return Err(Error::length("ids", ids.len(), allowed));
    }
    let edits = |parameter: &Parameter| {
        parameter.stage == Stage::Edit && (parameter.of_logits || !parameter.is_switch)
    };
    let mut params = SamplingParams {
        stop_ids: Vec::new(),
        no_repeat_ngram_exempt_ids: Vec::new(),
        ..known.params.only(edits)
    };
    params.logit_bias.retain(|(_, bias)| *bias > f32::NEG_INFINITY);

    let biased = params.logit_bias.iter().map(|(id, _)| *id);
    let mut all: Vec<u32> = [columns, ids, &params.dry.breakers].concat().into_iter().chain(biased).collect();
    all.sort_unstable();
    all.dedup();
    let number = |id: u32| all.partition_point(|other| *other < id) as u32;
    params.logit_bias.iter_mut().for_each(|(id, _)| *id = number(*id));
    params.logit_bias.sort_unstable_by_key(|(id, _)| *id);
    params.dry.breakers.iter_mut().for_each(|id| *id = number(*id));
    let numbers = |ids: &[u32]| ids.iter().map(|id| number(*id)).collect::<Vec<_>>();
    let (ids, columns) = (numbers(ids), numbers(columns));

    let prepared = Prepared::new(params, all.len())?;
    let mut workspace = Workspace::new(Level::detect()?)?;
    let (mut row, mut edited) = (vec![0.0; all.len()], vec![0.0; all.len()]);
    let (mut history, mut window) = (None, Vec::new());
    for (place, (values, slopes)) in values.chunks_mut(width).zip(slopes.chunks_mut(width)).enumerate() {
        let history = advance(&mut history, &prepared, &ids[..start + place], prompt_len);
        columns.iter().zip(&*values).for_each(|(column, value)| row[*column as usize] = *value);
        let task = Task {
            kind: Kind::Logits,
            prepared: &prepared,
            history,
            seed: 0,
            position: 0,
            draw: 0,
            mu: 0.0,
            mask: None,
            forced: None,
        };
        workspace.write(Row::F32(&row), &task, None, Output::Masked, (&mut edited).into())?;
        let entries = history.entries_of(prepared.params().penalty_window, &mut window);
        for ((column, value), slope) in columns.iter().zip(values).zip(slopes) {
            *slope = slope_of(prepared.params(), entries, *column, *value);
            *value = edited[*column as usize];
        }
    }
    Ok(())
}

/// Returns the derivative of an edited logit by the raw one: that of the repetition penalty.
fn slope_of(params: &SamplingParams, entries: &[Entry], id: u32, logit: f32) -> f32 {
    let entry = entries.binary_search_by_key(&id, |entry| entry.id).map(|place| entries[place]);
    let is_seen = entry.is_ok_and(|entry| match params.repetition_scope {
        Scope::Prompt => entry.prompt > 0,
        Scope::Output => entry.output > 0,
        Scope::Both => true,
    });
    let bias = params.logit_bias.binary_search_by_key(&id, |(biased, _)| *biased);
    let bias = bias.map_or(0.0, |place| params.logit_bias[place].1);
    let before = if params.bias_first { logit + bias } else { logit };
    match params.repetition_penalty {
        r if !is_seen || r == 1.0 => 1.0,
        r if before > 0.0 => 1.0 / r,
        r => r,
    }
}
