//! Batches of rows of a draft model in the memory of an emulated device.

use gumball_engine::unstable::{DraftBatch, DraftBatchLimits, StepVariant};
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceIntMatrix, DeviceMatrix, Dtype, Error, IntType, Masks, NONE, Pool,
    PoolConfig, Proposals, Route, SamplingParams, VerifyMode, Work,
};

use crate::cases::{VOCAB, config, device, on_device, params, row, rows};

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
fn released_requests_have_no_drafts_and_paths_of_no_tokens_neither() {
    let Some(device) = device() else { return };
    let mut pool = Pool::new(config(on_device(&device, false))).unwrap();
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
    let mut pool = Pool::new(config(on_device(&device, false))).unwrap();
    let a = pool.admit(params(0, 1), &[1]).unwrap();
    let top_p = pool.admit(SamplingParams { top_p: 0.9, ..Default::default() }, &[1]).unwrap();
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
    let draft = [Work::Draft(batch, uploaded.logits().into(), Masks::None, Some(paths))];
    let error = pool.on_device().unwrap().record(&draft, StepVariant::TopK);
    assert!(matches!(error, Err(Error::OutOfRange { parameter: "variant", .. })));
    pool.on_device().unwrap().record(&draft, StepVariant::Full).unwrap();
    assert!(pool.on_device().unwrap().fetch_drafts(batch, &mut Proposals::new(2)).is_err());
    assert!(pool.on_device().unwrap().fetch_drafts(batch, &mut Proposals::with_probs(1)).is_err());

    let mut other = Pool::new(config(on_device(&device, false))).unwrap();
    assert!(matches!(
        other.on_device().unwrap().drafts_address(batch),
        Err(Error::OutOfRange { parameter: "batch", .. })
    ));
    let route = PoolConfig { route: Route::Probabilities, ..config(on_device(&device, false)) };
    let mut through = Pool::new(route).unwrap();
    assert!(matches!(through.on_device().unwrap().add_draft_batch(limits), Err(Error::Unavailable { .. })));
    other.on_device().unwrap().add_draft_batch(limits).unwrap();
}
