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
        same("fma", seed, f(l.fma(va, vb, vc)), |i| gumball_spec::num::fma(a[i], b[i], c[i]));
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

/// Sixteen halves of either kind from their bits on, and numbers between them, against the library's
/// conversions.
struct Halves(u16);

impl Kernel for Halves {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let bits: [u16; WIDTH] = std::array::from_fn(|i| self.0 + i as u16);
        let (halves, bfloats) = (bits.map(f16::from_bits), bits.map(bf16::from_bits));
        let mut singles = [0.0; WIDTH];
        l.store(l.load_bf16(&bfloats), &mut singles);
        same("bf16", self.0.into(), singles, |i| bfloats[i].to_f32());
        l.store(l.load_f16(&halves), &mut singles);
        same("f16", self.0.into(), singles, |i| halves[i].to_f32());
        let finite = |x: f32| if x.is_nan() { 0.0 } else { x };
        // Half way to the next number, a little before that, and a little after.
        for between in [0x8000_u32, 0x7FFF, 0x8001, 0x1000, 0x0FFF, 0x1001, 0x3000, 0] {
            let near_bfloats = bits.map(|bits| finite(f32::from_bits(u32::from(bits) << 16 | between)));
            let near_halves =
                singles.map(|single| finite(f32::from_bits(single.to_bits() | between & 0x3FFF)));
            let (mut narrow_bfloats, mut narrow_halves) = ([bf16::ZERO; WIDTH], [f16::ZERO; WIDTH]);
            l.store_bf16(l.load(&near_bfloats), &mut narrow_bfloats);
            l.store_f16(l.load(&near_halves), &mut narrow_halves);
            for i in 0..WIDTH {
                assert_eq!(
                    narrow_bfloats[i].to_bits(),
                    bf16::from_f32(near_bfloats[i]).to_bits(),
                    "{}",
                    near_bfloats[i]
                );
                assert_eq!(
                    narrow_halves[i].to_bits(),
                    f16::from_f32(near_halves[i]).to_bits(),
                    "{}",
                    near_halves[i]
                );
            }
        }
    }
}

#[test]
fn halves_are_converted_and_rounded_as_defined() {
    for level in Proven::all() {
        for start in (0..=u16::MAX).step_by(WIDTH) {
            dispatch(level, Halves(start));
        }
    }
}

/// Fused multiply-adds of all kinds against the library's, and a digest of them.
struct Fused(u32);

impl Fused {
    /// Sums whose f64 is half way between two f32 and inexact; sums of subnormal size; sums that cancel; any
    /// bits.
    fn operands(&self) -> [[f32; WIDTH]; 3] {
        let [w, x, y] = [words(self.0), words(self.0 + 1), words(self.0 + 2)];
        let float = |sign: u32, exponent: u32, mantissa: u32| {
            f32::from_bits((sign & 1) << 31 | exponent << 23 | mantissa & 0x7F_FFFF)
        };
        let mut out = [[0.0; WIDTH]; 3];
        for i in 0..WIDTH {
            // Signs from high bits, exponents that meet.
            let (sign, small) = (w[i] >> 30, 1 + (w[i] >> 8) % 12);
            let [a, b, c] = match w[i] % 8 {
                // Half a unit in the last place of c, or a little more or less.
                0 | 1 => {
                    let tiny = 1.0 + f32::EPSILON * (x[i] % 5) as f32;
                    let c = float(sign, 127, x[i] >> 9);
                    [float(sign >> 1, 127 - 24, y[i] % 3), tiny - f32::EPSILON * (y[i] % 7) as f32, c]
                }
                // A product of 48 bits just above or below half a unit in the last place of a much larger c.
                2 => [float(sign, 115, x[i]), float(w[i] >> 29, 115, y[i]), float(sign >> 1, 127, y[i] >> 5)],
                // Subnormal results, and results around the smallest normal number.
                3 => [float(sign, 63, x[i]), float(0, 62 - small, y[i]), float(w[i] >> 29, 0, y[i] >> 7)],
                // 2^-150 (1 - k^2 2^-46), just below half a unit in the last place of a subnormal c.
                4 => {
                    let k = f32::EPSILON * (1 + x[i] % 40) as f32;
                    let scale = float(0, 127 - 75, 0);
                    [float(sign, 127, 0) * (1.0 + k) * scale, (1.0 - k) * scale, float(w[i] >> 29, 0, y[i])]
                }
                // Products that nearly cancel.
                5 => {
                    let (a, b) = (float(0, 120 + small, x[i]), float(sign, 127, y[i]));
                    [a, b, -(a * b)]
                }
                // Around overflow.
                6 => [float(sign, 190, x[i]), float(0, 190, y[i]), float(w[i] >> 29, 254, y[i] >> 4)],
                _ => [f32::from_bits(w[i]), f32::from_bits(x[i]), f32::from_bits(y[i])],
            };
            (out[0][i], out[1][i], out[2][i]) = (a, b, c);
        }
        out
    }
}

impl Kernel for Fused {
    type Output = u64;

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) -> u64 {
        let [a, b, c] = self.operands();
        let mut out = [0.0; WIDTH];
        l.store(l.fma(l.load(&a), l.load(&b), l.load(&c)), &mut out);
        same("fma", self.0, out, |i| gumball_spec::num::fma(a[i], b[i], c[i]));
        out.iter().fold(0, |digest: u64, x| {
            let bits = if x.is_nan() { 0x7FC0_0000 } else { x.to_bits() };
            (digest.rotate_left(5) ^ u64::from(bits)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        })
    }
}

/// The constant is the result of x86-64's fma instruction, so that library functions that stand in for it
/// are tested too.
#[test]
fn fused_multiply_adds_round_once_where_two_roundings_differ() {
    // How many cases tell one rounding from two, of normal size and smaller.
    let mut told = [0; 2];
    for seed in 0..100_000 {
        let [a, b, c] = Fused(seed * 16).operands();
        for i in 0..WIDTH {
            let twice = (f64::from(a[i]) * f64::from(b[i]) + f64::from(c[i])) as f32;
            let once = gumball_spec::num::fma(a[i], b[i], c[i]);
            if twice.to_bits() != once.to_bits() && !once.is_nan() {
                told[usize::from(once.abs() < f32::MIN_POSITIVE)] += 1;
            }
        }
    }
    assert!(told.iter().all(|&cases| cases >= 100), "normal and subnormal cases: {told:?}");
    for level in Proven::all() {
        let digest = (0..100_000).fold(0u64, |digest, seed| {
            digest.wrapping_mul(31).wrapping_add(dispatch(level, Fused(seed * 16)))
        });
        assert_eq!(digest, FUSED, "{level:?}: {digest:#x}");
    }
}

const FUSED: u64 = 0x8b0c_73f0_b01e_31c9;
