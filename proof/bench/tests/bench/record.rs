//! Records of CPUs, and the pages that stand beside them.

use std::fs;
use std::path::Path;

use gumball_bench::record::Record;
use gumball_bench::table;

#[test]
fn the_page_beside_a_record_has_its_tables() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("record");
    let mut pages = 0;
    for file in fs::read_dir(folder).expect("records").map(|entry| entry.expect("an entry").path()) {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        if !name.ends_with("-cpu.json") {
            continue;
        }
        let wanted = table::page(&Record::read(&file).expect("a record"), &name);
        let found = fs::read_to_string(file.with_extension("md")).unwrap_or_default();
        assert!(found == wanted, "{name}: write its page by `gumball-bench table --page` again");
        pages += 1;
    }
    assert!(pages > 0, "there is no record of a CPU");
}
