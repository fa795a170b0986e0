//! The settings that are checked where none are given: each filter alone, and the common mixtures.

use gumball_spec::{DynamicTemperature, Filter, FilterOrder, Mirostat, Parameter, SamplingParams};

use crate::state::State;

/// Parameters under a name, and the request state they are checked at.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// The parameters.
    pub params: SamplingParams,
    /// The state.
    pub state: State,
}

/// Returns the settings of the suite, for rows of a length.
#[must_use]
pub fn suite(vocab: usize) -> Vec<Setting> {
    let neutral = SamplingParams::default;
    let plain = |name: &str, params: SamplingParams| Setting {
        name: name.to_owned(),
        params,
        state: State::default(),
    };
    let dynamic_temperature = Some(DynamicTemperature { min: 0.5, max: 1.5, exponent: 1.0 });
    let mut settings = vec![
        plain("greedy", SamplingParams { temperature: 0.0, ..neutral() }),
        plain("plain", neutral()),
        plain("temperature 0.7", SamplingParams { temperature: 0.7, ..neutral() }),
        plain("temperature 1.5", SamplingParams { temperature: 1.5, ..neutral() }),
        plain("top-k 50, top-p 0.9", SamplingParams { top_k: 50, top_p: 0.9, temperature: 0.8, ..neutral() }),
        plain("joint", SamplingParams { top_k: 50, top_p: 0.9, order: FilterOrder::Joint, ..neutral() }),
        plain(
            "mirostat",
            SamplingParams { mirostat: Some(Mirostat { tau: 3.0, eta: 0.1, mu: None }), ..neutral() },
        ),
        plain("adaptive-p", SamplingParams { adaptive_target: 0.3, min_p: 0.02, ..neutral() }),
        plain("dynamic temperature", SamplingParams { dynamic_temperature, ..neutral() }),
    ];
    settings.extend(Filter::ALL.map(|filter| {
        let Parameter { usual, range, .. } = filter.parameter();
        let value = range.map_or(String::new(), |_| format!(" {usual}"));
        plain(&(filter.name().replace('_', "-") + &value), filter.alone())
    }));
    let mut logit_bias = vec![(0, 2.0), (1, f32::NEG_INFINITY)];
    logit_bias.retain(|(id, _)| (*id as usize) < vocab);
    let penalties = SamplingParams {
        repetition_penalty: 1.3,
        frequency_penalty: 0.2,
        presence_penalty: 0.4,
        logit_bias,
        top_p: 0.95,
        ..neutral()
    };
    let state = State {
        prompt: (0..40).collect(),
        output: (0..20).map(|i| i * 3).collect(),
        position: 60,
        mask: None,
    };
    settings.push(Setting { name: "penalties, top-p".to_owned(), params: penalties, state });
    settings
}
