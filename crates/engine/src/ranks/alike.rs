//! Digests by which ranks notice that they differ: of the requests in slots, and of the masks and forced tokens of a step.

use gumball_dist::{Digest, StepDigest, StepPart};
use gumball_spec::SamplingParams;

use crate::batch::Batch;
use crate::sequence::Sequence;
use crate::slot::Slot;

/// Digests of the requests in slots.
#[derive(Debug, Default)]
pub(crate) struct Requests(Vec<Request>);

#[derive(Clone, Copy, Debug, Default)]
struct Request {
    params: Digest,
    /// Of its first ids, and of the caller's changes to its sequence since.
    prompt: Digest,
}

impl Requests {
    /// Notes a request that was placed in a slot, with the ids of its sequence.
    pub fn place(&mut self, slot: Slot, params: Digest, ids: &[u32]) {
        let mut prompt = Digest::default();
        prompt.add_list(ids);
        self.set(slot, Request { params, prompt });
    }

    /// Notes that a request was copied.
    pub fn copy(&mut self, from: Slot, to: Slot) {
        self.set(to, self.0[from as usize]);
    }

    /// Notes a caller's change to a sequence.
    pub fn note(&mut self, slot: Slot, word: u64) {
        self.0[slot as usize].prompt.add(word);
    }

    fn set(&mut self, slot: Slot, request: Request) {
        let place = slot as usize;
        self.0.resize(self.0.len().max(place + 1), Request::default());
        self.0[place] = request;
    }

    /// Takes the request of a row into the digest of a step.
    pub fn add(&self, digest: &mut StepDigest, slot: Slot, sequence: &Sequence) {
        let Request { params, prompt } = self.0[slot as usize];
        digest.add(StepPart::Parameters, params.word());
        digest.extend(StepPart::Seeds, [sequence.seed(), sequence.draw().into()]);
        digest.add(StepPart::Prompts, prompt.word());
    }
}

/// Returns the digest of parameters.
pub(crate) fn digest_of(params: &SamplingParams) -> Digest {
    Digest::default().with(format!("{params:?}").bytes().map(u64::from))
}

/// Takes the masks and forced tokens of a batch into the digest of a step.
pub(crate) fn add_batch(digest: &mut StepDigest, batch: &Batch<'_>, rows: usize) {
    for row in 0..rows {
        match batch.masks.row(row) {
            Some(words) => digest.add_list(StepPart::Masks, words),
            None => digest.add(StepPart::Masks, u64::MAX),
        }
        digest.add(StepPart::Forced, batch.forced(row).map_or(u64::MAX, u64::from));
    }
}
