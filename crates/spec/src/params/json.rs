//! How parameters are read from JSON and its like: by the tables of `table.rs`.
//!
//! Structures are objects alone: a list would set their fields by place, and mean something else once there
//! is one more field. A null is an absent value. An integer may be written as a float of its value. A number
//! is rounded to f64 and then to f32, as one that is written in Python or given as a flag, so that a decimal
//! is the same number everywhere. An order of filters may be written in every way the other surfaces take,
//! biases as pairs or as an object whose keys are ids. All errors name the parameter.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::ser::{Error as _, SerializeStruct};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    Dry, DynamicTemperature, Field, Filter, FilterOrder, Holds, LogprobMode, LogprobsParams, Loops, Mark,
    Mirostat, Parameter, Parameters, SamplingParams, Section, Watermark,
};
use crate::error::{Error, HIDDEN, quoted, shown, takes_key_number};

macro_rules! objects {
    ($($type:ident),*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let what = Object { name: "parameters", read: PhantomData };
                // Else serde_json itself would refuse a text, and show all of it.
                deserializer.deserialize_any(what)
            }
        }
    )*};
}

objects!(SamplingParams, DynamicTemperature, Mirostat, Dry, Section, Loops, Watermark, LogprobsParams);

/// Reads a structure from an object.
struct Object<T> {
    /// The name of the parameter that the structure is.
    name: &'static str,
    read: PhantomData<T>,
}

impl<'de, T: Parameters> Visitor<'de> for Object<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to be {}", self.name, T::WHAT)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        Err(E::invalid_type(unexpected(self.name, Unexpected::Str(&shown(text))), &self))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut read = T::neutral();
        let (mut seen, mut found) = (Vec::new(), Vec::new());
        while let Some(key) = map.next_key::<String>()? {
            let Some((parameter, field)) = read.field(&key) else {
                return Err(A::Error::custom(unknown::<T>(&key)));
            };
            if seen.contains(&parameter.name) {
                return Err(A::Error::custom(format_args!("{} stands twice", parameter.name)));
            }
            seen.push(parameter.name);
            let value = map.next_value_seed(Value { name: parameter.name, field });
            let is_filled = match value {
                // Of a text that is no JSON the reader does not know whose value it is.
                Err(error) if !error.to_string().contains(parameter.name) => {
                    Value::of(parameter.name, Err(error))?
                }
                value => value?,
            };
            if is_filled {
                found.push(parameter.name);
            }
        }
        match T::TABLE.iter().find(|parameter| parameter.is_required && !found.contains(&parameter.name)) {
            None => Ok(read),
            Some(absent) => {
                let (name, field) = (self.name, absent.field());
                Err(A::Error::custom(format_args!("{name} lacks {field}, but must be {}", T::WHAT)))
            }
        }
    }
}

fn unknown<T: Parameters>(key: &str) -> Error {
    let prefix = T::TABLE[0].name.strip_suffix(T::TABLE[0].field()).unwrap_or_default();
    let known: Vec<_> = T::TABLE.iter().map(|parameter| parameter.field()).collect();
    Error::unknown("parameter", &format!("{prefix}{key}"), known.join(", "))
}

/// Reads a parameter's value into its field, and returns whether it is not null.
struct Value<'a> {
    name: &'static str,
    field: Field<'a>,
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Returns what an error shows of a parameter's value: nothing where it may be a secret key in the place of
/// its number.
fn unexpected<'u>(name: &str, value: Unexpected<'u>) -> Unexpected<'u> {
    if takes_key_number(name) { Unexpected::Other(HIDDEN) } else { value }
}

