//! Text in other languages that is written from the table of parameters: Python's dataclasses, TypeScript's
//! types, the table of `docs/parameters.md`; and the JSON of the neutral ones. These tests compare each with
//! the table; with `GUMBALL_BLESS=1` in the environment they write it.

use std::path::Path;
use std::{env, fs};

use gumball_spec::{
    Dry, DynamicTemperature, Field, Filter, LogprobMode, LogprobsParams, Loops, Mirostat, Parameter,
    Parameters, SamplingParams, Scope, Section, Watermark,
};

/// Compares a part of a file with a text. The part starts after the last anchor, each searched after the one
/// before, and stops before the next `end`.
fn hold(path: &str, anchors: &[&str], end: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    let before = fs::read_to_string(&file).expect(path);
    let find = |from: usize, what: &str| {
        from + before[from..]
            .find(what)
            .unwrap_or_else(|| panic!("{path} has no {what:?} behind byte {from}"))
    };
    let start = anchors.iter().fold(0, |from, anchor| find(from, anchor) + anchor.len());
    let now = [&before[..start], text, &before[find(start, end)..]].concat();
    if env::var_os("GUMBALL_BLESS").is_some() {
        fs::write(&file, now).expect(path);
    } else {
        let command = "GUMBALL_BLESS=1 cargo test -p gumball-conformance --test generated";
        assert!(now == before, "{path} does not say what the table of parameters says; {command} writes it");
    }
}

/// A parameter's type and neutral value in the languages.
struct Written {
    python: String,
    python_neutral: String,
    typescript: String,
    /// What its values are, if it is no number.
    values: String,
}

fn written(parameter: &Parameter, field: &Field<'_>) -> Written {
    let of = |python: &str, neutral: &str, typescript: &str, values: &str| {
        [python, neutral, typescript, values].map(str::to_owned)
    };
    let named = |neutral: &str, names: &[&str]| {
        let quoted: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
        of("str", &format!("\"{neutral}\""), &quoted.join(" | "), &quoted.join(", "))
    };
    let part = |name: &str, neutral: &str, typescript: String| of(name, neutral, &typescript, "an object");
    let [python, python_neutral, typescript, values] = match field {
        Field::Number(number) => of("float", &format!("{number:?}"), "number", ""),
        Field::NumberOrNone(_) => of("float | None", "None", "number | null", ""),
        Field::Whole(number) => of("int", &number.to_string(), "number", ""),
        Field::Count(number) => of("int", &number.to_string(), "number", ""),
        Field::Flag(_) => of("bool", "False", "boolean", "true or false"),
        Field::Seed(_) => of("int | None", "None", "Seed | null", "in 0..2^64, or absent"),
        Field::Scope(scope) => named(scope.name(), &scopes(parameter)),
        Field::Modes(modes) => {
            let [_, neutral, one, values] =
                named(modes.first.name(), &LogprobMode::ALL.map(LogprobMode::name));
            let pair = format!("{one} | readonly [{one}, {one}]");
            [String::from("str | Sequence[str]"), neutral, pair, values + ", or a list of two"]
        }
        Field::Order(_) => of(
            "str | Sequence[str]",
            "\"default\"",
            "\"default\" | \"joint\" | \"none\" | readonly Filter[]",
            &format!(
                "\"default\", \"joint\", \"none\", or a list of distinct filters: {}",
                Filter::ALL.map(Filter::name).join(", ")
            ),
        ),
        Field::Ids(_) => of("Sequence[int]", "()", "Integers", "ids"),
        Field::IdsOrNone(_) => of("Sequence[int] | None", "None", "Integers | null", "ids, or absent"),
        Field::Words(_) => of("Sequence[Sequence[int]]", "()", "readonly Integers[]", "lists of ids"),
        Field::Biases(_) => of(
            "Mapping[int, float] | Sequence[tuple[int, float]]",
            "()",
            "readonly (readonly [number, number])[] | Map<number, number> | { readonly [id: number]: number }",
            "ids and biases, as a map or as pairs",
        ),
        Field::DynamicTemperature(_) => {
            part("DynamicTemperature | None", "None", object::<DynamicTemperature>() + " | null")
        }
        Field::Mirostat(_) => part("Mirostat | None", "None", object::<Mirostat>() + " | null"),
        Field::Dry(_) => part("Dry", "Dry()", object::<Dry>()),
        Field::Section(_) => part("Section | None", "None", object::<Section>() + " | null"),
        Field::Loops(_) => part("Loops | None", "None", object::<Loops>() + " | null"),
        Field::Watermark(_) => of(
            "Watermark | Literal[False] | None",
            "None",
            &(object::<Watermark>() + " | false | null"),
            "an object, or false",
        ),
        Field::Logprobs(_) => {
            part("LogprobsParams | None", "None", object::<LogprobsParams>() + " | number | null")
        }
    };
    let values = parameter.range.map_or(values, |range| range.words.to_owned());
    Written { python, python_neutral, typescript, values }
}

