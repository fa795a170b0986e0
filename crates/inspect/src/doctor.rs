//! `gumball doctor`: what this machine offers, GPUs included, what Gumball will use, and whether it works.
//!
//! The calling program adds its own facts: the command its default model, the Python package the packages
//! around it.

use std::io::Write;
use std::path::Path;

use gumball_engine::{Level, Route};
use gumball_spec::DEFINITION;
use serde::Serialize;

use crate::cuda::{Cuda, variable};
use crate::machine::{Machine, size};
use crate::output::shown;
use crate::self_test::{self, Item};
use crate::text::{BAD, DIM, GOOD, HEAD, WARN};
use crate::{Error, Result};

/// How to report.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Write JSON
    #[arg(long)]
    pub json: bool,
}

/// The facts that only the calling program knows.
#[derive(Clone, Debug, Default)]
pub struct Known<'a> {
    /// Its default model, if it has one.
    pub model: Option<ModelFile>,
    /// The folder of compiled kernels that it brings, if any; it is trusted as the program is.
    pub kernels: Option<&'a Path>,
    /// The explorer's page, if it brings one.
    pub explorer: Option<&'a Path>,
    /// The Python that it runs in, if any.
    pub python: Option<Python>,
}

/// The default model of a program.
#[derive(Clone, Debug, Serialize)]
pub struct ModelFile {
    /// Where it is or will be, or why it cannot be anywhere.
    pub model: std::result::Result<String, String>,
    /// Its size there; none before it was fetched.
    pub model_bytes: Option<u64>,
    /// Its defect, if it has one.
    pub model_trouble: Option<String>,
}

/// A Python interpreter and the packages around this one.
#[derive(Clone, Debug, Serialize)]
pub struct Python {
    /// Its version.
    pub version: String,
    /// The folder of the package.
    pub package: String,
    /// The architectures of GPUs that it carries compiled kernels for.
    pub kernel_archs: Vec<String>,
    /// Whether the emulator of a GPU is built in.
    pub emulator: bool,
    /// Packages that this one works with.
    pub packages: Vec<Package>,
}

/// A package for Python.
#[derive(Clone, Debug, Serialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// The version that is installed, if one is.
    pub version: Option<String>,
    /// The work that the package makes possible.
    pub about: String,
}

/// Everything the doctor found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The version of this program.
    pub version: &'static str,
    /// The version of the definition.
    pub definition: u32,
    /// The system and the processor.
    pub machine: Machine,
    /// The SIMD levels there are, and whether this machine has them.
    pub levels: Vec<(&'static str, bool)>,
    /// The level in use, or what is wrong with the one asked for.
    pub level: std::result::Result<&'static str, String>,
    /// What `GUMBALL_LEVEL` says, if set.
    pub level_variable: Option<String>,
    /// Threads that rows are spread over.
    pub threads: usize,
    /// What `RAYON_NUM_THREADS` says, if set.
    pub threads_variable: Option<String>,
    /// The routes from logits to a token, and how each works.
    pub routes: Vec<(String, String)>,
    /// The default model, where the program has one.
    #[serde(flatten)]
    pub model: Option<ModelFile>,
    /// The Python around the program, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub python: Option<Python>,
    /// The self-test.
    pub self_test: Vec<Item>,
    /// CUDA, its devices and their self-tests.
    pub cuda: Cuda,
}

impl Report {
    /// Looks at the machine and tests what is there.
    ///
    /// # Errors
    /// The error of a backend that refuses a row, which would be a defect of ours.
    pub fn make(known: Known<'_>) -> Result<Self> {
        Ok(Self {
            routes: Route::ALL.map(|route| (route.name().to_owned(), route.about().to_owned())).to_vec(),
            model: known.model,
            python: known.python,
            version: env!("CARGO_PKG_VERSION"),
            definition: DEFINITION,
            machine: Machine::ask(),
            levels: Level::ALL.map(|level| (level.name(), level.is_available())).to_vec(),
            level: Level::detect().map(Level::name).map_err(|error| error.to_string()),
            level_variable: variable("GUMBALL_LEVEL"),
            threads: rayon::current_num_threads(),
            threads_variable: variable("RAYON_NUM_THREADS"),
            self_test: self_test::run()?,
            cuda: Cuda::look(known.kernels),
        })
    }

