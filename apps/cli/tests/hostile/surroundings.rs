//! Surroundings that work against the command: no threads, no standard error, odd variables, and its own
//! sudden end.

use std::process::{Command, Stdio};

use crate::support::Files;
use crate::tiny;
use crate::zeros;
use gumball_bench_protocol::skipped::skip;

fn gumball() -> Command {
    Command::new(env!("CARGO_BIN_EXE_gumball"))
}

#[test]
fn a_level_that_is_no_text_is_refused_and_an_empty_one_is_none() {
    let sample = |level: &std::ffi::OsStr| {
        let args = ["sample", "--kind", "flat", "--vocab", "4", "--seed", "1"];
        gumball().args(args).env("GUMBALL_LEVEL", level).output().expect("the command starts")
    };
    assert!(sample("".as_ref()).status.success());
    #[cfg(unix)]
    {
        let output = sample(std::os::unix::ffi::OsStrExt::from_bytes(b"\xffmmx"));
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("is not known; known are: scalar"));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn standard_error_that_cannot_be_written_changes_nothing() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").expect("Linux has it");
    let status = gumball().args(["sample", "nowhere.npy"]).stderr(full()).status().expect("it starts");
    assert_eq!(status.code(), Some(2));
    let files = Files::new();
    let model = files.write("m.gguf", &zeros::model(&tiny::metadata(&["a"])));
    let args = ["generate", "a", "--no-chat", "--model", &model, "--max-tokens", "2"];
    let output = gumball().args(args).stderr(full()).output().expect("it starts");
    assert!(output.status.success());
}

#[cfg(unix)]
#[test]
fn the_doctor_reports_a_cache_whose_path_is_no_text() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join(std::ffi::OsStr::from_bytes(b"\xff cache"));
    let doctor = |cache: &std::path::Path| {
        let output =
            gumball().args(["doctor", "--json"]).env("GUMBALL_CACHE", cache).output().expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("a report")
    };
    let report = doctor(&cache);
    assert!(report["cuda"]["cache"].as_str().unwrap().ends_with("\u{fffd} cache/kernels"), "{report}");

    let report = doctor("relative".as_ref());
    assert!(report["cuda"]["cache"].is_null(), "{report}");
    assert!(report["model"]["Err"].as_str().unwrap().contains("must be an absolute path"), "{report}");

    let shared = folder.path().join("shared/kernels");
    std::fs::create_dir_all(&shared).unwrap();
    std::fs::set_permissions(&shared, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let report = doctor(&folder.path().join("shared"));
    assert!(report["cuda"]["cache_trouble"].as_str().unwrap().contains("others can write to it"), "{report}");
}

