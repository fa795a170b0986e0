//! The command line: its subcommands, where they write, and the exit code.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use gumball_inspect::command::{hinted, with_signs};

use crate::commands::{check, doctor, explore, generate, head, inspect, kernels, verify_receipt};
use crate::grammar::GRAMMARS;
use crate::model::TEMPLATES;
use crate::output::{Output, message, say};
use crate::{Error, Result, apart, detect, sample, threads};

/// From logits to the next token: one definition, the same token for the same seed everywhere.
#[derive(Parser, Debug)]
#[command(name = "gumball", version, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Let a real model write, every token chosen by Gumball
    Generate(Box<generate::Args>),
    /// Draw tokens from a file of logits
    Sample(Box<sample::Args>),
    /// Show what every stage does to one row of logits, in the terminal or as a page
    Inspect(Box<inspect::Args>),
    /// Look for a watermark in the ids of a text
    Detect(detect::Args),
    /// Draw the tokens of a receipt again from logits, the same or computed again
    VerifyReceipt(verify_receipt::Args),
    /// Open the explorer, a page that shows how a row becomes a token while you move the parameters,
    /// and with --model lets a model write on in it
    Explore(explore::Args),
    /// Test statistically that what is drawn is what the definition says
    Check(Box<check::Args>),
    /// Build, show or check the screen or the clusters that a head derives from a model's weights
    Head(Box<head::Args>),
    /// Compile the GPU kernels ahead of time, for this machine or into a folder for others
    Kernels(kernels::Args),
    /// Show what this machine offers and what Gumball will use, and test it
    Doctor(doctor::Args),
    /// Print what a shell completes the command line by: source <(gumball completions bash)
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write the manual, a page for each subcommand, for `man`
    Manual {
        /// A folder that exists, such as ~/.local/share/man/man1
        folder: PathBuf,
    },
}

impl Command {
    /// Runs the subcommand, writing to `out`, with ANSI styles.
    ///
    /// # Errors
    /// The error that the subcommand ends with.
    pub fn run(&self, out: &mut Output<'_>) -> Result<()> {
        match self {
            Command::Generate(args) => generate::run(args, out),
            Command::Sample(args) => sample::run(args, None, out),
            Command::Check(args) => check::run(args, out),
            Command::Inspect(args) => inspect::run(args, out),
            Command::Detect(args) => detect::run(args, out),
            Command::VerifyReceipt(args) => verify_receipt::run(args, out),
            Command::Explore(args) => explore::run(args, out),
            Command::Head(args) => head::run(args, out),
            Command::Kernels(args) => kernels::run(args, out),
            Command::Doctor(args) => doctor::run(args, out),
            Command::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(*shell, &mut Cli::command(), "gumball", &mut script);
                Ok(out.write_all(&script)?)
            }
            Command::Manual { folder } => clap_mangen::generate_to(Cli::command(), folder)
                .map_err(|error| Error::file(folder, error.to_string())),
        }
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    if let Some(code) = apart::answer(&[TEMPLATES, GRAMMARS]) {
        return code;
    }
    let matches = with_signs(Cli::command()).try_get_matches().unwrap_or_else(|error| hinted(error).exit());
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    threads::run(|| run(&cli))
}

/// Runs a command line that was read.
fn run(cli: &Cli) -> ExitCode {
    let mut out = Output::stdout();
    let outcome = cli.command.run(&mut out).and_then(|()| out.flush().map_err(Error::from));
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    let _ = out.flush();
    if error.exit_code() != 0 {
        let (bad, plain) = (crate::text::BAD, crate::text::PLAIN);
        say(format_args!("{bad}error:{plain} {}", message(&error.to_string())));
    }
    ExitCode::from(error.exit_code())
}
