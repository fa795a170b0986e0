//! The programs that NVRTC compiles: a stage's kernels, and the headers they include, all in memory.

/// A source file: the name by which others include it, and its text.
pub type Source = (&'static str, &'static str);

/// A group of programs that the same caller needs. The first use of one of its kernels compiles and loads all
/// of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelModule {
    /// Steps on rows of logits.
    Step,
    /// Steps on rows of probabilities.
    Probabilities,
    /// The softmax of rows of logits.
    Softmax,
    /// Verification of chains of drafts.
    Verify,
    /// Builds a step's requests from an operator's columns of parameters.
    Requests,
    /// Writes rows of logits after their filters: masked, or as probabilities.
    Write,
    /// Writes rows of probabilities after their filters: masked, or renormalised.
    WriteProbabilities,
    /// Evaluates numeric functions, for comparison with their definitions.
    Numbers,
}

/// A program of kernels.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name: that of its source file, followed by `_probs` for rows of probabilities.
    pub name: &'static str,
    /// The group with which it is compiled and loaded.
    pub group: KernelModule,
    /// Its source text.
    pub source: &'static str,
    /// The names of its kernels.
    pub kernels: &'static [&'static str],
}

/// All files that a program may include: the device code, and the kernels' sources, which the programs for
/// rows of probabilities include.
pub const HEADERS: &[Source] = &[
    ("platform/portability.cuh", include_str!("../../device/platform/portability.cuh")),
    ("platform/sm90.cuh", include_str!("../../device/platform/sm90.cuh")),
    ("abi/step.cuh", include_str!("../../device/abi/step.cuh")),
    ("abi/operators.cuh", include_str!("../../device/abi/operators.cuh")),
    ("math/num.cuh", include_str!("../../device/math/num.cuh")),
    ("math/measure.cuh", include_str!("../../device/math/measure.cuh")),
    ("math/cut.cuh", include_str!("../../device/math/cut.cuh")),
    ("math/record.cuh", include_str!("../../device/math/record.cuh")),
    ("math/params.cuh", include_str!("../../device/math/params.cuh")),
    ("math/arrival.cuh", include_str!("../../device/math/arrival.cuh")),
    ("math/edits.cuh", include_str!("../../device/math/edits.cuh")),
    ("warp/reduce.cuh", include_str!("../../device/warp/reduce.cuh")),
    ("warp/row.cuh", include_str!("../../device/warp/row.cuh")),
    ("warp/tile.cuh", include_str!("../../device/warp/tile.cuh")),
    ("warp/edited_row.cuh", include_str!("../../device/warp/edited_row.cuh")),
    ("warp/softmax.cuh", include_str!("../../device/warp/softmax.cuh")),
    ("block/reduce.cuh", include_str!("../../device/block/reduce.cuh")),
    ("block/survey_grid.cuh", include_str!("../../device/block/survey_grid.cuh")),
    ("block/records.cuh", include_str!("../../device/block/records.cuh")),
    ("block/edited_tiles.cuh", include_str!("../../device/block/edited_tiles.cuh")),
    ("block/prefill.cuh", include_str!("../../device/block/prefill.cuh")),
    ("block/cluster_softmax.cuh", include_str!("../../device/block/cluster_softmax.cuh")),
    ("block/mass.cuh", include_str!("../../device/block/mass.cuh")),
    ("block/ranks.cuh", include_str!("../../device/block/ranks.cuh")),
    ("block/candidates.cuh", include_str!("../../device/block/candidates.cuh")),
    ("block/histogram.cuh", include_str!("../../device/block/histogram.cuh")),
    ("block/crossing.cuh", include_str!("../../device/block/crossing.cuh")),
    ("block/work_sharing.cuh", include_str!("../../device/block/work_sharing.cuh")),
    ("block/bracket.cuh", include_str!("../../device/block/bracket.cuh")),
    ("block/nucleus.cuh", include_str!("../../device/block/nucleus.cuh")),
    ("block/search.cuh", include_str!("../../device/block/search.cuh")),
    ("block/race.cuh", include_str!("../../device/block/race.cuh")),
    ("block/bounded_race.cuh", include_str!("../../device/block/bounded_race.cuh")),
    ("stage/row_result.cuh", include_str!("../../device/stage/row_result.cuh")),
    ("stage/accept_drafts.cuh", include_str!("../../device/stage/accept_drafts.cuh")),
    ("stage/row_cut.cuh", include_str!("../../device/stage/row_cut.cuh")),
    ("stage/filter.cuh", include_str!("../../device/stage/filter.cuh")),
    ("stage/general_draw.cuh", include_str!("../../device/stage/general_draw.cuh")),
    ("stage/candidate_draw.cuh", include_str!("../../device/stage/candidate_draw.cuh")),
    ("stage/logprobs.cuh", include_str!("../../device/stage/logprobs.cuh")),
    ("stage/survey.cuh", include_str!("../../device/stage/survey.cuh")),
    ("kernels/edit.cu", include_str!("../../kernels/edit.cu")),
    ("kernels/survey.cu", include_str!("../../kernels/survey.cu")),
    ("kernels/survey_edited.cu", include_str!("../../kernels/survey_edited.cu")),
    ("kernels/fused/survey_draw.cu", include_str!("../../kernels/fused/survey_draw.cu")),
    ("kernels/finish_simple.cu", include_str!("../../kernels/finish_simple.cu")),
    ("kernels/finish_candidates.cu", include_str!("../../kernels/finish_candidates.cu")),
    ("kernels/finish_candidates_logprob.cu", include_str!("../../kernels/finish_candidates_logprob.cu")),
    ("kernels/finish_general.cu", include_str!("../../kernels/finish_general.cu")),
    ("kernels/find_cut.cu", include_str!("../../kernels/find_cut.cu")),
    ("kernels/write_rows.cu", include_str!("../../kernels/write_rows.cu")),
    ("kernels/params_from_columns.cu", include_str!("../../kernels/params_from_columns.cu")),
    ("kernels/softmax.cu", include_str!("../../kernels/softmax.cu")),
    ("kernels/verify.cu", include_str!("../../kernels/verify.cu")),
    ("kernels/numbers.cu", include_str!("../../kernels/numbers.cu")),
];

