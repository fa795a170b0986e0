//! `sample_from_pools` reads parameters and seeds by slot. It draws the tokens that `sample` draws from the
//! same numbers, gathered into columns of the rows; on the host and on a device.

use gumball_engine::{Draws, Matrix, Operators, PerRow, PoolSlots, RowParams, Rows, SamplingParams};

use crate::cases::{VOCAB, rows};

const ROWS: usize = 6;
const TEMPERATURES: [f32; 5] = [1.0, 0.0, 0.7, 1.3, 0.2];
const TOP_KS: [i64; 5] = [0, 5, 40, 3, 7];
const TOP_PS: [f32; 5] = [0.9, 1.0, 0.5, 0.95, 0.3];
const MIN_PS: [f32; 5] = [0.0, 0.1, 0.0, 0.02, 0.3];
const SEEDS: [u64; 5] = [1, 2 << 40, 3, 4, u64::MAX];
const POSITIONS: [u32; 5] = [0, 9, u32::MAX, 70, 4];
const DRAWS: [u32; 5] = [0, 0, 2, 1, 9];

/// The slots of requests, and how many rows each has: one each, or several.
const SLOTS: [(&[u32], usize); 3] = [(&[4, 0, 0, 2, 1, 3], 1), (&[2, 4, 0], 2), (&[3], 6)];

fn params(common: &SamplingParams) -> RowParams<'_> {
    RowParams {
        temperature: Some(TEMPERATURES[..].into()),
        top_k: Some(TOP_KS[..].into()),
        top_p: Some(TOP_PS[..].into()),
        min_p: Some(MIN_PS[..].into()),
        ..RowParams::new(common)
    }
}

fn draws(has_draws: bool) -> Draws<'static> {
    Draws {
        seeds: Some(SEEDS[..].into()),
        positions: Some(POSITIONS[..].into()),
        draws: has_draws.then(|| DRAWS[..].into()),
        ..Draws::default()
    }
}

/// Returns the tokens that the numbers of each row's slot give.
fn gathered(data: &[f32], (slots, each): (&[u32], usize), has_draws: bool) -> Vec<i32> {
    let operators = Operators::new(None, Some(1)).unwrap();
    let draw = |row: usize| {
        let (slot, mut token) = (slots[row / each] as usize, [7]);
        let common = SamplingParams {
            temperature: TEMPERATURES[slot],
            top_k: TOP_KS[slot],
            top_p: TOP_PS[slot],
            min_p: MIN_PS[slot],
            ..SamplingParams::default()
        };
        let position = POSITIONS[slot].wrapping_add((row % each) as u32);
        let draw = if has_draws { DRAWS[slot] } else { row as u32 };
        let draws = Draws { draws: Some(draw.into()), ..Draws::new(SEEDS[slot], position) };
        let logits = Rows::logits(&data[row * VOCAB..][..VOCAB], 1, VOCAB).unwrap();
        let params = RowParams::new(&common);
        operators.sample(logits, None, &params, &draws, token[..].as_mut().into(), None).unwrap();
        token[0]
    };
    (0..ROWS).map(draw).collect()
}

#[test]
fn a_row_has_the_numbers_at_its_slot() {
    let (data, operators) = (rows(0..ROWS as u64), Operators::new(None, Some(2)).unwrap());
    let (logits, common) = (Rows::logits(&data, ROWS, VOCAB).unwrap(), SamplingParams::default());
    for (slots, rows_per_slot) in SLOTS {
        for has_draws in [true, false] {
            let pools = PoolSlots { rows_per_slot, ..PoolSlots::new(slots, 5) };
            let (mut tokens, draws) = ([7; ROWS], draws(has_draws));
            let to = tokens[..].as_mut().into();
            operators.sample_from_pools(logits, &pools, &params(&common), &draws, to, None).unwrap();
            assert_eq!(tokens, gathered(&data, (slots, rows_per_slot), has_draws)[..]);
        }
    }
}

