//! Tables of kernels, by name, type and kind of rows. Rust's compiler looks the names up, so a step only
//! indexes tables.

use crate::abi::dtype::Dtype;
use crate::abi::program::{KernelModule, PROGRAMS};
use gumball_spec::Kind;

/// A kernel, by its index among the kernels of all programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel(pub(crate) usize);

impl Kernel {
    /// Returns the kernel of a name.
    ///
    /// # Panics
    /// If no program has a kernel of that name. In a constant this is a compile error.
    #[must_use]
    pub const fn named(name: &str) -> Self {
        let (mut program, mut place) = (0, 0);
        while program < PROGRAMS.len() {
            let kernels = PROGRAMS[program].kernels;
            let mut kernel = 0;
            while kernel < kernels.len() {
                if same(kernels[kernel].as_bytes(), name.as_bytes()) {
                    return Self(place);
                }
                (kernel, place) = (kernel + 1, place + 1);
            }
            program += 1;
        }
        panic!("no kernel of that name")
    }

    /// Returns the group of programs with which the kernel is loaded.
    pub(crate) fn group(self) -> KernelModule {
        let groups = PROGRAMS.iter().flat_map(|program| program.kernels.iter().map(|_| program.group));
        groups.into_iter().nth(self.0).expect("a kernel has a place")
    }

    /// Returns the names of all kernels, in the order of their indices.
    pub fn all() -> impl Iterator<Item = &'static str> {
        PROGRAMS.iter().flat_map(|program| program.kernels.iter().copied())
    }
}

/// Whether two names are equal; `==` on slices is not available in constants.
const fn same(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut i = 0;
    while i < a.len() {
        if a[i] != b[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// The kernels of one stage, by the kind of the rows and by their type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByRows(pub [ByDtype; 2]);

impl ByRows {
    pub const fn of(&self, kind: Kind, dtype: Dtype) -> Kernel {
        self.0[kind as usize].of(dtype)
    }
}

/// Makes a [`ByRows`] from how the kernels' names begin and end. Names of rows of probabilities end in
/// `_probs` too.
macro_rules! by_rows {
    ($begin:literal, $end:literal) => {
        $crate::abi::kernel_table::ByRows([
            $crate::abi::kernel_table::by_dtype!($begin, $end),
            $crate::abi::kernel_table::by_dtype!($begin, concat!($end, "_probs")),
        ])
    };
}
pub(crate) use by_rows;

/// The kernels of one stage, by the type of the rows' numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByDtype(pub [Kernel; 3]);

impl ByDtype {
    pub const fn of(&self, dtype: Dtype) -> Kernel {
        self.0[dtype as usize]
    }
}

/// Makes a [`ByDtype`] from how the kernels' names begin and end; the type's name stands between.
macro_rules! by_dtype {
    ($begin:literal, $end:expr) => {
        $crate::abi::kernel_table::ByDtype([
            $crate::abi::kernel_table::Kernel::named(concat!($begin, "f32", $end)),
            $crate::abi::kernel_table::Kernel::named(concat!($begin, "bf16", $end)),
            $crate::abi::kernel_table::Kernel::named(concat!($begin, "f16", $end)),
        ])
    };
}
pub(crate) use by_dtype;
