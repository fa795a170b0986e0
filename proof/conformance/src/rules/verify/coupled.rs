//! Drafts accepted while they equal the drawn tokens, in chains and trees (S3), and which request a row after
//! drafts is (E6, F6, N9).

use gumball_spec::{Error, LogprobsParams, Mirostat, NONE, SamplingParams, Status};

use crate::backend::{Backend, Oracle};
use crate::bytes::Bytes;
use crate::case::{Case, Dtype, Logits};
use crate::drafted::{Drafted, Node};
use crate::generate;
use crate::rows::{self, Words};
use crate::rules::Check;

rules!(coupled_rules:
    S3 drafts_are_accepted_while_they_equal_what_is_drawn,
    S3 a_request_without_drafts_is_a_step,
    S3 the_drawn_token_selects_the_child_with_its_id,
    S3 of_several_children_with_the_id_the_first_is_followed,
    S3 siblings_share_position_and_arrivals,
    N9 positions_behind_drafts_wrap,
    S3 a_stop_id_ends_the_path_and_nothing_is_emitted_after_it,
    S3 drafts_that_are_no_tokens_equal_nothing,
    S3 a_banned_draft_equals_nothing_unless_it_is_forced,
    S3 an_empty_row_emits_none_and_stops,
    S3 each_row_has_its_own_mask_and_forced_token,
    S3 greedy_is_coupled_at_temperature_0,
    S3 rows_off_the_path_change_nothing,
    S3 what_is_no_tree_is_refused,
    E6 drafts_on_the_path_count_as_output,
    E6 drafts_on_the_path_move_the_window,
    E6 drafts_off_the_path_do_not_count,
    E6 drafts_on_the_path_count_towards_min_tokens,
    F6 mirostat_and_adaptive_p_are_refused_beside_drafts,
    S3 the_stream_is_that_of_decoding_without_drafts,
    S3 any_request_with_drafts_is_the_definitions,
);

/// A row of six ids from which one is drawn by any arrivals.
fn sure(id: usize) -> Logits {
    let mut row = [0.0; 6];
    row[id] = 200.0;
    Logits::new(Dtype::F32, &row)
}

fn root(logits: Logits) -> Case {
    Case::new(logits, SamplingParams::default()).at(7, 3)
}

fn greedy(values: &[f32], params: SamplingParams) -> Case {
    Case::of(values, SamplingParams { temperature: 0.0, ..params })
}

/// A request whose drafts are one or the other of two siblings.
fn siblings(root: Case, drafts: [i32; 2], rows: [Logits; 2]) -> Drafted {
    Drafted::new(root, drafts.into_iter().zip(rows).map(|(draft, row)| (draft, -1, row)))
}

fn drafts_are_accepted_while_they_equal_what_is_drawn(check: &Check<'_>) {
    let chain =
        |drafts: [i32; 3]| Drafted::chain(root(sure(3)), drafts.into_iter().zip([sure(1), sure(4), sure(1)]));
    check.walks_to(&chain([3, 1, 4]), &[0, 1, 2, 3], &[3, 1, 4, 1]);
    check.walks_to(&chain([3, 1, 5]), &[0, 1, 2], &[3, 1, 4]);
    // No draft after one that is not accepted stands a chance.
    check.walks_to(&chain([3, 0, 4]), &[0, 1], &[3, 1]);
    check.walks_to(&chain([0, 1, 4]), &[0], &[3]);
}

fn a_request_without_drafts_is_a_step(check: &Check<'_>) {
    let row = rows::bell(700, 2.0, 3);
    let case = Case::of(&row, SamplingParams { top_p: 0.9, ..Default::default() }).at(7, 3);
    let token = check.sees(&case).token;
    check.walks_to(&Drafted::chain(case, []), &[0], &[token]);
}

