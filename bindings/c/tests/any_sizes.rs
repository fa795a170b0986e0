//! Structs of any size with any bytes behind what this library knows, and any lengths in them, are taken or refused, and never read
//! beyond their size: a bounded run of fuzz, from a seed. Elements lie in one array, which no refused length may be read by.

use std::ffi::c_void;
use std::ptr::null;

use gumball::*;

/// A stream of words (splitmix64).
struct Words(u64);

impl Words {
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }

    /// A length that is right, or one that no memory has.
    fn length(&mut self, right: usize) -> usize {
        let wrong = [0, usize::MAX, usize::MAX / 2, 1 << 62, (1 << 62) + right, usize::MAX / right.max(1)];
        if self.below(6) > 0 { right } else { wrong[self.below(wrong.len())] }
    }
}

/// A struct in memory of exactly `size` bytes: what is known of it, then zeros, and now and then something else.
struct Sized {
    bytes: Vec<u64>,
    size: usize,
    /// Whether the library has to refuse the size or what lies behind.
    refused: bool,
}

impl Sized {
    fn new<T: Copy>(words: &mut Words, least: usize, known: T) -> Self {
        let all = size_of::<T>();
        let sizes = [least, all, all + 8, all + 64, 4096, words.below(5000), 0, 4104];
        let size = sizes[words.below(sizes.len())] / 8 * 8;
        let mut bytes = vec![0u64; size.max(8).div_ceil(8)];
        let kept = size.min(all);
        // SAFETY: there are as many bytes in both, and neither is the other's.
        unsafe {
            std::ptr::copy_nonoverlapping((&raw const known).cast::<u8>(), bytes.as_mut_ptr().cast(), kept);
        };
        bytes[0] = size as u64;
        let mut refused = size < least || size > 4096;
        if size > all && words.below(3) == 0 {
            let place = (all + words.below(size - all)) / 8;
            bytes[place] = 1 << 56;
            refused = true;
        }
        Self { bytes, size, refused }
    }

    fn at<T>(&self) -> *const T {
        self.bytes.as_ptr().cast()
    }
}

const VOCAB: usize = 70;
const ROWS: usize = 3;

#[test]
fn structs_of_any_size_are_taken_or_refused() {
    let mut words = Words(11);
    let elements: Vec<f32> = (0..ROWS * VOCAB).map(|id| (id % 13) as f32).collect();
    let mut tokens = [0; ROWS];
    // SAFETY: there is no level.
    let operators = unsafe { gumball_operators_new(None, 0, null()) }.expect("operators");
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let matrix = Matrix {
            data: elements.as_ptr().cast::<c_void>(),
            rows: words.length(ROWS),
            width: words.length(VOCAB),
            stride: [0, VOCAB, usize::MAX, 1 << 60][words.below(12).saturating_sub(8)],
            dtype: if words.below(9) == 0 { words.word() as i32 } else { 0 },
            memory: if words.below(9) == 0 { words.word() as i32 & !1 } else { 0 },
        };
        let from = Rows { matrix, head: null(), what: 0 };
        // SAFETY: all zeros are draws.
        let mut draws: Draws = unsafe { std::mem::zeroed() };
        draws.outputs = words.length(ROWS);
        let least = std::mem::offset_of!(Draws, offsets) + size_of::<*const i64>();
        let given = Sized::new(&mut words, least, draws);
        let inside = matrix.rows == 0 || matrix.rows == ROWS && [0, VOCAB].contains(&matrix.stride);
        let sound = !given.refused
            && inside
            && (matrix.width, matrix.dtype, matrix.memory) == (VOCAB, 0, 0)
            && draws.outputs == matrix.rows;
        // SAFETY: the struct has as many bytes as it says, or is refused by its size; its elements are there, or they are
        // refused by their lengths.
        let code = unsafe {
            gumball_operators_sample(
                Some(&operators),
                &raw const from,
                null(),
                given.at(),
                tokens.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        assert_eq!(code == Code::GUMBALL_OK, sound, "{from:?} {draws:?} {}", given.size);
        assert_ne!(code, Code::GUMBALL_PANIC, "{from:?} {draws:?} {}", given.size);
        (taken, refused) = (taken + u32::from(sound), refused + u32::from(!sound));
    }
    assert!(taken > 500 && refused > 500, "{taken} taken, {refused} refused");
    gumball_operators_free(Some(operators));
}
