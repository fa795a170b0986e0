//! Lanes in plain Rust, for every machine.
//!
//! `fma` without the instruction is a slow library call (correct all the same), so on x86-64 the
//! body is also compiled for machines that have it.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::{Kernel, Lanes, Mask, WIDTH};

/// Runs a kernel over arrays, with fma where the machine has it.
#[inline(never)]
pub fn run<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("fma") {
        // SAFETY: the machine has fma, the only target feature of the function.
        return unsafe { run_fma(kernel) };
    }
    kernel.run(Scalar(()))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "fma")]
fn run_fma<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Scalar(()))
}

/// Arrays of sixteen.
#[derive(Clone, Copy, Debug)]
pub struct Scalar(());

type F = [f32; WIDTH];
type U = [u32; WIDTH];

#[inline(always)]
fn map<A: Copy, B: Copy + Default>(a: [A; WIDTH], f: impl Fn(A) -> B) -> [B; WIDTH] {
    let mut out = [B::default(); WIDTH];
    for i in 0..WIDTH {
        out[i] = f(a[i]);
    }
    out
}

#[inline(always)]
fn zip<A: Copy, B: Copy + Default>(a: [A; WIDTH], b: [A; WIDTH], f: impl Fn(A, A) -> B) -> [B; WIDTH] {
    let mut out = [B::default(); WIDTH];
    for i in 0..WIDTH {
        out[i] = f(a[i], b[i]);
    }
    out
}

#[inline(always)]
fn mask<A: Copy>(a: [A; WIDTH], b: [A; WIDTH], f: impl Fn(A, A) -> bool) -> Mask {
    (0..WIDTH).fold(0, |mask, i| mask | Mask::from(f(a[i], b[i])) << i)
}

#[inline(always)]
fn blend<A: Copy>(mask: Mask, a: [A; WIDTH], b: [A; WIDTH]) -> [A; WIDTH] {
    let mut out = b;
    for i in 0..WIDTH {
        out[i] = if mask >> i & 1 == 1 { a[i] } else { b[i] };
    }
    out
}

/// Converts halves. Not inlined: each conversion asks whether the machine has an instruction for it, which
/// makes sixteen of them long.
#[inline(never)]
fn singles(from: &[f16; WIDTH]) -> F {
    let mut to = [0.0; WIDTH];
    from.convert_to_f32_slice(&mut to);
    to
}

/// Rounds to halves, to nearest even. Not inlined either.
#[inline(never)]
fn halves(from: &F, to: &mut [f16; WIDTH]) {
    to.convert_from_f32_slice(from);
}

