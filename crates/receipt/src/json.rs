//! A receipt as canonical JSON (R1, RFC 8785), so that one receipt is one sequence of bytes.

use gumball_spec::{Error, Result, SamplingParams};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{DEFINITION, Digest, Receipt, Step};

/// The members. 64-bit numbers are decimal strings, digests hexadecimal ones.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
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
#[serde(untagged)]
enum Radius {
    /// Of an f32's shortest decimal digits.
    Finite(f64),
    /// `inf` or `-inf`.
    Infinite(String),
}

impl Receipt {
    /// Returns the receipt as canonical JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let each = |value: fn(&Step) -> Option<Digest>| -> Vec<Option<String>> {
            self.steps.iter().map(|step| value(step).map(hex)).collect()
        };
        let forced = self.steps.iter().enumerate().filter(|(_, step)| step.is_forced);
        let members = Members {
            definition: DEFINITION,
            digests: each(|step| Some(step.digest)).into_iter().flatten().collect(),
            draw_index: self.draw,
            forced: forced.map(|(place, _)| place).collect(),
            masks: each(|step| step.mask),
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
        if (members.digests.len(), members.masks.len(), members.radii.len()) != (steps, steps, radii) {
            return Err(wrong("with lists of different lengths".to_owned()));
        }
        for (place, token) in members.output.into_iter().enumerate() {
            let digest = |text: &str| unhex(text).ok_or_else(|| wrong(format!("with the digest {text:?}")));
            receipt.steps.push(Step {
                token,
                digest: digest(&members.digests[place])?,
                radius: members.radii.get(place).map(|radius| match radius {
                    Radius::Finite(number) => *number as f32,
                    Radius::Infinite(name) if name == "-inf" => f32::NEG_INFINITY,
                    Radius::Infinite(_) => f32::INFINITY,
                }),
                mask: members.masks[place].as_deref().map(digest).transpose()?,
                is_forced: members.forced.contains(&place),
            });
        }
        if let Some(step) = receipt.steps.iter().find(|step| step.token as usize >= receipt.vocab) {
            return Err(Error::out_of_range("output", step.token, format!("ids in 0..{}", receipt.vocab)));
        }
        if receipt.to_json() != text.trim_end() {
            return Err(wrong("in another form".to_owned()));
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
    Radius::Infinite(if radius > 0.0 { "inf" } else { "-inf" }.to_owned())
}

fn hex(digest: Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Digest> {
    let mut digest = Digest::default();
    if text.len() != 2 * digest.len() || !text.is_ascii() {
        return None;
    }
    for (place, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
    }
    Some(digest)
}
