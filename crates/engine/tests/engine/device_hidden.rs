//! Steps and verifications from hidden states on an emulated device, with the results that a pool of the host
//! has.

use gumball_engine::head::{
    Certified, Clustered, ClusteredOptions, Clusters, Exact, HeadOptions, HostMatrix,
};
use gumball_engine::unstable::head::WholeRow;
use gumball_engine::{
    Batch, Device, DeviceBuffer, DeviceHead, DeviceMatrix, DeviceSlice, Drafts, Dtype, Error, Head, IntType,
    Outputs, Pool, PoolConfig, Route, Row, Rows, SamplingParams, Slot, VerifyMode, Work, bf16,
};
use gumball_spec::head::clusters::Clusters as ClustersOfSpec;
use gumball_spec::head::logits;

use crate::cases::{VOCAB, device, on_device, pool};
use crate::hidden::{WIDTH, mixture, numbers, scaling};

/// The steps of a test, and the rows of each.
const STEPS: u64 = 4;
const ROWS: usize = 12;

/// Makes an exact head of weights, with a scale and a cap.
fn exact(weights: &[bf16]) -> Exact<'_> {
    Exact::new(weights, VOCAB, WIDTH, HeadOptions { scaling: scaling(), ..Default::default() }).unwrap()
}

/// Both heads on a device, each for `ROWS` rows.
fn heads<'w>(device: &Device, certified: &Certified<'w>) -> [DeviceHead<'static>; 2] {
    let of = |head: Head<'_>| DeviceHead::new(device, head, ROWS).unwrap();
    [of(Head::Exact(certified.exact())), of(Head::Certified(certified))]
}

/// Clusters of seven ids, with fewer in the last one; their order has nothing to do with the weights. The
/// device keeps centroids that bf16 holds, the short ones, in half the bytes.
fn clusters(is_short: bool) -> Clusters {
    let ids: Vec<u32> = (0..VOCAB as u32).map(|i| i * 7919 % VOCAB as u32).collect();
    let centroids = numbers(VOCAB.div_ceil(7) * WIDTH, 9, 1.0).into_iter().map(bf16::to_f32);
    let centroids = centroids.map(|x| if is_short { x } else { x * 1.000_000_1 }).collect();
    Clusters::new(ids, 7, centroids, (VOCAB, WIDTH)).unwrap()
}

fn clustered_options() -> ClusteredOptions {
    ClusteredOptions { special_ids: vec![5, 3], ..ClusteredOptions::default() }
}

fn config(device: &Device) -> PoolConfig {
    PoolConfig { kept: true, ..crate::cases::config(on_device(device, false)) }
}

/// A pool of the host and one of a device, with `ROWS` requests of the mixture each, and their slots.
fn admitted(device: &Device) -> (Pool, Pool, Vec<Slot>) {
    let (mut host, mut on_device) = (pool(1), Pool::new(config(device)).unwrap());
    let slots: Vec<_> = (0..ROWS).map(|kind| host.admit(mixture(kind), &[5]).unwrap()).collect();
    for (kind, slot) in slots.iter().enumerate() {
        assert_eq!(on_device.admit(mixture(kind), &[5]), Ok(*slot));
    }
    (host, on_device, slots)
}

/// Steps `ROWS` hidden states: in a graph if `captured`.
fn step_hidden(
    pool: &mut Pool,
    head: &DeviceHead<'_>,
    slots: &[Slot],
    data: &[bf16],
    captured: bool,
    out: &mut Outputs,
) {
    if !captured {
        let states = HostMatrix::new(data, ROWS, WIDTH).unwrap();
        return pool.step(Rows::hidden(head, states), &Batch::of(slots), out).unwrap();
    }
    let buffer = DeviceBuffer::of(pool.device().unwrap().runtime(), data).unwrap();
    let rows = DeviceMatrix::of(&buffer, Dtype::Bf16, 0, ROWS, WIDTH, WIDTH).unwrap();
    pool.assign(&Batch::of(slots)).unwrap();
    let graph = pool.capture(&[Work::step(Rows::hidden(head, rows))]).unwrap();
    pool.replay(&graph).unwrap();
    pool.fetch(out).unwrap();
}

