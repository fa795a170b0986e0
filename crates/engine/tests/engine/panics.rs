//! A panic on the way to a token, in a hook or in a route, moves no sequence, and what it went through works
//! on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use gumball_engine::unstable::Stages;
use gumball_engine::{
    Batch, Logprobs, Outputs, Place, Pool, PoolConfig, Result, Route, Row, Rows, Sampler, Slot, StepOptions,
};

use crate::cases::{KINDS, VOCAB, params, row, rows};

/// Whether the route panics.
static BREAKS: AtomicBool = AtomicBool::new(false);

/// The stages of the default route, until they are told to break after their row.
#[derive(Debug)]
struct BreakingStages(Box<dyn Stages>);

const BREAKING: Route = Route::Of("breaking", |level| Ok(Box::new(BreakingStages(Route::Race.open(level)?))));

impl Stages for BreakingStages {
    fn sample(
        &mut self,
        row: Row<'_>,
        task: &gumball_engine::unstable::Task<'_>,
        hook: Option<gumball_engine::Hook<'_>>,
    ) -> Result<gumball_engine::unstable::Chosen> {
        let chosen = self.0.sample(row, task, hook)?;
        assert!(!BREAKS.load(Ordering::SeqCst), "told to break");
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

fn breaks<R>(work: impl FnOnce() -> R) -> bool {
    catch_unwind(AssertUnwindSafe(work)).is_err()
}

#[test]
fn a_pool_goes_on_after_a_panic_in_its_route_as_if_nothing_had_been() {
    for threads in [1, 3] {
        let widths = gumball_engine::Widths { top_n: 3, ids: 2 };
        let made = |route: Route| {
            let config = PoolConfig {
                place: Place::threads(threads),
                widths,
                kept: true,
                route,
                ..PoolConfig::new(VOCAB)
            };
            let mut pool = Pool::new(config).unwrap();
            let slots: Vec<Slot> =
                (0..KINDS).map(|kind| pool.admit(params(kind, 5), &[1, 2]).unwrap()).collect();
            (pool, slots)
        };
        let ((mut pool, slots), (mut sound, _)) = (made(BREAKING), made(Route::Race));
        let (mut out, mut wanted) = (Outputs::new(), Outputs::new());
        for round in 0..4 {
            let data = rows(round..round + slots.len() as u64);
            let logits = Rows::logits(&data, slots.len(), VOCAB).unwrap();
            let options = Batch::default();
            let before: Vec<u32> =
                slots.iter().map(|slot| pool.sequence(*slot).unwrap().position()).collect();
            BREAKS.store(true, Ordering::SeqCst);
            assert!(breaks(|| pool.step(logits, &Batch { slots: &slots, ..options }, &mut out)));
            BREAKS.store(false, Ordering::SeqCst);
            let after: Vec<u32> = slots.iter().map(|slot| pool.sequence(*slot).unwrap().position()).collect();
            assert_eq!(after, before);
            pool.step(logits, &Batch { slots: &slots, ..options }, &mut out).unwrap();
            sound.step(logits, &Batch { slots: &slots, ..options }, &mut wanted).unwrap();
            assert_eq!(out.words(), wanted.words());
            assert!((0..slots.len()).all(|row| out.kept(row) == wanted.kept(row)));
        }
    }
}

#[test]
fn a_sampler_draws_after_a_panic_in_a_hook_what_it_would_have_drawn() {
    for kind in 0..KINDS {
        let made = || {
            let mut sampler = Sampler::new(params(kind, 5), VOCAB).unwrap().with_prompt(&[1, 2, 3, 1]);
            sampler.collect_kept(true);
            sampler
        };
        let (mut broken, mut sound) = (made(), made());
        for round in 0..3 {
            let data = row(round);
            let mut hook = |_: &mut [f32]| panic!("on purpose");
            let options = StepOptions { hook: Some(&mut hook), ..Default::default() };
            assert!(breaks(|| broken.sample_with(&data, options)));
            assert_eq!(broken.sequence().state(), sound.sequence().state());
            assert_eq!((broken.logprobs(), broken.kept()), (None, &[][..]));
            assert_eq!(broken.sample(&data).unwrap(), sound.sample(&data).unwrap());
            assert_eq!((broken.logprobs(), broken.kept()), (sound.logprobs(), sound.kept()));
        }
    }
}
