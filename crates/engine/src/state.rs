//! State: a sequence in mid-life as plain data, to be taken up again elsewhere.

/// The state that the next token of a sequence depends on, besides its row and its parameters.
///
/// Taken from a sequence and given to [`Pool::resume`](crate::Pool::resume), in this process or on another
/// machine, it goes on with the tokens that would have come anyway.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State<'a> {
    /// The ids of the prompt.
    pub prompt: &'a [u32],
    /// The ids generated so far.
    pub output: &'a [u32],
    /// The seed in use.
    pub seed: u64,
    /// The number of tokens before the next one, modulo 2^32; more than the ids that are handed in, where the
    /// caller keeps the end of a long history only.
    pub position: u32,
    /// The draw index.
    pub draw: u32,
    /// Mirostat's limit for the next token, in bits, or the mean of adaptive-p; a number below +inf, handed
    /// through without both.
    pub mu: f32,
}

impl<'a> State<'a> {
    /// Makes the state of a sequence that has these ids, with the draw index 0 and a `mu` of 0.
    #[must_use]
    pub fn new(prompt: &'a [u32], output: &'a [u32], seed: u64) -> Self {
        let position = prompt.len().wrapping_add(output.len()) as u32;
        Self { prompt, output, seed, position, draw: 0, mu: 0.0 }
    }
}