impl<'a> Value<'a> {
    /// Names the parameter in an error of a list's element.
    fn of<T, E: serde::de::Error>(name: &str, read: Result<T, E>) -> Result<T, E> {
        read.map_err(|error| {
            // The reader adds the place to the new error, too.
            let text = error.to_string().replace("expected u32", "expected ids in 0..2^32");
            let said = text.split(" at line ").next().unwrap_or_default();
            E::custom(format_args!("{name}: {}", quoted(said.as_bytes(), 600)))
        })
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.field {
            Field::Number(_) | Field::NumberOrNone(_) => "a number",
            Field::Whole(_) => "an integer",
            Field::Count(_) => "an integer in 0..2^32",
            Field::Flag(_) => "true or false",
            Field::Seed(_) => "an integer in 0..2^64",
            Field::Scope(_) => "a name",
            Field::Modes(_) => "a name or a list of two",
            Field::Order(_) => "\"default\", \"joint\", \"none\" or a list of filters",
            Field::Ids(_) | Field::IdsOrNone(_) => "a list of ids",
            Field::Words(_) => "a list of lists of ids",
            Field::Biases(_) => "an object of ids and biases, or a list of pairs of them",
            Field::DynamicTemperature(_) => DynamicTemperature::WHAT,
            Field::Mirostat(_) => Mirostat::WHAT,
            Field::Dry(_) => Dry::WHAT,
            Field::Section(_) => Section::WHAT,
            Field::Loops(_) => Loops::WHAT,
            Field::Watermark(_) => return write!(f, "{} to be {}, or false", self.name, Watermark::WHAT),
            Field::Logprobs(_) => LogprobsParams::WHAT,
        };
        write!(f, "{} to be {what}", self.name)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<bool, E> {
        Ok(false)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<bool, E> {
        match self.field {
            Field::Flag(field) => *field = value,
            Field::Watermark(field) if !value => *field = Mark::Off,
            _ => return Err(E::invalid_type(Unexpected::Bool(value), &self)),
        }
        Ok(true)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<bool, E> {
        match self.field {
            Field::Number(field) => *field = value as f32,
            Field::NumberOrNone(field) => *field = Some(value as f32),
            Field::Whole(_) | Field::Count(_) | Field::Seed(_) | Field::Logprobs(_) if is_exact(value) => {
                return self.visit_i64(value as i64);
            }
            _ => return Err(E::invalid_type(unexpected(self.name, Unexpected::Float(value)), &self)),
        }
        Ok(true)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<bool, E> {
        match self.field {
            Field::Whole(field) => *field = value,
            Field::Number(_) | Field::NumberOrNone(_) => return self.visit_f64(value as f64),
            _ => match u64::try_from(value) {
                Ok(value) => return self.visit_u64(value),
                Err(_) => {
                    return Err(E::invalid_value(unexpected(self.name, Unexpected::Signed(value)), &self));
                }
            },
        }
        Ok(true)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<bool, E> {
        match self.field {
            Field::Number(_) | Field::NumberOrNone(_) => return self.visit_f64(value as f64),
            Field::Seed(field) => *field = Some(value),
            Field::Whole(field) if i64::try_from(value).is_ok() => *field = value as i64,
            Field::Count(field) if u32::try_from(value).is_ok() => *field = value as u32,
            Field::Logprobs(field) if u32::try_from(value).is_ok() => {
                *field = Some(LogprobsParams { top_n: value as u32, ..Default::default() });
            }
            Field::Whole(_) | Field::Count(_) | Field::Logprobs(_) => {
                return Err(E::invalid_value(unexpected(self.name, Unexpected::Unsigned(value)), &self));
            }
            _ => return Err(E::invalid_type(unexpected(self.name, Unexpected::Unsigned(value)), &self)),
        }
        Ok(true)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<bool, E> {
        match self.field {
            Field::Scope(field) => *field = Self::of(self.name, text.parse().map_err(E::custom))?,
            Field::Modes(field) => *field = Self::of(self.name, text.parse().map_err(E::custom))?,
            Field::Order(field) => *field = Self::of(self.name, text.parse().map_err(E::custom))?,
            _ => return Err(E::invalid_type(unexpected(self.name, Unexpected::Str(&shown(text))), &self)),
        }
        Ok(true)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<bool, A::Error> {
        fn all<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(name: &str, list: A) -> Result<T, A::Error> {
            Value::of(name, T::deserialize(SeqAccessDeserializer::new(list)))
        }
        match self.field {
            Field::Ids(field) => *field = all(self.name, list)?,
            Field::IdsOrNone(field) => *field = Some(all(self.name, list)?),
            Field::Words(field) => *field = all(self.name, list)?,
            Field::Biases(field) => {
                let pairs: Vec<(u32, Bias)> = all(self.name, list)?;
                *field = pairs.into_iter().map(|(id, bias)| (id, bias.0)).collect();
            }
            Field::Order(field) => *field = FilterOrder::List(all(self.name, list)?),
            Field::Modes(field) => {
                let modes: Vec<LogprobMode> = all(self.name, list)?;
                *field = modes.as_slice().try_into().map_err(A::Error::custom)?;
            }
            _ => return Err(A::Error::invalid_type(Unexpected::Seq, &self)),
        }
        Ok(true)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let name = self.name;
        match self.field {
            Field::Biases(field) => {
                field.clear();
                while let Some((id, bias)) = Self::of(name, map.next_entry::<u32, Bias>())? {
                    field.push((id, bias.0));
                }
            }
            Field::Order(field) => *field = Self::of(name, listed(map))?,
            Field::DynamicTemperature(field) => {
                *field = Some(Object { name, read: PhantomData }.visit_map(map)?)
            }
            Field::Mirostat(field) => *field = Some(Object { name, read: PhantomData }.visit_map(map)?),
            Field::Dry(field) => *field = Object { name, read: PhantomData }.visit_map(map)?,
            Field::Section(field) => *field = Some(Object { name, read: PhantomData }.visit_map(map)?),
            Field::Loops(field) => *field = Some(Object { name, read: PhantomData }.visit_map(map)?),
            Field::Watermark(field) => {
                *field = Mark::Own(Object { name, read: PhantomData }.visit_map(map)?);
            }
            Field::Logprobs(field) => *field = Some(Object { name, read: PhantomData }.visit_map(map)?),
            _ => return Err(A::Error::invalid_type(Unexpected::Map, &self)),
        }
        Ok(true)
    }
}

/// Returns whether a float is an integer, and no other integer is rounded to it.
fn is_exact(value: f64) -> bool {
    value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0
}

/// Reads `{"list": [..]}`.
fn listed<'de, A: MapAccess<'de>>(mut map: A) -> Result<FilterOrder, A::Error> {
    match (map.next_entry::<String, Vec<Filter>>()?, map.next_key::<String>()?) {
        (Some((key, list)), None) if key == "list" => Ok(FilterOrder::List(list)),
        _ => Err(A::Error::custom("an order that is an object has one key, \"list\"")),
    }
}

macro_rules! names {
    ($($type:ident),*) => {$(
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}

names!(Filter, LogprobMode);

/// A bias, which JSON writes as a number, or as `"-inf"` for a ban.
struct Bias(f32);

impl Serialize for Bias {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            f32::INFINITY => serializer.serialize_str("inf"),
            f32::NEG_INFINITY => serializer.serialize_str("-inf"),
            number => serializer.serialize_f32(number),
        }
    }
}

impl<'de> Deserialize<'de> for Bias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;

        impl Visitor<'_> for Number {
            type Value = Bias;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or \"-inf\" for a ban")
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<Bias, E> {
                Ok(Bias(number as f32))
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Bias, E> {
                self.visit_f64(number as f64)
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Bias, E> {
                self.visit_f64(number as f64)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Bias, E> {
                match text {
                    "inf" => Ok(Bias(f32::INFINITY)),
                    "-inf" => Ok(Bias(f32::NEG_INFINITY)),
                    other => Err(E::invalid_value(Unexpected::Str(&shown(other)), &self)),
                }
            }
        }

        deserializer.deserialize_any(Number)
    }
}

impl Serialize for Mark {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Default => serializer.serialize_none(),
            Self::Off => serializer.serialize_bool(false),
            Self::Own(watermark) => watermark.serialize(serializer),
        }
    }
}

/// Writes biases as pairs, which keep their order.
pub(super) fn write_biases<S: Serializer>(biases: &[(u32, f32)], serializer: S) -> Result<S::Ok, S::Error> {
    if biases.iter().any(|(_, bias)| bias.is_nan()) {
        return Err(S::Error::custom("logit_bias is NaN, but must be finite, or -inf for a ban"));
    }
    serializer.collect_seq(biases.iter().map(|(id, bias)| (*id, Bias(*bias))))
}

/// Writes a field of a structure. A number that JSON has no word for is an error: null would be read as an
/// absent value.
pub(super) fn write<O: SerializeStruct>(
    object: &mut O,
    parameter: &'static Parameter,
    field: &impl Holds,
) -> Result<(), O::Error> {
    struct Written<'a, T>(&'a T);

    impl<T: Holds> Serialize for Written<'_, T> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.0.write(serializer)
        }
    }

    match field.number() {
        Some((number, shown)) if !number.is_finite() => {
            let allowed = parameter.range.map_or("finite", |range| range.words);
            Err(O::Error::custom(Error::out_of_range(parameter.name, shown, allowed)))
        }
        _ => object.serialize_field(parameter.field(), &Written(field)),
    }
}

impl Serialize for FilterOrder {
    /// Writes `default`, `joint` or `none` by name, other orders as a list of names.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            FilterOrder::List(list) if !list.is_empty() => list.serialize(serializer),
            named => serializer.collect_str(named),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<SamplingParams, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    fn refused(json: &str) -> String {
        read(json).expect_err(json)
    }

