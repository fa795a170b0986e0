//! Logprobs of given ids over given sets, entropies and their gradient (L4, L5): operators against the oracle
//! bit for bit, in any chunk, and the oracle against real numbers within the bounds of `docs/numerics.md`.

use std::sync::Arc;

use gumball_cuda::Runtime;
use gumball_engine::{
    ColumnType, DeviceBuffer as Buffer, DeviceMasks, DeviceMatrix, DeviceRows, DeviceSlice, Dtype,
    GivenLogprobs, GivenTokens, IntType, LogitsMut, LossDerivatives, Masks, Operators, PerRow, PerRowMut,
    Rows, WEIGHED_NUMBERS,
};
use gumball_spec::logprobs::gradient::{GivenIds, GivenRow, IGNORED, Weighed};
use gumball_spec::{Error, HostMatrix, Kind, NONE, Row};
use half::{bf16, f16};

use crate::operators::{integers, operators};
use crate::rows::Words;
use crate::softmax::{bits, buffer, laid_out, read, row};

const VOCABS: [usize; 10] = [1, 2, 31, 255, 256, 257, 300, 1000, 3000, 9000];
const TEMPERATURES: [f32; 8] = [0.0, 1e-31, 0.01, 0.5, 1.0, 1.7, 100.0, 1e30];

/// Rows, the arguments of a call, and the derivatives of a loss by its results.
#[derive(Debug)]
pub struct Given {
    dtype: Dtype,
    vocab: usize,
    rows: usize,
    /// The ids of each row.
    width: usize,
    /// The elements between rows.
    gap: usize,
    /// The logits, exact in `dtype`.
    lines: Vec<Vec<f32>>,
    ids: Vec<i32>,
    ignored: i32,
    /// One for each row, or one for all.
    temperatures: Vec<f32>,
    /// The words of each row's set, and how many a row has.
    kept: Option<(Vec<u32>, usize)>,
    of_logprobs: Vec<f32>,
    of_entropies: Option<Vec<f32>>,
    in_place: bool,
}

/// What operators say of rows, as bits.
#[derive(Debug, PartialEq)]
struct Said {
    logprobs: Vec<u32>,
    entropies: Vec<u32>,
    weighed: Vec<u32>,
    /// In the type of the logits.
    gradient: Vec<u32>,
}

