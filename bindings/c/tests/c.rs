//! The C tests and examples: compiled as C99 and as C++ against the shared library, and run. Of the static
//! library two programs are linked: one with every function of the headers, and `api`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use gumball_bench_protocol::skipped::{or_skip, skip};
use serde_json::Value;

mod fragments;

fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo left the libraries that this test was built with.
fn libraries() -> PathBuf {
    let program = std::env::current_exe().expect("a path");
    program.parent().expect("a folder").to_owned()
}

/// A way to build a program.
#[derive(Clone, Copy, Debug)]
struct Build {
    compiler: &'static str,
    flags: &'static [&'static str],
    /// Against libgumball.a, and not libgumball.so.
    is_static: bool,
    sanitized: bool,
}

const WARNINGS: [&str; 6] = ["-Wall", "-Wextra", "-Wpedantic", "-Wundef", "-Wshadow", "-Werror"];
const SANITIZER: [&str; 3] = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"];
/// The system's libraries that the static library needs.
const SYSTEM: [&str; 6] = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"];

const C: Build = Build { compiler: "cc", flags: &["-std=c99"], is_static: false, sanitized: false };
const CPP: Build = Build { compiler: "c++", flags: &["-xc++", "-std=c++11"], ..C };
const SANITIZED: Build = Build { sanitized: true, ..C };
const STATIC: Build = Build { is_static: true, ..CPP };

/// Returns whether a compiler builds and runs something; a message says that the tests are skipped.
fn works(build: Build) -> bool {
    static FOUND: [OnceLock<bool>; 3] = [const { OnceLock::new() }; 3];
    let place = if build.sanitized { 2 } else { usize::from(build.compiler == "c++") };
    *FOUND[place].get_or_init(|| {
        let folder = folder();
        let (source, program) =
            (folder.join(format!("works{place}.c")), folder.join(format!("works{place}")));
        fs::write(&source, "int main(void) { return 0; }\n").expect("a folder that can be written");
        let mut command = Command::new(build.compiler);
        command.args(build.flags).args(if build.sanitized { &SANITIZER[..] } else { &[] });
        let built = command.arg(&source).arg("-o").arg(&program).output();
        let works = built.is_ok_and(|built| built.status.success())
            && Command::new(&program).status().is_ok_and(|status| status.success());
        if !works {
            skip(format_args!("{} {:?} does not build a program here", build.compiler, build.flags));
        }
        works
    })
}

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c");
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Builds a program of sources below this crate and returns where it lies; none where there is no such
/// compiler.
fn program(build: Build, name: &str, sources: &[&str]) -> Option<PathBuf> {
    if cfg!(not(target_os = "linux")) {
        skip("how the libraries are linked is told for Linux alone");
        return None;
    }
    if !works(build) {
        return None;
    }
    let form = match build {
        Build { sanitized: true, .. } => "sanitized",
        Build { is_static: true, .. } => "static",
        _ => build.compiler,
    };
    let program = folder().join(format!("{name}-{form}"));
    let mut command = Command::new(build.compiler);
    command.args(build.flags).args(WARNINGS);
    command.args(if build.sanitized { &SANITIZER[..] } else { &[] });
    for folder in ["include", "examples", "tests/c"] {
        command.arg("-I").arg(home().join(folder));
    }
    command.args(sources.iter().map(|source| home().join(source))).args(["-x", "none", "-o"]).arg(&program);
    let libraries = libraries();
    if build.is_static {
        command.arg(libraries.join("libgumball.a")).args(SYSTEM);
    } else {
        command.arg("-L").arg(&libraries).args(["-lgumball", "-lm", "-lpthread", "-ldl"]);
        command.arg(format!("-Wl,-rpath,{}", libraries.display()));
    }
    let built = command.output().expect("it works");
    assert!(built.status.success(), "{command:?}\n{}", words(&built));
    Some(program)
}

