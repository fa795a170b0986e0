//! The CUDA backend: the kernels on a GPU, eagerly or in a graph, or emulated on the host.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gumball_cuda::{
    Assignment, Buffer, Cache, Dtype, Emulator, Gpu, Machine, Outputs, Prepared, Room, Rows, Start, Workspace,
};
use gumball_spec::logprobs::{Logprobs, TokenLogprob};
use gumball_spec::{Error, NONE, Result, Row, Widths};

use crate::backend::{Backend, Oracle};
use crate::case::Case;
use crate::observed::{Observed, differences};

/// The slots of a pool, and those the rows of a case have: the case, padding, and the case again.
const SLOTS: usize = 7;
const ROWS: [i32; 3] = [5, -1, 2];

/// A machine with workspaces that are kept, so that whatever a row leaves behind meets the next.
pub struct Cuda {
    name: &'static str,
    machine: Arc<dyn Machine>,
    /// Whether steps go through a graph.
    graphs: bool,
    workspaces: Mutex<HashMap<(usize, Widths), Workspace>>,
    lacking: AtomicUsize,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {:?}", self.name, self.machine)
    }
}

impl Cuda {
    /// Makes the backend of a name.
    ///
    /// # Errors
    /// - [`Error::Unavailable`] if this machine lacks what it needs.
    pub fn by_name(name: &str) -> Result<Self> {
        let made = |name, machine, graphs| Self {
            name,
            machine,
            graphs,
            workspaces: Mutex::default(),
            lacking: AtomicUsize::new(0),
        };
        let gpu = || -> Result<Arc<dyn Machine>> { Ok(Arc::new(Gpu::new(0, &Cache::user())?)) };
        match name {
            "cuda" => Ok(made("cuda", gpu()?, false)),
            "cuda_graph" => Ok(made("cuda_graph", gpu()?, true)),
            _ => Ok(made("cuda_emulated", Arc::new(Emulator::new(&Cache::user())?), false)),
        }
    }

    /// Returns the machine.
    #[must_use]
    pub fn machine(&self) -> &Arc<dyn Machine> {
        &self.machine
    }

    /// Returns whether steps go through a graph.
    #[must_use]
    pub fn graphs(&self) -> bool {
        self.graphs
    }

    fn run(&self, case: &Case) -> Result<Observed> {
        let prepared = Prepared::new(&case.params, case.vocab())?;
        case.request().validate(case.vocab())?;
        let lacks = |what: &str| Err(Error::Unavailable { resource: "CUDA kernel", reason: what.to_owned() });
        if case.mask.is_some() {
            return lacks("masks are not there yet");
        }
        if case.hook.is_some() {
            return lacks("a hook runs on the host");
        }

        let widths = case.params.logprobs.as_ref().map_or_else(Widths::default, |logprobs| Widths {
            top_n: logprobs.top_n as usize,
            ids: logprobs.ids.len(),
        });
        let mut workspaces = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let workspace = match workspaces.entry((case.vocab(), widths)) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let room = Room { vocab: case.vocab(), slots: SLOTS, rows: ROWS.len(), widths, kept: false };
                entry.insert(Workspace::new(Arc::clone(&self.machine), room)?)
            }
        };
        let start = Start {
            seed: case.seed,
            draw: case.draw,
            position: case.position,
            mu: case.mu,
            prompt: &case.prompt,
            output: &case.output,
            room: 1,
        };
        let slots = ROWS.into_iter().filter(|slot| *slot >= 0);
        slots.clone().try_for_each(|slot| workspace.admit(slot, &prepared, &start))?;
        let forced = [case.forced.map_or(NONE, |id| id as i32); ROWS.len()];
        let masks = [case.mask.as_deref(); ROWS.len()];
        let masks = if case.mask.is_some() { &masks[..] } else { &[] };
        workspace.assign(&Assignment { slots: &ROWS, forced: &forced, lines: &[], masks })?;

        let (buffer, dtype, start, stride) = self.rows(case)?;
        let rows = Rows::of(&buffer, dtype, start, ROWS.len(), case.vocab(), stride)?;
        let step = workspace.step(&rows)?;
        if self.graphs {
            workspace.replay(&workspace.capture(&[step])?)?;
        } else {
            workspace.enqueue(&step)?;
        }
        let outputs = workspace.outputs(ROWS.len())?;

        let none = (outputs.token(1), outputs.status(1).0);
        assert_eq!(none, (NONE, 0), "padding yields nothing\n{case:?}");
        let moved = u32::from(outputs.token(0) != NONE);
        for slot in slots {
            let position = workspace.position(slot)?;
            let wanted = case.position.wrapping_add(moved);
            assert_eq!(position, wanted, "the position moves with a token\n{case:?}");
        }
        let [one, other] = [0, 2].map(|row| observed(case, &outputs, row));
        let differences = differences(&one, &other);
        assert!(differences.is_empty(), "one case, two slots:\n{differences}{case:?}");
        Ok(one)
    }

    /// Copies a case's buffer to the machine, three times, so that the copies are aligned differently.
    fn rows(&self, case: &Case) -> Result<(Buffer, Dtype, usize, usize)> {
        fn copies<T: Copy>(values: &[T]) -> (Vec<T>, usize) {
            let stride = values.len() + 1;
            let copies = (0..ROWS.len()).flat_map(|_| values.iter().copied().chain(values.first().copied()));
            (copies.collect(), stride)
        }
        let (buffer, start) = case.logits.buffer();
        let (buffer, dtype, stride) = match buffer {
            Row::F32(values) => {
                let (values, stride) = copies(values);
                (Buffer::of(&self.machine, &values)?, Dtype::F32, stride)
            }
            Row::Bf16(values) => {
                let (values, stride) = copies(values);
                (Buffer::of(&self.machine, &values)?, Dtype::Bf16, stride)
            }
            Row::F16(values) => {
                let (values, stride) = copies(values);
                (Buffer::of(&self.machine, &values)?, Dtype::F16, stride)
            }
        };
        Ok((buffer, dtype, start, stride))
    }
}

