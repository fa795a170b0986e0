//! Operators on a device, which the host emulates here, come to what those of the host come to.

use gumball_engine::{
    Device, DeviceBuffer, DeviceLogits, DeviceOperators, DevicePerRow, DeviceRowParams, DeviceRows,
    DeviceSlice, Dtype, Error, FilterOrder, Kind, Logits, LogitsMut, Operators, RowParams, SamplingParams,
    Status, bf16,
};

use crate::cases::{VOCAB, rows};

const ROWS: usize = 5;
const TEMPERATURES: [f32; ROWS] = [1.0, 0.0, 0.01, 100.0, 0.7];

fn operators() -> Option<DeviceOperators> {
    let device = Device::emulated().inspect_err(|error| println!("skipped: {error}")).ok()?;
    Some(DeviceOperators::new(device))
}

fn words(buffer: &DeviceBuffer) -> Vec<u32> {
    let mut words = vec![0; buffer.bytes() / 4];
    buffer.read(0, &mut words).unwrap();
    words
}

#[test]
fn a_softmax_is_the_hosts_bit_for_bit() {
    let Some(mut operators) = operators() else { return };
    let runtime = operators.device().runtime().clone();
    let mut data = rows(0..ROWS as u64);
    data[VOCAB..2 * VOCAB].fill(f32::NEG_INFINITY);
    data[3 * VOCAB + 5] = f32::NAN;
    let host = Operators::new(None, Some(1)).unwrap();
    let column = DeviceBuffer::of(&runtime, &TEMPERATURES).unwrap();
    let logits = DeviceBuffer::of(&runtime, &data).unwrap();
    let from = DeviceLogits::of(&logits, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    for each in [0.7.into(), TEMPERATURES[..].into(), DevicePerRow::Device(DeviceSlice::of(&column))] {
        let on_host = match each {
            DevicePerRow::All(all) => all.into(),
            _ => (&TEMPERATURES[..]).into(),
        };
        let mut wanted = vec![0.0f32; ROWS * VOCAB];
        let to = LogitsMut::new(&mut wanted, ROWS, VOCAB).unwrap();
        let told = host.softmax(Logits::new(&data, ROWS, VOCAB).unwrap(), on_host, to).unwrap();
        assert_eq!(told[1], Status::EMPTY);

        let mut out = DeviceBuffer::zeroed(&runtime, ROWS * VOCAB * 4).unwrap();
        let statuses = DeviceBuffer::zeroed(&runtime, ROWS * 4).unwrap();
        let to = DeviceRows::of(&mut out, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
        operators.softmax(&from, each, &to, Some(&DeviceSlice::of(&statuses))).unwrap();
        assert_eq!(words(&out), bits(&wanted));
        assert_eq!(words(&statuses), told.iter().map(|status| status.0).collect::<Vec<u32>>());
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn in_place_each_number_is_rounded_once() {
    let Some(mut operators) = operators() else { return };
    let runtime = operators.device().runtime().clone();
    let narrow: Vec<bf16> = rows(0..ROWS as u64).iter().map(|z| bf16::from_f32(*z)).collect();
    let mut wanted = narrow.clone();
    let host = Operators::new(None, Some(1)).unwrap();
    host.softmax_in_place(LogitsMut::new(&mut wanted, ROWS, VOCAB).unwrap(), 0.3.into()).unwrap();
    let halves: Vec<u16> = narrow.iter().map(|z| z.to_bits()).collect();
    let mut memory = DeviceBuffer::of(&runtime, &halves).unwrap();
    let place = DeviceRows::of(&mut memory, Dtype::Bf16, 0, ROWS, VOCAB, VOCAB).unwrap();
    operators.softmax_in_place(&place, 0.3.into(), None).unwrap();
    let mut seen = vec![0u16; ROWS * VOCAB];
    memory.read(0, &mut seen).unwrap();
    assert_eq!(seen, wanted.iter().map(|p| p.to_bits()).collect::<Vec<u16>>());
}

/// Numbers that need not sum to 1, with a row of nothing and numbers that count as 0.
fn weights() -> Vec<f32> {
    let mut weights: Vec<f32> = rows(0..ROWS as u64).iter().map(|z| z.exp()).collect();
    weights[VOCAB..2 * VOCAB].fill(0.0);
    weights[3 * VOCAB + 5] = f32::NAN;
    weights[4 * VOCAB + 1] = -1.0;
    weights
}

#[test]
fn rows_of_probabilities_are_the_hosts_bit_for_bit() {
    let Some(mut operators) = operators() else { return };
    let runtime = operators.device().runtime().clone();
    let (data, host) = (weights(), Operators::new(None, Some(1)).unwrap());
    let buffer = DeviceBuffer::of(&runtime, &data).unwrap();
    let from = DeviceLogits::of(&buffer, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    let from = from.with_kind(Kind::Probabilities);
    let (ks, ps) = ([3i64, 0, 40, 1, 7], [0.9f32, 0.5, 1.0, 0.3, 0.6]);
    let common = [
        SamplingParams::default(),
        SamplingParams { min_p: 0.1, order: FilterOrder::Joint, ..SamplingParams::default() },
        SamplingParams { typical_p: 0.8, ..SamplingParams::default() },
    ];
    let cases = [(0, false, false), (0, true, false), (0, true, true), (1, true, false), (2, false, true)];
    for (common, listed, masked) in cases.map(|(which, listed, masked)| (&common[which], listed, masked)) {
        let (mut on_host, mut given) = (RowParams::new(common), DeviceRowParams::new(common));
        if listed {
            (on_host.top_k, on_host.top_p) = (&ks, &ps);
            (given.top_k, given.top_p) = (Some(ks[..].into()), Some(ps[..].into()));
        }
        let mut wanted = vec![7.0f32; ROWS * VOCAB];
        let to = LogitsMut::new(&mut wanted, ROWS, VOCAB).unwrap();
        let rows = Logits::new(&data, ROWS, VOCAB).unwrap().with_kind(Kind::Probabilities);
        let told = match masked {
            true => host.mask_logits(rows, &on_host, to),
            false => host.probabilities(rows, &on_host, to),
        };
        let told: Vec<u32> = told.unwrap().iter().map(|status| status.0).collect();

        let mut out = DeviceBuffer::zeroed(&runtime, ROWS * VOCAB * 4).unwrap();
        let statuses = DeviceBuffer::zeroed(&runtime, ROWS * 4).unwrap();
        let column = DeviceSlice::of(&statuses);
        let to = DeviceRows::of(&mut out, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
        match masked {
            true => operators.mask_logits(&from, &given, &to, Some(&column)),
            false => operators.probabilities(&from, &given, &to, Some(&column)),
        }
        .unwrap();
        assert_eq!(words(&out), bits(&wanted), "{common:?}, listed: {listed}, masked: {masked}");
        assert_eq!(words(&statuses), told);
        if !listed {
            continue;
        }

        let mut place = DeviceBuffer::of(&runtime, &data).unwrap();
        let rows = DeviceRows::of(&mut place, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
        let rows = rows.with_kind(Kind::Probabilities);
        match masked {
            true => operators.mask_logits_in_place(&rows, &given, None),
            false => operators.probabilities_in_place(&rows, &given, None),
        }
        .unwrap();
        assert_eq!(words(&place), bits(&wanted), "in place");
    }
}

#[test]
fn parameters_of_logits_are_refused_where_rows_are_probabilities() {
    let Some(mut operators) = operators() else { return };
    let runtime = operators.device().runtime().clone();
    let buffer = DeviceBuffer::of(&runtime, &weights()).unwrap();
    let mut out = DeviceBuffer::of(&runtime, &vec![7u32; ROWS * VOCAB]).unwrap();
    let from = DeviceLogits::of(&buffer, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    let from = from.with_kind(Kind::Probabilities);
    let to = DeviceRows::of(&mut out, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    let (neutral, hot) =
        (SamplingParams::default(), SamplingParams { temperature: 0.7, ..SamplingParams::default() });
    let listed =
        DeviceRowParams { temperature: Some(TEMPERATURES[..].into()), ..DeviceRowParams::new(&neutral) };
    for params in [DeviceRowParams::new(&hot), listed] {
        let error = operators.probabilities(&from, &params, &to, None).unwrap_err();
        assert!(error.to_string().starts_with("temperature"), "{error}");
        let error = operators.mask_logits(&from, &params, &to, None).unwrap_err();
        assert!(error.to_string().starts_with("temperature"), "{error}");
    }
    let error = operators.softmax(&from, 1.0.into(), &to, None).unwrap_err();
    assert_eq!(error.to_string(), "kind is probabilities, but must be logits");
    assert!(words(&out).iter().all(|word| *word == 7));
}

#[test]
fn mistakes_are_named_and_nothing_is_written() {
    let Some(mut operators) = operators() else { return };
    let runtime = operators.device().runtime().clone();
    let logits = DeviceBuffer::zeroed(&runtime, ROWS * VOCAB * 4).unwrap();
    let mut out = DeviceBuffer::of(&runtime, &vec![7u32; ROWS * VOCAB]).unwrap();
    let from = DeviceLogits::of(&logits, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    let to = DeviceRows::of(&mut out, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    let mut refused = |each: DevicePerRow<'_, f32>| match operators.softmax(&from, each, &to, None) {
        Err(error @ (Error::OutOfRange { .. } | Error::Length { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let allowed = "but must be 0 (greedy) or in (0, 2^100]";
    assert_eq!(refused((-1.0).into()), format!("temperature is -1, {allowed}"));
    assert_eq!(refused([1.0, 1.0, f32::NAN, 1.0, 1.0][..].into()), format!("temperature is NaN, {allowed}"));
    assert_eq!(refused([1.0; 2][..].into()), "temperature has length 2, but must have one per row, 5");
    assert!(words(&out).iter().all(|word| *word == 7));
}
