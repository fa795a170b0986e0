//! The engine's side: answer the runner's lines, and time the calls it asks for.
//!
//! A sample fills the time asked for with batches of calls, each half a millisecond long or a single
//! call, and is the median of their means: a batch that the system interrupts does not count. Calls
//! that are not timed come first: they bring row, code and tables into cache after another engine
//! has had the processor, and tell how many calls make a batch.

use std::hint::black_box;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::{Definition, Identity, Parameters, Reply, Request, Residence, Rows};

/// How long a batch of calls lasts: long against the clock's cost, short against a time slice.
const BATCH: Duration = Duration::from_micros(500);

/// From the number of a row to its token: the call that is timed.
pub type Draw = Box<dyn FnMut(usize) -> i64>;

/// An engine that is ready for a definition.
pub struct Prepared {
    /// What exactly a call does, in a few words.
    pub does: String,
    /// The call.
    pub draw: Draw,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Prepared({})", self.does)
    }
}

/// A way from a row of logits to a token.
pub trait Engine {
    /// Who this is.
    fn identity(&self) -> Identity;

    /// Gets ready for a definition: everything that a caller would do once, not once a token.
    ///
    /// # Errors
    /// The reason why this engine cannot do it; the runner records it and goes on.
    fn prepare(
        &mut self,
        definition: &Definition,
        parameters: &Parameters,
        rows: Rc<Rows>,
    ) -> Result<Prepared, String>;
}

/// Speaks for an engine on standard input and output, until the input ends.
///
/// # Errors
/// A broken pipe, a line that is no [`Request`], or a sample asked for before anything is ready.
pub fn serve(engine: &mut dyn Engine) -> io::Result<()> {
    converse(engine, io::stdin().lock(), io::stdout().lock())
}

fn converse(engine: &mut dyn Engine, input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let mut current: Option<Measured> = None;
    say(&mut output, &Reply::Hello(engine.identity()))?;
    for line in input.lines() {
        let reply = match serde_json::from_str(&line?)? {
            Request::Prepare { definition, parameters, rows_file, row_count } => {
                drop(current.take());
                let rows = Rows::read(Path::new(&rows_file), definition.vocab, definition.dtype, row_count)?;
                match engine.prepare(&definition, &parameters, Rc::new(rows)) {
                    Ok(Prepared { does, draw }) => {
                        current =
                            Some(Measured { residence: definition.residence, row_count, next: 0, draw });
                        Reply::Ready { does }
                    }
                    Err(reason) => Reply::Skip { reason },
                }
            }
            Request::Sample { row, min_ns } => {
                let measured =
                    current.as_mut().ok_or_else(|| io::Error::other("a sample before any ready"))?;
                measured.sample(row, Duration::from_nanos(min_ns))
            }
        };
        say(&mut output, &reply)?;
    }
    Ok(())
}

fn say(output: &mut impl Write, reply: &Reply) -> io::Result<()> {
    serde_json::to_writer(&mut *output, reply)?;
    output.write_all(b"\n")?;
    output.flush()
}

struct Measured {
    residence: Residence,
    row_count: usize,
    /// Where a stream goes on.
    next: usize,
    draw: Draw,
}

impl Measured {
    fn sample(&mut self, row: usize, min: Duration) -> Reply {
        if self.residence == Residence::Cache {
            self.next = row;
        }
        let (mut warm_calls, warm_start) = (0, Instant::now());
        while warm_calls == 0 || warm_start.elapsed() < min / 4 {
            self.call();
            warm_calls += 1;
        }
        let estimate = warm_start.elapsed().as_secs_f64() / f64::from(warm_calls);
        let batch_calls = (BATCH.as_secs_f64() / estimate.max(1e-9)).ceil().max(1.0) as u64;
        let (mut last, mut means, start) = ((0, 0), Vec::new(), Instant::now());
        while means.is_empty() || start.elapsed() < min {
            let batch_start = Instant::now();
            for _ in 0..batch_calls {
                last = self.call();
            }
            means.push(batch_start.elapsed().as_nanos() as f64 / batch_calls as f64);
        }
        let calls = batch_calls * means.len() as u64;
        Reply::Sample { ns_per_row: median(means), calls, row: last.0, token: last.1 }
    }

    fn call(&mut self) -> (usize, i64) {
        let row = self.next;
        let token = black_box((self.draw)(black_box(row)));
        if self.residence == Residence::Dram {
            self.next = (row + 1) % self.row_count;
        }
        (row, token)
    }
}

fn median(mut means: Vec<f64>) -> f64 {
    means.sort_unstable_by(f64::total_cmp);
    (means[means.len() / 2] + means[(means.len() - 1) / 2]) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, RowKind, Task};

    /// Answers each row with its first logit.
    struct First;

    impl Engine for First {
        fn identity(&self) -> Identity {
            Identity { engine: "first".into(), version: "1".into() }
        }

        fn prepare(
            &mut self,
            definition: &Definition,
            _parameters: &Parameters,
            rows: Rc<Rows>,
        ) -> Result<Prepared, String> {
            if definition.task != Task::Greedy {
                return Err("greedy only".into());
            }
            let draw = move |row| match rows.row(row) {
                crate::Row::F32(logits) => logits[0] as i64,
                crate::Row::Bf16(_) => -1,
            };
            Ok(Prepared { does: "reads one logit".into(), draw: Box::new(draw) })
        }
    }

    fn talk(residence: Residence, task: Task, samples: usize) -> Vec<Reply> {
        let path = std::env::temp_dir()
            .join(format!("gumball-bench-serve-{}-{residence}-{task}", std::process::id()));
        std::fs::write(&path, bytemuck::cast_slice(&[10.0f32, 0.0, 20.0, 0.0, 30.0, 0.0])).unwrap();
        let definition = Definition { vocab: 2, dtype: Dtype::F32, rows: RowKind::Model, residence, task };
        let prepare = Request::Prepare {
            definition,
            parameters: Parameters::of(task, 2),
            rows_file: path.to_str().unwrap().into(),
            row_count: 3,
        };
        let mut input = serde_json::to_string(&prepare).unwrap() + "\n";
        for row in 0..samples {
            input += &(serde_json::to_string(&Request::Sample { row, min_ns: 1000 }).unwrap() + "\n");
        }
        let mut output = Vec::new();
        converse(&mut First, input.as_bytes(), &mut output).unwrap();
        std::fs::remove_file(path).unwrap();
        output
            .split(|&b| b == b'\n')
            .filter(|l| !l.is_empty())
            .map(|l| serde_json::from_slice(l).unwrap())
            .collect()
    }

    #[test]
    fn a_row_in_cache_is_the_row_asked_for() {
        let replies = talk(Residence::Cache, Task::Greedy, 3);
        assert_eq!(replies.len(), 5);
        for (asked, reply) in replies[2..].iter().enumerate() {
            let Reply::Sample { calls, row, token, .. } = reply else { panic!("{reply:?}") };
            assert!(*calls > 0);
            assert_eq!((*row, *token), (asked, 10 * (asked as i64 + 1)));
        }
    }

    #[test]
    fn a_stream_walks_all_rows() {
        let replies = talk(Residence::Dram, Task::Greedy, 2);
        for reply in &replies[2..] {
            let Reply::Sample { row, token, .. } = reply else { panic!("{reply:?}") };
            assert_eq!(*token, 10 * (*row as i64 + 1));
        }
    }

    #[test]
    fn what_an_engine_cannot_do_is_skipped_with_its_reason() {
        let replies = talk(Residence::Cache, Task::TopP, 0);
        assert_eq!(replies[1], Reply::Skip { reason: "greedy only".into() });
    }
}
