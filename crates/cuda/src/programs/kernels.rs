//! The table of kernels: which source file defines which kernels.
//!
//! Kernels that differ only in the rows that they take form a [`Family`]. A step finds a kernel by arithmetic
//! on constants; names are made when kernels are loaded.
//!
//! A source file defines its kernels for all types of rows. A [`Program`] selects those for one type and one
//! kind of rows, because most processes need one of each, and the compiler takes seconds for each kernel.
//!
//! No source spells out a kernel's whole name, so a search for `finish_candidates_f32_probs` finds nothing:
//! - here, a family's constant in small letters begins the name, and [`Members`] adds type, size and kind;
//! - in the source file, a macro pastes the type and size to the same beginning (`finish_candidates_##type`);
//! - [`Program::source`] appends `_probs` in the programs for rows of probabilities.
//!
//! Search for the beginning, `finish_candidates_##`, to find a definition.

use std::fmt::Write as _;
use std::sync::LazyLock;

use gumball_spec::Kind;

use crate::abi::dtype::Dtype;

/// Declares the source files, and a constant for each family of their kernels.
///
/// An entry has the file in `kernels`, without `.cu`, and the families with their [`Members`]. The names of a
/// family's kernels begin with the name of its constant, in small letters. `of_pools` has the kernels that
/// pools launch on rows of logits; `of_others` the kernels of heads and those that operators alone launch.
macro_rules! kernels {
    (of_pools { $($pools:tt)+ } of_others { $($others:tt)+ }) => {
        kernels!(@ $($pools)+; $($others)+);
    };
    (@ $($file:literal { $($family:ident: $members:expr),+ })+; $($other:literal { $($families:ident: $theirs:expr),+ })+) => {
        kernels!(@@ $(true, $file { $($family: $members),+ })+ $(false, $other { $($families: $theirs),+ })+);
    };
    (@@ $($is_of_pools:literal, $file:literal { $($family:ident: $members:expr),+ })+) => {
        /// The families in the order of their kernels' indices.
        #[allow(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Index { $($($family),+),+ }

        const MEMBERS: &[Members] = &[$($($members),+),+];

        $($(pub(crate) const $family: Family = Family {
            name: stringify!($family),
            first: first_kernel(Index::$family as usize),
            members: $members,
        };)+)+

        static FILES: &[SourceFile] = &[$(SourceFile {
            name: $file,
            path: concat!("kernels/", $file, ".cu"),
            text: include_str!(concat!("../../kernels/", $file, ".cu")),
            families: &[$($family),+],
            is_of_pools: $is_of_pools,
        }),+];
    };
}

