//! Outputs lie where the layout says, and hold what a row alone says.

use gumball_engine::{
    Batch, Layout, LogprobsParams, NONE, Outputs, PADDING, Pool, PoolConfig, Rows, Sampler, SamplingParams,
    Widths,
};

use crate::cases::{VOCAB, params, places, pool, row, rows, step};

#[test]
fn sections_follow_each_other_without_gaps() {
    for (rows, top_n, ids) in [(0, 0, 0), (1, 0, 0), (3, 0, 2), (4, 5, 0), (7, 3, 2)] {
        let layout = Layout { rows, widths: Widths { top_n, ids } };
        let sections = [
            (layout.tokens(), 1),
            (layout.statuses(), 1),
            (layout.logprobs(), 1),
            (layout.ranks(), 1),
            (layout.temperatures(), 1),
            (layout.mirostat_mu(), 1),
            (layout.second_logprobs(), 1),
            (layout.top_ids(), top_n),
            (layout.top_logprobs(), top_n),
            (layout.id_logprobs(), ids),
            (layout.id_ranks(), ids),
        ];
        let mut end = 0;
        for (section, width) in sections {
            assert_eq!((section.start, section.len()), (end, rows * width), "{layout:?}");
            end = section.end;
        }
        assert_eq!(layout.words(), end);
    }
}

#[test]
fn every_section_holds_what_the_row_alone_says() {
    let mut pool = pool(2);
    let slots: Vec<_> = (0..6).map(|kind| pool.admit(params(kind, 3), &[4, 5]).unwrap()).collect();
    let out = step(&mut pool, &rows(0..6), &slots);
    for kind in 0..6 {
        let mut sampler = Sampler::new(params(kind, 3), VOCAB).unwrap().with_prompt(&[4, 5]);
        let token = sampler.sample(&row(kind as u64)).unwrap();
        let logprobs = sampler.logprobs().unwrap();
        assert_eq!(out.tokens()[kind], token.id.unwrap() as i32);
        assert_eq!(out.status(kind), token.status);
        assert_eq!(out.temperatures()[kind], token.temperature);
        assert_eq!(out.mirostat_mu()[kind], sampler.sequence().mu());
        assert_eq!((out.logprobs()[kind], out.ranks()[kind]), (logprobs.token.logprob, logprobs.token.rank));
        assert_eq!(out.second_logprobs()[kind], logprobs.second);
        for place in 0..3 {
            let expected = logprobs.top.get(place).map_or((NONE, f32::NEG_INFINITY), |m| (m.id, m.logprob));
            assert_eq!((out.top_ids(kind)[place], out.top_logprobs(kind)[place]), expected);
        }
        for (place, expected) in logprobs.ids.iter().enumerate() {
            let found = (out.id_logprobs(kind)[place], out.id_ranks(kind)[place]);
            assert_eq!(found, (expected.logprob, expected.rank));
        }
    }
}

#[test]
fn logprobs_that_were_not_asked_for_are_absent() {
    let mut pool = pool(1);
    let asks = pool.admit(params(2, 3), &[]).unwrap();
    let none = pool.admit(SamplingParams::default(), &[]).unwrap();
    let token = SamplingParams { logprobs: Some(LogprobsParams::default()), ..Default::default() };
    let token = pool.admit(token, &[]).unwrap();
    // The second step reuses a buffer in which all places were written.
    let mut out = Outputs::new();
    for slots in [[asks, PADDING, PADDING], [none, token, PADDING]] {
        let data = rows(0..3);
        let logits = Rows::logits(&data, 3, VOCAB).unwrap();
        pool.step(logits, &Batch::of(&slots), &mut out).unwrap();
    }
    assert_eq!((out.logprobs()[0], out.ranks()[0]), (f32::NEG_INFINITY, 0));
    assert!(out.logprobs()[1].is_finite() && out.ranks()[1] > 0);
    assert_eq!(out.second_logprobs(), [f32::NEG_INFINITY; 3]);
    for row in 0..2 {
        assert_eq!((out.top_ids(row), out.top_logprobs(row)), (&[NONE; 3][..], &[f32::NEG_INFINITY; 3][..]));
        assert_eq!((out.id_logprobs(row), out.id_ranks(row)), (&[f32::NEG_INFINITY; 2][..], &[0; 2][..]));
    }
}

