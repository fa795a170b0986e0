//! An emulated device draws the drafts that a pool of the host draws.

use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceIntMatrix, DeviceMatrix, DraftBatch, DraftBatchLimits, Drafts, Dtype,
    Error, HostMasks, IntType, Masks, Matrix, NONE, PADDING, Pool, PoolConfig, Proposals, Route, RowHook,
    Rows, SamplingParams, Slot, StepVariant, VerifyMode, Work,
};
use half::bf16;

use crate::cases::{KINDS, VOCAB, params, row, rows};
use crate::device_verify::{Both, config, device};
use crate::draft::Refused;
use crate::verify::{MIROSTAT, Random, model};

/// Draws drafts in both pools and compares them, the probabilities that they are drawn from included.
fn draft(both: &mut Both, logits: Rows<'_>, batch: &Batch<'_>, paths: &[i32], siblings: usize) -> Proposals {
    let Both { host, device, .. } = both;
    let (mut wanted, mut seen) = (Proposals::with_probs(siblings), Proposals::with_probs(siblings));
    host.draft(logits, batch, paths, &mut wanted).unwrap();
    device.draft(logits, batch, paths, &mut seen).unwrap();
    assert_eq!(seen.ids(), wanted.ids(), "{:?}", batch.mode);
    let bits = |out: &Proposals| out.probs().iter().map(|q| q.to_bits()).collect::<Vec<_>>();
    assert!(bits(&seen) == bits(&wanted), "{:?}", batch.mode);
    wanted
}

/// Admits a request of each kind that may have drafts.
fn admit_all(both: &mut Both, seed: u64) -> Vec<Slot> {
    let kinds = (0..KINDS).filter(|kind| *kind != MIROSTAT);
    kinds.map(|kind| both.admit(params(kind, seed), &[3, 7, 3])).collect()
}

#[test]
fn bans_at_the_end_of_a_history_do_not_hold_behind_a_draft_from_there() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    // 5 is banned right after 7, and 9 as the first token of the output.
    let bad = SamplingParams { bad_words: vec![vec![7, 5]], temperature: 0.0, ..Default::default() };
    let early = SamplingParams { min_tokens: 1, stop_ids: vec![9], temperature: 0.0, ..Default::default() };
    let slots = [bad, early].map(|params| both.admit(SamplingParams { seed: Some(1), ..params }, &[7]));
    let mut row = vec![0.0; VOCAB];
    (row[9], row[5], row[3]) = (3.0, 4.0, 1.0);
    let data = row.repeat(4);
    let logits = Rows::logits(&data[..2 * VOCAB], 2, VOCAB).unwrap();
    let first = draft(&mut both, logits, &Batch::of(&slots), &[], 1);
    assert_eq!(first.ids(), [9, 5]);
    let behind = Batch { counts: &[1, 1], ..Batch::of(&slots) };
    let second = draft(&mut both, logits, &behind, first.ids(), 1);
    assert_eq!(second.ids(), [5, 5]);
    both.verify(Rows::logits(&data, 4, VOCAB).unwrap(), &behind, &Drafts::chain(first.ids()));
    assert_eq!((both.seen.request(0).tokens, both.seen.request(1).tokens), (&[9, 5][..], &[5, 5][..]));
}

#[test]
fn the_first_tokens_of_a_row_arrive_in_turn_and_none_twice() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    let plain = SamplingParams { seed: Some(4), ..Default::default() };
    let kinds = [
        plain.clone(),
        SamplingParams { top_p: 0.6, ..plain.clone() },
        SamplingParams { top_k: 30, temperature: 3.0, ..plain.clone() },
        SamplingParams { temperature: 0.0, banned_ids: (0..600).collect(), ..plain.clone() },
        // So cold that nearly all scores are -inf.
        SamplingParams { temperature: 1e-30, ..plain },
    ];
    let slots: Vec<Slot> = kinds.into_iter().map(|params| both.admit(params, &[1])).collect();
    let rough = rows(0..5);
    // A row of equal logits, one with a single token, one without any.
    let flat = [vec![0.0; VOCAB], [vec![f32::NEG_INFINITY; VOCAB - 1], vec![3.0]].concat()].concat();
    let flat = [flat, vec![f32::NEG_INFINITY; VOCAB], row(3), vec![-0.0; VOCAB]].concat();
    for data in [rough, flat] {
        let logits = Rows::logits(&data, 5, VOCAB).unwrap();
        for mode in [VerifyMode::Coupled, VerifyMode::Block] {
            draft(&mut both, logits, &Batch { mode, ..Batch::of(&slots) }, &[], 64);
        }
    }
}

