//! The house as the code has it: the table of stages and backends, the table of crates, dependencies one way,
//! where `unsafe` may be, what stands above and what below, a test body for every rule, what workflows may
//! run, and a number that texts repeat. How long files are is no test: `ci/report sizes` prints it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use gumball_spec::{
    Dry, DynamicTemperature, LogprobsParams, Loops, Mirostat, Parameter, Parameters, SamplingParams, Section,
    Stage, Watermark,
};

/// The backends: the heading of each in the table of `docs/architecture.md`, and where its files lie.
const BACKENDS: [(&str, &str); 3] =
    [("`spec`", "crates/spec/src"), ("`cpu`", "crates/cpu/src"), ("`cuda`", "crates/cuda")];

/// Rules of `docs/semantics.md` without a body in `rules`, and why.
const WITHOUT_BODY: [(&str, &str); 14] = [
    ("N1", "no backend shows it through its answers; held in numbers.rs"),
    ("N2", "no backend shows it through its answers; held in numbers.rs"),
    ("L4", "of operators; held in given_logprobs.rs"),
    ("L5", "of operators; held in given_logprobs.rs"),
    ("L6", "of trainers; held in crates/engine/tests/engine/edited.rs"),
    ("L8", "of logits computed again; held in crates/receipt"),
    ("R1", "of texts, not of rows; held in crates/receipt"),
    ("R2", "of texts, not of rows; held in crates/receipt"),
    ("R3", "of texts, not of rows; held in crates/receipt"),
    ("N10", "comes before a request; held in golden.rs, and by each language's golden draws"),
    ("W4", "of texts, not of rows; held in crates/detect"),
    ("W5", "of pools, not of rows; held in crates/engine"),
    ("S1", "of several processes; held in crates/engine/tests/ranks"),
    ("S2", "of several processes; held in crates/engine/tests/ranks"),
];

/// The storeys of the house: a crate depends only on crates of lower storeys.
const STOREYS: [(&str, u32); 19] = [
    ("gumball-spec", 0),
    ("gumball-detect", 1),
    ("gumball-receipt", 1),
    ("gumball-bench-protocol", 0),
    ("gumball-cpu", 1),
    ("gumball-cuda", 2),
    ("gumball-dist", 2),
    ("gumball-head", 2),
    ("gumball-engine", 3),
    ("gumball-candle", 4),
    ("gumball-inspect", 4),
    ("gumball-python", 5),
    ("gumball-c", 4),
    ("gumball-wasm", 5),
    ("gumball-cli", 5),
    ("gumball-conformance", 4),
    ("gumball-bench", 4),
    ("gumball-fuzz", 5),
    ("gumball", 5),
];

/// Crates that may hold `unsafe`: lanes, launches, foreign libraries, bindings, the floor of the bench.
const MAY_BE_UNSAFE: [&str; 5] =
    ["gumball-cpu", "gumball-cuda", "gumball-python", "gumball-c", "gumball-bench"];

/// The product's folders of code, and what stands beside it: proofs, programs and plug-ins, on which nothing
/// of the product depends.
const ABOVE: [&str; 2] = ["crates", "bindings"];
const BELOW: [&str; 3] = ["proof", "apps", "integrations"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the repository")
}

/// Returns the cells of the table of stages, the headings first.
fn table_of_stages() -> Vec<Vec<String>> {
    let page = fs::read_to_string(root().join("docs/architecture.md")).expect("a page");
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let table = page.lines().skip_while(|line| !line.starts_with("| stage |"));
    let table: Vec<Vec<String>> = table.take_while(|line| line.starts_with('|')).map(cells).collect();
    assert!(table.len() > 2, "docs/architecture.md has no table of stages");
    table
}

