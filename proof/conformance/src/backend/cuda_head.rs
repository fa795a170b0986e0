//! Heads of the CUDA backend: logits of hidden states, rows that a certified head decides, and the rows of
//! probed sets.

use std::sync::Arc;

use gumball_cuda::{Buffer, Dtype as CudaDtype, Head, HeadScreen, Rows, StepInput};
use gumball_head::{Certified, Level};
use gumball_spec::head::clusters::Clusters;
use gumball_spec::{Error, Result, Row, SamplingParams};
use half::{bf16, f16};

use crate::backend::cuda::{Cuda, prepare};
use crate::backend::{Backend, Oracle};
use crate::case::{Case, Dtype, Logits};
use crate::head_case::{ClusterCase, HeadCase};
use crate::observed::{Observed, differences};

/// Elements between hidden states, which must not be read.
const GAP: usize = 5;

/// Hidden states on the device, with gaps between them.
struct States {
    buffer: Buffer,
    dtype: CudaDtype,
    rows: usize,
    width: usize,
}

impl States {
    fn rows(&self) -> Result<Rows<'_>> {
        Rows::of(&self.buffer, self.dtype, 0, self.rows, self.width, self.width + GAP)
    }
}

impl Cuda {
    /// Copies the named hidden states of a case to the device.
    fn states(&self, case: &HeadCase, named: &[usize]) -> Result<States> {
        fn place<T: Copy>(all: &[T], width: usize, named: &[usize], gap: T) -> Vec<T> {
            let of = |row: &usize| all[row * width..(row + 1) * width].iter().copied().chain([gap; GAP]);
            named.iter().flat_map(of).collect()
        }
        let width = case.width;
        let (buffer, dtype) = match case.hidden.row() {
            Row::F32(all) => {
                (Buffer::of(self.runtime(), &place(all, width, named, f32::NAN))?, CudaDtype::F32)
            }
            Row::Bf16(all) => {
                (Buffer::of(self.runtime(), &place(all, width, named, bf16::NAN))?, CudaDtype::Bf16)
            }
            Row::F16(all) => {
                (Buffer::of(self.runtime(), &place(all, width, named, f16::NAN))?, CudaDtype::F16)
            }
        };
        Ok(States { buffer, dtype, rows: named.len(), width })
    }

