//! The programs that are compiled: a stage's kernels with the headers they include, all in memory.

/// A source file with the name it is included by.
pub type Source = (&'static str, &'static str);

/// A program of kernels.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name, that of its file.
    pub name: &'static str,
    /// Its source.
    pub source: &'static str,
    /// The kernels in it.
    pub kernels: &'static [&'static str],
}

/// What programs include.
pub const HEADERS: &[Source] = &[
    ("place.cuh", include_str!("../device/place.cuh")),
    ("num.cuh", include_str!("../device/num.cuh")),
    ("step.cuh", include_str!("../device/step.cuh")),
    ("warp.cuh", include_str!("../device/warp.cuh")),
    ("records.cuh", include_str!("../device/records.cuh")),
    ("row.cuh", include_str!("../device/row.cuh")),
    ("entries.cuh", include_str!("../device/entries.cuh")),
    ("view.cuh", include_str!("../device/view.cuh")),
    ("chosen.cuh", include_str!("../device/chosen.cuh")),
    ("sums.cuh", include_str!("../device/sums.cuh")),
    ("cut.cuh", include_str!("../device/cut.cuh")),
    ("mass.cuh", include_str!("../device/mass.cuh")),
    ("search.cuh", include_str!("../device/search.cuh")),
    ("gather.cuh", include_str!("../device/gather.cuh")),
    ("arrival.cuh", include_str!("../device/arrival.cuh")),
    ("members.cuh", include_str!("../device/members.cuh")),
    ("filter.cu", include_str!("filter.cu")),
    ("draw.cu", include_str!("draw.cu")),
    ("ending.cu", include_str!("ending.cu")),
    ("list.cu", include_str!("list.cu")),
    ("logprobs.cu", include_str!("logprobs.cu")),
];

/// All programs.
pub const PROGRAMS: &[Program] = &[
    crate::edit::PROGRAM,
    crate::survey::PROGRAM,
    crate::survey::SWEEP,
    crate::step::PROGRAM,
    crate::step::LEAN,
    crate::numbers::PROGRAM,
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
