//! The operators on a CUDA device against the oracle: draws from lines, in any order and number, and rows
//! that are written.

use std::sync::Arc;

use crate::case::UNIT;
use crate::rows::Words;
use crate::softmax::{buffer, differing, laid_out, outcome, read, row};
use gumball_cuda::Runtime;
use gumball_engine::{
    ColumnType, Device, DeviceBuffer as Buffer, DeviceMatrix, DeviceRows, DeviceSlice, Draws, Dtype, IntType,
    Operators, PerRow, PerRowMut, RowParams, RowsInOut,
};
use gumball_spec::num::LOG2_E;
use gumball_spec::{
    DynamicTemperature, Error, Filter, FilterOrder, Kind, Mirostat, NONE, Parameters, Request,
    SamplingParams, Status,
};

/// Widths around the borders of tiles, of units that are loaded at once and of lists.
const VOCABS: [usize; 12] = [1, 2, 7, 255, 256, 257, 300, 1000, 2047, 3000, 9000, 13000];

/// Numbers that may stand in a column, those outside the range among them.
const TEMPERATURES: [f32; 11] = [0.0, 1e-31, 0.01, 0.5, 1.0, UNIT, 1.7, 1e30, f32::NAN, -1.0, f32::INFINITY];
const TOP_KS: [i64; 9] = [-5, 0, 1, 2, 30, 200, 300, 1500, i32::MAX as i64];
const FRACTIONS: [f32; 10] = [-1.0, 0.0, 1e-9, 0.05, 0.5, 0.9, 0.999, 1.0, 3.0, f32::NAN];

/// Parameters in the device's memory: one value for each line, or one for all lines; an empty list leaves the
/// common value.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    pub temperature: Vec<f32>,
    pub top_k: Vec<i64>,
    pub top_p: Vec<f32>,
    pub min_p: Vec<f32>,
}

/// The lines that an operator reads, how they lie in memory, and the parameters of each.
#[derive(Debug)]
pub(crate) struct Asked {
    pub vocab: usize,
    pub lines: usize,
    pub dtype: Dtype,
    pub kind: Kind,
    /// The elements before the first row, and between rows.
    pub start: usize,
    pub gap: usize,
    pub common: SamplingParams,
    pub columns: Columns,
    /// Whether integers in columns have 64 bits rather than 32.
    pub wide: bool,
}

fn of<T: Copy>(column: &[T], row: usize) -> Option<T> {
    column.get(row).or(column.first()).copied()
}

impl Asked {
    pub(crate) fn new(words: &mut Words) -> Self {
        let vocab = VOCABS[words.below(VOCABS.len())];
        let lines = 1 + words.below(if vocab > 1000 { 3 } else { 8 });
        let dtype = [Dtype::F32, Dtype::Bf16, Dtype::F16][words.below(3)];
        let mut gap = || [0, 0, 8, 1, 3][words.below(5)];
        let (start, gap) = (gap(), gap());
        let aligned = vocab.div_ceil(8) * 8 - vocab;
        let gap = gap + aligned * words.below(2);
        let kind = [Kind::Logits, Kind::Probabilities][words.below(2)];
        let (mut common, mut of_lines) = (common(words, vocab), Columns::default());
        if kind == Kind::Probabilities {
            // Nothing that speaks of logits.
            common.temperature = if words.below(6) == 0 { 0.0 } else { 1.0 };
            common = common.only(|parameter| !parameter.of_logits);
        }
        if words.below(8) > 0 {
            of_lines = columns(words, lines, &common);
            if kind == Kind::Probabilities {
                of_lines.temperature.clear();
            }
        }
        let columns = of_lines;
        Self { vocab, lines, dtype, kind, start, gap, common, columns, wide: words.below(2) == 0 }
    }

