//! A device's result for the row that is traced, held to the definition.

#[cfg(feature = "command")]
use gumball_engine::{Device, DeviceRoute, History, Level, Prepared, Task};
#[cfg(feature = "command")]
use gumball_spec::{Kind, NONE, Request, Row, oracle};
use serde::Serialize;

#[cfg(feature = "command")]
use crate::Result;
use crate::records::LogprobRecord;

/// The result of a device.
#[derive(Clone, Debug, Serialize)]
pub struct OnDevice {
    /// The device.
    pub name: String,
    /// The token; none in an empty row.
    pub token: Option<i32>,
    /// How many tokens the filters kept.
    pub kept: usize,
    /// The temperature in use; 0 is greedy.
    pub temperature: f32,
    /// The token's logprob, if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprob: Option<LogprobRecord>,
    /// In what it differs from the definition; nothing in all but a defect.
    pub differences: Vec<String>,
}

#[cfg(feature = "command")]
impl OnDevice {
    /// Draws the token of a request on a device.
    ///
    /// # Errors
    /// The errors of the oracle and of the device.
    pub fn of(device: &Device, row: Row<'_>, request: &Request<'_>) -> Result<Self> {
        let wanted = oracle::sample(row, request, None)?;
        let prepared = Prepared::new(request.params.clone(), row.vocab())?;
        let mut history = History::new(request.prompt);
        request.output.iter().for_each(|id| history.push(*id));
        let task = Task {
            kind: Kind::Logits,
            prepared: &prepared,
            history: &history,
            seed: request.seed,
            position: request.position,
            draw: request.draw,
            mu: request.mu,
            mask: request.mask,
            forced: request.forced,
        };
        let mut stages = DeviceRoute::new("device", device.clone()).open(Level::Scalar)?;
        stages.collect_kept(true);
        let chosen = stages.sample(row, &task, None)?;

        let mut differences = Vec::new();
        let mut hold = |name: &str, same: bool, seen: String, wanted: String| {
            if !same {
                differences.push(format!("{name} {seen}, not {wanted}"));
            }
        };
        hold("token", chosen.token == wanted.token, chosen.token.to_string(), wanted.token.to_string());
        let (seen, expected) = (chosen.status.0, wanted.status.0);
        hold("status", seen == expected, seen.to_string(), expected.to_string());
        for (name, seen, wanted) in
            [("temperature", chosen.temperature, wanted.temperature), ("mu", chosen.mu, wanted.mu)]
        {
            hold(name, seen.to_bits() == wanted.to_bits(), seen.to_string(), wanted.to_string());
        }
        let (seen, expected) = (stages.kept(), wanted.kept_ids());
        hold(
            "kept",
            seen == expected,
            format!("{} tokens", seen.len()),
            format!("{} tokens", expected.len()),
        );
        let (seen, expected) = (stages.logprobs(), wanted.logprobs.as_ref());
        hold(
            "logprobs",
            format!("{seen:?}") == format!("{expected:?}"),
            format!("{seen:?}"),
            format!("{expected:?}"),
        );
        Ok(Self {
            name: device.name(),
            token: (chosen.token != NONE).then_some(chosen.token),
            kept: stages.kept().len(),
            temperature: chosen.temperature,
            logprob: stages.logprobs().map(|logprobs| LogprobRecord::from(&logprobs.token)),
            differences,
        })
    }
}
