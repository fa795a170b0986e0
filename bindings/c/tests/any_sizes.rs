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
    let mut written = vec![0.0f32; ROWS * VOCAB];
    // SAFETY: there is no config.
    let operators = unsafe { gumball_operators_new(null()) }.expect("operators");
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let from = Logits {
            struct_size: 0,
            data: elements.as_ptr().cast::<c_void>(),
            rows: words.length(ROWS),
            vocab: words.length(VOCAB),
            stride: [0, VOCAB, usize::MAX, 1 << 60][words.below(12).saturating_sub(8)],
            dtype: if words.below(9) == 0 { words.word() as i32 } else { 0 },
            kind: 0,
        };
        let to = RowsOut {
            struct_size: 0,
            data: written.as_mut_ptr().cast::<c_void>(),
            rows: words.length(ROWS),
            vocab: words.length(VOCAB),
            stride: 0,
            dtype: 0,
        };
        // Where an older program's struct ended: behind the type.
        let a = Sized::new(&mut words, std::mem::offset_of!(Logits, dtype) + 4 + 4, from);
        let b = Sized::new(&mut words, std::mem::offset_of!(RowsOut, dtype) + 4 + 4, to);
        let lengths = (from.rows, from.vocab) == (to.rows, to.vocab) && to.vocab == VOCAB;
        let inside = from.rows == 0 || from.rows == ROWS && [0, VOCAB].contains(&from.stride);
        let sound = !a.refused && !b.refused && lengths && inside && from.dtype == 0;
        // SAFETY: the structs have as many bytes as they say, or are refused by their size; their elements are there, or they are
        // refused by their lengths.
        let code = unsafe {
            gumball_operators_softmax(Some(&operators), a.at(), 1.0, null(), b.at(), std::ptr::null_mut())
        };
        assert_eq!(code == Code::GUMBALL_OK, sound, "{from:?} {} {to:?} {}", a.size, b.size);
        assert_ne!(code, Code::GUMBALL_PANIC, "{from:?} {} {to:?} {}", a.size, b.size);
        (taken, refused) = (taken + u32::from(sound), refused + u32::from(!sound));
    }
    assert!(taken > 500 && refused > 500, "{taken} taken, {refused} refused");
    gumball_operators_free(Some(operators));
}
