//! The calls of a script, and how bytes choose them.

use gumball_engine::{LogprobsParams, PADDING, SamplingParams, Slot, VerifyMode};

use super::batch::{Batch, DraftsOfBatch};
use super::{SLOTS, VOCAB, WIDTHS};
use crate::bytes::Bytes;
use crate::generate;
use crate::rows::Words;

/// A call, in numbers small enough to print.
#[derive(Clone, Debug)]
pub enum Call {
    Admit {
        params: u8,
        prompt: Vec<u32>,
    },
    Resume {
        params: u8,
        output: Vec<u32>,
        position: u32,
        mu: f32,
    },
    Fork {
        slot: Slot,
        draw: u32,
    },
    Release(Slot),
    Push(Slot, u32),
    Shorten(Vec<Slot>, Vec<usize>),
    Step(Batch),
    Verify(Batch),
    Draft {
        batch: Batch,
        siblings: usize,
        probs: bool,
    },
    Score {
        batch: Batch,
        params: u8,
        prompt: usize,
    },
    Enqueue(Batch),
    Assign(Batch),
    /// Enqueues other rows for the last assignment.
    EnqueueAssigned(Batch),
    EnqueueShorten(Vec<u32>),
    Fetch,
    Replay(Batch, Vec<Vec<Slot>>),
}

/// The state of the pools that the choice of a call depends on.
pub struct Scene<'a> {
    /// The slots of the requests in flight, and of the requests with mirostat or adaptive-p among them.
    pub live: &'a [Slot],
    pub with_mu: &'a [Slot],
    /// The last assignment, with padding in place of requests that have ended.
    pub assigned: Option<&'a Batch>,
    /// The slots of the last step or verification, as above.
    pub last: Option<&'a [Slot]>,
    /// Whether that was enqueued.
    pub fetchable: bool,
    /// Whether several steps may be taken without a look at the sequences.
    pub unseen: bool,
}

impl Call {
    /// Returns the call's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Admit { .. } => "admit",
            Self::Resume { .. } => "resume",
            Self::Fork { .. } => "fork",
            Self::Release(_) => "release",
            Self::Push(..) => "push",
            Self::Shorten(..) => "shorten",
            Self::Step(_) => "step",
            Self::Verify(_) => "verify",
            Self::Draft { .. } => "draft",
            Self::Score { .. } => "score",
            Self::Enqueue(_) => "enqueue",
            Self::Assign(_) => "assign",
            Self::EnqueueAssigned(_) => "enqueue_assigned",
            Self::EnqueueShorten(..) => "enqueue_shorten",
            Self::Fetch => "fetch",
            Self::Replay(..) => "replay",
        }
    }

    /// Returns the call with trees given by parents in place of links, which say the same unless they are no
    /// tree.
    pub fn by_parents(&self) -> Self {
        let mut call = self.clone();
        if let Self::Verify(batch)
        | Self::Enqueue(batch)
        | Self::Assign(batch)
        | Self::EnqueueAssigned(batch)
        | Self::Replay(batch, _) = &mut call
        {
            batch.drafts.iter_mut().for_each(|drafts| drafts.links &= drafts.no_tree);
        }
        call
    }

    /// Chooses a call; a first byte of 0 chooses none.
    pub fn choose(bytes: &mut Bytes<'_>, scene: &Scene<'_>) -> Option<Self> {
        let Scene { live, with_mu, assigned, last, fetchable, unseen } = *scene;
        let kind = bytes.byte() % 32;
        // Of nothing in flight, there is nothing to do but to admit.
        let kind = if live.is_empty() && (1..29).contains(&kind) { 1 } else { kind };
        let slot = |bytes: &mut Bytes<'_>| {
            if bytes.seldom(30) {
                bytes.of(&[SLOTS as Slot, -1, 0, 99])
            } else {
                live[bytes.below(live.len())]
            }
        };
        // Requests with mirostat or adaptive-p have no drafts, and several steps that the host does not see
        // make a device forget their limits.
        let how = bytes.byte();
        let (all, drafts) = (how >= 245, how & 1 != 0);
        let without_mu: Vec<Slot> =
            live.iter().copied().filter(|slot| all || !with_mu.contains(slot)).collect();
        Some(match kind {
            1..=4 => Self::Admit { params: bytes.byte(), prompt: ids(bytes) },
            5 => Self::Resume {
                params: bytes.byte(),
                output: ids(bytes),
                position: bytes.of(&[9, u32::MAX, 1000]),
                mu: bytes.of(&[4.0, 0.5, f32::NAN]),
            },
            6 => Self::Fork { slot: slot(bytes), draw: u32::from(bytes.byte()) },
            7 => Self::Release(slot(bytes)),
            8 => Self::Push(slot(bytes), bytes.below(VOCAB) as u32),
            10 => {
                let slots: Vec<Slot> = (0..1 + bytes.byte() % 2).map(|_| slot(bytes)).collect();
                let counts = slots.iter().map(|_| bytes.of(&[1, 0, 2, 9])).collect();
                Self::Shorten(slots, counts)
            }
            11..=14 => Self::Step(Batch::choose(bytes, live)),
            15..=18 => Self::Verify(Batch::choose(bytes, &without_mu).with_drafts(bytes)),
            19 => {
                let mut batch = Batch::choose(bytes, &without_mu);
                batch.slots.extend(live.first().filter(|_| drafts));
                let (siblings, probs) = ([1, 3, 1, 3, 64, 1, 3, 65][usize::from(how / 2) % 8], how & 64 != 0);
                Self::Draft { batch: batch.with_drafts(bytes), siblings, probs }
            }
            20 => Self::Score {
                batch: Batch::choose(bytes, live),
                params: bytes.byte(),
                prompt: bytes.below(3),
            },
            21..=23 => {
                let batch = in_order(Batch::choose(bytes, &without_mu));
                Self::Enqueue(if drafts { batch.with_drafts(bytes) } else { batch })
            }
            24 => {
                let batch = in_order(Batch::choose(bytes, &without_mu));
                Self::Assign(sound(if drafts { batch.with_drafts(bytes) } else { batch }, live))
            }
            25 | 26 => Self::EnqueueAssigned(Batch { rows_seed: bytes.byte(), ..assigned?.clone() }),
            9 | 27 => {
                let last = last?;
                // Of their numbers a device knows the last two.
                let count = |slot| if with_mu.contains(slot) { 0 } else { bytes.of(&[1, 0, 2, 40]) };
                Self::EnqueueShorten(last.iter().map(count).collect())
            }
            28 => {
                let batch = in_order(Batch::choose(bytes, &without_mu));
                let batch = sound(if drafts { batch.with_drafts(bytes) } else { batch }, live);
                let turns = if unseen { 1 + how / 2 % 3 } else { 1 };
                let turn = |turn| {
                    let mut slots = batch.slots.clone();
                    slots.rotate_left(usize::from(turn).min(batch.slots.len()));
                    slots
                };
                let turns = (0..turns).map(turn).collect();
                Self::Replay(batch, turns)
            }
            29..=31 if fetchable => Self::Fetch,
            _ => return None,
        })
    }
}

