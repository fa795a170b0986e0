//! The floating-point environment: round to nearest, subnormals kept, for any setting of the host program
//! (N5).

/// The environment that all arithmetic here is defined in, for the thread that entered it; restores the
/// caller's when dropped.
#[derive(Debug)]
pub struct FloatEnv {
    caller: Option<Control>,
}

#[cfg(target_arch = "x86_64")]
type Control = u32;
#[cfg(target_arch = "aarch64")]
type Control = u64;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
type Control = ();

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

/// Flush-to-zero, rounding mode and denormals-are-zero in MXCSR.
#[cfg(target_arch = "x86_64")]
const MODES: Control = 0x8000 | 0x6000 | 0x0040;
/// Flush-to-zero, rounding mode and alternative halves in FPCR; then three bits of newer machines:
/// alternative behaviour, which changes maxima, the flushing of inputs, and what scalar instructions leave in
/// the rest of a register. Others keep these three at 0.
#[cfg(target_arch = "aarch64")]
const MODES: Control = 1 << 24 | 0b11 << 22 | 1 << 26 | 0b111;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn is_ours(control: Control) -> bool {
    control & MODES == 0
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn ours(control: Control) -> Control {
    control & !MODES
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn theirs(control: Control) -> Control {
    control | MODES
}

#[cfg(target_arch = "x86_64")]
fn read() -> Control {
    let mut control: Control = 0;
    // SAFETY: stores the register into `control`, which outlives the instruction, and touches nothing else.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack, preserves_flags)) };
    control
}

#[cfg(target_arch = "x86_64")]
fn write(control: Control) {
    // SAFETY: loads a value the register held before, except for its mode bits; no reserved bit gets set.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, preserves_flags)) };
}

#[cfg(target_arch = "aarch64")]
fn read() -> Control {
    let control: Control;
    // SAFETY: reads a register and touches nothing else.
    unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) control, options(nomem, nostack, preserves_flags)) };
    control
}

#[cfg(target_arch = "aarch64")]
fn write(control: Control) {
    // SAFETY: writes a value the register held before, except for its mode bits.
    unsafe { std::arch::asm!("msr fpcr, {}", in(reg) control, options(nostack, preserves_flags)) };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn is_ours((): Control) -> bool {
    true
}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn ours((): Control) {}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn theirs((): Control) {}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn read() {}
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn write((): Control) {}

#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
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