impl Given {
    /// Makes what a seed stands for.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let words = &mut Words(seed);
        let vocab = VOCABS[words.below(VOCABS.len())];
        let rows = 1 + words.below(if vocab > 1000 { 3 } else { 6 });
        let dtype = [Dtype::F32, Dtype::Bf16, Dtype::F16][words.below(3)];
        let width = [1, 1, 2, 5, 40][words.below(5)];
        let ignored = if words.below(4) == 0 { 0 } else { IGNORED };
        let lines: Vec<Vec<f32>> =
            (0..rows).map(|_| row(words, vocab).into_iter().map(|z| rounded(dtype, z)).collect()).collect();
        let ids = (0..rows * width).map(|_| match words.below(10) {
            0 => NONE,
            1 | 2 => ignored,
            _ => words.below(vocab) as i32,
        });
        let ids = ids.collect();
        let each = if words.below(2) == 0 { rows } else { 1 };
        let temperatures = (0..each).map(|_| TEMPERATURES[words.below(TEMPERATURES.len())]).collect();
        let kept = (words.below(3) > 0).then(|| {
            let width = vocab.div_ceil(32) - words.below(2);
            let share = [1, 2, 8, 60, 1000][words.below(5)];
            let mut kept = vec![0u32; rows * width];
            for word in &mut kept {
                for bit in 0..32 {
                    *word |= u32::from(words.below(share) == 0) << bit;
                }
            }
            (kept, width)
        });
        let mut number = || (words.bell() * 2.0).clamp(-4.0, 4.0);
        let of_logprobs = (0..rows * width).map(|_| number()).collect();
        let of_entropies: Vec<f32> = (0..rows).map(|_| number()).collect();
        let of_entropies = (words.below(3) > 0).then_some(of_entropies);
        let (gap, in_place) = ([0, 0, 1, 8][words.below(4)], words.below(2) == 0);
        let (temperatures, kept) = (temperatures, kept);
        Self {
            dtype,
            vocab,
            rows,
            width,
            gap,
            lines,
            ids,
            ignored,
            temperatures,
            kept,
            of_logprobs,
            of_entropies,
            in_place,
        }
    }

    /// Returns one row of these, as a batch of its own.
    fn chunk(&self, row: usize) -> Self {
        let part = |width: usize| row * width..(row + 1) * width;
        let kept = self.kept.as_ref().map(|(kept, width)| (kept[part(*width)].to_vec(), *width));
        Self {
            rows: 1,
            lines: vec![self.lines[row].clone()],
            ids: self.ids[part(self.width)].to_vec(),
            temperatures: vec![self.temperature(row)],
            kept,
            of_logprobs: self.of_logprobs[part(self.width)].to_vec(),
            of_entropies: self.of_entropies.as_ref().map(|of| vec![of[row]]),
            ..*self
        }
    }

    fn temperature(&self, row: usize) -> f32 {
        self.temperatures[if self.temperatures.len() == 1 { 0 } else { row }]
    }

    fn of_entropy(&self, row: usize) -> f32 {
        self.of_entropies.as_ref().map_or(0.0, |of| of[row])
    }

    fn of_logprobs(&self, row: usize) -> &[f32] {
        &self.of_logprobs[row * self.width..][..self.width]
    }

    fn oracle(&self, row: usize) -> GivenRow<'_> {
        GivenRow {
            row: Row::F32(&self.lines[row]),
            kept: self.kept.as_ref().map(|(kept, width)| &kept[row * width..][..*width]),
            temperature: self.temperature(row),
            ids: GivenIds { ids: &self.ids[row * self.width..][..self.width], ignored: self.ignored },
        }
    }

    /// Returns what the oracle says.
    fn wanted(&self) -> Said {
        let mut said = Said { logprobs: vec![], entropies: vec![], weighed: vec![], gradient: vec![] };
        for row in 0..self.rows {
            let (logprobs, weighed) = self.oracle(row).logprobs();
            let gradient = self.oracle(row).gradient(self.of_logprobs(row), self.of_entropy(row));
            said.logprobs.extend(logprobs.iter().map(|x| x.to_bits()));
            said.entropies.push(weighed.entropy().to_bits());
            let Weighed { first, mass, distance } = weighed;
            said.weighed.extend([first, mass, distance].map(f32::to_bits));
            said.gradient.extend(gradient.iter().map(|x| bits(self.dtype, *x)));
        }
        said
    }

    /// Returns what operators of the host say.
    fn seen(&self, operators: &Operators) -> Result<Said, Error> {
        let Self { rows, vocab, gap, .. } = *self;
        let (stride, mut all) = (vocab + gap, Vec::new());
        for line in &self.lines {
            all.extend_from_slice(line);
            all.resize(all.len() + gap, 7.0);
        }
        let kept = match &self.kept {
            None => Masks::None,
            Some((kept, width)) => Masks::new(kept, rows, *width, *width)?,
        };
        let temperature = match &self.temperatures[..] {
            [one] => PerRow::All(*one),
            each => PerRow::Host(each),
        };
        let given = GivenTokens {
            ids: PerRow::Host(&self.ids),
            width: self.width,
            ignored: self.ignored,
            temperature,
            kept,
        };
        let (mut logprobs, mut entropies) = (vec![7.0; self.ids.len()], vec![7.0; rows]);
        let mut weighed = vec![7.0; rows * WEIGHED_NUMBERS];
        let by_entropies = self.of_entropies.as_ref().map(PerRow::from);
        macro_rules! run {
            ($type:ty, $of:expr, $to:expr) => {{
                let data: Vec<$type> = all.iter().map(|z| $of(*z)).collect();
                let read = || {
                    Ok::<_, Error>(Rows::of(HostMatrix::strided(&data, rows, vocab, stride)?, Kind::Logits))
                };
                let out = GivenLogprobs {
                    logprobs: (&mut logprobs).into(),
                    entropies: Some((&mut entropies).into()),
                    weighed: Some((&mut weighed).into()),
                };
                operators.logprobs(read()?, &given, out)?;
                let by = LossDerivatives {
                    weighed: (&weighed).into(),
                    of_logprobs: (&self.of_logprobs).into(),
                    of_entropies: by_entropies,
                };
                let mut written = if self.in_place { data.clone() } else { vec![$of(5.0); data.len()] };
                let to = LogitsMut::strided(&mut written[..], rows, vocab, stride)?;
                match self.in_place {
                    true => operators.logprobs_gradient(to, &given, &by)?,
                    false => operators.logprobs_gradient((read()?, to), &given, &by)?,
                }
                written.chunks(stride).flat_map(|line| line[..vocab].iter().map($to)).collect()
            }};
        }
        let gradient: Vec<u32> = match self.dtype {
            Dtype::F32 => run!(f32, |z| z, |z: &f32| z.to_bits()),
            Dtype::Bf16 => run!(bf16, bf16::from_f32, |z: &bf16| u32::from(z.to_bits())),
            Dtype::F16 => run!(f16, f16::from_f32, |z: &f16| u32::from(z.to_bits())),
        };
        let words = |of: &[f32]| of.iter().map(|x| x.to_bits()).collect();
        let (logprobs, entropies, weighed) = (words(&logprobs), words(&entropies), words(&weighed));
        Ok(Said { logprobs, entropies, weighed, gradient })
    }

    /// Holds the oracle to real numbers; returns the largest errors of logprobs, entropies and derivatives as
    /// shares of their bounds.
    ///
    /// # Panics
    /// If a number that must be finite is not.
    #[must_use]
    pub fn real(&self) -> [f64; 3] {
        let mut worst = [0f64; 3];
        for row in 0..self.rows {
            let (of, t) = (self.oracle(row), f64::from(self.temperature(row)));
            let (logprobs, weighed) = of.logprobs();
            let gradient = of.gradient(self.of_logprobs(row), self.of_entropy(row));
            assert!(gradient.iter().all(|x| x.is_finite()) && weighed.entropy().is_finite());
            if weighed.mass == 0.0 {
                assert!(gradient.iter().all(|x| *x == 0.0) && weighed.entropy() == 0.0);
                continue;
            }
            let holds = |id: usize| {
                of.kept.is_none_or(|kept| kept.get(id / 32).is_some_and(|word| word >> (id % 32) & 1 == 1))
            };
            let z = |id: usize| f64::from(Kind::Logits.clean(self.lines[row][id]));
            let members: Vec<usize> = (0..self.vocab).filter(|id| holds(*id) && z(*id).is_finite()).collect();
            let first = members.iter().map(|id| z(*id)).fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = members.iter().map(|id| ((z(*id) - first) / t).exp()).sum();
            let ln_p = |id: usize| (z(id) - first) / t - sum.ln();
            let p = |id: usize| ln_p(id).exp();
            let entropy: f64 =
                members.iter().map(|id| if p(*id) > 0.0 { -p(*id) * ln_p(*id) } else { 0.0 }).sum();
            let mut hold = |what: usize, error: f64, bound: f64| worst[what] = worst[what].max(error / bound);
            // Weights are rounded to 2^-28 of their tile's largest, far from which they move the mean
            // distance, and not the mass.
            let (fine, coarse) = ((1.0 + entropy) * 2f64.powi(-21), 2f64.powi(-18));
            hold(1, (f64::from(weighed.entropy()) - entropy).abs(), (1.0 + entropy) * coarse);
            let asked = || of.ids.ids.iter().zip(self.of_logprobs(row));
            let is_member =
                |id: i32| id != self.ignored && id >= 0 && members.binary_search(&(id as usize)).is_ok();
            for ((id, _), logprob) in asked().zip(&logprobs) {
                if is_member(*id) {
                    // Further down it underflows to -inf (L2).
                    let exact = ln_p(*id as usize).max(-3e38);
                    let logprob = logprob.max(-3e38);
                    hold(0, (f64::from(logprob) - exact).abs(), fine + exact.abs() * f64::from(f32::EPSILON));
                } else {
                    assert_eq!(*logprob, if *id == self.ignored { 0.0 } else { f32::NEG_INFINITY });
                }
            }
            let all: f64 = asked().filter(|(id, _)| is_member(**id)).map(|(_, g)| f64::from(*g)).sum();
            let h = f64::from(self.of_entropy(row));
            for (id, got) in gradient.iter().copied().map(f64::from).enumerate() {
                if members.binary_search(&id).is_err() {
                    assert_eq!(got, 0.0);
                    continue;
                }
                let own: f64 = asked()
                    .filter(|(other, _)| is_member(**other) && **other as usize == id)
                    .map(|(_, g)| f64::from(*g))
                    .sum();
                let share = if p(id) > 0.0 { p(id) * (all + h * (ln_p(id) + entropy)) } else { 0.0 };
                let exact = (own - share) / t;
                let size = all.abs() + h.abs() * (1.0 + ln_p(id).abs() + entropy);
                let y = (first - z(id)) / t;
                let weight = if p(id) > 0.0 { p(id) * size * (1.0 + y.min(200.0) + entropy) } else { 0.0 };
                let bound = (own.abs() + weight) / t * coarse + 1e-35 / t + 1e-37;
                hold(2, (got - exact).abs(), bound);
            }
        }
        worst
    }
}

