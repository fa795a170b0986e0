//! The settings that are timed over ranks: parts, which the command line names, of vocabularies, types,
//! numbers of requests, and their parameters.

use gumball_cuda::Dtype;
use gumball_engine::dist::VocabSplit;
use gumball_engine::{LogprobsParams, Result, SamplingParams, VerifyMode};

/// A part of the times.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub vocab: usize,
    /// How the ranks' ids are to each other; as many on all ranks if it is empty.
    pub ratio: Vec<usize>,
    pub dtypes: &'static [Dtype],
    pub requests: &'static [usize],
    /// The drafts of each request; without any, steps are timed.
    pub drafts: usize,
    pub asked: Vec<Asked>,
}

/// The parameters of the requests of a batch.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub name: &'static str,
    /// A batch takes them in turn.
    pub params: Vec<SamplingParams>,
    pub mode: VerifyMode,
    /// Whether drafts come with the probabilities that they were drawn from.
    pub has_probs: bool,
    /// Whether rows have bitmasks, each of half of the ids.
    pub masked: bool,
    /// The tokens of a prompt.
    pub prompt: u32,
}

/// The names of the parts.
pub(super) const PARTS: [&str; 8] =
    ["steps", "forty", "drafts", "mixed", "small", "edited", "edited-drafts", "lists"];

const BOTH: &[Dtype] = &[Dtype::F32, Dtype::Bf16];
const F32: &[Dtype] = &[Dtype::F32];

impl Part {
    /// Returns a part: `NAME`, or with as many ids as `NAME@IDS` says, which lie on the ranks as
    /// `NAME@IDS/3:1` says.
    ///
    /// # Errors
    /// A text that names the word that is no part and no number.
    pub fn of_text(text: &str) -> std::result::Result<Self, String> {
        let number =
            |of: &str| of.parse().map_err(|error| format!("{text}: {of} is no number of ids: {error}"));
        let (name, ids) = text.split_once('@').unwrap_or((text, ""));
        let mut part = Self::of_name(name)?;
        if !ids.is_empty() {
            let (vocab, ratio) = ids.split_once('/').unwrap_or((ids, ""));
            part.vocab = number(vocab)?;
            part.ratio = ratio
                .split(':')
                .filter(|of| !of.is_empty())
                .map(number)
                .collect::<std::result::Result<_, _>>()?;
        }
        Ok(part)
    }

    /// Returns how the ids lie on that many ranks.
    pub fn split(&self, world: usize) -> Result<VocabSplit> {
        let all: usize = self.ratio.iter().sum();
        if all == 0 {
            return VocabSplit::even(self.vocab, world);
        }
        let border = |ranks: usize| self.vocab * self.ratio[..ranks].iter().sum::<usize>() / all;
        let sizes: Vec<usize> = (0..self.ratio.len()).map(|rank| border(rank + 1) - border(rank)).collect();
        VocabSplit::of_sizes(&sizes)
    }

    fn of_name(name: &str) -> std::result::Result<Self, String> {
        let ratio = Vec::new();
        Ok(match name {
            "steps" => Self {
                vocab: 151_936,
                ratio,
                dtypes: BOTH,
                requests: &[1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 240, 512],
                drafts: 0,
                asked: all(),
            },
            "drafts" => Self {
                vocab: 151_936,
                ratio,
                dtypes: BOTH,
                requests: &[1, 2, 3, 4, 8, 20, 40, 85],
                drafts: 5,
                asked: all(),
            },
            "mixed" => Self {
                vocab: 151_936,
                ratio,
                dtypes: F32,
                requests: &[8, 32, 128, 512],
                drafts: 0,
                asked: mixed(),
            },
            "small" => Self {
                vocab: 32_000,
                ratio,
                dtypes: F32,
                requests: &[1, 4, 8, 16, 32, 128, 512],
                drafts: 0,
                asked: vec![
                    Asked::of("plain", plain()),
                    Asked::of("list", list()),
                    Asked::of("mass", mass()),
                ],
            },
            "edited" => Self {
                vocab: 151_936,
                ratio,
                dtypes: BOTH,
                requests: &[1, 2, 4, 8, 12, 16, 32, 64, 128, 240, 512],
                drafts: 0,
                asked: edited(),
            },
            "edited-drafts" => Self {
                vocab: 163_840,
                ratio,
                dtypes: BOTH,
                requests: &[1, 2, 3, 4, 8, 20, 40, 85],
                drafts: 5,
                asked: edited(),
            },
            "lists" => Self {
                vocab: 151_936,
                ratio,
                dtypes: BOTH,
                requests: &[1, 2, 4, 8, 12, 24, 48, 96],
                drafts: 0,
                asked: lists(),
            },
            "forty" => Self {
                vocab: 163_840,
                ratio,
                dtypes: BOTH,
                requests: &[40],
                drafts: 5,
                asked: in_all_modes(),
            },
            _ => return Err(format!("{name} is no part of the times; these are: {}", PARTS.join(", "))),
        })
    }

