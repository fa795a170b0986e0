//! Operators on a device, which the host emulates here, give the same as operators of the host.

use gumball_bench_protocol::skipped::or_skip;
use gumball_engine::{
    ColumnType, Device, DeviceBuffer, DeviceMatrix, DeviceRows, DeviceSlice, Draws, Dtype, Error,
    FilterOrder, IntType, Kind, LogitsMut, Operators, PerRow, PerRowMut, RowParams, Rows, RowsInOut,
    SamplingParams, Status, bf16,
};

use crate::cases::{VOCAB, rows};

const ROWS: usize = 5;
const TEMPERATURES: [f32; ROWS] = [1.0, 0.0, 0.01, 100.0, 0.7];

fn operators() -> Option<(Operators, Device)> {
    let device = or_skip(Device::emulated())?;
    Some((Operators::on_device(device.clone()), device))
}

fn words(buffer: &DeviceBuffer) -> Vec<u32> {
    let mut words = vec![0; buffer.bytes() / 4];
    buffer.read(0, &mut words).unwrap();
    words
}

#[test]
fn a_softmax_is_the_hosts_bit_for_bit() {
    let Some((operators, device)) = operators() else { return };
    let mut data = rows(0..ROWS as u64);
    data[VOCAB..2 * VOCAB].fill(f32::NEG_INFINITY);
    data[3 * VOCAB + 5] = f32::NAN;
    let host = Operators::new(None, Some(1)).unwrap();
    let column = DeviceBuffer::of(device.runtime(), &TEMPERATURES).unwrap();
    let logits = DeviceBuffer::of(device.runtime(), &data).unwrap();
    let from = DeviceMatrix::of(&logits, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    for each in
        [0.7.into(), TEMPERATURES[..].into(), PerRow::Device(DeviceSlice::of(&column, ColumnType::F32))]
    {
        let on_host = match each {
            PerRow::All(all) => all.into(),
            _ => (&TEMPERATURES[..]).into(),
        };
        let mut wanted = vec![0.0f32; ROWS * VOCAB];
        let to = LogitsMut::new(&mut wanted, ROWS, VOCAB).unwrap();
        let mut wanted_statuses = [Status::default(); ROWS];
        let logits = Rows::logits(&data, ROWS, VOCAB).unwrap();
        host.softmax((logits, to), on_host, Some(wanted_statuses[..].as_mut().into())).unwrap();
        assert_eq!(wanted_statuses[1], Status::EMPTY);

        let mut out = DeviceBuffer::zeroed(device.runtime(), ROWS * VOCAB * 4).unwrap();
        let statuses = DeviceBuffer::zeroed(device.runtime(), ROWS * 4).unwrap();
        let to = DeviceRows::of(&mut out, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
        let column = PerRowMut::Device(DeviceSlice::of(&statuses, IntType::U32));
        operators.softmax((from, to), each, Some(column)).unwrap();
        assert_eq!(words(&out), bits(&wanted));
        assert_eq!(words(&statuses), wanted_statuses.map(|status| status.0));
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn in_place_each_number_is_rounded_once() {
    let Some((operators, device)) = operators() else { return };
    let narrow: Vec<bf16> = rows(0..ROWS as u64).iter().map(|z| bf16::from_f32(*z)).collect();
    let mut wanted = narrow.clone();
    let host = Operators::new(None, Some(1)).unwrap();
    host.softmax(LogitsMut::new(&mut wanted, ROWS, VOCAB).unwrap(), 0.3.into(), None).unwrap();
    let halves: Vec<u16> = narrow.iter().map(|z| z.to_bits()).collect();
    let mut memory = DeviceBuffer::of(device.runtime(), &halves).unwrap();
    let place = DeviceRows::of(&mut memory, Dtype::Bf16, 0, ROWS, VOCAB, VOCAB).unwrap();
    operators.softmax(place, 0.3.into(), None).unwrap();
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
    let Some((operators, device)) = operators() else { return };
    let (data, host) = (weights(), Operators::new(None, Some(1)).unwrap());
    let buffer = DeviceBuffer::of(device.runtime(), &data).unwrap();
    let from = DeviceMatrix::of(&buffer, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    let from = from.with_kind(Kind::Probabilities);
    let (ks, ps) = ([3i64, 0, 40, 1, 7], [0.9f32, 0.5, 1.0, 0.3, 0.6]);
    let common = [
        SamplingParams::default(),
        SamplingParams { min_p: 0.1, order: FilterOrder::Joint, ..SamplingParams::default() },
        SamplingParams { typical_p: 0.8, ..SamplingParams::default() },
    ];
    let cases = [(0, false, false), (0, true, false), (0, true, true), (1, true, false), (2, false, true)];
    for (common, listed, masked) in cases.map(|(which, listed, masked)| (&common[which], listed, masked)) {
        let mut params = RowParams::new(common);
        if listed {
            (params.top_k, params.top_p) = (Some(ks[..].into()), Some(ps[..].into()));
        }
        let write = |operators: &Operators, rows: RowsInOut<'_>, statuses: Option<PerRowMut<'_, Status>>| {
            match masked {
                true => operators.mask_logits(rows, &params, statuses),
                false => operators.probabilities(rows, &params, statuses),
            }
            .unwrap();
        };
        let mut wanted = vec![7.0f32; ROWS * VOCAB];
        let mut wanted_statuses = [Status::default(); ROWS];
        let to = LogitsMut::new(&mut wanted, ROWS, VOCAB).unwrap();
        let rows = Rows::probabilities(&data, ROWS, VOCAB).unwrap();
        write(&host, (rows, to).into(), Some(wanted_statuses[..].as_mut().into()));

        let mut out = DeviceBuffer::zeroed(device.runtime(), ROWS * VOCAB * 4).unwrap();
        let statuses = DeviceBuffer::zeroed(device.runtime(), ROWS * 4).unwrap();
        let to = DeviceRows::of(&mut out, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
        write(
            &operators,
            (from, to).into(),
            Some(PerRowMut::Device(DeviceSlice::of(&statuses, IntType::U32))),
        );
        assert_eq!(words(&out), bits(&wanted), "{common:?}, listed: {listed}, masked: {masked}");
        assert_eq!(words(&statuses), wanted_statuses.map(|status| status.0));
        if !listed {
            continue;
        }

        let mut place = DeviceBuffer::of(device.runtime(), &data).unwrap();
        let rows = DeviceRows::of(&mut place, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
        write(&operators, rows.with_kind(Kind::Probabilities).into(), None);
        assert_eq!(words(&place), bits(&wanted), "in place");
    }
}

#[test]
fn draws_are_the_hosts() {
    let Some((operators, device)) = operators() else { return };
    let (data, host) = (weights(), Operators::new(None, Some(1)).unwrap());
    let buffer = DeviceBuffer::of(device.runtime(), &data).unwrap();
    let from = DeviceMatrix::of(&buffer, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    let rows = Rows::probabilities(&data, ROWS, VOCAB).unwrap();
    let (common, ks, seeds) = (SamplingParams::default(), [3i64, 0, 40, 1, 7], [5u64, 6, 7, u64::MAX]);
    let params = RowParams { top_k: Some(ks[..].into()), top_p: Some(0.9.into()), ..RowParams::new(&common) };
    let indices: PerRow<'_, u32> = [3, 1, 0, 3][..].into();
    let draws = Draws { seeds: Some(seeds[..].into()), zero_for_none: true, ..Draws::new(0, 9) };
    let (mut tokens, mut statuses) = (vec![7; 4], vec![Status::default(); 4]);
    let (written, of) = ((&mut tokens).into(), Some((&mut statuses).into()));
    host.sample(rows, Some(indices), &params, &draws, written, of).unwrap();
    assert_eq!((tokens[1], statuses[1]), (0, Status::EMPTY));

    let seen = [(); 2].map(|()| DeviceBuffer::zeroed(device.runtime(), 16).unwrap());
    let written = PerRowMut::Device(DeviceSlice::of(&seen[0], IntType::I32));
    let of = Some(PerRowMut::Device(DeviceSlice::of(&seen[1], IntType::U32)));
    let from = from.with_kind(Kind::Probabilities);
    operators.sample(from, Some(indices), &params, &draws, written, of).unwrap();
    assert_eq!(words(&seen[0]), tokens.iter().map(|token| token.cast_unsigned()).collect::<Vec<u32>>());
    assert_eq!(words(&seen[1]), statuses.iter().map(|status| status.0).collect::<Vec<u32>>());
}

#[test]
fn draws_without_a_seed_are_fresh_and_no_capture_takes_them() {
    let Some((operators, device)) = operators() else { return };
    let (common, tokens) =
        (SamplingParams::default(), DeviceBuffer::zeroed(device.runtime(), 4 * ROWS).unwrap());
    let buffer = DeviceBuffer::zeroed(device.runtime(), ROWS * VOCAB * 4).unwrap();
    let rows = DeviceMatrix::of(&buffer, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    let sample = |draws: &Draws<'_>| {
        let written = PerRowMut::Device(DeviceSlice::of(&tokens, IntType::I32));
        operators.sample(rows, None, &RowParams::new(&common), draws, written, None)
    };
    let drawn = [(); 2].map(|()| {
        sample(&Draws::default()).unwrap();
        words(&tokens)
    });
    assert_ne!(drawn[0], drawn[1], "equal by chance with a probability of 1e-15");
    let mut refused = Ok(());
    let captured = device.runtime().capture(&mut || {
        refused = sample(&Draws::default());
        sample(&Draws::new(7, 0)).unwrap();
        Ok(())
    });
    captured.unwrap();
    assert!(matches!(refused, Err(Error::OutOfRange { parameter: "seeds", .. })), "{refused:?}");
    let error = sample(&Draws { positions: None, ..Draws::new(7, 0) }).unwrap_err();
    assert!(matches!(error, Error::OutOfRange { parameter: "positions", .. }), "{error}");
}

#[test]
fn arrays_in_the_other_memory_are_named() {
    let Some((operators, device)) = operators() else { return };
    let host = Operators::new(None, Some(1)).unwrap();
    let (mut data, column) = (weights(), DeviceBuffer::of(device.runtime(), &TEMPERATURES).unwrap());
    let mut rows = DeviceBuffer::of(device.runtime(), &data).unwrap();
    let on_device = PerRow::Device(DeviceSlice::of(&column, ColumnType::F32));
    let in_place = LogitsMut::new(&mut data, ROWS, VOCAB).unwrap();
    let error = host.softmax(in_place, on_device, None).unwrap_err().to_string();
    assert_eq!(error, "temperature is on a device, but must be on the host, as the operators are");
    let in_place = LogitsMut::new(&mut data, ROWS, VOCAB).unwrap();
    let error = operators.softmax(in_place, 1.0.into(), None).unwrap_err().to_string();
    assert_eq!(error, "rows is on the host, but must be on the device, as the operators are");
    let in_place = DeviceRows::of(&mut rows, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    let mut statuses = [Status::default(); ROWS];
    let statuses = Some(statuses[..].as_mut().into());
    let error = operators.softmax(in_place, 1.0.into(), statuses).unwrap_err().to_string();
    assert_eq!(error, "statuses is on the host, but must be on the device, as the operators are");
    assert_eq!((bits(&data), words(&rows)), (bits(&weights()), bits(&weights())));
}

#[test]
fn parameters_of_logits_are_refused_where_rows_are_probabilities() {
    let Some((operators, device)) = operators() else { return };
    let buffer = DeviceBuffer::of(device.runtime(), &weights()).unwrap();
    let mut out = DeviceBuffer::of(device.runtime(), &vec![7u32; ROWS * VOCAB]).unwrap();
    let from = DeviceMatrix::of(&buffer, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    let from = from.with_kind(Kind::Probabilities);
    fn to(out: &mut DeviceBuffer) -> DeviceRows<'_> {
        DeviceRows::of(out, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap()
    }
    let (neutral, hot) =
        (SamplingParams::default(), SamplingParams { temperature: 0.7, ..SamplingParams::default() });
    let listed = RowParams { temperature: Some(TEMPERATURES[..].into()), ..RowParams::new(&neutral) };
    for params in [RowParams::new(&hot), listed] {
        let error = operators.probabilities((from, to(&mut out)), &params, None).unwrap_err();
        assert!(error.to_string().starts_with("temperature"), "{error}");
        let error = operators.mask_logits((from, to(&mut out)), &params, None).unwrap_err();
        assert!(error.to_string().starts_with("temperature"), "{error}");
    }
    let error = operators.softmax((from, to(&mut out)), 1.0.into(), None).unwrap_err();
    assert_eq!(error.to_string(), "kind is probabilities, but must be logits");
    assert!(words(&out).iter().all(|word| *word == 7));
}

#[test]
fn mistakes_are_named_and_nothing_is_written() {
    let Some((operators, device)) = operators() else { return };
    let logits = DeviceBuffer::zeroed(device.runtime(), ROWS * VOCAB * 4).unwrap();
    let mut out = DeviceBuffer::of(device.runtime(), &vec![7u32; ROWS * VOCAB]).unwrap();
    let from = DeviceMatrix::of(&logits, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    let mut refused = |each: PerRow<'_, f32>| {
        let to = DeviceRows::of(&mut out, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
        match operators.softmax((from, to), each, None) {
            Err(error @ (Error::OutOfRange { .. } | Error::Length { .. })) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    let allowed = "but must be 0 (greedy) or in (0, 2^100]";
    assert_eq!(refused((-1.0).into()), format!("temperature is -1, {allowed}"));
    assert_eq!(refused([1.0, 1.0, f32::NAN, 1.0, 1.0][..].into()), format!("temperature is NaN, {allowed}"));
    assert_eq!(refused([1.0; 2][..].into()), "temperature has length 2, but must have one per row, 5");
    assert!(words(&out).iter().all(|word| *word == 7));
}