#[test]
fn a_graph_steps_from_hidden_states() {
    let Some(device) = device() else { return };
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let certified = Certified::new(exact(&weights));
    let data = numbers(2 * ROWS * WIDTH, 9, 3.0);
    let buffer = DeviceBuffer::of(device.runtime(), &data).unwrap();
    for (head, is_screened) in heads(&device, &certified).iter().zip([false, true]) {
        let (mut host, mut on_device, slots) = admitted(&device);
        on_device.assign(&Batch::of(&slots)).unwrap();
        let inputs = [0, 1].map(|step| {
            let start = step * ROWS * WIDTH;
            let states = DeviceMatrix::of(&buffer, Dtype::Bf16, start, ROWS, WIDTH, WIDTH).unwrap();
            Work::step(Rows::hidden(head, states))
        });
        let graph = on_device.capture(&inputs).unwrap();
        let (mut expected, mut seen) = (Outputs::new(), Outputs::new());
        for _ in 0..3 {
            for data in data.chunks(ROWS * WIDTH) {
                let states = HostMatrix::new(data, ROWS, WIDTH).unwrap();
                host.step(Rows::hidden(certified.exact(), states), &Batch::of(&slots), &mut expected)
                    .unwrap();
            }
            on_device.replay(&graph).unwrap();
            on_device.fetch(&mut seen).unwrap();
            assert_eq!(seen.words(), expected.words());
        }
        let counts = head.counts().unwrap();
        assert_eq!(counts.certified_rows >= 6 * 6, is_screened, "{counts:?}");
        assert_eq!(counts.whole_rows + counts.certified_rows, 6 * ROWS as u64);
        assert!(counts.certified_logits <= counts.certified_rows * VOCAB as u64 / 4, "{counts:?}");
    }
}

#[test]
fn drafts_are_verified_from_hidden_states() {
    let Some(device) = device() else { return };
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let certified = Certified::new(exact(&weights));
    let kinds = [0, 1, 2, 3];
    let n = kinds.len();
    let data = numbers(3 * n * WIDTH, 31, 3.0);
    let states = HostMatrix::new(&data, 3 * n, WIDTH).unwrap();
    let by_definition = |row| logits(Row::Bf16(&weights), states.row(row), None, &scaling());
    let z: Vec<f32> = (0..3 * n).flat_map(by_definition).collect();
    let (clusters, options) = (clusters(true), clustered_options());
    let of_spec = ClustersOfSpec {
        maps: clusters.maps(),
        capacity: clusters.capacity(),
        centroids: clusters.centroids(),
        probes: options.probes(&clusters),
        special_ids: &options.special_ids,
    };
    let by_definition = |row| of_spec.logits(Row::Bf16(&weights), states.row(row), None, &scaling());
    let probed: Vec<f32> = (0..3 * n).flat_map(by_definition).collect();
    let upload = |data: &[bf16]| DeviceBuffer::of(device.runtime(), data).unwrap();
    let upload_rows = |rows: &[f32]| DeviceBuffer::of(device.runtime(), rows).unwrap();
    let (hidden, rows, probed) = (upload(&data), upload_rows(&z), upload_rows(&probed));
    let drafts = DeviceBuffer::of(device.runtime(), &(0..2 * n as i32).collect::<Vec<_>>()).unwrap();
    let drafts = Drafts::chain(DeviceSlice::of(&drafts, IntType::I32));
    let modes = [VerifyMode::Coupled, VerifyMode::Greedy, VerifyMode::Block];
    for (mode, captured) in modes.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let [of_exact, of_certified] = heads(&device, &certified);
        let of_clusters = DeviceHead::new(&device, certified.exact(), ROWS).unwrap();
        let of_clusters = of_clusters.with_clusters(&clusters, &options).unwrap();
        for (head, rows) in [(&of_exact, &rows), (&of_certified, &rows), (&of_clusters, &probed)] {
            let mut pools = [(); 2].map(|()| Pool::new(config(&device)).unwrap());
            let mut out = [(); 2].map(|()| Outputs::new());
            let slots: Vec<_> =
                kinds.iter().map(|kind| pools[0].admit(mixture(*kind), &[3]).unwrap()).collect();
            for (kind, slot) in kinds.iter().zip(&slots) {
                assert_eq!(pools[1].admit(mixture(*kind), &[3]), Ok(*slot));
            }
            for pool in &mut pools {
                pool.assign(&Batch { counts: &vec![2; n], mode, ..Batch::of(&slots) }).unwrap();
            }
            let of_logits = DeviceMatrix::of(rows, Dtype::F32, 0, 3 * n, VOCAB, VOCAB).unwrap();
            let of_hidden = DeviceMatrix::of(&hidden, Dtype::Bf16, 0, 3 * n, WIDTH, WIDTH).unwrap();
            let of_hidden = Work::verify(Rows::hidden(head, of_hidden), drafts);
            for _ in 0..2 {
                pools[0].enqueue(&[Work::verify(of_logits, drafts)]).unwrap();
                if captured {
                    let graph = pools[1].capture(&[of_hidden]).unwrap();
                    pools[1].replay(&graph).unwrap();
                } else {
                    pools[1].enqueue(&[of_hidden]).unwrap();
                }
                pools.iter_mut().zip(&mut out).for_each(|(pool, out)| pool.fetch(out).unwrap());
                let [wanted, seen] = &out;
                assert_eq!(seen.words(), wanted.words(), "{mode:?}");
                assert_eq!(seen.accepted(), wanted.accepted(), "{mode:?}");
                assert_eq!(seen.is_approximate(), head.is_approximate());
            }
        }
    }
}

