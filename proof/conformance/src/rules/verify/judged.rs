//! Drafts of a pool's requests judged by the probabilities of their rows (S5 to S7), and which request a row
//! after drafts is there (E6).

use gumball_spec::num::exp2;
use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::{DynamicTemperature, Error, Mark, Mirostat, NONE, SamplingParams, Status};

use crate::case::{Case, Dtype, Logits};
use crate::drafted::Drafted;
use crate::generate;
use crate::rows::{self, Words};
use crate::rules::Check;

rules!(judged_rules:
    S5 drafts_of_probability_1_are_accepted_and_others_of_0_refused,
    S5 rows_are_judged_after_their_edits_and_filters,
    S5 a_stop_id_ends_a_judged_walk,
    S5 a_forced_token_takes_the_place_of_a_judgement,
    S5 each_judged_row_has_its_own_mask,
    S5 without_drafts_nothing_is_judged,
    S5 what_cannot_be_judged_is_refused,
    S6 a_block_is_judged_by_the_rows_behind_a_stop_id_too,
    E6 drafts_on_the_path_to_a_judged_row_count_as_output,
    S5 rows_whose_first_tokens_are_nearly_equal_are_judged_as_defined,
    S5 any_request_is_judged_as_defined,
    S6 any_request_with_a_block_is_judged_as_defined,
    S7 any_request_is_judged_by_thresholds_as_defined,
);

const ALL: [Judgement; 3] =
    [Judgement::Rejection, Judgement::Block, Judgement::Threshold { single: 0.5, acc: 0.5 }];

/// A row of six ids of which one has all the probability.
fn sure(id: usize) -> Logits {
    let mut row = [0.0; 6];
    row[id] = 200.0;
    Logits::new(Dtype::F32, &row)
}

/// A request at a row, with a chain of drafts and the rows after them.
fn chain(params: SamplingParams, first: usize, nodes: &[(i32, usize)]) -> Drafted {
    let root = Case::new(sure(first), params).at(7, 3);
    Drafted::chain(root, nodes.iter().map(|(draft, next)| (*draft, sure(*next))))
}

fn drafts_of_probability_1_are_accepted_and_others_of_0_refused(check: &Check<'_>) {
    // A temperature of the row's own may be 0 as well.
    let dynamic_temperature = Some(DynamicTemperature { min: 0.0, max: 0.0, exponent: 1.0 });
    let own = SamplingParams { dynamic_temperature, ..SamplingParams::default() };
    let both = [SamplingParams::default(), own];
    for (judgement, params) in ALL.iter().flat_map(|judgement| both.iter().map(|params| (*judgement, params)))
    {
        let of =
            |drafts: [i32; 3]| chain(params.clone(), 3, &[(drafts[0], 1), (drafts[1], 4), (drafts[2], 1)]);
        check.walks_to(&of([3, 1, 4]).judged(judgement, None), &[0, 1, 2, 3], &[3, 1, 4, 1]);
        check.walks_to(&of([3, 0, 4]).judged(judgement, None), &[0, 1], &[3, 1]);
        check.walks_to(&of([3, NONE, 4]).judged(judgement, None), &[0, 1], &[3, 1]);
        check.walks_to(&of([0, 1, 4]).judged(judgement, None), &[0], &[3]);
    }
    // A drafter that was as sure, and one that gave the draft half of what the target does.
    for q in [1.0, 0.5] {
        let mut probs = vec![0.0; 4 * 6];
        (probs[3], probs[6 + 1], probs[12 + 4]) = (q, q, q);
        for judgement in [Judgement::Rejection, Judgement::Block] {
            let drafted = chain(SamplingParams::default(), 3, &[(3, 1), (1, 4), (4, 1)]);
            let drafted = drafted.judged(judgement, Some(probs.clone()));
            check.walks_to(&drafted, &[0, 1, 2, 3], &[3, 1, 4, 1]);
        }
    }
}