fn words(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a program, which must succeed, and returns what it wrote.
fn run(program: &Path, arguments: &[&str]) -> String {
    // Cargo puts a folder in front in which a library without the emulator may lie.
    let mut command = Command::new(program);
    let output = command.args(arguments).env_remove("LD_LIBRARY_PATH").output().expect("it was just built");
    assert!(output.status.success(), "{} {arguments:?}:\n{}", program.display(), words(&output));
    String::from_utf8(output.stdout).expect("text")
}

/// Builds a test in every form and runs it.
fn test(name: &str, sources: &[&str], arguments: &[&str], builds: &[Build]) {
    for build in builds {
        if let Some(program) = program(*build, name, sources) {
            run(&program, arguments);
        }
    }
}

/// Returns whether there is what the emulated device takes. The library has it as well, as features are one
/// for a build; if it lacks it, another build overwrote the library since: `cargo clean -p gumball-c`.
fn emulated() -> bool {
    or_skip(gumball_engine::Device::emulated()).is_some()
}

#[test]
fn the_functions_do_what_they_promise() {
    test("api", &["tests/c/api.c"], &[], &[C, CPP, SANITIZED, STATIC]);
}

#[test]
fn the_static_library_has_every_function_of_the_headers() {
    let mut names: Vec<String> = Vec::new();
    for header in ["include/gumball.h", "include/gumball_heads.h"] {
        let text = fs::read_to_string(home().join(header)).expect("text");
        let declared = text.lines().filter(|line| line.starts_with(char::is_alphabetic));
        let declared = declared.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next());
        names.extend(declared.filter(|name| name.starts_with("gumball_")).map(str::to_owned));
    }
    assert!(names.len() > 60, "{names:?}");
    let mut source = "#include \"gumball_heads.h\"\ntypedef void (*function)(void);\n".to_owned();
    source += "static const function all[] = {\n";
    names.iter().for_each(|name| source += &format!("(function)&{name},\n"));
    source += "};\nint main(int count, char **words) { (void)words; return all[count] == 0; }\n";
    let path = folder().join("all.c");
    fs::write(&path, source).expect("a folder that can be written");
    test("all", &[path.to_str().expect("a path in UTF-8")], &[], &[STATIC]);
}

#[test]
fn what_is_wrong_is_refused_in_words() {
    test("misuse", &["tests/c/misuse.c"], &[], &[C, CPP, SANITIZED]);
}

#[test]
fn structs_of_older_and_newer_programs_are_taken_as_promised() {
    test("structs", &["tests/c/structs.c"], &[], &[C, CPP, SANITIZED]);
}

#[test]
fn every_struct_that_has_a_size_is_handed_in_with_other_sizes() {
    let tried = fs::read_to_string(home().join("tests/c/structs.c")).expect("the test");
    let mut count = 0;
    for header in ["include/gumball.h", "include/gumball_heads.h"] {
        let text = fs::read_to_string(home().join(header)).expect("text");
        for (at, _) in text.match_indices("    size_t struct_size;") {
            let name =
                text[at..].split_once("} ").and_then(|(_, rest)| rest.split(';').next()).expect("a name");
            let listed = tried.split(&format!("each({name}, ")).nth(1);
            let value = listed.and_then(|rest| rest.split(',').next()).expect(name);
            assert!(
                tried.contains(&format!("READ({value}, ")) || tried.contains(&format!("WRITTEN({value}, ")),
                "{name}"
            );
            count += 1;
        }
    }
    assert_eq!(count, 15);
}

/// Returns a line for each struct and field of the headers, with expressions for a size and an offset, and
/// for each named number, with its value.
fn layouts() -> Vec<(String, [String; 2])> {
    let mut all = Vec::new();
    for header in ["include/gumball.h", "include/gumball_heads.h"] {
        let text = fs::read_to_string(home().join(header)).expect("text");
        let code: String =
            text.lines().map(|line| line.split("//").next().unwrap_or_default().to_owned() + "\n").collect();
        for part in code.split("typedef struct ").skip(1) {
            let (head, body) = part.split_once('{').unwrap_or((part, ""));
            let Some((body, rest)) = body.split_once("\n} ").filter(|_| !head.contains(';')) else {
                continue;
            };
            let name = rest.split(';').next().expect("a name");
            all.push((name.to_owned(), [format!("sizeof({name})"), "0".to_owned()]));
            for field in body.split(';').filter(|field| !field.trim().is_empty()) {
                let of_function =
                    field.split_once("(*").map(|(_, rest)| rest.split(')').next().expect("a name"));
                let is_word = |c: char| c.is_alphanumeric() || c == '_';
                let field = of_function.unwrap_or_else(|| field.split('[').next().expect("a field"));
                let field = field.trim().rsplit(|c| !is_word(c)).next().expect("a name");
                let size = format!("sizeof((({name} *)0)->{field})");
                all.push((format!("{name}.{field}"), [size, format!("offsetof({name}, {field})")]));
            }
        }
        for part in code.split("GUMBALL_ENUM(").filter(|part| part.starts_with("gumball_")) {
            let body = part.split_once('{').and_then(|(_, part)| part.split_once('}')).expect("numbers").0;
            for number in body.split(',').filter_map(|number| number.split('=').next()) {
                let number = number.trim();
                if !number.is_empty() {
                    all.push((number.to_owned(), ["sizeof(int32_t)".to_owned(), number.to_owned()]));
                }
            }
        }
    }
    all
}