/// The kernel for edits that match the end of a request's history.
const EDIT: Program = Program {
    name: "edit",
    group: KernelModule::Step,
    source: include_str!("../../kernels/edit.cu"),
    kernels: &["edit"],
};

/// The kernels that survey rows.
const SURVEY: Program = Program {
    name: "survey",
    group: KernelModule::Step,
    source: include_str!("../../kernels/survey.cu"),
    kernels: &[
        "survey_f32_few",
        "survey_f32_many",
        "survey_sums_f32_few",
        "survey_sums_f32_many",
        "survey_bf16_few",
        "survey_bf16_many",
        "survey_sums_bf16_few",
        "survey_sums_bf16_many",
        "survey_f16_few",
        "survey_f16_many",
        "survey_sums_f16_few",
        "survey_sums_f16_many",
        "records_from_shared_rows",
    ],
};

/// The kernels that survey rows with masks or edits.
const SURVEY_EDITED: Program = Program {
    name: "survey_edited",
    group: KernelModule::Step,
    source: include_str!("../../kernels/survey_edited.cu"),
    kernels: &[
        "survey_edited_f32_few",
        "survey_edited_f32_some",
        "survey_edited_f32_many",
        "survey_edited_sums_f32_few",
        "survey_edited_sums_f32_some",
        "survey_edited_sums_f32_many",
        "survey_edited_bf16_few",
        "survey_edited_bf16_some",
        "survey_edited_bf16_many",
        "survey_edited_sums_bf16_few",
        "survey_edited_sums_bf16_some",
        "survey_edited_sums_bf16_many",
        "survey_edited_f16_few",
        "survey_edited_f16_some",
        "survey_edited_f16_many",
        "survey_edited_sums_f16_few",
        "survey_edited_sums_f16_some",
        "survey_edited_sums_f16_many",
    ],
};

/// The kernels that survey small batches of unfiltered rows and score every token on the way.
const SURVEY_DRAW: Program = Program {
    name: "survey_draw",
    group: KernelModule::Step,
    source: include_str!("../../kernels/fused/survey_draw.cu"),
    kernels: &["survey_draw_f32", "survey_draw_bf16", "survey_draw_f16"],
};

/// The kernels that finish the rows of a step with any requests.
const FINISH_GENERAL: Program = Program {
    name: "finish_general",
    group: KernelModule::Step,
    source: include_str!("../../kernels/finish_general.cu"),
    kernels: &["finish_general_f32", "finish_general_bf16", "finish_general_f16"],
};

/// The kernels that finish greedy rows, unfiltered rows, and rows whose only filter is min-p.
const FINISH_SIMPLE: Program = Program {
    name: "finish_simple",
    group: KernelModule::Step,
    source: include_str!("../../kernels/finish_simple.cu"),
    kernels: &[
        "finish_simple_f32",
        "finish_survey_draw_f32",
        "finish_simple_bf16",
        "finish_survey_draw_bf16",
        "finish_simple_f16",
        "finish_survey_draw_f16",
    ],
};

