//! A device's result for the row that is traced, held to the definition.

#[cfg(feature = "command")]
use gumball_engine::{Device, Place, Route};
#[cfg(feature = "command")]
use gumball_spec::{NONE, Request, Row, oracle};
use serde::Serialize;

#[cfg(feature = "command")]
use crate::Result;
#[cfg(feature = "command")]
use crate::one_slot::OneSlot;
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
        let place = Place::device(device.clone(), 1);
        let mut slot = OneSlot::new(request.params, row.vocab(), place, Route::Race)?;
        slot.draw(row, request)?;
        let drawn = slot.drawn();
        let (token, status) = (drawn.tokens()[0], drawn.status(0).0);
        // A pool on a device returns the kept ids in no order.
        let [mut seen, mut expected] = [drawn.kept(0), wanted.kept_ids()].map(<[u32]>::to_vec);
        seen.sort_unstable();
        expected.sort_unstable();
        let (temperature, mu) = (drawn.temperatures()[0], drawn.mirostat_mu()[0]);

        let mut differences = Vec::new();
        let mut hold = |name: &str, same: bool, seen: String, wanted: String| {
            if !same {
                differences.push(format!("{name} {seen}, not {wanted}"));
            }
        };
        hold("token", token == wanted.token, token.to_string(), wanted.token.to_string());
        hold("status", status == wanted.status.0, status.to_string(), wanted.status.0.to_string());
        for (name, seen, wanted) in [("temperature", temperature, wanted.temperature), ("mu", mu, wanted.mu)]
        {
            hold(name, seen.to_bits() == wanted.to_bits(), seen.to_string(), wanted.to_string());
        }
        let kept = seen.len();
        hold("kept", seen == expected, format!("{kept} tokens"), format!("{} tokens", expected.len()));
        let logprobs = slot.logprobs();
        let (seen, expected) = (format!("{logprobs:?}"), format!("{:?}", wanted.logprobs));
        hold("logprobs", seen == expected, seen.clone(), expected.clone());
        Ok(Self {
            name: device.name(),
            token: (token != NONE).then_some(token),
            kept,
            temperature,
            logprob: logprobs.map(|logprobs| LogprobRecord::from(&logprobs.token)),
            differences,
        })
    }
}
