//! The requests that rows make, by name.

use gumball_bench_protocol::Words;
use gumball_spec::{
    Dry, DynamicTemperature, Filter, FilterOrder, LogprobMode, LogprobModes, LogprobsParams, Loops, Mirostat,
    SamplingParams, Scope, Section, Watermark, watermark,
};

use crate::rows::Like;

/// The kinds of requests that are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// The settings whose times docs/performance.md shows, at temperature 0.8.
    Headline,
    /// Other settings that servers use, at temperature 1.
    Other,
    /// A filter alone, weak or strong, at temperature 1.
    Strength,
}

impl Group {
    pub fn name(self) -> &'static str {
        match self {
            Group::Headline => "headline",
            Group::Other => "other",
            Group::Strength => "strength",
        }
    }
}

/// The parameters of the rows of a batch.
#[derive(Clone, Debug)]
pub struct Request {
    pub name: String,
    pub group: Group,
    /// The rows of a batch take these in turn.
    pub params: Vec<SamplingParams>,
    /// Whether a bitmask forbids one token in eight.
    pub masked: bool,
}

impl Request {
    fn new(group: Group, name: &str, params: SamplingParams) -> Self {
        Self { name: name.to_owned(), group, params: vec![params], masked: false }
    }

    /// Returns the requests that are timed in batches of `rows` rows: this one, or for smaller batches than
    /// it has parameters each of its parameters alone.
    pub fn at(&self, rows: usize) -> Vec<Self> {
        if self.params.len() <= rows {
            return vec![self.clone()];
        }
        let alone = |(index, params): (usize, &SamplingParams)| Self {
            name: format!("{}-{index}", self.name),
            params: vec![params.clone()],
            ..*self
        };
        self.params.iter().enumerate().map(alone).collect()
    }
}

/// Returns the requests over a vocabulary; their penalties count the ids of [`history`].
pub fn requests(vocab: usize) -> Vec<Request> {
    let strengths = strengths().into_iter();
    let strengths = strengths.map(|(name, params)| Request::new(Group::Strength, name, params));
    headline(vocab).into_iter().chain(others(vocab)).chain(strengths).collect()
}

/// Returns sixty-four biases.
fn biases(vocab: usize) -> Vec<(u32, f32)> {
    (0..vocab as u32).step_by(vocab.div_ceil(64)).map(|id| (id, 0.5)).collect()
}

fn headline(vocab: usize) -> Vec<Request> {
    let plain = SamplingParams { temperature: 0.8, ..Default::default() };
    let filters = SamplingParams { top_k: 50, top_p: 0.9, min_p: 0.05, ..plain.clone() };
    let penalised = |params: &SamplingParams| SamplingParams {
        repetition_penalty: 1.1,
        frequency_penalty: 0.1,
        presence_penalty: 0.1,
        logit_bias: biases(vocab),
        ..params.clone()
    };
    let full = SamplingParams { logprobs: Some(LogprobsParams::default()), ..penalised(&filters) };
    let dry = SamplingParams { dry: Dry { multiplier: 0.8, ..Dry::default() }, ..penalised(&plain) };
    let request = |name, params| Request::new(Group::Headline, name, params);
    vec![
        request("greedy", SamplingParams { temperature: 0.0, ..Default::default() }),
        request("plain", plain.clone()),
        request("min-p", SamplingParams { min_p: 0.05, ..plain.clone() }),
        request("top-k-top-p", SamplingParams { min_p: 0.0, ..filters.clone() }),
        request("top-k-top-p-min-p", filters),
        request("top-p", SamplingParams { top_p: 0.9, ..plain.clone() }),
        request("top-k-5000", SamplingParams { top_k: 5000, ..plain.clone() }),
        request("penalties", penalised(&plain)),
        Request { masked: true, ..request("full", full) },
        request("dry", dry),
    ]
}