/// The test `releases` of conformance says what `releases` holds; here, sizes and offsets of what C programs
/// of a release were compiled with. A struct that has a size may have grown at its end.
#[test]
fn structs_and_numbers_of_every_release_are_where_they_were() {
    let mut source = "#include <stdio.h>\n#include \"gumball_heads.h\"\nint main(void) {\n".to_owned();
    for (name, [size, place]) in layouts() {
        source += &format!("printf(\"{name} %zu %ld\\n\", {size}, (long)({place}));\n");
    }
    let path = folder().join("layouts.c");
    fs::write(&path, source + "return 0; }\n").expect("a folder that can be written");
    let Some(program) = program(C, "layouts", &[path.to_str().expect("a path in UTF-8")]) else { return };
    let now = run(&program, &[]);
    let releases = home().join("../../proof/conformance/releases");
    let version = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR")].join(".");
    let this = releases.join(version).join("structs.txt");
    if !this.exists() && std::env::var_os("GUMBALL_BLESS").is_some() {
        fs::create_dir_all(this.parent().expect("the folder")).expect("a folder that can be written");
        fs::write(&this, &now).expect("a folder that can be written");
    }
    assert!(
        this.exists(),
        "GUMBALL_BLESS=1 cargo test -p gumball-c --test c structs writes {}",
        this.display()
    );
    let parts = |line: &str| -> (String, Vec<i64>) {
        let mut words = line.split(' ').map(str::to_owned);
        (words.next().expect("a name"), words.map(|word| word.parse().expect("a number")).collect())
    };
    let known: std::collections::HashMap<_, _> = now.lines().map(parts).collect();
    for release in fs::read_dir(releases).expect("the folders").map(|entry| entry.expect("a folder").path()) {
        for (name, was) in
            fs::read_to_string(release.join("structs.txt")).expect("structs").lines().map(parts)
        {
            let is = known.get(&name);
            let grows = known.contains_key(&format!("{name}.struct_size"));
            let stays = is.is_some_and(|is| is[1] == was[1] && (is[0] == was[0] || grows && is[0] > was[0]));
            assert!(
                stays,
                "{name}: size and place were {was:?} in {}, are {is:?}. A program of that release breaks: add fields at the \
                 end alone. If that version is not out yet, remove its structs.txt and write it with GUMBALL_BLESS=1",
                release.display()
            );
        }
    }
}

#[test]
fn drafts_go_in_and_come_out_in_every_form() {
    test("verify", &["tests/c/verify.c"], &[], &[C, CPP, SANITIZED]);
    if emulated() {
        test("verify", &["tests/c/verify.c"], &["emulated"], &[C]);
    }
}

#[test]
fn work_is_done_in_order() {
    test("work", &["tests/c/work.c"], &[], &[C, CPP, SANITIZED]);
    if emulated() {
        test("work", &["tests/c/work.c"], &["emulated"], &[C]);
    }
}

#[test]
fn heads_are_made_kept_and_taken_by_every_call() {
    let file = folder().join("head.file");
    let file = file.to_str().expect("a path in UTF-8");
    test("heads", &["tests/c/heads.c"], &[file], &[C, CPP, SANITIZED]);
    if emulated() {
        test("device_heads", &["tests/c/device_heads.c"], &["emulated"], &[C, CPP]);
    }
}

#[test]
fn ranks_draw_what_one_process_draws() {
    test("ranks", &["tests/c/ranks.c"], &[], &[C, CPP, SANITIZED]);
    if emulated() {
        test("ranks", &["tests/c/ranks.c"], &["emulated"], &[C]);
    }
}

#[test]
fn operators_take_every_type_stride_and_list() {
    test("operators", &["tests/c/operators.c"], &[], &[C, CPP, SANITIZED]);
}

#[test]
fn tens_of_thousands_of_calls_lose_no_memory() {
    for name in ["api", "misuse", "operators"] {
        test(&format!("rounds_{name}"), &[&format!("tests/c/{name}.c")], &["1000"], &[C]);
    }
}

#[test]
fn a_pool_on_a_device_does_what_one_on_the_host_does() {
    if emulated() {
        // The emulator's fibers are not for the sanitizer.
        test("device", &["tests/c/device.c"], &["emulated"], &[C, CPP]);
    }
}

#[test]
fn a_pool_works_on_the_programs_own_stream() {
    // Skipped by the program where there is no CUDA; `ci/gpu c` runs it where there is.
    test("stream", &["tests/c/stream.c"], &[], &[C, CPP]);
}

