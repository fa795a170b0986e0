//! The programs that are compiled: a stage's kernels with the headers they include, all in memory.

/// A source file with the name it is included by.
pub type Source = (&'static str, &'static str);

/// Programs that are needed together, and so are compiled and loaded together, when the first of them is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// Steps on rows of logits.
    Step,
    /// Steps on rows of probabilities.
    Probabilities,
    /// Rows of logits made rows of probabilities.
    Softmax,
    /// Chains of drafts verified.
    Verify,
    /// Requests made of what the rows of an operator ask for.
    Requests,
    /// What is kept of rows of logits, written.
    Write,
    /// What is kept of rows of probabilities, written.
    WriteProbabilities,
    /// The numbers that are held to their definitions.
    Numbers,
}

/// A program of kernels.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name, that of its file.
    pub name: &'static str,
    /// What it is loaded with.
    pub group: Group,
    /// Its source.
    pub source: &'static str,
    /// The kernels in it.
    pub kernels: &'static [&'static str],
}

/// What programs include.
pub const HEADERS: &[Source] = &[
    ("place.cuh", include_str!("../device/place.cuh")),
    ("num.cuh", include_str!("../device/num.cuh")),
    ("measure.cuh", include_str!("../device/measure.cuh")),
    ("step.cuh", include_str!("../device/step.cuh")),
    ("warp.cuh", include_str!("../device/warp.cuh")),
    ("records.cuh", include_str!("../device/records.cuh")),
    ("row.cuh", include_str!("../device/row.cuh")),
    ("entries.cuh", include_str!("../device/entries.cuh")),
    ("view.cuh", include_str!("../device/view.cuh")),
    ("chosen.cuh", include_str!("../device/chosen.cuh")),
    ("over.cuh", include_str!("../device/over.cuh")),
    ("tile.cuh", include_str!("../device/tile.cuh")),
    ("fill.cuh", include_str!("../device/fill.cuh")),
    ("chip.cuh", include_str!("../device/chip.cuh")),
    ("chains.cuh", include_str!("../device/chains.cuh")),
    ("softmax.cuh", include_str!("../device/softmax.cuh")),
    ("kept.cuh", include_str!("../device/kept.cuh")),
    ("onchip.cuh", include_str!("../device/onchip.cuh")),
    ("cut.cuh", include_str!("../device/cut.cuh")),
    ("mass.cuh", include_str!("../device/mass.cuh")),
    ("levels.cuh", include_str!("../device/levels.cuh")),
    ("walk.cuh", include_str!("../device/walk.cuh")),
    ("help.cuh", include_str!("../device/help.cuh")),
    ("reads.cuh", include_str!("../device/reads.cuh")),
    ("upper.cuh", include_str!("../device/upper.cuh")),
    ("search.cuh", include_str!("../device/search.cuh")),
    ("gather.cuh", include_str!("../device/gather.cuh")),
    ("arrival.cuh", include_str!("../device/arrival.cuh")),
    ("members.cuh", include_str!("../device/members.cuh")),
    ("survey.cu", include_str!("survey.cu")),
    ("step.cu", include_str!("step.cu")),
    ("lean.cu", include_str!("lean.cu")),
    ("listed.cu", include_str!("listed.cu")),
    ("told.cu", include_str!("told.cu")),
    ("keep.cu", include_str!("keep.cu")),
    ("emit.cu", include_str!("emit.cu")),
    ("filter.cu", include_str!("filter.cu")),
    ("draw.cu", include_str!("draw.cu")),
    ("behind.cu", include_str!("behind.cu")),
    ("ending.cu", include_str!("ending.cu")),
    ("list.cu", include_str!("list.cu")),
    ("logprobs.cu", include_str!("logprobs.cu")),
];

/// The kernel that searches the histories' ends.
const EDIT: Program =
    Program { name: "edit", group: Group::Step, source: include_str!("edit.cu"), kernels: &["edit"] };

