//! Draws tokens and times nothing, for tools that count: `draw ENGINE VOCAB DTYPE ROWS TASK TOKENS`, as in
//! `draw gumball 151936 f32 model top-p 16`.
//!
//! `gumball-bench list` lists the engines and definitions. Tokens are drawn from eight rows in turn. All
//! that comes before the first token is the same for any number of tokens, so the difference of two counts is
//! the count of the further tokens.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::rc::Rc;

use gumball_bench::engines;
use gumball_bench::staging::Staging;
use gumball_bench_protocol::{Definition, Dtype, Parameters, Residence, RowKind, Rows, Task};

/// How many rows there are.
const ROWS: usize = 8;

const USAGE: &str = "usage: draw ENGINE VOCAB DTYPE ROWS TASK TOKENS";

/// Returns the one of some values that has a name.
fn named<T: ToString + Copy>(all: &[T], name: &str) -> Result<T, String> {
    let names: Vec<String> = all.iter().map(T::to_string).collect();
    let place = names.iter().position(|known| known == name);
    place
        .map(|place| all[place])
        .ok_or_else(|| format!("{name} is not known; known are {}", names.join(", ")))
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [engine, vocab, dtype, rows, task, tokens] = &arguments[..] else { return Err(USAGE.into()) };
    let definition = Definition {
        vocab: vocab.parse()?,
        dtype: named(&[Dtype::F32, Dtype::Bf16], dtype)?,
        rows: named(&RowKind::ALL, rows)?,
        residence: Residence::Cache,
        task: named(&Task::ALL, task)?,
    };
    let tokens: usize = tokens.parse()?;
    let mut engine = engines::named(engine).ok_or_else(|| format!("no engine {engine}"))?;
    let mut staging = Staging::new(Path::new("proof/conformance/rows/smollm2.bf16"))?;
    let file = staging.rows(&definition, ROWS, 0)?;
    let rows = Rc::new(Rows::read(&file.path, definition.vocab, definition.dtype, file.row_count)?);
    let parameters = Parameters::of(definition.task, definition.vocab);
    let mut prepared = engine.prepare(&definition, &parameters, rows)?;
    for token in 0..tokens {
        black_box((prepared.draw)(token % file.row_count));
    }
    println!("{}: {tokens} tokens of {definition}", prepared.does);
    Ok(())
}