    fn is_well(&self) -> bool {
        let mut tests = self.self_test.iter().chain(self.cuda.self_tests());
        self.level.is_ok() && tests.all(|item| item.holds)
    }
}

/// Examines the machine and writes what was found.
///
/// # Errors
/// - [`Error::Verdict`] if the self-test fails or the level asked for cannot be had.
pub fn run(args: &Args, known: Known<'_>, out: &mut dyn Write) -> Result<()> {
    let report = Report::make(known)?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &report).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        write(&report, out)?;
    }
    if report.is_well() {
        return Ok(());
    }
    Err(Error::Verdict("this machine cannot be trusted with draws as it is set up; see above".to_owned()))
}

fn write(report: &Report, out: &mut dyn Write) -> Result<()> {
    let machine = &report.machine;
    writeln!(
        out,
        "{HEAD}gumball {}{HEAD:#}  {DIM}definition {}{DIM:#}\n",
        report.version, report.definition
    )?;
    writeln!(out, "{HEAD}this machine{HEAD:#}")?;
    line(out, "processor", &machine.cpu)?;
    line(out, "platform", &format!("{} on {}", machine.arch, machine.os))?;
    line(out, "threads", &machine.threads.to_string())?;
    let cache = |cache: &crate::machine::Cache| {
        let shared =
            if cache.shared_by > 1 { format!(" ({} threads)", cache.shared_by) } else { String::new() };
        format!("L{} {}{shared}", cache.level, size(cache.size_bytes))
    };
    let caches: Vec<_> = machine.caches.iter().map(cache).collect();
    let caches_text = caches.join("  ");
    line(out, "data caches", if caches.is_empty() { "not told" } else { &caches_text })?;
    let levels: Vec<_> = report
        .levels
        .iter()
        .map(|(name, there)| format!("{name}{}", if *there { "" } else { " (no)" }))
        .collect();
    line(out, "SIMD", &levels.join("  "))?;

    writeln!(out, "\n{HEAD}what Gumball uses{HEAD:#}")?;
    let from = |variable: &Option<String>, name: &str| match variable {
        Some(value) => format!("  {DIM}({name}={}){DIM:#}", shown(value)),
        None => format!("  {DIM}({name} would force it){DIM:#}"),
    };
    let level = match &report.level {
        Ok(level) => (*level).to_owned(),
        Err(reason) => format!("{BAD}none: {reason}{BAD:#}"),
    };
    line(out, "level", &format!("{level}{}", from(&report.level_variable, "GUMBALL_LEVEL")))?;
    let threads = from(&report.threads_variable, "RAYON_NUM_THREADS");
    line(out, "threads", &format!("{}{threads}", report.threads))?;

    for (i, (name, about)) in report.routes.iter().enumerate() {
        line(out, if i == 0 { "routes" } else { "" }, &format!("{name}  {DIM}{about}{DIM:#}"))?;
    }
    if let Some(file) = &report.model {
        model(file, out)?;
    }
    if let Some(found) = &report.python {
        python(found, out)?;
    }
    cuda(&report.cuda, out)?;

    writeln!(out, "\n{HEAD}self-test{HEAD:#}")?;
    for item in report.self_test.iter().chain(report.cuda.self_tests()) {
        let (style, verdict) = if item.holds { (GOOD, "ok  ") } else { (BAD, "FAIL") };
        writeln!(out, "  {style}{verdict}{style:#}  {}  {DIM}{}{DIM:#}", item.name, item.detail)?;
    }
    Ok(())
}

/// Writes where the default model is.
fn model(file: &ModelFile, out: &mut dyn Write) -> Result<()> {
    let text = match (&file.model, file.model_bytes) {
        (Err(reason), _) => format!("{WARN}{}{WARN:#}", shown(reason)),
        (Ok(path), Some(bytes)) => format!("{}  {DIM}{}{DIM:#}", shown(path), size(bytes)),
        (Ok(path), None) => match &file.model_trouble {
            Some(trouble) => format!("{WARN}{}{WARN:#}", shown(trouble)),
            None => format!("{}  {DIM}not there yet; generate fetches it{DIM:#}", shown(path)),
        },
    };
    line(out, "model", &text)
}