/// The kernels that survey rows.
const SURVEY: Program = Program {
    name: "survey",
    group: Group::Step,
    source: include_str!("survey.cu"),
    kernels: &[
        "survey_f32_few",
        "survey_f32_many",
        "survey_sums_f32_few",
        "survey_sums_f32_many",
        "survey_edited_f32_few",
        "survey_edited_f32_some",
        "survey_edited_f32_many",
        "survey_edited_sums_f32_few",
        "survey_edited_sums_f32_some",
        "survey_edited_sums_f32_many",
        "survey_bf16_few",
        "survey_bf16_many",
        "survey_sums_bf16_few",
        "survey_sums_bf16_many",
        "survey_edited_bf16_few",
        "survey_edited_bf16_some",
        "survey_edited_bf16_many",
        "survey_edited_sums_bf16_few",
        "survey_edited_sums_bf16_some",
        "survey_edited_sums_bf16_many",
        "survey_f16_few",
        "survey_f16_many",
        "survey_sums_f16_few",
        "survey_sums_f16_many",
        "survey_edited_f16_few",
        "survey_edited_f16_some",
        "survey_edited_f16_many",
        "survey_edited_sums_f16_few",
        "survey_edited_sums_f16_some",
        "survey_edited_sums_f16_many",
        "arrive",
    ],
};

/// The kernels that survey few rows which ask for nothing but a race.
const RACED: Program = Program {
    name: "raced",
    group: Group::Step,
    source: include_str!("raced.cu"),
    kernels: &["survey_raced_f32", "survey_raced_bf16", "survey_raced_f16"],
};

/// The kernels that end a step.
const STEP: Program = Program {
    name: "step",
    group: Group::Step,
    source: include_str!("step.cu"),
    kernels: &["finish_f32", "finish_bf16", "finish_f16"],
};

/// The kernels that end a step whose rows ask for little.
const LEAN: Program = Program {
    name: "lean",
    group: Group::Step,
    source: include_str!("lean.cu"),
    kernels: &[
        "finish_lean_f32",
        "finish_raced_f32",
        "finish_lean_bf16",
        "finish_raced_bf16",
        "finish_lean_f16",
        "finish_raced_f16",
    ],
};

/// The same, where filters are tried on a list.
const LISTED: Program = Program {
    name: "listed",
    group: Group::Step,
    source: include_str!("listed.cu"),
    kernels: &["finish_listed_f32", "finish_listed_bf16", "finish_listed_f16"],
};

/// The same with edits and masks, and with the logprob of the token.
const TOLD: Program = Program {
    name: "told",
    group: Group::Step,
    source: include_str!("told.cu"),
    kernels: &["finish_told_f32", "finish_told_bf16", "finish_told_f16"],
};

/// The kernels that make probabilities of logits.
const SOFTMAX: Program = Program {
    name: "softmax",
    group: Group::Softmax,
    source: include_str!("softmax.cu"),
    kernels: &[
        "weigh_f32",
        "weigh_bf16",
        "weigh_f16",
        "write_f32",
        "write_bf16",
        "write_f16",
        "write_bf16_f32",
        "write_f16_f32",
        "softmax_f32",
        "softmax_bf16",
        "softmax_f16",
        "softmax_bf16_f32",
        "softmax_f16_f32",
    ],
};

/// The kernels that verify chains of drafts.
const VERIFY: Program = Program {
    name: "verify",
    group: Group::Verify,
    source: include_str!("verify.cu"),
    kernels: &["survey_chains", "finish_chains"],
};

/// The kernel that makes requests of what the rows of an operator ask for.
const PREPARE: Program = Program {
    name: "prepare",
    group: Group::Requests,
    source: include_str!("prepare.cu"),
    kernels: &["prepare"],
};

/// The kernels that find what is kept of rows that are to be written.
const KEEP: Program = Program {
    name: "keep",
    group: Group::Write,
    source: include_str!("keep.cu"),
    kernels: &["keep_f32", "keep_bf16", "keep_f16"],
};

/// The kernels that write it.
const EMIT: Program = Program {
    name: "emit",
    group: Group::Write,
    source: include_str!("emit.cu"),
    kernels: &["emit_f32", "emit_bf16", "emit_f16", "emit_bf16_f32", "emit_f16_f32"],
};