#[test]
fn masks_forced_tokens_named_rows_and_other_kinds_of_rows_are_taken() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    let slots = [0, 3, 7].map(|kind| both.admit(params(kind, 4), &[2, 3]));
    let slots = [slots[0], slots[1], slots[2], slots[0], PADDING];
    let data = rows(0..3);
    let logits = Rows::logits(&data, 3, VOCAB).unwrap();
    let words: Vec<u32> = (0..5 * 29).map(|word| 0x5555_0F0F_u32.rotate_left(word)).collect();
    let present = [true, false, true, true, false];
    let masks = Masks::Host(HostMasks::new(&words, 5, 29, 29).unwrap().with_present(&present).unwrap());
    let forced = [Some(8), None, None, None, Some(5)];
    let (row_indices, counts) = (&[2, 0, 1, 1, 0], &[2, 0, 1, 1, 0]);
    let batch = Batch { counts, masks, forced: &forced, row_indices, ..Batch::of(&slots) };
    for (mode, siblings) in [(VerifyMode::Coupled, 1), (VerifyMode::Rejection, 3), (VerifyMode::Block, 1)] {
        let out = draft(&mut both, logits, &Batch { mode, ..batch }, &[8, 9, 7, 5], siblings);
        assert_eq!(out.row(0)[0], 8);
    }
    let plain = SamplingParams { seed: Some(2), top_p: 0.9, ..Default::default() };
    let slot = both.admit(plain, &[2]);
    let narrow: Vec<bf16> = row(1).into_iter().map(bf16::from_f32).collect();
    let probs: Vec<f32> = row(1).into_iter().map(f32::exp).collect();
    for siblings in [1, 6] {
        let logits = Rows::logits(&narrow[..], 1, VOCAB).unwrap();
        draft(&mut both, logits, &Batch::of(&[slot]), &[], siblings);
        let rows = Rows::probabilities(&probs, 1, VOCAB).unwrap();
        draft(&mut both, rows, &Batch::of(&[slot]), &[], siblings);
    }
}

/// Rows and paths in the device's memory.
struct Uploaded {
    logits: DeviceBuffer,
    paths: DeviceBuffer,
    rows: usize,
}

impl Uploaded {
    fn new(device: &Device, data: &[f32], paths: &[i64]) -> Self {
        let (logits, paths) = (
            DeviceBuffer::of(device.runtime(), data).unwrap(),
            DeviceBuffer::of(device.runtime(), paths).unwrap(),
        );
        Self { logits, paths, rows: data.len() / VOCAB }
    }

    fn logits(&self) -> DeviceMatrix<'_> {
        DeviceMatrix::of(&self.logits, Dtype::F32, 0, self.rows, VOCAB, VOCAB).unwrap()
    }

    fn paths(&self, width: usize, stride: usize) -> DeviceIntMatrix<'_> {
        DeviceIntMatrix::of(&self.paths, IntType::I64, 0, self.rows, width, stride).unwrap()
    }
}

fn fetched(pool: &mut Pool, batch: DraftBatch) -> Vec<i32> {
    let mut out = Proposals::new(batch.limits().siblings);
    pool.on_device().unwrap().fetch_drafts(batch, &mut out).unwrap();
    out.ids().to_vec()
}

