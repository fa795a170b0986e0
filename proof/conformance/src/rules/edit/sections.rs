//! Sections: where one begins and ends (B1), what its budget forces (B2) and its least length bans (B3).

use gumball_spec::{Error, Kind, NONE, SamplingParams, Section, Status};

use crate::case::{Case, Dtype, Logits};
use crate::drafted::Drafted;
use crate::rules::Check;

rules!(section_rules:
    B1 a_section_begins_behind_its_open_and_is_over_behind_its_close,
    B1 a_section_of_the_prompt_goes_on_in_the_output,
    B1 a_section_without_an_open_begins_with_the_output_and_comes_once,
    B1 the_same_ids_open_and_close_in_turn,
    B1 each_section_has_the_budget_anew,
    B1 a_close_inside_the_forced_ids_does_not_end_them,
    B2 a_spent_section_forces_its_end_one_by_one,
    B2 a_budget_of_0_forces_the_end_behind_the_open,
    B2 an_end_that_the_text_has_begun_goes_on,
    B2 a_close_that_was_begun_counts_as_tokens,
    B2 a_forced_end_is_emitted_though_forbidden_and_its_status_says_so,
    B2 the_callers_forced_token_comes_first_and_counts,
    B2 an_end_is_forced_in_an_empty_row,
    B2 a_forced_end_moves_no_mirostat,
    B2 an_end_is_the_only_draft_of_its_row,
    B3 a_close_waits_for_the_least_length,
    B3 only_the_last_id_of_a_close_waits,
    B2 drafts_go_through_sections_as_decoding_does,
    B2 sections_refuse_drafts_that_are_judged_by_probabilities,
);

/// The token that a row of [`ten`] draws.
const DRAWN: i32 = 9;

fn section(open: &[u32], close: &[u32], end: &[u32], budget: u32) -> Section {
    Section { open: open.to_vec(), close: close.to_vec(), end: end.to_vec(), budget, min: 0 }
}

/// Returns a case of ten tokens, the last of which is drawn unless another one is forced.
fn ten(section: Section) -> Case {
    let mut row = [0.0; 10];
    row[DRAWN as usize] = 50.0;
    Case::of(&row, SamplingParams { section: Some(section), ..SamplingParams::default() })
}

/// Holds what comes after texts: the id that is forced, or none.
fn forces(check: &Check<'_>, section: &Section, texts: &[(&[u32], &[u32], Option<u32>)]) {
    for (prompt, output, forced) in texts {
        let case = ten(section.clone()).after(prompt, output);
        let seen = check.sees(&case);
        let expected = forced.map_or((DRAWN, 0), |id| (id as i32, Status::SECTION.0));
        assert_eq!((seen.token, seen.status.0), expected, "{section:?} after {prompt:?} and {output:?}");
    }
}

fn a_section_begins_behind_its_open_and_is_over_behind_its_close(check: &Check<'_>) {
    let of = section(&[1, 2], &[3], &[], 2);
    forces(
        check,
        &of,
        &[
            (&[], &[], None),
            (&[], &[1, 2], None),
            (&[], &[1, 2, 8], None),
            (&[], &[1, 2, 8, 8], Some(3)),
            (&[], &[1, 2, 8, 8, 3], None),
            (&[], &[1, 2, 8, 8, 3, 8, 8, 8], None),
            (&[], &[1, 2, 3, 8, 8], None),
            (&[], &[2, 1, 8, 8, 8], None),
            (&[], &[1, 1, 2, 8, 8], Some(3)),
            (&[], &[1, 8, 2, 8, 8], None),
        ],
    );
}

