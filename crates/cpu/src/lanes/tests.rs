//! Every operation of every level against plain arithmetic on hostile lanes.

use super::*;

/// Floats of every kind, then pseudo-random bits.
fn floats(seed: u32) -> [f32; WIDTH] {
    let odd = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        -f32::MAX,
        1e-45,
        -1e-45,
        f32::MIN_POSITIVE,
        0.5,
        2.5,
        -3.5,
        1e10,
        -127.0,
    ];
    let words = words(seed);
    std::array::from_fn(|i| {
        if words[i].is_multiple_of(3) {
            odd[(words[i] / 3) as usize % odd.len()]
        } else {
            f32::from_bits(words[i])
        }
    })
}

fn words(seed: u32) -> [u32; WIDTH] {
    std::array::from_fn(|i| gumball_spec::num::philox4x32_10(7, [seed, i as u32, 0, 0])[0])
}

struct Check(u32);

fn same(what: &str, seed: u32, got: [f32; WIDTH], want: impl Fn(usize) -> f32) {
    for (i, got) in got.into_iter().enumerate() {
        let want = want(i);
        let equal = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
        assert!(equal, "{what}, seed {seed}, lane {i}: {got:e} is not {want:e}");
    }
}

impl Kernel for Check {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let seed = self.0;
        let (a, b, c) = (floats(seed), floats(seed + 1), floats(seed + 2));
        let (va, vb, vc) = (l.load(&a), l.load(&b), l.load(&c));
        let f = |v: L::F| {
            let mut out = [0.0; WIDTH];
            l.store(v, &mut out);
            out
        };
        let u = |v: L::U| {
            let mut out = [0; WIDTH];
            l.store_u(v, &mut out);
            out
        };
        let each = |f: &dyn Fn(usize) -> bool| (0..WIDTH).fold(0, |m, i| m | Mask::from(f(i)) << i);

        let mask = words(seed)[0] as Mask;
        same("add", seed, f(l.add(va, vb)), |i| a[i] + b[i]);
        same("sub", seed, f(l.sub(va, vb)), |i| a[i] - b[i]);
        same("mul", seed, f(l.mul(va, vb)), |i| a[i] * b[i]);
        same("div", seed, f(l.div(va, vb)), |i| a[i] / b[i]);
        same("fma", seed, f(l.fma(va, vb, vc)), |i| a[i].mul_add(b[i], c[i]));
        same("max", seed, f(l.max(va, vb)), |i| if a[i] > b[i] { a[i] } else { b[i] });
        same("min", seed, f(l.min(va, vb)), |i| if a[i] < b[i] { a[i] } else { b[i] });
        same("round", seed, f(l.round(va)), |i| a[i].round_ties_even());
        assert_eq!(l.ge(va, vb), each(&|i| a[i] >= b[i]));
        assert_eq!(l.gt(va, vb), each(&|i| a[i] > b[i]));
        assert_eq!(l.equal(va, vb), each(&|i| a[i] == b[i]));
        let nan = l.has_seen_nan(l.see(l.seen_nothing(), va, vb));
        assert_eq!(nan, each(&|i| a[i].is_nan() || b[i].is_nan()) != 0);
        let larger = |i: usize| if mask >> i & 1 == 1 && a[i] > b[i] { a[i] } else { b[i] };
        same("max_where", seed, f(l.max_where(mask, va, vb)), larger);

