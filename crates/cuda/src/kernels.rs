//! Kernels by their names: looked up while compiling, so that a step finds its kernels in tables.

use crate::machine::Kernel;
use crate::program::{Group, PROGRAMS};
use crate::rows::Dtype;

impl Kernel {
    /// Returns the kernel of a name.
    ///
    /// # Panics
    /// If there is none: names are ours.
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

    /// Returns which programs it is loaded with.
    pub(crate) fn group(self) -> Group {
        let groups = PROGRAMS.iter().flat_map(|program| program.kernels.iter().map(|_| program.group));
        groups.into_iter().nth(self.0).expect("a kernel has a place")
    }

    /// Returns the names of all kernels, in their places.
    pub fn all() -> impl Iterator<Item = &'static str> {
        PROGRAMS.iter().flat_map(|program| program.kernels.iter().copied())
    }
}

/// Whether two names are the same, found while compiling.
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

/// The kernels of one stage, by the type of the logits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByDtype(pub [Kernel; 3]);

impl ByDtype {
    pub const fn of(&self, dtype: Dtype) -> Kernel {
        self.0[dtype as usize]
    }
}

/// Names the kernels of a stage for each type, which stands between what the names begin and end with.
macro_rules! by_dtype {
    ($begin:literal, $end:literal) => {
        $crate::kernels::ByDtype([
            $crate::machine::Kernel::named(concat!($begin, "f32", $end)),
            $crate::machine::Kernel::named(concat!($begin, "bf16", $end)),
            $crate::machine::Kernel::named(concat!($begin, "f16", $end)),
        ])
    };
}
pub(crate) use by_dtype;