/// Returns whether a backend has a file named for a stage, alone or among other words, or a folder of its
/// name.
fn has_stage(backend: &str, stage: &str) -> bool {
    files(&root().join(backend), &[".rs", ".cu", ".cuh"]).iter().any(|file| {
        let folder = file.parent().and_then(Path::file_name);
        let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        stem.is_some_and(|stem| stem.split('_').any(|word| word == stage))
            || folder.is_some_and(|name| name == stage)
    })
}

#[test]
fn the_table_of_stages_and_backends_is_true() {
    let table = table_of_stages();
    let column = |heading: &str| {
        let found = table[0].iter().position(|cell| cell == heading);
        found.unwrap_or_else(|| panic!("the table of stages has no column {heading}"))
    };
    for row in &table[2..] {
        let stage = &row[0];
        for (heading, folder) in BACKENDS {
            let claimed = !["", "-"].contains(&&*row[column(heading)]);
            assert_eq!(has_stage(folder, stage), claimed, "{stage} in {folder}, by the table");
        }
        assert!(row[column("page")].contains(&format!("stages/{stage}.md")), "{stage} has no page");
        assert!(root().join(format!("docs/stages/{stage}.md")).exists(), "{stage} has no page");
        assert!(has_stage("proof/conformance/src/rules", stage), "{stage} has no rules");
    }
}

/// Returns the folders of the workspace's members.
fn members() -> Vec<PathBuf> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    let list = manifest.split_once("members = [").expect("a workspace").1.split_once(']').expect("a list").0;
    list.split(',').map(|name| root().join(name.trim().trim_matches('"'))).filter(|p| *p != root()).collect()
}

/// A dependency as a manifest names it.
struct Dependency {
    name: String,
    /// Whether only tests, examples and benches have it.
    is_dev: bool,
}

/// Returns a member's name and its dependencies.
fn manifest(folder: &Path) -> (String, Vec<Dependency>) {
    let text = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
    let value = |line: &str| Some(line.split_once('=')?.1.trim().trim_matches('"').to_owned());
    let name = text.lines().find(|line| line.starts_with("name =")).and_then(value).expect("a name");
    let mut depends = Vec::new();
    let mut table = "";
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            table = line;
        } else if table.ends_with("dependencies]") && line.contains('=') {
            let name = line.split([' ', '=', '.']).next().expect("not empty").to_owned();
            depends.push(Dependency { name, is_dev: table.contains("dev-") });
        }
    }
    (name, depends)
}

#[test]
fn dependencies_point_one_way() {
    let storeys: BTreeMap<&str, u32> = STOREYS.into_iter().collect();
    let storey =
        |name: &str| *storeys.get(name).unwrap_or_else(|| panic!("{name} has no storey: give it one"));
    assert!(members().len() >= 7);
    for (name, depends) in members().iter().map(|folder| manifest(folder)) {
        for Dependency { name: other, .. } in depends.iter().filter(|it| it.name.starts_with("gumball")) {
            assert!(storey(other) < storey(&name), "{name} must not depend on {other}");
        }
    }
}

