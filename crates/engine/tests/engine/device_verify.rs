//! Pools on an emulated device verify drafts with the results that a pool on the host has.

use gumball_bench_protocol::skipped::or_skip;
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceMatrix, DeviceSlice, Drafts, Dtype, Ids, IntType, NONE, Outputs,
    PADDING, Place, Pool, PoolConfig, Route, RowHook, Rows, SamplingParams, Slot, Status, StepVariant, Tree,
    VerifyMode, Widths, Work,
};

use crate::cases::{KINDS, VOCAB, params, pool, row, rows};
use crate::verify::{Drafter, Gathered, MIROSTAT, Random, model};

/// Returns the emulated device, or says why there is none.
pub fn device() -> Option<Device> {
    or_skip(Device::emulated())
}

/// Returns a place in which histories have room for few tokens, so that they are moved often.
pub fn place(device: &Device, keep_histories: bool) -> Place {
    Place::Device { device: device.clone(), rows: 200, history_growth: 2, keep_histories }
}

pub fn config(device: &Device) -> PoolConfig {
    let widths = Widths { top_n: 3, ids: 2 };
    PoolConfig { slots: 16, place: place(device, false), widths, kept: true, ..PoolConfig::new(VOCAB) }
}

/// A pool of the host beside one of a device, with the same requests.
pub struct Both {
    pub host: Pool,
    pub device: Pool,
    pub wanted: Outputs,
    pub seen: Outputs,
}

impl Both {
    pub fn new(device: &Device) -> Self {
        Self {
            host: pool(1),
            device: Pool::new(config(device)).unwrap(),
            wanted: Outputs::with_kept(),
            seen: Outputs::with_kept(),
        }
    }

    /// Pools that record no kept sets, so that the device has its fastest kernels for each request.
    pub fn without_kept(device: &Device) -> Self {
        let config = PoolConfig { kept: false, ..config(device) };
        let device = Pool::new(config).unwrap();
        Self { host: pool(1), device, wanted: Outputs::new(), seen: Outputs::new() }
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
        let Self { host, device, wanted, seen } = self;
        assert_eq!(seen.accepted(), wanted.accepted());
        for request in 0..slots.len() {
            assert_eq!(seen.request(request).tokens, wanted.request(request).tokens, "request {request}");
            assert_eq!(seen.request(request).rows, wanted.request(request).rows, "request {request}");
        }
        assert_eq!(seen.layout(), wanted.layout());
        assert_eq!(seen.words(), wanted.words());
        for row in 0..wanted.layout().rows {
            assert_eq!(seen.kept(row), wanted.kept(row), "row {row}");
        }
        for slot in slots.iter().filter(|slot| **slot != PADDING) {
            assert_eq!(device.sequence(*slot).unwrap().state(), host.sequence(*slot).unwrap().state());
        }
    }

    pub fn step(&mut self, slots: &[Slot]) {
        let data: Vec<f32> =
            slots.iter().flat_map(|slot| model(self.host.sequence(*slot).unwrap().history().ids())).collect();
        let logits = Rows::logits(&data, slots.len(), VOCAB).unwrap();
        let (mut wanted, mut seen) = (Outputs::new(), Outputs::new());
        self.host.step(logits, &Batch::of(slots), &mut wanted).unwrap();
        self.device.step(logits, &Batch::of(slots), &mut seen).unwrap();
        assert_eq!(seen.words(), wanted.words());
    }
}

