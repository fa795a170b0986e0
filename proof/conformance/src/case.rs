//! A case: one row and everything its token depends on, owned.

use std::cmp::Reverse;
use std::fmt;

use gumball_cpu::RowMut;
use gumball_spec::edit::{Hook, edit};
use gumball_spec::num::{LOG2_E, key};
use gumball_spec::{Forced, Kind, Request, Row, SamplingParams};
use half::{bf16, f16};

/// The temperature at which the scale is exactly 1: a token's weight is `2^z`, so that whole logits
/// give masses that can be written down.
pub const UNIT: f32 = LOG2_E;

/// The types a row can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    /// Single precision.
    F32,
    /// Truncated single precision.
    Bf16,
    /// Half precision.
    F16,
}

impl Dtype {
    /// All types.
    pub const ALL: [Dtype; 3] = [Dtype::F32, Dtype::Bf16, Dtype::F16];
}

#[cfg(feature = "cuda")]
impl From<Dtype> for gumball_cuda::Dtype {
    fn from(dtype: Dtype) -> Self {
        [Self::F32, Self::Bf16, Self::F16][dtype as usize]
    }
}

#[cfg(feature = "cuda")]
impl From<gumball_cuda::Dtype> for Dtype {
    fn from(dtype: gumball_cuda::Dtype) -> Self {
        Self::ALL[dtype as usize]
    }
}

#[derive(Clone)]
enum Buffer {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

/// A row in a buffer of its own, which may be longer than the row.
#[derive(Clone)]
pub struct Logits {
    buffer: Buffer,
    start: usize,
    len: usize,
}

impl Logits {
    /// Rounds values to a type.
    #[must_use]
    pub fn new(dtype: Dtype, values: &[f32]) -> Self {
        let buffer = match dtype {
            Dtype::F32 => Buffer::F32(values.to_vec()),
            Dtype::Bf16 => Buffer::Bf16(values.iter().map(|z| bf16::from_f32(*z)).collect()),
            Dtype::F16 => Buffer::F16(values.iter().map(|z| f16::from_f32(*z)).collect()),
        };
        Self { buffer, start: 0, len: values.len() }
    }

    /// Takes bf16 values as they are.
    #[must_use]
    pub fn bf16(values: &[bf16]) -> Self {
        Self { buffer: Buffer::Bf16(values.to_vec()), start: 0, len: values.len() }
    }

    /// Takes f16 values as they are.
    #[must_use]
    pub fn f16(values: &[f16]) -> Self {
        Self { buffer: Buffer::F16(values.to_vec()), start: 0, len: values.len() }
    }

    /// Returns the same row after `start` elements of a longer buffer, between hostile neighbours: on both
    /// sides lie values that would win every draw, and NaN.
    #[must_use]
    pub fn placed(&self, start: usize) -> Self {
        fn place<T: Copy>(row: &[T], start: usize, hostile: [T; 2]) -> Vec<T> {
            let neighbour = |i: usize| hostile[i % 2];
            let before = (0..start).rev().map(neighbour);
            before.chain(row.iter().copied()).chain((0..67).map(neighbour)).collect()
        }
        let buffer = match self.row() {
            Row::F32(row) => Buffer::F32(place(row, start, [f32::INFINITY, f32::NAN])),
            Row::Bf16(row) => Buffer::Bf16(place(row, start, [bf16::INFINITY, bf16::NAN])),
            Row::F16(row) => Buffer::F16(place(row, start, [f16::INFINITY, f16::NAN])),
        };
        Self { buffer, start, len: self.len }
    }

    /// Returns the row, to be written.
    pub fn row_mut(&mut self) -> RowMut<'_> {
        let range = self.start..self.start + self.len;
        match &mut self.buffer {
            Buffer::F32(values) => RowMut::F32(&mut values[range]),
            Buffer::Bf16(values) => RowMut::Bf16(&mut values[range]),
            Buffer::F16(values) => RowMut::F16(&mut values[range]),
        }
    }

