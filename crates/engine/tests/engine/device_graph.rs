//! Graphs on an emulated device that draft, verify, advance and take tokens away, with the results that a
//! pool of the host has.

use gumball_engine::unstable::{DraftBatch, DraftBatchLimits};
use gumball_engine::{
    Batch, DeviceBuffer, DeviceIntMatrix, DeviceIntMatrixMut, DeviceMatrix, DeviceSlice, Drafts, Dtype,
    Error, IntType, Masks, Pool, Proposals, Rows, Slot, VerifyMode, Work,
};

use crate::cases::{VOCAB, config, device, on_device, params, rows};
use crate::device_verify::Both;

const MODES: [VerifyMode; 3] = [VerifyMode::Coupled, VerifyMode::Greedy, VerifyMode::Block];

/// Rows of a buffer of f32.
fn input(buffer: &DeviceBuffer) -> Rows<'_> {
    let rows = buffer.bytes() / size_of::<f32>() / VOCAB;
    DeviceMatrix::of(buffer, Dtype::F32, 0, rows, VOCAB, VOCAB).unwrap().into()
}

/// Makes a batch of one draft a row, after `depth` drafts.
fn batch(pool: &mut Pool, slots: &[Slot], depth: u32, mode: VerifyMode) -> DraftBatch {
    let limits = DraftBatchLimits { rows: slots.len(), siblings: 1, probs: false };
    let batch = pool.on_device().unwrap().add_draft_batch(limits).unwrap();
    let counts = vec![depth; slots.len()];
    pool.assign(&Batch { counts: &counts, mode, of: Some(batch), ..Batch::of(slots) }).unwrap();
    batch
}

#[test]
fn one_graph_drafts_verifies_advances_and_takes_tokens_away() {
    let Some(device) = device() else { return };
    for (mode, ids) in MODES.into_iter().zip([IntType::I32, IntType::I64, IntType::I64]) {
        let mut both = Both::new(&device, true);
        // Plain, with penalties, with filters: histories and counts matter.
        let slots = [0, 1, 3, 6].map(|kind| both.admit(params(kind, 2), &[3, 7]));
        let n = slots.len();
        let batches = [0, 1].map(|depth| batch(&mut both.device, &slots, depth, mode));
        both.device.assign(&Batch { counts: &vec![2; n], mode, ..Batch::of(&slots) }).unwrap();
        // The rows of the draft model and of the target, which are alike.
        let drafter = [rows(0..n as u64), rows(n as u64..2 * n as u64)];
        let target: Vec<f32> = rows((0..3 * n as u64).map(|row| row / 3 + row % 3 * n as u64));
        let upload = |data: &[f32]| DeviceBuffer::of(device.runtime(), data).unwrap();
        let (first, second, all) = (upload(&drafter[0]), upload(&drafter[1]), upload(&target));
        let taken = DeviceBuffer::of(device.runtime(), &[1i32, 0, 2, 1]).unwrap();
        let mut chains = DeviceBuffer::of(device.runtime(), &vec![-1i32; 2 * n * ids.bytes() / 4]).unwrap();
        let to = DeviceIntMatrixMut::of(&mut chains, ids, 0, n, 2, 2).unwrap();
        let drafts = Drafts::chain(to.ids().flat().unwrap());
        let copy = |column: usize| Work::CopyDrafts(batches[column], to, column);
        let draft = |batch, rows, paths| Work::Draft(batch, rows, Masks::None, paths);
        let graph = both
            .device
            .capture(&[
                draft(batches[0], input(&first), None),
                copy(0),
                draft(batches[1], input(&second), Some(*to.ids())),
                copy(1),
                Work::verify(input(&all), drafts),
                Work::Shorten(DeviceSlice::of(&taken, IntType::I32).into()),
            ])
            .unwrap();
        assert_eq!(graph.steps(), 1);
        let mut accepted = 0;
        for turn in 0..6 {
            both.device.replay(&graph).unwrap();
            if turn % 2 == 1 {
                both.device.fetch(&mut both.seen).unwrap();
            }
            let (none, mut out) = (Batch::default(), Proposals::new(1));
            let logits = Rows::logits(&drafter[0], n, VOCAB).unwrap();
            both.host.draft(logits, &Batch { slots: &slots, mode, ..none }, &[], &mut out).unwrap();
            let front: Vec<i32> = out.ids().to_vec();
            let (logits, counts) = (Rows::logits(&drafter[1], n, VOCAB).unwrap(), vec![1; n]);
            both.host
                .draft(logits, &Batch { slots: &slots, counts: &counts, mode, ..none }, &front, &mut out)
                .unwrap();
            let chain: Vec<i32> = front.iter().zip(out.ids()).flat_map(|(a, b)| [*a, *b]).collect();
            let (counts, drafts) = (&vec![2; n], Drafts::chain(&chain));
            let logits = Rows::logits(&target, 3 * n, VOCAB).unwrap();
            both.host
                .verify(logits, &Batch { slots: &slots, counts, mode, ..none }, &drafts, &mut both.wanted)
                .unwrap();
            accepted += both.wanted.accepted().iter().sum::<u32>();
            let mut length = |slot: &Slot| both.host.sequence(*slot).unwrap().history().output().len();
            let counts: Vec<usize> = slots
                .iter()
                .zip([1, 0, 2, 1])
                .map(|(slot, count)| if length(slot) < count { 0 } else { count })
                .collect();
            both.host.shorten(&slots, &counts).unwrap();
            if turn % 2 == 1 {
                both.agree(&slots);
            }
        }
        assert!(accepted > 6, "{mode:?}: {accepted}");
        // Ordinary steps go on from there.
        both.step(&slots);
    }
}