/// The kernels that finish a step and first try filters on a candidate list.
const FINISH_CANDIDATES: Program = Program {
    name: "finish_candidates",
    group: KernelModule::Step,
    source: include_str!("../../kernels/finish_candidates.cu"),
    kernels: &["finish_candidates_f32", "finish_candidates_bf16", "finish_candidates_f16"],
};

/// The kernels that finish a step by candidate lists, with edits, masks and the drawn token's logprob.
const FINISH_CANDIDATES_LOGPROB: Program = Program {
    name: "finish_candidates_logprob",
    group: KernelModule::Step,
    source: include_str!("../../kernels/finish_candidates_logprob.cu"),
    kernels: &[
        "finish_candidates_logprob_f32",
        "finish_candidates_logprob_bf16",
        "finish_candidates_logprob_f16",
    ],
};

/// The softmax kernels.
const SOFTMAX: Program = Program {
    name: "softmax",
    group: KernelModule::Softmax,
    source: include_str!("../../kernels/softmax.cu"),
    kernels: &[
        "softmax_reduce_f32",
        "softmax_reduce_bf16",
        "softmax_reduce_f16",
        "softmax_write_f32",
        "softmax_write_bf16",
        "softmax_write_f16",
        "softmax_write_bf16_f32",
        "softmax_write_f16_f32",
        "softmax_cluster_f32",
        "softmax_cluster_bf16",
        "softmax_cluster_f16",
        "softmax_cluster_bf16_f32",
        "softmax_cluster_f16_f32",
    ],
};

/// The kernels that verify chains of drafts.
const VERIFY: Program = Program {
    name: "verify",
    group: KernelModule::Verify,
    source: include_str!("../../kernels/verify.cu"),
    kernels: &["verify_survey", "verify_finish"],
};

/// The kernel that makes a step's requests from an operator's columns of parameters.
const PARAMS_FROM_COLUMNS: Program = Program {
    name: "params_from_columns",
    group: KernelModule::Requests,
    source: include_str!("../../kernels/params_from_columns.cu"),
    kernels: &["params_from_columns"],
};

/// The kernels that find the cuts of rows that are to be written.
const FIND_CUT: Program = Program {
    name: "find_cut",
    group: KernelModule::Write,
    source: include_str!("../../kernels/find_cut.cu"),
    kernels: &["find_cut_f32", "find_cut_bf16", "find_cut_f16"],
};

/// The kernels that write rows whose cuts are known.
const WRITE_ROWS: Program = Program {
    name: "write_rows",
    group: KernelModule::Write,
    source: include_str!("../../kernels/write_rows.cu"),
    kernels: &[
        "write_rows_f32",
        "write_rows_bf16",
        "write_rows_f16",
        "write_rows_bf16_f32",
        "write_rows_f16_f32",
    ],
};

/// The kernel that evaluates numeric functions, for comparison with their definitions.
const NUMBERS: Program = Program {
    name: "numbers",
    group: KernelModule::Numbers,
    source: include_str!("../../kernels/numbers.cu"),
    kernels: &["numbers"],
};