    /// Returns what a line asks for, the numbers of the columns held to their ranges.
    fn params(&self, line: usize) -> SamplingParams {
        let mut params = self.common.clone();
        if let Some(t) = of(&self.columns.temperature, line) {
            params.temperature = if t > 0.0 { t.min(f32::from_bits((127 + 100) << 23)) } else { 0.0 };
        }
        if let Some(k) = of(&self.columns.top_k, line) {
            params.top_k = k.max(0);
        }
        if let Some(p) = of(&self.columns.top_p, line) {
            params.top_p = if p.is_nan() { 1.0 } else { p.clamp(0.0, 1.0) };
        }
        if let Some(p) = of(&self.columns.min_p, line) {
            params.min_p = if p.is_nan() { 0.0 } else { p.clamp(0.0, 1.0) };
        }
        params
    }
}

/// Returns what lines have in common: mostly the filters that have columns, sometimes others.
fn common(words: &mut Words, vocab: usize) -> SamplingParams {
    let mut params =
        SamplingParams { temperature: [1.0, 0.7, 1.3, 0.0][words.below(4)], ..Default::default() };
    let mut rarely = |n: usize| words.below(n) == 0;
    if rarely(12) && vocab > 1 {
        let mirostat = Mirostat { tau: 3.0, eta: 0.1, mu: None };
        return SamplingParams { mirostat: Some(mirostat), ..params };
    }
    for filter in Filter::ALL {
        let has_columns = [Filter::TopK, Filter::TopP, Filter::MinP].contains(&filter);
        if rarely(if has_columns { 3 } else { 8 }) {
            params = params.with_filter(filter, filter.parameter().usual);
        }
    }
    if params.top_k > 0 && rarely(3) {
        params.top_k = 700;
    }
    if rarely(10) {
        params.dynamic_temperature = Some(DynamicTemperature { min: 0.3, max: 1.5, exponent: 1.0 });
    }
    params.temperature_last = rarely(6);
    if rarely(10) {
        params.adaptive_target = 0.3;
    }
    params.order = match words.below(5) {
        0 => FilterOrder::Joint,
        1 => {
            let mut list = Filter::ALL.to_vec();
            let (a, b) = (words.below(list.len()), words.below(list.len()));
            list.swap(a, b);
            FilterOrder::List(list)
        }
        _ => FilterOrder::Default,
    };
    params
}

fn columns(words: &mut Words, lines: usize, common: &SamplingParams) -> Columns {
    let mut columns = Columns::default();
    if words.below(3) == 0 {
        columns.temperature = column(words, lines, &TEMPERATURES);
    }
    if common.mirostat.is_none() {
        if words.below(2) == 0 {
            columns.top_k = column(words, lines, &TOP_KS);
        }
        if words.below(2) == 0 {
            columns.top_p = column(words, lines, &FRACTIONS);
        }
        if words.below(3) == 0 {
            columns.min_p = column(words, lines, &FRACTIONS);
        }
    }
    columns
}

fn column<T: Copy>(words: &mut Words, lines: usize, of: &[T]) -> Vec<T> {
    let length = if words.below(4) == 0 { 1 } else { lines };
    (0..length).map(|_| of[words.below(of.len())]).collect()
}

/// Columns in the device's memory.
struct OnMachine {
    temperature: Buffer,
    top_k: Buffer,
    top_p: Buffer,
    min_p: Buffer,
}

impl OnMachine {
    fn new(runtime: &Arc<dyn Runtime>, asked: &Asked) -> Result<Self, Error> {
        let Columns { temperature, top_k, top_p, min_p } = &asked.columns;
        Ok(Self {
            temperature: Buffer::of(runtime, temperature)?,
            top_k: integers(runtime, top_k, asked.wide)?,
            top_p: Buffer::of(runtime, top_p)?,
            min_p: Buffer::of(runtime, min_p)?,
        })
    }

    fn params<'b>(&'b self, asked: &'b Asked) -> RowParams<'b> {
        let Columns { temperature, top_k, top_p, min_p } = &asked.columns;
        let float = |column: &[f32], buffer: &'b Buffer| {
            (!column.is_empty()).then(|| PerRow::Device(DeviceSlice::of(buffer, ColumnType::F32)))
        };
        let dtype = if asked.wide { IntType::I64 } else { IntType::I32 };
        RowParams {
            temperature: float(temperature, &self.temperature),
            top_k: (!top_k.is_empty()).then(|| PerRow::Device(DeviceSlice::of(&self.top_k, dtype))),
            top_p: float(top_p, &self.top_p),
            min_p: float(min_p, &self.min_p),
            ..RowParams::new(&asked.common)
        }
    }
}

