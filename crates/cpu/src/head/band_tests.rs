//! What a screen of two levels is computed by, at every level against plain arithmetic.

use super::*;
use half::bf16;

/// Pseudo-random words.
fn words(count: usize, seed: u32) -> Vec<u32> {
    (0..count as u32).map(|i| gumball_spec::num::philox4x32_10(5, [seed, i, 0, 0])[0]).collect()
}

#[test]
fn bounds_of_bands_are_the_definition_s_at_every_level() {
    let band = |columns, is_wide| Band { columns, is_wide };
    for bands in
        [vec![band(32, true)], vec![band(64, true), band(32, false), band(96, false)], vec![band(160, false)]]
    {
        let columns: usize = bands.iter().map(|band| band.columns).sum();
        for (rows, batch) in [(1usize, 1), (16, 2), (37, 3), (40, 7)] {
            let groups = rows.div_ceil(ROWS_OF_GROUP);
            // Codes of all sizes, digits with all signs, both at their ends here and there.
            let most = |column: usize| {
                let mut end = 0;
                bands.iter().find(|band| (end += band.columns, column < end).1).unwrap().most()
            };
            let codes: Vec<u8> = words(groups * ROWS_OF_GROUP * columns, 1)
                .iter()
                .enumerate()
                .map(|(i, word)| {
                    let most = most(i % columns);
                    if word % 5 == 0 { most as u8 } else { (word % (most + 1)) as u8 }
                })
                .collect();
            let digits: Vec<i8> = words(batch * columns, 2)
                .iter()
                .map(|word| [-127, 127, (word >> 8) as i8, 0][(word % 4) as usize].max(-127))
                .collect();
            let mut packed = vec![0; groups * group_words(&bands)];
            for (codes, words) in
                codes.chunks(ROWS_OF_GROUP * columns).zip(packed.chunks_mut(group_words(&bands)))
            {
                pack_group(&bands, codes, words);
            }
            let numbers: Vec<bf16> = words(groups * group_numbers(&bands), 3)
                .iter()
                .map(|w| bf16::from_f32(*w as f32 * 1e-10))
                .collect();
            let number = |row: usize, i: usize| {
                let group = row / ROWS_OF_GROUP * group_numbers(&bands);
                numbers[group + i * ROWS_OF_GROUP + row % ROWS_OF_GROUP].to_f32()
            };
            let of_bands: Vec<BandState> = (0..batch * bands.len())
                .map(|i| {
                    let (state, b) = (i / bands.len(), i % bands.len());
                    let first: usize = bands[..b].iter().map(|band| band.columns).sum();
                    let digits = &digits[state * columns + first..][..bands[b].columns];
                    let sum: i32 = digits.iter().map(|digit| i32::from(*digit)).sum();
                    let offset = sum * bands[b].most() as i32;
                    BandState {
                        half_unit: 0.013 * (i + 1) as f32,
                        offset,
                        norm: 3.0,
                        slack: 0.2,
                        residual_slack: 0.0,
                    }
                })
                .collect();
            let fours: Vec<u32> = digits
                .as_chunks::<4>()
                .0
                .iter()
                .map(|four| u32::from_le_bytes(four.map(|d| d as u8)))
                .collect();
            let states: Vec<BandedState<'_>> = (0..batch)
                .map(|state| BandedState {
                    digits: &fours[state * columns / 4..][..columns / 4],
                    bands: &of_bands[state * bands.len()..][..bands.len()],
                    mean: state as f32 - 1.5,
                    norm: 2.0,
                    slack: 1e-3,
                })
                .collect();
            // By the definition, one row and one state at a time.
            let mut expected = Vec::new();
            for (state, row) in (0..batch * rows).map(|place| (place / rows, place % rows)) {
                let (mut center, mut first) = (states[state].mean, 0);
                let mut reach = number(row, 2 * bands.len()).mul_add(states[state].norm, states[state].slack);
                for (b, (band, of_band)) in bands.iter().zip(states[state].bands).enumerate() {
                    let places = (0..band.columns).map(|i| {
                        let code = 2 * i32::from(codes[row * columns + first + i]) - band.most() as i32;
                        code * i32::from(digits[state * columns + first + i])
                    });
                    let part = places.sum::<i32>() as f32 * of_band.half_unit;
                    center = number(row, 2 * b).mul_add(part, center);
                    reach = number(row, 2 * b + 1).mul_add(of_band.norm, reach);
                    reach = number(row, 2 * b).mul_add(of_band.slack, reach);
                    first += band.columns;
                }
                expected.push([(center + reach).to_bits(), center.to_bits()]);
            }
            for level in Level::available() {
                let lanes = HeadLanes::new(level).unwrap();
                let (mut bounds, mut centers) = (vec![0.0; batch * rows], vec![0.0; batch * rows]);
                let rows_of = BandRows { bands: &bands, codes: &packed, numbers: &numbers };
                let mut places: [Vec<&mut [f32]>; 2] =
                    [&mut bounds, &mut centers].map(|all| all.chunks_mut(rows).collect());
                let [of_bounds, of_centers] = &mut places;
                lanes.band_bounds(&rows_of, &states, None, &Scaling::default(), of_bounds, of_centers);
                let seen: Vec<_> =
                    bounds.iter().zip(&centers).map(|(b, c)| [b.to_bits(), c.to_bits()]).collect();
                assert_eq!(seen, expected, "{level}, {rows} rows, {batch} states, {bands:?}");
            }
        }
    }
}

