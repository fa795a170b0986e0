//! Drafts in the memory of an emulated device, which the host does not check.

use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, DeviceSlice, Drafts, Dtype, HostMatrix, Ids, IntType, NONE,
    Outputs, PADDING, Place, Pool, PoolConfig, Rows, SamplingParams, Slot, Status, Tree, VerifyMode, Work,
};

use crate::cases::{VOCAB, config, device, keeping, on_device, params, rows};
use crate::verify::model;

/// A pool of the host beside one of a device, with the same requests.
pub struct Both {
    pub host: Pool,
    pub device: Pool,
    pub wanted: Outputs,
    pub seen: Outputs,
}

impl Both {
    pub fn new(device: &Device, keep_histories: bool) -> Self {
        let there = PoolConfig { kept: true, ..config(on_device(device, keep_histories)) };
        Self {
            host: keeping(1),
            device: Pool::new(there).unwrap(),
            wanted: Outputs::new(),
            seen: Outputs::new(),
        }
    }

    pub fn admit(&mut self, params: SamplingParams, prompt: &[u32]) -> Slot {
        let slot = self.host.admit(params.clone(), prompt).unwrap();
        assert_eq!(self.device.admit(params, prompt).unwrap(), slot);
        slot
    }

    /// Verifies in both pools and compares everything that comes out.
    pub fn verify(&mut self, logits: Rows<'_>, batch: &Batch<'_>, drafts: &Drafts<'_>) {
        self.host.verify(logits, batch, drafts, &mut self.wanted).unwrap();
        self.device.verify(logits, batch, drafts, &mut self.seen).unwrap();
        self.agree(batch.slots);
    }

    /// Compares what came out of the last verification in each pool.
    pub fn agree(&mut self, slots: &[Slot]) {
        let Self { wanted, seen, .. } = self;
        assert_eq!(seen.accepted(), wanted.accepted());
        for request in 0..slots.len() {
            assert_eq!(seen.request(request).rows, wanted.request(request).rows, "request {request}");
        }
        assert_eq!((seen.layout(), seen.words()), (wanted.layout(), wanted.words()));
        (0..wanted.layout().rows).for_each(|row| assert_eq!(seen.kept(row), wanted.kept(row), "row {row}"));
        assert_eq!(seen.kept_sets(), wanted.kept_sets());
        self.have_the_same(slots);
    }

    /// Compares the sequences of both pools.
    pub fn have_the_same(&mut self, slots: &[Slot]) {
        for slot in slots.iter().filter(|slot| **slot != PADDING) {
            let wanted = self.host.sequence(*slot).unwrap().state();
            assert_eq!(self.device.sequence(*slot).unwrap().state(), wanted);
        }
    }

    /// Makes a call in both.
    pub fn each(&mut self, call: impl Fn(&mut Pool) -> gumball_engine::Result<()>) {
        [&mut self.host, &mut self.device].into_iter().for_each(|pool| call(pool).unwrap());
    }

    pub fn step(&mut self, slots: &[Slot]) {
        let next = |slot: &Slot| model(self.host.sequence(*slot).unwrap().history().ids());
        let data: Vec<f32> = slots.iter().flat_map(next).collect();
        let [wanted, seen] =
            [&mut self.host, &mut self.device].map(|pool| crate::cases::step(pool, &data, slots));
        assert_eq!(seen.words(), wanted.words());
    }
}

/// A list in the memory of the device.
fn column(buffer: &DeviceBuffer) -> Ids<'_> {
    DeviceSlice::of(buffer, IntType::I64).into()
}