#[test]
fn slots_that_cannot_be_are_refused() {
    let (data, operators) = (rows(0..ROWS as u64), Operators::new(None, Some(1)).unwrap());
    let logits = Rows::logits(&data, ROWS, VOCAB).unwrap();
    let common = SamplingParams::default();
    let refused = |logits: Rows<'_>, pools: &PoolSlots<'_>| {
        let mut tokens = [7; ROWS];
        let to = tokens[..].as_mut().into();
        let done = operators.sample_from_pools(logits, pools, &params(&common), &draws(true), to, None);
        assert_eq!(tokens, [7; ROWS]);
        done.unwrap_err().to_string()
    };
    let all = PoolSlots::new(&[0, 1, 2, 3, 4, 5][..], 5);
    assert_eq!(refused(logits, &all), "slots is 5, but must be an element of the pools in 0..5");
    let slots = PoolSlots::new(&[0, 1][..], 5);
    assert_eq!(refused(logits, &slots), "slots has length 2, but must have one per row, 6");
    let uneven = PoolSlots { rows_per_slot: 4, ..slots };
    let text = "rows_per_slot is 4, but must be at least 1, and divide the number of rows, 6";
    assert_eq!(refused(logits, &uneven), text);
    assert_eq!(refused(logits, &PoolSlots { rows_per_slot: 0, ..slots }), text.replace("is 4", "is 0"));
    let longer = PoolSlots::new(&[0; ROWS][..], 6);
    assert!(refused(logits, &longer).starts_with("temperature has length 5"));
    let one = PoolSlots { rows_per_slot: 6, ..PoolSlots::new(PerRow::All(1), 5) };
    assert!(refused(logits, &PoolSlots { high_draws: true, ..one }).starts_with("high_draws is true"));
    #[cfg(feature = "heads")]
    {
        let weights = [1.0f32; VOCAB];
        let head = gumball_engine::head::Exact::new(&weights[..], VOCAB, 1, Default::default()).unwrap();
        let hidden = Rows::hidden(&head, Matrix::new(&data[..ROWS], ROWS, 1).unwrap());
        assert!(
            refused(hidden, &one).starts_with("no hidden states in operators"),
            "{}",
            refused(hidden, &one)
        );
    }
}

#[cfg(feature = "emulator")]
mod on_a_device {
    use gumball_engine::{
        ColumnType, Device, DeviceBuffer, DeviceMatrix, DeviceSlice, Dtype, Error, IntType, NONE, PerRowMut,
        Result,
    };

    use super::*;

    struct Calls {
        operators: Operators,
        device: Device,
        logits: DeviceBuffer,
    }

    impl Calls {
        fn new(data: &[f32]) -> Option<Self> {
            let device = gumball_bench_protocol::skipped::or_skip(Device::emulated())?;
            let logits = DeviceBuffer::of(device.runtime(), data).unwrap();
            Some(Self { operators: Operators::on_device(device.clone()), device, logits })
        }

        fn column<T: bytemuck::Pod>(&self, values: &[T]) -> DeviceBuffer {
            DeviceBuffer::of(self.device.runtime(), values).unwrap()
        }

        fn sample(
            &self,
            pools: &PoolSlots<'_>,
            params: &RowParams<'_>,
            draws: &Draws<'_>,
        ) -> Result<[i32; ROWS]> {
            let memory = self.column(&[7i32; ROWS]);
            let rows = DeviceMatrix::of(&self.logits, Dtype::F32, 0, ROWS, VOCAB, VOCAB)?;
            let to = PerRowMut::Device(DeviceSlice::of(&memory, IntType::I32));
            self.operators.sample_from_pools(rows, pools, params, draws, to, None)?;
            let mut tokens = [0; ROWS];
            memory.read(0, &mut tokens)?;
            Ok(tokens)
        }
    }