/// Returns the names of the scopes that a parameter takes.
fn scopes(parameter: &Parameter) -> Vec<&'static str> {
    let of_mark = |scope| {
        parameter.name != "watermark.scope" || Watermark { scope, ..Watermark::default() }.validate().is_ok()
    };
    Scope::ALL.into_iter().filter(|scope| of_mark(*scope)).map(Scope::name).collect()
}

/// Calls `line` for each field of a structure of parameters.
fn lines<T: Parameters>(line: impl Fn(&Parameter, Written) -> String) -> Vec<String> {
    let mut neutral = T::neutral();
    let mut field = |parameter: &Parameter| {
        written(parameter, &neutral.field(parameter.field()).expect("the table names fields").1)
    };
    let fields: Vec<_> = T::TABLE.iter().map(&mut field).collect();
    T::TABLE.iter().zip(fields).map(|(parameter, written)| line(parameter, written)).collect()
}

/// A member of a type of TypeScript.
fn member(parameter: &Parameter, written: &Written) -> String {
    let optional = if parameter.is_required { "" } else { "?" };
    format!("{}{optional}: {}", parameter.field(), written.typescript)
}

fn object<T: Parameters>() -> String {
    format!("{{ {} }}", lines::<T>(|parameter, written| member(parameter, &written)).join("; "))
}

/// Returns the meaning of a parameter, without names of rules such as (F8), which only readers of
/// `docs/semantics.md` know.
fn about(parameter: &Parameter) -> String {
    let is_rule = |word: &str| word.starts_with('(') && word[2..].starts_with(|c: char| c.is_ascii_digit());
    let mut words: Vec<String> = Vec::new();
    for word in parameter.about.split(' ') {
        match word.split_once(')') {
            Some((rule, rest)) if is_rule(rule) => {
                words.last_mut().expect("a rule is not first").push_str(rest)
            }
            _ => words.push(word.to_owned()),
        }
    }
    words.join(" ")
}

#[test]
fn the_dataclasses_of_python_are_current() {
    fn hold_class<T: Parameters>(name: &str) {
        let (path, class) = ("bindings/python/python/gumball/params.py", format!("\nclass {name}:"));
        let about = lines::<T>(|parameter, written| {
            let of_names = written.values.contains('"').then(|| format!(" One of {}.", written.values));
            format!("    {}: {}{}\n", parameter.field(), about(parameter), of_names.unwrap_or_default())
        });
        hold(path, &[&class, "\n\n"], "    \"\"\"\n", &about.concat());
        let fields = lines::<T>(|parameter, Written { python, python_neutral, .. }| {
            let neutral = if parameter.is_required { String::new() } else { format!(" = {python_neutral}") };
            format!("    {}: {python}{neutral}\n", parameter.field())
        });
        hold(path, &[&class, "    \"\"\"\n\n"], "\n\n", fields.concat().trim_end());
    }
    hold_class::<DynamicTemperature>("DynamicTemperature");
    hold_class::<Mirostat>("Mirostat");
    hold_class::<Dry>("Dry");
    hold_class::<Section>("Section");
    hold_class::<Loops>("Loops");
    hold_class::<Watermark>("Watermark");
    hold_class::<LogprobsParams>("LogprobsParams");
    hold_class::<SamplingParams>("SamplingParams");
    // A call may pass more types than an attribute has.
    let taken = lines::<SamplingParams>(|parameter, Written { python, python_neutral, .. }| {
        let first = python.split([' ', '[']).next().expect("a type has a name");
        let is_part = first.starts_with(char::is_uppercase) && !["Sequence", "Mapping"].contains(&first);
        let none = if python.ends_with("| None") { "" } else { " | None" };
        let part = if is_part { "Mapping[str, Any] | " } else { "" };
        let more = match parameter.name {
            "logprobs" => "int | ",
            "logit_bias" => "Mapping[str, float] | ",
            _ => "",
        };
        format!("            {}: {part}{more}{python}{none} = {python_neutral},\n", parameter.field())
    });
    let anchors = ["\nclass SamplingParams:", "        def __init__(\n            self,\n            *,\n"];
    hold("bindings/python/python/gumball/params.py", &anchors, "        ) -> None: ...\n", &taken.concat());
    let filters = Filter::ALL.map(|filter| format!("    \"{filter}\",\n")).concat();
    hold("bindings/python/python/gumball/params.py", &["\nFILTERS = (\n"], ")\n", &filters);
}

#[test]
fn the_types_of_typescript_are_current() {
    let path = "bindings/wasm/src/types.ts";
    let filters = Filter::ALL.map(|filter| format!("\"{filter}\"")).join(" | ");
    hold(path, &["export type Filter = "], ";\n", &filters);
    let members = lines::<SamplingParams>(|parameter, written| {
        format!("  /** {} */\n  {};\n", about(parameter), member(parameter, &written))
    });
    hold(path, &["export interface SamplingParams {\n"], "}\n", &members.concat());
}