fn the_drawn_token_selects_the_child_with_its_id(check: &Check<'_>) {
    // 0: 2, 1: 3 with the children 3: 5 and 4: 4, 2: 1; and 5: 0 below 4.
    let tree = |first| {
        let nodes = [(2, -1, 0), (3, -1, 4), (1, -1, 5), (5, 1, 1), (4, 1, 0), (0, 4, 2)];
        Drafted::new(root(sure(first)), nodes.map(|(draft, parent, next)| (draft, parent, sure(next))))
    };
    check.walks_to(&tree(3), &[0, 2, 5, 6], &[3, 4, 0, 2]);
    check.walks_to(&tree(2), &[0, 1], &[2, 0]);
    check.walks_to(&tree(1), &[0, 3], &[1, 5]);
    check.walks_to(&tree(0), &[0], &[0]);
}

fn of_several_children_with_the_id_the_first_is_followed(check: &Check<'_>) {
    let nodes = [(2, -1, 0), (3, -1, 4), (3, -1, 5), (4, 2, 1)];
    let nodes = nodes.map(|(draft, parent, next)| (draft, parent, sure(next)));
    // The draft 4 is after the second of them, so it is not met.
    check.walks_to(&Drafted::new(root(sure(3)), nodes), &[0, 2], &[3, 4]);
}

fn siblings_share_position_and_arrivals(check: &Check<'_>) {
    let row = rows::bell(300, 1.0, 5);
    let logits = || Logits::new(Dtype::F32, &row);
    let plain = check.sees(&Case::of(&row, SamplingParams::default()).at(7, 4)).token;
    for forced in [11, 12] {
        let root = Case { forced: Some(forced as u32), ..root(logits()) };
        let walked = check.walks(&siblings(root, [11, 12], [logits(), logits()]));
        assert_eq!((walked[1].0 as i32, walked[1].1.token), (forced - 10, plain));
    }
}

fn positions_behind_drafts_wrap(check: &Check<'_>) {
    let row = rows::bell(300, 1.0, 5);
    let logits = || Logits::new(Dtype::F32, &row);
    let at = |position| Case::of(&row, SamplingParams::default()).at(7, position);
    let [last, first, second] = [u32::MAX, 0, 1].map(|position| check.sees(&at(position)).token);
    let chain = Drafted::chain(at(u32::MAX), [(last, logits()), (first, logits())]);
    check.walks_to(&chain, &[0, 1, 2], &[last, first, second]);
}

fn a_stop_id_ends_the_path_and_nothing_is_emitted_after_it(check: &Check<'_>) {
    let params = SamplingParams { stop_ids: vec![9, 1], ..Default::default() };
    let root = Case::new(sure(3), params).at(7, 3);
    let chain = Drafted::chain(root, [(3, sure(1)), (1, sure(4)), (4, sure(0))]);
    check.walks_to(&chain, &[0, 1], &[3, 1]);
}

fn drafts_that_are_no_tokens_equal_nothing(check: &Check<'_>) {
    for draft in [NONE, 6, i32::MAX, i32::MIN, -4] {
        let chain = Drafted::chain(root(sure(3)), [(draft, sure(1))]);
        check.walks_to(&chain, &[0], &[3]);
        // Beside a sibling that is accepted, too.
        check.walks_to(&siblings(root(sure(3)), [draft, 3], [sure(1), sure(4)]), &[0, 2], &[3, 4]);
    }
}

fn a_banned_draft_equals_nothing_unless_it_is_forced(check: &Check<'_>) {
    let params = SamplingParams { banned_ids: vec![3], ..Default::default() };
    let mut row = [0.0; 6];
    (row[3], row[5]) = (400.0, 200.0);
    let root = Case::of(&row, params);
    let drafted = siblings(root.clone(), [3, 5], [sure(1), sure(4)]);
    check.walks_to(&drafted, &[0, 2], &[5, 4]);
    let forced = siblings(Case { forced: Some(3), ..root }, [3, 5], [sure(1), sure(4)]);
    check.walks_to(&forced, &[0, 1], &[3, 1]);
}

