//! Operators over batches return the definition's result for each row, however the batch is cut up.

use gumball_engine::{
    DraftTreeCounts, DraftTrees, Draws, Error, FilterOrder, HostDraftTrees, Judgement, Kind, LogitsMut, NONE,
    Operators, PoolSlots, RowParams, Rows, Sampler, SamplingParams, Status, bf16,
};
use gumball_spec::{Request, Row, oracle};

use crate::cases::{VOCAB, row, rows};

fn operators() -> [Operators; 2] {
    [1, 3].map(|threads| Operators::new(None, Some(threads)).unwrap())
}

fn outcome(row: &[f32], kind: Kind, params: &SamplingParams) -> oracle::Outcome {
    let request = Request { kind, ..Request::new(params, &[], 0) };
    oracle::sample(Row::F32(row), &request, None).unwrap()
}

fn softmaxes(seeds: impl Iterator<Item = u64>) -> Vec<f32> {
    let of = |seed| outcome(&row(seed), Kind::Logits, &SamplingParams::default()).probabilities();
    seeds.flat_map(of).collect()
}

#[test]
fn a_softmax_is_the_definitions_at_each_rows_temperature() {
    let logits = rows(0..5);
    let temperatures = [1.0, 0.0, 0.01, 100.0, 0.7];
    let want: Vec<Vec<f32>> = (0..5)
        .map(|i| {
            let params = SamplingParams { temperature: temperatures[i], ..Default::default() };
            outcome(&row(i as u64), Kind::Logits, &params).probabilities()
        })
        .collect();
    for operators in operators() {
        let mut out = vec![7.0f32; 5 * (VOCAB + 3)];
        let to = LogitsMut::strided(&mut out, 5, VOCAB, VOCAB + 3).unwrap();
        operators
            .softmax((Rows::logits(&logits, 5, VOCAB).unwrap(), to), (&temperatures[..]).into(), None)
            .unwrap();
        for (line, want) in out.chunks(VOCAB + 3).zip(&want) {
            assert_eq!(&line[..VOCAB], want);
            assert_eq!(line[VOCAB..], [7.0; 3], "what lies between is not touched");
        }
        let mut narrow: Vec<bf16> = logits.iter().map(|z| bf16::from_f32(*z)).collect();
        let exact = narrow.iter().zip(&logits).all(|(a, b)| a.to_f32() == *b);
        assert!(exact, "the rows are made of eighths");
        let rows = LogitsMut::new(&mut narrow, 5, VOCAB).unwrap();
        operators.softmax(rows, (&temperatures[..]).into(), None).unwrap();
        for (line, want) in narrow.chunks(VOCAB).zip(&want) {
            assert!(line.iter().zip(want).all(|(a, b)| *a == bf16::from_f32(*b)));
        }
        let none = LogitsMut::new(&mut [0.0f32; 0][..], 0, VOCAB).unwrap();
        let empty = Rows::logits(&[0.0f32; 0], 0, VOCAB).unwrap();
        assert_eq!(operators.softmax((empty, none), 1.0.into(), None), Ok(()));
    }
}

#[test]
fn huge_logits_at_a_low_temperature_stay_finite_and_equal_ones_equal() {
    let logits = [1e6, -1e6, 1e6, 999_999.99, f32::NEG_INFINITY];
    let mut out = [0.0f32; 5];
    let to = LogitsMut::new(&mut out[..], 1, 5).unwrap();
    operators()[0].softmax((Rows::logits(&logits, 1, 5).unwrap(), to), 0.01.into(), None).unwrap();
    assert_eq!(out[0].to_bits(), out[2].to_bits());
    assert!((f64::from(out.iter().sum::<f32>()) - 1.0).abs() < 1e-6, "{out:?}");
}