#[test]
fn the_json_of_neutral_parameters_is_current() {
    let neutral = serde_json::to_string(&SamplingParams::default()).expect("finite numbers");
    let text = serde_json::Value::from(neutral).to_string();
    hold("proof/conformance/golden/params_json.json", &["\"neutral\": "], ",\n", &text);
}

/// Returns a meaning without the range, which has a column of its own.
fn without_range(about: &str, values: &str) -> String {
    let range = values.strip_suffix(')').and_then(|start| start.rsplit_once(" ("));
    let range = range.map_or(values, |(range, _)| range);
    match about.find(&format!("; {range}")) {
        Some(at) if range.starts_with("in ") => {
            format!("{}{}", &about[..at], about[at..].find(". ").map_or(".", |end| &about[at + end..]))
        }
        _ => about.to_owned(),
    }
}

/// An example of each parameter of a request, as JSON.
const EXAMPLES: [(&str, &str); 44] = [
    ("temperature", "0.7"),
    ("dynamic_temperature", r#"{"min": 0.5, "max": 1.5}"#),
    ("top_k", "50"),
    ("top_p", "0.9"),
    ("typical_p", "0.9"),
    ("min_p", "0.05"),
    ("top_n_sigma", "1.0"),
    ("top_h", "0.4"),
    ("top_a", "0.02"),
    ("p_less", "true"),
    ("epsilon_cutoff", "3e-4"),
    ("eta_cutoff", "2e-3"),
    ("xtc_probability", "0.5"),
    ("xtc_threshold", "0.15"),
    ("xtc_exempt_ids", "[2, 198]"),
    ("min_keep", "2"),
    ("mirostat", r#"{"tau": 5.0}"#),
    ("adaptive_target", "0.3"),
    ("adaptive_decay", "0.95"),
    ("repetition_penalty", "1.1"),
    ("repetition_scope", r#""output""#),
    ("frequency_penalty", "0.2"),
    ("presence_penalty", "0.5"),
    ("penalty_scope", r#""both""#),
    ("penalty_window", "64"),
    ("dry", r#"{"multiplier": 0.8}"#),
    ("no_repeat_ngram", "3"),
    ("no_repeat_ngram_scope", r#""output""#),
    ("no_repeat_ngram_window", "100"),
    ("no_repeat_ngram_exempt_ids", "[198]"),
    ("logit_bias", r#"{"7": 2.5, "9": "-inf"}"#),
    ("bias_first", "true"),
    ("allowed_ids", "[5, 6]"),
    ("banned_ids", "[0]"),
    ("bad_words", "[[5, 6], [9]]"),
    ("min_tokens", "16"),
    ("stop_ids", "[2]"),
    ("section", r#"{"close": [7], "budget": 512}"#),
    ("loops", r#"{"end": [2]}"#),
    ("watermark", "false"),
    ("seed", "7"),
    ("logprobs", r#"{"mode": "raw", "top_n": 5}"#),
    ("order", r#"["top_k", "min_p"]"#),
    ("temperature_last", "true"),
];

#[test]
fn the_page_of_parameters_is_current() {
    fn rows<T: Parameters>() -> String {
        let row = |parameter: &Parameter, Written { values, python_neutral, .. }: Written| {
            let neutral = match &*python_neutral {
                _ if parameter.is_required => "needed",
                "None" => "absent",
                "()" => "none",
                "False" => "false",
                "Dry()" => "off",
                number => number.trim_end_matches(".0").trim_matches('"'),
            };
            // The filters are listed under "Filters".
            let values = values.find("filters: ").map_or(&*values, |at| &values[..at + "filters".len()]);
            let example = EXAMPLES.iter().find(|(name, _)| *name == parameter.name);
            let example = example.map_or_else(String::new, |(_, json)| format!("`{json}` "));
            let shown = values.replace('"', "`");
            let about = without_range(about(parameter).as_str(), values);
            format!("| `{}` | {example}| {shown} | {neutral} | {about} |\n", parameter.name)
        };
        lines::<T>(row).concat()
    }
    let parts = rows::<DynamicTemperature>() + &rows::<Mirostat>() + &rows::<Dry>();
    let parts = parts + &rows::<Section>() + &rows::<Loops>();
    let parts = parts + &rows::<Watermark>() + &rows::<LogprobsParams>();
    let heading = "| name | example | value | neutral | meaning |\n| --- | --- | --- | --- | --- |\n";
    hold("docs/parameters.md", &[heading], "\n\n", (rows::<SamplingParams>() + &parts).trim_end());
}

#[test]
fn each_parameter_has_an_example_that_is_taken() {
    let names: Vec<_> = SamplingParams::TABLE.iter().map(|parameter| parameter.name).collect();
    assert_eq!(EXAMPLES.map(|(name, _)| name).to_vec(), names);
    for (name, json) in EXAMPLES {
        let params: SamplingParams = serde_json::from_str(&format!("{{\"{name}\": {json}}}")).expect(name);
        assert_ne!(params, SamplingParams::default(), "{name} is neutral");
        params.validate(50_000).expect(name);
    }
}
