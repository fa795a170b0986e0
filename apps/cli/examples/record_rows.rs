//! Which logits does the real model give after a prompt? Written down, to test and measure with.
//!
//! ```text
//! cargo run --release --package gumball-cli --example record_rows -- [OPTIONS] OUT [PROMPTS]
//!   --model FILE   another model than the default one
//!   --bf16         a raw file: bfloat16, little endian, rows one after another
//! ```
//!
//! Without `--bf16`, OUT becomes a NumPy file `[rows, vocab]` of f32. PROMPTS is a text file with one
//! prompt a line, `\n` standing for a line break; a line `chat: ...` goes through the chat template. Without
//! it, the eight prompts below are taken, from which `proof/conformance/rows/smollm2.bf16` was made.

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;

use gumball_cli::model::{Message, Model};

/// Prose, a fact with one answer, numbers, two programming languages, two conversations, another language.
const PROMPTS: [&str; 8] = [
    "It was a bright cold day in April, and the clocks were",
    "The capital of France is",
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "def mean(values):\\n    \"\"\"Return the arithmetic mean.\"\"\"\\n    return",
    "fn main() {\\n    let mut total = 0;\\n    for i in 0..10 {\\n        total +=",
    "chat: Why is the sky blue?",
    "chat: Write a short poem about the sea.",
    "Es war einmal ein kleines Mädchen, das",
];

fn main() -> Result<(), Box<dyn Error>> {
    let (mut model, mut bf16, mut paths) = (None, false, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--model" => model = Some(PathBuf::from(arguments.next().ok_or("--model wants a file")?)),
            "--bf16" => bf16 = true,
            option if option.starts_with("--") => return Err(format!("unknown option {option}").into()),
            path => paths.push(PathBuf::from(path)),
        }
    }
    let (out, prompts) = match paths.as_slice() {
        [out] => (out, PROMPTS.map(str::to_owned).to_vec()),
        [out, list] => (out, std::fs::read_to_string(list)?.lines().map(str::to_owned).collect()),
        _ => return Err("usage: record_rows [--model FILE] [--bf16] OUT [PROMPTS]".into()),
    };

    let path = model.map_or_else(Model::default_path, Ok)?;
    let mut model = Model::load(&path)?;
    let mut rows = Vec::with_capacity(prompts.len());
    for prompt in &prompts {
        let prompt = prompt.replace("\\n", "\n");
        let tokens = match prompt.strip_prefix("chat: ") {
            Some(question) => model.prompt(&[Message::new("user", question)])?,
            None => model.tokenizer.encode_prompt(&prompt)?,
        };
        model.llama.reset();
        let hidden = model.llama.hidden(&tokens)?;
        let row = model.llama.logits(&hidden)?;
        let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).ok_or("no logits")?;
        eprintln!("{prompt:?} ({} tokens) -> {:?}", tokens.len(), model.tokenizer.decode(&[best as u32]));
        rows.push(row);
    }

    let mut file = std::io::BufWriter::new(std::fs::File::create(out)?);
    if !bf16 {
        file.write_all(&npy_header(rows.len(), model.vocab()))?;
    }
    for logit in rows.iter().flatten() {
        match bf16 {
            true => file.write_all(&half::bf16::from_f32(*logit).to_le_bytes())?,
            false => file.write_all(&logit.to_le_bytes())?,
        }
    }
    Ok(file.flush()?)
}

/// The header of a NumPy file, version 1.0, padded so that the data begin at a multiple of 64.
fn npy_header(rows: usize, vocab: usize) -> Vec<u8> {
    let shape = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {vocab}), }}");
    let length = (10 + shape.len() + 1).next_multiple_of(64) - 10;
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend_from_slice(&(length as u16).to_le_bytes());
    header.extend_from_slice(format!("{shape:<width$}\n", width = length - 1).as_bytes());
    header
}
