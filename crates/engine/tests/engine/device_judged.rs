//! An emulated device judges drafts by probabilities as a pool of the host does.

use gumball_engine::{
    Batch, DeviceBuffer, DeviceMatrix, DeviceSlice, Drafts, Dtype, IntType, Matrix, NONE, PADDING, Pool,
    PoolConfig, Route, Rows, SamplingParams, Slot, Status, StepVariant, Tree, VerifyMode, Work,
};

use half::bf16;

use crate::cases::{KINDS, VOCAB, params, row, rows};
use crate::device_verify::{Both, config, device, place};
use crate::verify::{Drafter, Gathered, MIROSTAT, Random, model};

/// The modes that judge drafts by probabilities.
const MODES: [VerifyMode; 3] =
    [VerifyMode::Rejection, VerifyMode::Block, VerifyMode::Threshold { single: 0.6, acc: 0.5 }];

/// Whether a mode reads the drafter's probabilities.
fn reads_probs(mode: VerifyMode) -> bool {
    matches!(mode, VerifyMode::Rejection | VerifyMode::Block)
}

/// Returns rows of a drafter: probabilities of the rows of some model, with zeros and numbers that are none.
fn drafter_rows(random: &mut Random, count: usize) -> Vec<f32> {
    let odd = [0.0, -1.0, f32::NAN, f32::INFINITY, 1e-42];
    let mut probs: Vec<f32> = rows((0..count).map(|row| row as u64 % 5));
    for row in probs.chunks_mut(VOCAB) {
        let sum: f32 = row.iter().map(|z| z.exp()).sum();
        row.iter_mut().for_each(|z| *z = z.exp() / sum);
        (0..3).for_each(|_| row[random.below(VOCAB)] = odd[random.below(5)]);
    }
    probs
}

#[test]
fn a_device_judges_what_the_host_does_whoever_drafts_and_between_steps() {
    let Some(device) = device() else { return };
    let prompt = [3, 7, 3];
    let (mut accepted, mut refused) = (0, 0);
    for (seed, drafter) in [(1, Drafter::Fair), (2, Drafter::Perfect), (3, Drafter::Hostile)] {
        let mut random = Random(seed);
        let mut both = Both::new(&device);
        let slots: Vec<Slot> = (0..KINDS)
            .map(|kind| {
                let stop_ids = if kind % 2 == 0 { vec![160, 1_000_000, 480] } else { vec![] };
                let min_tokens = if kind == 2 { 4 } else { 0 };
                both.admit(SamplingParams { stop_ids, min_tokens, ..params(kind, 9) }, &prompt)
            })
            .collect();
        for turn in 0..7 {
            if turn == 3 {
                both.step(&slots);
            }
            let mode = MODES[turn % 3];
            let mut batch = Gathered::default();
            let mut requests = Vec::new();
            for kind in (0..KINDS).filter(|_| random.below(4) > 0).rev().collect::<Vec<_>>() {
                let history = both.host.sequence(slots[kind]).unwrap().history().ids().to_vec();
                let copy = both.host.fork(slots[kind], 0).unwrap();
                let coming: Vec<u32> = (0..4)
                    .map(|_| {
                        let data = model(both.host.sequence(copy).unwrap().history().ids());
                        crate::cases::step(&mut both.host, &data, &[copy]).tokens()[0] as u32
                    })
                    .collect();
                both.host.release(copy).unwrap();
                let count = if kind == MIROSTAT { 0 } else { [0, 1, 2, 4, 9][random.below(5)] };
                batch.add(&mut random, drafter, count, &history, &coming);
                requests.push(slots[kind]);
                if random.below(4) == 0 {
                    batch.add(&mut random, Drafter::Hostile, 2, &[1], &[]);
                    requests.push(PADDING);
                }
            }
            let probs = drafter_rows(&mut random, batch.data.len() / VOCAB);
            let probs = Matrix::new(&probs, batch.data.len() / VOCAB, VOCAB).unwrap();
            let probs = (reads_probs(mode) && turn % 2 == 0).then_some(probs);
            let whole = batch.drafts();
            let tree = if mode == VerifyMode::Block { Tree::Chain } else { whole.tree };
            let (counts, drafts) = (&batch.counts, Drafts { tree, probs, ..whole });
            both.verify(
                batch.logits(),
                &Batch { slots: &requests, counts, mode, ..Batch::default() },
                &drafts,
            );
            let all = both.seen.accepted().iter().sum::<u32>();
            accepted += all;
            refused += batch.ids.len() as u32 - all;
        }
    }
    assert!(accepted > 50 && refused > 50, "{accepted} {refused}");
}

