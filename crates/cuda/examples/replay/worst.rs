//! Times requests over all families of rows, and prints the median and the worst.
//!
//! A batch of one row is timed with each of some rows alone, because its time is that row's. Larger batches
//! hold many rows. A request's graph is captured once; between replays other rows come into the same memory.

use std::error::Error;
use std::sync::Arc;

use gumball_cuda::{Dtype, Gpu, Graph, Runtime};

use crate::Make;
use crate::requests::Request;
use crate::rows::{COLD_BYTES, DISTINCT, Like, Pool};
use crate::time_operators::Calls;
use crate::time_steps::{Case, Times};

/// The number of rows that are timed alone in batches of one row, and the memory that each fills: still four
/// times the L2 cache.
const ALONE: usize = 16;
const COLD_BYTES_ALONE: usize = COLD_BYTES / 2;
/// The replays of a graph that count, after one that does not: with a row alone, and with a family's rows.
const REPLAYS_ALONE: usize = 3;
const REPLAYS: usize = 5;

/// A time, and the rows that it was taken with.
struct Finding {
    us: f32,
    rows: String,
}

/// The settings that are timed in each size.
pub struct Timed<'a> {
    pub requests: &'a [Request],
    pub operators: &'a [(&'static str, Make)],
    pub likes: &'a [Like],
}

/// The times of a request or an operator: a list for each size.
struct Line {
    name: String,
    sizes: Vec<Vec<Finding>>,
}

/// Times everything over every family in each size, and prints a table.
pub fn report(
    gpu: &Arc<Gpu>,
    timed: &Timed<'_>,
    vocab: usize,
    dtype: Dtype,
    sizes: &[usize],
) -> Result<(), Box<dyn Error>> {
    let runtime = Arc::clone(gpu) as Arc<dyn Runtime>;
    let names = timed.requests.iter().map(|request| request.name.clone());
    let names = names.chain(timed.operators.iter().map(|(name, _)| (*name).to_owned()));
    let mut lines: Vec<Line> = names.map(|name| Line { name, sizes: Vec::new() }).collect();
    println!("vocab {vocab}, {}, microseconds a call in a graph, cold: median, worst (rows)", dtype.name());
    for (place, size) in sizes.iter().enumerate() {
        let cold_bytes = if *size == 1 { COLD_BYTES_ALONE } else { COLD_BYTES };
        let pool = Pool::new(&runtime, vocab, dtype, &[*size], cold_bytes)?;
        let findings = of_size(gpu, timed, &pool, *size)?;
        lines.iter_mut().zip(findings).for_each(|(line, findings)| line.sizes.push(findings));
        if sizes.len() > 1 {
            // The run may end before its last size.
            eprint!("{}", table(&lines, &sizes[place..=place], place));
        }
    }
    print!("{}", table(&lines, sizes, 0));
    Ok(())
}

/// Times everything in batches of a size; returns a list for each request, then for each operator.
fn of_size(
    gpu: &Arc<Gpu>,
    timed: &Timed<'_>,
    pool: &Pool,
    size: usize,
) -> Result<Vec<Vec<Finding>>, Box<dyn Error>> {
    let batches = pool.batches(size)?;
    let mut cases = Vec::new();
    for (line, request) in timed.requests.iter().enumerate() {
        for request in request.at(size) {
            let part = request.name.strip_prefix(&timed.requests[line].name).unwrap_or_default().to_owned();
            let case = Case::new(gpu, request, &batches, false)?;
            let graph = case.capture()?;
            cases.push((line, part, case, graph));
        }
    }
    let (alone, replays) = if size == 1 { (ALONE, REPLAYS_ALONE) } else { (1, REPLAYS) };
    let mut findings: Vec<_> =
        (0..timed.requests.len() + timed.operators.len()).map(|_| Vec::new()).collect();
    for like in timed.likes {
        let vocab = batches[0].vocab();
        let rows = like.rows(vocab, if size == 1 { ALONE } else { DISTINCT });
        for (index, rows) in rows.chunks(rows.len() / alone).enumerate() {
            pool.fill(rows)?;
            let which = if size == 1 { format!("{}#{index}", like.name) } else { like.name.to_owned() };
            for (line, part, case, graph) in &mut cases {
                let us = median_us(case, graph, replays)?;
                findings[*line].push(Finding { us, rows: format!("{which}{part}") });
            }
            for (line, (name, make)) in timed.operators.iter().enumerate() {
                let us = operator_us(make(gpu, name, &batches)?, replays)?;
                findings[timed.requests.len() + line].push(Finding { us, rows: which.clone() });
            }
        }
        eprintln!("{size} rows like {} are timed", like.name);
    }
    Ok(findings)
}

fn median_us<'b>(case: &mut Case<'b>, graph: &Graph<'b>, replays: usize) -> Result<f32, Box<dyn Error>> {
    let times = (0..=replays).map(|_| case.replay_us(graph)).collect::<Result<Vec<_>, _>>()?;
    Ok(Times::new(times[1..].to_vec(), graph.steps()).median_us)
}

fn operator_us(mut calls: Calls<'_>, replays: usize) -> Result<f32, Box<dyn Error>> {
    Ok(calls.replays(1, replays)?.median_us)
}

/// Returns a table with the median, the worst, and the rows of the worst for each of some sizes; `first` is
/// the place of the first.
fn table(lines: &[Line], sizes: &[usize], first: usize) -> String {
    let headings = sizes.iter().map(|size| format!(" | {size:>7} rows {:19}", "")).collect::<String>();
    let mut text = format!("{:19}{headings}\n", "request");
    for line in lines {
        let cells = line.sizes[first..].iter().map(|findings| {
            let mut sorted: Vec<&Finding> = findings.iter().collect();
            sorted.sort_by(|one, other| one.us.total_cmp(&other.us));
            let (median, worst) = (sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
            format!(" | {:7.2} {:7.2} {:15}", median.us, worst.us, worst.rows)
        });
        text += &format!("{:19}{}\n", line.name, cells.collect::<String>());
    }
    text
}
