//! Operators on a device, which the host emulates here, come to what those of the host come to.

use gumball_engine::cuda::{Buffer, Dtype};
use gumball_engine::{
    Device, DeviceColumn, DeviceEach, DeviceLogits, DeviceOperators, DeviceRows, Error, Logits, LogitsMut,
    Operators, Status, bf16,
};

use crate::cases::{VOCAB, rows};

const ROWS: usize = 5;
const TEMPERATURES: [f32; ROWS] = [1.0, 0.0, 0.01, 100.0, 0.7];

fn operators() -> Option<DeviceOperators> {
    let device = Device::emulated().inspect_err(|error| println!("skipped: {error}")).ok()?;
    Some(DeviceOperators::new(device))
}

fn words(buffer: &Buffer) -> Vec<u32> {
    let mut words = vec![0; buffer.bytes() / 4];
    buffer.read(0, &mut words).unwrap();
    words
}

#[test]
fn a_softmax_is_the_hosts_bit_for_bit() {
    let Some(mut operators) = operators() else { return };
    let machine = operators.device().machine().clone();
    let mut data = rows(0..ROWS as u64);
    data[VOCAB..2 * VOCAB].fill(f32::NEG_INFINITY);
    data[3 * VOCAB + 5] = f32::NAN;
    let host = Operators::new(None, Some(1)).unwrap();
    let column = Buffer::of(&machine, &TEMPERATURES).unwrap();
    let logits = Buffer::of(&machine, &data).unwrap();
    let from = DeviceLogits::of(&logits, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    for each in [0.7.into(), TEMPERATURES[..].into(), DeviceEach::Column(DeviceColumn::of(&column))] {
        let on_host = match each {
            DeviceEach::All(all) => all.into(),
            _ => (&TEMPERATURES[..]).into(),
        };
        let mut wanted = vec![0.0f32; ROWS * VOCAB];
        let to = LogitsMut::new(&mut wanted, ROWS, VOCAB).unwrap();
        let told = host.softmax(Logits::new(&data, ROWS, VOCAB).unwrap(), on_host, to).unwrap();
        assert_eq!(told[1], Status::EMPTY);

        let mut out = Buffer::zeroed(&machine, ROWS * VOCAB * 4).unwrap();
        let statuses = Buffer::zeroed(&machine, ROWS * 4).unwrap();
        let to = DeviceRows::of(&mut out, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
        operators.softmax(&from, each, &to, Some(&DeviceColumn::of(&statuses))).unwrap();
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
    let machine = operators.device().machine().clone();
    let narrow: Vec<bf16> = rows(0..ROWS as u64).iter().map(|z| bf16::from_f32(*z)).collect();
    let mut wanted = narrow.clone();
    let host = Operators::new(None, Some(1)).unwrap();
    host.softmax_in_place(LogitsMut::new(&mut wanted, ROWS, VOCAB).unwrap(), 0.3.into()).unwrap();
    let halves: Vec<u16> = narrow.iter().map(|z| z.to_bits()).collect();
    let mut memory = Buffer::of(&machine, &halves).unwrap();
    let place = DeviceRows::of(&mut memory, Dtype::Bf16, 0, ROWS, VOCAB, VOCAB).unwrap();
    operators.softmax_in_place(&place, 0.3.into(), None).unwrap();
    let mut seen = vec![0u16; ROWS * VOCAB];
    memory.read(0, &mut seen).unwrap();
    assert_eq!(seen, wanted.iter().map(|p| p.to_bits()).collect::<Vec<u16>>());
}

#[test]
fn mistakes_are_named_and_nothing_is_written() {
    let Some(mut operators) = operators() else { return };
    let machine = operators.device().machine().clone();
    let logits = Buffer::zeroed(&machine, ROWS * VOCAB * 4).unwrap();
    let mut out = Buffer::of(&machine, &vec![7u32; ROWS * VOCAB]).unwrap();
    let from = DeviceLogits::of(&logits, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    let to = DeviceRows::of(&mut out, Dtype::F32, 0, ROWS, VOCAB, VOCAB).unwrap();
    let mut refused = |each: DeviceEach<'_, f32>| match operators.softmax(&from, each, &to, None) {
        Err(error @ (Error::OutOfRange { .. } | Error::Length { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let allowed = "but must be 0 (greedy) or in (0, 2^100]";
    assert_eq!(refused((-1.0).into()), format!("temperature is -1, {allowed}"));
    assert_eq!(refused([1.0, 1.0, f32::NAN, 1.0, 1.0][..].into()), format!("temperature is NaN, {allowed}"));
    assert_eq!(refused([1.0; 2][..].into()), "temperature has length 2, but must have one per row, 5");
    assert!(words(&out).iter().all(|word| *word == 7));
}