#[test]
fn a_graph_of_drafts_alone_follows_what_is_assigned_to_its_batch() {
    let Some(device) = device() else { return };
    let mut pool = Pool::new(config(on_device(&device, false))).unwrap();
    let slots = [0, 3, 6].map(|kind| pool.admit(params(kind, 5), &[3, 7]).unwrap());
    let (mode, options) = (VerifyMode::Coupled, Batch::default());
    let drawn = batch(&mut pool, &slots, 1, mode);
    let logits = DeviceBuffer::of(device.runtime(), &rows([0, 0, 0])).unwrap();
    let ids = DeviceBuffer::of(device.runtime(), &[7i64, 9, 7]).unwrap();
    let paths = DeviceIntMatrix::of(&ids, IntType::I64, 0, 3, 1, 1).unwrap();
    let work = Work::Draft(drawn, input(&logits), Masks::None, Some(paths));
    let graph = pool.capture(&[work]).unwrap();
    assert_eq!(graph.steps(), 0);
    let fetched = |pool: &mut Pool| {
        let mut out = Proposals::new(1);
        pool.on_device().unwrap().fetch_drafts(drawn, &mut out).unwrap();
        out.ids().to_vec()
    };
    for order in [[0, 1, 2], [2, 0, 1], [1, 1, 0]] {
        let slots = order.map(|index: usize| slots[index]);
        pool.assign(&Batch { slots: &slots, counts: &[1, 1, 0], mode, of: Some(drawn), ..options }).unwrap();
        pool.replay(&graph).unwrap();
        let seen = fetched(&mut pool);
        pool.enqueue(&[work]).unwrap();
        assert_eq!(fetched(&mut pool), seen);
    }
    // What no longer suits it is refused, before anything runs.
    let before = fetched(&mut pool);
    pool.assign(&Batch { slots: &slots, counts: &[1, 2, 0], mode, of: Some(drawn), ..options }).unwrap();
    let error = pool.replay(&graph).unwrap_err().to_string();
    assert_eq!(error, "counts is 2, but must be at most 1, the ids in a row of the paths");
    pool.assign(&Batch {
        slots: &slots,
        counts: &[1; 3],
        mode: VerifyMode::Greedy,
        of: Some(drawn),
        ..options
    })
    .unwrap();
    let error = pool.replay(&graph).unwrap_err().to_string();
    assert!(error.starts_with("assignment cannot be combined with drafts"), "{error}");
    pool.assign(&Batch { slots: &slots[..2], counts: &[1; 2], mode, of: Some(drawn), ..options }).unwrap();
    assert!(matches!(pool.replay(&graph), Err(Error::Conflict { .. })));
    assert_eq!(fetched(&mut pool)[..], before[..2]);
    pool.on_device().unwrap().remove_draft_batch(drawn).unwrap();
    assert!(matches!(pool.replay(&graph), Err(Error::OutOfRange { parameter: "batch", .. })));
    assert!(pool.capture(&[work]).is_err());
}

#[test]
fn drafts_are_copied_where_there_is_room_for_them() {
    let Some(device) = device() else { return };
    let mut pool = Pool::new(config(on_device(&device, false))).unwrap();
    let slots = [0, 3].map(|kind| pool.admit(params(kind, 5), &[3, 7]).unwrap());
    let limits = DraftBatchLimits { rows: 2, siblings: 2, probs: false };
    let drawn = pool.on_device().unwrap().add_draft_batch(limits).unwrap();
    let options = Batch::default();
    pool.assign(&Batch {
        slots: &slots,
        counts: &[0; 2],
        mode: VerifyMode::Coupled,
        of: Some(drawn),
        ..options
    })
    .unwrap();
    let logits = DeviceBuffer::of(device.runtime(), &rows([0, 1])).unwrap();
    pool.enqueue(&[Work::Draft(drawn, input(&logits), Masks::None, None)]).unwrap();
    let mut out = Proposals::new(2);
    pool.on_device().unwrap().fetch_drafts(drawn, &mut out).unwrap();
    for ids in [IntType::I32, IntType::I64] {
        let words = ids.bytes() / 4;
        let mut chains = DeviceBuffer::of(device.runtime(), &vec![-9i32; 8 * words]).unwrap();
        let to = DeviceIntMatrixMut::of(&mut chains, ids, 0, 2, 3, 4).unwrap();
        for (column, text) in [(2, "to is [2, 3], but must be at least [2, 2 + 2]"), (usize::MAX, "to is")] {
            let error = pool.enqueue(&[Work::CopyDrafts(drawn, to, column)]).unwrap_err().to_string();
            assert!(error.starts_with(text), "{error}");
        }
        assert!(to.ids().flat().is_err(), "there are gaps");
        pool.enqueue(&[Work::CopyDrafts(drawn, to, 1)]).unwrap();
        let mut words_there = vec![0i32; 8 * words];
        chains.read(0, &mut words_there).unwrap();
        let there: Vec<i32> = words_there.into_iter().step_by(words).collect();
        let [a, b, c, d] = out.ids() else { unreachable!("two rows of two siblings") };
        assert_eq!(there, [-9, *a, *b, -9, -9, *c, *d, -9]);
    }
    let mut small = DeviceBuffer::of(device.runtime(), &[0u32; 4]).unwrap();
    let to = DeviceIntMatrixMut::of(&mut small, IntType::U32, 0, 2, 2, 2).unwrap();
    assert!(matches!(pool.enqueue(&[Work::CopyDrafts(drawn, to, 0)]), Err(Error::OutOfRange { .. })));
}
