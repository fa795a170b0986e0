//! The CUDA backend: the kernels on a GPU, eagerly or in a graph, or emulated on the host.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use gumball_cuda::{Buffer, Cache, Dtype, Emulator, Gpu, Machine, Prepared, Rows, State, Step, Workspace};
use gumball_spec::{Error, NONE, Result, Row};

use crate::backend::{Backend, Oracle};
use crate::case::Case;
use crate::observed::Observed;

/// The slots of a pool, and those the rows of a case have: the case, padding, and the case again.
const SLOTS: usize = 7;
const ROWS: [i32; 3] = [5, -1, 2];

/// A machine with workspaces that are kept, so that whatever a row leaves behind meets the next.
pub struct Cuda {
    name: &'static str,
    machine: Arc<dyn Machine>,
    /// The machine, if steps go through a graph.
    graphs: Option<Arc<Gpu>>,
    workspaces: Mutex<HashMap<usize, Workspace>>,
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
        let gpu = || -> Result<Arc<Gpu>> { Ok(Arc::new(Gpu::new(0, &Cache::user())?)) };
        let made = |name, machine, graphs| Self {
            name,
            machine,
            graphs,
            workspaces: Mutex::default(),
            lacking: AtomicUsize::new(0),
        };
        match name {
            "cuda" => Ok(made("cuda", gpu()?, None)),
            "cuda_graph" => {
                let gpu = gpu()?;
                Ok(made("cuda_graph", Arc::clone(&gpu) as Arc<dyn Machine>, Some(gpu)))
            }
            _ => Ok(made("cuda_emulated", Arc::new(Emulator::new(&Cache::user())?), None)),
        }
    }

    /// Returns the machine.
    #[must_use]
    pub fn machine(&self) -> &Arc<dyn Machine> {
        &self.machine
    }

    /// Returns the GPU, if steps go through a graph.
    #[must_use]
    pub fn graphs(&self) -> Option<&Gpu> {
        self.graphs.as_deref()
    }

    fn run(&self, case: &Case) -> Result<Observed> {
        let prepared = Prepared::new(&case.params, case.vocab())?;
        case.request().validate(case.vocab())?;
        let lacks = |what: &str| Error::Unavailable {
            resource: "CUDA kernel",
            reason: format!("{what} is not there yet"),
        };
        if case.mask.is_some() {
            return Err(lacks("the bitmask"));
        }
        if case.hook.is_some() {
            return Err(lacks("a hook"));
        }

        let mut workspaces = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
        let workspace = match workspaces.entry(case.vocab()) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(Workspace::new(Arc::clone(&self.machine), case.vocab(), SLOTS, ROWS.len())?)
            }
        };
        let state = State { position: case.position, mu: case.mu };
        let slots = ROWS.into_iter().filter(|slot| *slot >= 0);
        slots.clone().try_for_each(|slot| workspace.admit(slot, &prepared, case.seed, case.draw, state))?;
        let forced = case.forced.map_or(NONE, |id| id as i32);
        workspace.assign(&ROWS, &[forced; ROWS.len()])?;

        let (buffer, dtype, start, stride) = self.rows(case)?;
        let rows = Rows::of(&buffer, dtype, start, ROWS.len(), case.vocab(), stride)?;
        self.enqueue(workspace.step(&rows)?)?;
        let outputs = workspace.outputs(ROWS.len())?;

        let (none, both) = (outputs.tokens[1], [outputs.tokens[0], outputs.tokens[2]]);
        assert!(none == NONE && outputs.statuses[1].0 == 0, "padding yields {none}\n{case:?}");
        assert_eq!(both[0], both[1], "one case, two slots\n{case:?}");
        assert_eq!(outputs.statuses[0], outputs.statuses[2], "one case, two slots\n{case:?}");
        let moved = u32::from(both[0] != NONE);
        for slot in slots {
            let position = workspace.state(slot)?.position;
            assert_eq!(
                position,
                case.position.wrapping_add(moved),
                "the position moves with a token\n{case:?}"
            );
        }
        Ok(Observed {
            token: outputs.tokens[0],
            status: outputs.statuses[0],
            temperature: outputs.temperatures[0],
            mu: outputs.mus[0],
            kept: None,
            logprobs: None,
        })
    }

    fn enqueue(&self, step: Step<'_>) -> Result<()> {
        match &self.graphs {
            None => step.enqueue(),
            Some(gpu) => Ok(gpu.capture(&[step])?.replay()?),
        }
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