/// The kernel that computes numbers, to be held to their definitions.
const NUMBERS: Program = Program {
    name: "numbers",
    group: Group::Numbers,
    source: include_str!("numbers.cu"),
    kernels: &["numbers"],
};

/// The same source once more, for rows of probabilities.
macro_rules! of_probabilities {
    ($name:literal, $kernels:expr) => {
        of_probabilities!($name, Group::Probabilities, $kernels)
    };
    ($name:literal, $group:expr, $kernels:expr) => {
        Program {
            name: concat!($name, "_probs"),
            group: $group,
            source: concat!("#define GUMBALL_PROBABILITIES 1\n#include \"", $name, ".cu\"\n"),
            kernels: &$kernels,
        }
    };
}

const SURVEY_PROBS: Program = of_probabilities!(
    "survey",
    [
        "survey_f32_few_probs",
        "survey_f32_many_probs",
        "survey_sums_f32_few_probs",
        "survey_sums_f32_many_probs",
        "survey_edited_f32_few_probs",
        "survey_edited_f32_some_probs",
        "survey_edited_f32_many_probs",
        "survey_edited_sums_f32_few_probs",
        "survey_edited_sums_f32_some_probs",
        "survey_edited_sums_f32_many_probs",
        "survey_bf16_few_probs",
        "survey_bf16_many_probs",
        "survey_sums_bf16_few_probs",
        "survey_sums_bf16_many_probs",
        "survey_edited_bf16_few_probs",
        "survey_edited_bf16_some_probs",
        "survey_edited_bf16_many_probs",
        "survey_edited_sums_bf16_few_probs",
        "survey_edited_sums_bf16_some_probs",
        "survey_edited_sums_bf16_many_probs",
        "survey_f16_few_probs",
        "survey_f16_many_probs",
        "survey_sums_f16_few_probs",
        "survey_sums_f16_many_probs",
        "survey_edited_f16_few_probs",
        "survey_edited_f16_some_probs",
        "survey_edited_f16_many_probs",
        "survey_edited_sums_f16_few_probs",
        "survey_edited_sums_f16_some_probs",
        "survey_edited_sums_f16_many_probs"
    ]
);

const STEP_PROBS: Program =
    of_probabilities!("step", ["finish_f32_probs", "finish_bf16_probs", "finish_f16_probs"]);

const LEAN_PROBS: Program =
    of_probabilities!("lean", ["finish_lean_f32_probs", "finish_lean_bf16_probs", "finish_lean_f16_probs"]);

const LISTED_PROBS: Program = of_probabilities!(
    "listed",
    ["finish_listed_f32_probs", "finish_listed_bf16_probs", "finish_listed_f16_probs"]
);

const TOLD_PROBS: Program =
    of_probabilities!("told", ["finish_told_f32_probs", "finish_told_bf16_probs", "finish_told_f16_probs"]);

const KEEP_PROBS: Program = of_probabilities!(
    "keep",
    Group::WriteProbabilities,
    ["keep_f32_probs", "keep_bf16_probs", "keep_f16_probs"]
);

const EMIT_PROBS: Program = of_probabilities!(
    "emit",
    Group::WriteProbabilities,
    ["emit_f32_probs", "emit_bf16_probs", "emit_f16_probs", "emit_bf16_f32_probs", "emit_f16_f32_probs"]
);

/// All programs.
pub const PROGRAMS: &[Program] = &[
    EDIT,
    SURVEY,
    RACED,
    STEP,
    LEAN,
    LISTED,
    TOLD,
    SOFTMAX,
    PREPARE,
    KEEP,
    EMIT,
    VERIFY,
    NUMBERS,
    SURVEY_PROBS,
    STEP_PROBS,
    LEAN_PROBS,
    LISTED_PROBS,
    TOLD_PROBS,
    KEEP_PROBS,
    EMIT_PROBS,
];

impl Program {
    /// Returns everything the compiled program depends on, besides the compiler and its options.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}\n{}", self.name, self.source);
        for (name, source) in HEADERS {
            text.push_str(name);
            text.push('\n');
            text.push_str(source);
        }
        text
    }
}
