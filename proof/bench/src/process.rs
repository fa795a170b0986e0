//! A running engine, as the runner sees it: a program that answers lines in time.
//!
//! Every library that might take more threads is told to take one: the times are times of one thread.
//! An engine that dies or stays silent is an error of that engine, never of the run.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use gumball_bench_protocol::{Definition, Identity, Parameters, Reply, Request};

use crate::rivals::Program;
use crate::staging::RowsFile;

/// How long an engine may think about one line.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long an engine may take to end once its input has.
const GRACE: Duration = Duration::from_secs(2);

/// The variables that the libraries of engines read their thread count from.
const THREADS: [&str; 4] =
    ["RAYON_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"];

/// An engine that has said hello.
#[derive(Debug)]
pub struct Running {
    /// Who it says it is.
    pub identity: Identity,
    child: Child,
    input: Option<ChildStdin>,
    replies: Receiver<io::Result<String>>,
}

/// One sample of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The time of a call, in nanoseconds.
    pub ns_per_row: f64,
    /// The row of the last call.
    pub row: usize,
    /// The token of the last call.
    pub token: i64,
}

impl Running {
    /// Starts an engine and waits for its hello.
    ///
    /// # Errors
    /// What starting gives, or a first line that is no hello.
    pub fn start(program: &Program) -> io::Result<Self> {
        let (name, arguments) = program.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(name);
        command.args(arguments).envs(THREADS.map(|variable| (variable, "1")));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take();
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let (sender, replies) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let identity = Identity { engine: program.name.clone(), version: String::new() };
        let mut running = Self { identity, child, input, replies };
        match running.hear()? {
            Reply::Hello(identity) => running.identity = identity,
            other => return Err(unexpected(&other)),
        }
        Ok(running)
    }

    /// Asks the engine to get ready; returns what a call does, or why there are none.
    ///
    /// # Errors
    /// If the engine is gone, silent, or talks about something else.
    pub fn prepare(
        &mut self,
        definition: &Definition,
        parameters: &Parameters,
        rows: &RowsFile,
    ) -> io::Result<Result<String, String>> {
        let request = Request::Prepare {
            definition: *definition,
            parameters: parameters.clone(),
            rows_file: rows.path.to_string_lossy().into_owned(),
            row_count: rows.row_count,
        };
        match self.ask(&request)? {
            Reply::Ready { does } => Ok(Ok(does)),
            Reply::Skip { reason } => Ok(Err(reason)),
            other => Err(unexpected(&other)),
        }
    }

    /// Takes a sample.
    ///
    /// # Errors
    /// If the engine is gone, silent, or talks about something else.
    pub fn sample(&mut self, row: usize, min_ns: u64) -> io::Result<Sample> {
        match self.ask(&Request::Sample { row, min_ns })? {
            Reply::Sample { ns_per_row, row, token, .. } => Ok(Sample { ns_per_row, row, token }),
            other => Err(unexpected(&other)),
        }
    }

    fn ask(&mut self, request: &Request) -> io::Result<Reply> {
        let input = self.input.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        input.write_all((serde_json::to_string(request)? + "\n").as_bytes())?;
        input.flush()?;
        self.hear()
    }

    fn hear(&mut self) -> io::Result<Reply> {
        match self.replies.recv_timeout(PATIENCE) {
            Ok(line) => Ok(serde_json::from_str(&line?)?),
            Err(RecvTimeoutError::Timeout) => Err(io::ErrorKind::TimedOut.into()),
            Err(RecvTimeoutError::Disconnected) => Err(io::Error::other("it ended without an answer")),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The end of its input lets an engine go; one that is busy is not waited for.
        self.input = None;
        if !matches!(self.replies.recv_timeout(GRACE), Err(RecvTimeoutError::Disconnected)) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

fn unexpected(reply: &Reply) -> io::Error {
    io::Error::other(format!("unexpected reply {reply:?}"))
}