/// Returns the engine's operators of a device.
pub(crate) fn operators(runtime: &Arc<dyn Runtime>) -> Operators {
    Operators::on_device(Device::new(Arc::clone(runtime)))
}

/// Takes memory for whole numbers of 64 bits or of 32.
pub(crate) fn integers(runtime: &Arc<dyn Runtime>, values: &[i64], wide: bool) -> Result<Buffer, Error> {
    if wide {
        return Ok(Buffer::of(runtime, values)?);
    }
    Ok(Buffer::of(runtime, &values.iter().map(|value| *value as u32).collect::<Vec<_>>())?)
}

/// Which draw outputs are, and which lines they read.
#[derive(Debug)]
pub(crate) struct Outputs {
    pub lines: Option<Vec<i64>>,
    pub seeds: Vec<i64>,
    pub positions: Vec<i64>,
    pub draws: Vec<i64>,
    pub count: usize,
    pub wide: bool,
}

impl Outputs {
    fn new(words: &mut Words, asked: &Asked) -> Self {
        let many = if asked.vocab > 1000 { 6 } else { 40 };
        let count = if words.below(3) == 0 { asked.lines } else { words.below(many) };
        let listed = count != asked.lines || words.below(2) == 0;
        let lines = listed.then(|| {
            let mut lines: Vec<i64> = (0..count).map(|_| words.below(asked.lines) as i64).collect();
            for odd in [-1, asked.lines as i64, i64::from(i32::MIN)] {
                if count > 0 && words.below(6) == 0 {
                    lines[words.below(count)] = odd;
                }
            }
            lines
        });
        let mut column = |mask: i64| -> Vec<i64> {
            let length = [0, 1, count][words.below(3)];
            (0..length).map(|_| words.word() as i64 & mask).collect()
        };
        let (seeds, positions, draws) = (column(!0), column(0xFFFF_FFFF), column(0xFFFF));
        Self { lines, seeds, positions, draws, count, wide: words.below(2) == 0 }
    }

    fn seed(&self, output: usize) -> u64 {
        of(&self.seeds, output).unwrap_or(77) as u64
    }

    fn position(&self, output: usize) -> u32 {
        of(&self.positions, output).unwrap_or(5) as u32
    }

    fn draw(&self, output: usize) -> u32 {
        of(&self.draws, output).map_or(output as u32, |draw| draw as u32)
    }
}

/// Returns a row of the kind: of probabilities the exponentials of a row, not normalised, or what a row of
/// logits happens to hold.
pub(crate) fn line(words: &mut Words, asked: &Asked) -> Vec<f32> {
    let row = row(words, asked.vocab);
    match (asked.kind, words.below(4)) {
        (Kind::Logits, _) | (Kind::Probabilities, 0) => row,
        (Kind::Probabilities, 1) => row.iter().map(|z| exp2(LOG2_E * z.min(60.0) - 200.0)).collect(),
        (Kind::Probabilities, _) => row.iter().map(|z| exp2(LOG2_E * z.min(60.0) - 20.0)).collect(),
    }
}

/// Returns a power of two, the same everywhere; that of NaN is NaN.
fn exp2(x: f32) -> f32 {
    let whole = x.round_ties_even().clamp(-200.0, 100.0);
    let (half, rest) = ((whole / 2.0).floor(), whole - (whole / 2.0).floor());
    let power = |n: f32| f32::from_bits(((127.0 + n) as u32) << 23);
    (1.0 + (x - whole) * 0.7) * power(half) * power(rest)
}