#[test]
fn a_device_verifies_what_the_host_does_whoever_drafts_and_between_steps() {
    let Some(device) = device() else { return };
    let prompt = [3, 7, 3];
    for (seed, drafter) in [(1, Drafter::Random), (2, Drafter::Perfect), (3, Drafter::Hostile)] {
        let mut random = Random(seed);
        let mut both = Both::new(&device);
        let slots: Vec<Slot> = (0..KINDS)
            .map(|kind| {
                let stop_ids = if kind % 2 == 0 { vec![160, 1_000_000, 480] } else { vec![] };
                let min_tokens = if kind == 2 { 4 } else { 0 };
                both.admit(SamplingParams { stop_ids, min_tokens, ..params(kind, 9) }, &prompt)
            })
            .collect();
        let mut accepted = 0;
        for turn in 0..6 {
            if turn == 3 {
                both.step(&slots);
            }
            let mut batch = Gathered::default();
            let mut requests = Vec::new();
            for kind in (0..KINDS).filter(|_| random.below(4) > 0).rev().collect::<Vec<_>>() {
                let history = both.host.sequence(slots[kind]).unwrap().history().ids().to_vec();
                // The tokens that decoding would draw next, by a copy of the request.
                let copy = both.host.fork(slots[kind], 0).unwrap();
                let coming: Vec<u32> = (0..6)
                    .map(|_| {
                        let data = model(both.host.sequence(copy).unwrap().history().ids());
                        crate::cases::step(&mut both.host, &data, &[copy]).tokens()[0] as u32
                    })
                    .collect();
                both.host.release(copy).unwrap();
                let count = if kind == MIROSTAT { 0 } else { [0, 1, 3, 5, 30][random.below(5)] };
                batch.add(&mut random, drafter, count, &history, &coming);
                requests.push(slots[kind]);
                if random.below(3) == 0 {
                    batch.add(&mut random, Drafter::Hostile, 2, &[1], &[]);
                    requests.push(PADDING);
                }
            }
            let mode = if turn % 2 == 0 { VerifyMode::Coupled } else { VerifyMode::Greedy };
            both.verify(
                batch.logits(),
                &Batch { slots: &requests, counts: &batch.counts, mode, ..Batch::default() },
                &batch.drafts(),
            );
            accepted += both.seen.accepted().iter().sum::<u32>();
            // A caller who stops behind a token.
            if turn == 4 {
                let emitted = |request| {
                    both.seen.request(request).tokens.iter().filter(|token| **token != NONE).count()
                };
                let taken: Vec<(Slot, usize)> = (0..requests.len())
                    .filter(|request| requests[*request] != PADDING)
                    .map(|request| (requests[request], random.below(emitted(request) + 1)))
                    .collect();
                let (slots, counts): (Vec<Slot>, Vec<usize>) = taken.into_iter().unzip();
                both.host.shorten(&slots, &counts).unwrap();
                both.device.shorten(&slots, &counts).unwrap();
                for slot in &slots {
                    let state = both.host.sequence(*slot).unwrap().state();
                    assert_eq!(both.device.sequence(*slot).unwrap().state(), state);
                }
            }
        }
        assert!(accepted > 0 || matches!(drafter, Drafter::Random), "{drafter:?}");
    }
}

/// Drafts in the memory of the device.
struct Uploaded {
    logits: DeviceBuffer,
    ids: DeviceBuffer,
    parents: DeviceBuffer,
    rows: usize,
}

impl Uploaded {
    fn new(device: &Device, data: &[f32], ids: &[i64], parents: &[i32]) -> Self {
        let runtime = device.runtime();
        Self {
            logits: DeviceBuffer::of(runtime, data).unwrap(),
            ids: DeviceBuffer::of(runtime, ids).unwrap(),
            parents: DeviceBuffer::of(runtime, parents).unwrap(),
            rows: data.len() / VOCAB,
        }
    }

    fn input(&self) -> (Rows<'_>, Drafts<'_>) {
        let logits = DeviceMatrix::of(&self.logits, Dtype::F32, 0, self.rows, VOCAB, VOCAB).unwrap();
        let ids = DeviceSlice::of(&self.ids, IntType::I64);
        (logits.into(), Drafts::tree(ids, DeviceSlice::of(&self.parents, IntType::I32)))
    }

    fn work(&self) -> Work<'_> {
        let (rows, drafts) = self.input();
        Work::verify(rows, drafts)
    }
}