fn a_section_of_the_prompt_goes_on_in_the_output(check: &Check<'_>) {
    let of = section(&[1, 2], &[3, 4], &[], 3);
    forces(
        check,
        &of,
        &[
            (&[7, 1, 2], &[], None),
            (&[7, 1, 2, 8, 8, 8], &[], Some(3)),
            (&[7, 1, 2, 8], &[8], None),
            (&[7, 1, 2, 8], &[8, 8], Some(3)),
            (&[7, 1, 2, 8], &[8, 8, 3], Some(4)),
            (&[7, 1], &[2, 8, 8, 8], Some(3)),
            (&[1, 2, 8, 3], &[4, 8, 8, 8, 8], None),
            (&[1, 2, 3, 4, 1, 2, 8, 8], &[8], Some(3)),
            // Ids outside the vocabulary count as any others (E5).
            (&[1, 2, 5000, u32::MAX], &[8], Some(3)),
        ],
    );
    forces(check, &section(&[5000], &[3], &[], 1), &[(&[5000, 8], &[], Some(3))]);
}

fn a_section_without_an_open_begins_with_the_output_and_comes_once(check: &Check<'_>) {
    let of = section(&[], &[3], &[], 2);
    forces(
        check,
        &of,
        &[
            (&[8, 8, 8, 8], &[], None),
            (&[8, 8, 8, 8], &[8], None),
            (&[8, 8, 8, 3], &[8, 8], Some(3)),
            (&[], &[8, 8, 3, 8, 8, 8], None),
            (&[], &[3, 8, 8, 8], None),
        ],
    );
    forces(check, &section(&[], &[3], &[], 0), &[(&[8], &[], Some(3)), (&[8], &[3, 8], None)]);
}

fn the_same_ids_open_and_close_in_turn(check: &Check<'_>) {
    let of = section(&[1], &[1], &[2], 2);
    forces(
        check,
        &of,
        &[
            (&[1], &[8, 8], Some(2)),
            (&[1], &[8, 1, 8, 8], None),
            (&[1], &[8, 1, 8, 1, 8, 8], Some(2)),
            (&[1, 1, 1], &[8, 8], Some(2)),
            (&[1], &[8, 8, 2, 8, 8, 8], None),
        ],
    );
}

fn each_section_has_the_budget_anew(check: &Check<'_>) {
    let of = section(&[1], &[3], &[], 2);
    forces(
        check,
        &of,
        &[(&[1, 8, 8, 3, 1], &[8], None), (&[1, 8, 8, 3, 1], &[8, 8], Some(3)), (&[1, 8, 1], &[], Some(3))],
    );
}

fn a_close_inside_the_forced_ids_does_not_end_them(check: &Check<'_>) {
    let of = section(&[1], &[3], &[6, 3, 7], 2);
    forces(
        check,
        &of,
        &[
            (&[1], &[8, 8, 6], Some(3)),
            (&[1], &[8, 8, 6, 3], Some(7)),
            (&[1], &[8, 8, 6, 3, 7], None),
            // Before the budget is used up the close is one, and a caller's is, too, unless E goes on with
            // it.
            (&[1], &[6, 3], None),
            (&[1], &[8, 8, 3], None),
            (&[1], &[8, 8, 6, 6], Some(3)),
            (&[1], &[8, 8, 6, 8], Some(6)),
        ],
    );
    // An E that the text has written itself when the budget is used up is not forced again.
    forces(check, &of, &[(&[1], &[8, 6], Some(3))]);
    forces(check, &section(&[1], &[3], &[6, 7], 2), &[(&[1], &[6, 7], None), (&[1], &[6, 7, 8], None)]);
    forces(check, &section(&[1], &[3], &[6, 7], 3), &[(&[1], &[6, 7], None), (&[1], &[6, 7, 8], Some(6))]);
}

fn a_spent_section_forces_its_end_one_by_one(check: &Check<'_>) {
    let end = [5, 6, 5, 6, 7, 3];
    for budget in [1, 2, 5] {
        let of = section(&[1], &[3], &end, budget);
        let mut output = vec![8; budget as usize];
        for id in end {
            forces(check, &of, &[(&[1], &output, Some(id))]);
            output.push(id);
        }
        forces(check, &of, &[(&[1], &output, None)]);
    }
    let never = section(&[1], &[3], &[], u32::MAX);
    forces(check, &never, &[(&[1], &[8; 40], None)]);
}