/// Returns a batch as work in order takes it: without the caller's edits.
fn in_order(batch: Batch) -> Batch {
    Batch { hook: false, ..batch }
}

/// Returns a batch of admitted requests, each once, whose drafts are trees: drafts on a device are not
/// checked, and the host checks an assignment only with its rows.
fn sound(batch: Batch, live: &[Slot]) -> Batch {
    let admitted = |slot: &Slot| if live.contains(slot) { *slot } else { PADDING };
    let mut slots: Vec<Slot> = batch.slots.iter().map(admitted).collect();
    for place in 1..slots.len() {
        if slots[..place].contains(&slots[place]) {
            slots[place] = PADDING;
        }
    }
    let of = |drafts: DraftsOfBatch| DraftsOfBatch {
        trees: drafts.trees && drafts.mode != VerifyMode::Block,
        no_tree: false,
        ..drafts
    };
    let drafts = batch.drafts.map(of);
    Batch { slots, drafts, ..batch }
}

/// Chooses a short list of few ids, so that they repeat.
fn ids(bytes: &mut Bytes<'_>) -> Vec<u32> {
    (0..bytes.byte() % 6).map(|_| u32::from(bytes.byte() % 5)).collect()
}

/// Returns the parameters of a number: any that validate, and for 0 the default ones.
pub fn params(number: u8) -> SamplingParams {
    let seed = Some(u64::from(number));
    if number == 0 {
        return SamplingParams { seed, ..Default::default() };
    }
    let mut words = Words(u64::from(number));
    let data: Vec<u8> = (0..300).map(|_| words.word() as u8).collect();
    let mut params = generate::params(&mut Bytes(&data), VOCAB);
    if let Some(LogprobsParams { top_n, ids, .. }) = &mut params.logprobs {
        // Some ask for more than the pool has places for.
        *top_n = (*top_n).min(WIDTHS.top_n as u32 + u32::from(number % 16 == 5));
        ids.truncate(WIDTHS.ids + usize::from(number % 16 == 6));
    }
    SamplingParams { seed, ..params }
}
