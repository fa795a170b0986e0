//! Proves what `docs/numerics.md` says of the numbers, over every input they can get, and prints it.
//!
//! ```text
//! cargo run --release -p gumball-spec --example prove -- [--quick] [--threads N]
//! ```
//!
//! Each line of the table is a claim: the walked function, the number of inputs, the maxima that were found,
//! the claim. The exit status is 1 if any claim fails. The reference is f64 with the platform's libm, good to
//! about 1e-16, nine digits finer than anything measured here.
//!
//! `--quick` walks 64 consecutive inputs of every 65536 and takes seconds. The whole walk takes minutes,
//! provided that `mul_add` is an instruction: build it with `RUSTFLAGS="-C target-cpu=native"`.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use gumball_spec::filter::target_mass;
use gumball_spec::num::{
    LN_2, SWITCH_32, SWITCH_64, exp_of_u32, exp_of_u64, exp2, from_ordered_bits, key, key_id, key_logit,
    log2, log2_one_plus, log2_parts, ordered_bits,
};
use gumball_spec::survey::Factor;

/// Inputs walked at a time, and how many of them in a quick walk.
const RUN: u64 = 1 << 16;
const QUICK_RUN: u64 = 1 << 6;

/// The result of a walk; `worst` holds up to four maxima, each with the input it was seen at.
#[derive(Clone, Default)]
struct Found {
    inputs: u64,
    breaks: u64,
    first_break: Option<u64>,
    worst: [(f64, u64); 4],
    octaves: BTreeMap<i32, u64>,
}

impl Found {
    fn see(&mut self, which: usize, value: f64, at: u64) {
        if value > self.worst[which].0 {
            self.worst[which] = (value, at);
        }
    }

    fn hold(&mut self, holds: bool, at: u64) {
        if !holds {
            self.breaks += 1;
            self.first_break = Some(self.first_break.map_or(at, |first| first.min(at)));
        }
    }

    fn merge(mut self, other: Found) -> Found {
        self.inputs += other.inputs;
        self.breaks += other.breaks;
        self.first_break = [self.first_break, other.first_break].into_iter().flatten().min();
        for (octave, count) in other.octaves {
            *self.octaves.entry(octave).or_default() += count;
        }
        for (which, (value, at)) in other.worst.into_iter().enumerate() {
            self.see(which, value, at);
        }
        self
    }
}

/// How to walk, and the table so far.
struct Proof {
    quick: bool,
    threads: usize,
    failed: u32,
    /// How often exp2 rises as d falls, by the exponent of |d|.
    rises: BTreeMap<i32, u64>,
}