fn a_budget_of_0_forces_the_end_behind_the_open(check: &Check<'_>) {
    let of = section(&[1], &[3], &[5, 3], 0);
    forces(
        check,
        &of,
        &[
            (&[], &[], None),
            (&[1], &[], Some(5)),
            (&[], &[8, 1], Some(5)),
            (&[], &[8, 1, 5], Some(3)),
            (&[], &[8, 1, 5, 3], None),
            (&[], &[8, 1, 5, 3, 1], Some(5)),
        ],
    );
}

fn an_end_that_the_text_has_begun_goes_on(check: &Check<'_>) {
    let of = section(&[1], &[3], &[5, 6, 5, 7, 3], 4);
    forces(
        check,
        &of,
        &[
            (&[1], &[8, 8, 8, 5], Some(6)),
            (&[1], &[8, 8, 5, 6], Some(5)),
            (&[1], &[8, 5, 6, 5], Some(7)),
            (&[1], &[5, 6, 5, 6], Some(5)),
            (&[1], &[8, 8, 6, 5], Some(6)),
            (&[1], &[8, 5, 6, 6], Some(5)),
        ],
    );
    // What stands before the section is no beginning.
    forces(check, &section(&[5], &[3], &[5, 3], 1), &[(&[5], &[8], Some(5))]);
    forces(check, &section(&[5], &[3], &[5, 3], 0), &[(&[5], &[], Some(5))]);
}

fn a_close_that_was_begun_counts_as_tokens(check: &Check<'_>) {
    let of = section(&[1], &[3, 4], &[], 3);
    forces(check, &of, &[(&[1], &[8, 8, 3], Some(4)), (&[1], &[8, 3, 4], None), (&[1], &[8, 3, 8], Some(3))]);
    // E begins in its own turn if it is no close.
    let of = section(&[1], &[3, 4], &[6, 4], 3);
    forces(check, &of, &[(&[1], &[8, 8, 3], Some(6)), (&[1], &[8, 8, 3, 6], Some(4))]);
}

fn a_forced_end_is_emitted_though_forbidden_and_its_status_says_so(check: &Check<'_>) {
    let spent = ten(section(&[1], &[3], &[], 1)).after(&[1], &[8]);
    let both = Status::SECTION.0 | Status::FORBIDDEN.0;
    let holds = |case: &Case, status: u32| {
        let seen = check.sees(case);
        assert_eq!((seen.token, seen.status.0), (3, status), "{case:?}");
    };
    let with = |change: fn(&mut SamplingParams)| {
        let mut case = spent.clone();
        change(&mut case.params);
        case
    };
    holds(&spent, Status::SECTION.0);
    holds(&with(|params| params.banned_ids = vec![4]), Status::SECTION.0);
    holds(&with(|params| params.banned_ids = vec![3]), both);
    holds(&with(|params| params.allowed_ids = Some(vec![9])), both);
    holds(&with(|params| params.allowed_ids = Some(vec![3, 9])), Status::SECTION.0);
    holds(&with(|params| params.logit_bias = vec![(3, f32::NEG_INFINITY)]), both);
    holds(&with(|params| params.logit_bias = vec![(3, -9.0)]), Status::SECTION.0);
    holds(&with(|params| params.bad_words = vec![vec![8, 3]]), both);
    holds(&with(|params| (params.min_tokens, params.stop_ids) = (2, vec![3])), both);
    holds(&with(|params| (params.min_tokens, params.stop_ids) = (1, vec![3])), Status::SECTION.0);
    holds(&with(|params| params.no_repeat_ngram = 1).after(&[3, 1], &[8]), both);
    holds(&with(|params| params.temperature = 0.0), Status::SECTION.0);
    holds(&Case { mask: Some(vec![1 << 9]), ..spent.clone() }, both);
    holds(&Case { mask: Some(vec![1 << 9 | 1 << 3]), ..spent.clone() }, Status::SECTION.0);
    holds(&Case { mask: Some(vec![]), ..spent.clone() }, both);
    // A logit of -inf is no ban.
    let mut row = [0.0; 10];
    row[3] = f32::NEG_INFINITY;
    holds(&Case { logits: Logits::new(Dtype::F32, &row), ..spent.clone() }, Status::SECTION.0);
    let weights = Case { kind: Kind::Probabilities, ..spent.clone() };
    holds(&Case { logits: Logits::new(Dtype::F32, &[0.1; 10]), ..weights }, Status::SECTION.0);
}