/// Holds an operator over random rows, asked for at random.
///
/// # Errors
/// A text that says what differs, or what the runtime said.
pub fn hold(runtime: &Arc<dyn Runtime>, seed: u64) -> Result<(), String> {
    let words = &mut Words(seed);
    let asked = Asked::new(words);
    let lines: Vec<Vec<f32>> = (0..asked.lines).map(|_| line(words, &asked)).collect();
    let text = |error: Error| format!("seed {seed}: {error}\n{asked:?}");
    let (differences, rest) = if words.below(2) == 0 {
        let outputs = Outputs::new(words, &asked);
        (draw(runtime, &asked, &lines, &outputs).map_err(text)?, format!("{outputs:?}"))
    } else {
        let to = To::new(words, &asked);
        (write(runtime, &asked, &lines, &to).map_err(text)?, format!("{to:?}"))
    };
    if differences.is_empty() { Ok(()) } else { Err(format!("seed {seed}: {differences}{asked:?} {rest}")) }
}

/// The output, and where it is written.
#[derive(Debug)]
pub(crate) struct To {
    /// Whether masked rows are written rather than probabilities.
    pub masks: bool,
    pub in_place: bool,
    pub dtype: Dtype,
    pub start: usize,
    pub gap: usize,
}

impl To {
    fn new(words: &mut Words, asked: &Asked) -> Self {
        let in_place = words.below(3) == 0;
        let dtype = if in_place || words.below(2) == 0 { asked.dtype } else { Dtype::F32 };
        let mut gap = || [0, 0, 8, 1, 3][words.below(5)];
        let (start, gap) = if in_place { (asked.start, asked.gap) } else { (gap(), gap()) };
        Self { masks: words.below(2) == 0, in_place, dtype, start, gap }
    }
}

/// Writes rows on the device; returns in which elements and statuses they differ from the oracle's, or
/// nothing.
pub(crate) fn write(
    runtime: &Arc<dyn Runtime>,
    asked: &Asked,
    lines: &[Vec<f32>],
    to: &To,
) -> Result<String, Error> {
    let Asked { vocab, dtype, start, gap, .. } = *asked;
    let rows = lines.len();
    let mut matrix = buffer(runtime, dtype, &laid_out(dtype, lines, start, gap))?;
    let columns = OnMachine::new(runtime, asked)?;
    let params = columns.params(asked);
    let statuses = Buffer::of(runtime, &vec![!0u32; rows])?;
    let operators = operators(runtime);
    let write = |rows: RowsInOut<'_>| {
        let seen = Some(PerRowMut::Device(DeviceSlice::of(&statuses, IntType::U32)));
        match to.masks {
            true => operators.mask_logits(rows, &params, seen),
            false => operators.probabilities(rows, &params, seen),
        }
    };
    let got = if to.in_place {
        let place = DeviceRows::of(&mut matrix, dtype, start, rows, vocab, vocab + gap)?;
        write(place.with_kind(asked.kind).into())?;
        read(&matrix, dtype, start + rows * (vocab + gap))?
    } else {
        let before = laid_out(to.dtype, &vec![vec![5.0; vocab]; rows], to.start, to.gap);
        let mut out = buffer(runtime, to.dtype, &before)?;
        // Twice: the memory after a call meets the next.
        for _ in 0..2 {
            let from =
                DeviceMatrix::of(&matrix, dtype, start, rows, vocab, vocab + gap)?.with_kind(asked.kind);
            let place = DeviceRows::of(&mut out, to.dtype, to.start, rows, vocab, vocab + to.gap)?;
            write((from, place).into())?;
        }
        read(&out, to.dtype, before.len())?
    };
    let mut seen = vec![0u32; rows];
    statuses.read(0, &mut seen)?;

    let (mut wanted, mut differences) = (Vec::new(), String::new());
    for (row, line) in lines.iter().enumerate() {
        let params = asked.params(row);
        let request = Request { kind: asked.kind, ..Request::new(&params, &[], 0) };
        let outcome = outcome(asked.dtype, line, &request)?;
        if seen[row] != outcome.status.0 {
            differences += &format!("row {row}: status {} instead of {}\n", seen[row], outcome.status.0);
        }
        wanted.push(if to.masks { outcome.masked() } else { outcome.probabilities() });
    }
    Ok(differences + &differing(to.dtype, &wanted, &got, to.start, to.gap))
}