/// Returns links between rows, each row's next sibling being the next one with its parent.
fn links_of(counts: &[u32], parents: &[i32]) -> [Vec<i64>; 2] {
    let (mut links, mut start) = ([vec![], vec![]], 0);
    for count in counts {
        let parents = &parents[start..start + *count as usize];
        start += *count as usize;
        let child_from = |from: usize, parent: i32| {
            (from..parents.len()).find(|draft| parents[*draft] == parent).map_or(-1, |draft| draft as i64 + 1)
        };
        links[0].extend((0..=parents.len()).map(|row| child_from(row, row as i32 - 1)));
        links[1].push(-1);
        links[1].extend((0..parents.len()).map(|draft| child_from(draft + 1, parents[draft])));
    }
    links
}

#[test]
fn links_that_lie_there_are_trees_like_parents() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    let slots = [0, 3, 7].map(|kind| both.admit(params(kind, 4), &[2, 3]));
    let counts = [5, 0, 4];
    let mut random = Random(8);
    let mut accepted = 0;
    for turn in 0..12u64 {
        let mut tree = |count: &u32| {
            (0..*count as i32).map(|draft| random.below(draft as usize + 1) as i32 - 1).collect::<Vec<_>>()
        };
        let parents: Vec<i32> = counts.iter().flat_map(&mut tree).collect();
        let data = rows((0..12).map(|row| 3 * turn + row % 3));
        let likely = |row: usize| {
            let row = &data[row * VOCAB..][..VOCAB];
            (0..VOCAB).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as i32
        };
        let ids: Vec<i32> = (0..9).map(|draft| likely(draft % 3)).collect();
        let links = links_of(&counts, &parents);
        let narrow = links.each_ref().map(|links| links.iter().map(|row| *row as i32).collect::<Vec<_>>());
        let tree = Tree::Links { first_child: (&narrow[0]).into(), next_sibling: (&narrow[1]).into() };
        let drafts = Drafts { tree, ..Drafts::chain(&ids) };
        let mode = [VerifyMode::Coupled, VerifyMode::Greedy, VerifyMode::Rejection][turn as usize % 3];
        both.device.assign(&Batch { counts: &counts, mode, ..Batch::of(&slots) }).unwrap();
        let uploaded = Uploaded::new(
            &device,
            &data,
            &ids.iter().map(|id| i64::from(*id)).collect::<Vec<_>>(),
            &narrow[0],
        );
        let wide = DeviceBuffer::of(device.runtime(), &links[1]).unwrap();
        let (input, given) = uploaded.input();
        let tree = Tree::Links {
            first_child: DeviceSlice::of(&uploaded.parents, IntType::I32).into(),
            next_sibling: DeviceSlice::of(&wide, IntType::I64).into(),
        };
        // Ids and trees lie in one memory.
        let apart = Drafts { tree: drafts.tree, ..given };
        assert!(both.device.enqueue(&[Work::verify(input, apart)]).is_err());
        let given = Drafts { tree, ..given };
        if turn % 2 == 0 {
            both.device.enqueue(&[Work::verify(input, given)]).unwrap();
        } else {
            let graph = both.device.capture(&[Work::verify(input, given)]).unwrap();
            both.device.replay(&graph).unwrap();
        }
        both.device.fetch(&mut both.seen).unwrap();
        let logits = Rows::logits(&data, 12, VOCAB).unwrap();
        both.host
            .verify(logits, &Batch { counts: &counts, mode, ..Batch::of(&slots) }, &drafts, &mut both.wanted)
            .unwrap();
        both.agree(&slots);
        accepted += both.seen.accepted().iter().sum::<u32>();
    }
    assert!(accepted > 5, "{accepted}");
}

