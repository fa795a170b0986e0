//! The sampling flags: every parameter that has one, from the table of parameters.
//!
//! A flag that is absent leaves the value of `--params`, or the neutral one. Ranges are not checked here but
//! by [`SamplingParams::validate`], so that an error reads the same in every language.

mod file;
mod values;

use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use gumball_spec::error::has_key;
use gumball_spec::near::{USUAL, meant};
use gumball_spec::{Field, FilterOrder, Flag, Parameter, SamplingParams, Scope, Stage, watermark};

pub use file::parse;
use values::Asked;
pub use values::{Bias, Ids, key_number};

pub use crate::settings::settings;
use crate::{Result, reading};

/// Sampling parameters, as flags.
#[derive(Clone, Debug)]
pub struct SamplingArgs {
    matches: ArgMatches,
}

/// Returns the parameters that have a flag, and the flag.
fn flags() -> impl Iterator<Item = (&'static Parameter, Flag)> {
    SamplingParams::parameters().filter_map(|parameter| Some((parameter, parameter.flag?)))
}

/// Returns the name of a parameter's flag, without the dashes.
fn name_of(parameter: &Parameter, flag: Flag) -> String {
    flag.name.map_or_else(|| parameter.name.replace(['_', '.'], "-"), str::to_owned)
}

/// Returns the flag that was meant by one that is not known: by another engine's word, by a flat name or by a
/// part's, or by a slip of the pen.
pub(crate) fn flag_meant(given: &str) -> Option<String> {
    let name = given.trim_start_matches('-').replace('-', "_");
    let parts =
        SamplingParams::parameters().map(|parameter| parameter.name.split('.').next().unwrap_or_default());
    let parts: Vec<&str> = parts.collect();
    let known = || parts.iter().copied();
    let meant = match known().find(|part| *part == name) {
        Some(part) => part,
        None => {
            let field_of = |part: &&str| name.strip_prefix(part).is_some_and(|field| field.starts_with('_'));
            meant(&name, known())
                .or_else(|| ["mirostat", "dynamic_temperature"].into_iter().find(field_of))?
        }
    };
    let (part, _) = meant.split_once('.').unwrap_or((meant, ""));
    let of = |name: &str| flags().find(|(parameter, _)| parameter.name == name);
    let of_part = || flags().find(|(parameter, _)| parameter.name.starts_with(&format!("{part}.")));
    let (parameter, flag) = of(meant).or_else(|| of(part)).or_else(of_part)?;
    Some(format!("--{}", name_of(parameter, flag)))
}

/// Makes the keys of watermarks known that are in a file, or else in the one that `GUMBALL_WATERMARK_KEYS`
/// names.
///
/// # Errors
/// - [`crate::Error::File`] if it cannot be read, or has a line that is no key.
/// - [`crate::Error::Usage`] for a key in the place of a file.
pub fn add_watermark_keys(path: Option<&Path>) -> Result<()> {
    let named = std::env::var_os("GUMBALL_WATERMARK_KEYS").map(PathBuf::from);
    let Some(path) = path.or(named.as_deref()) else { return Ok(()) };
    if has_key(&path.to_string_lossy()) {
        let reason = "--watermark-keys and GUMBALL_WATERMARK_KEYS take a file of keys, not a key";
        return Err(crate::Error::Usage(reason.to_owned()));
    }
    let added = watermark::add_keys(&reading::text(path)?);
    added.map(|_| ()).map_err(|error| crate::Error::file(path, error.to_string()))
}

/// Returns the flag of a parameter. `-h`, which is to be one screen, shows the usual ones, and `--help` all.
fn flag(parameter: &'static Parameter, flag: Flag) -> Arg {
    let arg = Arg::new(parameter.name).long(name_of(parameter, flag)).help(flag.help);
    let arg = arg.help_heading("Sampling").hide_short_help(!USUAL.contains(&parameter.name));
    let mut neutral = SamplingParams::default();
    let (_, field) = neutral.parameter(parameter.name).expect("the table names fields");
    let arg = match field {
        Field::Flag(_) => return arg.action(ArgAction::SetTrue),
        Field::Number(_) | Field::NumberOrNone(_) => arg.value_parser(values::number),
        Field::Whole(_) => arg.value_parser(value_parser!(i64)),
        Field::Count(_) if parameter.name == "watermark.key" => arg.value_parser(values::key_number),
        Field::Count(_) => arg.value_parser(value_parser!(u32)),
        Field::Seed(_) => arg.value_parser(values::seed),
        Field::Scope(_) => arg.value_parser(value_parser!(Scope)),
        Field::Modes(_) => arg.value_parser(value_parser!(Asked)),
        Field::Order(_) => arg.value_parser(value_parser!(FilterOrder)),
        Field::Ids(_) | Field::IdsOrNone(_) => arg.value_parser(value_parser!(Ids)),
        Field::Words(_) => arg.value_parser(value_parser!(Ids)).action(ArgAction::Append),
        Field::Biases(_) => {
            arg.value_parser(value_parser!(Bias)).action(ArgAction::Append).value_delimiter(',')
        }
        Field::DynamicTemperature(_) => arg.value_parser(values::dynamic_temperature),
        Field::Mirostat(_) => arg.value_parser(values::mirostat),
        Field::Dry(_) | Field::Section(_) | Field::Loops(_) | Field::Watermark(_) | Field::Logprobs(_) => {
            unreachable!("a flag for each of its fields")
        }
    };
    arg.value_name(flag.value)
}