#[test]
fn what_a_head_cannot_take_is_refused_before_anything_changes() {
    let Some(device) = device() else { return };
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let head = exact(&weights);
    let small = DeviceHead::new(&device, &head, 2).unwrap();
    let mut on_device = Pool::new(PoolConfig { kept: false, ..config(&device) }).unwrap();
    let slots = [0, 1, 2].map(|kind| on_device.admit(mixture(kind), &[]).unwrap());
    let buffer = DeviceBuffer::of(device.runtime(), &numbers(3 * WIDTH, 9, 3.0)).unwrap();
    let rows = |count, width| DeviceMatrix::of(&buffer, Dtype::Bf16, 0, count, width, width).unwrap();
    let none = Batch::default();
    let mut enqueue = |head: &DeviceHead<'_>, rows: DeviceMatrix<'_>, batch: Batch<'_>| {
        on_device.assign(&batch)?;
        on_device.enqueue(&[Work::step(Rows::hidden(head, rows))])
    };
    let refused = enqueue(&small, rows(3, WIDTH), Batch { slots: &slots, ..none });
    assert!(matches!(refused, Err(Error::Length { parameter: "hidden", .. })), "{refused:?}");
    let refused = enqueue(&small, rows(2, WIDTH - 1), Batch { slots: &slots[..2], ..none });
    assert!(matches!(refused, Err(Error::Length { parameter: "hidden", .. })), "{refused:?}");
    let options = Batch { row_indices: &[0, 0], ..none };
    let refused = enqueue(&small, rows(2, WIDTH), Batch { slots: &slots[..2], ..options });
    assert!(matches!(refused, Err(Error::Conflict { parameter: "row_indices", .. })), "{refused:?}");
    let other = Exact::new(&weights[..WIDTH], 1, WIDTH, HeadOptions::default()).unwrap();
    let other = DeviceHead::new(&device, &other, 2).unwrap();
    let refused = enqueue(&other, rows(2, WIDTH), Batch { slots: &slots[..2], ..none });
    assert!(matches!(refused, Err(Error::Length { parameter: "head", .. })), "{refused:?}");
    let refused = enqueue(&small, rows(2, WIDTH), Batch { slots: &slots[..1], ..none });
    assert!(matches!(refused, Err(Error::Length { parameter: "hidden", .. })), "{refused:?}");
    let data = numbers(3 * WIDTH, 9, 3.0);
    for (rows, width) in [(1, WIDTH), (2, WIDTH - 1)] {
        let states = HostMatrix::new(&data[..rows * width], rows, width).unwrap();
        let batch = Batch { counts: &[1], ..Batch::of(&slots[..1]) };
        let refused =
            on_device.verify(Rows::hidden(&small, states), &batch, &Drafts::chain(&[7]), &mut Outputs::new());
        assert!(matches!(refused, Err(Error::Length { parameter: "hidden", .. })), "{refused:?}");
    }
    assert!(matches!(DeviceHead::new(&device, &head, 0), Err(Error::OutOfRange { parameter: "rows", .. })));
    assert!(slots.iter().all(|slot| on_device.sequence(*slot).unwrap().state().output.is_empty()));
    // What needs the whole row says so.
    assert_eq!(on_device.needs_whole_row(slots[0], false), Ok(None));
    let slot = on_device.admit(SamplingParams { top_p: 0.5, ..Default::default() }, &[]).unwrap();
    assert!(matches!(on_device.needs_whole_row(slot, false), Ok(Some(WholeRow::Filter(_)))));
}