#[test]
fn links_that_are_no_tree_are_a_step_with_a_status() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    let slots = [0, 3].map(|kind| both.admit(params(kind, 2), &[3, 7]));
    let data = rows(0..5);
    let options = Batch::default();
    // Cycles, orphans, rows with two elders, rows that are not there, a sibling of the root, a number of 64 bits.
    let none = [-1i64, -1, -1];
    let wrong: [[[i64; 3]; 2]; 9] = [
        [[1, -1, 1], none],
        [[1, 0, -1], [-1, 2, -1]],
        [[1, -1, -1], none],
        [[1, 2, -1], [-1, 2, -1]],
        [[3, -1, -1], none],
        [[1, -1, -1], [2, -1, -1]],
        [[1, -1, -1], [-1, 1, 2]],
        [[1, -2, -1], [-1, 2, -1]],
        [[1, 1 << 32 | 2, -1], none],
    ];
    for [first_child, next_sibling] in wrong {
        let kept = [0, 3, 4].map(|row| row as usize);
        both.device
            .assign(&Batch { slots: &slots, counts: &[2, 1], mode: VerifyMode::Coupled, ..options })
            .unwrap();
        let both_requests = [[&first_child[..], &[1, -1]].concat(), [&next_sibling[..], &[-1, -1]].concat()];
        let links = both_requests.map(|links| DeviceBuffer::of(device.runtime(), &links).unwrap());
        let uploaded = Uploaded::new(&device, &data, &[7, 8, 9], &[-1, -1, -1]);
        let (input, given) = uploaded.input();
        let [first_child, next_sibling] =
            links.each_ref().map(|links| DeviceSlice::of(links, IntType::I64).into());
        let given = Drafts { tree: Tree::Links { first_child, next_sibling }, ..given };
        both.device.enqueue(&[Work::verify(input, given)]).unwrap();
        both.device.fetch(&mut both.seen).unwrap();
        assert_eq!(both.seen.status(0), Status::NO_TREE);
        assert_eq!(both.seen.accepted()[0], 0);
        // The other request goes on with its draft, and the first takes a step.
        let own: Vec<f32> = kept.iter().flat_map(|row| data[row * VOCAB..][..VOCAB].to_vec()).collect();
        let (counts, drafts) = (&[0, 1], Drafts::chain(&[9]));
        let logits = Rows::logits(&own, 3, VOCAB).unwrap();
        both.host.verify(logits, &Batch { counts, ..Batch::of(&slots) }, &drafts, &mut both.wanted).unwrap();
        assert_eq!(both.seen.request(0).tokens, both.wanted.request(0).tokens);
        assert_eq!(both.seen.request(1).tokens, both.wanted.request(1).tokens);
    }
    let short = DeviceBuffer::of(device.runtime(), &[1i32; 4]).unwrap();
    let uploaded = Uploaded::new(&device, &data, &[7, 8, 9], &[-1, -1, -1]);
    let (input, given) = uploaded.input();
    let [first_child, next_sibling] = [(); 2].map(|()| DeviceSlice::of(&short, IntType::I32).into());
    let given = Drafts { tree: Tree::Links { first_child, next_sibling }, ..given };
    let error = both.device.enqueue(&[Work::verify(input, given)]);
    let text = "first_child has length 4, but must have 5, one per request and one per draft";
    assert_eq!(error.unwrap_err().to_string(), text);
}