#[test]
fn several_batches_keep_their_rows_while_requests_step_and_verify() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    let slots = admit_all(&mut both, 5);
    let n = slots.len();
    let mut random = Random(3);
    // A batch for each draft of a chain of 3. The third column of the paths is nobody's.
    let limits = DraftBatchLimits { rows: n, siblings: 1, probs: false };
    let batches = [0, 1, 2].map(|depth| {
        let batch = both.device.on_device().unwrap().add_draft_batch(limits).unwrap();
        let (mode, options) = (VerifyMode::Coupled, Batch::default());
        both.device
            .assign(&Batch { slots: &slots, counts: &vec![depth; n], mode, of: Some(batch), ..options })
            .unwrap();
        batch
    });
    let mut accepted = 0;
    for turn in 0..5 {
        let histories: Vec<Vec<u32>> =
            (slots.iter()).map(|slot| both.host.sequence(*slot).unwrap().history().ids().to_vec()).collect();
        let mut paths = vec![-7i64; 3 * n];
        let behind = |paths: &[i64], request: usize, depth: usize| {
            let path = paths[3 * request..][..depth].iter().map(|id| *id as u32);
            model(&histories[request].iter().copied().chain(path).collect::<Vec<_>>())
        };
        for (depth, batch) in batches.iter().enumerate() {
            let data: Vec<f32> = (0..n).flat_map(|request| behind(&paths, request, depth)).collect();
            let uploaded = Uploaded::new(&device, &data, &paths);
            let matrix = uploaded.paths(2, 3);
            both.device
                .enqueue(&[Work::Draft(*batch, uploaded.logits().into(), Masks::None, Some(matrix))])
                .unwrap();
            for (request, id) in fetched(&mut both.device, *batch).into_iter().enumerate() {
                paths[3 * request + depth] = i64::from(id);
            }
        }
        // One of the drafts is another's.
        paths[3 * random.below(n)] = random.below(VOCAB) as i64;
        let data: Vec<f32> = (0..n)
            .flat_map(|request| (0..=3).flat_map(|depth| behind(&paths, request, depth)).collect::<Vec<_>>())
            .collect();
        let ids: Vec<i32> = paths.iter().map(|id| *id as i32).collect();
        let (counts, drafts) = (&vec![3; n], Drafts::chain(&ids));
        let logits = Rows::logits(&data, 4 * n, VOCAB).unwrap();
        both.verify(logits, &Batch { slots: &slots, counts, ..Batch::default() }, &drafts);
        accepted += both.seen.accepted().iter().sum::<u32>();
        assert!(both.seen.accepted().iter().filter(|count| **count == 3).count() + 1 >= n, "turn {turn}");
        both.step(&slots);
    }
    assert!(accepted as usize >= 5 * 3 * (n - 1));
    for batch in batches {
        both.device.on_device().unwrap().remove_draft_batch(batch).unwrap();
        let error = both.device.on_device().unwrap().remove_draft_batch(batch).unwrap_err();
        assert!(matches!(error, Error::OutOfRange { parameter: "batch", .. }), "{error}");
    }
}

