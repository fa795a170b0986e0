//! The package as its users get it: a wheel that pip builds, in a clean virtual environment, and its tests
//! there; then the tests of gumball-compat, and the laws of sampling.
//!
//! `cargo test` needs Python 3.10 or newer with `venv`, and pip a registry; where one of them is missing,
//! this says so and is skipped. `GUMBALL_TEST_PYTHON` names another interpreter. Tests of what other packages
//! import are skipped without these: `GUMBALL_TEST_PACKAGES` names some to install besides
//! (`torch transformers`), `GUMBALL_TEST_BESIDE` the folder of an environment that has them
//! (`ci/plugin engines` makes one). With `GUMBALL_TEST_SLOW` set, the slow ones run too. `GUMBALL_TEST_CARGO`
//! is what maturin calls for cargo (`ci/lib/workspace-cargo`).

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gumball_bench_protocol::skipped::skip;

/// What building and testing takes.
const TOOLS: [&str; 6] = ["maturin>=1.9.4,<2", "hatchling>=1.27", "numpy", "ml_dtypes", "pytest", "mypy"];

/// The oldest Python that the package runs on.
const OLDEST: &str = "import sys; sys.exit(sys.version_info < (3, 10))";

/// Returns whether a command ends well; says what was wrong if not.
fn succeeds(command: &mut Command) -> bool {
    match command.stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            println!("{command:?}\n{}{}", text(&output.stdout), text(&output.stderr));
            false
        }
        Err(error) => {
            println!("{command:?}: {error}");
            false
        }
    }
}

/// Makes a clean environment with the tools in it; none where that is not possible.
fn environment(folder: &Path) -> Option<PathBuf> {
    let python = env::var_os("GUMBALL_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    if !succeeds(Command::new(&python).args(["-c", OLDEST])) {
        skip("there is no Python 3.10 or newer");
        return None;
    }
    if !succeeds(Command::new(&python).args(["-m", "venv", "--clear"]).arg(folder)) {
        skip("Python has no venv");
        return None;
    }
    let python = folder.join("bin").join("python");
    if let Some(beside) = env::var_os("GUMBALL_TEST_BESIDE") {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ci/lib/beside.py");
        assert!(
            succeeds(Command::new(&python).arg(script).arg(beside)),
            "GUMBALL_TEST_BESIDE names no environment"
        );
    }
    let besides = env::var("GUMBALL_TEST_PACKAGES").unwrap_or_default();
    let packages = TOOLS.into_iter().chain(besides.split_whitespace());
    if !succeeds(pip(&python).arg("install").args(packages)) {
        skip(format_args!("pip cannot install {TOOLS:?}"));
        return None;
    }
    Some(python)
}

fn pip(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]);
    command
}

#[test]
fn the_wheel_passes_its_tests() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let integrations = here.join("../../integrations");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    let Some(python) = environment(&folder.join("environment")) else { return };

    // The profile is that of `cargo test`, whose builds are taken over; the emulator stands in for a GPU.
    let environments =
        [Some(folder.join("environment")), env::var_os("GUMBALL_TEST_BESIDE").map(PathBuf::from)];
    let mut path: Vec<_> = environments.into_iter().flatten().map(|folder| folder.join("bin")).collect();
    path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let mut install = pip(&python);
    install.args(["install", "--no-build-isolation", "--no-deps", "--force-reinstall"]).arg(here);
    install.arg(integrations.join("compat"));
    install
        .env("MATURIN_PEP517_ARGS", "--profile dev --features emulator")
        // To compile kernels takes minutes. Without a compiler the package is built without them.
        .env("GUMBALL_NVRTC", "/none/libnvrtc.so")
        .env("PATH", env::join_paths(path).expect("paths"));
    // Cargo set CARGO of this process to itself.
    if let Some(cargo) = env::var_os("GUMBALL_TEST_CARGO") {
        install.env("CARGO", cargo);
    }
    assert!(succeeds(&mut install), "pip install . fails");

    // In two processes, where the environment beside has what pytest takes for that.
    let in_two = succeeds(Command::new(&python).args(["-c", "import xdist"]));
    let processes: &[&str] = if in_two { &["-n", "2"] } else { &[] };
    let slow: &[&str] =
        if env::var_os("GUMBALL_TEST_SLOW").is_some() { &["-s", "-m", "slow or not slow"] } else { &[] };
    let compiled = env::var_os("PYTHONPYCACHEPREFIX").unwrap_or_else(|| folder.join("pycache").into());
    // The laws lie on the path, since they are no part of a wheel.
    let laws = integrations.join("laws");
    let mut path = vec![laws.clone()];
    path.extend(env::split_paths(&env::var_os("PYTHONPATH").unwrap_or_default()));
    let path = env::join_paths(path).expect("paths");
    for (package, options, fault) in [
        (here, slow, "the package's own tests fail"),
        (&integrations.join("compat"), &[], "the tests of gumball-compat fail"),
        (&laws, slow, "Gumball breaks a law of sampling, or a law does not notice a fault"),
    ] {
        // Elsewhere than beside the sources, so that the packages are the installed ones.
        let mut tests = Command::new(&python);
        tests
            .args(["-m", "pytest", "-ra", "--durations=3", "--rootdir"])
            .arg(package)
            .arg(package.join("tests"));
        tests.args(processes).args(options).current_dir(&folder);
        tests.env("PYTHONPYCACHEPREFIX", &compiled).env_remove("PYTHONDONTWRITEBYTECODE");
        tests.env("PYTHONPATH", &path);
        let status = tests.stdin(Stdio::null()).status().expect("it was just there");
        assert!(status.success(), "{fault}");
    }
}