/// Makes the program of rows of probabilities from the source of the program of rows of logits.
macro_rules! of_probabilities {
    ($name:literal, $kernels:expr) => {
        of_probabilities!($name, KernelModule::Probabilities, $kernels)
    };
    ($name:literal, $group:expr, $kernels:expr) => {
        Program {
            name: concat!($name, "_probs"),
            group: $group,
            source: concat!("#define GUMBALL_PROBABILITIES 1\n#include \"kernels/", $name, ".cu\"\n"),
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
        "survey_bf16_few_probs",
        "survey_bf16_many_probs",
        "survey_sums_bf16_few_probs",
        "survey_sums_bf16_many_probs",
        "survey_f16_few_probs",
        "survey_f16_many_probs",
        "survey_sums_f16_few_probs",
        "survey_sums_f16_many_probs"
    ]
);

const SURVEY_EDITED_PROBS: Program = of_probabilities!(
    "survey_edited",
    [
        "survey_edited_f32_few_probs",
        "survey_edited_f32_some_probs",
        "survey_edited_f32_many_probs",
        "survey_edited_sums_f32_few_probs",
        "survey_edited_sums_f32_some_probs",
        "survey_edited_sums_f32_many_probs",
        "survey_edited_bf16_few_probs",
        "survey_edited_bf16_some_probs",
        "survey_edited_bf16_many_probs",
        "survey_edited_sums_bf16_few_probs",
        "survey_edited_sums_bf16_some_probs",
        "survey_edited_sums_bf16_many_probs",
        "survey_edited_f16_few_probs",
        "survey_edited_f16_some_probs",
        "survey_edited_f16_many_probs",
        "survey_edited_sums_f16_few_probs",
        "survey_edited_sums_f16_some_probs",
        "survey_edited_sums_f16_many_probs"
    ]
);

const FINISH_GENERAL_PROBS: Program = of_probabilities!(
    "finish_general",
    ["finish_general_f32_probs", "finish_general_bf16_probs", "finish_general_f16_probs"]
);

const FINISH_SIMPLE_PROBS: Program = of_probabilities!(
    "finish_simple",
    ["finish_simple_f32_probs", "finish_simple_bf16_probs", "finish_simple_f16_probs"]
);

const FINISH_CANDIDATES_PROBS: Program = of_probabilities!(
    "finish_candidates",
    ["finish_candidates_f32_probs", "finish_candidates_bf16_probs", "finish_candidates_f16_probs"]
);

const FINISH_CANDIDATES_LOGPROB_PROBS: Program = of_probabilities!(
    "finish_candidates_logprob",
    [
        "finish_candidates_logprob_f32_probs",
        "finish_candidates_logprob_bf16_probs",
        "finish_candidates_logprob_f16_probs"
    ]
);

const FIND_CUT_PROBS: Program = of_probabilities!(
    "find_cut",
    KernelModule::WriteProbabilities,
    ["find_cut_f32_probs", "find_cut_bf16_probs", "find_cut_f16_probs"]
);

const WRITE_ROWS_PROBS: Program = of_probabilities!(
    "write_rows",
    KernelModule::WriteProbabilities,
    [
        "write_rows_f32_probs",
        "write_rows_bf16_probs",
        "write_rows_f16_probs",
        "write_rows_bf16_f32_probs",
        "write_rows_f16_f32_probs"
    ]
);

/// All programs. A kernel's index counts through their kernels in this order.
pub const PROGRAMS: &[Program] = &[
    EDIT,
    SURVEY,
    SURVEY_EDITED,
    SURVEY_DRAW,
    FINISH_GENERAL,
    FINISH_SIMPLE,
    FINISH_CANDIDATES,
    FINISH_CANDIDATES_LOGPROB,
    SOFTMAX,
    PARAMS_FROM_COLUMNS,
    FIND_CUT,
    WRITE_ROWS,
    VERIFY,
    NUMBERS,
    SURVEY_PROBS,
    SURVEY_EDITED_PROBS,
    FINISH_GENERAL_PROBS,
    FINISH_SIMPLE_PROBS,
    FINISH_CANDIDATES_PROBS,
    FINISH_CANDIDATES_LOGPROB_PROBS,
    FIND_CUT_PROBS,
    WRITE_ROWS_PROBS,
];

impl Program {
    /// Returns a text of everything that the machine code depends on, besides the compiler and its options:
    /// the name, the source and all headers.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The layers of device code, lowest first: each is a folder.
    const LAYERS: [&str; 7] = ["platform", "abi", "math", "warp", "block", "stage", "kernels"];

    /// Returns the index of a file's layer, 0 for the lowest.
    fn layer(name: &str) -> usize {
        let folder = name.split('/').next();
        LAYERS
            .iter()
            .position(|layer| Some(*layer) == folder)
            .unwrap_or_else(|| panic!("{name} is in no layer"))
    }

    /// Returns the files that a file includes directly.
    fn includes(name: &str) -> Vec<&'static str> {
        let (_, text) =
            HEADERS.iter().find(|(other, _)| *other == name).unwrap_or_else(|| panic!("no {name}"));
        text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"')).collect()
    }

    #[test]
    fn device_code_includes_only_its_own_layer_and_lower_ones() {
        for (name, _) in HEADERS {
            for other in includes(name) {
                assert!(layer(other) <= layer(name), "{name} includes {other}, which lies above it");
            }
        }
    }

    #[test]
    fn no_device_file_includes_itself() {
        for (name, _) in HEADERS {
            let mut open = includes(name);
            let mut seen = open.clone();
            while let Some(other) = open.pop() {
                assert_ne!(other, *name, "{name} includes itself");
                let further =
                    includes(other).into_iter().filter(|file| !seen.contains(file)).collect::<Vec<_>>();
                seen.extend(&further);
                open.extend(further);
            }
        }
    }
}