#[test]
fn a_graph_reads_the_drafts_that_lie_there_when_it_is_replayed() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    let config = PoolConfig { place: place(&device, true), ..config(&device) };
    both.device = Pool::new(config).unwrap();
    let slots: Vec<Slot> =
        [1, 3, 6, 7].into_iter().map(|kind| both.admit(params(kind, 2), &[3, 7])).collect();
    let three = [&slots[..3], &slots[1..]];
    let counts = [[2, 0, 3], [1, 3, 1]];
    // Two verifications, so that the second begins from what the first has left on the device.
    let batch = |turn: usize| {
        let mut random = Random(10 + turn as u64);
        let ids: Vec<i32> = (0..5).map(|_| [7, 160, 240, 5, NONE][random.below(5)]).collect();
        (rows((0..8).map(|row| row % 3 + turn as u64)), ids)
    };
    let parents = [[-1, -1, -1, 0, 0], [-1, -1, 0, 1, -1]];
    let options = Batch::default();
    both.device
        .assign(&Batch { slots: three[0], counts: &counts[0], mode: VerifyMode::Coupled, ..options })
        .unwrap();
    let wide = |ids: &[i32]| ids.iter().map(|id| i64::from(*id)).collect::<Vec<i64>>();
    for pair in 0..2 {
        let both_batches = [batch(2 * pair), batch(2 * pair + 1)];
        let uploaded: Vec<Uploaded> = both_batches
            .iter()
            .map(|(data, ids)| Uploaded::new(&device, data, &wide(ids), &parents[pair]))
            .collect();
        let graph = both.device.capture(&[uploaded[0].work(), uploaded[1].work()]).unwrap();
        both.device
            .assign(&Batch {
                slots: three[pair],
                counts: &counts[pair],
                mode: VerifyMode::Coupled,
                ..options
            })
            .unwrap();
        both.device.replay(&graph).unwrap();
        both.device.fetch(&mut both.seen).unwrap();
        for (data, ids) in &both_batches {
            let (counts, drafts) = (&counts[pair], Drafts::tree(ids, &parents[pair]));
            let (logits, none) = (Rows::logits(data, 8, VOCAB).unwrap(), Batch::default());
            both.host
                .verify(logits, &Batch { slots: three[pair], counts, ..none }, &drafts, &mut both.wanted)
                .unwrap();
        }
        both.agree(three[pair]);
    }
    // A step follows, and a graph of drafts is held to its shape.
    let (data, ids) = batch(4);
    let uploaded = Uploaded::new(&device, &data, &wide(&ids), &parents[0]);
    let graph = both.device.capture(&[uploaded.work()]).unwrap();
    both.step(&slots);
    let error = both.device.replay(&graph).unwrap_err().to_string();
    assert!(error.starts_with("work cannot be combined with assignment"), "{error}");
    both.device.assign(&Batch::of(&slots)).unwrap();
    let error = both.device.replay(&graph).unwrap_err().to_string();
    assert!(error.starts_with("slots has length 4, but must have 8 rows"), "{error}");
    both.device
        .assign(&Batch { slots: three[0], counts: &counts[0], mode: VerifyMode::Greedy, ..options })
        .unwrap();
    let error = both.device.replay(&graph).unwrap_err().to_string();
    assert!(error.starts_with("assignment cannot be combined with step"), "{error}");
    let (input, _) = uploaded.input();
    let error = both.device.enqueue(&[Work::step(input)]).unwrap_err().to_string();
    assert!(error.contains("needs an assignment with their counts"), "{error}");
    let (input, drafts) = uploaded.input();
    let error = both
        .device
        .on_device()
        .unwrap()
        .enqueue_variant(&[Work::verify(input, drafts)], StepVariant::TopP)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("variant is top_p, but must be "), "{error}");
}

#[test]
fn parents_that_are_no_tree_end_a_walk_after_one_token_with_a_status() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    let slots = [1, 3].map(|kind| both.admit(params(kind, 2), &[3, 7]));
    let data = rows(0..7);
    for wrong in [[0, -1], [-1, 1], [-1, 5], [-2, 0], [i32::MIN, i32::MAX]] {
        let parents = [&wrong[..], &[-1, 0, 1]].concat();
        let uploaded = Uploaded::new(&device, &data, &[5, i64::MAX, 7, 1 << 40, 5], &parents);
        let (input, drafts) = uploaded.input();
        let options = Batch::default();
        both.device
            .assign(&Batch { slots: &slots, counts: &[2, 3], mode: VerifyMode::Coupled, ..options })
            .unwrap();
        both.device.enqueue(&[Work::verify(input, drafts)]).unwrap();
        both.device.fetch(&mut both.seen).unwrap();
        assert_eq!(both.seen.status(0), Status::NO_TREE);
        assert_eq!((both.seen.request(0).tokens.len(), both.seen.request(0).rows), (1, &[0][..]));
        assert_eq!(both.seen.status(3), Status::default());
        // But for the status it is a step; the other request has its drafts.
        let ids = [5, 5, 7, NONE, 5];
        let (counts, drafts) = (&[0, 3], Drafts::chain(&ids[2..]));
        let own: Vec<f32> = [&data[..VOCAB], &data[3 * VOCAB..]].concat();
        let logits = Rows::logits(&own, 5, VOCAB).unwrap();
        let none = Batch::default();
        both.host
            .verify(logits, &Batch { slots: &slots, counts, ..none }, &drafts, &mut both.wanted)
            .unwrap();
        assert_eq!(both.seen.request(0).tokens, both.wanted.request(0).tokens);
        assert_eq!(both.seen.request(1).tokens, both.wanted.request(1).tokens);
        for slot in slots {
            let state = both.host.sequence(slot).unwrap().state();
            assert_eq!(both.device.sequence(slot).unwrap().state(), state);
        }
    }
}