    /// Returns what of the part an emulated device is timed by, to see that it runs.
    pub fn reduced(self) -> Self {
        Self { vocab: 3000, requests: &[1, 5], ..self }
    }
}

impl Asked {
    fn of(name: &'static str, params: SamplingParams) -> Self {
        let (params, mode) = (vec![params], VerifyMode::Coupled);
        Self { name, params, mode, has_probs: false, masked: false, prompt: 3 }
    }
}

fn plain() -> SamplingParams {
    SamplingParams { temperature: 0.8, ..SamplingParams::default() }
}

fn greedy() -> SamplingParams {
    SamplingParams { temperature: 0.0, ..plain() }
}

fn list() -> SamplingParams {
    SamplingParams { top_k: 50, top_p: 0.9, ..plain() }
}

fn mass() -> SamplingParams {
    SamplingParams { top_p: 0.9, ..plain() }
}

/// One of each kind that a layout may be decided by.
fn all() -> Vec<Asked> {
    let edited = SamplingParams { repetition_penalty: 1.1, ..greedy() };
    let logprob = SamplingParams { logprobs: Some(LogprobsParams::default()), ..plain() };
    vec![
        Asked::of("plain", plain()),
        Asked::of("greedy", greedy()),
        Asked::of("list", list()),
        Asked::of("mass", mass()),
        Asked::of("edited", edited),
        Asked::of("logprob", logprob),
    ]
}

/// Rows with edits of every kind, which a device's survey decides, beside plain ones; and some that it swaps.
fn edited() -> Vec<Asked> {
    let penalised = |params| SamplingParams { repetition_penalty: 1.1, ..params };
    let of_history = SamplingParams { no_repeat_ngram: 3, ..penalised(plain()) };
    let long = |asked| Asked { prompt: 2048, ..asked };
    vec![
        Asked::of("plain", plain()),
        Asked::of("edited", penalised(greedy())),
        Asked::of("edited plain", penalised(plain())),
        Asked::of("edited list", penalised(list())),
        Asked::of("edited mass", penalised(mass())),
        long(Asked::of("edited, long", penalised(greedy()))),
        long(Asked::of("edited by matches, long", of_history)),
        Asked { masked: true, ..Asked::of("masked plain", plain()) },
    ]
}

/// Batches of which a device's survey decides some rows.
fn mixed() -> Vec<Asked> {
    let of = |name, every: usize| {
        let params = (0..every).map(|row| if row + 1 == every { mass() } else { list() }).collect();
        Asked { params, ..Asked::of(name, plain()) }
    };
    vec![of("one mass of 8", 8), of("one mass of 4", 4), of("one mass of 2", 2)]
}

/// Lists and biases of several lengths, and lists beside as many rows that a device's survey swaps.
fn lists() -> Vec<Asked> {
    let top_k = |top_k| SamplingParams { top_k, ..plain() };
    let biased =
        |count| SamplingParams { logit_bias: (0..count).map(|id| (id * 15, 0.5)).collect(), ..plain() };
    vec![
        Asked::of("plain", plain()),
        Asked::of("top-k 10", top_k(10)),
        Asked::of("top-k 50", top_k(50)),
        Asked::of("top-k 100", top_k(100)),
        Asked::of("top-k 200", top_k(200)),
        Asked::of("top-k 200, top-p 0.9", SamplingParams { top_p: 0.9, ..top_k(200) }),
        Asked::of("20 biases", biased(20)),
        Asked::of("199 biases", biased(199)),
        Asked { params: vec![list(), mass()], ..Asked::of("one mass of 2", plain()) },
        Asked { params: vec![plain(), mass()], ..Asked::of("plain, one mass of 2", plain()) },
    ]
}

/// All ways to judge drafts that are told apart by time.
fn in_all_modes() -> Vec<Asked> {
    let judged =
        |name, params, has_probs| Asked { mode: VerifyMode::Rejection, has_probs, ..Asked::of(name, params) };
    vec![
        Asked { mode: VerifyMode::Greedy, ..Asked::of("greedy", greedy()) },
        Asked::of("coupled, plain", plain()),
        Asked::of("coupled, list", list()),
        Asked::of("coupled, mass", mass()),
        judged("rejection, plain", plain(), false),
        judged("rejection, list", list(), false),
        judged("rejection with draft_probs, plain", plain(), true),
        judged("rejection with draft_probs, list", list(), true),
    ]
}
