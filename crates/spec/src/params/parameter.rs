//! The description of a parameter, and the macro that makes structures of parameters from the lines of `table.rs`.
//!
//! Readers and writers of parameters loop over these descriptions.

use std::fmt::Display;

use super::{Dry, DynamicTemperature, Filter, FilterOrder, LogprobMode, LogprobsParams, Mirostat, Scope};
use crate::error::{Error, Result};

/// A parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Its name on all surfaces; a field of a part has the part's name in front, as in `dry.base`.
    pub name: &'static str,
    /// Its meaning, in a sentence.
    pub about: &'static str,
    /// Its range, if it is a number.
    pub range: Option<Range>,
    /// The stage that it speaks to.
    pub stage: Stage,
    /// Whether it does something unless it is neutral. Others say how such a parameter acts.
    pub is_switch: bool,
    /// The filter that it switches on.
    pub filter: Option<Filter>,
    /// Whether what it switches on reads the tokens before the row.
    pub reads_history: bool,
    /// Whether it speaks of logits, so that rows of probabilities cannot have it (P2).
    pub of_logits: bool,
    /// Whether it has no neutral value: its part has it or is absent.
    pub is_required: bool,
    /// A usual value, by which tests and examples switch a filter on; 1 for true.
    pub usual: f64,
    /// The command's flag for it.
    pub flag: Option<Flag>,
}

/// A flag of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Its name, if that is not the parameter's.
    pub name: Option<&'static str>,
    /// What stands for its value, empty if it has none.
    pub value: &'static str,
    /// The effect, for `--help`.
    pub help: &'static str,
}

/// The stage that a parameter speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Changes of logits, and bans.
    Edit,
    /// The softmax, which makes probabilities of logits.
    Temperature,
    /// The choice of tokens that may be drawn.
    Filter,
    /// The draw of one of them.
    Draw,
    /// The report.
    Logprobs,
}

/// Starts the rule of a parameter that does something unless it is neutral.
pub(super) const fn switch(stage: Stage) -> Parameter {
    Parameter { is_switch: true, ..setting(stage) }
}

/// Starts the rule of a parameter that switches a filter on; `usual` is a usual value.
pub(super) const fn filter(filter: Filter, usual: f64) -> Parameter {
    Parameter { filter: Some(filter), usual, ..switch(Stage::Filter) }
}

/// Starts the rule of a parameter that says how others act.
pub(super) const fn setting(stage: Stage) -> Parameter {
    Parameter {
        name: "",
        about: "",
        range: None,
        stage,
        is_switch: false,
        filter: None,
        reads_history: false,
        of_logits: false,
        is_required: false,
        usual: 0.0,
        flag: None,
    }
}

impl Parameter {
    pub(super) const fn within(self, range: Range) -> Self {
        Self { range: Some(range), ..self }
    }

    pub(super) const fn reads_history(self) -> Self {
        Self { reads_history: true, ..self }
    }

    pub(super) const fn of_logits(self) -> Self {
        Self { of_logits: true, ..self }
    }

    pub(super) const fn required(self) -> Self {
        Self { is_required: true, ..self }
    }

    pub(super) const fn flag(self, value: &'static str, help: &'static str) -> Self {
        Self { flag: Some(Flag { name: None, value, help }), ..self }
    }

    pub(super) const fn flag_named(
        self,
        name: &'static str,
        value: &'static str,
        help: &'static str,
    ) -> Self {
        Self { flag: Some(Flag { name: Some(name), value, help }), ..self }
    }

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

    /// Returns values for tests of a surface: the ends and their neighbours, as integers if `is_whole` and else as f32, NaN and infinities.
    #[must_use]
    pub fn probes(&self, is_whole: bool) -> Vec<f64> {
        let beside = |end: f64| match is_whole {
            true => [end - 1.0, end, end + 1.0],
            false => [(end as f32).next_down(), end as f32, (end as f32).next_up()].map(f64::from),
        };
        let mut probes = [beside(self.least), beside(self.most)].concat();
        probes.extend([f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
        probes
    }
}

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

impl Field<'_> {
    /// Sets a number, an integer or a flag; returns whether the value is one of the type, and leaves it if not.
    pub fn set(self, value: f64) -> bool {
        let is_in = |least: f64, end: f64| value.fract() == 0.0 && (least..end).contains(&value);
        match self {
            Field::Number(field) => *field = value as f32,
            Field::NumberOrNone(field) => *field = Some(value as f32),
            Field::Whole(field) if is_in(-2f64.powi(63), 2f64.powi(63)) => *field = value as i64,
            Field::Count(field) if is_in(0.0, 2f64.powi(32)) => *field = value as u32,
            Field::Flag(field) if value == 0.0 || value == 1.0 => *field = value == 1.0,
            _ => return false,
        }
        true
    }
}

/// A structure whose fields are parameters.
pub trait Parameters: Sized {
    /// Its description in errors.
    const WHAT: &'static str;
    /// The parameters, one for each field.
    const TABLE: &'static [Parameter];

    /// Returns the neutral structure; required fields are NaN.
    fn neutral() -> Self;

