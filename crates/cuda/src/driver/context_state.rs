//! The state of a device's context: whether it is lost, and which kernels were launched before that.
//!
//! After a kernel, one of ours or of another library in the process, read or wrote where it must not, the
//! driver refuses each call that follows, in words that change from call to call. Here the first refusal is
//! kept, with the kernels that may have caused it, and each later call gets that one.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cudarc::driver::CudaContext;

use crate::error::{Error, Result, failed};
use crate::programs::kernels::Kernel;

/// The state of a context.
#[derive(Debug, Default)]
pub(crate) struct ContextState {
    /// The kernels that were launched since the last wait that succeeded, in the order of their first
    /// launches.
    launched: Mutex<Vec<Kernel>>,
    lost: OnceLock<Error>,
}

impl ContextState {
    /// Makes a call in the context, unless that is lost.
    pub fn call<T>(&self, call: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.lost.get() {
            Some(lost) => Err(lost.clone()),
            None => call().map_err(|error| self.kept(error)),
        }
    }

    /// Makes a call with the context current, unless that is lost.
    pub fn in_context<T>(&self, context: &CudaContext, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.call(|| {
            context.bind_to_thread().map_err(failed("cuCtxSetCurrent"))?;
            call()
        })
    }

    /// Takes down a kernel that is being launched.
    pub fn launches(&self, kernel: Kernel) {
        let mut launched = self.launched();
        if !launched.contains(&kernel) {
            launched.push(kernel);
        }
    }

    /// Takes down that all launches before have succeeded.
    pub fn succeeded(&self) {
        self.launched().clear();
    }

    /// Calls `capture`; returns what it launched besides, which is taken down at each replay instead.
    pub fn captured<T>(&self, capture: impl FnOnce() -> T) -> (T, Vec<Kernel>) {
        let before = std::mem::take(&mut *self.launched());
        let captured = capture();
        (captured, std::mem::replace(&mut *self.launched(), before))
    }

    fn kept(&self, error: Error) -> Error {
        let Error::Lost { call, reason, .. } = error else { return error };
        let kept = || {
            let launched = self.launched();
            let names: Vec<&str> = launched.iter().map(|kernel| kernel.name()).collect();
            let launched =
                if names.is_empty() { "no kernel of Gumball's".to_owned() } else { names.join(", ") };
            Error::Lost { call, reason, launched }
        };
        self.lost.get_or_init(kept).clone()
    }

    fn launched(&self) -> MutexGuard<'_, Vec<Kernel>> {
        self.launched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(state: &ContextState, call: &'static str, is_lost: bool) -> Error {
        let (reason, launched) = ("the driver's words".to_owned(), String::new());
        let error =
            if is_lost { Error::Lost { call, reason, launched } } else { Error::Call { call, reason } };
        state.call(|| Err::<(), _>(error)).expect_err("it fails")
    }

    #[test]
    fn a_lost_context_says_the_same_at_every_later_call() {
        let state = ContextState::default();
        let (first, second) = {
            let mut kernels = Kernel::all().map(|(kernel, _)| kernel);
            (kernels.next().expect("there are some"), kernels.next().expect("there are some"))
        };
        state.launches(first);
        state.succeeded();
        // What does not end a context is told as it is.
        let memory = fails(&state, "cuMemAlloc", false);
        assert!(matches!(memory, Error::Call { call: "cuMemAlloc", .. }), "{memory}");
        let ((), captured) = state.captured(|| state.launches(first));
        assert_eq!(captured, [first]);
        state.launches(second);
        state.launches(second);
        let lost = fails(&state, "cuStreamSynchronize", true);
        let Error::Lost { call: "cuStreamSynchronize", launched, .. } = &lost else { panic!("{lost}") };
        assert_eq!(launched, second.name());
        assert_eq!(fails(&state, "cuLaunchKernelEx", true), lost);
        assert_eq!(state.call(|| Ok(1)), Err(lost));
    }
}
