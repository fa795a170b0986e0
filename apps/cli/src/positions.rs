//! Tokens at the positions of a text: a head draws one from each hidden state, on the host or on a device.
//!
//! The seed of a position does not depend on the head, so two heads with the same logits draw the same
//! tokens.

use gumball_engine::head::HostMatrix;
use gumball_engine::{
    Batch, Device, DeviceHead, Head, Outputs, Place, Pool, PoolConfig, Rows, SamplingParams, Slot,
};

use crate::Result;

/// Hidden states that are drawn from together.
pub const TOGETHER: usize = 16;

/// A head, and where it draws.
#[derive(Clone, Copy, Debug)]
pub enum HeadThere<'a> {
    /// On the host.
    Host(Head<'a>),
    /// On a device, with memory for [`TOGETHER`] rows.
    Device(&'a Device, &'a DeviceHead<'a>),
}

impl HeadThere<'_> {
    /// Draws a token at each position. `hidden`: the hidden states, one after the other.
    ///
    /// # Errors
    /// - What the parameters are refused for.
    /// - [`gumball_engine::Error::Unavailable`] if the device fails, or has not enough memory.
    pub fn tokens(self, hidden: &[f32], params: &SamplingParams) -> Result<Vec<i32>> {
        let mut out = Outputs::new();
        let (head, place) = match self {
            Self::Host(head) => (head, Place::host()),
            Self::Device(device, head) => (head.into(), Place::device(device.clone(), TOGETHER)),
        };
        let mut pool = Pool::new(PoolConfig { slots: TOGETHER, place, ..PoolConfig::new(head.vocab()) })?;
        let slots = admitted(|| pool.admit(params.clone(), &[]))?;
        each(hidden, head.width(), |states| {
            let batch = Batch::of(&slots[..states.rows()]);
            pool.step(Rows::hidden(head, states), &batch, &mut out)?;
            Ok(out.tokens().to_vec())
        })
    }
}

/// Admits as many requests as are drawn for together.
fn admitted(mut admit: impl FnMut() -> gumball_engine::Result<Slot>) -> Result<Vec<Slot>> {
    Ok((0..TOGETHER).map(|_| admit()).collect::<gumball_engine::Result<_>>()?)
}

/// Draws from all hidden states, some at a time.
fn each(
    hidden: &[f32],
    width: usize,
    mut draw: impl FnMut(HostMatrix<'_>) -> Result<Vec<i32>>,
) -> Result<Vec<i32>> {
    let mut tokens = Vec::with_capacity(hidden.len() / width);
    for states in hidden.chunks(TOGETHER * width) {
        tokens.extend(draw(HostMatrix::new(states, states.len() / width, width)?)?);
    }
    Ok(tokens)
}