#[test]
fn renormalised_and_masked_rows_are_the_definitions() {
    let probabilities = softmaxes(0..6);
    let logits = rows(0..6);
    let column_k = [1, 5, 0, 40, 900, 3];
    let column_p = [1.0, 0.5, 0.9, 0.3, 0.0, 1.0];
    for joint in [false, true] {
        let order = if joint { FilterOrder::Joint } else { FilterOrder::Default };
        let common = SamplingParams { min_p: 0.01, order, ..Default::default() };
        let (top_k, top_p) = (Some(column_k[..].into()), Some(column_p[..].into()));
        let params = RowParams { top_k, top_p, ..RowParams::new(&common) };
        for operators in operators() {
            let mut renormalised = vec![0.0f32; 6 * VOCAB];
            let out = LogitsMut::new(&mut renormalised, 6, VOCAB).unwrap();
            let matrix = Rows::probabilities(&probabilities, 6, VOCAB).unwrap();
            operators.probabilities((matrix, out), &params, None).unwrap();
            let mut masked = logits.clone();
            operators.mask_logits(LogitsMut::new(&mut masked, 6, VOCAB).unwrap(), &params, None).unwrap();
            for i in 0..6 {
                let params = SamplingParams { top_k: column_k[i], top_p: column_p[i], ..common.clone() };
                let line = i * VOCAB..(i + 1) * VOCAB;
                let of_p = outcome(&probabilities[line.clone()], Kind::Probabilities, &params);
                assert_eq!(renormalised[line.clone()], of_p.probabilities());
                let of_z = outcome(&logits[line.clone()], Kind::Logits, &params);
                assert_eq!(masked[line.clone()], of_z.masked());
                // The softmax of the kept tokens, at the filters' distribution, is the renormalised softmax
                // but for roundings.
                let sum: f32 = renormalised[line].iter().sum();
                assert!((sum - 1.0).abs() < 1e-5, "{sum}");
            }
        }
    }
    let mut nothing = vec![f32::NEG_INFINITY; VOCAB];
    let common = SamplingParams { top_k: 3, ..Default::default() };
    let rows = LogitsMut::new(&mut nothing, 1, VOCAB).unwrap();
    let mut statuses = [Status::default()];
    operators()[0].mask_logits(rows, &RowParams::new(&common), Some(statuses[..].as_mut().into())).unwrap();
    assert_eq!(statuses, [Status::EMPTY]);
    assert!(nothing.iter().all(|z| *z == f32::NEG_INFINITY));
}

#[test]
fn many_outputs_draw_from_named_lines_what_samplers_draw() {
    let probabilities = softmaxes(0..3);
    let lines: Vec<u32> = (0..400).map(|i| [2, 0, 2, 2, 1][i % 5]).collect();
    let seeds: Vec<u64> = (0..400).map(|i| 5 + i / 200).collect();
    let top_k = [5, 0, 40];
    let common = SamplingParams { top_p: 0.9, xtc_probability: 0.3, ..Default::default() };
    let params = RowParams { top_k: Some(top_k[..].into()), ..RowParams::new(&common) };
    for operators in operators() {
        let mut tokens = vec![0; 400];
        let mut statuses = vec![Status::EMPTY; 400];
        let matrix = Rows::probabilities(&probabilities, 3, VOCAB).unwrap();
        let draws = Draws { seeds: Some((&seeds).into()), ..Draws::new(0, 9) };
        let written = (&mut tokens).into();
        operators
            .sample(matrix, Some((&lines).into()), &params, &draws, written, Some((&mut statuses).into()))
            .unwrap();
        assert_eq!(statuses, [Status::default(); 400]);
        for (i, token) in tokens.iter().enumerate() {
            let line = lines[i] as usize;
            let seed = Some(seeds[i]);
            let params = SamplingParams { top_k: top_k[line], seed, ..common.clone() };
            let mut sampler = Sampler::new(params, VOCAB).unwrap().with_prompt(&[1; 9]).with_draw(i as u32);
            let row = &probabilities[line * VOCAB..][..VOCAB];
            assert_eq!(sampler.sample_probabilities(row).unwrap().id, Some(*token as u32), "output {i}");
        }
    }
}

#[test]
fn a_row_of_nothing_yields_none_and_disturbs_no_other() {
    let mut probabilities = softmaxes(0..3);
    probabilities[VOCAB..2 * VOCAB].fill(0.0);
    let clean = probabilities.clone();
    probabilities[VOCAB + 3] = f32::NAN;
    let common = SamplingParams::default();
    let mut drawn = Vec::new();
    for data in [&clean, &probabilities] {
        let (mut tokens, mut statuses) = (vec![0; 3], vec![Status::default(); 3]);
        let (matrix, params) = (Rows::probabilities(data, 3, VOCAB).unwrap(), RowParams::new(&common));
        let written = Some((&mut statuses).into());
        operators()[1]
            .sample(matrix, None, &params, &Draws::new(1, 2), (&mut tokens).into(), written)
            .unwrap();
        assert!(statuses[1].contains(Status::EMPTY));
        assert_eq!(tokens[1], NONE);
        drawn.push((tokens, statuses));
    }
    assert_eq!(drawn[0].0, drawn[1].0);
    assert_eq!(drawn[1].1[1], Status(Status::EMPTY.0 | Status::NAN.0));
    assert_eq!((drawn[1].1[0], drawn[1].1[2]), (Status::default(), Status::default()));
}

