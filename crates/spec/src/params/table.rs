//! Every parameter: its name, its range, and its place in the structures.
//!
//! All readers of parameters walk these tables: of JSON here, of Python, and the setters of C. So a name, a range and the words of
//! an error are the same on all surfaces. Rules that no range of one number can say are in `validate.rs`.

use super::{
    Dry, DynamicTemperature, FilterOrder, LogprobMode, LogprobsParams, Mirostat, SamplingParams, Scope,
};
use crate::error::{Error, Result};
use crate::row::MAX_VOCAB;

const TWO_POW_16: f64 = 65_536.0;
const TWO_POW_100: f64 = f64::from_bits((1023 + 100) << 52);
const LARGEST: f64 = f32::MAX as f64;

/// A parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Its name on all surfaces; a field of a part has the part's name in front, as in `dry.base`.
    pub name: &'static str,
    /// Its range, if it is a number.
    pub range: Option<Range>,
}

impl Parameter {
    /// Returns the name inside the part: `base` of `dry.base`.
    #[must_use]
    pub fn field(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }
}

/// The range of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The least value.
    pub least: f64,
    /// The largest value.
    pub most: f64,
    /// Whether the least value itself lies outside.
    pub is_open: bool,
    /// The range in words, with the value that switches the parameter off.
    pub words: &'static str,
}

impl Range {
    /// Returns whether a value lies inside; NaN does not.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        (self.least..=self.most).contains(&value) && !(self.is_open && value == self.least)
    }

    /// Returns values for tests of a surface: the ends and their neighbours, as integers if `is_whole` and else as f32, and NaN.
    #[must_use]
    pub fn probes(&self, is_whole: bool) -> Vec<f64> {
        let beside = |end: f64| match is_whole {
            true => [end - 1.0, end, end + 1.0],
            false => [(end as f32).next_down(), end as f32, (end as f32).next_up()].map(f64::from),
        };
        let mut probes = [beside(self.least), beside(self.most)].concat();
        probes.push(f64::NAN);
        probes
    }
}

const fn from(least: f64, most: f64, words: &'static str) -> Range {
    Range { least, most, is_open: false, words }
}

const fn above(least: f64, most: f64, words: &'static str) -> Range {
    Range { least, most, is_open: true, words }
}

const MASS: Range = from(0.0, 1.0, "in 0..=1 (1: off)");
const SHARE: Range = from(0.0, 1.0, "in 0..=1 (0: off)");
const PENALTY: Range = from(-TWO_POW_16, TWO_POW_16, "in -2^16..=2^16 (0: off)");
const COUNT: Range = from(0.0, u32::MAX as f64, "in 0..2^32");