#[test]
fn nothing_above_depends_on_anything_below() {
    let lies_in = |path: &Path, folders: &[&str]| {
        folders.iter().any(|folder| path.strip_prefix(root()).is_ok_and(|path| path.starts_with(folder)))
    };
    let crates: Vec<_> = members().into_iter().map(|folder| (manifest(&folder), folder)).collect();
    for ((name, depends), _) in crates.iter().filter(|(_, folder)| lies_in(folder, &ABOVE)) {
        for other in depends {
            let is_below =
                crates.iter().any(|((it, _), folder)| *it == other.name && lies_in(folder, &BELOW));
            assert!(!is_below || other.is_dev, "{name} must not depend on {}", other.name);
        }
    }
    // Of tests and examples less is asked: they read pinned draws and recorded rows, and try the laws of
    // sampling.
    let modules = python_modules();
    assert!(modules.len() >= 5, "{modules:?}");
    for folder in ABOVE {
        for file in files(&root().join(folder), &[".rs", ".cu", ".cuh", ".hpp", ".h", ".py", ".js", ".ts"]) {
            let path = file.strip_prefix(root()).expect("it lies there").to_owned();
            if path.iter().any(|part| part == "tests" || part == "examples" || part == "pkg") {
                continue;
            }
            let text = fs::read_to_string(&file).expect("text");
            for below in BELOW.map(|folder| format!("{folder}/")) {
                let named = text.match_indices(&below).any(|(at, _)| {
                    !text[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_')
                });
                assert!(!named, "{} names {below}", path.display());
            }
            let imports = text.lines().filter_map(|line| {
                let mut words = line.split_whitespace();
                let is_import = matches!(words.next(), Some("import" | "from"));
                words.next().filter(|_| is_import)
            });
            for import in imports.filter(|_| path.extension().is_some_and(|end| end == "py")) {
                let of = |module: &String| import == module || import.starts_with(&format!("{module}."));
                assert!(!modules.iter().any(of), "{} imports {import}", path.display());
            }
        }
    }
}

/// Holds the architecture's table of folders to the tree.
#[test]
fn the_table_of_folders_names_what_is_there() {
    let top = fs::read_dir(root()).expect("a folder").flatten().filter(|entry| entry.path().is_dir());
    let top = top.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let top: BTreeSet<String> = top.filter(|name| !name.starts_with('.') && name != "target").collect();
    let text = fs::read_to_string(root().join("docs/architecture.md")).expect("a page");
    let table = text.lines().skip_while(|line| !line.starts_with("| folder"));
    let cells = table.take_while(|line| line.starts_with('|')).filter_map(|row| row.split('|').nth(1));
    let mut named = BTreeSet::new();
    for folder in cells.flat_map(|cell| cell.split(", ")).filter_map(|name| name.trim().strip_prefix('`')) {
        let folder = folder.trim_end_matches('`');
        assert!(root().join(folder).is_dir(), "there is no {folder}");
        named.insert(folder.split('/').next().expect("a name").to_owned());
    }
    assert_eq!(named, top, "folders in the table, and in the root");
}

/// Returns the names of the Python packages that stand beside the product's.
fn python_modules() -> Vec<String> {
    let folders = |folder: &Path| -> Vec<PathBuf> {
        let found = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        found.filter(|path| path.is_dir()).collect()
    };
    let packages = folders(&root().join("integrations"));
    let packages = packages.iter().filter(|folder| folder.join("pyproject.toml").exists());
    let inside = packages.flat_map(|folder| folders(folder));
    let modules = inside.filter(|folder| folder.join("__init__.py").exists() && !folder.ends_with("tests"));
    modules.filter_map(|folder| Some(folder.file_name()?.to_str()?.to_owned())).collect()
}

#[test]
fn crates_depend_on_what_the_table_of_folders_names() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).expect("a page");
    let row = |folder: &str| {
        let start = format!("| `{folder}` |");
        page.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no row of {folder}"))
    };
    for folder in members() {
        let path = folder.strip_prefix(root()).expect("a member lies in the root").display().to_string();
        let cell = row(&path).trim_matches('|').rsplit('|').next().expect("a cell").trim();
        let named = cell.split(", ").filter(|name| *name != "-");
        let named: BTreeSet<String> = named
            .map(|name| format!("gumball-{}", name.trim_start_matches("proof/").replace('/', "-")))
            .collect();
        let (_, depends) = manifest(&folder);
        let used = depends.into_iter().filter(|it| it.name.starts_with("gumball") && !it.is_dev);
        let used: BTreeSet<String> = used.map(|it| it.name).collect();
        assert_eq!(used, named, "what {path} depends on, and what the table of folders names");
    }
}

#[test]
fn the_driver_and_python_are_called_by_one_crate_each() {
    for (name, depends) in members().iter().map(|folder| manifest(folder)) {
        for (foreign, only) in [("cudarc", "gumball-cuda"), ("pyo3", "gumball-python")] {
            let uses = depends.iter().any(|it| it.name == foreign);
            assert_eq!(uses, name == only, "{name} and {foreign}, which is for {only}");
        }
    }
}

