//! Golden draws: tokens pinned for a spread of rows and parameters, so that no draw changes unnoticed.
//!
//! A stream of steps is drawn as a sequence would be: tokens join the output, the position counts them,
//! mirostat's limit is carried along. The generated rows are made of integers (`rows`); the rows of a real
//! model are read from `rows/smollm2.bf16` where that file is there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use gumball_spec::SamplingParams;
use half::bf16;

use crate::backend::{Backend, Oracle};
use crate::case::{Case, Dtype, Logits};
use crate::rows;

/// The message of a test when a token changed.
pub const CHANGED: &str = "a drawn token changed: if that is meant, it is an entry of CHANGELOG.md under \
    \"Changed draws\", and `cargo run -p gumball-conformance -- golden --bless` pins the new ones";

/// Tokens by the name of their stream.
pub type Draws = BTreeMap<String, Vec<i32>>;

/// A set of streams with a file of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Rows made of integers.
    Generated,
    /// Recorded rows of SmolLM2.
    Recorded,
}

/// The vocabulary of the recorded rows.
const RECORDED_VOCAB: usize = 49_152;

fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

impl Set {
    /// All sets.
    pub const ALL: [Set; 2] = [Set::Generated, Set::Recorded];

    /// Returns the file that pins the tokens.
    #[must_use]
    pub fn path(self) -> PathBuf {
        home().join("golden").join(match self {
            Set::Generated => "generated.json",
            Set::Recorded => "smollm2.json",
        })
    }

    /// Returns the rows with their names; each is the steps of one stream.
    fn rows(self) -> Vec<(String, Vec<Logits>)> {
        match self {
            Set::Generated => generated(),
            Set::Recorded => recorded().into_iter().map(|rows| ("smollm2".to_owned(), rows)).collect(),
        }
    }

    /// Returns whether there are rows to draw from.
    #[must_use]
    pub fn is_present(self) -> bool {
        !self.rows().is_empty()
    }

    /// Draws all streams.
    ///
    /// # Panics
    /// If the backend refuses one.
    #[must_use]
    pub fn draw(self, backend: &dyn Backend) -> Draws {
        let mut draws = Draws::new();
        for (row, steps) in self.rows() {
            for (name, params) in parameters() {
                draws.insert(format!("{row} {name}"), stream(backend, &steps, &params));
            }
        }
        draws
    }

    /// Returns the pinned tokens.
    ///
    /// # Errors
    /// The errors of reading the file and the JSON in it.
    pub fn pinned(self) -> io::Result<Draws> {
        Ok(serde_json::from_str(&fs::read_to_string(self.path())?)?)
    }

    /// Pins what the oracle draws.
    ///
    /// # Errors
    /// The errors of writing the file.
    pub fn bless(self) -> io::Result<()> {
        let lines: Vec<String> =
            self.draw(&Oracle).iter().map(|(name, tokens)| format!("  {name:?}: {tokens:?}")).collect();
        fs::write(self.path(), format!("{{\n{}\n}}\n", lines.join(",\n")))
    }
}

/// Returns the names of streams that differ, with both versions.
#[must_use]
pub fn changes(pinned: &Draws, drawn: &Draws) -> Vec<String> {
    let names = pinned.keys().chain(drawn.keys().filter(|name| !pinned.contains_key(*name)));
    names
        .filter(|name| pinned.get(*name) != drawn.get(*name))
        .map(|name| format!("{name}: pinned {:?}, drawn {:?}", pinned.get(name), drawn.get(name)))
        .collect()
}

fn stream(backend: &dyn Backend, steps: &[Logits], params: &SamplingParams) -> Vec<i32> {
    let mut case = Case::new(steps[0].clone(), params.clone()).after(&[3, 1, 4, 1, 5], &[]);
    case.seed = 0x0067_7562_616C_6C21;
    let mut tokens = Vec::new();
    for logits in steps {
        case.logits = logits.clone();
        case.position = (case.prompt.len() + case.output.len()) as u32;
        // A second sample of the same row, which the sequence does not follow.
        for draw in [1, 0] {
            case.draw = draw;
            let seen = backend.sample(&case).expect("the parameters are valid");
            tokens.push(seen.token);
            if draw == 0 {
                case.mu = seen.mu;
                case.output.push(seen.token as u32);
            }
        }
    }
    tokens
}

fn generated() -> Vec<(String, Vec<Logits>)> {
    let steps = |dtype, row: &dyn Fn(u64) -> Vec<f32>| -> Vec<Logits> {
        (0..8).map(|step| Logits::new(dtype, &row(step))).collect()
    };
    vec![
        ("bell f32 1000".to_owned(), steps(Dtype::F32, &|step| rows::bell(1000, 2.0, step))),
        ("model f32 4099".to_owned(), steps(Dtype::F32, &|step| rows::model_like(4099, 100 + step))),
        ("model bf16 8192".to_owned(), steps(Dtype::Bf16, &|step| rows::model_like(8192, 200 + step))),
        ("grid f16 777".to_owned(), steps(Dtype::F16, &|step| rows::grid(777, 0.5, 20, step))),
        ("flat f32 513".to_owned(), steps(Dtype::F32, &|_| vec![-1.5; 513])),
    ]
}

/// Reads the rows of the real model; empty if there are none.
fn recorded() -> Option<Vec<Logits>> {
    let bytes = fs::read(home().join("rows/smollm2.bf16")).ok()?;
    let values: Vec<bf16> = bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]])).collect();
    assert_eq!(values.len() % RECORDED_VOCAB, 0, "rows/smollm2.bf16 must hold rows of {RECORDED_VOCAB}");
    Some(values.chunks_exact(RECORDED_VOCAB).map(Logits::bf16).collect())
}

/// Returns parameters that reach every stage, by their names: the ones in `golden/params.json`, which
/// bindings read too.
fn parameters() -> BTreeMap<String, SamplingParams> {
    serde_json::from_str(include_str!("../golden/params.json")).expect("parameters by name")
}