#[test]
fn residuals_codes_and_f64_products_are_the_same_at_every_level() {
    for columns in [32, 96, 320] {
        let codes: Vec<u8> = words(columns, 1).iter().map(|word| (word % 16) as u8).collect();
        let digits: Vec<i16> = words(columns, 2).iter().map(|word| (word % 255) as i16 - 127).collect();
        let mut packed = vec![0; columns / 2];
        pack_residual(&codes, &mut packed);
        let pairs = codes.iter().zip(&digits);
        let expected: i64 = pairs.map(|(code, digit)| (2 * i64::from(*code) - 15) * i64::from(*digit)).sum();
        let values: Vec<f64> = words(columns, 3).iter().map(|word| f64::from(*word as i32) * 1e-7).collect();
        let mut seen = Vec::new();
        for level in Level::available() {
            let lanes = HeadLanes::new(level).unwrap();
            assert_eq!(lanes.residual_dot(&packed, &digits), expected, "{level}, {columns}");
            for (is_wide, scale) in [(false, 1.0), (true, 1.0), (false, 1e-40), (true, 1e-300), (false, 0.0)]
            {
                let values: Vec<f64> = values.iter().map(|x| x * scale).collect();
                let (mut codes, mut errors) = (vec![7; columns], vec![7.0; columns]);
                let coded = lanes.code(&values, is_wide, &mut codes, &mut errors);
                // What codes stand for and what they leave out make up the values, and the lengths are not
                // below the true ones.
                let half = if is_wide { 127.5 } else { 7.5 };
                let numbers: Vec<f64> = codes.iter().map(|code| f64::from(*code) - half).collect();
                let s = f64::from(coded.scale.to_f32());
                for ((x, number), error) in values.iter().zip(&numbers).zip(&errors) {
                    assert_eq!(x - s * number, *error);
                }
                let length = |values: &[f64]| values.iter().map(|x| x * x).sum::<f64>().sqrt();
                assert!(length(&errors) <= coded.error && (s == 0.0 || length(&numbers) <= coded.code_norm));
                if scale == 1.0 {
                    assert!(coded.error < length(&values) * if is_wide { 0.02 } else { 0.15 });
                }
                seen.push((level, codes, coded.scale, coded.error.to_bits(), coded.code_norm.to_bits()));
            }
            let mut product = vec![0.0; columns * columns];
            let left: Vec<f64> = values.iter().chain(&values).copied().collect();
            lanes.multiply(&values, &left[..columns], 1, &mut product);
            let place = columns * 3 + 5;
            assert_eq!(product[place], values[3] * values[5]);
        }
        let of_level = seen.len() / Level::available().count();
        for (i, (level, codes, scale, error, norm)) in seen.iter().enumerate() {
            let (_, first, first_scale, first_error, first_norm) = &seen[i % of_level];
            assert_eq!((codes, scale, error, norm), (first, first_scale, first_error, first_norm), "{level}");
        }
    }
}
