//! The subcommands that need no model, as a command line of their own: the `gumball` of the Python package.

use std::ffi::OsString;
use std::io::Write;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{FromArgMatches, Subcommand};

use gumball_spec::error::{HIDDEN, has_key};

use crate::doctor::Known;
use crate::output::{Output, message, say};
use crate::sampling::flag_meant;
use crate::{Error, detect, doctor, explore, inspect, receipt, sample};

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Draw tokens from a file of logits
    Sample(Box<sample::Args>),
    /// Show what every stage does to one row of logits, in the terminal or as a page
    Inspect(Box<inspect::Args>),
    /// Look for a watermark in the ids of a text
    Detect(detect::Args),
    /// Draw the tokens of a receipt again from logits, the same or computed again
    VerifyReceipt(receipt::Args),
    /// Open the explorer, a page that shows how a row becomes a token while you move the parameters
    Explore,
    /// Show what this machine offers and what Gumball will use, and test it
    Doctor(doctor::Args),
}

/// The flags whose values an error does not show, by how they begin.
const KEY_FLAGS: [&str; 3] = ["--watermark-key", "--keys", "--scheme"];

/// Lets every flag and argument of a command and its subcommands take a negative number, so that the error
/// for it names the range.
#[must_use]
pub fn with_signs(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let takes_values = arg.get_action().takes_values();
        arg.allow_negative_numbers(takes_values)
    });
    command.mut_subcommands(with_signs)
}

/// The subcommands of the command in Rust alone.
const ELSEWHERE: [&str; 6] = ["generate", "check", "head", "kernels", "completions", "manual"];

/// Lets the error for a flag that is not known name the one that was meant by another engine's word, a flat
/// name, a part's or a slip of the pen, and any error hide what may be a secret key.
#[must_use]
pub fn hinted(mut error: clap::Error) -> clap::Error {
    let takes_key = |text: &str| KEY_FLAGS.iter().any(|flag| text.starts_with(flag));
    let of_key =
        matches!(error.get(ContextKind::InvalidArg), Some(ContextValue::String(flag)) if takes_key(flag));
    let secret = |(kind, value): (ContextKind, &ContextValue)| match value {
        ContextValue::String(text) if has_key(text) || of_key && kind == ContextKind::InvalidValue => {
            Some(kind)
        }
        _ => None,
    };
    for kind in error.context().filter_map(secret).collect::<Vec<_>>() {
        error.insert(kind, ContextValue::String(HIDDEN.to_owned()));
    }
    let flag = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(given)) if error.kind() == ErrorKind::UnknownArgument => flag_meant(given),
        _ => None,
    };
    if let Some(flag) = flag {
        // What clap itself would suggest stands in these, too.
        error.remove(ContextKind::Suggested);
        error.remove(ContextKind::Usage);
        error.insert(ContextKind::SuggestedArg, ContextValue::String(flag));
    }
    error
}

/// Lets the error for what the command in Rust has alone say so.
fn hinted_elsewhere(mut error: clap::Error) -> clap::Error {
    let given = |kind| match error.get(kind) {
        Some(ContextValue::String(given)) => Some(given.clone()),
        _ => None,
    };
    let tip = match (given(ContextKind::InvalidSubcommand), given(ContextKind::InvalidArg)) {
        (Some(name), _) if ELSEWHERE.contains(&&*name) => {
            format!("the command in Rust, crate gumball-cli, has it: cargo gumball {name}, in a checkout of Gumball")
        }
        (_, Some(flag)) if flag == "--prompt" => {
            "it needs a model: the command in Rust, crate gumball-cli, has it; ids of a prompt go into --prompt-ids"
                .to_owned()
        }
        (_, Some(flag)) if flag == "--model" => {
            "it needs a model: the command in Rust, crate gumball-cli, has it".to_owned()
        }
        _ => return error,
    };
    error.remove(ContextKind::SuggestedSubcommand);
    error.remove(ContextKind::SuggestedArg);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// Runs a command line, writes to standard output and error, and returns the exit code: 0 done, 1 done and
/// found wanting, 2 a mistake in the arguments.
///
/// `name` is the program's name in its help; `arguments` follow the name.
pub fn run(name: &str, arguments: Vec<OsString>, known: Known<'_>) -> u8 {
    let about = "From logits to the next token: one definition, the same token for the same seed everywhere.";
    let line = clap::Command::new("gumball").bin_name(name.to_owned());
    let elsewhere = ELSEWHERE.join(", ");
    let line = line.after_help(format!("The command in Rust, crate gumball-cli, also has: {elsewhere}."));
    let line = line.version(env!("CARGO_PKG_VERSION")).max_term_width(100).subcommand_required(true);
    // Last, as the subcommands bring a text of their own.
    let line = Command::augment_subcommands(line.arg_required_else_help(true)).about(about);
    let name = std::iter::once(OsString::from(name));
    let matches = with_signs(line).try_get_matches_from(name.chain(arguments));
    let command = match matches.and_then(|matches| Command::from_arg_matches(&matches)) {
        Ok(command) => command,
        Err(error) => {
            // Help, or the error; the code says it, too, if it cannot be written.
            let error = hinted_elsewhere(hinted(error));
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    let mut out = Output::stdout();
    let outcome = match command {
        Command::Sample(args) => sample::run(&args, known.kernels, &mut out),
        Command::Inspect(args) => inspect::run(&args, known.kernels, &mut out),
        Command::Detect(args) => detect::run(&args, &mut out),
        Command::VerifyReceipt(args) => receipt::run(&args, &mut out),
        Command::Explore => explore::run(known.explorer, &mut out),
        Command::Doctor(args) => doctor::run(&args, known, &mut out),
    };
    let Err(error) = outcome.and_then(|()| out.flush().map_err(Error::from)) else { return 0 };
    let _ = out.flush();
    if error.exit_code() != 0 {
        let (bad, plain) = (crate::text::BAD, crate::text::PLAIN);
        say(format_args!("{bad}error:{plain} {}", message(&error.to_string())));
    }
    error.exit_code()
}