#[test]
fn a_pool_that_draws_from_probabilities_takes_every_logit() {
    let Some(device) = device() else { return };
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let certified = Certified::new(exact(&weights));
    let head = DeviceHead::new(&device, &certified, ROWS).unwrap();
    let config = PoolConfig { route: Route::Probabilities, ..config(&device) };
    let mut pools = [(); 2].map(|()| Pool::new(config.clone()).unwrap());
    let data = numbers(3 * WIDTH, 31, 3.0);
    let states = HostMatrix::new(&data, 3, WIDTH).unwrap();
    let z: Vec<f32> =
        (0..3).flat_map(|row| logits(Row::Bf16(&weights), states.row(row), None, &scaling())).collect();
    let mut out = [(); 2].map(|()| Outputs::new());
    let base = |kind: u64| SamplingParams { seed: Some(kind), ..Default::default() };
    let slots = [0, 1, 2].map(|kind| pools[0].admit(base(kind), &[]).unwrap());
    for (kind, slot) in (0..).zip(slots) {
        assert_eq!(pools[1].admit(base(kind), &[]), Ok(slot));
    }
    for _ in 0..3 {
        let logits = Rows::logits(&z, 3, VOCAB).unwrap();
        pools[0].step(logits, &Batch::of(&slots), &mut out[0]).unwrap();
        pools[1].step(Rows::hidden(&head, states), &Batch::of(&slots), &mut out[1]).unwrap();
        assert_eq!(out[1].words(), out[0].words());
    }
    assert_eq!(pools[1].needs_whole_row(slots[0], false), Ok(Some(WholeRow::Route)));
    assert_eq!((head.counts().unwrap().certified_rows, head.counts().unwrap().whole_rows), (0, 9));
}