#[test]
fn a_verification_reads_the_drafters_probabilities_where_they_lie() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    let slots = admit_all(&mut both, 8);
    let n = slots.len();
    let (drafter, target) = (rows(0..n as u64), rows((0..2 * n as u64).map(|row| row % 5)));
    let mut wanted = Proposals::with_probs(1);
    let logits = Rows::logits(&drafter, n, VOCAB).unwrap();
    let (mode, none) = (VerifyMode::Rejection, Batch::default());
    both.host.draft(logits, &Batch { slots: &slots, mode, ..none }, &[], &mut wanted).unwrap();
    // Each request has a row of the drafter, and one that is not read.
    let doubled: Vec<u32> = (0..2 * n as u32).map(|row| row / 2).collect();
    let twice: Vec<Slot> = slots.iter().flat_map(|slot| [*slot, *slot]).collect();
    let limits = DraftBatchLimits { rows: 2 * n, siblings: 1, probs: true };
    let batch = both.device.on_device().unwrap().add_draft_batch(limits).unwrap();
    let options = Batch { row_indices: &doubled, ..Batch::default() };
    both.device
        .assign(&Batch { slots: &twice, counts: &vec![0; 2 * n], mode, of: Some(batch), ..options })
        .unwrap();
    let uploaded = Uploaded::new(&device, &drafter, &[0]);
    both.device.enqueue(&[Work::Draft(batch, uploaded.logits().into(), Masks::None, None)]).unwrap();
    let ids: Vec<i32> = fetched(&mut both.device, batch).into_iter().step_by(2).collect();
    assert_eq!(ids, wanted.ids());
    let mut seen = Proposals::with_probs(1);
    both.device.on_device().unwrap().fetch_drafts(batch, &mut seen).unwrap();
    let probs: Vec<f32> = (0..2 * n).flat_map(|row| wanted.row_probs(row / 2).to_vec()).collect();
    assert!(seen.probs() == probs);
    let (counts, drafts) = (
        &vec![1; n],
        Drafts {
            ids: (&ids).into(),
            probs: Some(Matrix::new(seen.probs(), 2 * n, VOCAB).unwrap()),
            ..Drafts::default()
        },
    );
    both.verify(
        Rows::logits(&target, 2 * n, VOCAB).unwrap(),
        &Batch { slots: &slots, counts, mode, ..none },
        &drafts,
    );
    assert!(both.seen.accepted().contains(&1) && both.seen.accepted().contains(&0));
}

#[test]
fn released_requests_have_no_drafts_and_paths_of_no_tokens_neither() {
    let Some(device) = device() else { return };
    let mut pool = Pool::new(config(&device)).unwrap();
    let slots = [0, 3, 7, 3].map(|kind| pool.admit(params(kind, 2), &[3, 7]).unwrap());
    let batch = pool
        .on_device()
        .unwrap()
        .add_draft_batch(DraftBatchLimits { rows: 4, siblings: 2, probs: false })
        .unwrap();
    let assigned = Batch { counts: &[1; 4], mode: VerifyMode::Coupled, of: Some(batch), ..Batch::of(&slots) };
    pool.assign(&assigned).unwrap();
    let uploaded = Uploaded::new(&device, &rows([1, 2, 3, 2]), &[5, -1, i64::from(VOCAB as u32), 5]);
    let matrix = uploaded.paths(1, 1);
    let drawn = |pool: &mut Pool| {
        pool.enqueue(&[Work::Draft(batch, uploaded.logits().into(), Masks::None, Some(matrix))]).unwrap();
        fetched(pool, batch)
    };
    let first = drawn(&mut pool);
    assert!(first[0] >= 0 && first[6] >= 0 && first[7] >= 0);
    assert_eq!(first[2..6], [NONE; 4], "behind what is no token there are no drafts");
    pool.release(slots[3]).unwrap();
    assert_eq!(drawn(&mut pool)[6..], [NONE; 2]);
    // The next request takes the slot, and rows only when they are assigned again.
    assert_eq!(pool.admit(params(6, 2), &[3, 7]).unwrap(), slots[3]);
    assert_eq!(drawn(&mut pool)[6..], [NONE; 2]);
    pool.assign(&assigned).unwrap();
    let again = drawn(&mut pool);
    assert!(again[6] >= 0 && again[..2] == first[..2]);
}

