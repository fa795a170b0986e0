//! Verifications: the drafts of requests that lie on several ranks.

use gumball_engine::dist::LogitsLayout::Survey;
use gumball_engine::{Batch, Drafts, Outputs, VerifyMode};

use crate::batch::{Numbers, Requests, on_ranks};
use crate::cases::Dice;

#[test]
fn drafts_that_are_judged_are_not_surveyed() {
    let batch = Requests::new(&mut Dice(3, 0), 1, 0);
    on_ranks(1, |rank| {
        let (mut pool, _) = batch.dist_pool(rank);
        let mode = VerifyMode::Block;
        let shape = pool.shape(&[], 0, mode.step_kind()).unwrap();
        assert_ne!(pool.plan(&shape).unwrap().layout, Survey);
        let plan = pool.ranks().unwrap().planner.plan_as(Survey, &shape);
        let numbers = Numbers::new(0, &[]);
        let logits = numbers.logits(0, batch.vocab, batch.kind);
        let (options, mut out) = (Batch::default(), Outputs::new());
        let error = pool
            .verify(
                logits,
                &Batch { slots: &[], mode, plan: Some(plan), ..options },
                &Drafts::default(),
                &mut out,
            )
            .unwrap_err();
        let said = "layout cannot be combined with drafts: drafts are judged by probabilities of whole rows, which are not \
                    surveyed where they are; plan for judge, or take gather or swap";
        assert_eq!(error.to_string(), said);
    });
}
