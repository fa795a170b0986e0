//! Drafts and scores from hidden states, with either head.

use gumball_engine::head::{Certified, Exact, HeadOptions, HostMatrix};
use gumball_engine::{
    Batch, Drafts, Error, Filter, Head, LogprobMode, LogprobsParams, Outputs, Proposals, Row, Rows,
    SamplingParams, Scored, VerifyMode, bf16,
};
use gumball_spec::head::{Scaling, logits};

use crate::cases::{VOCAB, pool};
use crate::hidden::{WIDTH, numbers};

/// Returns the logits of hidden states by the definition.
fn by_definition(weights: &[bf16], states: &[bf16]) -> Vec<f32> {
    let row = |state: &[bf16]| logits(Row::Bf16(weights), Row::Bf16(state), None, &Scaling::default());
    states.chunks(WIDTH).flat_map(row).collect()
}

struct Both<'w> {
    exact: Exact<'w>,
    certified: Certified<'w>,
}

impl<'w> Both<'w> {
    fn new(weights: &'w [bf16]) -> Self {
        let exact = Exact::new(weights, VOCAB, WIDTH, HeadOptions::default()).unwrap();
        Self { certified: Certified::new(exact.clone()).with_most_rows(usize::MAX), exact }
    }

    fn heads(&self) -> [Head<'_>; 2] {
        [(&self.exact).into(), (&self.certified).into()]
    }
}

#[test]
fn a_row_behind_drafts_is_drawn_with_them_as_output() {
    // All rows have one hidden state, so one order of likeliness, and no token may occur twice. So greedy
    // decoding emits the tokens in this order, and each row must skip the tokens that the drafts before it
    // have used.
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let both = Both::new(&weights);
    let one = numbers(WIDTH, 77, 6.0);
    let z = by_definition(&weights, &one);
    let mut order: Vec<i32> = (0..VOCAB as i32).collect();
    order.sort_by(|a, b| z[*b as usize].total_cmp(&z[*a as usize]));
    let data = one.repeat(5);
    let states = |rows| HostMatrix::new(&data[..rows * WIDTH], rows, WIDTH).unwrap();
    for head in both.heads() {
        let mut pool = pool(1);
        let params = SamplingParams { temperature: 0.0, no_repeat_ngram: 1, ..SamplingParams::default() };
        let slot = pool.admit(params, &[order[0] as u32]).unwrap();
        let (options, mode) = (Batch::default(), VerifyMode::Coupled);
        let mut path = Vec::new();
        for _ in 0..4 {
            let counts = &[path.len() as u32];
            let mut out = Proposals::new(1);
            pool.draft(
                Rows::hidden(head, states(1)),
                &Batch { slots: &[slot], counts, mode, ..options },
                &path,
                &mut out,
            )
            .unwrap();
            path.extend_from_slice(out.ids());
        }
        assert_eq!(path, order[1..5]);
        let (counts, drafts) = (&[4], Drafts::chain(&path));
        let mut out = Outputs::new();
        pool.verify(
            Rows::hidden(head, states(5)),
            &Batch { slots: &[slot], counts, mode, ..options },
            &drafts,
            &mut out,
        )
        .unwrap();
        assert_eq!((out.accepted(), out.request(0).tokens), (&[4][..], &order[1..6]));
        let whole = pool.head_counts().whole_rows;
        assert_eq!(whole, if matches!(head, Head::Certified(_)) { 0 } else { 9 });
        // A tree, whose first draft is none of the likeliest.
        let ids = [order[9], order[6], order[7], order[8]];
        let (counts, drafts) = (&[4], Drafts::tree(&ids, &[-1, -1, 1, 2]));
        pool.verify(
            Rows::hidden(head, states(5)),
            &Batch { slots: &[slot], counts, mode, ..options },
            &drafts,
            &mut out,
        )
        .unwrap();
        assert_eq!((out.request(0).tokens, out.request(0).rows), (&order[6..10], &[0, 2, 3, 4][..]));
    }
}

/// Parameters that ask for logprobs of a mode.
fn asks(mode: LogprobMode, params: SamplingParams) -> SamplingParams {
    SamplingParams {
        logprobs: Some(LogprobsParams { mode: mode.into(), top_n: 2, ids: vec![3, 9] }),
        ..params
    }
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let both = Both::new(&weights);
    let mut pool = pool(1);
    let slot = pool.admit(SamplingParams::default(), &[1]).unwrap();
    let data = numbers(3 * WIDTH, 5, 6.0);
    let states = HostMatrix::new(&data, 3, WIDTH).unwrap();
    let narrow = HostMatrix::strided(&data, 3, WIDTH - 1, WIDTH).unwrap();
    let (options, mode) = (Batch::default(), VerifyMode::Coupled);
    let mut out = Outputs::new();
    let mut verify = |states: HostMatrix<'_>, counts: &[u32], ids: &[i32]| {
        pool.verify(
            Rows::hidden(&both.exact, states),
            &Batch { slots: &[slot], counts, mode, ..options },
            &Drafts::chain(ids),
            &mut out,
        )
        .unwrap_err()
    };
    assert_eq!(
        verify(states, &[1], &[4]).to_string(),
        "hidden has length 3, but must have 2 hidden states, one per request and one per draft"
    );
    assert!(matches!(verify(narrow, &[2], &[4, 5]), Error::Length { parameter: "hidden", .. }));
    let params = SamplingParams::default();
    let scored = Scored { params: &params, ids: &[1, 2, 3, 4], prompt_len: 0, start: 1, chunk_rows: None };
    let mut outputs = Outputs::new();
    let mut score = |chunk_rows, scored| {
        pool.score(
            Rows::hidden(&both.certified, states),
            &options,
            &Scored { chunk_rows: Some(chunk_rows), ..scored },
            &mut outputs,
        )
        .unwrap_err()
    };
    assert_eq!(score(0, scored).to_string(), "chunk_rows is 0, but must be 1 or more");
    assert!(matches!(score(2, Scored { start: 2, ..scored }), Error::Length { parameter: "ids", .. }));
    let xtc = SamplingParams { xtc_probability: 0.5, ..asks(LogprobMode::Processed, params.clone()) };
    assert!(xtc.is_on(Filter::Xtc, VOCAB) && xtc.seed.is_none());
    assert!(matches!(score(2, Scored { params: &xtc, ..scored }), Error::Conflict { parameter: "xtc", .. }));
    let mut proposals = Proposals::new(1);
    let drafted = pool.draft(
        Rows::hidden(&both.exact, states),
        &Batch { slots: &[slot], mode, ..options },
        &[],
        &mut proposals,
    );
    assert!(matches!(drafted, Err(Error::Length { parameter: "slots", .. })));
    assert_eq!(pool.sequence(slot).unwrap().position(), 1);
}
