//! The parameters of a request that differ from the neutral ones, in a line for a log, without ids, keys and
//! seeds.

use std::fmt::Write as _;

use super::{Field, Parameters, SamplingParams};

impl SamplingParams {
    /// Returns the parameters that differ from the neutral ones, as in `top_k 50, stop_ids of 2`: of lists of
    /// ids only their lengths, and neither seeds nor keys of watermarks.
    #[must_use]
    pub fn outline(&self) -> String {
        let mut line = String::new();
        write(&mut line, "", &mut self.clone());
        if line.is_empty() { "none".to_owned() } else { line }
    }
}

fn write<T: Parameters>(line: &mut String, prefix: &str, part: &mut T) {
    for (place, parameter) in T::TABLE.iter().enumerate() {
        if !part.differs_at(place) {
            continue;
        }
        let name = format!("{prefix}{}", parameter.field());
        let inner = format!("{name}.");
        let (_, field) = part.field(parameter.field()).expect("the table names fields");
        let value = match field {
            Field::Number(value) => Some(format!(" {value}")),
            Field::NumberOrNone(value) => Some(format!(" {}", value.unwrap_or_default())),
            Field::Whole(value) => Some(format!(" {value}")),
            Field::Count(value) => Some(format!(" {value}")),
            Field::Flag(value) => Some(format!(" {value}")),
            Field::Scope(value) => Some(format!(" {value:?}")),
            Field::Modes(value) => Some(format!(" {value:?}")),
            Field::Order(value) => Some(format!(" {value:?}")),
            Field::Ids(ids) => Some(format!(" of {}", ids.len())),
            Field::IdsOrNone(ids) => Some(format!(" of {}", ids.as_ref().map_or(0, Vec::len))),
            Field::Words(words) => Some(format!(" of {}", words.len())),
            Field::Biases(biases) => Some(format!(" of {}", biases.len())),
            Field::Watermark(_) => Some(String::new()),
            Field::Logprobs(part) => {
                // The part alone asks for something.
                add(line, &name, "");
                part_of(line, &inner, part.as_mut())
            }
            Field::Dry(part) => part_of(line, &inner, Some(part)),
            Field::DynamicTemperature(part) => part_of(line, &inner, part.as_mut()),
            Field::Mirostat(part) => part_of(line, &inner, part.as_mut()),
            Field::Section(part) => part_of(line, &inner, part.as_mut()),
            Field::Loops(part) => part_of(line, &inner, part.as_mut()),
            Field::Seed(_) => None,
        };
        if let Some(value) = value {
            add(line, &name, &value);
        }
    }
}

/// Writes the fields of a part, which has no value of its own.
fn part_of<T: Parameters>(line: &mut String, prefix: &str, part: Option<&mut T>) -> Option<String> {
    write(line, prefix, part?);
    None
}

fn add(line: &mut String, name: &str, value: &str) {
    let comma = if line.is_empty() { "" } else { ", " };
    write!(line, "{comma}{name}{value}").expect("a string takes any text");
}

#[cfg(test)]
mod tests {
    use crate::{Dry, LogprobsParams, Mark, Section, Watermark};

    use super::*;

    #[test]
    fn a_line_for_a_log_has_numbers_and_no_ids_keys_or_seeds() {
        assert_eq!(SamplingParams { seed: Some(987), ..SamplingParams::default() }.outline(), "none");
        let params = SamplingParams {
            top_k: 50,
            temperature: 0.5,
            stop_ids: vec![4321, 5432],
            logit_bias: vec![(6543, 1.0)],
            bad_words: vec![vec![7654]],
            seed: Some(987),
            dry: Dry { multiplier: 0.75, breakers: vec![8765], ..Dry::default() },
            section: Some(Section { close: vec![9876], budget: 12, ..Section::default() }),
            watermark: Mark::Own(Watermark { key: 4711, ..Watermark::default() }),
            logprobs: Some(LogprobsParams { top_n: 3, ids: vec![1234], ..LogprobsParams::default() }),
            ..SamplingParams::default()
        };
        let line = params.outline();
        for secret in ["4321", "5432", "6543", "7654", "987", "8765", "9876", "4711", "1234"] {
            assert!(!line.contains(secret), "{line}");
        }
        for part in [
            "top_k 50",
            "temperature 0.5",
            "stop_ids of 2",
            "logit_bias of 1",
            "bad_words of 1",
            "dry.multiplier 0.75",
            "dry.breakers of 1",
            "section.close of 1",
            "section.budget 12",
            "watermark",
            "logprobs.top_n 3",
            "logprobs.ids of 1",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
}
