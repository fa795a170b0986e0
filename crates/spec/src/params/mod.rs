//! Every knob of a request, as plain data under the field's names.
//!
//! `SamplingParams::default()` is neutral: it draws from the row as it is, at temperature 1. Each parameter
//! is a line of `table.rs`: fields, defaults, ranges and all surfaces come from there. This file has the
//! types that refer to the table, and to which the table refers: descriptions of parameters, and orders of
//! filters. It also has the macro that makes structures of these lines, and the trait by which readers and
//! writers walk a structure. [`SamplingParams::validate`] checks parameters.

use std::fmt::Display;

use crate::error::{Error, Result};

#[cfg(feature = "serde")]
mod json;
mod names;
mod outline;
mod parameter;
mod reading;
mod sampling;
mod table;
mod validate;

pub use names::{FilterKind, LogprobMode, LogprobModes, Scope};
pub use parameter::{Flag, Range, Stage};
pub use reading::{Chain, MOST_LISTED, Reading, Wanted, WholeRow};
pub use sampling::MIN_TEMPERATURE;
pub use table::{
    Dry, DynamicTemperature, Filter, LogprobsParams, Loops, Mirostat, SamplingParams, Section, Watermark,
};

/// The description of a parameter, which its line in `table.rs` makes. Readers and writers of parameters loop
/// over these.
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
    /// Whether the short ways of [`Reading`] and [`Chain`] foresee it; a request with any other that is not
    /// neutral takes the general way.
    pub is_foreseen: bool,
    /// Whether it has no neutral value: its part has it or is absent.
    pub is_required: bool,
    /// A usual value, by which tests and examples switch a filter on; 1 for true.
    pub usual: f64,
    /// The command's flag for it.
    pub flag: Option<Flag>,
}

/// In which order the filters act, and on what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum FilterOrder {
    /// All filters in the order of [`Filter::ALL`], each on the tokens that the former left.
    #[default]
    Default,
    /// Each on the unfiltered row; the kept sets are intersected.
    Joint,
    /// The named filters in this order, each on the tokens that the former left; an empty list is written
    /// `none`.
    List(Vec<Filter>),
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
    /// The name of a distribution, or of two.
    Modes(&'a mut LogprobModes),
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
    Section(&'a mut Option<Section>),
    /// A part.
    Loops(&'a mut Option<Loops>),
    /// A part.
    Watermark(&'a mut Mark),
    /// A part.
    Logprobs(&'a mut Option<LogprobsParams>),
}

impl Field<'_> {
    /// Sets a number, an integer or a flag; returns whether the value is one of the type, and leaves it if
    /// not.
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

/// The mark of a request's text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    /// The default of its pool, or none.
    #[default]
    Default,
    /// None.
    Off,
    /// Its own.
    Own(Watermark),
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

    /// Returns whether the parameter at a place of the table differs from the neutral one. DRY does if its
    /// multiplier does.
    fn differs_at(&self, place: usize) -> bool;

    /// Returns the number at a place of the table, if there is one.
    fn number_at(&self, place: usize) -> Option<f64>;

    /// Returns a copy of the fields whose parameters `keep` is true of; the others are neutral.
    fn only(&self, keep: impl Fn(&Parameter) -> bool) -> Self;

    /// Checks each number against its range.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for the first value outside its range, NaN included.
    fn check_ranges(&self) -> Result<()>;
}

/// A type that a field can have.
trait Holds: PartialEq {
    fn as_field(&mut self) -> Field<'_>;

    fn differs(&self, neutral: &Self) -> bool {
        self != neutral
    }

    /// Returns the value, and how an error shows it, if it is a number that is there.
    fn number(&self) -> Option<(f64, &dyn Display)> {
        None
    }

    /// Writes the value, for instance as JSON.
    #[cfg(feature = "serde")]
    fn write<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error>;
}

macro_rules! holds {
    ($($type:ty: $field:ident $($how:ident)*;)*) => {$(
        impl Holds for $type {
            fn as_field(&mut self) -> Field<'_> {
                Field::$field(self)
            }
            $(holds!($how);)*
        }
    )*};
    (plain) => {
        #[cfg(feature = "serde")]
        fn write<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
            serde::Serialize::serialize(self, serializer)
        }
    };
    (biases) => {
        #[cfg(feature = "serde")]
        fn write<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
            json::write_biases(self, serializer)
        }
    };
    (number) => {
        fn number(&self) -> Option<(f64, &dyn Display)> {
            // An integer beyond 2^53 is rounded, which moves it across no end of a range.
            Some((*self as f64, self))
        }
    };
}