/// Reads a row of the outputs.
fn observed(case: &Case, outputs: &Outputs, row: usize) -> Observed {
    let layout = outputs.layout();
    let word = |section: std::ops::Range<usize>, place: usize| outputs.words()[section][place];
    let entry =
        |id: i32, logprob: u32, rank: u32| TokenLogprob { id, logprob: f32::from_bits(logprob), rank };
    let logprobs = case.params.logprobs.as_ref().map(|asked| Logprobs {
        token: entry(outputs.token(row), word(layout.logprobs(), row), word(layout.ranks(), row)),
        top: (0..asked.top_n as usize)
            .map(|place| {
                let at = row * asked.top_n as usize + place;
                let id = word(layout.top_ids(), at) as i32;
                let rank = if id == NONE { 0 } else { place as u32 + 1 };
                entry(id, word(layout.top_logprobs(), at), rank)
            })
            .collect(),
        ids: (0..asked.ids.len())
            .map(|place| {
                let at = row * asked.ids.len() + place;
                entry(asked.ids[place] as i32, word(layout.id_logprobs(), at), word(layout.id_ranks(), at))
            })
            .collect(),
    });
    // The device says which ids it kept; their order is that of the definition.
    let kept = outputs.kept(row, case.vocab()).map(|mut ids| {
        let edited = gumball_spec::edit::edit(case.logits.row(), &case.request(), None);
        ids.sort_by_key(|id| std::cmp::Reverse(gumball_spec::num::key(edited.z[*id as usize], *id)));
        ids
    });
    Observed {
        token: outputs.token(row),
        status: outputs.status(row),
        temperature: outputs.temperature(row),
        mu: outputs.mu(row),
        kept,
        logprobs,
    }
}

impl Backend for Cuda {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    /// Samples through the kernels. What has no kernel yet is answered by the oracle and counted.
    fn sample(&self, case: &Case) -> Result<Observed> {
        match self.run(case) {
            Err(Error::Unavailable { resource: "CUDA kernel", .. }) => {
                self.lacking.fetch_add(1, Ordering::Relaxed);
                Oracle.sample(case)
            }
            result => result,
        }
    }

    fn lacking(&self) -> usize {
        self.lacking.load(Ordering::Relaxed)
    }
}