fn the_callers_forced_token_comes_first_and_counts(check: &Check<'_>) {
    let of = section(&[1], &[3], &[5, 3], 1);
    let spent = ten(of.clone()).after(&[1], &[8]);
    let seen = check.sees(&Case { forced: Some(7), ..spent.clone() });
    assert_eq!((seen.token, seen.status), (7, Status::FORCED));
    let seen = check.sees(&Case { forced: Some(5), ..spent });
    assert_eq!((seen.token, seen.status), (5, Status::FORCED));
    forces(check, &of, &[(&[1], &[8, 7], Some(5)), (&[1], &[8, 5], Some(3)), (&[1], &[8, 3], None)]);
}

fn an_end_is_forced_in_an_empty_row(check: &Check<'_>) {
    let mut case = ten(section(&[], &[3], &[], 0));
    case.logits = Logits::new(Dtype::F32, &[f32::NEG_INFINITY; 10]);
    let seen = check.sees(&case);
    assert_eq!((seen.token, seen.status.0), (3, Status::SECTION.0));
    let seen = check.sees(&case.after(&[], &[3]));
    assert_eq!((seen.token, seen.status.0), (NONE, Status::EMPTY.0));
}

fn a_forced_end_moves_no_mirostat(check: &Check<'_>) {
    let mirostat = Some(gumball_spec::Mirostat { tau: 3.0, eta: 0.2, mu: None });
    let mut case =
        Case::of(&crate::rows::bell(300, 2.0, 3), SamplingParams { mirostat, ..Default::default() });
    case.params.section = Some(section(&[1], &[3], &[], 1));
    let spent = check.sees(&case.clone().after(&[1], &[8]));
    assert_eq!((spent.token, spent.mu), (3, case.mu));
    assert_ne!(check.sees(&case.clone().after(&[1], &[])).mu, case.mu);
}

fn an_end_is_the_only_draft_of_its_row(check: &Check<'_>) {
    use gumball_spec::verify::draft::DraftWords::Position;
    let of = ten(section(&[1], &[3], &[], 1));
    for temperature in [1.0, 0.0] {
        let mut case = of.clone().after(&[1], &[8]);
        case.params.temperature = temperature;
        assert_eq!(check.drafts(&case, Position, 2), Ok(vec![3, NONE]));
        assert_eq!(check.drafts(&Case { forced: Some(4), ..case }, Position, 2), Ok(vec![4, NONE]));
    }
    assert_eq!(check.drafts(&of.after(&[1], &[]), Position, 1), Ok(vec![DRAWN]));
}

/// Holds the ids that a row of equal tokens keeps.
fn keeps(check: &Check<'_>, section: &Section, output: &[u32], ids: &[u32]) {
    let params = SamplingParams { section: Some(section.clone()), ..SamplingParams::default() };
    check.keeps(&Case::of(&[1.0; 5], params).after(&[1], output), ids);
}

fn a_close_waits_for_the_least_length(check: &Check<'_>) {
    let of = Section { min: 2, ..section(&[1], &[3], &[], 2) };
    keeps(check, &of, &[], &[0, 1, 2, 4]);
    keeps(check, &of, &[0], &[0, 1, 2, 4]);
    let of = Section { budget: 3, ..of };
    keeps(check, &of, &[0, 0], &[0, 1, 2, 3, 4]);
    // A close that came nevertheless is one.
    keeps(check, &of, &[3, 0], &[0, 1, 2, 3, 4]);
    keeps(check, &of, &[3, 1, 0], &[0, 1, 2, 4]);
    // With an end that bans the row's other tokens nothing is left.
    let mut case = Case::of(&[1.0; 5], SamplingParams { section: Some(of), ..SamplingParams::default() });
    case.params.allowed_ids = Some(vec![3]);
    let seen = check.sees(&case.clone().after(&[1], &[0]));
    assert_eq!((seen.token, seen.status), (NONE, Status::EMPTY));
    check.draws(&case.after(&[1], &[0, 0]), 3);
    keeps(
        check,
        &Section { close: vec![700], end: vec![3], min: 5, ..section(&[1], &[3], &[], 9) },
        &[],
        &[0, 1, 2, 3, 4],
    );
}

