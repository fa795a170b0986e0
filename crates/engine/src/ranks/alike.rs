//! What ranks must have alike in a step: digests, by which they notice that they differ, and words that tell
//! in what.

use std::sync::Arc;

use gumball_dist::{Digest, LogitsLayout, StepDigest, StepPart};
use gumball_spec::watermark::{self, Key};
use gumball_spec::{Kind, SamplingParams};

use crate::assignment::Assignment;
use crate::batch::Checked;
use crate::drafts::ReadDrafts;
use crate::score::Scored;
use crate::sequence::Sequence;
use crate::slot::Slot;
use crate::slots::{Change, Slots};
use crate::verify_mode::VerifyMode;

/// The requests in slots, and the step that was begun last.
#[derive(Debug, Default)]
pub(crate) struct Alike {
    /// By slot.
    requests: Vec<Request>,
    step: Option<Step>,
    /// The assignments of batches of drafts on a device.
    drafted: Vec<Step>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Request {
    params: Digest,
    prompt: Digest,
    /// Of its output, position and mu when the caller placed it, and of the caller's changes since.
    output: Digest,
    /// How many output tokens the caller has left it with.
    tokens: usize,
}

/// The kind of a step, besides its requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub layout: LogitsLayout,
    /// The type and the kind of the rows, where the host knows them.
    pub rows: Option<(&'static str, Kind)>,
    pub work: For,
}

/// What rows are for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum For {
    Step,
    /// A verification, which judges drafts so.
    Verify(VerifyMode),
    /// That many drafts of each row, to be judged so.
    Drafts(VerifyMode, usize),
    Scores,
}

#[derive(Debug)]
struct Step {
    shape: Shape,
    of: Arc<Assignment>,
    /// Of each row the digest of its mask.
    masks: Vec<Option<u64>>,
    /// The ids of the drafts and then their parents, where the host knows them.
    drafts: Vec<i32>,
    /// Digests of the drafter's rows that have drafts after them, with their numbers, where the host knows
    /// them.
    probs: Vec<(usize, u64)>,
}

impl Alike {
    /// Notes a sequence that the caller has placed in a slot, or changed there.
    pub fn note(&mut self, slot: Slot, sequence: &Sequence, change: Change) {
        let place = slot as usize;
        self.requests.resize(self.requests.len().max(place + 1), Request::default());
        let request = &mut self.requests[place];
        match change {
            Change::Placed => {
                let history = sequence.history();
                *request = Request { params: digest_of(sequence.params()), ..Request::default() };
                request.prompt.add_list(history.prompt());
                request.output.add_list(history.output());
                request.output.add(sequence.position().into());
                request.output.add(sequence.mu().to_bits().into());
            }
            Change::Pushed(id) => request.output.add(id.into()),
            Change::Shortened(count) => request.output.add(!(count as u64)),
        }
        request.tokens = sequence.history().output().len();
    }

    /// Begins a step or an assignment of a batch, and returns its digest.
    pub fn begin(
        &mut self,
        sequences: &Slots,
        shape: Shape,
        batch: &Checked<'_>,
        of: Arc<Assignment>,
    ) -> StepDigest {
        let mut digest = StepDigest::default();
        digest.add(StepPart::Shape, shape.layout as u64);
        shape.rows.iter().for_each(|rows| digest.extend(StepPart::Shape, words_of(*rows)));
        let (work, mode) = match shape.work {
            For::Step => (0, None),
            For::Verify(mode) => (1, Some(mode)),
            For::Drafts(mode, siblings) => (2 + siblings as u64 * 8, Some(mode)),
            For::Scores => (3, None),
        };
        digest.add(StepPart::Shape, work);
        digest.extend(StepPart::Shape, mode.into_iter().flat_map(VerifyMode::words));
        for slot in batch.slots {
            digest.add(StepPart::Slots, *slot as u64);
            let Ok(sequence) = sequences.sequence(*slot) else { continue };
            let Request { params, prompt, output, .. } = self.requests[*slot as usize];
            digest.add(StepPart::Parameters, params.word());
            digest.extend(StepPart::Seeds, [sequence.seed(), sequence.draw().into()]);
            digest.add(StepPart::Prompts, prompt.word());
            digest.add(StepPart::Positions, output.word());
            // Devices advance positions by themselves.
            if shape.rows.is_some() {
                let last = sequence.history().ids().last().map_or(0, |id| u64::from(*id) + 1);
                digest.extend(StepPart::Positions, [sequence.position().into(), last]);
            }
        }
        let mask = |row| {
            batch.masks.row(row).map(|words| {
                let mut mask = Digest::default();
                mask.add_list(words);
                mask.word()
            })
        };
        let rows = batch.rows();
        let masks: Vec<Option<u64>> = (0..rows).map(mask).collect();
        let forced = (0..rows).map(|row| batch.forced(row));
        digest.extend(StepPart::Masks, masks.iter().map(|mask| mask.unwrap_or(u64::MAX)));
        digest.extend(StepPart::Forced, forced.map(|id| id.map_or(u64::MAX, u64::from)));
        digest.extend(StepPart::Drafts, batch.counts.iter().map(|count| u64::from(*count)));
        self.step = Some(Step { shape, of, masks, drafts: Vec::new(), probs: Vec::new() });
        digest
    }

