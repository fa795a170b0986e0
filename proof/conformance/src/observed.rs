//! The observed result of a row, and in which fields two of these differ, bit for bit and in words.

use std::fmt::Write as _;

use gumball_spec::Status;
use gumball_spec::logprobs::{Logprobs, TokenLogprob};
use gumball_spec::oracle::Outcome;

/// The observed result of a row.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The token, or [`gumball_spec::NONE`].
    pub token: i32,
    /// The status of the row's data.
    pub status: Status,
    /// The temperature in use; 0 if greedy.
    pub temperature: f32,
    /// Mirostat's limit, or the mean of adaptive-p, after the row.
    pub mu: f32,
    /// The kept ids, in order; absent if the backend does not report them.
    pub kept: Option<Vec<u32>>,
    /// The logprobs, if they were asked for.
    pub logprobs: Option<Logprobs>,
}

impl Observed {
    /// Takes what the oracle found.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Self {
        Self {
            token: outcome.token,
            status: outcome.status,
            temperature: outcome.temperature,
            mu: outcome.mu,
            kept: Some(outcome.kept_ids().to_vec()),
            logprobs: outcome.logprobs.clone(),
        }
    }
}

/// Returns in which fields two observations differ; nothing if in none.
#[must_use]
pub fn differences(expected: &Observed, seen: &Observed) -> String {
    let mut text = String::new();
    let mut field = |name: &str, equal: bool, expected: String, seen: String| {
        if !equal {
            writeln!(text, "  {name}: expected {expected}, saw {seen}").expect("a string takes it");
        }
    };
    let bits = |x: f32| format!("{x:?} ({:08x})", x.to_bits());
    let (e, s) = (expected, seen);
    field("token", e.token == s.token, e.token.to_string(), s.token.to_string());
    field("status", e.status == s.status, format!("{:03b}", e.status.0), format!("{:03b}", s.status.0));
    field("temperature", same(e.temperature, s.temperature), bits(e.temperature), bits(s.temperature));
    field("mu", same(e.mu, s.mu), bits(e.mu), bits(s.mu));
    if let (Some(e), Some(s)) = (&e.kept, &s.kept) {
        let place = e.iter().zip(s).position(|(e, s)| e != s).unwrap_or(e.len().min(s.len()));
        let window = |ids: &[u32]| {
            let shown = &ids[place.saturating_sub(2).min(ids.len())..ids.len().min(place + 6)];
            format!("{} ids, from place {place}: {shown:?}", ids.len())
        };
        field("kept", e == s, window(e), window(s));
    }
    match (&e.logprobs, &s.logprobs) {
        (None, None) => {}
        (Some(e), Some(s)) => logprob_differences(e, s, &mut field),
        (e, s) => field("logprobs", false, format!("{e:?}"), format!("{s:?}")),
    }
    text
}

fn logprob_differences(
    expected: &Logprobs,
    seen: &Logprobs,
    field: &mut impl FnMut(&str, bool, String, String),
) {
    let words = |t: &TokenLogprob| format!("{t:?} ({:08x})", t.logprob.to_bits());
    let equal = |e: &TokenLogprob, s: &TokenLogprob| {
        (e.id, e.rank, e.logprob.to_bits()) == (s.id, s.rank, s.logprob.to_bits())
    };
    field("logprobs.token", equal(&expected.token, &seen.token), words(&expected.token), words(&seen.token));
    let seconds = [expected, seen].map(|of| format!("{:?} ({:08x})", of.second, of.second.to_bits()));
    field("logprobs.second", same(expected.second, seen.second), seconds[0].clone(), seconds[1].clone());
    for (name, e, s) in [("top", &expected.top, &seen.top), ("ids", &expected.ids, &seen.ids)] {
        field(
            &format!("logprobs.{name}"),
            e.len() == s.len(),
            format!("{} entries", e.len()),
            s.len().to_string(),
        );
        if let Some((place, (e, s))) = e.iter().zip(s).enumerate().find(|(_, (e, s))| !equal(e, s)) {
            field(&format!("logprobs.{name}[{place}]"), false, words(e), words(s));
        }
    }
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits()
}