#[test]
fn a_fast_head_decides_as_its_own_logits_do() {
    let Some(device) = device() else { return };
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let of_host = exact(&weights);
    let head = DeviceHead::new(&device, &of_host, ROWS).unwrap().fast().unwrap();
    let clustered = Clustered::new(&of_host, clusters(false), &clustered_options()).unwrap();
    let probing = DeviceHead::new(&device, &clustered, ROWS).unwrap().fast().unwrap();
    for (head, captured) in [(&head, false), (&head, true), (&probing, false), (&probing, true)] {
        let (mut host, mut on_device, slots) = admitted(&device);
        let (mut expected, mut seen) = (Outputs::new(), Outputs::new());
        for step in 0..STEPS {
            let data = numbers(ROWS * WIDTH, 40 + step, 3.0);
            step_hidden(&mut on_device, head, &slots, &data, captured, &mut seen);
            let mut z = vec![0.0; ROWS * VOCAB];
            head.read_logits(&mut z).unwrap();
            let logits = Rows::logits(&z, ROWS, VOCAB).unwrap();
            host.step(logits, &Batch::of(&slots), &mut expected).unwrap();
            assert_eq!(seen.words(), expected.words(), "captured: {captured}, step {step}");
            assert_eq!(seen.is_approximate(), head.is_approximate());
        }
    }
    assert_eq!(head.counts().unwrap().whole_rows, 2 * STEPS * ROWS as u64);
    assert_eq!(probing.counts().unwrap().clustered_rows, 2 * STEPS * ROWS as u64);
    let certified = Certified::new(of_host.clone());
    let screened = DeviceHead::new(&device, &certified, ROWS).unwrap().fast();
    assert!(matches!(screened, Err(Error::Conflict { parameter: "fast", other: "screen", .. })));
    let refused = head.with_screen(&certified);
    assert!(matches!(refused, Err(Error::Conflict { parameter: "screen", other: "fast", .. })));
    let wide = vec![1.0f32; 2 * WIDTH];
    let wide = Exact::new(&wide[..], 2, WIDTH, HeadOptions::default()).unwrap();
    let refused = DeviceHead::new(&device, &wide, 1).unwrap().fast();
    assert!(matches!(refused, Err(Error::OutOfRange { parameter: "weights", .. })));
}

#[test]
fn a_clustered_head_gives_what_it_gives_on_the_host() {
    let Some(device) = device() else { return };
    let weights = numbers(VOCAB * WIDTH, 1, 1.0);
    let of_host = exact(&weights);
    for is_short in [false, true] {
        let (clusters, options) = (clusters(is_short), clustered_options());
        let count = clusters.count();
        let clustered = Clustered::new(&of_host, clusters, &options).unwrap();
        let head = DeviceHead::new(&device, &clustered, ROWS).unwrap();
        let over = DeviceHead::new(&device, &of_host, ROWS).unwrap();
        assert!(head.is_approximate() && !over.is_approximate());
        let over = over.with_clusters(clustered.clusters(), &options).unwrap();
        let mut logits = 0;
        for captured in [false, true] {
            let (mut host, mut on_device, slots) = admitted(&device);
            let (mut expected, mut seen) = (Outputs::new(), Outputs::new());
            for step in 0..STEPS {
                let head = if step % 2 == 0 { &head } else { &over };
                let data = numbers(ROWS * WIDTH, 40 + step, 3.0);
                let states = HostMatrix::new(&data, ROWS, WIDTH).unwrap();
                let options = Batch::default();
                host.step(
                    Rows::hidden(&clustered, states),
                    &Batch { slots: &slots, ..options },
                    &mut expected,
                )
                .unwrap();
                step_hidden(&mut on_device, head, &slots, &data, captured, &mut seen);
                assert_eq!(seen.words(), expected.words(), "captured: {captured}, step {step}");
                assert!(seen.is_approximate() && expected.is_approximate());
            }
            let z = vec![0.0; VOCAB];
            let logits_of_one = Rows::logits(&z, 1, VOCAB).unwrap();
            on_device.step(logits_of_one, &Batch::of(&slots[..1]), &mut seen).unwrap();
            assert!(!seen.is_approximate());
            logits += host.head_counts().clustered_logits;
        }
        let (one, other) = (head.counts().unwrap(), over.counts().unwrap());
        let rows = one.clustered_rows + other.clustered_rows;
        assert_eq!((rows, one.whole_rows), (2 * STEPS * ROWS as u64, 0));
        assert_eq!(one.clustered_logits + other.clustered_logits, logits);

        let refused = head.with_probes(count + 1);
        assert!(matches!(refused, Err(Error::OutOfRange { parameter: "probes", .. })), "{refused:?}");
        let refused = over.with_clusters(clustered.clusters(), &options);
        assert!(matches!(refused, Err(Error::Conflict { parameter: "clusters", other: "clusters", .. })));
        let exact = || DeviceHead::new(&device, &of_host, 1).unwrap();
        let refused = exact().with_probes(1);
        assert!(matches!(refused, Err(Error::OutOfRange { parameter: "probes", .. })));
    }
}