holds! {
    f32: Number plain number;
    i64: Whole plain number;
    u32: Count plain number;
    bool: Flag plain;
    Option<u64>: Seed plain;
    Scope: Scope plain;
    LogprobModes: Modes plain;
    FilterOrder: Order plain;
    Vec<u32>: Ids plain;
    Option<Vec<u32>>: IdsOrNone plain;
    Vec<Vec<u32>>: Words plain;
    Vec<(u32, f32)>: Biases biases;
    Option<DynamicTemperature>: DynamicTemperature plain;
    Option<Mirostat>: Mirostat plain;
    Option<Section>: Section plain;
    Option<Loops>: Loops plain;
    Option<LogprobsParams>: Logprobs plain;
}

impl Holds for Option<f32> {
    fn as_field(&mut self) -> Field<'_> {
        Field::NumberOrNone(self)
    }

    fn number(&self) -> Option<(f64, &dyn Display)> {
        self.as_ref().and_then(f32::number)
    }

    holds!(plain);
}

impl Holds for Mark {
    fn as_field(&mut self) -> Field<'_> {
        Field::Watermark(self)
    }

    fn differs(&self, _neutral: &Self) -> bool {
        self.own().is_some()
    }

    holds!(plain);
}

impl Holds for Dry {
    fn as_field(&mut self) -> Field<'_> {
        Field::Dry(self)
    }

    fn differs(&self, neutral: &Self) -> bool {
        self.multiplier != neutral.multiplier
    }

    holds!(plain);
}

/// Returns an error if a field's number lies outside its parameter's range.
fn check(parameter: &'static Parameter, field: &impl Holds) -> Result<()> {
    match (parameter.range, field.number()) {
        (Some(range), Some((number, shown))) if !range.contains(number) => {
            Err(Error::out_of_range(parameter.name, shown, range.words))
        }
        _ => Ok(()),
    }
}

/// Makes a structure of parameters. Each line is a field: its meaning, its type, its neutral value, and its
/// rule, which starts with `switch`, `filter` or `setting`.
macro_rules! params {
    ($(#[$about:meta])* $type:ident $(+ $default:ident)?: $prefix:literal, $what:literal;
     $($(#[doc = $doc:literal])+ $(#[cfg($cfg:meta)])? $name:ident: $holds:ty = $neutral:expr => $rule:expr;)*) => {
        $(#[$about])*
        pub struct $type {
            $($(#[doc = $doc])+ $(#[cfg($cfg)])? pub $name: $holds,)*
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                let mut object = serializer.serialize_struct(stringify!($type), Self::TABLE.len())?;
                let mut table = Self::TABLE.iter();
                $(
                    $(#[cfg($cfg)])?
                    table.next().map_or(Ok(()), |parameter| super::json::write(&mut object, parameter, &self.$name))?;
                )*
                serde::ser::SerializeStruct::end(object)
            }
        }

        $(impl $default for $type {
            fn default() -> Self {
                Self::neutral()
            }
        })?

        impl Parameters for $type {
            const WHAT: &'static str = $what;
            const TABLE: &'static [Parameter] = &[$($(#[cfg($cfg)])? Parameter {
                name: concat!($prefix, stringify!($name)),
                about: concat!($($doc),+).trim_ascii(),
                ..$rule
            }),*];

            fn neutral() -> Self {
                Self { $($(#[cfg($cfg)])? $name: $neutral),* }
            }

            fn field(&mut self, name: &str) -> Option<(&'static Parameter, Field<'_>)> {
                let parameter = Self::TABLE.iter().find(|parameter| parameter.field() == name)?;
                let field = match name {
                    $($(#[cfg($cfg)])? stringify!($name) => self.$name.as_field(),)*
                    _ => return None,
                };
                Some((parameter, field))
            }

            fn differs_at(&self, place: usize) -> bool {
                const FIELDS: &[fn(&$type) -> bool] = &[$($(#[cfg($cfg)])? |params| params.$name.differs(&$neutral)),*];
                FIELDS[place](self)
            }

            fn number_at(&self, place: usize) -> Option<f64> {
                const NUMBERS: &[fn(&$type) -> Option<f64>] =
                    &[$($(#[cfg($cfg)])? |params| params.$name.number().map(|(number, _)| number)),*];
                NUMBERS[place](self)
            }

            fn only(&self, keep: impl Fn(&Parameter) -> bool) -> Self {
                let (mut kept, mut table) = (Self::neutral(), Self::TABLE.iter());
                $($(#[cfg($cfg)])? if table.next().is_some_and(&keep) {
                    kept.$name.clone_from(&self.$name);
                })*
                kept
            }

            fn check_ranges(&self) -> Result<()> {
                let mut table = Self::TABLE.iter();
                $($(#[cfg($cfg)])? table.next().map_or(Ok(()), |parameter| check(parameter, &self.$name))?;)*
                Ok(())
            }
        }
    };
}
use params;