kernels! {
    of_pools {
        // Finds edits that match the end of a request's history.
        "history_edits" { HISTORY_EDITS: ONE }
        // Survey rows.
        "survey" {
            SURVEY: BY_ROWS.sized(FEW_OR_MANY),
            SURVEY_SUMS: BY_ROWS.sized(FEW_OR_MANY),
            RECORDS_FROM_SHARED_ROWS: ONE
        }
        // Survey rows with masks or edits.
        "survey_edited" {
            SURVEY_EDITED: BY_ROWS.sized(ALL_SIZES),
            SURVEY_EDITED_SUMS: BY_ROWS.sized(ALL_SIZES)
        }
        // Survey small batches of unfiltered rows, and score every token on the way.
        "survey_draw" { SURVEY_DRAW: BY_DTYPE }
        // Finish the rows of a step with any requests.
        "finish_general" { FINISH_GENERAL: BY_ROWS }
        // Finish greedy rows, unfiltered rows, and rows whose only filter is min-p.
        "finish_simple" { FINISH_SIMPLE: BY_ROWS, FINISH_SURVEY_DRAW: BY_DTYPE }
        // Finish a step, and first try filters on a candidate list.
        "finish_candidates" { FINISH_CANDIDATES: BY_ROWS }
        // Finish a step by candidate lists, with edits, masks and the drawn token's logprob.
        "finish_candidates_logprob" { FINISH_CANDIDATES_LOGPROB: BY_ROWS }
        // Finish such a step with kept sets, and with the token's logprob over them.
        "finish_candidates_kept" { FINISH_CANDIDATES_KEPT: BY_ROWS }
        // Count and list the ids of kept sets for the host.
        "pack_kept" { COUNT_KEPT: ONE, PACK_KEPT: ONE }
        // Turn rows of logits into rows of probabilities.
        "softmax" {
            SOFTMAX_REDUCE: BY_DTYPE,
            SOFTMAX_WRITE: BY_DTYPE.to_f32(),
            SOFTMAX_CLUSTER: BY_DTYPE.to_f32()
        }
        // Begin and end a step over the rows of drafts.
        "drafts" { BEGIN_DRAFTS: ONE, END_DRAFTS: ONE }
        // Takes the last tokens of requests away again.
        "shorten_requests" { SHORTEN_REQUESTS: ONE }
        // Copies the drafts of a batch to where others read them.
        "copy_drafts" { COPY_DRAFTS: ONE }
        // Make parents of the links of such drafts.
        "parents_of_links" { PARENTS_OF_LINKS: ONE }
        // Draw drafts from the rows of a draft model.
        "draft_race" { DRAFT_RACE: BY_ROWS }
        // Find the cuts of rows that are to be written.
        "find_cut" { FIND_CUT: BY_ROWS }
        // Write rows whose cuts are known.
        "write_rows" { WRITE_ROWS: BY_ROWS.to_f32() }
        // Verify chains of drafts.
        "verify" { VERIFY_SURVEY: ONE, VERIFY_FINISH: ONE }
        // Write the rows of a step under their edits, of which probabilities are made.
        "edit_rows" { EDIT_ROWS: BY_ROWS }
        // Judge the drafts of a step's requests by probabilities.
        "judge_requests" { JUDGE_REQUESTS: ONE }
        // Force given tokens in a step, and write their logprobs after it.
        "selected_logprobs" { SELECT_TOKENS: ONE, WRITE_SELECTED: ONE }
        // Exchange rows and results between the devices of a group.
        "exchange" { DIGEST_DRAFTS: ONE, SEND_ROWS: ONE, SEND_RESULTS: ONE }
        // Survey and finish rows of which each device of a group has a part.
        "shards" {
            SURVEY_SHARDS: BY_DTYPE.sized(FEW_OR_MANY),
            SURVEY_EDITED_SHARDS: BY_DTYPE.sized(ALL_SIZES),
            FINISH_SHARDS: BY_DTYPE,
            FINISH_SHARD_LISTS: BY_DTYPE.sized(FEW_OR_MANY),
            FINISH_EDITED_SHARDS: BY_DTYPE.sized(FEW_OR_MANY)
        }
    }
    of_others {
        // Makes a step's requests from an operator's columns of parameters.
        "params_from_columns" { PARAMS_FROM_COLUMNS: ONE }
        // Judge trees of drafts by probabilities.
        "judge_drafts" { JUDGE_DRAFTS: ONE }
        // Logprobs of given ids over given sets, and their gradient.
        "given_logprobs" { GIVEN_LOGPROBS: BY_DTYPE, GIVEN_GRADIENT: BY_DTYPE }
        // Widen hidden states, and compute their logits.
        "head_states" { HEAD_STATES: BY_DTYPE }
        "head_logits" { HEAD_LOGITS: BY_DTYPE.sized(FEW_OR_MANY), LISTED_LOGITS: BY_DTYPE }
        // Find the clusters that hidden states probe, and compute the logits of their ids.
        "head_probes" { HEAD_PROBES: ONE, LIST_PROBED: ONE }
        "probed_logits" { PROBED_LOGITS: BY_DTYPE }
        // Compute logits of hidden states on tensor cores, of all ids or of probed sets.
        "fast_logits" { FAST_LOGITS: BY_SHORT_DTYPE, FAST_PROBED: BY_SHORT_DTYPE }
        // Bound logits by a screen, and find those that decide their rows.
        "head_bounds" { HEAD_BOUNDS: ONE, HEAD_RACE: ONE, HEAD_CONTENDERS: ONE }
        // Evaluates numeric functions, for comparison with their definitions.
        "numeric_check" { NUMERIC_CHECK: ONE }
    }
}

/// How many tiles the warps of a survey take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    Few,
    /// Between few and many: for rows with edits only.
    Medium,
    Many,
}