/// Returns the files below a folder whose names end so, build outputs left out.
fn files(folder: &Path, ends: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if path.is_dir()
            && !["target", ".git", ".venv", ".cache", "node_modules", "pkg", "build", "__pycache__"]
                .contains(&&*name)
        {
            found.extend(files(&path, ends));
        } else if ends.iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
    found
}

#[test]
fn each_peers_name_on_the_page_leads_to_the_parameter_that_it_maps_to() {
    let page = fs::read_to_string(root().join("docs/names.md")).expect("a page");
    let ours: Vec<&str> =
        gumball_spec::SamplingParams::parameters().map(|parameter| parameter.name).collect();
    let known: Vec<&str> =
        ours.iter().filter(|name| !name.contains('.')).copied().chain(["dry", "logprobs"]).collect();
    let named = |cell: &str| -> Vec<String> {
        let quoted = cell.split('`').skip(1).step_by(2);
        quoted.map(|code| code.split(['=', '(']).next().unwrap_or_default().to_owned()).collect()
    };
    let mut walked = 0;
    // From the parameters of requests on; the tables before are of functions.
    let tables = page.split_once("| vLLM's `SamplingParams` | here |").expect("the table of vLLM").1;
    for row in tables.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let is_name = |name: &String| {
            name.len() > 2 && name.bytes().all(|byte| byte == b'_' || byte.is_ascii_lowercase())
        };
        let here = named(cells[2])
            .into_iter()
            .map(|name| if name == "LogprobsParams" { "logprobs".to_owned() } else { name });
        let here: Vec<String> = here.filter(|name| known.contains(&&**name)).collect();
        for theirs in named(cells[1]).into_iter().filter(|name| is_name(name) && !known.contains(&&**name)) {
            if here.is_empty()
                || cells[1].contains("_logprobs`")
                || cells[1].contains('(')
                || cells[2].contains("gumball.")
            {
                continue;
            }
            let meant = gumball_spec::near::meant(&theirs, known.iter().copied());
            let part = meant.map(|meant| meant.split('.').next().unwrap_or(meant).to_owned());
            assert!(
                part.as_ref().is_some_and(|part| here.contains(part)),
                "{theirs}: {meant:?}, not one of {here:?}"
            );
            walked += 1;
        }
    }
    assert!(walked >= 12, "{walked} names");
}

#[test]
fn a_crate_of_the_registry_has_both_licences() {
    for folder in members() {
        let text = fs::read_to_string(folder.join("Cargo.toml")).expect("a manifest");
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            let is_there = folder.join(licence).exists();
            assert!(is_there || text.contains("publish = false"), "{} lacks {licence}", folder.display());
        }
    }
}

#[test]
fn unsafe_stays_where_it_may_be() {
    for folder in members() {
        let (name, _) = manifest(&folder);
        if MAY_BE_UNSAFE.contains(&&*name) {
            continue;
        }
        let lib = fs::read_to_string(folder.join("src/lib.rs")).expect("a library");
        assert!(lib.contains("#![forbid(unsafe_code)]"), "{name} does not forbid unsafe code");
        for file in files(&folder.join("src"), &[".rs"]) {
            let text = fs::read_to_string(&file).expect("text");
            let found = text.lines().find(|line| {
                let code = line.split("//").next().unwrap_or("");
                ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"]
                    .iter()
                    .any(|form| code.contains(form))
            });
            assert_eq!(found, None, "{}", file.display());
        }
    }
}

/// Returns the sources of the house.
fn sources(ends: &[&str]) -> Vec<PathBuf> {
    ["crates", "bindings", "proof", "apps", "integrations"]
        .iter()
        .flat_map(|folder| files(&root().join(folder), ends))
        .collect()
}