/// Writes which packages for Python there are, and which work each makes possible.
fn python(found: &Python, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\n{HEAD}Python{HEAD:#}")?;
    line(out, "version", &shown(&found.version))?;
    line(out, "package", &shown(&found.package))?;
    let kernels = match &found.kernel_archs[..] {
        [] => format!("no compiled kernels  {DIM}NVRTC compiles them when they are first used{DIM:#}"),
        archs => format!("compiled kernels for {}", shown(&archs.join(" "))),
    };
    line(out, "carries", &kernels)?;
    line(out, "", if found.emulator { "the emulator of a GPU" } else { "no emulator of a GPU" })?;
    let longest = found.packages.iter().map(|package| package.name.chars().count()).max();
    let width = longest.unwrap_or_default().max(11) + 2;
    for package in &found.packages {
        let version = package.version.as_deref().map_or_else(|| format!("{DIM}none{DIM:#}"), shown);
        let about = format!("{version}  {DIM}{}{DIM:#}", shown(&package.about));
        writeln!(out, "  {:<width$}{about}", shown(&package.name))?;
    }
    Ok(())
}

/// Writes what was found of CUDA; nothing of it is needed.
fn cuda(cuda: &Cuda, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "\n{HEAD}CUDA{HEAD:#}")?;
    let part = |part: &std::result::Result<String, String>| match part {
        Ok(version) => version.clone(),
        Err(reason) => format!("{WARN}{reason}{WARN:#}"),
    };
    line(out, "driver", &part(&cuda.driver))?;
    let named = cuda.nvrtc_variable.as_ref().map(|path| format!("  {DIM}(GUMBALL_NVRTC={path}){DIM:#}"));
    line(out, "NVRTC", &format!("{}{}", part(&cuda.nvrtc), named.unwrap_or_default()))?;
    if let Some(folder) = &cuda.kernels_variable {
        line(out, "kernels", &format!("{}  {DIM}(GUMBALL_KERNELS){DIM:#}", shown(folder)))?;
    }
    let cache = match (&cuda.cache, &cuda.cache_trouble) {
        (Some(folder), None) => shown(folder),
        (Some(folder), Some(trouble)) => format!("{WARN}{} is not used: {trouble}{WARN:#}", shown(folder)),
        (None, _) => format!("{WARN}none: set GUMBALL_CACHE or HOME to an absolute path{WARN:#}"),
    };
    line(out, "kernel cache", &cache)?;
    for device in &cuda.devices {
        let about = format!(
            "{}, compute capability {}, {} multiprocessors, {}",
            device.name,
            device.compute_capability,
            device.multiprocessors,
            size(device.memory_bytes)
        );
        line(out, &device.device, &about)?;
        match &device.opened_ms {
            Ok(ms) => {
                line(out, "", &format!("{DIM}opened in {ms:.0} ms; --device {}{DIM:#}", device.device))?
            }
            Err(reason) => line(out, "", &format!("{WARN}{reason}{WARN:#}"))?,
        }
    }
    if cuda.devices.is_empty() {
        line(out, "devices", &format!("none  {DIM}everything runs on the CPU, to the same tokens{DIM:#}"))?;
    }
    links(cuda, out)
}

/// Writes which GPUs reach each other, and how fast a copy between them is.
fn links(cuda: &Cuda, out: &mut dyn Write) -> Result<()> {
    if cuda.links.is_empty() {
        let few = if cuda.devices.is_empty() { "no GPUs" } else { "one GPU" };
        return line(out, "between GPUs", &format!("nothing to measure: {few}"));
    }
    for (i, link) in cuda.links.iter().enumerate() {
        let reaches = match &link.reaches {
            Ok(true) => "reaches its memory".to_owned(),
            Ok(false) => format!("{WARN}does not reach its memory: no steps over both as ranks{WARN:#}"),
            Err(reason) => format!("{WARN}{}{WARN:#}", shown(reason)),
        };
        let copied = match &link.bytes_per_second {
            Ok(speed) => format!("copies at {:.1} GB/s", speed / 1e9),
            Err(reason) => format!("{WARN}no copy: {}{WARN:#}", shown(reason)),
        };
        let text = format!("{} to {}: {reaches}, {copied}", link.from, link.to);
        line(out, if i == 0 { "between GPUs" } else { "" }, &text)?;
    }
    Ok(())
}

fn line(out: &mut dyn Write, name: &str, value: &str) -> Result<()> {
    Ok(writeln!(out, "  {name:<13}{value}")?)
}