#[test]
fn mistakes_are_named_and_nothing_is_written() {
    let operators = &operators()[0];
    let data = rows(0..2);
    let logits = Rows::logits(&data, 2, VOCAB).unwrap();
    let mut out = vec![7.0f32; 2 * VOCAB];
    let refused = |common: SamplingParams, params: &dyn Fn(RowParams<'_>) -> Result<(), Error>| {
        params(RowParams::new(&common)).unwrap_err().to_string()
    };
    let draws = Draws::new(0, 0);
    let text = refused(SamplingParams { temperature: 0.7, ..Default::default() }, &|params| {
        let mut tokens = vec![5; 2];
        let rows = Rows::of(logits.matrix(), Kind::Probabilities);
        let refused = operators.sample(rows, None, &params, &draws, (&mut tokens).into(), None);
        assert_eq!(tokens, [5; 2]);
        refused
    });
    assert_eq!(text, "temperature is 0.7, but must be 0 (greedy) or 1 for probabilities");
    let text = refused(SamplingParams::default(), &|params| {
        let indices = Some([0, 2][..].into());
        operators.sample(logits, indices, &params, &draws, [0; 2][..].as_mut().into(), None)
    });
    assert_eq!(text, "row_indices is 2, but must be a row in 0..2");
    let text = refused(SamplingParams::default(), &|params| {
        let params = RowParams { top_p: Some([0.5, 0.5, -1.0][..].into()), ..params };
        operators.sample(logits, None, &params, &draws, [0; 2][..].as_mut().into(), None)
    });
    assert_eq!(text, "top_p has length 3, but must have one per row, 2");
    let to = LogitsMut::new(&mut out, 2, VOCAB).unwrap();
    let error = operators.softmax((logits, to), (&[1.0, -1.0][..]).into(), None).unwrap_err();
    assert_eq!(error.to_string(), "temperature is -1, but must be 0 (greedy) or in (0, 2^100]");
    let to = LogitsMut::new(&mut out, 2, VOCAB).unwrap();
    let of_probabilities = Rows::of(logits.matrix(), Kind::Probabilities);
    let error = operators.softmax((of_probabilities, to), 1.0.into(), None).unwrap_err();
    assert_eq!(error.to_string(), "kind is probabilities, but must be logits");
    let to = LogitsMut::new(&mut out, 2, VOCAB).unwrap().with_kind(Kind::Probabilities);
    assert!(operators.softmax(to, 1.0.into(), None).is_err());
    assert!(out.iter().all(|x| *x == 7.0));
}

#[test]
fn a_seed_needs_a_position_and_without_both_each_call_draws_by_fresh_entropy() {
    let operators = &operators()[0];
    let (flat, common) = (vec![1.0f32; VOCAB], SamplingParams::default());
    let (logits, params) = (Rows::logits(&flat, 1, VOCAB).unwrap(), RowParams::new(&common));
    let sample = |draws: &Draws<'_>| {
        let mut token = [7];
        operators.sample(logits, None, &params, draws, token[..].as_mut().into(), None).map(|()| token[0])
    };
    let from_pools = |draws: &Draws<'_>| {
        let (pools, mut token) = (PoolSlots::new([0][..].as_ref(), 1), [7]);
        let written = token[..].as_mut().into();
        operators.sample_from_pools(logits, &pools, &params, draws, written, None).map(|()| token[0])
    };
    let judge = |draws: &Draws<'_>| {
        let (trees, drafts, vocab, draft_probs, parents) = (1, 0, VOCAB, None, None);
        let trees = HostDraftTrees {
            trees,
            drafts,
            vocab,
            draft_probs,
            draft_token_ids: &[],
            parents,
            target_probs: &flat,
        };
        let mut token = [7];
        let trees = DraftTrees::Host { trees, tokens: &mut token, rows: None };
        operators.judge(trees, Judgement::Rejection, draws, DraftTreeCounts::default()).map(|()| token[0])
    };
    type Call<'a> = &'a dyn Fn(&Draws<'_>) -> Result<i32, Error>;
    let calls: [Call<'_>; 3] = [&sample, &from_pools, &judge];
    for (i, call) in calls.into_iter().enumerate() {
        let error = call(&Draws { positions: None, ..Draws::new(7, 0) }).unwrap_err();
        assert_eq!(
            error.to_string(),
            "positions is absent, but must be given with a seed, as in seed=7, position=step, \
             because a seed draws the same again at one position"
        );
        assert_eq!(call(&Draws::new(7, 3)), call(&Draws::new(7, 3)));
        for draws in [Draws::default(), Draws { positions: Some(3.into()), ..Draws::default() }] {
            // 16 equal tokens of 900 likely ones come with a probability of 1e-44.
            let drawn: Vec<i32> = (0..16).map(|_| call(&draws).unwrap()).collect();
            assert!(drawn.iter().any(|token| *token != drawn[0]), "call {i}: {drawn:?}");
        }
    }
}
