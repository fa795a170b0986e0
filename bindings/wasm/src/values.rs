//! Arguments: numbers, names and lists of JavaScript's values, each refused by its name where it does not
//! fit.
//!
//! Integers may be numbers or BigInts. A list is an array, or a typed array of integers. Of an object of
//! options every name must be known, so that a slip of the pen is an error and not a default. Of arguments
//! without a type of their own here, TypeScript sees the type that stands in `types.ts` or `whole.ts`.

use js_sys::{Array, Int32Array, Reflect, Uint32Array};
use wasm_bindgen::prelude::*;

use crate::error::{Failure, Result, tag};

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(typescript_type = "number")]
    pub type Number;
    #[wasm_bindgen(typescript_type = "Integers")]
    pub type Integers;
    #[wasm_bindgen(typescript_type = "Rows")]
    pub type GivenRows;
    #[wasm_bindgen(typescript_type = "SamplingParams")]
    pub type GivenParams;
    #[wasm_bindgen(typescript_type = "Partial<State>")]
    pub type GivenState;
    #[wasm_bindgen(typescript_type = "SamplerOptions")]
    pub type SamplerOptions;
    #[wasm_bindgen(typescript_type = "{ route?: string }")]
    pub type RouteOptions;
    #[wasm_bindgen(typescript_type = "SampleOptions")]
    pub type SampleOptions;
    #[wasm_bindgen(typescript_type = "{ dtype?: Dtype }")]
    pub type DtypeOptions;
    #[wasm_bindgen(typescript_type = "PoolOptions")]
    pub type PoolOptions;
    #[wasm_bindgen(typescript_type = "RowOptions")]
    pub type RowOptions;
    #[wasm_bindgen(typescript_type = "ScoreOptions")]
    pub type ScoreOptions;
    #[wasm_bindgen(typescript_type = "VerifyOptions")]
    pub type VerifyOptions;
    #[wasm_bindgen(typescript_type = "InspectOptions")]
    pub type InspectOptions;
    #[wasm_bindgen(typescript_type = "DetectOptions")]
    pub type DetectOptions;
    #[wasm_bindgen(typescript_type = "FindOptions")]
    pub type FindOptions;
}

/// The argument that holds a function's options.
const OPTIONS: &str = "options";

/// Named options of a call.
#[derive(Debug)]
pub struct Options(JsValue);

impl Options {
    /// Takes an object, or undefined for no options.
    pub fn new(options: impl Into<JsValue>, known: &[&str]) -> Result<Self> {
        let options = options.into();
        let names = if is_absent(&options) { Vec::new() } else { keys(&options, OPTIONS)? };
        match names.iter().find(|name| !known.contains(&&***name)) {
            Some(name) => Err(Failure::unknown(OPTIONS, name, known)),
            None => Ok(Self(options)),
        }
    }

    /// Returns an option; none if it is absent, undefined or null.
    ///
    /// # Errors
    /// What its getter throws.
    pub fn get(&self, name: &str) -> Result<Option<JsValue>> {
        if is_absent(&self.0) { Ok(None) } else { field(&self.0, name) }
    }

    /// Returns an option as a text.
    pub fn text(&self, name: &str) -> Result<Option<String>> {
        self.get(name)?.map(|value| text(&value, name)).transpose()
    }

    /// Returns an option as true or false; false if it is absent.
    pub fn truth(&self, name: &str) -> Result<bool> {
        let Some(value) = self.get(name)? else { return Ok(false) };
        truth(&value, name)
    }

    /// Returns an option as an integer of its type's range.
    pub fn integer<T: Integer>(&self, name: &str) -> Result<Option<T>> {
        self.get(name)?.map(|value| integer(&value, name)).transpose()
    }

    /// Returns an option as a number.
    pub fn double(&self, name: &str) -> Result<Option<f64>> {
        self.get(name)?.map(|value| double(&value, name)).transpose()
    }

    /// Returns an option as a number, rounded to f32.
    pub fn number(&self, name: &str) -> Result<Option<f32>> {
        Ok(self.double(name)?.map(|value| value as f32))
    }

    /// Returns an option as a list of ids; empty if it is absent.
    pub fn ids(&self, name: &str) -> Result<Vec<u32>> {
        self.get(name)?.map_or(Ok(Vec::new()), |value| integers(&value, name))
    }
}

/// Returns whether a value says nothing.
pub fn is_absent(value: &JsValue) -> bool {
    value.is_undefined() || value.is_null()
}

/// Returns the names of a plain object's own fields.
///
/// # Errors
/// `type` if the value is no object, a list, or of a class: of a Map or a Promise the own fields say nothing.
pub fn keys(object: &JsValue, name: &str) -> Result<Vec<String>> {
    let plain = object.is_object() && !Array::is_array(object) && is_plain(object)?;
    let keys = plain.then(|| js_sys::Object::keys(object.unchecked_ref::<js_sys::Object>()));
    let keys = keys.ok_or_else(|| Failure::wrong_type(name, object, "a plain object with named fields"))?;
    Ok(keys.iter().filter_map(|key| key.as_string()).collect())
}

/// Returns whether an object's prototype is null, or one that has no prototype itself: the prototype of
/// objects, in any frame.
fn is_plain(object: &JsValue) -> Result<bool> {
    let above =
        |object: &JsValue| Reflect::get_prototype_of(object).map(JsValue::from).map_err(Failure::Thrown);
    let prototype = above(object)?;
    Ok(prototype.is_null() || above(&prototype)?.is_null())
}