#[test]
fn rows_of_probabilities_and_of_16_bits_are_judged() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    let banning =
        SamplingParams { banned_ids: vec![7], stop_ids: vec![8], seed: Some(3), ..Default::default() };
    let slots = [
        both.admit(SamplingParams { temperature: 0.0, ..banning.clone() }, &[1]),
        both.admit(SamplingParams { top_p: 0.9, min_p: 0.01, ..banning.clone() }, &[2]),
        both.admit(banning, &[]),
    ];
    let mut random = Random(5);
    let (data, probs) = (drafter_rows(&mut random, 9), drafter_rows(&mut random, 9));
    let likely = |row: usize| {
        let row = &data[row * VOCAB..][..VOCAB];
        let ids = (0..VOCAB).filter(|id| row[*id].is_finite());
        ids.max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as i32
    };
    let ids: Vec<i32> = [0, 1, 3, 4, 6, 7].map(likely).to_vec();
    let (counts, probs) = (&[2; 3], Matrix::new(&probs, 9, VOCAB).unwrap());
    for mode in MODES {
        let drafts = Drafts { probs: reads_probs(mode).then_some(probs), ..Drafts::chain(&ids) };
        let logits = Rows::probabilities(&data, 9, VOCAB).unwrap();
        both.verify(logits, &Batch { slots: &slots, counts, mode, ..Batch::default() }, &drafts);
        let halves: Vec<bf16> = rows(0..9).iter().map(|z| bf16::from_f32(*z)).collect();
        let logits = Rows::logits(&halves[..], 9, VOCAB).unwrap();
        both.verify(logits, &Batch { slots: &slots, counts, mode, ..Batch::default() }, &drafts);
    }
}

#[test]
fn requests_without_edits_are_judged_by_what_is_made_of_their_logits_alone() {
    let Some(device) = device() else { return };
    let any = |seed| SamplingParams { seed: Some(seed), ..SamplingParams::default() };
    let plain = [
        any(1),
        SamplingParams { temperature: 1.7, ..any(2) },
        SamplingParams { stop_ids: vec![8], ..any(3) },
    ];
    let filtered = [
        SamplingParams { top_k: 20, top_p: 0.9, ..any(4) },
        SamplingParams { temperature: 0.0, ..any(5) },
        SamplingParams { top_p: 0.95, min_p: 0.01, ..any(6) },
    ];
    let searched = [
        SamplingParams { top_k: 500, ..any(7) },
        SamplingParams { typical_p: 0.8, ..any(8) },
        SamplingParams { xtc_probability: 1.0, xtc_threshold: 0.02, ..any(9) },
    ];
    let mut odd = rows(0..9);
    for (id, z) in [(3, f32::NAN), (4, f32::INFINITY), (5, f32::NEG_INFINITY), (6, -0.0)] {
        odd[VOCAB + id] = z;
    }
    odd[5 * VOCAB..6 * VOCAB].fill(f32::NEG_INFINITY);
    let halves: Vec<bf16> = rows(9..18).iter().map(|z| bf16::from_f32(*z)).collect();
    let mut random = Random(6);
    let (probs, weights) = (drafter_rows(&mut random, 9), drafter_rows(&mut random, 9));
    let batches = [
        Rows::logits(&odd, 9, VOCAB).unwrap(),
        Rows::logits(&halves[..], 9, VOCAB).unwrap(),
        Rows::probabilities(&weights, 9, VOCAB).unwrap(),
    ];
    // A chain behind an id that is none, a request without drafts, and padding stand in the batch.
    let likely =
        |row: usize| (0..VOCAB).max_by(|a, b| odd[row * VOCAB + a].total_cmp(&odd[row * VOCAB + b])).unwrap();
    let ids = [likely(0) as i32, -1, 8, likely(4) as i32, 3, 7];
    let mut accepted = 0;
    // Probabilities have no temperature.
    for (params, batches) in [(plain, &batches[..2]), (filtered, &batches[..]), (searched, &batches[..])] {
        let mut both = Both::without_kept(&device);
        let [a, b, c] = params.map(|params| both.admit(params, &[1]));
        for (logits, mode) in batches.iter().flat_map(|logits| MODES.map(|mode| (*logits, mode))) {
            for slots in [[a, b, c], [c, PADDING, a]] {
                let probs = Matrix::new(&probs, 9, VOCAB).unwrap();
                let probs = reads_probs(mode).then_some(probs);
                let (counts, drafts) = (&[3, 3, 0], Drafts { probs, ..Drafts::chain(&ids) });
                let batch = Batch { counts, mode, ..Batch::of(&slots) };
                both.verify(logits, &batch, &drafts);
                both.verify(logits, &batch, &Drafts { probs: None, ..drafts });
                accepted += both.seen.accepted().iter().sum::<u32>();
            }
        }
    }
    assert!(accepted > 0);
}