#[test]
fn what_is_no_tree_is_a_step_with_a_status() {
    let Some(device) = device() else { return };
    let upload = |list: &[i64]| DeviceBuffer::of(device.runtime(), list).unwrap();
    let (data, mut both) = (rows(0..7), Both::new(&device, false));
    let logits = DeviceBuffer::of(device.runtime(), &data).unwrap();
    let there = DeviceMatrix::of(&logits, Dtype::F32, 0, 7, VOCAB, VOCAB).unwrap();
    let slots = [0, 3].map(|kind| both.admit(params(kind, 2), &[3, 7]));
    // The second request has three drafts, of which one is no token.
    let ids = upload(&[5, i64::MAX, 7, 1 << 40, 5]);
    let mut hold = |mode, tree: Tree<'_>| {
        let drafts = Drafts { tree, ..Drafts::chain(DeviceSlice::of(&ids, IntType::I64)) };
        both.device.assign(&Batch { counts: &[2, 3], mode, ..Batch::of(&slots) }).unwrap();
        both.device.enqueue(&[Work::verify(there, drafts)]).unwrap();
        both.device.fetch(&mut both.seen).unwrap();
        assert_eq!((both.seen.status(0), both.seen.status(3)), (Status::NO_TREE, Status::default()));
        assert_eq!((both.seen.request(0).tokens.len(), both.seen.request(0).rows), (1, &[0][..]));
        // But for the status it is a step; the other request has its drafts.
        let own = [&data[..VOCAB], &data[3 * VOCAB..]].concat();
        let batch = Batch { counts: &[0, 3], mode, ..Batch::of(&slots) };
        let (logits, drafts) = (Rows::logits(&own, 5, VOCAB).unwrap(), Drafts::chain(&[7, NONE, 5]));
        both.host.verify(logits, &batch, &drafts, &mut both.wanted).unwrap();
        for (request, slot) in slots.into_iter().enumerate() {
            assert_eq!(both.seen.request(request).tokens, both.wanted.request(request).tokens);
            let state = both.host.sequence(slot).unwrap().state();
            assert_eq!(both.device.sequence(slot).unwrap().state(), state);
        }
    };
    for (mode, wrong) in [
        (VerifyMode::Coupled, [0, -1]),
        (VerifyMode::Greedy, [-1, 1]),
        (VerifyMode::Coupled, [-1, 5]),
        (VerifyMode::Rejection, [-2, 0]),
        (VerifyMode::Block, [-1, -1]),
        (VerifyMode::Threshold { single: 0.5, acc: 1.0 }, [i64::from(i32::MIN), i64::from(i32::MAX)]),
    ] {
        let parents = upload(&[wrong[0], wrong[1], -1, 0, 1]);
        hold(mode, Tree::Parents(column(&parents)));
    }
    // Cycles, orphans, rows with two elders, rows that are not there, a sibling of the root, a number of 64
    // bits.
    let none = [-1, -1, -1];
    for [first_child, next_sibling] in [
        [[1, -1, 1], none],
        [[1, 0, -1], [-1, 2, -1]],
        [[1, -1, -1], none],
        [[1, 2, -1], [-1, 2, -1]],
        [[3, -1, -1], none],
        [[1, -1, -1], [2, -1, -1]],
        [[1, -1, -1], [-1, 1, 2]],
        [[1, -2, -1], [-1, 2, -1]],
        [[1, 1 << 32 | 2, -1], none],
    ] {
        let lists = [
            upload(&[&first_child[..], &[1, 2, 3, -1]].concat()),
            upload(&[&next_sibling[..], &[-1; 4]].concat()),
        ];
        let [first_child, next_sibling] = lists.each_ref().map(column);
        hold(VerifyMode::Coupled, Tree::Links { first_child, next_sibling });
    }
}