#[test]
fn workflows_run_pinned_actions_and_each_job_has_its_permissions_and_a_limit_of_time() {
    let workflows = files(&root().join(".github/workflows"), &[".yml", ".yaml"]);
    assert!(!workflows.is_empty());
    for path in workflows {
        let text = fs::read_to_string(&path).expect("a workflow");
        for line in text.lines().filter(|line| line.contains("uses:")) {
            let (_, pin) = line.split_once('@').unwrap_or_default();
            let (commit, version) = pin.split_once(" # v").unwrap_or_default();
            let is_hash = commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
            let is_version = version.split('.').filter(|part| part.parse::<u32>().is_ok()).count() == 3;
            assert!(is_hash && is_version, "{}: {line:?} wants @COMMIT # vVERSION", path.display());
        }
        let (_, jobs) = text.split_once("\njobs:\n").expect("jobs");
        let named = |line: &str| line.starts_with("  ") && !line[2..].starts_with([' ', '#']);
        for job in jobs.lines().collect::<Vec<_>>().chunk_by(|_, line| !named(line)) {
            for key in ["    permissions:", "    timeout-minutes:"] {
                let has = job.iter().any(|line| line.starts_with(key));
                assert!(
                    has || !job.iter().any(|line| named(line)),
                    "{}: {job:#?} has no{key}",
                    path.display()
                );
            }
        }
    }
}