/// Drafts and rows in the memory of the device.
struct OnDevice {
    logits: DeviceBuffer,
    probs: DeviceBuffer,
    ids: DeviceBuffer,
    parents: DeviceBuffer,
    rows: usize,
}

impl OnDevice {
    fn rows_of<'b>(&self, buffer: &'b DeviceBuffer) -> DeviceMatrix<'b> {
        DeviceMatrix::of(buffer, Dtype::F32, 0, self.rows, VOCAB, VOCAB).unwrap()
    }

    fn logits(&self) -> DeviceMatrix<'_> {
        self.rows_of(&self.logits)
    }

    fn drafts(&self, has_probs: bool) -> Drafts<'_> {
        let [ids, parents] = [&self.ids, &self.parents].map(|column| DeviceSlice::of(column, IntType::I32));
        let probs = has_probs.then(|| self.rows_of(&self.probs).into());
        Drafts { probs, ..Drafts::tree(ids, parents) }
    }
}

#[test]
fn graphs_judge_the_drafts_that_lie_there_when_they_are_replayed() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    both.device = Pool::new(PoolConfig { place: place(&device, true), ..config(&device) }).unwrap();
    let slots = [1, 3, 7].map(|kind| both.admit(params(kind, 2), &[3, 7]));
    let mut random = Random(1);
    let options = Batch::default();
    for mode in MODES {
        let captured_for = [0, 1, 2];
        let (counts, parents) = ([2, 1, 0], [-1, 0, -1]);
        let batch = |turn: u64| {
            let data = rows((0..6).map(|row| row % 3 + turn));
            let ids = [0, 1, 3].map(|place: usize| {
                let row = &data[place * VOCAB..][..VOCAB];
                (0..VOCAB).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as i32
            });
            (data, ids)
        };
        let probs = drafter_rows(&mut random, 6);
        let uploads = [0, 1].map(|turn| {
            let ((data, ids), runtime) = (batch(turn), device.runtime());
            OnDevice {
                logits: DeviceBuffer::of(runtime, &data).unwrap(),
                probs: DeviceBuffer::of(runtime, &probs).unwrap(),
                ids: DeviceBuffer::of(runtime, &ids).unwrap(),
                parents: DeviceBuffer::of(runtime, &parents).unwrap(),
                rows: 6,
            }
        });
        let has_probs = reads_probs(mode);
        let host_probs = has_probs.then_some(Matrix::new(&probs, 6, VOCAB).unwrap());
        both.device.assign(&Batch { slots: &slots, counts: &captured_for, mode, ..options }).unwrap();
        let work = uploads.each_ref().map(|of| Work::verify(of.logits(), of.drafts(has_probs)));
        let graph = both.device.capture(&work).unwrap();
        both.device.assign(&Batch { slots: &slots, counts: &counts, mode, ..options }).unwrap();
        both.device.replay(&graph).unwrap();
        both.device.fetch(&mut both.seen).unwrap();
        for turn in [0, 1] {
            let (data, ids) = batch(turn);
            let (counts, drafts) = (&counts, Drafts { probs: host_probs, ..Drafts::tree(&ids, &parents) });
            let logits = Rows::logits(&data, 6, VOCAB).unwrap();
            both.host
                .verify(logits, &Batch { counts, mode, ..Batch::of(&slots) }, &drafts, &mut both.wanted)
                .unwrap();
        }
        both.agree(&slots);
        // A graph is held to its mode, and a variant of a captured step to its requests.
        both.device
            .assign(&Batch { slots: &slots, counts: &counts, mode: VerifyMode::Coupled, ..options })
            .unwrap();
        let error = both.device.replay(&graph).unwrap_err().to_string();
        assert!(error.starts_with("assignment cannot be combined with step"), "{error}");
        both.device.assign(&Batch { slots: &slots, counts: &counts, mode, ..options }).unwrap();
        let [of, _] = &uploads;
        let drafts = of.drafts(has_probs);
        let error = both
            .device
            .on_device()
            .unwrap()
            .enqueue_variant(&[Work::verify(of.logits(), drafts)], StepVariant::TopP);
        assert!(error.unwrap_err().to_string().starts_with("variant is top_p, but must be "));
        let full = both
            .device
            .on_device()
            .unwrap()
            .enqueue_variant(&[Work::verify(of.logits(), drafts)], StepVariant::Full);
        full.unwrap();
        both.device.fetch(&mut both.seen).unwrap();
        let (data, ids) = batch(0);
        let (counts, drafts) = (&counts, Drafts { probs: host_probs, ..Drafts::tree(&ids, &parents) });
        let (logits, none) = (Rows::logits(&data, 6, VOCAB).unwrap(), Batch::default());
        both.host
            .verify(logits, &Batch { slots: &slots, counts, mode, ..none }, &drafts, &mut both.wanted)
            .unwrap();
        both.agree(&slots);
        // Drafts of the host beside a drafter's rows on the device.
        if has_probs {
            let beside = Drafts { probs: Some(of.rows_of(&of.probs).into()), ..drafts };
            let batch = Batch { slots: &slots, counts, mode, ..none };
            both.device.assign(&batch).unwrap();
            both.device.enqueue(&[Work::verify(of.logits(), beside)]).unwrap();
            both.device.fetch(&mut both.seen).unwrap();
            both.host
                .verify(logits, &Batch { slots: &slots, counts, mode, ..none }, &drafts, &mut both.wanted)
                .unwrap();
            both.agree(&slots);
        }
    }
}

