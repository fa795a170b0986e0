//! Work in processes of its own, which have bounds and end when the command ends.
//!
//! The command starts itself again, with a first argument that no person would type ([`answer`]):
//!
//! - A chat template runs, and a grammar is compiled and followed, where memory and processor time have
//!   limits (`Apart`): a program from a file may double a text forty times, a grammar nest deeper than the
//!   stack of its engine, and either ends a process.
//! - Pip runs beside a guard that ends it, with all it started, once the command is gone, however that came
//!   about: the guard's standard input is a pipe from the command, and the system closes it.
//!
//! Nothing of this is at work in a program that uses the library, or where no process can be started: then
//! templates and grammars run in the program itself, and pip is the program's own child.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The first argument by which the command knows that it was started by itself as a guard.
#[cfg(unix)]
const GUARD: &str = "__guard";

/// The memory of a process that answers, and its processor time for an answer.
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

/// A task that the command does in a process of its own: the first argument of that process, which names the
/// task, and the function that reads the process' standard input and writes the answer.
pub type Work = (&'static str, fn() -> ExitCode);

/// Does what the command was started for by itself, one of `works` or a guard; none if a person or a program
/// started it.
///
/// From then on the command may start itself.
#[must_use]
pub fn answer(works: &[Work]) -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let first = arguments.next();
    let first = first.as_deref().and_then(|first| first.to_str());
    #[cfg(unix)]
    if first == Some(GUARD) {
        return Some(guard::run(arguments.collect()));
    }
    if let Some((_, work)) = works.iter().find(|(name, _)| Some(*name) == first) {
        return Some(work());
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

/// A process of the command's own that answers questions, a line of JSON each, within bounds of memory and
/// time.
#[derive(Debug)]
pub(crate) struct Apart {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Apart {
    /// Starts a process that does a work; none where there can be none.
    pub(crate) fn start((first, _): Work) -> Option<Self> {
        let mut command = Command::new(COMMAND.get()?);
        command.arg(first).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // In a group of its own: Ctrl-C ends the command, and with it this process.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().ok()?;
        let answers = BufReader::new(child.stdout.take()?);
        Some(Self { child, answers })
    }

    /// Asks a question and waits for the answer.
    ///
    /// # Errors
    /// The error in the answer, or the bound that the process met.
    pub(crate) fn ask<A: DeserializeOwned>(&mut self, question: &impl Serialize) -> Result<A, String> {
        let mut line = serde_json::to_vec(question).expect("plain data");
        line.push(b'\n');
        // A process that reads no further has ended, and how it ended says why.
        let _ = self.child.stdin.as_mut().map(|stdin| stdin.write_all(&line));
        line.clear();
        let _ = self.answers.by_ref().take(LONGEST_ANSWER_BYTES).read_until(b'\n', &mut line);
        serde_json::from_slice(&line).unwrap_or_else(|_| {
            let _ = self.child.kill();
            Err(too_much(self.child.wait().ok()))
        })
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Says which bound a process met that ended without an answer.
#[cfg(unix)]
fn too_much(status: Option<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt;
    let signal = status.and_then(|status| status.signal());
    if signal == Some(rustix::process::Signal::XCPU.as_raw()) {
        return format!("it takes more than {SECONDS} seconds");
    }
    format!("it takes more than {MEMORY_BYTES} bytes of memory, or nests deeper than can be followed")
}

#[cfg(not(unix))]
fn too_much(_: Option<ExitStatus>) -> String {
    "it made the process end that was to follow it".to_owned()
}

/// Answers the questions of standard input until it ends.
pub(crate) fn answer_all<Q: DeserializeOwned, A: Serialize>(mut answer: impl FnMut(Q) -> A) -> ExitCode {
    let mut spent = Duration::ZERO;
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        limit(spent);
        let begun = std::time::Instant::now();
        let Some(question) = line.ok().and_then(|line| serde_json::from_str(&line).ok()) else {
            return ExitCode::FAILURE;
        };
        let mut answer = serde_json::to_vec(&answer(question)).expect("plain data");
        answer.push(b'\n');
        if out.write_all(&answer).and_then(|()| out.flush()).is_err() {
            return ExitCode::FAILURE;
        }
        spent += begun.elapsed();
    }
    ExitCode::SUCCESS
}

/// Bounds this process for its next answer; `spent`: the time that its answers took, of which it has used the
/// processor for no more. A system that refuses leaves the bounds that templates and grammars have of their
/// own.
#[cfg(unix)]
fn limit(spent: Duration) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // The start of the process is part of the second that is rounded up.
    let seconds = spent.as_secs() + 1 + SECONDS;
    for (resource, most) in [(Resource::As, MEMORY_BYTES), (Resource::Cpu, seconds), (Resource::Core, 0)] {
        let maximum = getrlimit(resource).maximum;
        let most = maximum.map_or(most, |already| already.min(most));
        let _ = setrlimit(resource, Rlimit { current: Some(most), maximum });
    }
}

#[cfg(not(unix))]
fn limit(_spent: Duration) {}

/// Makes a command that ends with this process: a guard starts it, on systems that have one.
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
