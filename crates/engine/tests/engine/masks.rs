//! A mask of no words forbids every id, as missing words do, wherever masks are handed in; no mask forbids
//! none.

use gumball_engine::{
    Batch, HostMasks, Kind, Masks, Outputs, Place, Pool, PoolConfig, Route, Rows, Sampler, SamplingParams,
    Scored, Slot, Status, StepOptions,
};

use crate::cases::{VOCAB, config, params, places, rows};

/// Returns the status and the token of a row of ones and its like under a mask.
fn sampled(route: &Route, kind: Kind, mask: Option<&[u32]>) -> (Option<u32>, bool) {
    let params = SamplingParams { seed: Some(3), ..Default::default() };
    let mut sampler = Sampler::new(params, VOCAB).unwrap().with_route(route.clone()).unwrap();
    let options = StepOptions { kind, mask, ..Default::default() };
    let token = sampler.sample_with(&vec![1.0f32; VOCAB], options).unwrap();
    assert_eq!(sampler.position(), u32::from(token.id.is_some()));
    (token.id, token.status.contains(Status::EMPTY))
}

#[test]
fn a_mask_of_no_words_forbids_every_id_on_every_route() {
    for route in Route::ALL {
        for kind in [Kind::Logits, Kind::Probabilities] {
            assert_eq!(sampled(&route, kind, Some(&[])), (None, true), "{route} {kind:?}");
            let (free, empty) = sampled(&route, kind, None);
            assert!(free.is_some() && !empty, "{route} {kind:?}");
        }
    }
}

/// Returns a pool and its slots, with requests of several kinds.
fn admitted(route: Route, place: Place) -> (Pool, Vec<Slot>) {
    let mut pool = Pool::new(PoolConfig { route, ..config(place) }).unwrap();
    let slots = [0, 1, 2, 7].map(|kind| pool.admit(params(kind, 5), &[1, 2]).unwrap());
    (pool, slots.to_vec())
}

#[test]
fn lines_without_words_forbid_every_id_in_a_step_and_in_a_score() {
    let data = rows(0..4);
    let logits = Rows::logits(&data, 4, VOCAB).unwrap();
    let races = places().into_iter().map(|place| (Route::Race, place));
    for (route, place) in races.chain([(Route::Oracle, Place::threads(2))]) {
        let (mut pool, slots) = admitted(route, place);
        let mut out = Outputs::new();
        // The stride of lines that have no words does not matter.
        for stride in [0, 7, usize::MAX] {
            let masks = Masks::new(&[], 4, 0, stride).unwrap();
            pool.step(logits, &Batch { masks, ..Batch::of(&slots) }, &mut out).unwrap();
            assert_eq!(out.tokens(), [-1; 4]);
            assert!(slots.iter().all(|slot| pool.sequence(*slot).unwrap().history().output().is_empty()));
        }
        let present = [true, false, true, false];
        let masks = Masks::Host(HostMasks::new(&[], 4, 0, 0).unwrap().with_present(&present).unwrap());
        let options = Batch { masks, forced: &[None, None, Some(4), None], ..Default::default() };
        pool.step(logits, &Batch { slots: &slots, ..options }, &mut out).unwrap();
        let free: Vec<bool> = out.tokens().iter().map(|token| *token >= 0).collect();
        assert_eq!((free, out.tokens()[2]), (vec![false, true, true, true], 4));

        let scored = Scored {
            params: &params(2, 5),
            ids: &[1, 2, 3, 4, 5],
            prompt_len: 1,
            start: 1,
            chunk_rows: None,
        };
        let blocked = vec![0; 29];
        let blocked = Masks::new(&blocked, 4, 29, 0);
        assert!(blocked.is_err(), "lines with words may not overlap");
        let words = vec![0; 4 * 29];
        let mut scores = |masks: Masks<'_>| {
            let mut out = Outputs::new();
            pool.score(logits, &Batch { masks, ..Batch::default() }, &scored, &mut out).unwrap();
            out.words().to_vec()
        };
        let none = scores(Masks::new(&[], 4, 0, 0).unwrap());
        assert_eq!(none, scores(Masks::new(&words, 4, 29, 29).unwrap()));
        assert_ne!(none, scores(Masks::None));
    }
}

#[cfg(feature = "emulator")]
#[test]
fn lines_without_words_forbid_every_id_on_a_device() {
    use gumball_engine::{DeviceBuffer, DeviceMasks, DeviceMatrix, Dtype, Work};
    let Some(device) = crate::cases::device() else { return };
    let (mut pool, slots) = admitted(Route::Race, crate::cases::on_device(&device, false));
    let data = rows(0..4);
    let mut out = Outputs::new();
    // Lines on the device, that lie somewhere or nowhere.
    let buffer = DeviceBuffer::of(device.runtime(), &data).unwrap();
    let lines = DeviceMatrix::of(&buffer, Dtype::F32, 0, 4, VOCAB, VOCAB).unwrap();
    for words in [
        DeviceBuffer::zeroed(device.runtime(), 16).unwrap(),
        DeviceBuffer::zeroed(device.runtime(), 0).unwrap(),
    ] {
        let work = Work::Step(lines.into(), DeviceMasks::of(&words, 4, 0, 0).unwrap().into());
        pool.assign(&Batch::of(&slots)).unwrap();
        pool.enqueue(&[work]).unwrap();
        pool.fetch(&mut out).unwrap();
        assert_eq!(out.tokens(), [-1; 4]);
        let graph = pool.capture(&[work]).unwrap();
        pool.replay(&graph).unwrap();
        pool.fetch(&mut out).unwrap();
        assert_eq!(out.tokens(), [-1; 4]);
    }
    assert!(slots.iter().all(|slot| pool.sequence(*slot).unwrap().history().output().is_empty()));
}

#[test]
fn a_mask_with_a_word_for_each_id_is_refused() {
    let mut sampler = Sampler::new(SamplingParams::default(), VOCAB).unwrap();
    let wide = StepOptions { mask: Some(&[u32::MAX; VOCAB]), ..Default::default() };
    let error = sampler.sample_with(&vec![1.0f32; VOCAB], wide).unwrap_err();
    assert_eq!(
        error.to_string(),
        "mask's words is 900, but must be less than 900: a bit for each of 900 ids, not a word"
    );
}

#[cfg(feature = "emulator")]
#[test]
fn masks_on_a_device_with_a_word_for_each_id_are_refused() {
    use gumball_engine::{
        Batch, Device, DeviceBuffer, DeviceMasks, DeviceMatrix, Dtype, Pool, PoolConfig, Work,
    };

    let Some(device) = gumball_bench_protocol::skipped::or_skip(Device::emulated()) else { return };
    let config = PoolConfig { slots: 3, place: Place::device(device.clone(), 3), ..PoolConfig::new(VOCAB) };
    let mut pool = Pool::new(config).unwrap();
    let slots: Vec<Slot> = (0..3).map(|_| pool.admit(SamplingParams::default(), &[]).unwrap()).collect();
    let memory = DeviceBuffer::of(device.runtime(), &rows(0..3)).unwrap();
    let words = DeviceBuffer::of(device.runtime(), &[u32::MAX; 3 * 900]).unwrap();
    let logits = DeviceMatrix::of(&memory, Dtype::F32, 0, 3, VOCAB, VOCAB).unwrap();
    let masks = DeviceMasks::of(&words, 3, 900, 900).unwrap();
    pool.assign(&Batch::of(&slots)).unwrap();
    let error = pool.enqueue(&[Work::Step(logits.into(), masks.into())]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "masks.width is 900, but must be less than 900: a bit for each of 900 ids, not a word"
    );
}