#[test]
fn parents_that_are_no_tree_or_no_chain_of_a_block_are_a_step_with_a_status() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    let slots = [0, 3].map(|kind| both.admit(params(kind, 2), &[3, 7]));
    let (data, runtime) = (rows(0..5), device.runtime());
    for (mode, wrong) in [
        (VerifyMode::Rejection, [0, -1]),
        (VerifyMode::Block, [-1, -1]),
        (VerifyMode::Threshold { single: 0.5, acc: 1.0 }, [-2, 0]),
    ] {
        let uploaded = OnDevice {
            logits: DeviceBuffer::of(runtime, &data).unwrap(),
            probs: DeviceBuffer::of(runtime, &[0.0f32]).unwrap(),
            ids: DeviceBuffer::of(runtime, &[5, 6, 7]).unwrap(),
            parents: DeviceBuffer::of(runtime, &[wrong[0], wrong[1], -1]).unwrap(),
            rows: 5,
        };
        let (drafts, options) = (uploaded.drafts(false), Batch::default());
        both.device.assign(&Batch { slots: &slots, counts: &[2, 1], mode, ..options }).unwrap();
        both.device.enqueue(&[Work::verify(uploaded.logits(), drafts)]).unwrap();
        both.device.fetch(&mut both.seen).unwrap();
        assert_eq!(both.seen.status(0), Status::NO_TREE);
        assert_eq!((both.seen.request(0).tokens.len(), both.seen.request(0).rows), (1, &[0][..]));
        assert_eq!(both.seen.status(3), Status::default());
        // But for the status it is a step; the other request has its draft.
        let (counts, drafts) = (&[0, 1], Drafts::chain(&[7]));
        let own: Vec<f32> = [&data[..VOCAB], &data[3 * VOCAB..]].concat();
        let (logits, none) = (Rows::logits(&own, 3, VOCAB).unwrap(), Batch::default());
        both.host
            .verify(logits, &Batch { slots: &slots, counts, mode, ..none }, &drafts, &mut both.wanted)
            .unwrap();
        for request in [0, 1] {
            assert_eq!(both.seen.request(request).tokens, both.wanted.request(request).tokens);
        }
        for slot in slots {
            let state = both.host.sequence(slot).unwrap().state();
            assert_eq!(both.device.sequence(slot).unwrap().state(), state);
        }
    }
}

#[test]
fn empty_rows_and_drafts_that_are_no_tokens_end_a_judged_walk() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    let slots = [0, 3].map(|kind| both.admit(params(kind, 6), &[3]));
    let empty = vec![f32::NEG_INFINITY; VOCAB];
    let mut sure = row(1);
    sure[5] = 90.0;
    // Behind 5 there is nothing; a draft that is no token stands before others.
    let data = [&sure[..], &empty, &sure, &sure, &sure, &sure].concat();
    let ids = [5, 5, NONE, 5];
    let (counts, drafts) = (&[2, 2], Drafts::chain(&ids));
    for mode in MODES {
        both.verify(
            Rows::logits(&data, 6, VOCAB).unwrap(),
            &Batch { slots: &slots, counts, mode, ..Batch::default() },
            &drafts,
        );
        // A block may not end before an empty row.
        if mode != VerifyMode::Block {
            assert_eq!(
                (both.seen.request(0).tokens, both.seen.request(1).tokens),
                (&[5, NONE][..], &[5][..]),
                "{mode:?}"
            );
            assert!(both.seen.status(1).contains(Status::EMPTY));
        }
    }
}