/// Writes the golden draws for the program and returns where.
fn cases() -> PathBuf {
    let read = |name: &str| -> serde_json::Map<String, Value> {
        let path = home().join("../../proof/conformance/golden").join(name);
        serde_json::from_str(&fs::read_to_string(path).expect("the golden draws")).expect("JSON")
    };
    let (golden, params) = (read("generated.json"), read("params.json"));
    let mut text = String::new();
    for (name, tokens) in &golden {
        let kinds =
            ["bell f32 1000 ", "model f32 4099 ", "model bf16 8192 ", "grid f16 777 ", "flat f32 513 "];
        let found = kinds.iter().enumerate().find_map(|(kind, row)| Some((kind, name.strip_prefix(row)?)));
        let (kind, of) = found.unwrap_or_else(|| panic!("{name}: rows that the program does not make"));
        let tokens: Vec<String> = tokens.as_array().expect("tokens").iter().map(Value::to_string).collect();
        text += &format!("{kind} {} {} {}\n", tokens.len(), tokens.join(" "), params[of]);
    }
    let path = folder().join("golden.txt");
    fs::write(&path, text).expect("a folder that can be written");
    path
}

#[test]
fn the_golden_tokens_are_drawn() {
    let cases = cases();
    let cases = cases.to_str().expect("a path in UTF-8");
    let golden = ["tests/c/golden.c"];
    test("golden", &golden, &[cases, "sampler"], &[C, CPP]);
    test("golden", &golden, &[cases, "pool"], &[C]);
    if emulated() {
        test("golden", &golden, &[cases, "emulated", "9"], &[C]);
    }
}

#[test]
fn parameters_are_read_from_json_and_written_as_every_language_does() {
    let path = home().join("../../proof/conformance/golden/params_json.json");
    let cases: Value = serde_json::from_str(&fs::read_to_string(path).expect("the cases")).expect("JSON");
    let mut text = format!("written\n{{}}\n{}\n", cases["neutral"].as_str().expect("a text"));
    for kind in ["same", "written", "refused"] {
        let pairs: Vec<[String; 2]> = serde_json::from_value(cases[kind].clone()).expect("pairs of texts");
        text.extend(pairs.iter().map(|[one, other]| format!("{kind}\n{one}\n{other}\n")));
    }
    let path = folder().join("json.txt");
    fs::write(&path, text).expect("a folder that can be written");
    test("json", &["tests/c/json.c"], &[path.to_str().expect("a path in UTF-8")], &[C, CPP]);
}

#[test]
fn a_sampler_of_llama_cpp_is_one_of_ours() {
    let sources = ["tests/c/llama.c", "examples/llama_sampler.c"];
    test("llama", &sources, &[], &[C, CPP, SANITIZED]);
}

#[test]
fn the_examples_run() {
    let Some(program) = program(C, "decode", &["examples/decode.c"]) else { return };
    let written = run(&program, &[]);
    let lines: Vec<&str> = written.lines().collect();
    assert_eq!(lines.len(), 3, "{written}");
    // One sequence, and the same one in a batch.
    assert_eq!(lines[0].split_once(':').expect("ids").1, lines[1].split_once(':').expect("ids").1);
    assert_ne!(lines[1].split_once(':').expect("ids").1, lines[2].split_once(':').expect("ids").1);
    let Some(program) = self::program(C, "head", &["examples/head.c"]) else { return };
    let written = run(&program, &[]);
    let tokens: Vec<&str> = written.lines().filter_map(|line| Some(line.split_once(": ")?.1)).collect();
    assert!(tokens.len() == 3 && tokens[0].len() > 20 && tokens[0] == tokens[1], "{written}");
    assert!(written.trim_end().ends_with("logits in all, approximate"), "{written}");
}

#[test]
fn fragments_of_the_documents_run_as_they_stand() {
    let in_c = fragments::fragments().into_iter().filter(|fragment| fragment.language == "c");
    let mut found = 0;
    for (number, fragment) in in_c.enumerate() {
        let name = format!("fragment{number}");
        let source = folder().join(format!("{name}.c"));
        fs::write(&source, &fragment.text).expect("a folder that can be written");
        found += 1;
        let Some(program) = program(C, &name, &[source.to_str().expect("a path of text")]) else { return };
        let output = Command::new(&program).current_dir(folder()).env_remove("LD_LIBRARY_PATH").output();
        let output = output.expect("it was just built");
        assert!(output.status.success(), "{}: {}", fragment.place, words(&output));
    }
    assert!(found > 1, "{found} fragments of C");
}
