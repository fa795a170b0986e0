//! Ctrl-C: work that can stop looks whether someone pressed it, and then ends with the results so far.

use std::sync::atomic::{AtomicBool, Ordering};

/// Set by Ctrl-C.
pub static INTERRUPT: AtomicBool = AtomicBool::new(false);

/// Lets Ctrl-C set [`INTERRUPT`], and a second one end the process at once.
pub fn hear() {
    INTERRUPT.store(false, Ordering::Relaxed);
    // The handler needs a thread; where there is none, Ctrl-C ends the process as ever.
    if crate::threads::can_start() {
        // There is one handler in a process; a second call keeps it.
        let _ = ctrlc::set_handler(|| {
            if INTERRUPT.swap(true, Ordering::Relaxed) {
                std::process::exit(130);
            }
        });
    }
}
