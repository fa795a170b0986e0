//! The threads of the command: as many as the machine has, or as can be started.
//!
//! Rayon's global pool is all or nothing, and panics where a limit on processes leaves nothing. So the
//! command runs inside a pool of its own: of the usual size, of a smaller one, or at worst of the calling
//! thread alone. Results do not depend on it.

use rayon::ThreadPoolBuilder;

use crate::apart;

/// The bytes of a thread's stack: as many as a main thread has, whose work it does.
const STACK_BYTES: usize = 8 << 20;

/// How candle is told to start no threads, which it does without asking whether it can.
const CANDLE: &str = "CANDLE_NUM_THREADS";

/// Runs work on the threads there can be.
pub fn run<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let builder = |threads| ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK_BYTES);
    // As many as RAYON_NUM_THREADS says, or the machine has.
    if let Ok(pool) = builder(0).build() {
        return pool.install(work);
    }
    if std::env::var_os(CANDLE).is_none() {
        apart::begin_again(CANDLE, "1");
    }
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let fewer = std::iter::successors(Some(most / 2), |threads| Some(threads / 2)).take_while(|n| *n > 0);
    let pool = fewer.map(builder).find_map(|builder| builder.build().ok());
    if let Some(pool) = pool {
        return pool.install(work);
    }
    // The calling thread is in this pool until it ends, and needs no other.
    let _alone = builder(1).use_current_thread().build();
    work()
}

/// Returns whether a thread can be started.
#[must_use]
pub fn can_start() -> bool {
    std::thread::Builder::new().spawn(|| ()).is_ok_and(|thread| thread.join().is_ok())
}