/// How the kernels' names end for each [`Size`] of a family.
const FEW_OR_MANY: &[&str] = &["_few", "_many"];
const ALL_SIZES: &[&str] = &["_few", "_medium", "_many"];

/// How they end for a type of rows; and for a type other than f32 whose output is f32. Each with that type.
const TYPES: &[(&str, Option<Dtype>)] = &[
    ("_f32", Some(Dtype::F32)),
    ("_bf16", Some(Dtype::Bf16)),
    ("_f16", Some(Dtype::F16)),
    ("_bf16_f32", Some(Dtype::Bf16)),
    ("_f16_f32", Some(Dtype::F16)),
];

/// How they end for a [`Kind`] of rows.
const KINDS: [&str; 2] = ["", "_probs"];

/// The kernels of a family: one for each type, size and kind of rows.
#[derive(Clone, Copy, Debug)]
struct Members {
    types: &'static [(&'static str, Option<Dtype>)],
    sizes: &'static [&'static str],
    kinds: usize,
}

/// A single kernel.
const ONE: Members = Members { types: &[("", None)], sizes: &[""], kinds: 1 };

/// A kernel for each type of logits.
const BY_DTYPE: Members = Members { types: TYPES.first_chunk::<3>().unwrap(), ..ONE };

/// A kernel for each type of two bytes.
const BY_SHORT_DTYPE: Members =
    Members { types: &[("_bf16", Some(Dtype::Bf16)), ("_f16", Some(Dtype::F16))], ..ONE };

/// A kernel for each type and kind of rows.
const BY_ROWS: Members = Members { kinds: 2, ..BY_DTYPE };

impl Members {
    /// Adds kernels for other sizes, so that there is one for each of the first `sizes`.
    const fn sized(self, sizes: &'static [&'static str]) -> Self {
        Self { sizes, ..self }
    }

    /// Adds kernels whose output is f32 though their rows are not.
    const fn to_f32(self) -> Self {
        Self { types: TYPES, ..self }
    }

    const fn kernels(&self) -> usize {
        self.types.len() * self.sizes.len() * self.kinds
    }
}

/// Returns the number of kernels in the families before one.
const fn first_kernel(family: usize) -> usize {
    if family == 0 { 0 } else { first_kernel(family - 1) + MEMBERS[family - 1].kernels() }
}

/// Kernels that differ only in the rows that they take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    name: &'static str,
    /// The index of its first kernel.
    first: usize,
    members: Members,
}

impl Family {
    /// Returns the only kernel.
    pub const fn kernel(self) -> Kernel {
        self.at(0, 0, 0)
    }

    /// Returns the kernel for rows of a kind and a type, which also is the type of its output.
    pub const fn of(self, kind: Kind, dtype: Dtype) -> Kernel {
        self.at(dtype as usize, 0, kind as usize)
    }

    /// Returns the kernel for a type of two bytes, or `None` for f32.
    pub const fn of_short(self, dtype: Dtype) -> Option<Kernel> {
        match dtype {
            Dtype::F32 => None,
            Dtype::Bf16 => Some(self.at(0, 0, 0)),
            Dtype::F16 => Some(self.at(1, 0, 0)),
        }
    }

    /// Returns the kernel for rows of a kind and a type, and a size of its warps' work.
    pub const fn sized(self, size: Size, kind: Kind, dtype: Dtype) -> Kernel {
        let sizes = self.members.sizes.len();
        let place = match size {
            Size::Few => 0,
            Size::Medium => 1,
            Size::Many => sizes - 1,
        };
        assert!(sizes == ALL_SIZES.len() || !matches!(size, Size::Medium), "the family has no such size");
        self.at(dtype as usize, place, kind as usize)
    }

    /// Returns the kernel for rows of a kind and a type, and an output of that type or of f32.
    pub const fn to(self, kind: Kind, from: Dtype, to: Dtype) -> Kernel {
        let to_f32 = matches!(to, Dtype::F32) && !matches!(from, Dtype::F32);
        self.at(from as usize + if to_f32 { 2 } else { 0 }, 0, kind as usize)
    }

    const fn at(self, of_type: usize, size: usize, kind: usize) -> Kernel {
        let Members { types, sizes, kinds } = self.members;
        assert!(of_type < types.len() && size < sizes.len() && kind < kinds, "the family has no such kernel");
        Kernel(self.first + (kind * types.len() + of_type) * sizes.len() + size)
    }