/// Puts such files into the folder that a command is started in, which must neither run, load nor show them.
#[cfg(target_os = "linux")]
#[test]
fn nothing_that_lies_in_the_current_folder_is_run_loaded_or_shown() {
    use std::os::unix::fs::PermissionsExt;
    let files = Files::new();
    let ran = files.name("ran");
    for program in ["python3", "python", "pip", "xdg-open"] {
        let program = files.write(program, format!("#!/bin/sh\ntouch {ran}\n").as_bytes());
        std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    for module in ["pip", "json", "sitecustomize", "usercustomize"] {
        files.write(&format!("{module}.py"), format!("open({ran:?}, 'w')\n").as_bytes());
    }
    let source = files.write(
        "ran.c",
        format!("#include <fcntl.h>\n__attribute__((constructor)) static void run(void) {{ creat({ran:?}, 0600); }}")
            .as_bytes(),
    );
    let libraries = ["libcuda.so", "libcuda.so.1", "libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"];
    for library in libraries.into_iter().chain(["libnvrtc-builtins.so.13.0", "libnccl.so", "libnccl.so.2"]) {
        let library = files.name(library);
        let made = Command::new("cc").args(["-shared", "-fPIC", "-o", &library, &source]).status();
        if !made.is_ok_and(|made| made.success()) {
            return skip("there is no C compiler");
        }
    }
    std::fs::create_dir_all(files.path("target/explorer")).unwrap();
    files.write("target/explorer/index.html", b"<p>not ours</p>");
    let run = |args: &[&str], variables: &[(&str, &str)]| {
        let mut command = gumball();
        command.args(args).current_dir(files.path("")).env_remove("LD_LIBRARY_PATH").env("PIP_NO_INDEX", "1");
        let output = command.envs(variables.iter().copied()).output().expect("it starts");
        assert!(!files.path("ran").exists(), "gumball {args:?} with {variables:?}");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let path = format!(":.:{}", std::env::var("PATH").unwrap_or_default());
    let told = run(&["generate", "hi"], &[("GUMBALL_CACHE", &files.name("none")), ("PATH", &path)]);
    assert!(told.contains("pip"), "{told}");
    assert!(run(&["explore"], &[]).contains("brings no page"));
    for variable in ["GUMBALL_NVRTC", "GUMBALL_NCCL", "GUMBALL_KERNELS"] {
        run(&["doctor"], &[(variable, "")]);
        run(&["doctor"], &[(variable, ".")]);
    }
    let told = run(&["doctor"], &[("GUMBALL_NVRTC", "./libnvrtc.so")]);
    assert!(told.contains("GUMBALL_NVRTC is ./libnvrtc.so, but must be an absolute path"), "{told}");
}

#[cfg(target_os = "linux")]
#[test]
fn where_no_thread_can_be_started_the_command_does_its_work_alone() {
    use std::os::unix::process::CommandExt;
    let files = Files::new();
    let model = files.write("m.gguf", &zeros::model(&tiny::metadata(&["a", "b", "ab"])));
    let limited = |args: &[&str]| {
        let mut command = Command::new("bash");
        command.args(["-c", "ulimit -u 1 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_gumball")]).args(args);
        if rustix::process::geteuid().is_root() {
            // No limit holds root; another user, who may not see the files, does as well.
            command.uid(65_534).gid(65_534);
        }
        command.output().ok()
    };
    if limited(&["--version"]).is_none_or(|output| !output.status.success()) {
        return skip("another user cannot start the command here");
    }
    let check =
        limited(&["check", "--kind", "flat", "--vocab", "64", "--draws", "100", "--top-k", "5"]).unwrap();
    assert!(check.status.success(), "{}", String::from_utf8_lossy(&check.stderr));
    let args = ["generate", "ab", "--no-chat", "--max-tokens", "3", "--seed", "1", "--model", &model];
    std::fs::set_permissions(files.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let alone = limited(&args).unwrap();
    assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
    assert_eq!(alone.stdout, gumball().args(args).output().unwrap().stdout, "threads change no text");
}

#[cfg(target_os = "linux")]
#[test]
fn pip_ends_with_the_command_however_that_ends() {
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};
    let lives = |id: &str| {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
        !status.is_empty() && !status.contains(") Z ")
    };
    for signal in ["TERM", "HUP", "INT", "KILL"] {
        let folder = tempfile::tempdir().unwrap();
        let ids = folder.path().join("ids");
        let python = folder.path().join("python3");
        // Pip, and the program that it starts.
        let script = format!(
            "#!/bin/sh\nsleep 60 &\necho $! > {0}.new\necho $$ >> {0}.new\nmv {0}.new {0}\nwait\n",
            ids.display()
        );
        std::fs::write(&python, script).unwrap();
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
        // Tests that run in the background may have been started with some signals ignored.
        let mut child = Command::new("env")
            .arg("--default-signal=HUP,INT,TERM")
            .args([env!("CARGO_BIN_EXE_gumball"), "generate", "hi"])
            .env("PATH", path)
            .env("GUMBALL_CACHE", folder.path().join("cache"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command starts");
        let soon = Instant::now() + Duration::from_secs(30);
        while !ids.exists() && Instant::now() < soon {
            std::thread::sleep(Duration::from_millis(20));
        }
        let ids: Vec<String> =
            std::fs::read_to_string(&ids).expect("pip runs").lines().map(str::to_owned).collect();
        assert!(ids.len() == 2 && ids.iter().all(|id| lives(id)), "{ids:?}");
        let id = child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap().success());
        child.wait().unwrap();
        let soon = Instant::now() + Duration::from_secs(10);
        while ids.iter().any(|id| lives(id)) && Instant::now() < soon {
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!ids.iter().any(|id| lives(id)), "{signal}: {ids:?} are left at work");
    }
}