fn rows_are_judged_after_their_edits_and_filters(check: &Check<'_>) {
    // Of 0 to 5, with 0 banned and 1 penalised by 3, top-k 1 leaves 2.
    let row = Logits::new(Dtype::F32, &[9.0, 4.0, 3.0, 0.0, 0.0, 0.0]);
    let params = SamplingParams {
        banned_ids: vec![0],
        logit_bias: vec![(1, -3.0)],
        top_k: 1,
        temperature: 1.5,
        ..Default::default()
    };
    let of = |draft| Drafted::chain(Case::new(row.clone(), params.clone()).at(7, 3), [(draft, sure(4))]);
    for judgement in ALL {
        check.walks_to(&of(2).judged(judgement, None), &[0, 1], &[2, 4]);
        check.walks_to(&of(0).judged(judgement, None), &[0], &[2]);
        check.walks_to(&of(1).judged(judgement, None), &[0], &[2]);
    }
}

fn a_stop_id_ends_a_judged_walk(check: &Check<'_>) {
    let params = SamplingParams { stop_ids: vec![1], ..Default::default() };
    let drafted = chain(params, 3, &[(3, 1), (1, 4), (4, 1)]);
    for judgement in ALL {
        check.walks_to(&drafted.clone().judged(judgement, None), &[0, 1], &[3, 1]);
    }
}

fn a_forced_token_takes_the_place_of_a_judgement(check: &Check<'_>) {
    // Two siblings of which the row would accept the first.
    let root = Case { forced: Some(5), ..Case::new(sure(3), SamplingParams::default()).at(7, 3) };
    let drafted = Drafted::new(root, [(3, -1, sure(1)), (5, -1, sure(2)), (2, 1, sure(0))]);
    for judgement in [Judgement::Rejection, ALL[2]] {
        let mut drafted = drafted.clone().judged(judgement, None);
        check.walks_to(&drafted, &[0, 2, 3], &[5, 2, 0]);
        // Drafts that are accepted are not forced.
        let statuses: Vec<u32> = check.walks(&drafted).iter().map(|(_, seen)| seen.status.0).collect();
        assert_eq!(statuses, [Status::FORCED.0, 0, 0]);
        // No child has the second.
        drafted.nodes[1].forced = Some(4);
        check.walks_to(&drafted, &[0, 2], &[5, 4]);
    }
}

fn each_judged_row_has_its_own_mask(check: &Check<'_>) {
    let even = Logits::new(Dtype::F32, &[0.0; 6]);
    let root =
        Case { mask: Some(vec![0b00_1000]), ..Case::new(even.clone(), SamplingParams::default()).at(7, 3) };
    let mut drafted = Drafted::chain(root, [(3, even.clone()), (1, even)]);
    drafted.nodes[0].mask = Some(vec![0b00_0010]);
    drafted.nodes[1].mask = Some(vec![0b10_0000]);
    for judgement in ALL {
        check.walks_to(&drafted.clone().judged(judgement, None), &[0, 1, 2], &[3, 1, 5]);
    }
}

fn without_drafts_nothing_is_judged(check: &Check<'_>) {
    let mirostat = Some(Mirostat { tau: 3.0, eta: 0.2, mu: None });
    let row = rows::bell(300, 1.0, 5);
    for params in [SamplingParams::default(), SamplingParams { mirostat, ..Default::default() }] {
        let case = Case::of(&row, params).at(7, 4);
        let token = check.sees(&case).token;
        for judgement in ALL {
            check.walks_to(&Drafted::chain(case.clone(), []).judged(judgement, None), &[0], &[token]);
        }
    }
}

