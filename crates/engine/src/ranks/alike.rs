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
    prompt: Digest,
    /// Of its output when the caller placed or changed it last.
    output: Digest,
}

impl Requests {
    /// Notes a sequence that the caller has placed in a slot, or changed there.
    pub fn place(&mut self, slot: Slot, sequence: &Sequence) {
        let (mut prompt, mut output) = (Digest::default(), Digest::default());
        prompt.add_list(sequence.history().prompt());
        output.add_list(sequence.history().output());
        self.set(slot, Request { params: digest_of(sequence.params()), prompt, output });
    }

    fn set(&mut self, slot: Slot, request: Request) {
        let place = slot as usize;
        self.0.resize(self.0.len().max(place + 1), Request::default());
        self.0[place] = request;
    }

    /// Takes the request of a row into the digest of a step.
    pub fn add(&self, digest: &mut StepDigest, slot: Slot, sequence: &Sequence) {
        let Request { params, prompt, output } = self.0[slot as usize];
        digest.add(StepPart::Parameters, params.word());
        digest.extend(StepPart::Seeds, [sequence.seed(), sequence.draw().into()]);
        digest.add(StepPart::Prompts, prompt.word());
        digest.add(StepPart::Positions, output.word());
    }
}

/// Returns the digest of parameters.
fn digest_of(params: &SamplingParams) -> Digest {
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