    #[test]
    fn its_kernels_read_the_pools() {
        let data = rows(0..ROWS as u64);
        let Some(calls) = Calls::new(&data) else { return };
        let common = SamplingParams::default();
        let (temperature, top_k) = (calls.column(&TEMPERATURES), calls.column(&TOP_KS.map(|k| k as i32)));
        let (seeds, positions) = (calls.column(&SEEDS), calls.column(&POSITIONS));
        let params = RowParams {
            temperature: Some(PerRow::Device(DeviceSlice::of(&temperature, ColumnType::F32))),
            top_k: Some(PerRow::Device(DeviceSlice::of(&top_k, IntType::I32))),
            ..params(&common)
        };
        for (slots, rows_per_slot) in SLOTS {
            let wide = slots.iter().map(|slot| i64::from(*slot)).collect::<Vec<_>>();
            let column = calls.column(&wide);
            for on_device in [false, true] {
                let mut pools = PoolSlots { rows_per_slot, ..PoolSlots::new(slots, 5) };
                let mut draws = draws(true);
                if on_device {
                    pools.slots = PerRow::Device(DeviceSlice::of(&column, IntType::I64));
                    draws.seeds = Some(PerRow::Device(DeviceSlice::of(&seeds, IntType::U64)));
                    draws.positions = Some(PerRow::Device(DeviceSlice::of(&positions, IntType::U32)));
                }
                let tokens = calls.sample(&pools, &params, &draws).unwrap();
                assert_eq!(tokens, gathered(&data, (slots, rows_per_slot), true)[..]);
            }
        }
    }

    #[test]
    fn a_slot_that_is_none_has_no_token() {
        let data = rows(0..ROWS as u64);
        let Some(calls) = Calls::new(&data) else { return };
        let common = SamplingParams::default();
        let column = calls.column(&[4, -1, 0, 5, i32::MIN, 1]);
        let pools = PoolSlots::new(PerRow::Device(DeviceSlice::of(&column, IntType::I32)), 5);
        let tokens = calls.sample(&pools, &params(&common), &draws(true)).unwrap();
        let wanted = gathered(&data, (&[4, 0, 0, 0, 0, 1], 1), true);
        let is_there = [true, false, true, false, false, true];
        assert!(
            (0..ROWS).all(|row| tokens[row] == if is_there[row] { wanted[row] } else { NONE }),
            "{tokens:?}"
        );
    }

    #[test]
    fn high_words_of_positions_may_be_draw_indices() {
        let data = rows(0..ROWS as u64);
        let Some(calls) = Calls::new(&data) else { return };
        let common = SamplingParams::default();
        // No low word overflows into a high one.
        let words: Vec<u64> = (0..5).map(|i| u64::from(DRAWS[i]) << 32 | u64::from(POSITIONS[i])).collect();
        let column = calls.column(&words);
        let positions: Option<PerRow<'_, u32>> = Some(PerRow::Device(DeviceSlice::of(&column, IntType::I64)));
        for (slots, rows_per_slot) in SLOTS {
            let pools = PoolSlots { rows_per_slot, ..PoolSlots::new(slots, 5) };
            let high = PoolSlots { high_draws: true, ..pools };
            let both = calls.sample(&high, &params(&common), &Draws { positions, ..draws(false) }).unwrap();
            assert_eq!(both, calls.sample(&pools, &params(&common), &draws(true)).unwrap());
        }
        let pools = PoolSlots { high_draws: true, ..PoolSlots::new(SLOTS[0].0, 5) };
        let refused = |draws: &Draws<'_>| calls.sample(&pools, &params(&common), draws).unwrap_err();
        assert!(matches!(
            refused(&Draws { positions, ..draws(true) }),
            Error::Conflict { other: "draws", .. }
        ));
        let offsets = Draws { positions, offsets: true, ..draws(false) };
        assert!(matches!(refused(&offsets), Error::Conflict { other: "offsets", .. }));
        assert!(matches!(refused(&draws(false)), Error::OutOfRange { parameter: "positions", .. }));
        let none =
            PoolSlots::new(PerRow::Device(DeviceSlice::of(&column, IntType::I64).first(0).unwrap()), 0);
        let empty = calls.sample(&none, &RowParams::new(&common), &Draws::new(1, 2)).unwrap_err();
        assert!(matches!(empty, Error::OutOfRange { parameter: "size", .. }), "{empty}");
    }
}