    /// Returns its kernels for a kind of rows.
    fn kernels(self, kind: Kind) -> impl Iterator<Item = FamilyKernel> {
        let Members { types, sizes, kinds } = self.members;
        let types = if (kind as usize) < kinds { types } else { &[] };
        types.iter().enumerate().flat_map(move |(of_type, (type_end, dtype))| {
            sizes.iter().enumerate().map(move |(size, size_end)| FamilyKernel {
                kernel: self.at(of_type, size, kind as usize),
                dtype: *dtype,
                definition: self.name.to_lowercase() + type_end + size_end,
            })
        })
    }
}

/// A kernel as its source file defines it.
struct FamilyKernel {
    kernel: Kernel,
    /// The type of the rows that it reads, if there is a kernel for each type.
    dtype: Option<Dtype>,
    /// Its name without the kind of rows.
    definition: String,
}

/// A kernel, by its index among all kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kernel(pub(crate) usize);

impl Kernel {
    /// The number of kernels.
    pub(crate) const COUNT: usize = first_kernel(MEMBERS.len());

    /// Returns all kernels with their names.
    pub fn all() -> impl Iterator<Item = (Self, String)> {
        Program::all().flat_map(Program::kernels)
    }

    /// Returns the kernel's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
            let mut names = vec![String::new(); Kernel::COUNT];
            Kernel::all().for_each(|(kernel, name)| names[kernel.0] = name);
            names
        });
        &NAMES[self.0]
    }

    /// Returns the program that has the kernel.
    pub(crate) fn program(self) -> Program {
        let program = Program::all().find(|program| program.kernels().any(|(kernel, _)| kernel == self));
        program.expect("programs have all kernels")
    }
}

/// A source file of kernels.
#[derive(Debug)]
struct SourceFile {
    name: &'static str,
    /// The name by which programs include it.
    path: &'static str,
    text: &'static str,
    families: &'static [Family],
    /// Whether pools launch its kernels on rows of logits.
    is_of_pools: bool,
}

/// Returns path and text of the source files that have kernels for a kind of rows.
pub(crate) fn source_files(kind: Kind) -> impl Iterator<Item = (&'static str, &'static str)> {
    let has =
        move |file: &&SourceFile| file.families.iter().any(|family| family.members.kinds > kind as usize);
    FILES.iter().filter(has).map(|file| (file.path, file.text))
}

/// A program of kernels: those of a source file for one kind and one type of rows, or those of the file that
/// serve all types.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    file: &'static SourceFile,
    kind: Kind,
    dtype: Option<Dtype>,
}

/// Selects kernels: declares each by the macro `KERNEL_` with its name, not by the macros of
/// `platform/portability.cuh`.
const SELECT: &str = "\
#include \"platform/portability.cuh\"
#undef KERNEL
#undef KERNEL_MIN_BLOCKS
#define KERNEL(name, threads, Argument, argument) KERNEL_##name(__launch_bounds__(threads), Argument, argument)
#define KERNEL_MIN_BLOCKS(name, threads, blocks, Argument, argument) \\
    KERNEL_##name(__launch_bounds__(threads, blocks), Argument, argument)
";

impl Program {
    /// Returns all programs: those for rows of logits, then those for rows of probabilities.
    pub fn all() -> impl Iterator<Item = Self> {
        let of = |kind| {
            FILES.iter().flat_map(move |file| {
                let types = [None, Some(Dtype::F32), Some(Dtype::Bf16), Some(Dtype::F16)];
                types.map(|dtype| Self { file, kind, dtype })
            })
        };
        let programs = [Kind::Logits, Kind::Probabilities].into_iter().flat_map(of);
        programs.filter(|program| program.kernels().next().is_some())
    }

    /// Returns the programs that pools launch on rows of logits of some types.
    pub fn of_pools(dtypes: &[Dtype]) -> impl Iterator<Item = Self> {
        let is_asked = |dtype: Option<Dtype>| dtype.is_none_or(|dtype| dtypes.contains(&dtype));
        Self::all().filter(move |program| {
            program.file.is_of_pools && program.kind == Kind::Logits && is_asked(program.dtype)
        })
    }

