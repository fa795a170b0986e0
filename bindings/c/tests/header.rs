//! The header is what the sources say: `GUMBALL_BLESS=1 cargo test -p gumball-c --test header` writes it.

use std::path::Path;

fn generated() -> String {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = cbindgen::Config::from_file(home.join("cbindgen.toml")).expect("a configuration");
    let preamble = std::fs::read_to_string(home.join("header.txt")).expect("the preamble");
    config.header = Some(preamble.trim_end().to_owned());
    config.after_includes = Some(format!(
        "\n#define GUMBALL_VERSION \"{}\"\n#define GUMBALL_VERSION_MAJOR {}\n#define GUMBALL_VERSION_MINOR {}\n\
         #define GUMBALL_VERSION_PATCH {}\n",
        env!("CARGO_PKG_VERSION"),
        env!("CARGO_PKG_VERSION_MAJOR"),
        env!("CARGO_PKG_VERSION_MINOR"),
        env!("CARGO_PKG_VERSION_PATCH"),
    ));
    let bindings = cbindgen::Builder::new().with_config(config).with_src(home.join("src/lib.rs")).generate();
    let mut text = Vec::new();
    bindings.expect("sources that cbindgen reads").write(&mut text);
    String::from_utf8(text).expect("text")
}

#[test]
fn the_header_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/gumball.h");
    let generated = generated();
    if std::env::var_os("GUMBALL_BLESS").is_some() {
        std::fs::write(&path, &generated).expect("a file that can be written");
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    let changed = generated.lines().zip(known.lines().chain([""])).find(|(new, old)| new != old);
    assert!(known == generated, "GUMBALL_BLESS=1 cargo test -p gumball-c --test header; first: {changed:?}");
}

#[test]
fn every_name_in_the_header_begins_with_ours() {
    let header = generated();
    let code = header.lines().map(|line| line.split("//").next().unwrap_or_default());
    for line in code.filter(|line| !line.starts_with("    ") && line.contains('(') && !line.starts_with('#'))
    {
        assert!(line.contains("gumball_"), "{line}");
    }
    let types = ["Option", "MaybeUninit", "Box", "Sampler", "Pool", "Params", "Device"];
    let code: String = header.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    assert!(types.iter().all(|name| !code.contains(name)), "a name of Rust's is left in the header");
}

#[test]
fn every_function_of_the_sources_is_in_the_header() {
    let header = generated();
    let sources = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).expect("the sources");
    let mut count = 0;
    for source in sources.flatten() {
        let text = std::fs::read_to_string(source.path()).expect("text");
        for line in text.lines().filter(|line| line.contains("extern \"C\" fn gumball_")) {
            let name = line.split("fn ").nth(1).and_then(|rest| rest.split('(').next()).expect("a name");
            assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
            count += 1;
        }
    }
    assert!(count > 60, "{count}");
}
