//! `gumball completions` and `gumball manual`: every subcommand is in them.

use crate::support;

const SUBCOMMANDS: [&str; 10] = [
    "generate",
    "sample",
    "inspect",
    "detect",
    "verify-receipt",
    "explore",
    "check",
    "head",
    "kernels",
    "doctor",
];

#[test]
fn shells_complete_every_subcommand() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = support::succeeds(&["completions", shell]);
        for subcommand in SUBCOMMANDS {
            assert!(script.contains(subcommand), "{shell}: {subcommand}");
        }
        assert!(script.contains("--top-p") || script.contains("top-p"), "{shell}");
    }
    assert!(support::refuses(&["completions", "dos"]).contains("bash"));
}

#[test]
fn the_manual_has_a_page_for_every_subcommand() {
    let files = support::Files::new();
    support::succeeds(&["manual", &files.name("")]);
    for subcommand in SUBCOMMANDS {
        let page = std::fs::read_to_string(files.path(&format!("gumball-{subcommand}.1"))).unwrap();
        assert!(page.contains(&format!(".TH gumball-{subcommand}")), "{page}");
    }
    assert!(!support::gumball(&["manual", &files.name("nowhere")]).status.success());
}