fn an_empty_row_emits_none_and_stops(check: &Check<'_>) {
    let empty = || Logits::new(Dtype::F32, &[f32::NEG_INFINITY; 6]);
    for draft in [0, NONE] {
        let walked = check.walks(&Drafted::chain(root(sure(3)), [(3, empty()), (draft, sure(1))]));
        assert_eq!(walked.len(), 2);
        assert_eq!((walked[1].1.token, walked[1].1.status), (NONE, Status::EMPTY));
        assert_eq!((walked[0].1.token, walked[0].1.status), (3, Status::default()));
    }
    // A forced token is emitted from it, and drafts may equal that.
    let mut chain = Drafted::chain(root(sure(3)), [(3, empty()), (0, sure(1))]);
    chain.nodes[0].forced = Some(0);
    check.walks_to(&chain, &[0, 1, 2], &[3, 0, 1]);
}

fn each_row_has_its_own_mask_and_forced_token(check: &Check<'_>) {
    let falling = || Logits::new(Dtype::F32, &[500.0, 400.0, 300.0, 200.0, 100.0, 0.0]);
    let mut chain = Drafted::chain(root(falling()), [(1, falling()), (2, falling()), (5, falling())]);
    chain.root.mask = Some(vec![0b111110]);
    chain.nodes[0].mask = Some(vec![0b111100]);
    chain.nodes[1].mask = Some(vec![0b001000]);
    chain.nodes[1].forced = Some(5);
    check.walks_to(&chain, &[0, 1, 2, 3], &[1, 2, 5, 0]);
    let statuses: Vec<u32> = check.walks(&chain).iter().map(|(_, seen)| seen.status.0).collect();
    assert_eq!(statuses, [0, 0, Status::FORCED.0, 0]);
    // A mask of no words allows nothing in its row, and does not matter where nothing is drawn.
    chain.nodes[1].forced = None;
    chain.nodes[2].mask = Some(vec![]);
    check.walks_to(&chain, &[0, 1, 2], &[1, 2, 3]);
    chain.nodes[1].mask = Some(vec![]);
    check.walks_to(&chain, &[0, 1, 2], &[1, 2, NONE]);
}

fn greedy_is_coupled_at_temperature_0(check: &Check<'_>) {
    let params = SamplingParams { temperature: 3.0, top_k: 40, xtc_probability: 1.0, ..Default::default() };
    let row = |seed| Logits::new(Dtype::F32, &rows::bell(300, 1.0, seed));
    let first = |seed| {
        rows::bell(300, 1.0, seed)
            .iter()
            .enumerate()
            .fold((0, f32::MIN), |best, (id, z)| if *z > best.1 { (id as i32, *z) } else { best })
    };
    let [a, b, c] = [1, 2, 3].map(|seed| first(seed).0);
    let chain = Drafted::chain(Case::new(row(1), params.clone()), [(a, row(2)), (b, row(3))]);
    check.walks_to(&Drafted { greedy: true, ..chain.clone() }, &[0, 1, 2], &[a, b, c]);
    let mut cold = chain.clone();
    cold.root.params.temperature = 0.0;
    check.walks_to(&cold, &[0, 1, 2], &[a, b, c]);
    // XTC drops the first token of every row, unless it is greedy.
    check.walks(&chain).iter().for_each(|(row, seen)| assert_ne!(seen.token, [a, b, c][*row]));
}

fn rows_off_the_path_change_nothing(check: &Check<'_>) {
    let nodes = [(2, -1, 0), (3, -1, 4), (5, 1, 1), (0, 0, 2)];
    let tree = Drafted::new(root(sure(3)), nodes.map(|(draft, parent, next)| (draft, parent, sure(next))));
    check.walks_to(&tree, &[0, 2], &[3, 4]);
    let mut odd = tree.clone();
    for node in [0, 2, 3] {
        odd.nodes[node].logits = Logits::new(Dtype::F32, &[f32::NAN; 6]);
        odd.nodes[node].mask = Some(vec![]);
        odd.nodes[node].forced = Some(1);
    }
    check.walks_to(&odd, &[0, 2], &[3, 4]);
    check.walks(&odd).iter().for_each(|(_, seen)| assert_eq!(seen.status, Status::default()));
}

