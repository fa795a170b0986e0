//! Output paths of records and rows: something at the path that is not a plain file is refused and unharmed.

use std::path::Path;

use gumball_bench::record::Record;
use gumball_bench::staging;
use gumball_bench_protocol::{Definition, Dtype, Residence, RowKind, Task};

use crate::paths::{refuses_all_but_files, spares_neighbours};

fn record(path: &Path) -> Result<(), String> {
    let known = Path::new(env!("CARGO_MANIFEST_DIR")).join("record/2026-11-20-zen5-cpu.json");
    let written = || Record::check_place(path).and_then(|()| Record::read(&known)?.write(path));
    written().map_err(|error| error.to_string())
}

fn rows(path: &Path) -> Result<(), String> {
    let (rows, residence, task) = (RowKind::Model, Residence::Cache, Task::Greedy);
    let of = Definition { vocab: 10, dtype: Dtype::F32, rows, residence, task };
    staging::write(path, &of, 1, 2, Path::new("")).map_err(|error| error.to_string())
}

#[test]
fn records_and_rows_replace_a_plain_file_and_nothing_else() {
    for write in [record as fn(&Path) -> Result<(), String>, rows] {
        refuses_all_but_files(write);
        spares_neighbours(&["out.html.new"], write);
    }
}