impl Args for SamplingArgs {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("params").long("params").value_name("FILE").value_parser(value_parser!(PathBuf));
        let help = "Take parameters from a JSON file with the same names; flags go before it";
        let hidden = flags().count() - USUAL.len();
        let short = format!(
            "Take parameters from a JSON file; flags go before it, of which --help tells {hidden} more"
        );
        let file = file.help(short).long_help(help);
        let flags = flags().map(|(parameter, of_it)| flag(parameter, of_it));
        let keys = Arg::new("watermark-keys").long("watermark-keys").value_name("FILE");
        let keys =
            keys.value_parser(value_parser!(PathBuf)).help_heading("Sampling").hide_short_help(true).help(
                "Take keys of watermarks from a file: a number and 32 hexadecimal digits in each line. \
             GUMBALL_WATERMARK_KEYS names one, too",
            );
        command.arg(file.help_heading("Sampling")).arg(keys).args(flags)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SamplingArgs {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        Ok(Self { matches: matches.clone() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> std::result::Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl SamplingArgs {
    /// Returns the parameters whose flags were given.
    fn given(&self) -> impl Iterator<Item = &'static Parameter> {
        let is_given = |name| self.matches.value_source(name) == Some(ValueSource::CommandLine);
        flags().map(|(parameter, _)| parameter).filter(move |parameter| is_given(parameter.name))
    }

    /// Returns whether the flag of a parameter was given.
    #[must_use]
    pub fn gives(&self, name: &str) -> bool {
        // A number in the place of modes says how many tokens to list.
        let is_number = |name| matches!(self.values(name).next(), Some(Asked::Best(_)));
        !(name == "logprobs.mode" && is_number(name)) && self.given().any(|parameter| parameter.name == name)
    }

    /// Returns whether a flag was given that changes how tokens are drawn; the file, the seed, stop ids,
    /// `min_tokens` and logprobs do not.
    #[must_use]
    pub fn shapes(&self) -> bool {
        let shapes = |parameter: &Parameter| match parameter.stage {
            Stage::Draw | Stage::Logprobs => false,
            _ => !["stop_ids", "min_tokens"].contains(&parameter.name),
        };
        self.given().any(shapes)
    }

    /// Returns the parameters of `--params`, with the flags over them.
    ///
    /// # Errors
    /// - [`crate::Error::File`] if the file cannot be read, is no JSON, or has a name that is not known, and
    ///   for keys of watermarks that cannot be read.
    /// - [`crate::Error::Usage`] for two numbers of likely tokens.
    pub fn to_params(&self) -> Result<SamplingParams> {
        add_watermark_keys(self.matches.get_one::<PathBuf>("watermark-keys").map(PathBuf::as_path))?;
        let mut params = match self.matches.get_one::<PathBuf>("params") {
            Some(path) => file::read(path)?,
            None => SamplingParams::default(),
        };
        let mut best = None;
        for Parameter { name, .. } in self.given() {
            match params.parameter(name).expect("the table names fields").1 {
                Field::Flag(field) => *field = true,
                Field::Number(field) => *field = self.value(name),
                Field::NumberOrNone(field) => *field = Some(self.value(name)),
                Field::Whole(field) => *field = self.value(name),
                Field::Count(field) => *field = self.value(name),
                Field::Seed(field) => *field = Some(self.value(name)),
                Field::Scope(field) => *field = self.value(name),
                Field::Modes(field) => match self.value(name) {
                    Asked::Modes(modes) => *field = modes,
                    Asked::Best(count) => best = Some(count),
                },
                Field::Order(field) => *field = self.value(name),
                Field::Ids(field) => *field = self.value::<Ids>(name).0,
                Field::IdsOrNone(field) => *field = Some(self.value::<Ids>(name).0),
                Field::Words(field) => *field = self.values(name).map(|ids: Ids| ids.0).collect(),
                Field::Biases(field) => {
                    *field = self.values(name).map(|bias: Bias| (bias.id, bias.value)).collect();
                }
                Field::DynamicTemperature(field) => *field = Some(self.value(name)),
                Field::Mirostat(field) => *field = Some(self.value(name)),
                Field::Dry(_)
                | Field::Section(_)
                | Field::Loops(_)
                | Field::Watermark(_)
                | Field::Logprobs(_) => {
                    unreachable!("a flag for each of its fields")
                }
            }
        }
        if let Some(best) = best {
            let top_n = &mut params.logprobs.get_or_insert_default().top_n;
            if self.gives("logprobs.top_n") && *top_n != best {
                let text = format!("--logprobs {best} and --top-logprobs {top_n} say different numbers");
                return Err(crate::Error::Usage(text));
            }
            *top_n = best;
        }
        Ok(params)
    }

    fn values<T: Clone + Send + Sync + 'static>(&self, name: &str) -> impl Iterator<Item = T> {
        self.matches.get_many(name).into_iter().flatten().cloned()
    }

    /// Returns the value of a flag that was given.
    fn value<T: Clone + Send + Sync + 'static>(&self, name: &str) -> T {
        self.values(name).next().expect("the flag has a value")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_of_another_engine_or_of_a_part_leads_to_ours() {
        for (given, flag) in [
            ("--dry", "--dry-multiplier"),
            ("--repeat-penalty", "--repetition-penalty"),
            ("--typ-p", "--typical-p"),
            ("--top-q", "--top-p"),
            ("--top-n", "--top-logprobs"),
            ("--stop-token-ids", "--stop-ids"),
            ("--mirostat-tau", "--mirostat"),
            ("--adaptive-p", "--adaptive-target"),
            ("--dry-sequence-breakers", "--dry-breakers"),
        ] {
            assert_eq!(flag_meant(given).as_deref(), Some(flag), "{given}");
        }
        assert_eq!(flag_meant("--whatever"), None);
    }
}