/// A reference to a parameter's value, by its type.
#[derive(Debug)]
pub enum Field<'a> {
    /// A number, which is rounded to f64 and then to f32.
    Number(&'a mut f32),
    /// A number that may be absent.
    NumberOrNone(&'a mut Option<f32>),
    /// An integer.
    Whole(&'a mut i64),
    /// An integer in 0..2^32.
    Count(&'a mut u32),
    /// True or false.
    Flag(&'a mut bool),
    /// An integer in 0..2^64 that may be absent.
    Seed(&'a mut Option<u64>),
    /// The name of a part of the history.
    Scope(&'a mut Scope),
    /// The name of a distribution.
    Mode(&'a mut LogprobMode),
    /// A name or a list of filters.
    Order(&'a mut FilterOrder),
    /// Ids.
    Ids(&'a mut Vec<u32>),
    /// Ids that may be absent.
    IdsOrNone(&'a mut Option<Vec<u32>>),
    /// Sequences of ids.
    Words(&'a mut Vec<Vec<u32>>),
    /// Ids, each with the value that is added to its logit.
    Biases(&'a mut Vec<(u32, f32)>),
    /// A part.
    DynamicTemperature(&'a mut Option<DynamicTemperature>),
    /// A part.
    Mirostat(&'a mut Option<Mirostat>),
    /// A part.
    Dry(&'a mut Dry),
    /// A part.
    Logprobs(&'a mut Option<LogprobsParams>),
}

/// A structure whose fields are parameters.
pub trait Parameters: Sized {
    /// Its description in errors.
    const WHAT: &'static str;
    /// The parameters, one for each field.
    const TABLE: &'static [Parameter];
    /// The fields that have no value of their own.
    const REQUIRED: &'static [&'static str];

    /// Returns the neutral structure; required fields are NaN.
    fn neutral() -> Self;

    /// Returns a field by its name inside the part.
    fn field(&mut self, name: &str) -> Option<(&'static Parameter, Field<'_>)>;

    /// Checks each number against its range.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for the first value outside its range, NaN included.
    fn check_ranges(&self) -> Result<()>;
}

/// A number whose range is checked.
trait Checked {
    fn check(&self, parameter: &'static str, range: &Range) -> Result<()>;
}

macro_rules! checked {
    ($($number:ty),*) => {$(
        impl Checked for $number {
            fn check(&self, parameter: &'static str, range: &Range) -> Result<()> {
                // An integer beyond 2^53 is rounded, which moves it across no end of a range.
                if range.contains(*self as f64) {
                    return Ok(());
                }
                Err(Error::out_of_range(parameter, self, range.words))
            }
        }
    )*};
}

checked!(f32, i64, u32);

impl Checked for Option<f32> {
    fn check(&self, parameter: &'static str, range: &Range) -> Result<()> {
        self.map_or(Ok(()), |number| number.check(parameter, range))
    }
}

macro_rules! some_range {
    () => {
        None
    };
    ($range:expr) => {
        Some($range)
    };
}

/// Makes the table of a structure: for each field what it holds, and a number's range.
macro_rules! parameters {
    ($type:ident = $neutral:expr, $prefix:literal, $what:literal, requires $required:expr;
     $($name:ident: $holds:ident $(in $range:expr)?;)*) => {
        impl Parameters for $type {
            const WHAT: &'static str = $what;
            const TABLE: &'static [Parameter] =
                &[$(Parameter { name: concat!($prefix, stringify!($name)), range: some_range!($($range)?) }),*];
            const REQUIRED: &'static [&'static str] = &$required;

            fn neutral() -> Self {
                $neutral
            }

            fn field(&mut self, name: &str) -> Option<(&'static Parameter, Field<'_>)> {
                let parameter = Self::TABLE.iter().find(|parameter| parameter.field() == name)?;
                let field = match name {
                    $(stringify!($name) => Field::$holds(&mut self.$name),)*
                    _ => return None,
                };
                Some((parameter, field))
            }

            fn check_ranges(&self) -> Result<()> {
                $($(self.$name.check(concat!($prefix, stringify!($name)), &$range)?;)?)*
                Ok(())
            }
        }
    };
}

parameters! { SamplingParams = Self::default(), "", "an object of sampling parameters", requires [];
    temperature: Number in from(0.0, TWO_POW_100, "0 (greedy) or in (0, 2^100]");
    dynamic_temperature: DynamicTemperature;
    top_k: Whole in from(0.0, i64::MAX as f64, "at least 0 (0: off)");
    top_p: Number in MASS;
    typical_p: Number in MASS;
    min_p: Number in SHARE;
    top_n_sigma: Number in from(0.0, LARGEST, "finite and at least 0 (0: off)");
    top_a: Number in SHARE;
    p_less: Flag;
    epsilon_cutoff: Number in SHARE;
    eta_cutoff: Number in SHARE;
    xtc_probability: Number in SHARE;
    xtc_threshold: Number in above(0.0, 1.0, "in (0, 1]");
    mirostat: Mirostat;
    repetition_penalty: Number in above(0.0, TWO_POW_16, "in (0, 2^16] (1: off)");
    repetition_scope: Scope;
    frequency_penalty: Number in PENALTY;
    presence_penalty: Number in PENALTY;
    penalty_scope: Scope;
    dry: Dry;
    no_repeat_ngram: Count in COUNT;
    logit_bias: Biases;
    allowed_ids: IdsOrNone;
    banned_ids: Ids;
    bad_words: Words;
    min_tokens: Count in COUNT;
    stop_ids: Ids;
    seed: Seed;
    logprobs: Logprobs;
    order: Order;
    temperature_last: Flag;
}

parameters! { DynamicTemperature = Self::new(f32::NAN, f32::NAN), "dynamic_temperature.", "an object with min and max",
    requires ["min", "max"];
    min: Number in from(0.0, TWO_POW_100, "in 0..=2^100");
    max: Number in from(0.0, TWO_POW_100, "in dynamic_temperature.min..=2^100");
    exponent: Number in above(0.0, TWO_POW_16, "in (0, 2^16]");
}

parameters! { Mirostat = Self { tau: f32::NAN, eta: f32::NAN, mu: None }, "mirostat.", "an object with tau and eta",
    requires ["tau", "eta"];
    tau: Number in above(0.0, TWO_POW_16, "in (0, 2^16]");
    eta: Number in from(0.0, TWO_POW_16, "in 0..=2^16");
    mu: NumberOrNone in from(-LARGEST, LARGEST, "finite");
}

parameters! { Dry = Self::default(), "dry.", "an object of DRY's parameters", requires [];
    multiplier: Number in from(0.0, TWO_POW_16, "in 0..=2^16 (0: off)");
    base: Number in from(1.0, TWO_POW_16, "in 1..=2^16");
    allowed_length: Count in from(1.0, u32::MAX as f64, "at least 1");
    breakers: Ids;
}

parameters! { LogprobsParams = Self::default(), "logprobs.", "an object with mode, top_n and ids", requires [];
    mode: Mode;
    top_n: Count in from(0.0, MAX_VOCAB as f64, "in 0..=2^20");
    ids: Ids;
}

impl SamplingParams {
    /// Returns a parameter by its whole name: `top_p`, `dry.base`. Naming a field of `logprobs` makes absent logprobs the default ones.
    pub fn parameter(&mut self, name: &str) -> Option<(&'static Parameter, Field<'_>)> {
        match name.split_once('.') {
            Some(("dry", name)) => self.dry.field(name),
            Some(("logprobs", name)) => self.logprobs.get_or_insert_default().field(name),
            _ => self.field(name),
        }
    }
}
