//! The headers follow from the sources: `GUMBALL_BLESS=1 cargo test -p gumball-c --test header` writes them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// How an enum is declared that is an int32_t, in C before C23 too.
const ENUM: &str = "
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
#define GUMBALL_ENUM(name) enum name : int32_t; typedef enum name name; enum name : int32_t
#else
#define GUMBALL_ENUM(name) typedef int32_t name; enum name
#endif
";

fn home() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// Returns the names of the functions in a source.
fn functions(source: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(source).expect("text");
    let named = text.lines().filter_map(|line| line.split_once("extern \"C\" fn "));
    named.filter_map(|(_, rest)| Some(rest.split_once('(')?.0.to_owned())).collect()
}

/// Returns the name in C of each type: HeadConfig is gumball_head_config, and so are numbers and functions
/// without their last word.
fn names() -> HashMap<String, String> {
    let mut names = HashMap::new();
    let named = |c: char| if c.is_uppercase() { format!("_{}", c.to_lowercase()) } else { c.to_string() };
    for source in std::fs::read_dir(home().join("src")).expect("the sources").flatten() {
        let text = std::fs::read_to_string(source.path()).expect("text");
        for word in
            text.split(|c| !char::is_alphanumeric(c)).filter(|word| word.starts_with(char::is_uppercase))
        {
            let stem = word.strip_suffix("Number").or(word.strip_suffix("Fn")).unwrap_or(word);
            names
                .insert(word.to_owned(), stem.chars().fold("gumball".to_owned(), |name, c| name + &named(c)));
        }
    }
    names
}

fn made(mut config: cbindgen::Config, sources: &[&str]) -> String {
    config.export.rename = names();
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = sources.iter().fold(builder, |builder, source| builder.with_src(home().join(source)));
    let mut text = Vec::new();
    builder.generate().expect("sources that cbindgen reads").write(&mut text);
    let text = String::from_utf8(text).expect("text");
    // What cbindgen writes around each enum stands once, as `GUMBALL_ENUM`.
    let typed = "defined(__cplusplus) || __STDC_VERSION__ >= 202311L";
    let opening = format!("\n#if {typed}\n  : int32_t\n#endif // {typed}\n {{\n");
    let blocks = text.split("\n\n").map(|block| {
        let Some((head, rest)) = block.split_once(&opening) else { return block.to_owned() };
        let (comment, name) = head.rsplit_once("enum ").expect("an enum");
        format!("{comment}GUMBALL_ENUM({name}) {{\n{}}};", rest.split_once("};").expect("its end").0)
    });
    blocks.collect::<Vec<_>>().join("\n\n")
}

/// Puts the functions that most programs need in front: the ones in the preamble's program.
fn in_order(header: &str, preamble: &str) -> String {
    let first: Vec<&str> = preamble.match_indices('(').map(|(end, _)| &preamble[..end]).collect();
    let first = first
        .iter()
        .filter_map(|text| Some(&text[text.rfind(|c| c != '_' && !char::is_alphanumeric(c))? + 1..]));
    let first: Vec<&str> = first.filter(|name| name.starts_with("gumball_")).collect();
    let (types, rest) = header.split_once("extern \"C\" {\n#endif // __cplusplus\n\n").expect("functions");
    let (all, end) = rest.split_once("\n\n#ifdef __cplusplus\n}").expect("an end");
    let place = |block: &&str| {
        let declaration = block.lines().find(|line| !line.starts_with("//"))?;
        first.iter().position(|name| declaration.contains(&format!("{name}(")))
    };
    let (mut blocks, others): (Vec<&str>, Vec<&str>) =
        all.split("\n\n").partition(|block| place(block).is_some());
    assert_eq!(blocks.len(), 10);
    blocks.sort_by_key(place);
    let blocks = [blocks, others].concat().join("\n\n");
    format!("{types}extern \"C\" {{\n#endif // __cplusplus\n\n{blocks}\n\n#ifdef __cplusplus\n}}{end}")
}

