//! Stands in for the operators of a device in a build without them: a type without values.

use std::convert::Infallible;

use gumball_spec::Result;

/// Operators of a device. Their arguments have any type, because nothing can call them.
#[derive(Debug)]
pub(super) struct OnDevice(Infallible);

/// Declares methods by the names of their arguments' types.
macro_rules! methods {
    ($($name:ident($($argument:ident),*)),*) => {$(
        pub fn $name<$($argument),*>(&mut self, $(_: $argument),*) -> Result<()> {
            match self.0 {}
        }
    )*};
}

impl OnDevice {
    methods!(write(A, B, C, D, E), sample(A, B, C, D, E, F), sample_from_pools(A, B, C, D, E, F));
    methods!(radii(A, B, C, D, E), selected_logprobs(A, B), logprobs(A, B, C), logprobs_gradient(A, B, C, D));
    methods!(pack_kept(A, B), judge(A, B, C, D, E, F));
}