#[test]
fn every_command_of_ci_and_every_long_part_is_run_by_a_workflow() {
    let code = |path: &Path| {
        let text = fs::read_to_string(path).expect("text");
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    let workflows: String =
        files(&root().join(".github/workflows"), &[".yml"]).iter().map(|path| code(path)).collect();
    let commands =
        fs::read_dir(root().join("ci")).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut left: Vec<PathBuf> = commands.filter(|path| path.is_file()).collect();
    let mut run = workflows.clone();
    // A command calls others.
    while let Some(place) = left.iter().position(|path| {
        let name = format!("ci/{}", path.file_name().and_then(|name| name.to_str()).expect("a name"));
        run.match_indices(&name)
            .any(|(at, _)| !run[at + name.len()..].starts_with(|next: char| next.is_alphanumeric()))
    }) {
        run += &code(&left.swap_remove(place));
    }
    assert!(left.is_empty(), "no workflow runs {left:?}");

    let long = code(&root().join("ci/long"));
    let parts = long.lines().find_map(|line| line.strip_prefix("parts=(")?.strip_suffix(')')).expect("parts");
    let (_, matrix) = workflows.split_once("part: [").expect("a matrix");
    let matrix: Vec<&str> = matrix.split(']').next().expect("an end").split(',').map(str::trim).collect();
    assert_eq!(matrix, parts.split(' ').collect::<Vec<_>>());
}

#[test]
fn what_says_how_many_first_tokens_are_listed_says_what_the_code_has() {
    let (ends, mut named) = ([".rs", ".cuh", ".cu", ".h", ".py", ".pyi", ".md"], 0);
    for file in ["crates", "bindings", "docs"].iter().flat_map(|folder| files(&root().join(folder), &ends)) {
        let text = fs::read_to_string(&file).expect("text");
        let words = text.split_whitespace().filter(|word| !["//", "///", "//!"].contains(word));
        let text = words.collect::<Vec<_>>().join(" ");
        for form in ["top-k up to ", "top-k first, up to ", "looks at up to "] {
            let numbers = text.split(form).skip(1).filter_map(|rest| rest.split([' ', ',', '.']).next());
            for number in numbers.filter_map(|number| number.parse::<usize>().ok()) {
                assert_eq!(number, gumball_spec::MOST_LISTED, "{form}{number}: {}", file.display());
                named += 1;
            }
        }
    }
    assert!(named >= 9, "{named} places");
}

#[test]
fn every_source_file_says_what_it_is_for() {
    for file in sources(&[".rs"]) {
        let text = fs::read_to_string(&file).expect("text");
        assert!(text.starts_with("//!"), "{} does not open with //!", file.display());
    }
}

/// Returns the rules that `docs/semantics.md` states, in bold: a letter, a number, and a letter if one was
/// put in between.
fn rules_of_the_page() -> BTreeSet<String> {
    let page = fs::read_to_string(root().join("docs/semantics.md")).expect("a page");
    let name = |text: &str| {
        let end = text.find(|letter: char| !letter.is_ascii_alphanumeric())?;
        let (letter, number) = text[..end].split_at_checked(1)?;
        let digits = number.trim_end_matches(|letter: char| letter.is_ascii_lowercase());
        let is_rule = "NEMFDLPSHBWR".contains(letter) && digits.parse::<u32>().is_ok();
        is_rule.then(|| text[..end].to_owned())
    };
    page.split("**").filter_map(name).collect()
}

#[test]
fn every_rule_of_the_semantics_has_a_body() {
    let rules = rules_of_the_page();
    assert!(rules.len() >= 40, "the page states {rules:?}");
    let bodies: BTreeSet<String> =
        gumball_conformance::rules::all().map(|body| body.rule.to_owned()).collect();
    let excepted: BTreeSet<String> = WITHOUT_BODY.iter().map(|(rule, _)| (*rule).to_owned()).collect();
    let without: BTreeSet<String> = rules.difference(&bodies).cloned().collect();
    assert_eq!(without, excepted, "rules without a body, and those that are excepted");
    let unstated: Vec<&String> = bodies.difference(&rules).collect();
    assert!(unstated.is_empty(), "bodies hold {unstated:?}, which docs/semantics.md does not state");
}

#[test]
fn no_two_bodies_have_one_name() {
    let mut names: Vec<_> = gumball_conformance::rules::all().map(|rule| rule.name).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// Returns the files that name a parameter by hand, each with a word of it. Its line in the table makes the
/// rest, and the changelog names it, too.
fn files_of(parameter: &Parameter) -> Vec<(&'static str, String)> {
    let Some(filter) = parameter.filter else { return files_of_others(parameter) };
    let variant = format!("Filter::{filter:?}");
    let short = filter.name().trim_end_matches("_cutoff");
    let words = short.replace('_', "-");
    let code = format!("FILTER_{}", filter.name().to_uppercase());
    let mut files = vec![
        ("docs/semantics.md", words.clone()),
        ("docs/prior-art.md", words),
        ("crates/spec/src/filter.rs", variant.clone()),
        ("crates/cpu/src/filter/mod.rs", variant.clone()),
        ("crates/cuda/device/stage/filter.cuh", code),
        ("proof/conformance/src/reference/mod.rs", variant.clone()),
        ("proof/conformance/src/rules/filter", parameter.name.to_owned()),
        ("crates/inspect/src/trace/reasons.rs", variant),
    ];
    if filter.kind().listed {
        files.push(("crates/cuda/device/stage/candidate_filter.cuh", short.to_owned()));
    }
    files
}

/// Returns the same of a parameter that switches no filter on.
fn files_of_others(parameter: &Parameter) -> Vec<(&'static str, String)> {
    let mut files = vec!["docs/parameters.md"];
    let of_stage: &[&str] = match parameter.stage {
        Stage::Edit if ["section.", "loops"].iter().any(|part| parameter.name.starts_with(part)) => &[
            "crates/spec/src/section.rs",
            "crates/cpu/src/section.rs",
            "crates/cuda/src/requests/edit_params.rs",
            "proof/conformance/src/reference/edits.rs",
            "proof/conformance/src/rules/edit",
            "proof/conformance/src/generate.rs",
        ],
        Stage::Edit => &[
            "crates/spec/src/edit.rs",
            "crates/cuda/src/requests/edit_params.rs",
            "proof/conformance/src/reference/edits.rs",
            "proof/conformance/src/rules/edit",
            "proof/conformance/src/generate.rs",
        ],
        Stage::Temperature => &[
            "crates/spec/src/filter.rs",
            "crates/cpu/src/filter",
            "crates/cuda/src/requests",
            "proof/conformance/src/rules/filter",
            "proof/conformance/src/generate.rs",
        ],
        Stage::Filter if parameter.name.starts_with("adaptive") => &[
            "crates/spec/src/adaptive.rs",
            "crates/cuda/src/requests",
            "proof/conformance/src/rules/draw",
            "proof/conformance/src/generate.rs",
        ],
        Stage::Filter => &[
            "crates/spec/src/filter.rs",
            "crates/cpu/src/filter",
            "crates/cuda/src/requests",
            "crates/cuda/device/stage/filter.cuh",
            "proof/conformance/src/rules/filter",
            "proof/conformance/src/generate.rs",
        ],
        Stage::Draw if parameter.name.starts_with("watermark") => &[
            "crates/spec/src/watermark.rs",
            "crates/cuda/src/requests/edit_params.rs",
            "crates/detect/src/lib.rs",
            "proof/conformance/src/rules/draw/marks.rs",
            "proof/conformance/src/generate.rs",
        ],
        Stage::Draw => &[
            "crates/spec/src/draw.rs",
            "crates/cpu/src/draw.rs",
            "crates/cuda/src/requests",
            "proof/conformance/src/rules/draw",
            "proof/conformance/src/generate.rs",
        ],
        Stage::Logprobs => &[
            "crates/spec/src/logprobs.rs",
            "crates/cpu/src/logprobs.rs",
            "crates/cuda/src/requests/logprob_params.rs",
            "proof/conformance/src/rules/logprobs.rs",
            "proof/conformance/src/generate.rs",
        ],
    };
    files.extend(of_stage);
    // Loops ban nothing.
    let bans = parameter.is_switch && parameter.stage == Stage::Edit && parameter.name != "loops";
    if bans && !parameter.name.contains('.') {
        files.extend(["crates/inspect/src/trace/edits.rs", "crates/inspect/src/page/explain.rs"]);
    }
    // Of the core the explorer takes numbers and flags outside parts. It has no keys, so no watermark.
    let is_flag = parameter.flag.is_some_and(|flag| flag.value.is_empty());
    let is_adopted = !parameter.name.contains('.') && (parameter.range.is_some() || is_flag);
    if !is_adopted && parameter.stage != Stage::Logprobs && !parameter.name.starts_with("watermark") {
        files.push("apps/explorer/js/parameters.js");
    }
    files.into_iter().map(|file| (file, parameter.field().to_owned())).collect()
}

#[test]
fn every_parameter_is_in_all_files_that_need_it() {
    let tables = [
        SamplingParams::TABLE,
        DynamicTemperature::TABLE,
        Mirostat::TABLE,
        Dry::TABLE,
        Section::TABLE,
        Loops::TABLE,
        Watermark::TABLE,
        LogprobsParams::TABLE,
    ];
    let mut lacking = String::new();
    for parameter in tables.concat() {
        let files = files_of(&parameter).into_iter().filter(|(path, word)| !says(&root().join(path), word));
        let files: Vec<_> = files.map(|(path, _)| path).collect();
        if !files.is_empty() {
            lacking += &format!("\n{} is missing in {}", parameter.name, files.join(", "));
        }
    }
    assert!(lacking.is_empty(), "{lacking}");
}

/// Returns whether a file, or a file of a folder, has a word, alone or as the last part of a name.
fn says(path: &Path, word: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    let files = if path.is_dir() { files(path, &[".rs"]) } else { vec![path.to_owned()] };
    files.iter().any(|file| {
        let text = fs::read_to_string(file).expect("a file of the repository").to_lowercase();
        let word = word.to_lowercase();
        let stands_alone = |at: usize| {
            !text[..at].ends_with(char::is_alphanumeric) && !text[at + word.len()..].starts_with(is_part)
        };
        text.match_indices(&word).any(|(at, _)| stands_alone(at))
    })
}