#[test]
fn drafts_on_a_device_are_held_to_their_shapes_and_types() {
    let Some(device) = device() else { return };
    let mut pool = Pool::new(config(on_device(&device, false))).unwrap();
    let slots = [0, 3].map(|kind| pool.admit(params(kind, 2), &[3, 7]).unwrap());
    let buffer = DeviceBuffer::of(device.runtime(), &rows(0..4)).unwrap();
    let of = |dtype, rows| DeviceMatrix::of(&buffer, dtype, 0, rows, VOCAB, VOCAB).unwrap();
    let chain = Drafts::chain(DeviceSlice::of(&buffer, IntType::I32).first(2).unwrap());
    let links: [Ids<'_>; 2] =
        [3, 4].map(|count| DeviceSlice::of(&buffer, IntType::I32).first(count).unwrap().into());
    let [short, long] = links;
    let tree =
        |first_child, next_sibling| Drafts { tree: Tree::Links { first_child, next_sibling }, ..chain };
    let probs = |dtype, rows| Drafts { probs: Some(of(dtype, rows).into()), ..chain };
    let [coupled, rejection] = [VerifyMode::Coupled, VerifyMode::Rejection];
    for (message, mode, drafts) in [
        (
            "first_child has length 3, but must have 4, one per request and one per draft",
            coupled,
            tree(short, long),
        ),
        ("next_sibling is in the memory of the host", coupled, tree(long, (&[-1; 4]).into())),
        ("probs cannot be combined with mode", coupled, probs(Dtype::F32, 4)),
        ("probs is f16, but must be f32", rejection, probs(Dtype::F16, 4)),
        ("probs is [3, 900], but must be [4, 900]", rejection, probs(Dtype::F32, 3)),
    ] {
        pool.assign(&Batch { counts: &[2, 0], mode, ..Batch::of(&slots) }).unwrap();
        let error = pool.enqueue(&[Work::verify(of(Dtype::F32, 4), drafts)]).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
    let error = pool.assign(&Batch { counts: &[64, 0], ..Batch::of(&slots[..1]) }).unwrap_err().to_string();
    assert_eq!(error, "counts has length 2, but must have one per slot, 1");
    let many: Vec<Slot> = (0..4).map(|_| pool.admit(params(0, 1), &[1]).unwrap()).collect();
    let error = pool.assign(&Batch { counts: &[64; 4], ..Batch::of(&many) }).unwrap_err().to_string();
    assert!(error.starts_with("counts has length 260, but must have at most 200 requests"), "{error}");
}

#[test]
fn rows_behind_drafts_copy_lists_of_any_length() {
    let Some(device) = device() else { return };
    const LARGE: usize = 5000;
    let place = Place::Device { device, rows: 256, history_growth: 70, keep_histories: false };
    let config = PoolConfig { place, ..PoolConfig::new(LARGE) };
    let mut both = Both {
        host: Pool::new(PoolConfig { place: Place::threads(1), ..PoolConfig::new(LARGE) }).unwrap(),
        device: Pool::new(config).unwrap(),
        wanted: Outputs::new(),
        seen: Outputs::new(),
    };
    // More ids than a block lists at once, and only biased ones.
    let long: Vec<u32> = (0..2600).collect();
    let penalties = SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 0.5,
        logit_bias: vec![(4999, 0.5), (3000, -1.0)],
        seed: Some(3),
        ..Default::default()
    };
    let bigrams = SamplingParams { no_repeat_ngram: 2, ..penalties.clone() };
    let slots = [(&penalties, &long[..]), (&bigrams, &long), (&penalties, &[])]
        .map(|(params, prompt)| both.admit(params.clone(), prompt));
    let line = |seed: usize| (0..LARGE).map(move |id| ((id * 7919 + seed * 31) % 1009) as f32 / 300.0);
    for turn in 0..3 {
        let data: Vec<f32> = (0..12).flat_map(|row| line(row / 4 + turn)).collect();
        let logits = Rows::logits(&data, 12, LARGE).unwrap();
        // Forced tokens make the walks long, over ids that are known and others.
        let forced = [Some(7), Some(3000), Some(4998), None].repeat(3);
        let options = Batch { forced: &forced, ..Default::default() };
        let ids = [7, 3000, 4998].repeat(3);
        let (counts, drafts) = (&[3; 3], Drafts::chain(&ids));
        both.verify(logits, &Batch { slots: &slots, counts, ..options }, &drafts);
        assert_eq!(both.seen.accepted(), [3; 3]);
    }
}

#[test]
fn each_array_of_drafts_lies_in_the_memory_that_its_caller_has_it_in() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device, true);
    let slots = [0, 3].map(|kind| both.admit(params(kind, 2), &[3, 7]));
    let upload = |list: &[i32]| DeviceBuffer::of(device.runtime(), list).unwrap();
    // Two siblings, and a chain of one draft.
    let (ids, parents) = ([7, 9, 5], [-1, -1, -1]);
    let (first_child, next_sibling) = ([1, -1, -1, 1, -1], [-1, 2, -1, -1, -1]);
    let lists = [&ids[..], &parents, &first_child, &next_sibling];
    let there = lists.map(upload);
    let [ids, parents, first_child, next_sibling] = std::array::from_fn(|list| {
        let column = DeviceSlice::of(&there[list], IntType::I32).first(lists[list].len()).unwrap();
        [Ids::Host(lists[list]), Ids::Device(column)]
    });
    let numbers = vec![1.0 / VOCAB as f32; 5 * VOCAB];
    let buffer = DeviceBuffer::of(device.runtime(), &numbers).unwrap();
    let on_host = HostMatrix::new(&numbers, 5, VOCAB).unwrap().into();
    let on_device = DeviceMatrix::of(&buffer, Dtype::F32, 0, 5, VOCAB, VOCAB).unwrap().into();
    let trees = |place: usize, other: usize| {
        let (first_child, next_sibling) = (first_child[place], next_sibling[other]);
        [Tree::Chain, Tree::Parents(parents[place]), Tree::Links { first_child, next_sibling }]
    };
    let logits = rows(0..5);
    let logits = Rows::logits(&logits, 5, VOCAB).unwrap();
    let batch = Batch { counts: &[2, 1], mode: VerifyMode::Rejection, ..Batch::of(&slots) };
    for (memory, place, other) in (0..8).map(|bits: usize| (bits & 1, bits >> 1 & 1, bits >> 2)) {
        for (kind, tree) in trees(place, other).into_iter().enumerate() {
            for (has, probs) in [(false, None), (true, Some(on_host)), (true, Some(on_device))] {
                let drafts = Drafts { ids: ids[memory], tree, probs };
                let case = format!("{drafts:?}");
                let seen = both.device.verify(logits, &batch, &drafts, &mut both.seen);
                if kind > 0 && place != memory || kind == 2 && other != memory {
                    let error = seen.expect_err(&case).to_string();
                    assert!(error.contains("in the memory of"), "{case}: {error}");
                    continue;
                }
                seen.expect(&case);
                let drafts = Drafts { ids: ids[0], tree: trees(0, 0)[kind], probs: has.then_some(on_host) };
                both.host.verify(logits, &batch, &drafts, &mut both.wanted).unwrap();
                both.agree(&slots);
            }
        }
    }
}