    /// Returns a field by its name inside the part.
    fn field(&mut self, name: &str) -> Option<(&'static Parameter, Field<'_>)>;

    /// Returns a bit for each parameter, in the table's order: whether it differs from the neutral one. DRY does if its multiplier does.
    fn differing(&self) -> u64;

    /// Returns a copy of the fields whose parameters `keep` is true of; the others are neutral.
    fn only(&self, keep: impl Fn(&Parameter) -> bool) -> Self;

    /// Checks each number against its range.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for the first value outside its range, NaN included.
    fn check_ranges(&self) -> Result<()>;
}

/// A type that a field can have.
pub(super) trait Holds: PartialEq {
    fn as_field(&mut self) -> Field<'_>;

    fn differs(&self, neutral: &Self) -> bool {
        self != neutral
    }

    /// Returns the value, and how an error shows it, if it is a number that is there.
    fn number(&self) -> Option<(f64, &dyn Display)> {
        None
    }
}

macro_rules! holds {
    ($($type:ty: $field:ident $($is_number:ident)?;)*) => {$(
        impl Holds for $type {
            fn as_field(&mut self) -> Field<'_> {
                Field::$field(self)
            }
            $(holds!($is_number);)?
        }
    )*};
    (number) => {
        fn number(&self) -> Option<(f64, &dyn Display)> {
            // An integer beyond 2^53 is rounded, which moves it across no end of a range.
            Some((*self as f64, self))
        }
    };
}

holds! {
    f32: Number number;
    i64: Whole number;
    u32: Count number;
    bool: Flag;
    Option<u64>: Seed;
    Scope: Scope;
    LogprobMode: Mode;
    FilterOrder: Order;
    Vec<u32>: Ids;
    Option<Vec<u32>>: IdsOrNone;
    Vec<Vec<u32>>: Words;
    Vec<(u32, f32)>: Biases;
    Option<DynamicTemperature>: DynamicTemperature;
    Option<Mirostat>: Mirostat;
    Option<LogprobsParams>: Logprobs;
}

impl Holds for Option<f32> {
    fn as_field(&mut self) -> Field<'_> {
        Field::NumberOrNone(self)
    }

    fn number(&self) -> Option<(f64, &dyn Display)> {
        self.as_ref().and_then(f32::number)
    }
}

impl Holds for Dry {
    fn as_field(&mut self) -> Field<'_> {
        Field::Dry(self)
    }

    fn differs(&self, neutral: &Self) -> bool {
        self.multiplier != neutral.multiplier
    }
}

/// Returns an error if a field's number lies outside its parameter's range.
pub(super) fn check(parameter: &'static Parameter, field: &impl Holds) -> Result<()> {
    match (parameter.range, field.number()) {
        (Some(range), Some((number, shown))) if !range.contains(number) => {
            Err(Error::out_of_range(parameter.name, shown, range.words))
        }
        _ => Ok(()),
    }
}

/// Makes a structure of parameters. Each line is a field: its meaning, its type, its neutral value, and its rule, which starts with
/// [`switch`], [`filter`] or [`setting`].
macro_rules! params {
    ($(#[$about:meta])* $type:ident $(+ $default:ident)?: $prefix:literal, $what:literal;
     $($(#[doc = $doc:literal])+ $(#[cfg_attr($($attribute:tt)*)])? $name:ident: $holds:ty = $neutral:expr => $rule:expr;)*) => {
        $(#[$about])*
        pub struct $type {
            $($(#[doc = $doc])+ $(#[cfg_attr($($attribute)*)])? pub $name: $holds,)*
        }

        $(impl $default for $type {
            fn default() -> Self {
                Self::neutral()
            }
        })?

        impl Parameters for $type {
            const WHAT: &'static str = $what;
            const TABLE: &'static [Parameter] = &[$(Parameter {
                name: concat!($prefix, stringify!($name)),
                about: concat!($($doc),+).trim_ascii(),
                ..$rule
            }),*];

            fn neutral() -> Self {
                Self { $($name: $neutral),* }
            }

            fn field(&mut self, name: &str) -> Option<(&'static Parameter, Field<'_>)> {
                let parameter = Self::TABLE.iter().find(|parameter| parameter.field() == name)?;
                let field = match name {
                    $(stringify!($name) => self.$name.as_field(),)*
                    _ => return None,
                };
                Some((parameter, field))
            }

            fn differing(&self) -> u64 {
                const { assert!(Self::TABLE.len() <= 64) };
                let differing = [$(self.$name.differs(&$neutral)),*];
                differing.iter().rfold(0, |bits, differs| bits << 1 | u64::from(*differs))
            }

            fn only(&self, keep: impl Fn(&Parameter) -> bool) -> Self {
                let (mut kept, mut table) = (Self::neutral(), Self::TABLE.iter());
                $(if table.next().is_some_and(&keep) {
                    kept.$name.clone_from(&self.$name);
                })*
                kept
            }

            fn check_ranges(&self) -> Result<()> {
                let mut table = Self::TABLE.iter();
                $(table.next().map_or(Ok(()), |parameter| check(parameter, &self.$name))?;)*
                Ok(())
            }
        }
    };
}
pub(super) use params;
