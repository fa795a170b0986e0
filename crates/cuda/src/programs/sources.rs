//! The sources that NVRTC and the emulator's compiler read: device code and generated headers, all in memory.

use std::sync::LazyLock;

use gumball_spec::Kind;
use sha2::{Digest, Sha256};

use crate::abi::header::Header;
use crate::abi::{DRAFTS, EXCHANGE, GIVEN, HEAD, KEPT, OPERATORS, SELECTED, STEP};
use crate::programs::kernels::{Program, source_files};

/// A source file: the name by which others include it, and its text.
pub type Source = (&'static str, &'static str);

/// Returns files of the folder `device`.
macro_rules! device_files {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("../../device/", $name)))),*] };
}

/// The device code, without the headers that are generated.
const DEVICE: &[Source] = device_files![
    "platform/portability.cuh",
    "platform/matrix.cuh",
    "platform/sm90.cuh",
    "platform/system_scope.cuh",
    "math/num.cuh",
    "math/kind.cuh",
    "math/logprob_modes.cuh",
    "math/cut.cuh",
    "math/record.cuh",
    "math/arrival.cuh",
    "math/edits.cuh",
    "math/sections.cuh",
    "warp/reduce.cuh",
    "warp/row.cuh",
    "warp/tile.cuh",
    "warp/edited_row.cuh",
    "warp/softmax.cuh",
    "block/stage_queue.cuh",
    "block/kth_largest.cuh",
    "block/reduce.cuh",
    "block/survey_grid.cuh",
    "block/survey_requests.cuh",
    "block/records.cuh",
    "block/edited_tiles.cuh",
    "block/fill_output.cuh",
    "block/cluster_softmax.cuh",
    "block/mass.cuh",
    "block/ranks.cuh",
    "block/candidates.cuh",
    "block/tied_tokens.cuh",
    "block/row_blocks.cuh",
    "block/search_state.cuh",
    "block/histogram.cuh",
    "block/crossing.cuh",
    "block/bracket.cuh",
    "block/nucleus_list.cuh",
    "block/search.cuh",
    "block/race.cuh",
    "block/bounded_race.cuh",
    "stage/row_result.cuh",
    "stage/exchange.cuh",
    "stage/accept_drafts.cuh",
    "stage/residual_records.cuh",
    "stage/judge.cuh",
    "stage/draft_tree.cuh",
    "stage/lane_drafts.cuh",
    "stage/written_probability.cuh",
    "stage/filter.cuh",
    "stage/candidate_filter.cuh",
    "stage/kept_bits.cuh",
    "stage/kept_set.cuh",
    "stage/tested_draw.cuh",
    "stage/draw.cuh",
    "stage/radius.cuh",
    "stage/logprobs.cuh",
    "stage/token_logprob.cuh",
    "stage/finish.cuh",
    "stage/survey.cuh",
    "stage/survey_edited_rows.cuh",
    "stage/survey_rows.cuh",
    "stage/shard.cuh",
    "stage/first_tokens.cuh",
    "stage/head.cuh",
    "stage/matrix_product.cuh",
];

/// The headers that are generated.
const GENERATED: [&Header; 8] = [&STEP, &DRAFTS, &OPERATORS, &SELECTED, &GIVEN, &KEPT, &EXCHANGE, &HEAD];

/// Returns the headers that are generated: what host and kernels share.
#[doc(hidden)]
pub fn generated_headers() -> impl Iterator<Item = Source> {
    static TEXTS: LazyLock<[String; GENERATED.len()]> = LazyLock::new(|| GENERATED.map(Header::text));
    GENERATED.iter().zip(&*TEXTS).map(|(header, text)| (header.name, &**text))
}

/// Returns all files that a program may include: the device code, and the source files of kernels.
pub(crate) fn headers() -> impl Iterator<Item = Source> {
    generated_headers().chain(DEVICE.iter().copied()).chain(source_files(Kind::Logits))
}

impl Program {
    /// Returns the SHA-256 of everything that the machine code depends on, besides the compiler and its
    /// options: the name, the source, and all files that it may include.
    pub(crate) fn digest(self) -> [u8; 32] {
        static HEADERS: LazyLock<Sha256> = LazyLock::new(|| {
            headers().fold(Sha256::new(), |digest, (name, text)| {
                digest.chain_update(name).chain_update([0]).chain_update(text).chain_update([0])
            })
        });
        HEADERS
            .clone()
            .chain_update(self.name())
            .chain_update([0])
            .chain_update(self.source())
            .finalize()
            .into()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::{Path, PathBuf};

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
        let (_, text) = headers().find(|(other, _)| *other == name).unwrap_or_else(|| panic!("no {name}"));
        text.lines().filter_map(|line| line.strip_prefix("#include \"")?.strip_suffix('"')).collect()
    }

    /// Returns a path in this crate.
    fn in_crate(path: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
    }

    /// Adds the files below a folder, by their paths from `root`.
    fn add_files(root: &Path, folder: &Path, files: &mut BTreeSet<String>) {
        for entry in fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                add_files(root, &path, files);
            } else {
                files.insert(path.strip_prefix(root).expect("below it").display().to_string());
            }
        }
    }

    #[test]
    fn no_source_is_left_out() {
        let mut files = BTreeSet::new();
        add_files(&in_crate("device"), &in_crate("device"), &mut files);
        add_files(&in_crate(""), &in_crate("kernels"), &mut files);
        let sources = DEVICE.iter().copied().chain(source_files(Kind::Logits));
        assert_eq!(files, sources.map(|(name, _)| name.to_owned()).collect());
    }

    #[test]
    fn device_code_includes_only_its_own_layer_and_lower_ones() {
        for (name, _) in headers() {
            for other in includes(name) {
                assert!(layer(other) <= layer(name), "{name} includes {other}, which lies above it");
            }
        }
    }

    #[test]
    fn no_device_file_includes_itself() {
        for (name, _) in headers() {
            let mut open = includes(name);
            let mut seen = open.clone();
            while let Some(other) = open.pop() {
                assert_ne!(other, name, "{name} includes itself");
                let further =
                    includes(other).into_iter().filter(|file| !seen.contains(file)).collect::<Vec<_>>();
                seen.extend(&further);
                open.extend(further);
            }
        }
    }
}