fn others(vocab: usize) -> Vec<Request> {
    let any = SamplingParams::default;
    let top_p = SamplingParams { top_p: 0.95, ..any() };
    let sigma = SamplingParams { top_n_sigma: 1.0, ..any() };
    let xtc = SamplingParams { xtc_probability: 0.5, xtc_threshold: 0.1, ..any() };
    let mirostat = SamplingParams { mirostat: Some(Mirostat { tau: 5.0, eta: 0.1, mu: None }), ..any() };
    let typical = SamplingParams { typical_p: 0.9, ..any() };
    let eta = SamplingParams { eta_cutoff: 3e-4, ..any() };
    let dynamic = SamplingParams { dynamic_temperature: Some(DynamicTemperature::new(0.5, 1.5)), ..any() };
    let repetition = SamplingParams { repetition_penalty: 1.1, top_p: 0.95, ..any() };
    let everything = |params: SamplingParams| SamplingParams {
        repetition_penalty: 1.1,
        logit_bias: biases(vocab),
        logprobs: Some(LogprobsParams::default()),
        ..params
    };
    let section = Some(Section { close: vec![7, 8], budget: 4096, ..Section::default() });
    let both = LogprobModes { first: LogprobMode::Raw, second: Some(LogprobMode::Processed) };
    let of_modes = |mode| Some(LogprobsParams { mode, ..LogprobsParams::default() });
    let request = |name, params| Request::new(Group::Other, name, params);
    let mix = |name, params| Request { params, ..request(name, any()) };
    let masked = |request| Request { masked: true, ..request };
    let mut all = vec![
        request("plain-t1", any()),
        masked(request("plain-masked", any())),
        request("top-k-top-p-t1", SamplingParams { top_k: 50, top_p: 0.9, ..any() }),
        request("top-p-95", top_p.clone()),
        request("top-k-300-top-p", SamplingParams { top_k: 300, top_p: 0.97, ..any() }),
        request("top-k-1000", SamplingParams { top_k: 1000, ..any() }),
        request("top-k-20000", SamplingParams { top_k: 20_000, ..any() }),
        request("top-k-40000", SamplingParams { top_k: 40_000, ..any() }),
        request("top-k-1000-top-p", SamplingParams { top_k: 1000, ..top_p.clone() }),
        request("joint", SamplingParams { top_k: 1000, order: FilterOrder::Joint, ..top_p.clone() }),
        request("epsilon", SamplingParams { epsilon_cutoff: 3e-4, ..any() }),
        request("top-p-epsilon", SamplingParams { epsilon_cutoff: 3e-4, ..top_p.clone() }),
        request("top-n-sigma", sigma.clone()),
        request("top-n-sigma-top-p", SamplingParams { top_p: 0.95, ..sigma }),
        request("xtc", xtc.clone()),
        request("top-p-xtc", SamplingParams { top_p: 0.95, ..xtc }),
        request("mirostat", mirostat),
        request("top-h", SamplingParams { top_h: 0.4, ..any() }),
        request("adaptive-p", SamplingParams { adaptive_target: 0.3, ..any() }),
        request("min-p-adaptive-p", SamplingParams { adaptive_target: 0.3, min_p: 0.05, ..any() }),
        request("typical", typical.clone()),
        request("typical-top-p", SamplingParams { top_p: 0.95, ..typical }),
        request("eta", eta.clone()),
        request("top-p-eta", SamplingParams { top_p: 0.95, ..eta }),
        request("dynamic-temperature", dynamic.clone()),
        request("dynamic-top-p", SamplingParams { top_p: 0.95, ..dynamic }),
        request("top-p-section", SamplingParams { section: section.clone(), ..top_p.clone() }),
        request("top-p-loops", SamplingParams { loops: Some(Loops::default()), ..top_p.clone() }),
        request(
            "top-p-section-loops",
            SamplingParams {
                section,
                loops: Some(Loops { close: true, ..Loops::default() }),
                ..top_p.clone()
            },
        ),
        request("plain-mark", marked(any())),
        request("top-k-top-p-mark", marked(SamplingParams { top_k: 50, top_p: 0.9, ..any() })),
        request("top-p-mark", marked(top_p.clone())),
        request("top-p-raw-processed", SamplingParams { logprobs: of_modes(both), ..top_p.clone() }),
        mix("mixture", mixture()),
        request("repetition-top-p", repetition.clone()),
        masked(request("everything", everything(repetition))),
        masked(mix("mixture-everything", mixture().into_iter().map(everything).collect())),
    ];
    let radius = LogprobModes { first: LogprobMode::Raw, second: Some(LogprobMode::Radius) };
    let greedy = SamplingParams { temperature: 0.0, ..any() };
    let top_k_top_p = SamplingParams { top_k: 50, top_p: 0.9, ..any() };
    for ([raw, with_radius], params) in [
        (["greedy-raw", "greedy-raw-radius"], greedy),
        (["plain-raw", "plain-raw-radius"], any()),
        (["top-k-top-p-raw", "top-k-top-p-raw-radius"], top_k_top_p),
        (["top-p-95-raw", "top-p-95-raw-radius"], top_p),
    ] {
        let logprobs = [of_modes(LogprobMode::Raw.into()), of_modes(radius)];
        for (name, logprobs) in [raw, with_radius].into_iter().zip(logprobs) {
            all.push(request(name, SamplingParams { logprobs, ..params.clone() }));
        }
    }
    let lacks = |filter: &Filter| {
        !all.iter().flat_map(|request| &request.params).any(|params| params.is_on(*filter, vocab))
    };
    let lacking: Vec<Filter> = Filter::ALL.into_iter().filter(lacks).collect();
    all.extend(lacking.into_iter().map(|filter| request(filter.name(), filter.alone())));
    all
}

