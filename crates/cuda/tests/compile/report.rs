//! Reads the report of ptxas: the registers and the stack of each function, and how much of the stack holds
//! spills.

use std::collections::BTreeMap;

/// Registers, stack and spills of a function, per thread, without those of the functions that it calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelResources {
    pub registers: u32,
    pub stack_bytes: u32,
    pub spilled_bytes: u32,
    pub reloaded_bytes: u32,
}

/// Reads a compiler's log. Returns the reported functions by name, and all other lines, which are warnings.
pub fn read(log: &str) -> (BTreeMap<String, KernelResources>, Vec<&str>) {
    let mut functions: BTreeMap<String, KernelResources> = BTreeMap::new();
    let (mut name, mut warnings) = (String::new(), Vec::new());
    for line in log.lines().filter(|line| !line.trim().is_empty()) {
        let told = line.strip_prefix("ptxas info").map(|told| told.trim_start_matches([' ', ':']));
        if let Some(told) = told {
            if let Some(function) = told.strip_prefix("Function properties for ") {
                name = function.trim().to_owned();
            } else if told.starts_with("Used ") {
                functions.entry(name.clone()).or_default().registers = number_before(told, " registers");
            }
        } else if line.contains("bytes stack frame") {
            let needs = functions.entry(name.clone()).or_default();
            needs.stack_bytes = number_before(line, " bytes stack frame");
            needs.spilled_bytes = number_before(line, " bytes spill stores");
            needs.reloaded_bytes = number_before(line, " bytes spill loads");
        } else {
            warnings.push(line);
        }
    }
    (functions, warnings)
}

fn number_before(line: &str, words: &str) -> u32 {
    let number = line.split(words).next().and_then(|before| before.split([' ', ',']).next_back());
    number
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("no number before {words:?}: {line}"))
}

#[test]
fn a_report_is_told_from_a_warning() {
    let log = "finish_general.cu(3): warning #177-D: variable \"x\" was declared but never referenced\n\
               ptxas info    : 0 bytes gmem\n\
               ptxas info    : Compiling entry function 'finish_general_f32' for 'sm_90'\n\
               ptxas info    : Function properties for finish_general_f32\n    \
               16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n\
               ptxas info    : Used 128 registers, used 1 barriers, 16 bytes cumulative stack size";
    let (functions, warnings) = read(log);
    let needs = KernelResources { registers: 128, stack_bytes: 16, spilled_bytes: 8, reloaded_bytes: 12 };
    assert_eq!(functions, BTreeMap::from([("finish_general_f32".to_owned(), needs)]));
    assert_eq!(warnings.len(), 1);
}