#[test]
fn a_graph_of_drafts_that_is_replayed_in_another_mode_says_which_modes() {
    let Some(device) = device() else { return };
    let mut pool = Pool::new(config(on_device(&device, false))).unwrap();
    let slot = pool.admit(params(0, 2), &[3, 7]).unwrap();
    let logits = DeviceBuffer::of(device.runtime(), &rows(0..2)).unwrap();
    let logits = DeviceMatrix::of(&logits, Dtype::F32, 0, 2, VOCAB, VOCAB).unwrap();
    let ids = DeviceBuffer::of(device.runtime(), &[5]).unwrap();
    let drafts = Drafts::chain(DeviceSlice::of(&ids, IntType::I32));
    let slots = [slot];
    let assigned = |mode| Batch { counts: &[1], mode, ..Batch::of(&slots) };
    pool.assign(&assigned(VerifyMode::Coupled)).unwrap();
    let graph = pool.capture(&[Work::verify(logits, drafts)]).unwrap();
    for (mode, name) in [(VerifyMode::Greedy, "Greedy"), (VerifyMode::Rejection, "Rejection")] {
        pool.assign(&assigned(mode)).unwrap();
        let error = pool.replay(&graph).unwrap_err().to_string();
        assert_eq!(error, format!("mode is {name}, but must be Coupled, for which the step was fixed"));
    }
}
