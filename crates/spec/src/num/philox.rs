//! Philox4x32-10, the counter-based generator of Salmon et al. (SC 2011, doi:10.1145/2063384.2063405).
//!
//! A counter and a key go in, four independent words come out; there is no state, so any word can be
//! computed anywhere, in any order. The counter here is `(index, position, tag, draw)` (N8).

/// Multiplier of the first lane pair.
pub const PHILOX_M0: u32 = 0xD251_1F53;
/// Multiplier of the second lane pair.
pub const PHILOX_M1: u32 = 0xCD9E_8D57;
/// Key increment of the low word.
pub const PHILOX_W0: u32 = 0x9E37_79B9;
/// Key increment of the high word.
pub const PHILOX_W1: u32 = 0xBB67_AE85;

/// The purpose of a counter; its third word (N8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Tag {
    /// Arrivals of single tokens; index is `id / 4`, the word `id % 4`.
    Token = 0,
    /// First arrivals of tiles; index is the tile.
    Tile = 1,
    /// Whether XTC is active; index 0, word 0.
    Xtc = 2,
    /// Acceptance of a draft token by rejection; index is its number among its siblings, word 0.
    Accept = 3,
    /// First arrivals of tiles when drawing from a residual.
    ResidualTile = 4,
    /// Arrivals of single tokens when drawing from a residual.
    ResidualToken = 5,
    /// Acceptance of a block up to a draft; index is the draft, at the position of the first one, word 0.
    Block = 6,
    /// Acceptance of a draft by thresholds; index 0, word 0.
    Threshold = 7,
    /// First arrivals of tiles when drawing a draft of a block, at the position of the first one; 256 for
    /// each draft before it is added.
    DraftTile = 8,
    /// Arrivals of single tokens when drawing a draft of a block, likewise.
    DraftToken = 9,
    /// The seed of a prompt and a turn of a run, words 0 and 1; index and position are the prompt's number,
    /// the draw is the turn (N10).
    PromptSeed = 10,
    /// The seed of a sample of these, words 0 and 1; index is the sample (N10).
    SampleSeed = 11,
    /// The words of a watermark: the high word of the key in which a context's id is the low one (W1).
    Watermark = 12,
}

/// Returns the four words of a counter under a 64-bit key (its low word first).
#[must_use]
pub fn philox4x32_10(key: u64, counter: [u32; 4]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let (mut k0, mut k1) = (key as u32, (key >> 32) as u32);
    for _ in 0..10 {
        let p0 = u64::from(PHILOX_M0) * u64::from(c0);
        let p1 = u64::from(PHILOX_M1) * u64::from(c2);
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(PHILOX_W0);
        k1 = k1.wrapping_add(PHILOX_W1);
    }
    [c0, c1, c2, c3]
}

#[cfg(test)]
mod tests {
    use super::*;

    // The known answers published with Random123 (kat_vectors, philox4x32 10).
    #[test]
    fn known_answers() {
        assert_eq!(philox4x32_10(0, [0; 4]), [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
        assert_eq!(
            philox4x32_10(u64::MAX, [u32::MAX; 4]),
            [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]
        );
        assert_eq!(
            philox4x32_10(0x299F_31D0_A409_3822, [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344]),
            [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1]
        );
    }
}