impl Given {
    /// Returns what a device says, of logprobs and derivatives that lie apart or in one another's place.
    fn seen_there(&self, runtime: &Arc<dyn Runtime>) -> Result<Said, Error> {
        let Self { rows, vocab, gap, dtype, width, .. } = *self;
        let elements = laid_out(dtype, &self.lines, 0, gap);
        let mut logits = buffer(runtime, dtype, &elements)?;
        let ids: Vec<i64> = self.ids.iter().map(|id| i64::from(*id)).collect();
        let wide = gap > 0;
        let ids = integers(runtime, &ids, wide)?;
        let temperatures = Buffer::of(runtime, &self.temperatures)?;
        let kept = self.kept.as_ref().map(|(kept, _)| Buffer::of(runtime, kept)).transpose()?;
        let masks = kept.as_ref().zip(self.kept.as_ref());
        let masks =
            masks.map(|(buffer, (_, words))| DeviceMasks::of(buffer, rows, *words, *words)).transpose()?;
        let column = |buffer| DeviceSlice::of(buffer, ColumnType::F32);
        let tokens = GivenTokens {
            ids: PerRow::Device(DeviceSlice::of(&ids, if wide { IntType::I64 } else { IntType::I32 })),
            width,
            ignored: self.ignored,
            temperature: PerRow::Device(column(&temperatures)),
            kept: masks.map_or(Masks::None, Masks::Device),
        };
        let numbers = |count: usize| Buffer::of(runtime, &vec![7.0f32; count]);
        let (logprobs, entropies) = (numbers(rows * width)?, numbers(rows)?);
        let weighed = numbers(rows * WEIGHED_NUMBERS)?;
        let operators = operators(runtime);
        let written = |buffer| PerRowMut::Device(column(buffer));
        let stride = vocab + gap;
        let from = DeviceMatrix::of(&logits, dtype, 0, rows, vocab, stride)?;
        // First without entropies: the next call meets the memory that this one wrote.
        let alone = GivenLogprobs { logprobs: written(&logprobs), entropies: None, weighed: None };
        operators.logprobs(from, &tokens, alone)?;
        let read_floats = |buffer: &Buffer, count: usize| {
            let mut words = vec![0u32; count];
            buffer.read(0, &mut words).map(|()| words)
        };
        let first = read_floats(&logprobs, rows * width)?;
        let out = GivenLogprobs {
            logprobs: written(&logprobs),
            entropies: Some(written(&entropies)),
            weighed: Some(written(&weighed)),
        };
        operators.logprobs(from, &tokens, out)?;
        let of_logprobs = Buffer::of(runtime, &self.of_logprobs)?;
        let of_entropies = self.of_entropies.as_ref().map(|of| Buffer::of(runtime, of)).transpose()?;
        let by = LossDerivatives {
            weighed: PerRow::Device(column(&weighed)),
            of_logprobs: PerRow::Device(column(&of_logprobs)),
            of_entropies: of_entropies.as_ref().map(|of| PerRow::Device(column(of))),
        };
        let written = if self.in_place {
            let to = DeviceRows::of(&mut logits, dtype, 0, rows, vocab, stride)?;
            operators.logprobs_gradient(to, &tokens, &by)?;
            read(&logits, dtype, elements.len())?
        } else {
            // After an odd number of elements, so that the two do not lie alike.
            let shift = self.ids.len() % 2 * 3;
            let mut out = buffer(runtime, dtype, &vec![bits(dtype, 5.0); elements.len() + shift])?;
            let to = DeviceRows::of(&mut out, dtype, shift, rows, vocab, stride)?;
            operators.logprobs_gradient((from, to), &tokens, &by)?;
            read(&out, dtype, elements.len() + shift)?.split_off(shift)
        };
        let said = Said {
            logprobs: read_floats(&logprobs, rows * width)?,
            entropies: read_floats(&entropies, rows)?,
            weighed: read_floats(&weighed, rows * WEIGHED_NUMBERS)?,
            gradient: written.chunks(stride).flat_map(|line| line[..vocab].iter().copied()).collect(),
        };
        assert_eq!(first, said.logprobs, "entropies change no logprob");
        Ok(said)
    }
}