    #[test]
    fn a_list_sets_no_fields_by_place() {
        for (json, name) in [
            ("[0.5]", "parameters"),
            ("[]", "parameters"),
            (r#"{"dry": [0.8]}"#, "dry"),
            (r#"{"logprobs": ["raw", 5]}"#, "logprobs"),
            (r#"{"mirostat": [5.0, 0.1]}"#, "mirostat"),
            (r#"{"dynamic_temperature": [0.5, 1.5]}"#, "dynamic_temperature"),
        ] {
            let error = refused(json);
            let expected = format!("invalid type: sequence, expected {name} to be an object");
            assert!(error.starts_with(&expected), "{json}: {error}");
        }
        let value = serde_json::json!([0.5]);
        assert!(serde_json::from_value::<SamplingParams>(value).is_err());
    }

    #[test]
    fn a_key_that_stands_twice_is_an_error() {
        assert!(refused(r#"{"seed": 1, "seed": 2}"#).starts_with("seed stands twice"));
        assert!(refused(r#"{"dry": {"base": 2, "base": 3}}"#).starts_with("dry.base stands twice"));
        assert!(refused(r#"{"seed": null, "seed": 2}"#).starts_with("seed stands twice"));
    }

    #[test]
    fn a_name_that_is_not_known_is_refused_with_one_that_is_near() {
        for (json, name, near) in [
            (r#"{"topk": 50}"#, "topk", Some("top_k")),
            (r#"{"Top-P": 0.5}"#, "Top-P", Some("top_p")),
            (r#"{"dry": {"multiplyer": 0.8}}"#, "dry.multiplyer", Some("multiplier")),
            (r#"{"logprobs": {"n": 5}}"#, "logprobs.n", None),
            (r#"{"mirostat": {"tau": 5.0, "eta": 0.1, "v": 2}}"#, "mirostat.v", None),
            (
                r#"{"dynamic_temperature": {"min": 0.5, "max": 1.5, "mean": 1}}"#,
                "dynamic_temperature.mean",
                None,
            ),
        ] {
            let error = refused(json);
            let hint = near.map_or(String::new(), |near| format!(" (do you mean {near:?}?)"));
            let expected = format!("parameter {name:?} is not known{hint}; known are: ");
            assert!(error.starts_with(&expected), "{json}: {error}");
        }
        assert!(refused(&format!("{{\"{}\": 1}}", "x".repeat(1 << 20))).len() < 2000);
    }

    #[test]
    fn null_is_absent_for_every_parameter() {
        fn nulls<T: Parameters>() -> String {
            let fields = T::TABLE.iter().map(|parameter| format!("{:?}: null", parameter.field()));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        assert_eq!(read(&nulls::<SamplingParams>()), Ok(SamplingParams::default()));
        for (name, json) in [("dry", nulls::<Dry>()), ("logprobs", nulls::<LogprobsParams>())] {
            let alone = read(&format!(r#"{{"{name}": {{}}}}"#));
            assert_eq!(read(&format!(r#"{{"{name}": {json}}}"#)), alone, "{json}");
        }
        assert!(refused(r#"{"mirostat": {"tau": null, "eta": 0.1}}"#).starts_with("mirostat lacks tau"));
        assert!(
            refused(r#"{"dynamic_temperature": {"min": 1}}"#).starts_with("dynamic_temperature lacks max")
        );
        let mirostat = read(r#"{"mirostat": {"tau": 5, "eta": 0.1, "mu": null}}"#).unwrap().mirostat;
        assert_eq!(mirostat, Some(Mirostat { tau: 5.0, eta: 0.1, mu: None }));
    }

    #[test]
    fn a_value_of_another_type_is_named() {
        for (json, expected) in [
            (r#"{"temperature": "2"}"#, "invalid type: string \"2\", expected temperature to be a number"),
            (r#"{"top_k": true}"#, "invalid type: boolean `true`, expected top_k to be an integer"),
            (r#"{"top_k": 1.5}"#, "invalid type: floating point `1.5`, expected top_k to be an integer"),
            (
                r#"{"min_tokens": -1}"#,
                "invalid value: integer `-1`, expected min_tokens to be an integer in 0..2^32",
            ),
            (r#"{"seed": -1}"#, "invalid value: integer `-1`, expected seed to be an integer in 0..2^64"),
            (r#"{"p_less": 1}"#, "invalid type: integer `1`, expected p_less to be true or false"),
            (r#"{"temperature_last": "false"}"#, "invalid type: string \"false\", expected temperature_last"),
            (r#"{"top_p": "inf"}"#, "invalid type: string \"inf\", expected top_p to be a number"),
            (r#"{"stop_ids": 5}"#, "invalid type: integer `5`, expected stop_ids to be a list of ids"),
            (r#"{"stop_ids": [true]}"#, "stop_ids: invalid type: boolean `true`"),
            (r#"{"bad_words": [[1], ["a"]]}"#, "bad_words: invalid type: string \"a\""),
            (r#"{"stop_ids": [-1]}"#, "stop_ids: invalid value: integer `-1`, expected ids in 0..2^32"),
            (r#"{"dry": {"base": "x"}}"#, "invalid type: string \"x\", expected dry.base to be a number"),
            (
                r#"{"logit_bias": {"3": false}}"#,
                "logit_bias: invalid type: boolean `false`, expected a number, or \"-inf\"",
            ),
            (r#"{"logit_bias": [[3, null]]}"#, "logit_bias: invalid type: null"),
            (r#"{"logit_bias": {"three": 1}}"#, "logit_bias: "),
            (r#"{"logit_bias": {"-3": 1}}"#, "logit_bias: "),
            (r#"{"penalty_scope": "all"}"#, "penalty_scope: scope \"all\" is not known"),
            (
                r#"{"order": ["top_q"]}"#,
                "order: filter \"top_q\" is not known (do you mean \"top_p\"?); known are: top_n_sigma",
            ),
        ] {
            let error = refused(json);
            assert!(error.starts_with(expected), "{json}: {error}");
            let value: serde_json::Value = serde_json::from_str(json).unwrap();
            assert!(serde_json::from_value::<SamplingParams>(value).is_err(), "{json}");
        }
    }

    #[test]
    fn a_value_that_is_no_json_is_named_with_its_place() {
        for (json, expected) in [
            (r#"{"temperature": 1e999}"#, "temperature: number out of range at line 1 column"),
            (r#"{"top_p": NaN}"#, "top_p: expected value at line 1 column"),
            (r#"{"dry": {"base": -Infinity}}"#, "dry.base: invalid number at line 1 column"),
            (r#"{"stop_ids": [1e999]}"#, "stop_ids: number out of range at line 1 column"),
            (
                r#"{"mirostat": {"tau": 5, "eta": 1e999}}"#,
                "mirostat.eta: number out of range at line 1 column",
            ),
        ] {
            let error = refused(json);
            assert!(error.starts_with(expected) && error.matches("at line").count() == 1, "{json}: {error}");
        }
    }

    #[test]
    fn biases_are_pairs_or_an_object_of_ids() {
        let pairs = read(r#"{"logit_bias": [[3, -100], [260, "-inf"]]}"#).unwrap();
        assert_eq!(pairs.logit_bias, [(3, -100.0), (260, f32::NEG_INFINITY)]);
        assert_eq!(read(r#"{"logit_bias": {"3": -100, "260": "-inf"}}"#).as_ref(), Ok(&pairs));
        assert_eq!(read(&serde_json::to_string(&pairs).unwrap()), Ok(pairs));
        let twice = read(r#"{"logit_bias": {"3": 1, "3": 2}}"#).unwrap().validate(10).unwrap_err();
        assert!(twice.to_string().contains("an id that stands in the list once"), "{twice}");
    }

    #[test]
    fn a_decimal_is_rounded_to_f64_and_then_to_f32() {
        // Just above the middle of 1 and the next f32, and as f64 that middle: ties go to even.
        let middle = "1.000000059604644775390626";
        let json = format!(
            r#"{{"temperature": {middle}, "top_p": {middle}, "logit_bias": [[0, {middle}]],
            "dry": {{"base": {middle}}}, "mirostat": {{"tau": {middle}, "eta": 0, "mu": {middle}}}}}"#
        );
        let params = read(&json).unwrap();
        assert_eq!((params.temperature, params.top_p, params.dry.base), (1.0, 1.0, 1.0));
        assert_eq!((params.mirostat.unwrap().mu, params.logit_bias[0].1), (Some(1.0), 1.0));
        assert_eq!(read(r#"{"temperature": 2}"#).unwrap().temperature, 2.0);
    }

    #[test]
    fn an_order_may_be_written_as_anywhere_else() {
        let list = FilterOrder::List(vec![Filter::TopK, Filter::TopP]);
        for (order, expected) in [
            (r#""default""#, FilterOrder::Default),
            (r#""joint""#, FilterOrder::Joint),
            (r#""none""#, FilterOrder::List(Vec::new())),
            ("[]", FilterOrder::List(Vec::new())),
            (r#"["top_k", "top_p"]"#, list.clone()),
            (r#""top_k,top_p""#, list.clone()),
            (r#"{"list": ["top_k", "top_p"]}"#, list.clone()),
        ] {
            let params = read(&format!(r#"{{"order": {order}}}"#)).unwrap();
            assert_eq!(params.order, expected, "{order}");
            assert_eq!(read(&serde_json::to_string(&params).unwrap()), Ok(params), "{order} comes back");
        }
        assert_eq!(serde_json::to_string(&list).unwrap(), r#"["top_k","top_p"]"#);
        for order in
            [r#""top_q""#, r#"["top_q"]"#, "3", r#"{"lists": []}"#, r#"{"list": [], "list": []}"#, "{}"]
        {
            assert!(read(&format!(r#"{{"order": {order}}}"#)).is_err(), "{order}");
        }
    }
}
