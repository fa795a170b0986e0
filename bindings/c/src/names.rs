//! Parameters by name; the names are those of JSON and of all errors.

use gumball_engine::{Dry, Error, Field, LogprobsParams, Parameter, Parameters, SamplingParams};

use crate::error::{Failure, Result};

/// Returns the names of the parameters that a setter sets, among the plain fields and the fields of DRY and of logprobs.
fn names(sets: impl Fn(&Field<'_>) -> bool) -> Vec<&'static str> {
    let tables = [SamplingParams::TABLE, Dry::TABLE, LogprobsParams::TABLE].concat();
    let mut params = SamplingParams::default();
    let mut is_set = |name| params.parameter(name).is_some_and(|(_, field)| sets(&field));
    tables.iter().map(|parameter| parameter.name).filter(|name| is_set(name)).collect()
}

fn is_number(field: &Field<'_>) -> bool {
    matches!(field, Field::Number(_) | Field::Whole(_) | Field::Count(_) | Field::Flag(_))
}

fn is_ids(field: &Field<'_>) -> bool {
    matches!(field, Field::Ids(_) | Field::IdsOrNone(_))
}

fn is_text(field: &Field<'_>) -> bool {
    matches!(field, Field::Scope(_) | Field::Mode(_) | Field::Order(_))
}

/// Changes a field that a setter sets. Naming a field of `logprobs` makes logprobs, so a copy is changed: a refused value must leave `params` unchanged.
fn change(
    params: &mut SamplingParams,
    name: &str,
    sets: fn(&Field<'_>) -> bool,
    set: impl FnOnce(&'static Parameter, Field<'_>) -> Result<()>,
) -> Result<()> {
    let mut changed = params.clone();
    match changed.parameter(name) {
        Some((parameter, field)) if sets(&field) => set(parameter, field)?,
        _ => {
            let (name, known) = (name.to_owned(), names(sets).join(", "));
            return Err(Error::Unknown { parameter: "name", name, known }.into());
        }
    }
    *params = changed;
    Ok(())
}

/// Sets a field that holds a number, an integer or a flag; the only rounding is that to f32.
pub(crate) fn set_number(params: &mut SamplingParams, name: &str, value: f64) -> Result<()> {
    change(params, name, is_number, |parameter, field| {
        let allowed = match &field {
            // JSON would write it as null, which is an absent value.
            Field::Number(_) if !(value as f32).is_finite() => {
                let allowed = parameter.range.map_or("finite", |range| range.words);
                return Err(Failure::out_of_range(parameter.name, value as f32, allowed));
            }
            Field::Whole(_) => "an integer",
            Field::Count(_) => "an integer in 0..2^32",
            _ => "0 or 1",
        };
        match field.set(value) {
            true => Ok(()),
            false => Err(Failure::out_of_range(parameter.name, value, allowed)),
        }
    })
}

pub(crate) fn set_ids(params: &mut SamplingParams, name: &str, ids: &[u32]) -> Result<()> {
    change(params, name, is_ids, |_, field| {
        match field {
            Field::Ids(field) => *field = ids.to_vec(),
            Field::IdsOrNone(field) => *field = Some(ids.to_vec()),
            other => unreachable!("{other:?} holds no ids"),
        }
        Ok(())
    })
}

pub(crate) fn set_text(params: &mut SamplingParams, name: &str, text: &str) -> Result<()> {
    change(params, name, is_text, |_, field| {
        match field {
            Field::Scope(field) => *field = text.parse()?,
            Field::Mode(field) => *field = text.parse()?,
            Field::Order(field) => *field = text.parse()?,
            other => unreachable!("{other:?} holds no name"),
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gumball_engine::{DynamicTemperature, LogprobsParams, Mirostat};
    use serde_json::Value;

    /// The fields with functions of their own.
    const OTHERS: [&str; 5] = ["seed", "logit_bias", "bad_words", "dynamic_temperature", "mirostat"];

    #[test]
    fn every_field_has_a_setter() {
        let params = SamplingParams {
            dynamic_temperature: Some(DynamicTemperature::new(0.5, 1.5)),
            mirostat: Some(Mirostat { tau: 5.0, eta: 0.1, mu: None }),
            logprobs: Some(LogprobsParams::default()),
            ..Default::default()
        };
        let fields = serde_json::to_value(&params).expect("it has no maps");
        let mut found = Vec::new();
        for (name, value) in fields.as_object().expect("a struct") {
            match value {
                Value::Object(parts) if !OTHERS.contains(&&**name) => {
                    found.extend(parts.keys().map(|part| format!("{name}.{part}")));
                }
                _ => found.push(name.clone()),
            }
        }
        let mut set: Vec<&str> = [names(is_number), names(is_ids), names(is_text), OTHERS.to_vec()].concat();
        set.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, set);
    }
}