#[test]
fn kept_sets_come_on_request() {
    let mut pool = crate::cases::keeping(2);
    let slots: Vec<_> = [1, 2, 8].map(|kind| pool.admit(params(kind, 3), &[]).unwrap()).to_vec();
    let slots = [slots[0], PADDING, slots[1], slots[2]];
    let data = rows(0..4);
    let logits = Rows::logits(&data, 4, VOCAB).unwrap();
    let mut out = Outputs::new();
    pool.step(logits, &Batch::of(&slots), &mut out).unwrap();
    assert_eq!((out.kept(0).len(), out.kept(1).len()), (1, 0), "greedy keeps one, padding none");
    for (row, kind) in [(2, 2), (3, 8)] {
        let mut sampler = Sampler::new(params(kind, 3), VOCAB).unwrap();
        sampler.collect_kept(true);
        sampler.sample(&data[row * VOCAB..][..VOCAB]).unwrap();
        let mut ascending = sampler.kept().to_vec();
        ascending.sort_unstable();
        assert_eq!(out.kept(row), ascending, "ascending here, in the order of tokens there");
        assert!(out.kept(row).contains(&(out.tokens()[row] as u32)));
    }
    assert!(out.kept(2).len() <= 20, "top_k");
}

#[test]
fn kept_sets_are_those_of_the_rows_at_every_size_beside_a_bitmask() {
    // A bitmask has 282 words, of whole tiles 288.
    const VOCAB: usize = 9000;
    let sizes = [283, 0, 282, 281, 1, 9000, 287, 288, 289, 40, 8999, 2];
    let order = |place: usize| (place * 7919 + 5) % VOCAB;
    let mut logits = vec![0.0; VOCAB];
    (0..VOCAB).for_each(|place| logits[order(place)] = place as f32 / -64.0);
    let params = |size: usize| match size {
        0 => SamplingParams { allowed_ids: Some(vec![]), ..Default::default() },
        1 => SamplingParams { temperature: 0.0, ..Default::default() },
        VOCAB => SamplingParams::default(),
        size => SamplingParams { top_k: size as i64, ..Default::default() },
    };
    for place in places() {
        let name = format!("{place:?}");
        let mut pool =
            Pool::new(PoolConfig { slots: 16, kept: true, place, ..PoolConfig::new(VOCAB) }).unwrap();
        let mut slots: Vec<_> = sizes.map(|size| pool.admit(params(size), &[]).unwrap()).into();
        slots.extend([PADDING, pool.admit(SamplingParams::default(), &[]).unwrap()]);
        let mut forced = vec![None; slots.len()];
        forced[13] = Some(8999);
        let mut out = Outputs::new();
        // All in one batch; then the longest set alone; then none but short ones; then no row.
        for range in [0..14, 5..6, 3..5, 12..14, 0..0] {
            let data: Vec<f32> = range.clone().flat_map(|_| logits.iter().copied()).collect();
            let batch = Batch { forced: &forced[range.clone()], ..Batch::of(&slots[range.clone()]) };
            let matrix = Rows::logits(&data, range.len(), VOCAB).unwrap();
            pool.step(matrix, &batch, &mut out).unwrap();
            let (lengths, ids) = out.kept_sets();
            assert_eq!(lengths.len(), range.len(), "{name}");
            let mut rest = &ids[..];
            for (at, row) in range.enumerate() {
                let mut wanted: Vec<u32> = match row {
                    12 => vec![],
                    13 => vec![8999],
                    _ => (0..sizes[row]).map(|place| order(place) as u32).collect(),
                };
                wanted.sort_unstable();
                assert_eq!(out.kept(at), wanted, "{name}: row {row}");
                assert_eq!(rest.split_off(..lengths[at] as usize), Some(&wanted[..]), "{name}: row {row}");
            }
            assert!(rest.is_empty(), "{name}");
        }
    }
}
