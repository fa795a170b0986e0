//! A receipt as canonical JSON (R1, RFC 8785), so that one receipt is one sequence of bytes.

use gumball_spec::hex::{hex, unhex};
use gumball_spec::{Error, Result, SamplingParams};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{DEFINITION, Digest, Receipt, Step};

/// The members. 64-bit numbers are decimal strings, digests hexadecimal ones.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "the object of a receipt")]
struct Members {
    definition: u32,
    digests: Vec<String>,
    draw_index: u32,
    forced: Vec<usize>,
    masks: Vec<Option<String>>,
    output: Vec<u32>,
    params: Map<String, Value>,
    prompt: Vec<u32>,
    radii: Vec<Radius>,
    seed: String,
    vocab: usize,
}

/// A radius: a number, or the name of an infinite one.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "a number or \"inf\" among radii")]
enum Radius {
    /// Of an f32's shortest decimal digits.
    Finite(f64),
    /// `inf`.
    Infinite(Inf),
}

/// The name of an infinite radius.
#[derive(Serialize, Deserialize)]
enum Inf {
    #[serde(rename = "inf")]
    Inf,
}

impl Receipt {
    /// Returns the receipt as canonical JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let forced = self.steps.iter().enumerate().filter(|(_, step)| step.is_forced);
        let members = Members {
            definition: DEFINITION,
            digests: self.steps.iter().map(|step| hex(&step.digest)).collect(),
            draw_index: self.draw,
            forced: forced.map(|(place, _)| place).collect(),
            masks: self.steps.iter().map(|step| step.mask.map(|digest| hex(&digest))).collect(),
            output: self.steps.iter().map(|step| step.token).collect(),
            params: switched(&self.params),
            prompt: self.prompt.clone(),
            radii: self.steps.iter().filter_map(|step| step.radius).map(radius).collect(),
            seed: self.seed.to_string(),
            vocab: self.vocab,
        };
        serde_json_canonicalizer::to_string(&members).expect("plain data")
    }

    /// Reads a receipt.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a text that is no receipt in canonical form, or one of another version of
    ///   the definition, and the errors of [`Receipt::new`].
    pub fn from_json(text: &str) -> Result<Self> {
        let wrong =
            |reason: String| Error::out_of_range("receipt", reason, "a receipt in canonical JSON (R1)");
        // serde takes a list for an object whose members it holds in turn.
        if !text.starts_with('{') {
            let start: String = text.chars().take(20).collect();
            return Err(wrong(format!("a text that begins {start:?}")));
        }
        let members: Members = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if members.definition != DEFINITION {
            let allowed = format!("{DEFINITION}, the version of this program");
            return Err(Error::out_of_range("definition", members.definition, allowed));
        }
        let params: SamplingParams = serde_json::from_value(Value::Object(members.params))
            .map_err(|error| wrong(error.to_string()))?;
        let seed = members.seed.parse().map_err(|_| wrong(format!("with the seed {:?}", members.seed)))?;
        let mut receipt = Self::new(&params, members.vocab, seed, members.draw_index, &members.prompt)?;
        let steps = members.output.len();
        let radii = if receipt.has_radii() { steps } else { 0 };
        let lists = [("digests", members.digests.len(), steps), ("masks", members.masks.len(), steps)];
        for (name, length, wanted) in lists.into_iter().chain([("radii", members.radii.len(), radii)]) {
            if length != wanted {
                let allowed = format!("{wanted} elements, for {steps} tokens and these logprobs.mode");
                return Err(Error::length(name, length, allowed));
            }
        }
        for (place, token) in members.output.iter().copied().enumerate() {
            let digest = |text: &str| {
                let bytes = unhex(text).and_then(|bytes| Digest::try_from(bytes).ok());
                bytes.ok_or_else(|| wrong(format!("with the digest {text:?}")))
            };
            receipt.steps.push(Step {
                token,
                digest: digest(&members.digests[place])?,
                radius: members.radii.get(place).map(|radius| match radius {
                    Radius::Finite(number) => *number as f32,
                    Radius::Infinite(Inf::Inf) => f32::INFINITY,
                }),
                mask: members.masks[place].as_deref().map(digest).transpose()?,
                is_forced: false,
            });
        }
        if let Some(step) = receipt.steps.iter().find(|step| step.token as usize >= receipt.vocab) {
            return Err(Error::out_of_range("output", step.token, format!("ids in 0..{}", receipt.vocab)));
        }
        for place in members.forced {
            let step = receipt.steps.get_mut(place);
            let wrong = || Error::out_of_range("forced", place, format!("places of tokens, in 0..{steps}"));
            step.ok_or_else(wrong)?.is_forced = true;
        }
        for step in &receipt.steps {
            crate::check_radius(step.radius)?;
        }
        let (own, given) = (receipt.to_json(), text.trim_end());
        if own != given {
            let same = own.bytes().zip(given.bytes()).take_while(|(a, b)| a == b).count();
            let near = String::from_utf8_lossy(
                &given.as_bytes()[same.saturating_sub(20)..given.len().min(same + 20)],
            );
            return Err(wrong(format!("in another form at byte {same}, {near:?}")));
        }
        Ok(receipt)
    }
}

/// Returns the parameters that differ from the neutral ones.
fn switched(params: &SamplingParams) -> Map<String, Value> {
    // By way of the text, in which an f32 has its own shortest digits.
    let members = |params: &SamplingParams| match serde_json::to_string(params)
        .map(|text| serde_json::from_str(&text))
    {
        Ok(Ok(Value::Object(members))) => members,
        _ => unreachable!("parameters are an object"),
    };
    let neutral = members(&SamplingParams::default());
    members(params).into_iter().filter(|(name, value)| neutral[name] != *value).collect()
}

fn radius(radius: f32) -> Radius {
    if radius.is_finite() {
        return Radius::Finite(radius.to_string().parse().expect("a decimal number"));
    }
    Radius::Infinite(Inf::Inf)
}