/// Draws on the device; returns in which outputs the tokens or statuses differ from the oracle's, or nothing.
pub(crate) fn draw(
    runtime: &Arc<dyn Runtime>,
    asked: &Asked,
    lines: &[Vec<f32>],
    outputs: &Outputs,
) -> Result<String, Error> {
    let Asked { vocab, dtype, start, gap, .. } = *asked;
    let matrix = buffer(runtime, dtype, &laid_out(dtype, lines, start, gap))?;
    let rows =
        DeviceMatrix::of(&matrix, dtype, start, lines.len(), vocab, vocab + gap)?.with_kind(asked.kind);
    let columns = OnMachine::new(runtime, asked)?;
    let count = outputs.count;
    let column = |values: &[i64]| integers(runtime, values, outputs.wide);
    let (seeds, positions, draws) =
        (Buffer::of(runtime, &outputs.seeds)?, column(&outputs.positions)?, column(&outputs.draws)?);
    let index = column(outputs.lines.as_deref().unwrap_or_default())?;
    let dtype = if outputs.wide { IntType::I64 } else { IntType::I32 };
    let given = |values: &[i64], buffer| (!values.is_empty()).then(|| DeviceSlice::of(buffer, dtype));
    let which = Draws {
        seeds: Some(match outputs.seeds[..] {
            [] => PerRow::All(77),
            _ => PerRow::Device(DeviceSlice::of(&seeds, IntType::I64)),
        }),
        positions: Some(given(&outputs.positions, &positions).map_or(PerRow::All(5), PerRow::Device)),
        draws: given(&outputs.draws, &draws).map(PerRow::Device),
        ..Draws::default()
    };
    // One more, which is never written.
    let tokens = Buffer::of(runtime, &vec![-77i64; count + 1])?;
    let statuses = Buffer::of(runtime, &vec![!0u32; count + 1])?;
    let operators = operators(runtime);
    // Twice: the memory after a call meets the next.
    for _ in 0..2 {
        let to = PerRowMut::Device(DeviceSlice::of(&tokens, dtype).first(count)?);
        let seen = PerRowMut::Device(DeviceSlice::of(&statuses, IntType::U32).first(count)?);
        let lines_read = outputs.lines.is_some().then(|| PerRow::Device(DeviceSlice::of(&index, dtype)));
        operators.sample(rows, lines_read, &columns.params(asked), &which, to, Some(seen))?;
    }

    let mut words = vec![0u32; 2 * (count + 1)];
    tokens.read(0, &mut words)?;
    let mut seen = vec![0u32; count + 1];
    statuses.read(0, &mut seen)?;
    let mut differences = String::new();
    for output in 0..count {
        let line = outputs.lines.as_ref().map_or(output as i64, |lines| lines[output]);
        let line = usize::try_from(line).ok().filter(|line| *line < lines.len());
        let (token, status) = match line {
            None => (NONE, Status::EMPTY),
            Some(line) => {
                let params = asked.params(line);
                let request = Request {
                    position: outputs.position(output),
                    draw: outputs.draw(output),
                    kind: asked.kind,
                    ..Request::new(&params, &[], outputs.seed(output))
                };
                let outcome = outcome(asked.dtype, &lines[line], &request)?;
                (outcome.token, outcome.status)
            }
        };
        let got = if outputs.wide {
            i64::from(words[2 * output]) | i64::from(words[2 * output + 1]) << 32
        } else {
            i64::from(words[output] as i32)
        };
        if got != i64::from(token) || seen[output] != status.0 {
            let is = format!("{got}, status {}, instead of {token}, {}\n", seen[output], status.0);
            differences += &format!("output {output} of line {line:?}: {is}");
        }
    }
    let beyond = if outputs.wide { words[2 * count] } else { words[count] };
    if seen[count] != !0 || beyond != -77i64 as u32 && beyond != !0 {
        differences += "more was written than there are outputs\n";
    }
    Ok(differences)
}