/// Returns a field of an object; none if it is absent, undefined or null.
///
/// # Errors
/// What its getter throws.
pub fn field(object: &JsValue, name: &str) -> Result<Option<JsValue>> {
    let value = Reflect::get(object, &name.into()).map_err(Failure::Thrown)?;
    Ok(Some(value).filter(|value| !is_absent(value)))
}

/// An integer that a number of JavaScript is read as.
pub trait Integer: Sized + TryFrom<i128> {
    /// Its range, in words.
    const RANGE: &'static str;
}

macro_rules! ranges {
    ($($type:ty: $range:literal)*) => {
        $(impl Integer for $type {
            const RANGE: &'static str = $range;
        })*
    };
}

ranges! {
    u32: "an integer in 0..2^32"
    i32: "an integer in -2^31..2^31"
    u64: "an integer in 0..2^64; above 2^53 as a BigInt"
    i64: "an integer in -2^63..2^63; above 2^53 as a BigInt"
    usize: "an integer in 0..2^32"
}

/// The integers that a number of JavaScript tells apart.
const SAFE: f64 = 9_007_199_254_740_991.0;

/// Reads an integer that is a number or a BigInt.
pub fn integer<T: Integer>(value: &JsValue, name: &str) -> Result<T> {
    let outside = |shown: String| Failure::out_of_range(name, shown, T::RANGE);
    if let Some(number) = value.as_f64() {
        if number.fract() != 0.0 || !(-SAFE..=SAFE).contains(&number) {
            return Err(outside(number.to_string()));
        }
        return T::try_from(number as i128).map_err(|_| outside(number.to_string()));
    }
    if !value.is_bigint() {
        return Err(Failure::wrong_type(name, value, T::RANGE));
    }
    let digits =
        String::from(value.unchecked_ref::<js_sys::BigInt>().to_string(10).expect("a radix that is known"));
    let number: Option<T> = digits.parse().ok().and_then(|number: i128| T::try_from(number).ok());
    number.ok_or_else(|| outside(digits))
}

/// Reads the size of a vocabulary, in whose place parameters may stand.
pub fn vocab(value: &JsValue) -> Result<usize> {
    if value.is_object() {
        let wanted = "an integer: new Sampler(params, vocab), but new Pool(vocab), whose admit takes params";
        return Err(Failure::wrong_type("vocab", value, wanted));
    }
    integer(value, "vocab")
}

/// Reads a number.
pub fn double(value: &JsValue, name: &str) -> Result<f64> {
    value.as_f64().ok_or_else(|| Failure::wrong_type(name, value, "a number"))
}

/// Reads a number, rounded to f32.
pub fn number(value: &JsValue, name: &str) -> Result<f32> {
    Ok(double(value, name)? as f32)
}

/// Reads true or false.
pub fn truth(value: &JsValue, name: &str) -> Result<bool> {
    value.as_bool().ok_or_else(|| Failure::wrong_type(name, value, "true or false"))
}

/// Reads a text.
pub fn text(value: &JsValue, name: &str) -> Result<String> {
    value.as_string().ok_or_else(|| Failure::wrong_type(name, value, "a string"))
}

/// Reads a list's elements.
pub fn elements(list: &JsValue, name: &str) -> Result<Vec<JsValue>> {
    if Array::is_array(list) {
        return collected(list.unchecked_ref());
    }
    if js_sys::ArrayBuffer::is_view(list) && tag(list).ends_with("Array") {
        return collected(&Array::from(list));
    }
    Err(Failure::wrong_type(name, list, "an array"))
}

fn collected(list: &Array) -> Result<Vec<JsValue>> {
    let mut all = gumball_spec::memory::with_capacity("memory for a list", list.length() as usize)?;
    all.extend(list.iter());
    Ok(all)
}

/// Reads a list of integers.
pub fn integers<T: Integer + TryFrom<u32> + TryFrom<i32>>(list: &JsValue, name: &str) -> Result<Vec<T>> {
    fn all<T: Integer + TryFrom<U>, U: Copy + ToString>(list: Vec<U>, name: &str) -> Result<Vec<T>> {
        let one = |value: &U| {
            T::try_from(*value).map_err(|_| Failure::out_of_range(name, value.to_string(), T::RANGE))
        };
        list.iter().map(one).collect()
    }
    if let Some(list) = list.dyn_ref::<Uint32Array>() {
        return all(list.to_vec(), name);
    }
    if let Some(list) = list.dyn_ref::<Int32Array>() {
        return all(list.to_vec(), name);
    }
    elements(list, name)?.iter().map(|value| integer(value, name)).collect()
}

/// Reads an optional list of ids.
pub fn ids(list: Option<Integers>, name: &str) -> Result<Vec<u32>> {
    list.map_or(Ok(Vec::new()), |list| integers(&list, name))
}

/// Reads a list of lists of integers: how many each has, and all of them one after the other.
pub fn lists<T: Integer + TryFrom<u32> + TryFrom<i32>>(
    lists: &JsValue,
    name: &str,
) -> Result<(Vec<u32>, Vec<T>)> {
    let (mut counts, mut all) = (Vec::new(), Vec::new());
    for list in elements(lists, name)? {
        let list = integers(&list, name)?;
        counts.push(list.len() as u32);
        all.extend(list);
    }
    Ok((counts, all))
}

/// Makes an object of fields.
pub fn object<const N: usize>(fields: [(&str, JsValue); N]) -> JsValue {
    let object = js_sys::Object::new();
    for (name, value) in fields {
        Reflect::set(&object, &name.into(), &value).expect("a new object takes fields");
    }
    object.into()
}