fn only_the_last_id_of_a_close_waits(check: &Check<'_>) {
    let of = Section { min: 3, ..section(&[1], &[3, 3, 2], &[], 9) };
    keeps(check, &of, &[], &[0, 1, 2, 3, 4]);
    keeps(check, &of, &[3], &[0, 1, 2, 3, 4]);
    keeps(check, &of, &[3, 3], &[0, 1, 3, 4]);
    keeps(check, &of, &[3, 3, 3], &[0, 1, 2, 3, 4]);
    // The ids before it stand in the section.
    let of = Section { min: 3, ..section(&[3], &[3, 2], &[], 9) };
    keeps(check, &of, &[3], &[0, 1, 2, 3, 4]);
    keeps(check, &of, &[3, 3], &[0, 1, 3, 4]);
}

/// A chain of drafts with a row of ten tokens behind each.
fn chain(root: Case, drafts: &[i32]) -> Drafted {
    let row = root.logits.clone();
    Drafted::chain(root, drafts.iter().map(|draft| (*draft, row.clone())).collect::<Vec<_>>())
}

fn drafts_go_through_sections_as_decoding_does(check: &Check<'_>) {
    let root = ten(section(&[1], &[3], &[5, 3], 2)).after(&[1], &[8]).at(7, 3);
    // One token is left, then the end comes, and then tokens are drawn again.
    check.walks_to(&chain(root.clone(), &[9, 5, 3, 9]), &[0, 1, 2, 3, 4], &[9, 5, 3, 9, 9]);
    check.walks_to(&chain(root.clone(), &[9, 9, 9]), &[0, 1], &[9, 5]);
    check.walks_to(&chain(root.clone(), &[9, 5, 9]), &[0, 1, 2], &[9, 5, 3]);
    let statuses: Vec<u32> =
        check.walks(&chain(root.clone(), &[9, 5, 3])).iter().map(|(_, seen)| seen.status.0).collect();
    assert_eq!(statuses, [0, Status::SECTION.0, Status::SECTION.0, 0]);
    // Siblings have places of their own: behind 1 a section begins, behind 9 none does.
    let mut tree = chain(ten(section(&[1], &[3], &[], 0)).at(7, 3), &[1, 9, 3, 9]);
    for (node, parent) in tree.nodes.iter_mut().zip([-1, -1, 0, 1]) {
        node.parent = parent;
    }
    check.walks_to(&tree, &[0, 2, 4], &[9, 9, 9]);
    tree.root.forced = Some(1);
    check.walks_to(&tree, &[0, 1, 3], &[1, 3, 9]);
    // A stop id that is forced ends the walk.
    let mut stopped = chain(root, &[9, 5, 3, 9]);
    stopped.root.params.stop_ids = vec![3];
    check.walks_to(&stopped, &[0, 1, 2], &[9, 5, 3]);
}

fn sections_refuse_drafts_that_are_judged_by_probabilities(check: &Check<'_>) {
    use gumball_spec::verify::by_probabilities::Judgement;
    for judgement in [Judgement::Rejection, Judgement::Block, Judgement::Threshold { single: 1.0, acc: 1.0 }]
    {
        let mut drafted = chain(ten(section(&[1], &[3], &[], 2)).at(7, 3), &[9]);
        drafted.judgement = Some(judgement);
        let error = check.attempts(&drafted).expect_err("a section");
        assert!(matches!(error, Error::Conflict { parameter: "section", .. }), "{error}");
        drafted.nodes.clear();
        assert_eq!(check.walks(&drafted)[0].1.token, DRAWN);
    }
}