#[test]
fn a_pool_of_the_route_probabilities_verifies_what_the_host_does() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    let config = PoolConfig { route: Route::Probabilities, kept: false, ..config(&device) };
    both.device = Pool::new(config).unwrap();
    let widths = Widths { top_n: 3, ids: 2 };
    let route = gumball_engine::Route::Probabilities;
    both.host = Pool::new(PoolConfig {
        slots: 16,
        place: Place::threads(1),
        widths,
        route,
        ..PoolConfig::new(VOCAB)
    })
    .unwrap();
    (both.wanted, both.seen) = (Outputs::new(), Outputs::new());
    let sampled = SamplingParams { temperature: 0.7, top_p: 0.9, ..SamplingParams::default() };
    let slots = [
        both.admit(SamplingParams { seed: Some(3), stop_ids: vec![6], ..sampled.clone() }, &[1]),
        both.admit(SamplingParams { seed: Some(4), ..sampled }, &[2]),
    ];
    let sure = |id: usize| {
        let mut row = row(id as u64);
        (row[id], row[11]) = (60.0, f32::NAN);
        row
    };
    let data = [sure(5), sure(6), sure(7), sure(8), sure(5), sure(6)].concat();
    let (counts, drafts) = (&[3, 1], Drafts::tree(&[4, 5, 6, 5], &[-1, -1, 1, -1]));
    let logits = Rows::logits(&data, 6, VOCAB).unwrap();
    for mode in [VerifyMode::Coupled, VerifyMode::Greedy] {
        both.verify(logits, &Batch { slots: &slots, counts, mode, ..Batch::default() }, &drafts);
        assert_eq!((both.seen.request(0).tokens, both.seen.request(0).rows), (&[5, 7][..], &[0, 2][..]));
        assert_eq!(both.seen.status(1), Status::NAN);
    }
    // The stop id 6 ends the walk of the first request alone.
    let (counts, drafts) = (&[1, 1], Drafts::chain(&[6, 6]));
    let data = [sure(6), sure(7), sure(6), sure(7)].concat();
    let logits = Rows::logits(&data, 4, VOCAB).unwrap();
    both.verify(logits, &Batch { slots: &slots, counts, ..Batch::default() }, &drafts);
    assert_eq!((both.seen.request(0).tokens, both.seen.request(1).tokens), (&[6][..], &[6, 7][..]));
}

