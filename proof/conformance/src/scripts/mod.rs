//! Scripts: random calls on two pools at once, which must do the same.
//!
//! Bytes choose the calls of a script. One pool is on the host, where the rules hold it to the oracle. The
//! other pool computes from hidden states, on a device, or over ranks. Each call must give the same in both,
//! or be refused by both, and all sequences must be equal afterwards. A call that the other pool cannot do is
//! an [`Error::Unavailable`](gumball_spec::Error::Unavailable) there, and must change nothing.

mod batch;
mod call;
mod play;

use std::collections::BTreeMap;

#[cfg(feature = "cuda")]
use gumball_engine::Device;
use gumball_engine::dist::{LogitsLayout, Ownership, TransportKind, VocabSplit};
use gumball_engine::{Place, PoolConfig, Widths};
use gumball_spec::Result;

use crate::backend::pools::Pools;
use crate::bytes::Bytes;

/// Two tiles, the second one not full.
const VOCAB: usize = 300;

/// The words of a bitmask.
const WORDS: usize = VOCAB.div_ceil(32);

/// The requests in flight at most.
const SLOTS: usize = 4;

/// The most top tokens and ids whose logprobs a request may ask for.
const WIDTHS: Widths = Widths { top_n: 3, ids: 2 };

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outcome {
    /// Both pools did the same.
    Accepted,
    /// Both refused it, with the same error.
    Refused,
    /// Both refused it, each for a mistake of its own.
    RefusedForOther,
    /// The other pool said that it cannot do it, and the pool of the host was not asked.
    Unavailable,
}

/// How often each call ended in which way.
pub type Counted = BTreeMap<(&'static str, Outcome), u32>;

/// What pools are made for.
#[derive(Clone, Copy, Debug)]
struct Setup {
    /// Whether steps report kept sets.
    kept: bool,
    /// Whether the device keeps all histories. Otherwise the host must look at the sequences after each step.
    keep_histories: bool,
    #[cfg_attr(
        not(feature = "cuda"),
        expect(dead_code, reason = "histories of the host grow by themselves")
    )]
    history_growth: usize,
    /// The number of ranks, and how they split the vocabulary.
    world: usize,
    split: u8,
}

impl Setup {
    fn choose(bytes: &mut Bytes<'_>) -> Self {
        let byte = bytes.byte();
        let history_growth = [64, 1, 3, 7][usize::from(byte >> 2) % 4];
        let world = [3, 1, 2, 4][usize::from(byte >> 4) % 4];
        Self { kept: byte & 1 != 0, keep_histories: byte & 2 == 0, history_growth, world, split: byte >> 6 }
    }

    /// Returns how ranks split the vocabulary: inside tiles, evenly, at a tile, or so that all but one have
    /// nothing.
    fn split(self) -> VocabSplit {
        let border = |rank: usize| match self.split {
            0 => VOCAB * rank * rank / (self.world * self.world),
            2 => VOCAB.min(256 * rank),
            _ => 0,
        };
        let borders: Vec<usize> = (0..self.world).map(border).chain([VOCAB]).collect();
        let sizes: Vec<usize> = borders.array_windows().map(|[start, end]| end - start).collect();
        match self.split {
            1 => VocabSplit::even(VOCAB, self.world),
            _ => VocabSplit::of_sizes(&sizes),
        }
        .expect("a split")
    }

    #[cfg(feature = "cuda")]
    fn on_device(self, device: Device) -> PoolConfig {
        let Self { kept, keep_histories, history_growth, .. } = self;
        let place = Place::Device { device, rows: 32, history_growth, keep_histories };
        PoolConfig { place, ..host_config(kept) }
    }
}

fn host_config(kept: bool) -> PoolConfig {
    PoolConfig { widths: WIDTHS, slots: SLOTS, place: Place::threads(1), kept, ..PoolConfig::new(VOCAB) }
}

/// Plays a script on the pool of the host and on another one.
///
/// # Panics
/// If they differ: with the calls up to there.
fn hold(data: &[u8], make: impl FnOnce(Setup) -> Result<Pools>) -> Counted {
    let bytes = &mut Bytes(data);
    let setup = Setup::choose(bytes);
    let mut host = Pools::new(host_config(setup.kept)).expect("a small pool");
    play::play(bytes, setup, &mut host, &mut make(setup).expect("small pools"))
        .unwrap_or_else(|text| panic!("{setup:?}\n{text}"))
}

/// Plays a script on a pool of the host that computes its rows from hidden states.
pub fn from_hidden_states(data: &[u8]) -> Counted {
    hold(data, |setup| Pools::from_heads(host_config(setup.kept)))
}

/// Plays a script on a pool on a device that computes its rows from hidden states.
#[cfg(feature = "cuda")]
pub fn from_hidden_states_on_a_device(data: &[u8], device: &Device) -> Counted {
    hold(data, |setup| Pools::from_heads(setup.on_device(device.clone())))
}

/// Plays a script on a pool over ranks. The script's length says whether rows come from hidden states.
pub fn over_ranks(data: &[u8]) -> Counted {
    hold(data, |setup| {
        Pools::over_ranks(
            setup.split(),
            || Ok(host_config(setup.kept)),
            (TransportKind::Auto, ownership(data), &LogitsLayout::ALL),
            data.len() % 2 == 1,
        )
    })
}

/// Plays a script on a pool on a device.
#[cfg(feature = "cuda")]
pub fn on_a_device(data: &[u8], device: &Device) -> Counted {
    hold(data, |setup| Pools::new(setup.on_device(device.clone())))
}

/// Plays a script on a pool over the emulated devices of ranks, which need a compiler. The script's length
/// says how rows travel, and whether they come from hidden states.
#[cfg(feature = "cuda")]
pub fn over_devices(data: &[u8]) -> Counted {
    hold(data, |setup| {
        let devices = [TransportKind::OneSided, TransportKind::Nccl][data.len() % 2];
        let config = || Ok(setup.on_device(Device::emulated()?));
        let (layouts, from_heads) = (&LogitsLayout::ALL, data.len() % 4 > 1);
        // Hidden states lie on devices in the order of the batch.
        let ownership = if from_heads { Ownership::Blocks } else { ownership(data) };
        Pools::over_ranks(setup.split(), config, (devices, ownership, layouts), from_heads)
    })
}

/// Returns which rank has which request, by the script's length.
fn ownership(data: &[u8]) -> Ownership {
    [Ownership::Blocks, Ownership::Modulo][data.len() / 4 % 2]
}
