//! How parameters are read from JSON and its like, beyond what serde derives.
//!
//! Structures are objects alone: a list would set their fields by place, and mean something else once there is one more
//! field. A number is rounded to f64 and then to f32, as one that is written in Python or given as a flag, so that a
//! decimal is the same number everywhere. An order of filters may be written in every way the other surfaces take.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Dry, DynamicTemperature, Filter, FilterOrder, LogprobsParams, Mirostat, SamplingParams};

/// Reads structures from objects only, by what serde derives for each under `remote = "Self"`.
macro_rules! objects {
    ($($type:ident: $what:literal),* $(,)?) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $type::serialize(self, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Object;

                impl<'de> Visitor<'de> for Object {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($what)
                    }

                    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<$type, A::Error> {
                        $type::deserialize(MapAccessDeserializer::new(map))
                    }
                }

                deserializer.deserialize_map(Object)
            }
        }
    )*};
}

objects! {
    SamplingParams: "an object of sampling parameters",
    DynamicTemperature: "an object with min and max",
    Mirostat: "an object with tau and eta",
    Dry: "an object of DRY's parameters",
    LogprobsParams: "an object with mode, top_n and ids",
}

/// Reads a number: rounded to f64, then to f32.
pub(super) fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    Ok(f64::deserialize(deserializer)? as f32)
}

/// Reads a number that may be left out.
pub(super) fn number_or_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f32>, D::Error> {
    Ok(Option::<f64>::deserialize(deserializer)?.map(|number| number as f32))
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

impl<'de> Deserialize<'de> for FilterOrder {
    /// Reads a name, names separated by commas, a list of names, or `{"list": [..]}`.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Order;

        impl<'de> Visitor<'de> for Order {
            type Value = FilterOrder;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"default\", \"joint\", \"none\" or a list of filters")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<FilterOrder, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<FilterOrder, A::Error> {
                Vec::<Filter>::deserialize(SeqAccessDeserializer::new(list)).map(FilterOrder::List)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<FilterOrder, A::Error> {
                let list = match map.next_entry::<String, Vec<Filter>>()? {
                    Some((key, list)) if key == "list" => list,
                    _ => return Err(A::Error::custom("an order that is an object has one key, \"list\"")),
                };
                match map.next_key::<String>()? {
                    None => Ok(FilterOrder::List(list)),
                    Some(key) => Err(A::Error::unknown_field(&key, &["list"])),
                }
            }
        }

        deserializer.deserialize_any(Order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<SamplingParams, String> {
        serde_json::from_str(json).map_err(|error| error.to_string())
    }

    #[test]
    fn a_list_sets_no_fields_by_place() {
        for json in [
            "[0.5]",
            "[]",
            r#"{"dry": [0.8]}"#,
            r#"{"logprobs": ["raw", 5]}"#,
            r#"{"mirostat": [5.0, 0.1]}"#,
            r#"{"dynamic_temperature": [0.5, 1.5]}"#,
        ] {
            let error = read(json).unwrap_err();
            assert!(error.starts_with("invalid type: sequence, expected an object"), "{json}: {error}");
        }
        let value = serde_json::json!([0.5]);
        assert!(serde_json::from_value::<SamplingParams>(value).is_err());
    }

    #[test]
    fn a_key_that_stands_twice_is_an_error() {
        for json in [r#"{"seed": 1, "seed": 2}"#, r#"{"dry": {"base": 2, "base": 3}}"#] {
            assert!(read(json).unwrap_err().starts_with("duplicate field"), "{json}");
        }
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
        assert!(read(r#"{"temperature": "2"}"#).is_err() && read(r#"{"temperature": null}"#).is_err());
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
