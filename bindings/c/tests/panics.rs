//! A panic inside the library comes out as `GUMBALL_PANIC`, in words; no sequence has moved, and handles work
//! on.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, Ordering};

use gumball::*;
use gumball_engine::unstable::Stages;
use gumball_engine::{Logprobs, Route, Row};

/// Whether the route panics.
static BREAKS: AtomicBool = AtomicBool::new(false);

/// The stages of the default route, until they are told to break after their row.
#[derive(Debug)]
struct BreakingStages(Box<dyn Stages>);

impl Stages for BreakingStages {
    fn sample(
        &mut self,
        row: Row<'_>,
        task: &gumball_engine::unstable::Task<'_>,
        hook: Option<gumball_engine::Hook<'_>>,
    ) -> gumball_engine::Result<gumball_engine::unstable::Chosen> {
        let chosen = self.0.sample(row, task, hook)?;
        assert!(!BREAKS.load(Ordering::SeqCst), "the cut is below the tile");
        Ok(chosen)
    }

    fn logprobs(&self) -> Option<&Logprobs> {
        self.0.logprobs()
    }

    fn collect_kept(&mut self, on: bool) {
        self.0.collect_kept(on);
    }

    fn kept(&self) -> &[u32] {
        self.0.kept()
    }
}

const VOCAB: usize = 300;
const ROWS: usize = 3;

fn message() -> String {
    // SAFETY: the message is a text that stays until the next error of this thread.
    unsafe { CStr::from_ptr(gumball_error_message()) }.to_str().expect("UTF-8").to_owned()
}

/// A pool with a request in each of three slots.
fn pool(route: Route, threads: usize) -> Box<Pool> {
    let place = gumball_engine::Place::threads(threads);
    let config =
        gumball_engine::PoolConfig { slots: ROWS, place, route, ..gumball_engine::PoolConfig::new(VOCAB) };
    let mut pool = Box::new(Pool::from(gumball_engine::Pool::new(config).expect("a pool")));
    let json = c"{\"seed\": 5, \"top_p\": 0.9, \"repetition_penalty\": 1.2}";
    // SAFETY: it is a text.
    let params = unsafe { gumball_params_from_json(json.as_ptr()) }.expect("parameters");
    for wanted in 0..ROWS as i32 {
        let mut slot = MaybeUninit::new(-1);
        // SAFETY: there is no prompt.
        let code = unsafe { gumball_pool_admit(Some(&mut pool), Some(&params), null(), 0, Some(&mut slot)) };
        // SAFETY: it was set above.
        assert_eq!((code, unsafe { slot.assume_init() }), (Code::GUMBALL_OK, wanted));
    }
    pool
}

fn step(pool: &mut Pool, row: &[f32], outputs: &mut Outputs) -> (Code, Vec<i32>) {
    let matrix = Matrix {
        data: row.as_ptr().cast::<c_void>(),
        rows: ROWS,
        width: VOCAB,
        stride: 0,
        dtype: Dtype::GUMBALL_F32 as i32,
        memory: Memory::GUMBALL_HOST as i32,
    };
    let rows = Rows { matrix, head: null(), what: What::GUMBALL_LOGITS as i32 };
    let slots: Vec<i32> = (0..ROWS as i32).collect();
    // SAFETY: all zeros are a batch.
    let mut batch: Batch = unsafe { MaybeUninit::zeroed().assume_init() };
    (batch.struct_size, batch.slots, batch.len) = (size_of::<Batch>(), slots.as_ptr(), ROWS);
    // SAFETY: the rows are there, and there are as many slots.
    let code =
        unsafe { gumball_pool_step(Some(pool), &raw const rows, &raw const batch, Some(&mut *outputs)) };
    if code != Code::GUMBALL_OK {
        return (code, Vec::new());
    }
    let mut view = MaybeUninit::<OutputsView>::zeroed();
    // SAFETY: a view begins with its size.
    unsafe { view.as_mut_ptr().cast::<usize>().write(size_of::<OutputsView>()) };
    // SAFETY: the struct is of its size.
    assert_eq!(unsafe { gumball_outputs_read(Some(outputs), view.as_mut_ptr()) }, Code::GUMBALL_OK);
    // SAFETY: any bytes are a view, and it was written.
    let view = unsafe { view.assume_init() };
    // SAFETY: the step was of as many rows.
    (code, unsafe { std::slice::from_raw_parts(view.tokens, view.rows) }.to_vec())
}

#[test]
fn a_panic_in_a_step_is_told_in_words_and_moves_no_sequence() {
    let breaking = Route::Of("breaking", |level| Ok(Box::new(BreakingStages(Route::Race.open(level)?))));
    let rows: Vec<f32> = (0..ROWS * VOCAB).map(|id| (id * 7919 % 1000) as f32 / 100.0).collect();
    for threads in [1, 3] {
        let (mut broken, mut sound) = (pool(breaking.clone(), threads), pool(Route::Race, threads));
        let mut outputs = gumball_outputs_new().expect("outputs");
        let mut wanted = gumball_outputs_new().expect("outputs");
        for _ in 0..3 {
            BREAKS.store(true, Ordering::SeqCst);
            assert_eq!(step(&mut broken, &rows, &mut outputs).0, Code::GUMBALL_PANIC);
            BREAKS.store(false, Ordering::SeqCst);
            let told = "a mistake of the library's own: the cut is below the tile; no sequence has moved, please report it";
            let code = gumball_error(None);
            assert_eq!((code, message().as_str()), (Code::GUMBALL_PANIC, told));
            // The last error is the thread's own.
            std::thread::spawn(|| assert_eq!(gumball_error(None), Code::GUMBALL_OK))
                .join()
                .expect("no panic");
            // Tokens depend on positions and histories.
            assert_eq!(step(&mut broken, &rows, &mut outputs), step(&mut sound, &rows, &mut wanted));
        }
        gumball_outputs_free(Some(outputs));
        gumball_outputs_free(Some(wanted));
        gumball_pool_free(Some(broken));
        gumball_pool_free(Some(sound));
    }
}