/// Numbers of drafts, drafts and what they follow.
type Given = (&'static [u32], &'static [i32], Tree<'static>);

#[test]
fn what_a_device_cannot_verify_is_refused_and_changes_nothing() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    let (a, b) = (both.admit(params(3, 1), &[1]), both.admit(params(MIROSTAT, 2), &[2]));
    let data = rows(0..4);
    let logits = Rows::logits(&data, 4, VOCAB).unwrap();
    let none = Batch::default();
    let hook = |_: &mut [f32]| {};
    let hooks: [Option<RowHook<'_>>; 4] = [None, None, Some(&hook), None];
    let hooked = Batch { hooks: &hooks, ..none };
    let good: Given = (&[2, 0], &[1, 2], Tree::Parents(Ids::Host(&[-1, 0])));
    let coupled = VerifyMode::Coupled;
    let cases: [(&str, &[Slot], Given, VerifyMode, Batch<'_>); 6] = [
        (
            "no hooks on a device: row 2 has one, which runs on the host; step it in a pool of the host",
            &[a, b],
            good,
            coupled,
            hooked,
        ),
        (
            "mirostat cannot be combined with drafts: its limit moves with every token that is drawn; let the request step \
             without drafts",
            &[a, b],
            (&[1, 1], &[1, 2], Tree::Chain),
            coupled,
            none,
        ),
        (
            "parents is 1 for node 0 of request 0, but must be in -1..0, a node before it",
            &[a, b],
            (&[2, 0], &[1, 2], Tree::Parents(Ids::Host(&[1, 0]))),
            coupled,
            none,
        ),
        ("drafts.counts is 65 in request 0", &[a, b], (&[65, 0], &[1], Tree::Chain), coupled, none),
        ("logits has length 4, but must have 3 rows", &[a, b], (&[1, 0], &[1], Tree::Chain), coupled, none),
        ("slots is 0 in row 1 again", &[a, a], good, coupled, none),
    ];
    for (message, slots, (counts, ids, tree), mode, options) in cases {
        let drafts = Drafts { tree, ..Drafts::chain(ids) };
        let error = both
            .device
            .verify(logits, &Batch { slots, counts, mode, ..options }, &drafts, &mut both.seen)
            .unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
        for slot in [a, b] {
            assert_eq!(both.device.sequence(slot).unwrap().position(), 1, "{message}");
        }
    }
    let error =
        both.device.assign(&Batch { counts: &[64, 0], mode: coupled, ..Batch::of(&[a]) }).unwrap_err();
    assert_eq!(error.to_string(), "counts has length 2, but must have one per slot, 1");
    let many: Vec<Slot> = (0..4).map(|_| both.admit(params(0, 1), &[1])).collect();
    let error =
        both.device.assign(&Batch { counts: &[64; 4], mode: coupled, ..Batch::of(&many) }).unwrap_err();
    assert!(error.to_string().starts_with("counts has length 260, but must have at most 200 requests"));
    // The drafts of padding are not looked at, and an empty batch is verified.
    let odd = Drafts::tree(&[1, 2], &[7, i32::MIN]);
    both.verify(logits, &Batch { slots: &[PADDING, b], counts: &[2, 0], mode: coupled, ..none }, &odd);
    assert_eq!((both.seen.request(0).tokens.len(), both.seen.request(1).tokens.len()), (0, 1));
    let nothing = Rows::logits(&[0.0f32; 0], 0, VOCAB).unwrap();
    both.verify(nothing, &Batch { slots: &[], mode: coupled, ..none }, &Drafts::default());
    let error = both.device.shorten(&[a], &[1]).unwrap_err().to_string();
    assert_eq!(error, "counts is 1 of slot 0, but must be in 0..=0, its output tokens");
}

#[test]
fn released_requests_are_padding_and_later_ones_take_their_rows() {
    let Some(device) = device() else { return };
    let mut both = Both::new(&device);
    let slots = [1, 3].map(|kind| both.admit(params(kind, 2), &[3, 7]));
    let data = rows(0..4);
    let logits = Rows::logits(&data, 4, VOCAB).unwrap();
    let (counts, drafts) = (&[1, 1], Drafts::chain(&[1, 2]));
    let none = Batch::default();
    both.verify(logits, &Batch { slots: &slots, counts, ..none }, &drafts);
    let uploaded = Uploaded::new(&device, &data, &[1, 2], &[-1, -1]);
    both.device.assign(&Batch { slots: &slots, counts, ..none }).unwrap();
    both.host.release(slots[0]).unwrap();
    both.device.release(slots[0]).unwrap();
    let (input, on_device) = uploaded.input();
    both.device.enqueue(&[Work::verify(input, on_device)]).unwrap();
    both.device.fetch(&mut both.seen).unwrap();
    both.host
        .verify(logits, &Batch { slots: &[PADDING, slots[1]], counts, ..none }, &drafts, &mut both.wanted)
        .unwrap();
    both.agree(&[PADDING, slots[1]]);
    // A later request has longer lists than the one whose rows it takes.
    let long: Vec<u32> = (0..300).map(|id| id * 3).collect();
    let slot = both.admit(params(7, 5), &long);
    assert_eq!(slot, slots[0]);
    both.verify(logits, &Batch { slots: &slots, counts, ..none }, &drafts);
    // What changes a sequence writes its lists again.
    both.host.push(slot, 9).unwrap();
    both.device.push(slot, 9).unwrap();
    both.verify(logits, &Batch { slots: &slots, counts, ..none }, &drafts);
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
    // More ids than a block lists at once, and none but those that are biased.
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