    /// Takes the drafts of a verification into its digest: ids, parents, and the drafter's probabilities
    /// where there are drafts after them.
    pub fn add_drafts(&mut self, digest: &mut StepDigest, drafts: &ReadDrafts<'_>, vocab: usize) {
        let parents = drafts.parents.iter().flat_map(|parents| parents.iter());
        self.add_ids(digest, drafts.ids.iter().chain(parents).copied());
        let (Some(step), Some(probs)) = (&mut self.step, drafts.probs) else { return };
        let digest_of = |row: usize| {
            let mut of_row = Digest::default();
            of_row.add_list(bytemuck::cast_slice(&probs[row * vocab..][..vocab]));
            (row, of_row.word())
        };
        step.probs = drafts.judging_rows(&step.of.slots).map(digest_of).collect();
        digest.extend(StepPart::Drafts, step.probs.iter().map(|(_, word)| *word));
    }

    /// Takes the ids of drafts, and then their parents, or the paths in front of rows, into a step's digest.
    pub fn add_ids(&mut self, digest: &mut StepDigest, ids: impl Iterator<Item = i32>) {
        let Some(step) = &mut self.step else { return };
        step.drafts = ids.collect();
        digest.extend(StepPart::Drafts, step.drafts.iter().map(|id| *id as u64));
    }