fn what_is_no_tree_is_refused(check: &Check<'_>) {
    let refused = |parents: &[i32]| {
        let nodes = parents.iter().map(|parent| (3, *parent, sure(3)));
        check.attempts(&Drafted::new(root(sure(3)), nodes)).expect_err("no tree").to_string()
    };
    // A cycle, a node that is its own parent, and one whose parent is none.
    assert_eq!(refused(&[1, 0]), "parents is 1 for node 0, but must be in -1..0, a node before it");
    assert_eq!(refused(&[-1, 0, 2]), "parents is 2 for node 2, but must be in -1..2, a node before it");
    assert_eq!(refused(&[-1, 7]), "parents is 7 for node 1, but must be in -1..1, a node before it");
    assert_eq!(refused(&[-1, -2]), "parents is -2 for node 1, but must be in -1..1, a node before it");
    assert_eq!(refused(&[-1; 65]), "drafts has length 65, but must have at most 64 drafts for a request");
    let wide = Drafted::new(root(sure(3)), (0..64).map(|_| (3, -1, sure(3))));
    check.walks_to(&wide, &[0, 1], &[3, 3]);
    let mut forced = Drafted::chain(root(sure(3)), [(5, sure(1))]);
    forced.nodes[0].forced = Some(6);
    assert_eq!(
        Oracle.walk(&forced).expect_err("no token").to_string(),
        "forced is 6, but must be an id in 0..6"
    );
}

fn drafts_on_the_path_count_as_output(check: &Check<'_>) {
    let row = [0.0, 3.0, 2.0, 1.5];
    let logits = || Logits::new(Dtype::F32, &row);
    let chain = |params| {
        let root = greedy(&row, params).after(&[1], &[]);
        Drafted::chain(root, [(1, logits()), (2, logits()), (1, logits())])
    };
    // Output alone counts: 1 falls from 3 to 1.75 after its draft, then 2 from 2 to 0.75, then 1 is the
    // first again.
    let presence = SamplingParams { presence_penalty: 1.25, ..Default::default() };
    check.walks_to(&chain(presence), &[0, 1, 2, 3], &[1, 2, 1, 1]);
    let frequency = SamplingParams { frequency_penalty: 0.75, ..Default::default() };
    check.walks_to(&chain(frequency), &[0, 1], &[1, 1]);
    // The prompt has 1: 1.2, 2, 1.5; then 1.2, 0.8, 1.5.
    let repetition = SamplingParams { repetition_penalty: 2.5, ..Default::default() };
    let root = greedy(&row, repetition).after(&[1], &[]);
    check.walks_to(&Drafted::chain(root, [(2, logits()), (3, logits())]), &[0, 1, 2], &[2, 3, 1]);
    // After 1 1 another 1 would repeat a bigram, and after 1 1 2 1 another 2 as well.
    let bigrams = SamplingParams { no_repeat_ngram: 2, ..Default::default() };
    check.walks_to(&chain(bigrams), &[0, 1, 2, 3], &[1, 2, 1, 3]);
}