fn what_cannot_be_judged_is_refused(check: &Check<'_>) {
    let mirostat = Some(Mirostat { tau: 3.0, eta: 0.2, mu: None });
    let drafted = chain(SamplingParams { mirostat, ..Default::default() }, 3, &[(3, 1)]);
    for judgement in ALL {
        let refused = check.attempts(&drafted.clone().judged(judgement, None)).unwrap_err();
        assert!(matches!(refused, Error::Conflict { parameter: "mirostat", .. }), "{refused}");
    }
    let root = Case::new(sure(3), SamplingParams::default()).at(7, 3);
    let siblings = Drafted::new(root, [(3, -1, sure(1)), (5, -1, sure(2))]);
    let refused = check.attempts(&siblings.judged(Judgement::Block, None)).unwrap_err().to_string();
    assert_eq!(refused, "parents is -1 for node 1, but must be 0 in a chain");
    let drafted = chain(SamplingParams::default(), 3, &[(3, 1)]);
    for (single, acc, name) in [(1.5, 1.0, "threshold_single"), (0.5, f32::NAN, "threshold_acc")] {
        let judgement = Judgement::Threshold { single, acc };
        let refused = check.attempts(&drafted.clone().judged(judgement, None)).unwrap_err().to_string();
        assert!(refused.starts_with(name), "{refused}");
    }
}

fn a_block_is_judged_by_the_rows_behind_a_stop_id_too(check: &Check<'_>) {
    // The stop id has 1/2. Behind it the row has no other token than the next draft, so the block may not end
    // there: it is accepted with the draft after it or not at all, by a coin against 1/2.
    let half = Logits::new(Dtype::F32, &[0.0, 0.0, -200.0, -200.0, -200.0, -200.0]);
    let params = SamplingParams { stop_ids: vec![0], ..Default::default() };
    let mut seen = [0; 2];
    for seed in 0..16 {
        let root = Case::new(half.clone(), params.clone()).at(seed, 3);
        let drafted = Drafted::chain(root, [(0, sure(2)), (2, sure(3))]);
        let walked = check.walks(&drafted.judged(Judgement::Block, None));
        assert_eq!(walked.len(), 1);
        seen[walked[0].1.token as usize] += 1;
    }
    assert!(seen[0] > 0 && seen[1] > 0, "{seen:?}");
}

fn drafts_on_the_path_to_a_judged_row_count_as_output(check: &Check<'_>) {
    // At temperature 0 the presence penalty makes 0 and 1 take turns once both are there.
    let row = || Logits::new(Dtype::F32, &[2.0, 1.5, 0.0, 0.0, 0.0, 0.0]);
    let params = SamplingParams { presence_penalty: 1.0, temperature: 0.0, ..Default::default() };
    let root = Case::new(row(), params);
    for judgement in ALL {
        let drafted = Drafted::chain(root.clone(), [(0, row()), (1, row())]);
        check.walks_to(&drafted.judged(judgement, None), &[0, 1, 2], &[0, 1, 0]);
        let drafted = Drafted::chain(root.clone(), [(0, row()), (0, row())]);
        check.walks_to(&drafted.judged(judgement, None), &[0, 1], &[0, 1]);
    }
}

fn rows_whose_first_tokens_are_nearly_equal_are_judged_as_defined(check: &Check<'_>) {
    // exp2 is not monotone to the last bit: of two neighbouring logits the larger has the smaller
    // probability. The draft is in another tile, since the tiles of drafts are read by themselves.
    let z = [-0.499_998_75f32, -0.499_988_76];
    assert!(z.iter().all(|z| exp2(*z) < exp2(z.next_down())));
    for seed in 0..64 {
        let z = z[seed as usize % 2];
        let row = || {
            let mut row = [-200.0; 600];
            (row[10], row[11], row[500]) = (z, z.next_down(), 0.0);
            // Sums differ, so that some keep the two apart.
            row[300] = -1.0 - seed as f32 / 8.0;
            Logits::new(Dtype::F32, &row)
        };
        // A scale of 1.
        let params = SamplingParams { temperature: std::f32::consts::LOG2_E, ..Default::default() };
        let root = Case::new(row(), params).at(seed, 3);
        let nodes = [(500, -1, row()), (400, -1, row()), (500, 0, row())];
        for judgement in [Judgement::Rejection, ALL[2]] {
            check.walks(&Drafted::new(root.clone(), nodes.clone()).judged(judgement, None));
        }
        let chain = nodes.clone().map(|(draft, _, row)| (draft, row));
        check.walks(&Drafted::chain(root, chain).judged(Judgement::Block, None));
    }
}

