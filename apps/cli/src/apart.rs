//! What the command does in processes of its own, so that it can be bounded, and ended with the command.
//!
//! The command starts itself again, with a first argument that no person would type ([`answer`]):
//!
//! - A chat template runs where memory and processor time have limits: a program from a file may double a text forty times,
//!   and memory that is refused ends a process.
//! - Pip runs beside a guard that ends it, with all it started, once the command is gone, however that came
//!   about: the guard's standard input is a pipe from the command, and the system closes it.
//!
//! Nothing of this is at work in a program that uses the library, or where no process can be started: then a
//! template runs in the program itself, and pip is the program's own child.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::model::{ChatTemplate, Message};

/// The first arguments by which the command knows that it was started by itself.
const RENDER: &str = "__render-template";
#[cfg(unix)]
const GUARD: &str = "__guard";

/// The memory and the processor time of a template.
#[cfg(unix)]
const MEMORY_BYTES: u64 = 1 << 30;
#[cfg(unix)]
const SECONDS: u64 = 10;
/// The longest answer: a template's longest text, escaped as JSON has it.
const LONGEST_ANSWER_BYTES: u64 = 128 << 20;

/// The exit code of a guard that did not find its program, as shells have it.
#[cfg(unix)]
pub(crate) const NOT_FOUND: i32 = 127;

/// The program to start; none in programs that are not the command.
static COMMAND: OnceLock<PathBuf> = OnceLock::new();

/// A template and what it is to write.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Template {
    pub template: ChatTemplate,
    pub messages: Vec<Message>,
    pub add_generation_prompt: bool,
}

/// Does what the command was started for by itself; none if a person or a program started it.
///
/// From then on the command may start itself.
#[must_use]
pub fn answer() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    match first.as_deref().and_then(|first| first.to_str()) {
        Some(RENDER) => return Some(answer_template()),
        #[cfg(unix)]
        Some(GUARD) => return Some(guard::run(arguments.collect())),
        _ => {}
    }
    if let Ok(path) = std::env::current_exe() {
        let _ = COMMAND.set(path);
    }
    None
}

/// Starts the command again in this process with a variable set; returns where that cannot be done.
pub(crate) fn begin_again(variable: &str, value: &str) {
    #[cfg(unix)]
    if let Some(path) = COMMAND.get() {
        use std::os::unix::process::CommandExt;
        let _ = Command::new(path).args(std::env::args_os().skip(1)).env(variable, value).exec();
    }
    #[cfg(not(unix))]
    let _ = (variable, value);
}

/// Runs a template in a process of its own; none where there can be none.
pub(crate) fn render(task: &Template) -> Option<Result<String, String>> {
    let mut command = Command::new(COMMAND.get()?);
    command.arg(RENDER).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let asked = serde_json::to_vec(task).expect("plain data");
    // Whoever reads no further has ended, and says why by ending.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(&asked));
    let mut answer = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        let _ = stdout.take(LONGEST_ANSWER_BYTES).read_to_end(&mut answer);
    }
    let _ = child.wait();
    Some(serde_json::from_slice(&answer).unwrap_or_else(|_| Err(too_much())))
}

#[cfg(unix)]
fn too_much() -> String {
    format!("it takes more than {MEMORY_BYTES} bytes of memory or {SECONDS} seconds")
}

#[cfg(not(unix))]
fn too_much() -> String {
    "it made its interpreter end".to_owned()
}

fn answer_template() -> ExitCode {
    #[cfg(unix)]
    limit();
    let mut asked = Vec::new();
    let read = std::io::stdin().read_to_end(&mut asked).ok();
    let Some(task) = read.and_then(|_| serde_json::from_slice::<Template>(&asked).ok()) else {
        return ExitCode::FAILURE;
    };
    let rendered = task.template.render_here(&task.messages, task.add_generation_prompt);
    let rendered = rendered.map_err(|error| match error {
        crate::model::Error::Template(reason) => reason,
        error => error.to_string(),
    });
    let written = serde_json::to_writer(std::io::stdout(), &rendered);
    if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Bounds this process. A system that refuses leaves the bounds on steps and output.
#[cfg(unix)]
fn limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    for (resource, most) in [(Resource::As, MEMORY_BYTES), (Resource::Cpu, SECONDS), (Resource::Core, 0)] {
        let most = getrlimit(resource).maximum.map_or(most, |already| already.min(most));
        let _ = setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
    }
}

/// Makes a command that ends with this process: behind a guard, where there can be one.
pub(crate) fn guarded(program: &OsString) -> Command {
    #[cfg(unix)]
    if let Some(path) = COMMAND.get() {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(path);
        // In a group of its own, so that Ctrl-C reaches the command first.
        command.arg(GUARD).arg(program).stdin(Stdio::piped()).process_group(0);
        return command;
    }
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

#[cfg(unix)]
mod guard {
    use std::os::unix::process::CommandExt;
    use std::process::exit;

    use rustix::process::{Pid, Signal, kill_process_group};

    use super::*;

    /// Runs a program until it ends, or until standard input does, with which it is ended.
    pub(super) fn run(mut arguments: Vec<OsString>) -> ExitCode {
        if arguments.is_empty() {
            return ExitCode::FAILURE;
        }
        let mut command = Command::new(arguments.remove(0));
        command.args(arguments).stdin(Stdio::null()).process_group(0);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                crate::output::say(format_args!("ERROR: {error}"));
                let not_found = error.kind() == std::io::ErrorKind::NotFound;
                exit(if not_found { NOT_FOUND } else { NOT_FOUND - 1 });
            }
        };
        let group = Pid::from_child(&child);
        let watch = move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            let _ = kill_process_group(group, Signal::KILL);
            exit(1);
        };
        // Without a thread the program runs unguarded, as it would without a guard.
        let _ = std::thread::Builder::new().spawn(watch);
        let status = child.wait();
        exit(status.ok().and_then(|status| status.code()).unwrap_or(1));
    }
}