fn drafts_on_the_path_move_the_window(check: &Check<'_>) {
    let row = [0.0, 3.0, 2.0, 1.5];
    let walks = |params: SamplingParams, [prompt, output]: [&[u32]; 2], tokens: &[i32]| {
        let logits = || Logits::new(Dtype::F32, &row);
        let (_, drafts) = tokens.split_last().expect("a token");
        let chain = Drafted::chain(
            greedy(&row, params).after(prompt, output),
            drafts.iter().map(|draft| (*draft, logits())),
        );
        let rows: Vec<usize> = (0..tokens.len()).collect();
        check.walks_to(&chain, &rows, tokens);
    };
    let windowed =
        |penalty_window| SamplingParams { repetition_penalty: 2.5, penalty_window, ..Default::default() };
    // Of 1.2, 0.8 and 0.6 instead of 3, 2 and 1.5: the last token alone, the last two, the last three.
    for history in [[&[1][..], &[]], [&[], &[1]], [&[2, 3], &[1]], [&[3, 2, 1], &[]]] {
        walks(windowed(1), history, &[2, 1, 2, 1, 2]);
    }
    walks(windowed(2), [&[3], &[1]], &[2, 3, 1, 2, 3]);
    walks(windowed(3), [&[3], &[1]], &[2, 1, 3, 1, 2]);
    // Output alone counts, of the last two tokens.
    let presence = SamplingParams { presence_penalty: 1.75, penalty_window: 2, ..Default::default() };
    walks(presence, [&[2, 1], &[]], &[1, 2, 3, 1, 2]);
}

fn drafts_off_the_path_do_not_count(check: &Check<'_>) {
    let row = [0.0, 3.0, 2.0, 1.5];
    let logits = || Logits::new(Dtype::F32, &row);
    let root = greedy(&row, SamplingParams { presence_penalty: 1.25, ..Default::default() });
    // 2 is a sibling, and 3 a draft below that: neither is penalised after 1.
    let nodes = [(2, -1), (3, 0), (1, -1), (2, 2)];
    let tree = Drafted::new(root, nodes.map(|(draft, parent)| (draft, parent, logits())));
    check.walks_to(&tree, &[0, 3, 4], &[1, 2, 1]);
}

fn drafts_on_the_path_count_towards_min_tokens(check: &Check<'_>) {
    let params = SamplingParams { min_tokens: 3, stop_ids: vec![4], ..Default::default() };
    let row = [0.0, 1.0, 0.0, 0.0, 9.0];
    let logits = || Logits::new(Dtype::F32, &row);
    let chain = Drafted::chain(greedy(&row, params).after(&[4], &[2]), [(1, logits()), (1, logits())]);
    // One output token is there; the row after two drafts has three.
    check.walks_to(&chain, &[0, 1, 2], &[1, 1, 4]);
}

fn mirostat_and_adaptive_p_are_refused_beside_drafts(check: &Check<'_>) {
    let mirostat = Some(Mirostat { tau: 3.0, eta: 0.2, mu: None });
    let with_mirostat = SamplingParams { mirostat, ..Default::default() };
    let adaptive = SamplingParams { adaptive_target: 0.3, ..Default::default() };
    let all = [with_mirostat, adaptive].into_iter().zip(["mirostat", "adaptive_target"]);
    for ((params, name), temperature) in all.flat_map(|one| [(one.clone(), 1.0), (one, 0.0)]) {
        let params = SamplingParams { temperature, ..params };
        let root = Case::of(&rows::bell(300, 2.0, 3), params).at(7, 3);
        let alone = check.walks(&Drafted::chain(root.clone(), []));
        assert_eq!(alone[0].1.mu != root.mu, temperature > 0.0, "without drafts mu moves");
        let row = Logits::new(Dtype::F32, &rows::bell(300, 2.0, 4));
        let error = check.attempts(&Drafted::chain(root, [(5, row)])).expect_err(name);
        let is_named =
            matches!(&error, Error::Conflict { parameter, other: "drafts", .. } if *parameter == name);
        assert!(is_named, "{error}");
    }
}

/// A model: its logits are a function of the ids before.
fn model(history: &[u32], vocab: usize) -> Vec<f32> {
    let last = history.iter().rev().take(3).fold(17u64, |hash, id| hash * 31 + u64::from(*id));
    let mut row = rows::bell(vocab, 2.0, last % 5);
    row[last as usize % vocab] += 6.0;
    row
}