#[test]
fn what_a_device_cannot_draft_is_refused() {
    let Some(device) = device() else { return };
    let mut pool = Pool::new(config(&device)).unwrap();
    let a = pool.admit(params(0, 1), &[1]).unwrap();
    let b = pool.admit(params(MIROSTAT, 1), &[1]).unwrap();
    let top_p = pool.admit(SamplingParams { top_p: 0.9, ..Default::default() }, &[1]).unwrap();
    let data = row(1);
    let logits = Rows::logits(&data, 1, VOCAB).unwrap();
    let none = Batch::default();
    let long = [3; 64];
    let cases: [Refused<'_>; 5] = [
        ("slots has length 2, but must have one per row, 1", &[a, a], &[], &[]),
        ("paths.ids is 900, but must be an id in 0..900", &[a], &[2], &[1, 900]),
        ("the length of a path is 64, but must be in 0..64", &[a], &[64], &long),
        ("slot is 7, but must be an admitted slot", &[7], &[], &[]),
        ("mirostat cannot be combined with drafts", &[b], &[], &[]),
    ];
    for (message, slots, counts, paths) in cases {
        let batch = Batch { counts, ..Batch::of(slots) };
        let error = pool.draft(logits, &batch, paths, &mut Proposals::new(1));
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
    let hook = |_: &mut [f32]| {};
    let hooks = [Some(&hook as RowHook<'_>)];
    let hooked = Batch { hooks: &hooks, ..none };
    let error =
        pool.draft(logits, &Batch { slots: &[a], ..hooked }, &[], &mut Proposals::new(1)).unwrap_err();
    assert!(matches!(error, Error::Unavailable { resource: "hooks on a device", .. }), "{error}");

    let limits = DraftBatchLimits { rows: 2, siblings: 1, probs: false };
    for wrong in [
        DraftBatchLimits { rows: 0, ..limits },
        DraftBatchLimits { rows: 201, ..limits },
        DraftBatchLimits { siblings: 0, ..limits },
        DraftBatchLimits { siblings: 65, ..limits },
    ] {
        assert!(
            matches!(pool.on_device().unwrap().add_draft_batch(wrong), Err(Error::OutOfRange { .. })),
            "{wrong:?}"
        );
    }
    let batch = pool.on_device().unwrap().add_draft_batch(limits).unwrap();
    let (mode, options) = (VerifyMode::Coupled, Batch::default());
    assert!(
        pool.assign(&Batch { slots: &[a; 3], counts: &[0; 3], mode, of: Some(batch), ..options }).is_err()
    );
    pool.assign(&Batch { slots: &[a, top_p], counts: &[1, 0], mode, of: Some(batch), ..options }).unwrap();
    let uploaded = Uploaded::new(&device, &rows([1, 2]), &[5, 5]);
    let one = Uploaded::new(&device, &row(1), &[5]);
    let paths = uploaded.paths(1, 1);
    assert!(
        pool.enqueue(&[Work::Draft(batch, uploaded.logits().into(), Masks::None, None)]).is_err(),
        "a path is missing"
    );
    assert!(
        pool.enqueue(&[Work::Draft(batch, uploaded.logits().into(), Masks::None, Some(one.paths(1, 1)))])
            .is_err()
    );
    assert!(pool.enqueue(&[Work::Draft(batch, one.logits().into(), Masks::None, Some(paths))]).is_err());
    let error = pool.on_device().unwrap().enqueue_variant(
        &[Work::Draft(batch, uploaded.logits().into(), Masks::None, Some(paths))],
        StepVariant::TopK,
    );
    assert!(matches!(error, Err(Error::OutOfRange { parameter: "variant", .. })));
    pool.on_device()
        .unwrap()
        .enqueue_variant(
            &[Work::Draft(batch, uploaded.logits().into(), Masks::None, Some(paths))],
            StepVariant::Full,
        )
        .unwrap();
    assert!(pool.on_device().unwrap().fetch_drafts(batch, &mut Proposals::new(2)).is_err());
    assert!(pool.on_device().unwrap().fetch_drafts(batch, &mut Proposals::with_probs(1)).is_err());

    let mut other = Pool::new(config(&device)).unwrap();
    assert!(matches!(
        other.on_device().unwrap().drafts_address(batch),
        Err(Error::OutOfRange { parameter: "batch", .. })
    ));
    let route = PoolConfig { route: Route::Probabilities, ..config(&device) };
    let mut through = Pool::new(route).unwrap();
    assert!(matches!(through.on_device().unwrap().add_draft_batch(limits), Err(Error::Unavailable { .. })));
    other.on_device().unwrap().add_draft_batch(limits).unwrap();
}