/// Returns parameters with a watermark, whose contexts are of prompt and output.
fn marked(params: SamplingParams) -> SamplingParams {
    watermark::add_key(0, [7; 16]).expect("no other key");
    let watermark = Watermark { scope: Scope::Both, ..Watermark::default() };
    SamplingParams { watermark: watermark.into(), ..params }
}

/// Returns what the rows of a server ask for at the same time.
fn mixture() -> Vec<SamplingParams> {
    let any = SamplingParams::default;
    vec![
        SamplingParams { temperature: 0.0, ..any() },
        SamplingParams { temperature: 0.7, top_p: 0.9, ..any() },
        SamplingParams { top_k: 40, top_p: 0.95, ..any() },
        any(),
        SamplingParams { min_p: 0.05, ..any() },
        SamplingParams { top_p: 0.99, ..any() },
        SamplingParams { repetition_penalty: 1.1, top_p: 0.8, ..any() },
        SamplingParams { frequency_penalty: 0.5, penalty_scope: Scope::Both, top_p: 0.9, ..any() },
    ]
}

fn strengths() -> Vec<(&'static str, SamplingParams)> {
    let any = SamplingParams::default;
    let mirostat = |tau| SamplingParams { mirostat: Some(Mirostat { tau, eta: 0.1, mu: None }), ..any() };
    let dynamic =
        |min, max| SamplingParams { dynamic_temperature: Some(DynamicTemperature::new(min, max)), ..any() };
    let xtc = |xtc_probability, xtc_threshold| SamplingParams { xtc_probability, xtc_threshold, ..any() };
    vec![
        ("top-k=5", SamplingParams { top_k: 5, ..any() }),
        ("top-k=200", SamplingParams { top_k: 200, ..any() }),
        ("top-k=20000", SamplingParams { top_k: 20_000, ..any() }),
        ("top-p=0.3", SamplingParams { top_p: 0.3, ..any() }),
        ("top-p=0.8", SamplingParams { top_p: 0.8, ..any() }),
        ("top-p=0.999", SamplingParams { top_p: 0.999, ..any() }),
        ("min-p=0.001", SamplingParams { min_p: 0.001, ..any() }),
        ("min-p=0.05", SamplingParams { min_p: 0.05, ..any() }),
        ("min-p=0.3", SamplingParams { min_p: 0.3, ..any() }),
        ("epsilon=1e-5", SamplingParams { epsilon_cutoff: 1e-5, ..any() }),
        ("epsilon=1e-4", SamplingParams { epsilon_cutoff: 1e-4, ..any() }),
        ("epsilon=1e-2", SamplingParams { epsilon_cutoff: 1e-2, ..any() }),
        ("top-n-sigma=0.5", SamplingParams { top_n_sigma: 0.5, ..any() }),
        ("top-n-sigma=2", SamplingParams { top_n_sigma: 2.0, ..any() }),
        ("top-n-sigma=4", SamplingParams { top_n_sigma: 4.0, ..any() }),
        ("xtc=1@0.01", xtc(1.0, 0.01)),
        ("xtc=1@0.1", xtc(1.0, 0.1)),
        ("xtc=0.5@0.3", xtc(0.5, 0.3)),
        ("mirostat=2", mirostat(2.0)),
        ("mirostat=8", mirostat(8.0)),
        ("mirostat=14", mirostat(14.0)),
        ("typical=0.2", SamplingParams { typical_p: 0.2, ..any() }),
        ("typical=0.5", SamplingParams { typical_p: 0.5, ..any() }),
        ("typical=0.99", SamplingParams { typical_p: 0.99, ..any() }),
        ("eta=1e-5", SamplingParams { eta_cutoff: 1e-5, ..any() }),
        ("eta=1e-4", SamplingParams { eta_cutoff: 1e-4, ..any() }),
        ("eta=1e-2", SamplingParams { eta_cutoff: 1e-2, ..any() }),
        ("dynamic=0.2-0.8", dynamic(0.2, 0.8)),
        ("dynamic=0.8-1.2", dynamic(0.8, 1.2)),
        ("dynamic=1-3", dynamic(1.0, 3.0)),
    ]
}

/// Returns whether a request is timed if the command names none.
pub fn by_default(request: &Request, like: Like) -> bool {
    let name = &*request.name;
    match like.name {
        "model" => request.group == Group::Headline && !matches!(name, "top-k-5000" | "dry"),
        "bell" | "flat" => matches!(name, "top-p" | "top-k-5000"),
        _ => false,
    }
}

/// A long chat: ids spread over the vocabulary, few of them twice.
pub fn history(vocab: usize) -> Vec<u32> {
    (0..2048u64).map(|i| Words(i * 77).below(vocab) as u32).collect()
}

/// A grammar that forbids one token in eight.
pub fn grammar(vocab: usize) -> Vec<u32> {
    vec![0x7F7F_7F7F; vocab.div_ceil(32)]
}