impl Lanes for Scalar {
    type F = F;
    type U = U;

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> K::Output {
        run(kernel)
    }
    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [x; WIDTH]
    }
    #[inline(always)]
    fn splat_u(self, x: u32) -> U {
        [x; WIDTH]
    }
    #[inline(always)]
    fn load(self, from: &[f32; WIDTH]) -> F {
        *from
    }
    #[inline(always)]
    fn load_u(self, from: &[u32; WIDTH]) -> U {
        *from
    }
    #[inline(always)]
    fn load_bf16(self, from: &[bf16; WIDTH]) -> F {
        map(*from, |x| f32::from_bits(u32::from(x.to_bits()) << 16))
    }
    #[inline(always)]
    fn load_f16(self, from: &[f16; WIDTH]) -> F {
        singles(from)
    }
    #[inline(always)]
    fn store(self, v: F, to: &mut [f32; WIDTH]) {
        *to = v;
    }
    #[inline(always)]
    fn store_u(self, v: U, to: &mut [u32; WIDTH]) {
        *to = v;
    }
    #[inline(always)]
    fn store_bf16(self, v: F, to: &mut [bf16; WIDTH]) {
        *to = std::array::from_fn(|i| bf16::from_f32(v[i]));
    }
    #[inline(always)]
    fn store_f16(self, v: F, to: &mut [f16; WIDTH]) {
        halves(&v, to);
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        let mut out = c;
        for i in 0..WIDTH {
            out[i] = gumball_spec::num::fma(a[i], b[i], c[i]);
        }
        out
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round(self, a: F) -> F {
        map(a, f32::round_ties_even)
    }
    #[inline(always)]
    fn scale(self, a: F, n: F) -> F {
        zip(a, n, |a, n| f32::from_bits(a.to_bits().wrapping_add((n as i32 as u32) << 23)))
    }
    #[inline(always)]
    fn ge(self, a: F, b: F) -> Mask {
        mask(a, b, |a, b| a >= b)
    }
    #[inline(always)]
    fn gt(self, a: F, b: F) -> Mask {
        mask(a, b, |a, b| a > b)
    }
    #[inline(always)]
    fn equal(self, a: F, b: F) -> Mask {
        mask(a, b, |a, b| a == b)
    }
    type Seen = bool;
    #[inline(always)]
    fn seen_nothing(self) -> bool {
        false
    }
    #[inline(always)]
    fn see(self, seen: bool, a: F, b: F) -> bool {
        seen | (mask(a, b, |a, b| a.is_nan() | b.is_nan()) != 0)
    }
    #[inline(always)]
    fn has_seen_nan(self, seen: bool) -> bool {
        seen
    }
    #[inline(always)]
    fn select(self, mask: Mask, a: F, b: F) -> F {
        blend(mask, a, b)
    }
    #[inline(always)]
    fn reduce_add(self, a: F) -> f32 {
        a.into_iter().sum()
    }
    #[inline(always)]
    fn reduce_max(self, a: F) -> f32 {
        a.into_iter().fold(f32::NEG_INFINITY, |max, x| if x > max { x } else { max })
    }
    #[inline(always)]
    fn bits(self, a: F) -> U {
        map(a, f32::to_bits)
    }
    #[inline(always)]
    fn float_of_bits(self, a: U) -> F {
        map(a, f32::from_bits)
    }
    #[inline(always)]
    fn float_of_int(self, a: U) -> F {
        map(a, |a| a as i32 as f32)
    }
    #[inline(always)]
    fn to_int(self, a: F) -> U {
        map(a, |a| a.round_ties_even() as i32 as u32)
    }
    #[inline(always)]
    fn float_of_u64(self, hi: U, lo: U) -> F {
        zip(hi, lo, |hi, lo| (u64::from(hi) << 32 | u64::from(lo)) as f32)
    }
    #[inline(always)]
    fn add_u(self, a: U, b: U) -> U {
        zip(a, b, u32::wrapping_add)
    }
    #[inline(always)]
    fn sub_u(self, a: U, b: U) -> U {
        zip(a, b, u32::wrapping_sub)
    }
    #[inline(always)]
    fn and(self, a: U, b: U) -> U {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn or(self, a: U, b: U) -> U {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn xor(self, a: U, b: U) -> U {
        zip(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    fn shl<const N: u32>(self, a: U) -> U {
        map(a, |a| a << N)
    }
    #[inline(always)]
    fn shr<const N: u32>(self, a: U) -> U {
        map(a, |a| a >> N)
    }
    #[inline(always)]
    fn mul_wide(self, a: U, b: U) -> (U, U) {
        let product = |a, b| u64::from(a) * u64::from(b);
        (zip(a, b, |a, b| (product(a, b) >> 32) as u32), zip(a, b, |a, b| product(a, b) as u32))
    }
    #[inline(always)]
    fn equal_u(self, a: U, b: U) -> Mask {
        mask(a, b, |a, b| a == b)
    }
    #[inline(always)]
    fn less_u(self, a: U, b: U) -> Mask {
        mask(a, b, |a, b| a < b)
    }
    #[inline(always)]
    fn select_u(self, mask: Mask, a: U, b: U) -> U {
        blend(mask, a, b)
    }
    #[inline(always)]
    fn sum_u(self, a: U) -> u64 {
        a.into_iter().map(u64::from).sum()
    }
    #[inline(always)]
    fn add_products(self, sums: U, codes: &[i8; 2 * WIDTH], digits: &[i16; 2 * WIDTH]) -> U {
        let mut out = sums;
        for i in 0..2 * WIDTH {
            let product = i32::from(codes[i]) * i32::from(digits[i]);
            out[i % WIDTH] = out[i % WIDTH].wrapping_add(product as u32);
        }
        out
    }
}