    /// Copies a head to the device.
    fn copied(&self, case: &HeadCase, rows: usize) -> Result<Head<'static>> {
        let shape = (case.vocab(), case.width);
        let runtime = Arc::clone(self.runtime());
        Head::copied(&runtime, case.weights.row(), shape, case.bias.as_deref(), case.scaling, rows)
    }

    /// Returns the bits of the logits that an exact head makes in a step of greedy rows.
    pub(super) fn head_logits(&self, case: &HeadCase) -> Result<Vec<u32>> {
        let (rows, vocab) = (case.rows(), case.vocab());
        let head = self.copied(case, rows)?;
        let states = self.states(case, &(0..rows).collect::<Vec<_>>())?;
        let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let request = Case::of(&vec![0.0; vocab], greedy);
        let hidden = states.rows()?;
        self.run_step(&vec![Some(&request); rows], &[], false, |workspace| {
            workspace.fix(&StepInput { head: Some(&head), ..StepInput::of(&hidden) })
        })?;
        let mut logits = vec![0.0f32; rows * vocab];
        head.read_logits(&mut logits)?;
        Ok(logits.into_iter().map(f32::to_bits).collect())
    }

    /// Returns the bits of the logits that a fast head makes, after holding a step on them to the oracle's.
    pub(super) fn fast_logits(&self, case: &HeadCase, params: &SamplingParams) -> Result<Vec<u32>> {
        let (rows, vocab) = (case.rows(), case.vocab());
        let head = self.copied(case, rows)?.fast()?;
        let states = self.states(case, &(0..rows).collect::<Vec<_>>())?;
        let request = Case::of(&vec![0.0; vocab], params.clone());
        let hidden = states.rows()?;
        let seen = self.run_step(&vec![Some(&request); rows], &[], false, |workspace| {
            workspace.fix(&StepInput { head: Some(&head), ..StepInput::of(&hidden) })
        })?;
        let mut logits = vec![0.0f32; rows * vocab];
        head.read_logits(&mut logits)?;
        for (seen, logits) in seen.into_iter().flatten().zip(logits.chunks(vocab)) {
            let expected = Oracle.sample(&Case::of(logits, params.clone()))?;
            let differences =
                differences(&Observed { kept: None, ..expected }, &Observed { kept: None, ..seen });
            assert!(differences.is_empty(), "a step on a fast head's logits:\n{differences}{case:?}");
        }
        Ok(logits.into_iter().map(f32::to_bits).collect())
    }

    /// Samples from the first hidden state of a case by a head with a screen, and by one without: beside
    /// padding, in a row of its own and in another's batch.
    pub(super) fn certified_row(&self, head: &HeadCase, case: &Case) -> Result<Observed> {
        match prepare(case) {
            Err(Error::Unavailable { resource: "CUDA kernel", .. }) => {
                return Ok(Observed { kept: None, ..Oracle.sample(case)? });
            }
            prepared => drop(prepared?),
        }
        let certified = Certified::new(head.exact(Level::detect()?)?);
        let screen = certified.screen();
        let screen = HeadScreen {
            codes: screen.codes,
            padded: screen.padded,
            scales: screen.scales,
            own: screen.own,
            code_norms: screen.code_norms,
            mean: screen.mean,
            mean_norm: screen.mean_norm,
            unscreened: screen.unscreened,
        };
        let trio = [Some(case), None, Some(case)];
        let six = [Some(case), None, Some(case), Some(case), Some(case), None];
        let mut seen = Vec::new();
        for cases in [&trio[..], &six[..]] {
            let states = self.states(head, &vec![0; cases.len()])?;
            let hidden = states.rows()?;
            let exact = self.copied(head, cases.len())?;
            let mut batch = |head: &Head<'_>| -> Result<()> {
                let rows = self.run_step(cases, &[], false, |workspace| {
                    workspace.fix(&StepInput { head: Some(head), ..StepInput::of(&hidden) })
                })?;
                seen.extend(rows.into_iter().flatten());
                Ok(())
            };
            batch(&exact)?;
            batch(&exact.with_screen(&screen)?)?;
        }
        for other in &seen[1..] {
            let differences = differences(&seen[0], other);
            assert!(differences.is_empty(), "with a screen or without:\n{differences}{head:?}{case:?}");
        }
        Ok(Observed { kept: None, ..seen.swap_remove(0) })
    }

    /// Samples from the first hidden state of a case by a clustered head: beside padding, and in a batch
    /// whose other rows probe other clusters.
    pub(super) fn clustered_row(
        &self,
        head: &HeadCase,
        clusters: &ClusterCase,
        case: &Case,
    ) -> Result<Observed> {
        match prepare(case) {
            Err(Error::Unavailable { resource: "CUDA kernel", .. }) => {
                return Ok(Observed { kept: None, ..Oracle.sample(case)? });
            }
            prepared => drop(prepared?),
        }
        let (vocab, width) = (head.vocab(), head.width);
        let own: Vec<f32> = (0..width).map(|i| head.state(0).logit(i)).collect();
        let turned: Vec<f32> = own.iter().map(|h| -h).collect();
        let mixed: Vec<f32> = own.iter().rev().zip(&turned).map(|(a, b)| a + b).collect();
        let states = [own.clone(), mixed, turned];
        let all = HeadCase { hidden: Logits::new(Dtype::F32, &states.concat()), ..head.clone() };
        let one = [Some(case), None];
        let six = [Some(case), None, Some(case), Some(case), Some(case), Some(case)];
        let mut seen = Vec::new();
        for cases in [&one[..], &six[..]] {
            let state_of = |row: usize| row % states.len();
            let named: Vec<usize> = (0..cases.len()).map(state_of).collect();
            let hidden = self.states(&all, &named)?;
            let hidden = hidden.rows()?;
            // The number of probes is set twice, as callers change it.
            let of_one = Clusters { probes: 1, ..clusters.clusters() };
            let on_device =
                self.copied(head, cases.len())?.with_clusters(&of_one)?.with_probes(clusters.probes)?;
            let results = self.run_step(cases, &[], false, |workspace| {
                workspace.fix(&StepInput { head: Some(&on_device), ..StepInput::of(&hidden) })
            })?;
            let mut logits = vec![0.0f32; cases.len() * vocab];
            on_device.read_logits(&mut logits)?;
            for (row, of_row) in results.into_iter().enumerate().filter_map(|(row, of)| Some((row, of?))) {
                let state = &states[state_of(row)];
                let of_state = HeadCase { hidden: Logits::new(Dtype::F32, state), ..head.clone() };
                let expected = of_state.clustered_by_the_oracle(clusters)?;
                let bits = |row: &[f32]| row.iter().map(|z| z.to_bits()).collect::<Vec<_>>();
                let logits = &logits[row * vocab..(row + 1) * vocab];
                assert_eq!(bits(logits), bits(&expected), "row {row} of {head:?}{clusters:?}");
                if state_of(row) == 0 {
                    seen.push(of_row);
                }
            }
            let (counts, rows) = (on_device.counts()?, cases.iter().flatten().count());
            assert_eq!((counts.clustered_rows, counts.whole_rows), (rows as u64, 0));
        }
        for other in &seen[1..] {
            let differences = differences(&seen[0], other);
            assert!(differences.is_empty(), "in batches:\n{differences}{head:?}{clusters:?}{case:?}");
        }
        Ok(Observed { kept: None, ..seen.swap_remove(0) })
    }
}