    /// Returns the program's name: that of its source file, the type of the rows, and `_probs` for rows of
    /// probabilities.
    #[must_use]
    pub fn name(self) -> String {
        let dtype = self.dtype.map_or(String::new(), |dtype| format!("_{}", dtype.name()));
        format!("{}{dtype}{}", self.file.name, KINDS[self.kind as usize])
    }

    /// Returns the program's source text. It includes the source file, in which kernels of other programs
    /// become templates that nobody instantiates.
    #[must_use]
    pub fn source(self) -> String {
        let mut text = format!("#define GUMBALL_PROBABILITIES {}\n{SELECT}", self.kind as usize);
        for FamilyKernel { dtype, definition, .. } in self.file_kernels() {
            let declaration = if dtype == self.dtype {
                let name = definition.clone() + KINDS[self.kind as usize];
                format!(
                    "extern \"C\" __global__ void bounds {name}(const __grid_constant__ Argument argument)"
                )
            } else {
                format!("template <int> __device__ void {definition}(const Argument& argument)")
            };
            let _ = writeln!(text, "#define KERNEL_{definition}(bounds, Argument, argument) {declaration}");
        }
        text + "#include \"" + self.file.path + "\"\n"
    }

    /// Returns the program's kernels and their names.
    pub fn kernels(self) -> impl Iterator<Item = (Kernel, String)> {
        let own = self.file_kernels().filter(move |found| found.dtype == self.dtype);
        own.map(move |found| (found.kernel, found.definition + KINDS[self.kind as usize]))
    }

    /// Returns the kernels that the program's source file defines for its kind of rows.
    fn file_kernels(self) -> impl Iterator<Item = FamilyKernel> {
        self.file.families.iter().flat_map(move |family| family.kernels(self.kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kernel_has_a_name_and_an_index_of_its_own() {
        let mut indices: Vec<usize> = Kernel::all().map(|(kernel, _)| kernel.0).collect();
        indices.sort_unstable();
        assert_eq!(indices, (0..Kernel::COUNT).collect::<Vec<_>>());
        let mut names: Vec<String> = Kernel::all().map(|(_, name)| name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Kernel::COUNT);
    }

    #[test]
    fn a_program_has_the_kernels_of_a_type_and_a_kind() {
        let of = |name: &str| {
            let program = Program::all().find(|program| program.name() == name).expect("a program");
            program.kernels().map(|(_, name)| name).collect::<Vec<_>>()
        };
        assert_eq!(of("history_edits"), ["history_edits"]);
        assert_eq!(of("survey"), ["records_from_shared_rows"]);
        assert_eq!(of("finish_general_bf16_probs"), ["finish_general_bf16_probs"]);
        assert_eq!(of("write_rows_f16"), ["write_rows_f16", "write_rows_f16_f32"]);
        let program = SURVEY.sized(Size::Few, Kind::Logits, Dtype::F32).program();
        assert_eq!(program.name(), "survey_f32");
        assert!(program.source().contains("extern \"C\" __global__ void bounds survey_f32_few(const"));
        assert!(program.source().contains("template <int> __device__ void survey_bf16_few(const"));
    }

    #[test]
    fn kernels_are_found_by_their_rows() {
        let name = |kernel: Kernel| kernel.name();
        assert_eq!(name(HISTORY_EDITS.kernel()), "history_edits");
        assert_eq!(name(SURVEY_DRAW.of(Kind::Logits, Dtype::F16)), "survey_draw_f16");
        assert_eq!(name(FIND_CUT.of(Kind::Probabilities, Dtype::F32)), "find_cut_f32_probs");
        assert_eq!(
            name(SURVEY_EDITED_SUMS.sized(Size::Medium, Kind::Logits, Dtype::Bf16)),
            "survey_edited_sums_bf16_medium"
        );
        for to in [Dtype::F32, Dtype::F16] {
            assert_eq!(name(SOFTMAX_WRITE.to(Kind::Logits, to, to)), format!("softmax_write_{}", to.name()));
        }
        assert_eq!(
            name(WRITE_ROWS.to(Kind::Probabilities, Dtype::Bf16, Dtype::F32)),
            "write_rows_bf16_f32_probs"
        );
    }
}