/// A tree of drafts by a drafter that knows the coming tokens, and drafts another in one of `odds` cases; in
/// all, if that is 0.
fn grow(words: &mut Words, coming: &[i32], vocab: usize, odds: usize) -> Vec<(i32, i32)> {
    let mut nodes: Vec<(i32, i32)> = Vec::new();
    let (mut at, mut depth) = (-1, 0);
    for node in 0..words.below(9) as i32 {
        let right = coming.get(depth).copied().filter(|_| odds > 0 && words.below(odds) > 0);
        let draft = right.unwrap_or_else(|| words.below(vocab + 1) as i32 - 1);
        nodes.push((draft, at));
        if words.below(3) > 0 {
            (at, depth) = (node, depth + 1);
        }
    }
    nodes
}

fn the_stream_is_that_of_decoding_without_drafts(check: &Check<'_>) {
    let vocab = 300;
    for seed in 0..u64::from(check.backend.patience(12)) {
        let mut words = Words(seed);
        let data: Vec<u8> = (0..200).map(|_| words.word() as u8).collect();
        let mut params = generate::params(&mut Bytes(&data), vocab);
        (params.mirostat, params.adaptive_target) = (None, -1.0);
        params.logprobs = Some(LogprobsParams::default());
        let prompt = [3, 7, 3];
        let start = Case::of(&model(&prompt, vocab), params).after(&prompt, &[]).at(seed, 3);
        let ahead = |case: &Case, token: i32| {
            let mut case = case.clone();
            case.output.push(token as u32);
            case.position += 1;
            case.logits = Logits::new(Dtype::F32, &model(&[&prompt, &case.output[..]].concat(), vocab));
            case
        };
        let (mut plain, mut tokens) = (start.clone(), Vec::new());
        // A request may ban every token; then there is no stream.
        while tokens.len() < 24 {
            let token = Oracle.sample(&plain).expect("valid").token;
            if token == NONE {
                break;
            }
            tokens.push(token);
            plain = ahead(&plain, token);
        }
        // Hostile, fair and perfect.
        for odds in [0, 3, usize::MAX] {
            let mut emitted = Vec::new();
            let mut case = start.clone();
            while emitted.len() < tokens.len() {
                let nodes = grow(&mut words, &tokens[emitted.len()..], vocab, odds);
                let mut paths: Vec<Vec<u32>> = Vec::new();
                let mut drafted = Drafted::new(case.clone(), []);
                for (draft, parent) in nodes {
                    let before = usize::try_from(parent).map_or(Vec::new(), |parent| paths[parent].clone());
                    paths.push([&before[..], &[draft as u32]].concat());
                    let history = [&prompt, &case.output[..], paths.last().expect("pushed")].concat();
                    let logits = Logits::new(Dtype::F32, &model(&history, vocab));
                    drafted.nodes.push(Node { draft, parent, logits, mask: None, forced: None, hook: None });
                }
                for (_, seen) in check.walks(&drafted) {
                    emitted.push(seen.token);
                    case = ahead(&case, seen.token);
                }
                // A stop id ends a path, and here decoding goes on.
            }
            assert_eq!(emitted[..tokens.len()], tokens, "seed {seed}, odds {odds}");
        }
    }
}

fn any_request_with_drafts_is_the_definitions(check: &Check<'_>) {
    let (mut accepted, requests) = (0, check.backend.patience(200) as usize);
    for seed in 0..requests as u64 {
        let mut words = Words(seed);
        let data: Vec<u8> = (0..500).map(|_| words.word() as u8).collect();
        accepted += check.attempts(&generate::drafted(&data)).map_or(0, |walked| walked.len() - 1);
    }
    // A few requests of a slow backend say nothing of a share.
    assert!(requests < 100 || 3 * accepted > requests, "{accepted} drafts of {requests} requests accepted");
}