    /// Returns the bits of an f32 of each of the row's numbers, which tell all values of all types apart but
    /// NaN.
    #[must_use]
    pub fn bits(&self) -> Vec<u32> {
        (0..self.len).map(|id| self.row().logit(id).to_bits()).collect()
    }

    /// Returns the type of the row.
    #[must_use]
    pub fn dtype(&self) -> Dtype {
        match self.buffer {
            Buffer::F32(_) => Dtype::F32,
            Buffer::Bf16(_) => Dtype::Bf16,
            Buffer::F16(_) => Dtype::F16,
        }
    }

    /// Returns the whole buffer, and at which element of it the row starts.
    #[must_use]
    pub fn buffer(&self) -> (Row<'_>, usize) {
        let buffer = match &self.buffer {
            Buffer::F32(values) => Row::F32(values),
            Buffer::Bf16(values) => Row::Bf16(values),
            Buffer::F16(values) => Row::F16(values),
        };
        (buffer, self.start)
    }

    /// Returns the row.
    #[must_use]
    pub fn row(&self) -> Row<'_> {
        let range = self.start..self.start + self.len;
        match &self.buffer {
            Buffer::F32(values) => Row::F32(&values[range]),
            Buffer::Bf16(values) => Row::Bf16(&values[range]),
            Buffer::F16(values) => Row::F16(&values[range]),
        }
    }
}

/// The edit of a caller's hook; plain data, so that a case can be repeated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CallerEdit {
    /// Writes a value at an id, if the vocabulary has it.
    Write(u32, f32),
    /// Adds to every id that a number divides.
    AddToMultiples(u32, f32),
    /// Copies one id's logit to another, if the vocabulary has both.
    Copy(u32, u32),
    /// Turns the row round, so that every logit is read.
    Reverse,
}

impl CallerEdit {
    /// Does it.
    pub fn apply(self, z: &mut [f32]) {
        match self {
            CallerEdit::Write(id, value) => z.iter_mut().skip(id as usize).take(1).for_each(|z| *z = value),
            CallerEdit::Copy(from, to) => {
                if let Some(value) = z.get(from as usize).copied() {
                    z.iter_mut().skip(to as usize).take(1).for_each(|z| *z = value);
                }
            }
            CallerEdit::Reverse => z.reverse(),
            CallerEdit::AddToMultiples(of, value) => {
                z.iter_mut().step_by(of as usize).for_each(|z| *z += value)
            }
        }
    }
}

/// One row and everything its token depends on.
#[derive(Clone)]
pub struct Case {
    /// The row.
    pub logits: Logits,
    /// Its kind.
    pub kind: Kind,
    /// The parameters.
    pub params: SamplingParams,
    /// The ids of the prompt.
    pub prompt: Vec<u32>,
    /// The ids generated so far.
    pub output: Vec<u32>,
    /// The seed in use.
    pub seed: u64,
    /// The number of tokens before the drawn one; free here, so that draws can be repeated elsewhere.
    pub position: u32,
    /// The index of the sample.
    pub draw: u32,
    /// Mirostat's limit.
    pub mu: f32,
    /// The grammar bitmask.
    pub mask: Option<Vec<u32>>,
    /// The token to emit instead of the drawn one.
    pub forced: Option<u32>,
    /// The caller's own edit.
    pub hook: Option<CallerEdit>,
}

impl Case {
    /// Makes a case of a row and parameters, everything else at its start.
    #[must_use]
    pub fn new(logits: Logits, params: SamplingParams) -> Self {
        let mu = params.initial_mu();
        Self {
            logits,
            kind: Kind::Logits,
            params,
            prompt: Vec::new(),
            output: Vec::new(),
            seed: 0x5EED,
            position: 0,
            draw: 0,
            mu,
            mask: None,
            forced: None,
            hook: None,
        }
    }

    /// Makes a case of an f32 row and parameters.
    #[must_use]
    pub fn of(values: &[f32], params: SamplingParams) -> Self {
        Self::new(Logits::new(Dtype::F32, values), params)
    }

