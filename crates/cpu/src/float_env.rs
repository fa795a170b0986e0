//! The floating-point environment: round to nearest, subnormals kept, for any setting of the host program
//! (N5).

use control::{Control, MODES, read, write};

/// The environment that all arithmetic here is defined in, for the thread that entered it; restores the
/// caller's when dropped.
#[derive(Debug)]
pub struct FloatEnv {
    caller: Option<Control>,
}

impl FloatEnv {
    /// Enters the environment all of our arithmetic is defined in.
    #[must_use]
    #[inline]
    pub fn enter() -> Self {
        let caller = read();
        if is_ours(caller) {
            return Self { caller: None };
        }
        write(ours(caller));
        Self { caller: Some(caller) }
    }
}

impl Drop for FloatEnv {
    #[inline]
    fn drop(&mut self) {
        if let Some(caller) = self.caller {
            write(caller);
        }
    }
}

/// Runs something as in a host program that flushes subnormal numbers and rounds towards zero, where that can
/// be set; for tests.
#[doc(hidden)]
pub fn in_modes_of_a_host<T>(run: impl FnOnce() -> T) -> T {
    let caller = read();
    write(theirs(caller));
    let out = run();
    write(caller);
    out
}

fn is_ours(control: Control) -> bool {
    control & MODES == 0
}

fn ours(control: Control) -> Control {
    control & !MODES
}

fn theirs(control: Control) -> Control {
    control | MODES
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod control {
    pub type Control = u32;

    /// Flush-to-zero, rounding mode and denormals-are-zero in MXCSR.
    pub const MODES: Control = 0x8000 | 0x6000 | 0x0040;

    pub fn read() -> Control {
        let mut control: Control = 0;
        // SAFETY: stores the register into `control`, which outlives the instruction, and touches nothing
        // else.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack, preserves_flags));
        }
        control
    }

    pub fn write(control: Control) {
        // SAFETY: loads a value the register held before, except for its mode bits; no reserved bit gets set.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, preserves_flags));
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod control {
    pub type Control = u64;

    /// Flush-to-zero, rounding mode and alternative halves in FPCR; then three bits of newer machines:
    /// alternative behaviour, which changes maxima, the flushing of inputs, and what scalar instructions
    /// leave in the rest of a register. Others keep these three at 0.
    pub const MODES: Control = 1 << 24 | 0b11 << 22 | 1 << 26 | 0b111;

    pub fn read() -> Control {
        let control: Control;
        // SAFETY: reads a register and touches nothing else.
        unsafe {
            std::arch::asm!("mrs {}, fpcr", out(reg) control, options(nomem, nostack, preserves_flags));
        }
        control
    }

    pub fn write(control: Control) {
        // SAFETY: writes a value the register held before, except for its mode bits.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) control, options(nostack, preserves_flags)) };
    }
}

/// Where the modes cannot be set: other machines, and Miri, which runs no assembly.
#[cfg(not(any(all(target_arch = "x86_64", not(miri)), target_arch = "aarch64")))]
mod control {
    pub type Control = u32;

    pub const MODES: Control = 0;

    pub fn read() -> Control {
        0
    }

    pub fn write(_: Control) {}
}

#[cfg(all(test, any(all(target_arch = "x86_64", not(miri)), target_arch = "aarch64")))]
mod tests {
    use super::*;

    #[test]
    fn the_callers_modes_are_set_aside_and_restored() {
        in_modes_of_a_host(|| {
            let theirs = read();
            assert_ne!(theirs & MODES, 0);
            {
                let _env = FloatEnv::enter();
                assert_eq!(read() & MODES, 0);
            }
            assert_eq!(read(), theirs);
        });
    }
}
