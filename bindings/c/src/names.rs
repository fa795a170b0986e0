//! Parameters by name; the names are those of JSON and of all errors.

use gumball_engine::{Error, SamplingParams};

use crate::error::{Failure, Result};

/// A field that holds a number, an integer or a flag.
pub(crate) enum Number<'a> {
    Float(&'a mut f32),
    Signed(&'a mut i64),
    Unsigned(&'a mut u32),
    Flag(&'a mut bool),
}

/// The names of the fields that hold a number, an integer or a flag.
pub(crate) const NUMBERS: [&str; 22] = [
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
    "min_p",
    "top_n_sigma",
    "top_a",
    "p_less",
    "epsilon_cutoff",
    "eta_cutoff",
    "xtc_probability",
    "xtc_threshold",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
    "dry.multiplier",
    "dry.base",
    "dry.allowed_length",
    "no_repeat_ngram",
    "min_tokens",
    "logprobs.top_n",
    "temperature_last",
];

/// The names of the fields that hold ids.
pub(crate) const IDS: [&str; 5] = ["allowed_ids", "banned_ids", "stop_ids", "dry.breakers", "logprobs.ids"];

/// The names of the fields that hold a name.
pub(crate) const TEXTS: [&str; 4] = ["repetition_scope", "penalty_scope", "order", "logprobs.mode"];

fn unknown(name: &str, known: &[&str]) -> Failure {
    Error::Unknown { parameter: "name", name: name.to_owned(), known: known.join(", ") }.into()
}

fn number<'a>(params: &'a mut SamplingParams, name: &str) -> Result<Number<'a>> {
    use Number::{Flag, Float, Signed, Unsigned};
    Ok(match name {
        "temperature" => Float(&mut params.temperature),
        "top_k" => Signed(&mut params.top_k),
        "top_p" => Float(&mut params.top_p),
        "typical_p" => Float(&mut params.typical_p),
        "min_p" => Float(&mut params.min_p),
        "top_n_sigma" => Float(&mut params.top_n_sigma),
        "top_a" => Float(&mut params.top_a),
        "p_less" => Flag(&mut params.p_less),
        "epsilon_cutoff" => Float(&mut params.epsilon_cutoff),
        "eta_cutoff" => Float(&mut params.eta_cutoff),
        "xtc_probability" => Float(&mut params.xtc_probability),
        "xtc_threshold" => Float(&mut params.xtc_threshold),
        "repetition_penalty" => Float(&mut params.repetition_penalty),
        "frequency_penalty" => Float(&mut params.frequency_penalty),
        "presence_penalty" => Float(&mut params.presence_penalty),
        "dry.multiplier" => Float(&mut params.dry.multiplier),
        "dry.base" => Float(&mut params.dry.base),
        "dry.allowed_length" => Unsigned(&mut params.dry.allowed_length),
        "no_repeat_ngram" => Unsigned(&mut params.no_repeat_ngram),
        "min_tokens" => Unsigned(&mut params.min_tokens),
        "logprobs.top_n" => Unsigned(&mut params.logprobs.get_or_insert_default().top_n),
        "temperature_last" => Flag(&mut params.temperature_last),
        _ => return Err(unknown(name, &NUMBERS)),
    })
}

/// Sets a field that holds a number; the only rounding is that to f32.
pub(crate) fn set_number(params: &mut SamplingParams, name: &str, value: f64) -> Result<()> {
    // Naming a field of `logprobs` creates `logprobs`, so a copy is changed: a refused value must leave
    // `params` unchanged.
    let mut changed = params.clone();
    let refused = |allowed| Err(Failure::out_of_range(name, value, allowed));
    match number(&mut changed, name)? {
        Number::Float(field) => *field = value as f32,
        Number::Signed(field) if value.fract() == 0.0 && value.abs() < 2f64.powi(63) => *field = value as i64,
        Number::Signed(_) => return refused("an integer"),
        Number::Unsigned(field) if value.fract() == 0.0 && (0.0..2f64.powi(32)).contains(&value) => {
            *field = value as u32;
        }
        Number::Unsigned(_) => return refused("an integer in 0..2^32"),
        Number::Flag(field) if value == 0.0 || value == 1.0 => *field = value == 1.0,
        Number::Flag(_) => return refused("0 or 1"),
    }
    *params = changed;
    Ok(())
}

/// Sets a field that holds ids.
pub(crate) fn set_ids(params: &mut SamplingParams, name: &str, ids: &[u32]) -> Result<()> {
    let ids = ids.to_vec();
    match name {
        "allowed_ids" => params.allowed_ids = Some(ids),
        "banned_ids" => params.banned_ids = ids,
        "stop_ids" => params.stop_ids = ids,
        "dry.breakers" => params.dry.breakers = ids,
        "logprobs.ids" => params.logprobs.get_or_insert_default().ids = ids,
        _ => return Err(unknown(name, &IDS)),
    }
    Ok(())
}

/// Sets a field that holds a name.
pub(crate) fn set_text(params: &mut SamplingParams, name: &str, text: &str) -> Result<()> {
    match name {
        "repetition_scope" => params.repetition_scope = text.parse()?,
        "penalty_scope" => params.penalty_scope = text.parse()?,
        "order" => params.order = text.parse()?,
        "logprobs.mode" => {
            let mode = text.parse()?;
            params.logprobs.get_or_insert_default().mode = mode;
        }
        _ => return Err(unknown(name, &TEXTS)),
    }
    Ok(())
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
        let mut names = Vec::new();
        for (name, value) in fields.as_object().expect("a struct") {
            match value {
                Value::Object(parts) if !OTHERS.contains(&&**name) => {
                    names.extend(parts.keys().map(|part| format!("{name}.{part}")));
                }
                _ => names.push(name.clone()),
            }
        }
        let mut set: Vec<&str> = [&NUMBERS[..], &IDS, &TEXTS, &OTHERS].concat();
        set.sort_unstable();
        names.sort_unstable();
        assert_eq!(names, set);
    }

    #[test]
    fn every_name_sets_its_field() {
        for name in NUMBERS {
            let mut params = SamplingParams::default();
            let is_flag = ["temperature_last", "p_less"].contains(&name);
            let other = if is_flag { 1.0 } else { 3.0 };
            set_number(&mut params, name, other).expect(name);
            assert_eq!(
                read(&params, name).as_f64().or(read(&params, name).as_bool().map(f64::from)),
                Some(other)
            );
        }
        for name in IDS {
            let mut params = SamplingParams::default();
            set_ids(&mut params, name, &[4, 5]).expect(name);
            assert_eq!(read(&params, name), serde_json::json!([4, 5]));
        }
        for name in TEXTS {
            let mut params = SamplingParams::default();
            let other = if name == "order" {
                "joint"
            } else if name == "logprobs.mode" {
                "edited"
            } else {
                "prompt"
            };
            set_text(&mut params, name, other).expect(name);
            assert_eq!(read(&params, name), other);
        }
    }

    fn read(params: &SamplingParams, name: &str) -> Value {
        let fields = serde_json::to_value(params).expect("it has no maps");
        name.split('.').fold(fields, |value, part| value[part].clone())
    }

    #[test]
    fn a_refused_value_changes_nothing() {
        let mut params = SamplingParams::default();
        for (name, value) in [
            ("top_k", 0.5),
            ("top_k", f64::NAN),
            ("min_tokens", -1.0),
            ("logprobs.top_n", 4294967296.0),
            ("temperature_last", 2.0),
            ("topk", 1.0),
        ] {
            assert!(set_number(&mut params, name, value).is_err(), "{name} {value}");
        }
        assert!(set_text(&mut params, "logprobs.mode", "raws").is_err());
        assert_eq!(params, SamplingParams::default());
    }
}