    /// Makes a case of an f32 row of probabilities and parameters.
    #[must_use]
    pub fn of_probabilities(values: &[f32], params: SamplingParams) -> Self {
        Self { kind: Kind::Probabilities, ..Self::of(values, params) }
    }

    /// Makes a case of an f32 row with the temperature at which weights are `2^z`.
    #[must_use]
    pub fn unit(values: &[f32], params: SamplingParams) -> Self {
        Self::of(values, SamplingParams { temperature: UNIT, ..params })
    }

    /// Sets prompt and output.
    #[must_use]
    pub fn after(mut self, prompt: &[u32], output: &[u32]) -> Self {
        (self.prompt, self.output) = (prompt.to_vec(), output.to_vec());
        self
    }

    /// Sets seed and position.
    #[must_use]
    pub fn at(mut self, seed: u64, position: u32) -> Self {
        (self.seed, self.position) = (seed, position);
        self
    }

    /// Returns the number of ids.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.logits.len
    }

    /// Returns the request's state as the oracle takes it.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        Request {
            params: &self.params,
            kind: self.kind,
            prompt: &self.prompt,
            output: &self.output,
            seed: self.seed,
            position: self.position,
            draw: self.draw,
            mu: self.mu,
            mask: self.mask.as_deref(),
            forced: self.forced.map(Forced::by_caller),
            mark: None,
        }
    }

    /// Lends the caller's own edit, if there is one.
    pub fn with_hook<T>(&self, work: impl FnOnce(Option<Hook<'_>>) -> T) -> T {
        let mut edit = |z: &mut [f32]| self.hook.into_iter().for_each(|hook| hook.apply(z));
        work(if self.hook.is_some() { Some(&mut edit) } else { None })
    }

    /// Returns the edited row.
    #[must_use]
    pub fn edited(&self) -> Vec<f32> {
        self.with_hook(|hook| edit(self.logits.row(), &self.request(), hook).z)
    }

    /// Puts ids into the order of tokens.
    #[must_use]
    pub fn in_order(&self, mut ids: Vec<u32>) -> Vec<u32> {
        let z = self.edited();
        ids.sort_by_key(|id| Reverse(key(z[*id as usize], *id)));
        ids
    }
}

impl fmt::Debug for Logits {
    /// Writes type, place and the first bits, runs as `bits*count`: enough to type most rows in again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const RUNS: usize = 48;
        let (name, bits): (_, Vec<u32>) = match self.row() {
            Row::F32(row) => ("f32", row.iter().map(|z| z.to_bits()).collect()),
            Row::Bf16(row) => ("bf16", row.iter().map(|z| z.to_bits().into()).collect()),
            Row::F16(row) => ("f16", row.iter().map(|z| z.to_bits().into()).collect()),
        };
        write!(f, "{name}[{}] at {}:", self.len, self.start)?;
        let mut runs = bits.chunk_by(|a, b| a == b);
        for run in runs.by_ref().take(RUNS) {
            write!(f, " {:x}", run[0])?;
            if run.len() > 1 {
                write!(f, "*{}", run.len())?;
            }
        }
        if runs.next().is_some() { f.write_str(" ...") } else { Ok(()) }
    }
}

impl fmt::Debug for Case {
    /// Writes what differs from a neutral case.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  row of {:?}: {:?}", self.kind, self.logits)?;
        writeln!(f, "  params: {:?}", self.params)?;
        writeln!(f, "  prompt: {:?}, output: {:?}", self.prompt, self.output)?;
        write!(f, "  seed: {:#x}, position: {}, draw: {}, ", self.seed, self.position, self.draw)?;
        writeln!(f, "mu: {:?} ({:08x}), forced: {:?}", self.mu, self.mu.to_bits(), self.forced)?;
        writeln!(f, "  mask: {:x?}, hook: {:?}", self.mask, self.hook)
    }
}