/// Returns the temperatures and filters of a request alone.
fn filters_of(params: &SamplingParams) -> SamplingParams {
    SamplingParams {
        temperature: params.temperature,
        dynamic_temperature: params.dynamic_temperature,
        top_k: params.top_k,
        top_p: params.top_p,
        min_p: params.min_p,
        typical_p: params.typical_p,
        epsilon_cutoff: params.epsilon_cutoff,
        eta_cutoff: params.eta_cutoff,
        top_n_sigma: params.top_n_sigma,
        top_h: params.top_h,
        xtc_probability: params.xtc_probability,
        xtc_threshold: params.xtc_threshold,
        min_keep: params.min_keep,
        order: params.order.clone(),
        ..Default::default()
    }
}

/// Holds random requests to the oracle; drafts are mostly what would be drawn.
fn random_requests(check: &Check<'_>, judgement: impl Fn(&mut Words) -> Judgement) {
    let (mut accepted, mut judged, requests) = (0, 0, check.backend.patience(120) as usize);
    for seed in 0..requests as u64 {
        let mut words = Words(seed);
        let data: Vec<u8> = (0..500).map(|_| words.word() as u8).collect();
        let mut drafted = generate::drafted(&data);
        let (vocab, judgement) = (drafted.root.vocab(), judgement(&mut words));
        // Rows are few, since an emulator reads them several times.
        drafted.nodes.truncate(if seed % 10 == 0 { 9 } else { 4 });
        // A request with a section, with loops or with a watermark is refused.
        (drafted.greedy, drafted.root.hook) = (false, None);
        let params = &mut drafted.root.params;
        (params.section, params.loops, params.watermark) = (None, None, Mark::Off);
        // On a device rows without edits are judged as they are, by their sums if they have no filters
        // either.
        let (is_edited, is_filtered) = (seed % 3 == 0, seed % 3 == 2);
        if !is_edited {
            *params = if is_filtered {
                filters_of(params)
            } else {
                SamplingParams { temperature: params.temperature, ..Default::default() }
            };
            drafted.root.mask = None;
        }
        for (node, own) in drafted.nodes.iter_mut().enumerate() {
            own.hook = None;
            own.mask = own.mask.take().filter(|_| is_edited);
            if judgement == Judgement::Block {
                (own.forced, own.parent) = (None, node as i32 - 1);
            }
        }
        if judgement == Judgement::Block && !drafted.nodes.is_empty() {
            drafted.root.forced = None;
        }
        let probs = (judgement.reads_draft_probs() && words.below(2) > 0).then(|| {
            let rows = 0..=drafted.nodes.len() as u64;
            let weights = rows.flat_map(|row| rows::bell(vocab, 0.5, seed + row));
            weights.map(|z| z.exp2() / vocab as f32).collect()
        });
        judged += drafted.nodes.len();
        accepted += check.attempts(&drafted.judged(judgement, probs)).map_or(0, |walked| walked.len() - 1);
    }
    // A few requests of a slow backend say nothing of a share.
    let is_fair = 10 * accepted > judged && accepted < judged;
    assert!(requests < 100 || is_fair, "{accepted} of {judged} drafts accepted");
}

fn any_request_is_judged_as_defined(check: &Check<'_>) {
    random_requests(check, |_| Judgement::Rejection);
}

fn any_request_with_a_block_is_judged_as_defined(check: &Check<'_>) {
    random_requests(check, |_| Judgement::Block);
}

fn any_request_is_judged_by_thresholds_as_defined(check: &Check<'_>) {
    random_requests(check, |words| {
        let [single, acc] = [0; 2].map(|_| words.below(5) as f32 / 4.0);
        Judgement::Threshold { single, acc }
    });
}