/// Returns the headers by their names.
fn generated() -> [(&'static str, String); 2] {
    let common = cbindgen::Config::from_file(home().join("cbindgen.toml")).expect("a configuration");
    let mut config = common.clone();
    let preamble = std::fs::read_to_string(home().join("header.txt")).expect("the preamble");
    config.header = Some(preamble.trim_end().to_owned());
    config.include_guard = Some("GUMBALL_H".to_owned());
    config.sys_includes = vec!["stddef.h".to_owned(), "stdint.h".to_owned()];
    config.after_includes = Some(format!(
        "\n#define GUMBALL_VERSION \"{}\"\n#define GUMBALL_VERSION_MAJOR {}\n#define GUMBALL_VERSION_MINOR {}\n\
         #define GUMBALL_VERSION_PATCH {}\n{ENUM}",
        env!("CARGO_PKG_VERSION"),
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
        env!("CARGO_PKG_VERSION_PATCH"),
    ));
    let types = ["HeadConfig", "HeadInfo", "HeadKind", "ClusterProgressFn"].map(str::to_owned);
    config.export.exclude = [&types[..], &functions(&home().join("src/head.rs"))].concat();
    let main = in_order(&made(config, &["src/lib.rs"]), &preamble);

    let mut config = common;
    config.header =
        Some("// Heads: from hidden states to logits. See gumball.h, whose preamble holds here.".to_owned());
    config.include_guard = Some("GUMBALL_HEADS_H".to_owned());
    config.includes = vec!["gumball.h".to_owned()];
    config.export.include = vec!["HeadKind".to_owned()];
    config.export.exclude = vec!["Head".to_owned()];
    [("gumball.h", main), ("gumball_heads.h", made(config, &["src/head_config.rs", "src/head.rs"]))]
}

#[test]
fn the_headers_are_current() {
    for (name, generated) in generated() {
        let path = home().join("include").join(name);
        if std::env::var_os("GUMBALL_BLESS").is_some() {
            std::fs::write(&path, &generated).expect("a file that can be written");
        }
        let known = std::fs::read_to_string(&path).unwrap_or_default();
        let changed = generated.lines().zip(known.lines().chain([""])).find(|(new, old)| new != old);
        assert!(
            known == generated,
            "GUMBALL_BLESS=1 cargo test -p gumball-c --test header; first: {changed:?}"
        );
    }
}

#[test]
fn every_name_in_the_header_begins_with_ours() {
    let rust = ["Option", "MaybeUninit", "Box", "Sampler", "Pool", "Params", "Device", "Number"];
    for (_, header) in generated() {
        for code in header.lines().filter_map(|line| line.split("//").next()) {
            assert!(rust.iter().all(|name| !code.contains(name)), "a name of Rust's: {code}");
            let is_declared = code.contains('(') && !code.starts_with([' ', '#']);
            assert!(!is_declared || code.contains("gumball_"), "{code}");
        }
    }
}

#[test]
fn every_function_says_what_it_costs() {
    let [(_, main), (_, heads)] = generated();
    for header in [&main, &heads] {
        let (_, functions) = header.split_once("extern \"C\" {").expect("functions");
        for function in functions.split("\n\n").filter(|block| block.contains(");")) {
            let last = function.lines().take_while(|line| line.starts_with("//")).last().unwrap_or_default();
            let cost = last.strip_prefix("// Cost: ").and_then(|cost| cost.strip_suffix('.'));
            let cost = cost.unwrap_or_else(|| panic!("no cost: {function}"));
            assert!(
                main.contains(&format!("\n//     {cost} ")),
                "the preamble explains no {cost}: {function}"
            );
        }
    }
}

#[test]
fn every_function_of_the_sources_is_in_one_header() {
    let [(_, main), (_, heads)] = generated();
    let mut count = 0;
    for source in std::fs::read_dir(home().join("src")).expect("the sources").flatten() {
        for name in functions(&source.path()) {
            let declared = |header: &str| {
                header.lines().any(|line| !line.starts_with("//") && line.contains(&format!("{name}(")))
            };
            assert!(declared(&main) != declared(&heads), "{name} is not in one header");
            count += 1;
        }
    }
    assert!((60..=104).contains(&count), "{count}");
}
