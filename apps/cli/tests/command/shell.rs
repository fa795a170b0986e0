//! `gumball completions` and `gumball manual`, which have every subcommand, and the short help of each.

use clap::CommandFactory;
use gumball_cli::app::Cli;

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

#[test]
fn the_short_help_of_every_subcommand_fits_one_screen() {
    let mut unread = vec![(Vec::new(), Cli::command())];
    while let Some((words, command)) = unread.pop() {
        let help = support::succeeds(&[&words[..], &["-h"]].concat());
        let (lines, widest) = (help.lines().count(), help.lines().map(|line| line.chars().count()).max());
        assert!(lines <= 50 && widest <= Some(100), "{words:?}: {lines} lines, {widest:?} columns\n{help}");
        let within = command.get_subcommands().map(|one| (one.get_name().to_owned(), one.clone()));
        let within = within.map(|(name, one)| ([&words[..], &[name.leak()]].concat(), one));
        unread.extend(within);
    }
}