#[test]
fn what_a_device_cannot_judge_is_refused_and_changes_nothing() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    let slots = [both.admit(params(3, 1), &[1]), both.admit(params(MIROSTAT, 2), &[2])];
    let (data, none) = (rows(0..4), Batch::default());
    let logits = Rows::logits(&data, 4, VOCAB).unwrap();
    let drafts = |tree, probs: Option<&'static [f32]>| Drafts {
        ids: (&[1, 2]).into(),
        tree,
        probs: probs.map(|probs| Matrix::new(probs, probs.len() / VOCAB, VOCAB).unwrap()),
    };
    let counts = &[2, 0];
    let probs = &[0.5; 4 * VOCAB];
    let forced = [None, Some(3), None, None];
    let beside = Batch { forced: &forced, ..none };
    let single = VerifyMode::Threshold { single: 1.5, acc: 1.0 };
    let [rejection, block, threshold] = MODES;
    let unread = "drafts.probs cannot be combined with mode: only rejection and block read the drafter's probabilities";
    let cases: [(&str, Drafts<'_>, VerifyMode, Batch<'_>); 7] = [
        (unread, drafts(Tree::Chain, Some(probs)), VerifyMode::Coupled, none),
        (unread, drafts(Tree::Chain, Some(probs)), VerifyMode::Greedy, none),
        (unread, drafts(Tree::Chain, Some(probs)), threshold, none),
        (
            "drafts.probs has length 2700, but must have 3600",
            drafts(Tree::Chain, Some(&probs[VOCAB..])),
            rejection,
            none,
        ),
        ("threshold_single is 1.5, but must be in 0..=1", drafts(Tree::Chain, None), single, none),
        ("forced cannot be combined with block", drafts(Tree::Chain, None), block, beside),
        (
            "parents is -1 for node 1 of request 0, but must be 0 in a chain",
            drafts(Tree::Parents((&[-1, -1]).into()), None),
            block,
            none,
        ),
    ];
    for (message, drafts, mode, options) in cases {
        let refused = both
            .device
            .verify(logits, &Batch { slots: &slots, counts, mode, ..options }, &drafts, &mut both.seen)
            .unwrap_err();
        assert!(refused.to_string().starts_with(message), "{refused}");
        let on_host = both
            .host
            .verify(logits, &Batch { slots: &slots, counts, mode, ..options }, &drafts, &mut both.wanted)
            .unwrap_err();
        assert_eq!(on_host.to_string(), refused.to_string());
        for slot in slots {
            assert_eq!(both.device.sequence(slot).unwrap().position(), 1, "{message}");
        }
    }
    // A drafter's rows on the device are held to their type and shape.
    let runtime = device.runtime();
    let (own, ids) = (DeviceBuffer::of(runtime, &data).unwrap(), DeviceBuffer::of(runtime, &[1, 2]).unwrap());
    let of = |dtype, rows| DeviceMatrix::of(&own, dtype, 0, rows, VOCAB, VOCAB).unwrap();
    for (message, mode, probs) in [
        ("probs cannot be combined with mode", VerifyMode::Coupled, of(Dtype::F32, 4)),
        ("probs is f16, but must be f32", rejection, of(Dtype::F16, 4)),
        ("probs is [3, 900], but must be [4, 900]", rejection, of(Dtype::F32, 3)),
    ] {
        let drafts =
            Drafts { probs: Some(probs.into()), ..Drafts::chain(DeviceSlice::of(&ids, IntType::I32)) };
        let options = Batch::default();
        let input = of(Dtype::F32, 4);
        both.device.assign(&Batch { slots: &slots, counts: &[2, 0], mode, ..options }).unwrap();
        let error = both.device.enqueue(&[Work::verify(input, drafts)]).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
    }
    let config = PoolConfig { route: Route::Probabilities, kept: false, ..config(&device) };
    let mut pool = Pool::new(config).unwrap();
    let error = pool.assign(&Batch { counts: &[0], mode: rejection, ..Batch::of(&[PADDING]) }).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no probabilities of rows on this route: verify coupled, or take the route race"
    );
}