    /// Returns the digest of drafts after paths, `siblings` of each row, beside the step that was begun.
    /// `place`: the place of their batch among the batches that have drafts.
    pub fn of_drafts(
        &mut self,
        sequences: &Slots,
        layout: LogitsLayout,
        (place, batch): (usize, &Checked<'_>),
        (siblings, paths): (usize, &[i32]),
    ) -> StepDigest {
        let own = self.step.take();
        let shape = Shape { layout, rows: None, work: For::Drafts(batch.mode, siblings) };
        let mut digest = self.begin(sequences, shape, batch, Assignment::of(batch, true, Vec::new()));
        self.add_ids(&mut digest, paths.iter().copied());
        let drafted = std::mem::replace(&mut self.step, own).expect("just begun");
        match self.drafted.get_mut(place) {
            Some(noted) => *noted = drafted,
            None => self.drafted.push(drafted),
        }
        digest
    }

    /// Returns the digest of scores of so many known tokens, beside the step that was begun.
    pub fn of_scores(
        &mut self,
        sequences: &Slots,
        layout: LogitsLayout,
        batch: &Checked<'_>,
        scored: &Scored<'_>,
    ) -> StepDigest {
        let own = self.step.take();
        let shape = Shape { layout, rows: None, work: For::Scores };
        let mut digest = self.begin(sequences, shape, batch, Assignment::of(batch, false, Vec::new()));
        add_scored(&mut digest, scored);
        self.step = own;
        digest
    }

    /// Takes the type and the kind of a step's rows into its digest, where the host knows them only after its
    /// begin.
    pub fn add_rows(&mut self, digest: &mut StepDigest, rows: (&'static str, Kind)) {
        let Some(step) = &mut self.step else { return };
        step.shape.rows = Some(rows);
        digest.extend(StepPart::Shape, words_of(rows));
    }

    /// Tells a part of the step, a line for each request or row. All that is assigned to batches of drafts is
    /// told with the drafts.
    pub fn tell(&self, sequences: &Slots, part: StepPart) -> Vec<String> {
        let own = self.step.iter().flat_map(|step| self.tell_step(sequences, step, part));
        let drafted = self.drafted.iter().filter(|_| part == StepPart::Drafts);
        let parts = drafted.flat_map(|step| StepPart::ALL.map(|part| (step, part)));
        own.chain(parts.flat_map(|(step, part)| self.tell_step(sequences, step, part))).collect()
    }

    fn tell_step(&self, sequences: &Slots, step: &Step, part: StepPart) -> Vec<String> {
        match part {
            StepPart::Shape => vec![step.shape.tell()],
            StepPart::Slots => {
                let slots = step.of.slots.iter().enumerate();
                let slots = slots.map(|(request, slot)| format!("slot {slot} in request {request}"));
                [format!("length {}", step.of.slots.len())].into_iter().chain(slots).collect()
            }
            StepPart::Masks => {
                let mask = |mask: &Option<u64>| {
                    mask.map_or_else(
                        || "no mask".to_owned(),
                        |word| format!("a mask of digest {}", short(word)),
                    )
                };
                of_rows(step.masks.iter().map(mask))
            }
            StepPart::Forced => {
                let token =
                    |id: Option<u32>| id.map_or_else(|| "none".to_owned(), |id| format!("token {id}"));
                of_rows((0..step.masks.len()).map(|row| token(step.of.batch().forced(row))))
            }
            StepPart::Drafts => {
                let counts = step.of.batch().counts;
                let all: usize = counts.iter().map(|count| *count as usize).sum();
                let counts = counts.iter().enumerate();
                let counts = counts.map(|(request, count)| format!("count {count} in request {request}"));
                let drafts =
                    step.drafts.iter().enumerate().map(|(place, word)| match place.checked_sub(all) {
                        None => format!("token {word} as draft {place}"),
                        Some(draft) => format!("parent {word} of draft {draft}"),
                    });
                let probs = step.probs.iter();
                let probs = probs.map(|(row, word)| {
                    format!("probabilities of digest {} in row {row} of the drafts", short(*word))
                });
                counts.chain(drafts).chain(probs).collect()
            }
            StepPart::Parameters | StepPart::Seeds | StepPart::Prompts | StepPart::Positions => {
                let requests = step.of.slots.iter().enumerate();
                requests
                    .flat_map(|(request, slot)| self.tell_request(sequences, step, (request, *slot), part))
                    .collect()
            }
        }
    }

    /// Tells a part of a request.
    fn tell_request(
        &self,
        sequences: &Slots,
        step: &Step,
        (request, slot): (usize, Slot),
        part: StepPart,
    ) -> Vec<String> {
        let Ok(sequence) = sequences.sequence(slot) else { return Vec::new() };
        let noted = self.requests[slot as usize];
        let told = match part {
            StepPart::Parameters => {
                let text = format!("{:?}", sequence.params());
                let fields = text.trim_start_matches("SamplingParams { ").trim_end_matches(" }").split(", ");
                return fields.map(|field| format!("{field} in request {request}")).collect();
            }
            StepPart::Seeds => format!("seed {}, draw {}", sequence.seed(), sequence.draw()),
            StepPart::Prompts => {
                let prompt = noted.prompt.word();
                format!("length {}, digest {}", sequence.history().prompt().len(), short(prompt))
            }
            _ => {
                let at = match (step.shape.rows, sequence.history().ids().last()) {
                    (Some(_), Some(last)) => {
                        format!(", position {} behind token {last}", sequence.position())
                    }
                    (Some(_), None) => format!(", position {}", sequence.position()),
                    (None, _) => String::new(),
                };
                format!("length {}, digest {}{at}", noted.tokens, short(noted.output.word()))
            }
        };
        vec![format!("{told} in request {request}")]
    }
}

/// Returns what stands for the type and the kind of rows in a digest.
fn words_of((dtype, kind): (&'static str, Kind)) -> impl Iterator<Item = u64> {
    dtype.bytes().map(u64::from).chain([(kind == Kind::Logits).into()])
}

impl Shape {
    fn tell(&self) -> String {
        let rows = self.rows.map(|(dtype, kind)| {
            let kind = if kind == Kind::Logits { "logits" } else { "probabilities" };
            format!(", {dtype} {kind}")
        });
        let work = match self.work {
            For::Step => String::new(),
            For::Verify(mode) => format!(", a verification by {mode:?}"),
            For::Drafts(mode, siblings) => {
                format!(", {siblings} drafts of a row, to be verified by {mode:?}")
            }
            For::Scores => ", scores".to_owned(),
        };
        format!("{}{}{work}", self.layout.name(), rows.unwrap_or_default())
    }
}

fn of_rows(rows: impl Iterator<Item = String>) -> Vec<String> {
    rows.enumerate().map(|(row, told)| format!("{told} in row {row}")).collect()
}

/// Returns what of a digest is told.
fn short(word: u64) -> String {
    format!("{:08x}", (word ^ word >> 32) as u32)
}

/// Takes known tokens and their parameters into a digest.
pub(super) fn add_scored(digest: &mut StepDigest, scored: &Scored<'_>) {
    digest.add(StepPart::Parameters, digest_of(scored.params).word());
    digest.add(StepPart::Seeds, scored.params.seed.unwrap_or(0));
    digest.add_list(StepPart::Prompts, scored.ids);
    digest.extend(StepPart::Positions, [scored.prompt_len, scored.start].map(|place| place as u64));
}

/// Returns the digest of parameters.
fn digest_of(params: &SamplingParams) -> Digest {
    // Parameters name a watermark's key by its number alone.
    let key = params.watermark.own().and_then(|watermark| watermark::key(watermark.key).ok());
    Digest::default().with(format!("{params:?}").bytes().map(u64::from).chain(key.map(Key::check_value)))
}