/// Holds a device to the oracle on the random case of a seed.
///
/// # Errors
/// A text that says what differs, or what the runtime said.
pub fn hold(runtime: &Arc<dyn Runtime>, seed: u64) -> Result<(), String> {
    let given = Given::new(seed);
    let seen = given.seen_there(runtime).map_err(|error| format!("seed {seed}: {error}\n{given:?}"))?;
    let wanted = given.wanted();
    if seen == wanted {
        return Ok(());
    }
    let parts = [
        ("logprobs", &seen.logprobs, &wanted.logprobs),
        ("entropies", &seen.entropies, &wanted.entropies),
        ("weighed", &seen.weighed, &wanted.weighed),
        ("gradient", &seen.gradient, &wanted.gradient),
    ];
    let mut text = format!("seed {seed}:");
    for (name, seen, wanted) in parts {
        let differing = seen.iter().zip(wanted).enumerate().filter(|(_, (seen, wanted))| seen != wanted);
        for (place, (seen, wanted)) in differing.take(4) {
            text += &format!("\n{name}[{place}] is {seen:#x} instead of {wanted:#x}");
        }
    }
    let Given { dtype, vocab, rows, width, in_place, temperatures, ids, .. } = &given;
    Err(format!("{text}\n{dtype:?} {rows} x {vocab}, {width} ids, {in_place} {temperatures:?} {ids:?}"))
}

/// Returns a number rounded to a type.
fn rounded(dtype: Dtype, z: f32) -> f32 {
    match dtype {
        Dtype::F32 => z,
        Dtype::Bf16 => bf16::from_f32(z).to_f32(),
        Dtype::F16 => f16::from_f32(z).to_f32(),
    }
}

/// Holds operators of the host to the oracle on the random case of a seed, whole and row by row.
///
/// # Errors
/// A text that says what differs.
pub fn hold_host(operators: &Operators, seed: u64) -> Result<(), String> {
    let given = Given::new(seed);
    let text = |what: &str| format!("seed {seed}: {what}\n{given:?}");
    let wanted = given.wanted();
    let seen = given.seen(operators).map_err(|error| text(&error.to_string()))?;
    if seen != wanted {
        return Err(text(&format!("{seen:x?}\ninstead of {wanted:x?}")));
    }
    for row in 0..given.rows {
        let chunk = given.chunk(row);
        let alone = chunk.seen(operators).map_err(|error| text(&error.to_string()))?;
        if alone != chunk.wanted()
            || alone.gradient[..] != wanted.gradient[row * given.vocab..][..given.vocab]
        {
            return Err(text(&format!("row {row} alone differs")));
        }
    }
    Ok(())
}
