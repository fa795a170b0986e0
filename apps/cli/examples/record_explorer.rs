//! Writes the file of rows and of texts in tokens that the explorer shows: rows that the real model computes
//! for the prompts.
//!
//! ```text
//! cargo run --release --package gumball-cli --example record_explorer -- OUT PROMPTS
//! ```
//!
//! PROMPTS is a JSON array of `{"name", "prompt", "chat", "after", "note"}`: a prompt that goes through the
//! chat template if `chat` says so, and the number of tokens that the model says by itself, greedily, before
//! the row that is recorded. OUT is, in this order: the length of a JSON text, as four bytes, little endian;
//! that text, with the prompts, their ids and the text of every id; then each row as f16, first the upper
//! bytes of all its logits and then the lower ones, since these compress better apart.

use std::error::Error;
use std::io::Write;

use gumball_cli::model::{Message, Model};
use gumball_engine::f16;
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let [out, list] = paths.as_slice() else { return Err("usage: record_explorer OUT PROMPTS".into()) };
    let prompts: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(list)?)?;
    let mut model = Model::load(&Model::default_path()?)?;
    let (mut rows, mut told) = (Vec::new(), Vec::new());
    for prompt in &prompts {
        let text = prompt["prompt"].as_str().ok_or("a prompt without text")?;
        let ids = match prompt["chat"].as_bool().unwrap_or(false) {
            true => model.prompt(&[Message::new("user", text)])?,
            false => model.tokenizer.encode_prompt(text)?,
        };
        model.llama.reset();
        let (mut output, mut row) = (Vec::new(), logits(&mut model, &ids)?);
        for _ in 0..prompt["after"].as_u64().unwrap_or(0) {
            let best = best(&row);
            output.push(best);
            row = logits(&mut model, &[best])?;
        }
        let next = model.tokenizer.decode(&[best(&row)]);
        eprintln!("{text:?} {:?} -> {next:?}", model.tokenizer.decode(&output));
        rows.push(row);
        let mut entry = prompt.clone();
        entry["ids"] = json!(ids);
        entry["output"] = json!(output);
        told.push(entry);
    }
    let texts: Vec<String> = (0..model.vocab() as u32).map(|id| model.tokenizer.readable(id)).collect();
    let told = json!({"model": "SmolLM2-135M-Instruct, Q4_1", "vocab": model.vocab(), "eos": model.eos(), "rows": told, "texts": texts});
    let told = told.to_string();
    let mut file = std::io::BufWriter::new(std::fs::File::create(out)?);
    file.write_all(&u32::try_from(told.len())?.to_le_bytes())?;
    file.write_all(told.as_bytes())?;
    for row in &rows {
        let words: Vec<[u8; 2]> = row.iter().map(|logit| f16::from_f32(*logit).to_le_bytes()).collect();
        for byte in [1, 0] {
            file.write_all(&words.iter().map(|word| word[byte]).collect::<Vec<_>>())?;
        }
    }
    Ok(file.flush()?)
}

/// Reads tokens, and returns the logits of the next one.
fn logits(model: &mut Model, ids: &[u32]) -> Result<Vec<f32>, Box<dyn Error>> {
    let hidden = model.llama.hidden(ids)?;
    Ok(model.llama.logits(&hidden)?)
}

/// Returns the first of the largest logits.
fn best(row: &[f32]) -> u32 {
    (0..row.len()).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0) as u32
}
