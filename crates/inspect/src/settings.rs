//! The parameters that are not neutral, in a line, for a person.

use gumball_spec::SamplingParams;
use serde_json::{Map, Value};

use crate::shown::without_middle;

/// The longest value that is said whole, in characters.
const LONGEST: usize = 60;

/// Says the parameters that differ from the neutral ones, as their names and values; not seed and logprobs.
#[must_use]
pub fn settings(params: &SamplingParams) -> String {
    let neutral = fields(&SamplingParams::default());
    let told = |(name, value): (&String, &Value)| {
        let differs = neutral.get(name) != Some(value) && name != "seed" && name != "logprobs";
        differs.then(|| format!("{name} {}", without_middle(&value.to_string(), LONGEST)))
    };
    fields(params).iter().filter_map(told).collect::<Vec<_>>().join(", ")
}

/// Returns the fields by their names, numbers as they are written.
fn fields(params: &SamplingParams) -> Map<String, Value> {
    let text = serde_json::to_string(params).expect("plain data");
    serde_json::from_str(&text).expect("JSON of our own")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_neutral_is_said() {
        let params = SamplingParams { temperature: 0.7, top_k: 50, seed: Some(3), ..Default::default() };
        assert_eq!(settings(&params), "temperature 0.7, top_k 50");
        assert_eq!(settings(&SamplingParams::default()), "");
        let params = SamplingParams { banned_ids: (0..12_000).collect(), ..Default::default() };
        assert!(settings(&params).len() < 200, "{}", settings(&params));
    }
}