        let (x, y) = (words(seed), words(seed + 9));
        let (vx, vy) = (l.load_u(&x), l.load_u(&y));
        same("select", seed, f(l.select(mask, va, vb)), |i| if mask >> i & 1 == 1 { a[i] } else { b[i] });
        assert_eq!(
            u(l.select_u(mask, vx, vy)),
            std::array::from_fn(|i| [y[i], x[i]][mask as usize >> i & 1])
        );
        assert_eq!(u(l.add_u(vx, vy)), std::array::from_fn(|i| x[i].wrapping_add(y[i])));
        assert_eq!(u(l.sub_u(vx, vy)), std::array::from_fn(|i| x[i].wrapping_sub(y[i])));
        assert_eq!(u(l.and(vx, vy)), std::array::from_fn(|i| x[i] & y[i]));
        assert_eq!(u(l.or(vx, vy)), std::array::from_fn(|i| x[i] | y[i]));
        assert_eq!(u(l.xor(vx, vy)), std::array::from_fn(|i| x[i] ^ y[i]));
        assert_eq!(u(l.shl::<5>(vx)), x.map(|x| x << 5));
        assert_eq!(u(l.shr::<7>(vx)), x.map(|x| x >> 7));
        assert_eq!(l.equal_u(vx, vx), Mask::MAX);
        assert_eq!(l.less_u(vx, vy), each(&|i| x[i] < y[i]));
        assert_eq!(l.sum_u(vx), x.iter().map(|x| u64::from(*x)).sum());
        assert_eq!(l.sum_i(vx), x.iter().map(|x| i64::from(*x as i32)).sum());
        let codes: [i8; 2 * WIDTH] = std::array::from_fn(|i| (x[i / 2] >> (8 * (i % 2))) as i8);
        let digits: [i16; 2 * WIDTH] = std::array::from_fn(|i| (y[i / 2] >> (16 * (i % 2))) as i16);
        // Sums that stay inside i32, of products of both signs and of the largest size.
        let start = l.shr::<4>(vx);
        let sum = l.sum_i(l.add_products(start, &codes, &digits)) - l.sum_i(start);
        assert_eq!(sum, codes.iter().zip(digits).map(|(c, d)| i64::from(*c) * i64::from(d)).sum());
        // Codes of four bits, digits of both signs and of the largest size.
        let nibbles = x.map(|x| x & 0x0F0F_0F0F);
        let dots = u(l.add_dots(vy, l.load_u(&nibbles), y[0] ^ 0x80));
        let digits = (y[0] ^ 0x80).to_le_bytes().map(|digit| i32::from(digit as i8));
        assert_eq!(
            dots,
            std::array::from_fn(|i| {
                let codes = nibbles[i].to_le_bytes().map(i32::from);
                let dot: i32 = codes.iter().zip(digits).map(|(code, digit)| code * digit).sum();
                y[i].wrapping_add(dot as u32)
            })
        );
        let (high, low) = l.mul_wide(vx, vy);
        let product = |i: usize| u64::from(x[i]) * u64::from(y[i]);
        assert_eq!(u(high), std::array::from_fn(|i| (product(i) >> 32) as u32));
        assert_eq!(u(low), std::array::from_fn(|i| product(i) as u32));
        same("from_int", seed, f(l.float_of_int(vx)), |i| x[i] as i32 as f32);
        // The high words get zeros, small values and halfway cases by shifting and by clearing bits.
        for (shift, clear) in [(0, 0), (9, 0), (31, 0), (11, u32::MAX), (8, 0xFFFF_FF00), (25, 0x7FF)] {
            let (hi, lo) = (x.map(|x| x >> shift), y.map(|y| y & !clear));
            let got = f(l.float_of_u64(l.load_u(&hi), l.load_u(&lo)));
            same("from_u64", seed, got, |i| (u64::from(hi[i]) << 32 | u64::from(lo[i])) as f32);
        }
        let small: [f32; WIDTH] = x.map(|x| (x as i32 >> 3) as f32 * 0.25);
        assert_eq!(u(l.to_int(l.load(&small))), small.map(|x| x.round_ties_even() as i32 as u32));

        let mantissa = x.map(|x| 1.0 + (x >> 9) as f32 / 8_388_608.0);
        let power = y.map(|y| -((y % 100) as f32));
        let scaled = f(l.scale(l.load(&mantissa), l.load(&power)));
        same("scale", seed, scaled, |i| (f64::from(mantissa[i]) * f64::from(power[i]).exp2()) as f32);

        let near = power.map(|p| p * 0.5 - 0.25);
        let (n, fraction) = l.split(l.load(&near));
        for (i, d) in near.into_iter().enumerate() {
            let n = f(n)[i];
            let right = n == d.round_ties_even() && f(fraction)[i] == d - n;
            assert!(if d > -64.0 { right } else { n <= -64.0 && f(fraction)[i].abs() <= 0.5 }, "{d}");
        }
        let tile: [bf16; TILE] =
            std::array::from_fn(|i| bf16::from_bits((words(seed + i as u32)[0] >> (seed % 17)) as u16));
        let mut seen = [l.seen_nothing(); 4];
        let largest = l.reduce_max(l.maximum_bf16(&tile, &mut seen));
        let want = tile.iter().map(|z| z.to_f32()).fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(largest, want);
        let seen = (0..4).any(|i| l.has_seen_nan(seen[i]));
        assert_eq!(seen, tile.iter().any(|z| z.is_nan()));
        assert!(f(l.split(l.splat(f32::NEG_INFINITY)).1).iter().all(|f| f.is_finite()));
        let ones = l.reduce_add(l.float_of_int(l.iota()));
        assert_eq!(ones, 120.0);

        let clean = a.map(|a| if a.is_nan() { 0.0 } else { a });
        let largest = clean.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        assert_eq!(l.reduce_max(l.load(&clean)), largest);

        let halves = x.map(|x| x as u16);
        same("bf16", seed, f(l.load_bf16(&halves.map(bf16::from_bits))), |i| {
            bf16::from_bits(halves[i]).to_f32()
        });
        same("f16", seed, f(l.load_f16(&halves.map(f16::from_bits))), |i| f16::from_bits(halves[i]).to_f32());
    }
}

#[test]
fn all_levels_compute_alike() {
    for level in Proven::all() {
        for seed in 0..2000 {
            dispatch(level, Check(seed * 16));
            dispatch_products(level, Check(seed * 16));
        }
    }
}