impl Proof {
    /// Calls `visit` with runs that cover the inputs (or, if quick, with samples and the last input).
    fn walk(&self, inputs: Range<u64>, visit: impl Fn(&mut Found, Range<u64>) + Sync) -> Found {
        let (next, runs) = (AtomicU64::new(0), (inputs.end - inputs.start).div_ceil(RUN));
        let work = || {
            let mut found = Found::default();
            loop {
                let run = next.fetch_add(1, Ordering::Relaxed);
                if run >= runs {
                    return found;
                }
                let start = inputs.start + run * RUN;
                let end = (start + if self.quick { QUICK_RUN } else { RUN }).min(inputs.end);
                let last = inputs.end - 1;
                for part in [start..end, last.max(end)..last + u64::from(self.quick && run + 1 == runs)] {
                    if !part.is_empty() {
                        found.inputs += part.end - part.start;
                        visit(&mut found, part);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads).map(|_| scope.spawn(work)).collect();
            threads
                .into_iter()
                .map(|t| t.join().expect("a walk panicked"))
                .fold(Found::default(), Found::merge)
        })
    }

    fn line(&mut self, claim: &str, inputs: u64, found: &str, claimed: &str, holds: bool) {
        self.failed += u32::from(!holds);
        let verdict = if holds { "holds" } else { "FAILS" };
        println!("| {claim} | {inputs} | {found} | {claimed} | {verdict} |");
    }

    fn never(&mut self, claim: &str, found: &Found) {
        let text = match found.first_break {
            None => "none".to_owned(),
            Some(at) => format!("{}, first at {at:#x}", found.breaks),
        };
        self.line(claim, found.inputs, &text, "no violation", found.breaks == 0);
    }

    fn at_most(&mut self, claim: &str, found: &Found, which: usize, bound: f64) {
        let (value, at) = found.worst[which];
        let text = format!("{value:.3e} at {at:#x}");
        self.line(claim, found.inputs, &text, &format!("<= {bound:e}"), value <= bound);
    }
}

/// Every positive finite float, by its bits: the race's range 2^-75..=2^17 apart from the rest.
fn prove_log2(proof: &mut Proof) {
    let float = |at: u64| f32::from_bits(at as u32);
    let race = (127 - 75) << 23..((127 + 17) << 23) + 1;
    let walk = |proof: &Proof, inputs: Range<u64>| {
        proof.walk(inputs, |found, run| {
            let mut last = log2(float(run.start.max(2) - 1));
            for at in run {
                let (x, l) = (float(at), log2(float(at)));
                found.hold(l >= last, at);
                last = l;
                let exact = f64::from(x).log2();
                let error = (f64::from(l) - exact).abs();
                if exact != 0.0 {
                    found.see(usize::from(log2_parts(x).0 != 0), error / exact.abs(), at);
                }
                found.see(2, error / f64::from(l.abs().next_up() - l.abs()), at);
            }
        })
    };
    let inside = walk(proof, race.clone());
    proof.never("log2 decreases, over 2^-75..=2^17", &inside);
    proof.at_most("log2, relative error where e = 0", &inside, 0, 1.3e-7);
    proof.at_most("log2, relative error where e is not 0", &inside, 1, 1.4e-7);
    proof.at_most("log2, error in units of the last place", &inside, 2, 1.9);
    let outside = walk(proof, 1..race.start).merge(walk(proof, race.end..0x7F80_0000));
    proof.never("log2 decreases, over all other positive floats", &outside);
    proof.at_most("log2, relative error over those", &outside, 1, 6.0e-8);

    // What a logprob takes: e and RN(P(f) f) apart, f from every fraction of a mantissa.
    let parts = proof.walk(0x3F80_0000..0x4000_0000, |found, run| {
        for at in run {
            let (e, f) = log2_parts(float(at));
            let sum = f64::from(e) + f64::from(log2_one_plus(f) * f);
            found.see(0, LN_2 * (sum - f64::from(float(at)).log2()).abs(), at);
        }
    });
    proof.at_most("ln of a mass in a logprob, absolute error, RN(Z) given", &parts, 0, 3.9e-8);
}

/// Every float in [-126, -0], by the bits of its magnitude.
fn prove_exp2(proof: &mut Proof) {
    let float = |at: u64| -f32::from_bits(at as u32);
    let fixed = |d: f32| (1_048_576.0 * d.min(32.0)).round_ties_even() as u64;
    let zero = [-(126.0f32.next_up()), f32::MIN, f32::NEG_INFINITY].map(|d| exp2(d).to_bits()) == [0; 3];
    let found = proof.walk(0..u64::from(126.0f32.to_bits()) + 1, |found, run| {
        for at in run {
            let (d, x) = (float(at), exp2(float(at)));
            found.hold((f32::MIN_POSITIVE..=1.0).contains(&x), at);
            let exact = f64::from(d).exp2();
            found.see(0, (f64::from(x) - exact).abs() / exact, at);
            let q = (x * 268_435_456.0).round_ties_even() as u64;
            found.see(1, q as f64, at);
            found.see(2, (q * fixed(-d)) as f64, at);
            found.see(3, Factor::new(x).mass(((1 << 36) * fixed(-d)) >> 24) as f64, at);
            let Factor { mantissa, k } = Factor::new(x);
            let split = mantissa as f64 * 0.5f64.powi(23 + k as i32);
            found.hold(split == f64::from(x) && mantissa >> 23 == 1 && k <= 126, at);
        }
    });
    proof.never("exp2 above 1 or subnormal, or its factor not G 2^(-23-k)", &found);
    proof.line("exp2 below -126", 3, if zero { "+0" } else { "not 0" }, "+0", zero);
    proof.at_most("exp2, relative error over [-126, 0]", &found, 0, 6.8e-8);

    // Where it is not monotone: adjacent floats d' < d with exp2(d') > exp2(d).
    let rises = proof.walk(1..u64::from(126.0f32.to_bits()) + 1, |found, run| {
        let mut last = exp2(float(run.start - 1));
        for at in run {
            let x = exp2(float(at));
            if x > last {
                found.hold(false, at);
                found.see(0, f64::from(x.to_bits() - last.to_bits()), at);
                *found.octaves.entry((at >> 23) as i32 - 127).or_default() += 1;
            }
            last = x;
        }
    });
    let text = format!("{}, first at d = {:?}", rises.breaks, rises.first_break.map_or(f32::NAN, float));
    proof.line("exp2: adjacent floats d' < d with exp2(d') > exp2(d)", rises.inputs, &text, "reported", true);
    proof.at_most("exp2: the largest such rise, units of the last place", &rises, 0, 1.0);
    // rint takes -(n + 1/2) to the even neighbour, so n changes just above it or just below it.
    let halves = (0..126).map(|n| -(n as f32 + 0.5));
    let at_switches = halves
        .flat_map(|h| [(h.next_up(), h), (h, h.next_down())])
        .filter(|(d, below)| d.round_ties_even() != below.round_ties_even() && exp2(*below) > exp2(*d));
    proof.line(
        "exp2: how many of them where n changes",
        126,
        &at_switches.count().to_string(),
        "reported",
        true,
    );
    proof.rises = rises.octaves;
    prove_sums(proof, &found);
}

/// Bounds of the integer sums, from the maxima over every weight and factor.
fn prove_sums(proof: &mut Proof, found: &Found) {
    let (q, q_d, tile_d) = (found.worst[1].0, found.worst[2].0, found.worst[3].0);
    let bits = |x: f64| format!("2^{:.2}", x.log2());
    let mut bound = |what: &str, value: f64, limit: i32| {
        proof.line(what, found.inputs, &bits(value), &format!("<= 2^{limit}"), value <= 2f64.powi(limit));
    };
    bound("a weight q", q, 28);
    bound("Q of a tile: 256 q", 256.0 * q, 36);
    bound("Q G, before the shift", 256.0 * q * 16_777_215.0, 60);
    bound("mass of 4096 tiles: Q 2^23 >> 8 each", 4096.0 * 256.0 * q * 32768.0, 63);
    bound("R of a tile: 256 q d", 256.0 * q_d, 61);
    bound("Q D of a tile", 256.0 * q * 32.0 * 1_048_576.0, 61);
    let tile_r = 256.0 * q_d / 2f64.powi(24) * 32768.0;
    bound("entropy's sum over 4096 tiles", 4096.0 * (tile_r + tile_d), 63);
    let x = 4_194_303u128;
    let s2 = (x * x) << 20;
    bound("top-n-sigma: S2 of 2^20 tokens", s2 as f64, 64);
    proof.line("top-n-sigma: S2 fits u64", 1, &s2.to_string(), "< 2^64", s2 < 1 << 64);

    // Top-p's target in u64 equals the exact ceiling at the corners of P and Z.
    let (mut right, mut pairs) = (true, 0);
    for p in (0..=32).map(|i| 0.5f32.powi(i)).flat_map(|p| [p, p.next_down(), p * 0.75]) {
        for z in (43..=63).flat_map(|i| [1u64 << i, (1 << i) + 1, (1 << i) - 1 + (1 << 43)]) {
            let wide = (u128::from((f64::from(p) * 4_294_967_296.0).ceil() as u64)
                * u128::from(z.min(1 << 63)))
            .div_ceil(1 << 32);
            right &= u128::from(target_mass(p, z.min(1 << 63))) == wide;
            pairs += 1;
        }
    }
    proof.line("top-p's target in u64 is ceil(P Z / 2^32)", pairs, &right.to_string(), "true", right);
}

/// All 2^32 words.
fn prove_exp_of_u32(proof: &mut Proof) {
    let found = proof.walk(0..1 << 32, |found, run| {
        let mut last = exp_of_u32((run.start.max(1) - 1) as u32);
        for at in run {
            let e = exp_of_u32(at as u32);
            found.hold(e >= last && e > 0.0, at);
            last = e;
            let uniform = |word: u32| (2 * u64::from(word) + 1) as f64 * 0.5f64.powi(33);
            let exact = exact_exp(uniform(at as u32), uniform(!(at as u32)));
            found.see(0, (f64::from(e) - exact).abs() / exact, at);
        }
    });
    proof.never("exp_of_u32 decreases, or is not above 0", &found);
    proof.at_most("exp_of_u32, relative error", &found, 0, 2.6e-7);
}

/// `-log2(1 - u)`, given `u` and `1 - u`.
fn exact_exp(u: f64, rest: f64) -> f64 {
    if u < 0.5 { -(-u).ln_1p() / LN_2 } else { -rest.log2() }
}

/// The 64-bit words, by the floats they round to: a word and its complement are seen as integers `w` that
/// round to `g`; the walk goes over every `g`, and each stands for all `w` in `words(g)`.
fn prove_exp_of_u64(proof: &mut Proof) {
    const EXACT: u64 = 1 << 24;
    let float = |at: u64| match at {
        0..=EXACT => at as f32,
        _ => f32::from_bits((EXACT as f32).to_bits() + (at - EXACT) as u32),
    };
    let index = |g: f32| {
        if g <= EXACT as f32 { g as u64 } else { EXACT + u64::from(g.to_bits() - (EXACT as f32).to_bits()) }
    };
    // The integers that round to a float, ties to even; 0 counts as 1.
    let words = |g: f32, most: u64| {
        let odd = u64::from(g.to_bits() & 1);
        let middle = |a: f32, b: f32| ((a as u128 + b as u128) / 2) as u64;
        let low = if g <= EXACT as f32 { g as u64 } else { middle(g.next_down(), g) + odd };
        let high = if g < EXACT as f32 { g as u64 } else { middle(g, g.next_up()) - odd };
        (if low == 1 { 0 } else { low }, high.min(most))
    };
    let unit = 0.5f64.powi(64);
    // `far` walks the complements: there Exp falls as the word rises.
    let walk = |proof: &Proof, far: bool, most: u64| {
        let of = |w: u64| exp_of_u64(if far { !w } else { w });
        proof.walk(1..index(most as f32) + 1, |found, run| {
            for at in run {
                let g = float(at);
                let (low, high) = words(g, most);
                let e = of(low);
                found.hold(e == of(high) && high as f32 == g && low.max(1) as f32 == g, at);
                let (before, after) = (at > 1, high < most);
                let last = if before { of(words(float(at - 1), most).1) } else { e };
                let next = if after { of(words(float(at + 1), most).0) } else { e };
                found.hold(if far { last >= e && e >= next } else { last <= e && e <= next }, at);
                for w in [low.max(1), high] {
                    let u = w as f64 * unit;
                    let exact = if far { exact_exp(1.0 - u, u) } else { exact_exp(u, 1.0 - u) };
                    found.see(0, (f64::from(e) - exact).abs() / exact, at);
                }
                // The law: how many words give at most (less than) e; far, at least (more than) e.
                let x = f64::from(e);
                let law = if far { (-x).exp2() } else { -(-x * LN_2).exp_m1() };
                let with = if !after || next != e { (high as f64 + 1.0) * unit / law } else { 1.0 };
                let without = if before && last != e { low as f64 * unit / law } else { 1.0 };
                let off = (with - 1.0).abs().max((without - 1.0).abs());
                for (which, least) in [(1, 1e-12), (2, 3e-14), (3, 1e-15)] {
                    if law >= least {
                        found.see(which, off, at);
                    }
                }
            }
        })
    };
    let near = walk(proof, false, SWITCH_64 - 1);
    proof.never("exp_of_u64 decreases, below the switch (U by RN(U))", &near);
    proof.at_most("exp_of_u64, relative error there, all U", &near, 0, 1.7e-7);
    proof.at_most("law P(Exp <= x), relative, where it is >= 1e-12", &near, 1, 1.6e-7);
    proof.at_most("the same, >= 3e-14", &near, 2, 1.9e-6);
    proof.at_most("the same, >= 1e-15", &near, 3, 5.5e-5);
    let far = walk(proof, true, !SWITCH_64);
    proof.never("exp_of_u64 decreases, from the switch on (by RN(!U))", &far);
    proof.at_most("exp_of_u64, relative error there, all U", &far, 0, 2.6e-7);
    proof.at_most("law P(Exp >= x), relative, where it is >= 1e-12", &far, 1, 1.5e-6);
    proof.at_most("the same, >= 3e-14", &far, 2, 3.2e-6);

    let least = f64::from(exp_of_u64(0));
    let most = f64::from(exp_of_u64(u64::MAX));
    let holds = (7.8e-20..7.9e-20).contains(&least) && most == 64.0;
    proof.line("range of exp_of_u64", 2, &format!("{least:.4e}..={most}"), "7.8e-20..=64", holds);
}

/// Both branches of both functions on both sides of their switches.
fn prove_switches(proof: &mut Proof) {
    let near = |v: f32| v * log2_one_plus(-v);
    let mut found = Found { inputs: 4, ..Found::default() };
    for r in [SWITCH_32 - 1, SWITCH_32] {
        let uniform = |word: u32| ((2 * u64::from(word) + 1) as f64 * 0.5f64.powi(33)) as f32;
        found.hold(near(uniform(r)) == 0.5 && -log2(uniform(!r)) == 0.5, u64::from(r));
    }
    for u in [SWITCH_64 - 1, SWITCH_64] {
        let uniform = |word: u64| word as f32 * 0.5f32.powi(64);
        found.hold(near(uniform(u)) == 0.5 && -log2(uniform(!u)) == 0.5, u);
    }
    proof.never("a branch of Exp is not 0.5 beside its switch", &found);
}

/// All 2^32 bit patterns as a bijection, and every float but NaN as an order.
fn prove_order(proof: &mut Proof) {
    let found = proof.walk(0..1 << 32, |found, run| {
        for at in run {
            let z = from_ordered_bits(at as u32);
            found.hold(ordered_bits(z) == at as u32, at);
            let id = (at as u32).wrapping_mul(0x9E37_79B9);
            let back = key(z, id);
            found.hold(key_logit(back).to_bits() == z.to_bits() && key_id(back) == id, at);
        }
    });
    proof.never("ordered_bits is no bijection of the bit patterns", &found);
    let floats = u64::from(ordered_bits(f32::NEG_INFINITY)) + 1..u64::from(ordered_bits(f32::INFINITY)) + 1;
    let found = proof.walk(floats, |found, run| {
        for at in run {
            let (below, z) = (from_ordered_bits(at as u32 - 1), from_ordered_bits(at as u32));
            let zeros = below.to_bits() == (-0.0f32).to_bits() && z.to_bits() == 0;
            found.hold(below < z || zeros, at);
        }
    });
    proof.never("floats out of the order of their bits (-0 just below +0)", &found);
}

fn main() -> ExitCode {
    let mut proof = Proof { quick: false, threads: 1, failed: 0, rises: BTreeMap::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), &mut proof) {
            ("--quick", proof) => proof.quick = true,
            ("--threads", proof) => match arguments.next().map(|n| n.parse()) {
                Some(Ok(threads)) if threads > 0 => proof.threads = threads,
                _ => return usage("--threads takes a number of at least 1"),
            },
            (other, _) => return usage(&format!("{other} is not known")),
        }
    }
    println!("| claim | inputs | found | claimed | |\n| --- | --- | --- | --- | --- |");
    let start = Instant::now();
    prove_log2(&mut proof);
    prove_exp2(&mut proof);
    prove_exp_of_u32(&mut proof);
    prove_exp_of_u64(&mut proof);
    prove_switches(&mut proof);
    prove_order(&mut proof);
    let walk = if proof.quick { "a quick walk" } else { "the whole walk" };
    println!("\nexp2 rises as d falls, by the octave of |d|:");
    for (octave, count) in &proof.rises {
        println!("  [2^{octave}, 2^{}): {count}", octave + 1);
    }
    println!("\n{walk}, {} threads, {} s, {} failed", proof.threads, start.elapsed().as_secs(), proof.failed);
    if proof.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage(problem: &str) -> ExitCode {
    eprintln!("{problem}\nusage: prove [--quick] [--threads N]");
    ExitCode::from(2)
}
