//! Heads of pools on a device: logits of hidden states, rows that a certified head decides, and the rows of
//! probed sets.

use gumball_engine::head::Certified;
use gumball_engine::{DeviceBuffer, DeviceHead, DeviceMatrix, Rows, Work};
use gumball_head::Level;
use gumball_spec::{Result, Row, SamplingParams};
use half::{bf16, f16};

use super::device::Place;
use super::pool::Pooled;
use super::{Backend, Oracle};
use crate::case::{Case, Dtype, Logits};
use crate::head_case::{ClusterCase, HeadCase};
use crate::observed::{Observed, differences};

/// Elements between hidden states, which must not be read.
const GAP: usize = 5;

/// Hidden states on the device, with gaps between them.
struct States {
    buffer: DeviceBuffer,
    dtype: Dtype,
    rows: usize,
    width: usize,
}

impl States {
    /// Copies the named hidden states of a case to the device.
    fn of(place: &Place, case: &HeadCase, named: &[usize]) -> Result<Self> {
        fn spread<T: Copy>(all: &[T], width: usize, named: &[usize], gap: T) -> Vec<T> {
            let of = |row: &usize| all[row * width..(row + 1) * width].iter().copied().chain([gap; GAP]);
            named.iter().flat_map(of).collect()
        }
        let (runtime, width) = (place.device.runtime(), case.width);
        let buffer = match case.hidden.row() {
            Row::F32(all) => DeviceBuffer::of(runtime, &spread(all, width, named, f32::NAN)),
            Row::Bf16(all) => DeviceBuffer::of(runtime, &spread(all, width, named, bf16::NAN)),
            Row::F16(all) => DeviceBuffer::of(runtime, &spread(all, width, named, f16::NAN)),
        }?;
        Ok(Self { buffer, dtype: case.hidden.dtype(), rows: named.len(), width })
    }

    fn rows(&self) -> Result<DeviceMatrix<'_>> {
        DeviceMatrix::of(&self.buffer, self.dtype.into(), 0, self.rows, self.width, self.width + GAP)
    }
}

/// Copies the exact head of a case to the device.
fn exact(place: &Place, case: &HeadCase, rows: usize) -> Result<DeviceHead<'static>> {
    DeviceHead::new(&place.device, &case.exact(Level::detect()?)?, rows)
}

impl Pooled {
    /// Steps cases from the named hidden states of a head; an absent case is padding.
    fn step_hidden(
        &self,
        head: &DeviceHead<'_>,
        states: &States,
        cases: &[Option<&Case>],
    ) -> Result<Vec<Option<Observed>>> {
        let states = states.rows()?;
        self.take_step(cases, |pool, batch, out| {
            pool.call_there(Work::step(Rows::hidden(head, states)), &batch, out)
        })
    }

    /// Steps the hidden states of a case, each by the same request. Rows of which `asks` is not true are
    /// padding.
    fn step_some(
        &self,
        place: &Place,
        head: &DeviceHead<'_>,
        (case, params): (&HeadCase, &SamplingParams),
        asks: impl Fn(usize) -> bool,
    ) -> Result<Vec<Option<Observed>>> {
        let request = Case::of(&vec![0.0; case.vocab()], params.clone());
        let states = States::of(place, case, &(0..case.rows()).collect::<Vec<_>>())?;
        let cases: Vec<_> = (0..case.rows()).map(|row| asks(row).then_some(&request)).collect();
        self.step_hidden(head, &states, &cases)
    }

    /// Steps all hidden states of a case, each by the same request, and reads the logits of the head.
    fn step_all(
        &self,
        place: &Place,
        head: &DeviceHead<'_>,
        case: &HeadCase,
        params: &SamplingParams,
    ) -> Result<(Vec<Observed>, Vec<f32>)> {
        let seen = self.step_some(place, head, (case, params), |_| true)?;
        let mut logits = vec![0.0f32; case.rows() * case.vocab()];
        head.read_logits(&mut logits)?;
        Ok((seen.into_iter().flatten().collect(), logits))
    }

    /// Returns the bits of the logits that an exact head makes in a step of greedy rows.
    pub(super) fn head_there(&self, place: &Place, case: &HeadCase) -> Result<Vec<u32>> {
        let head = exact(place, case, case.rows())?;
        let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
        let (_, logits) = self.step_all(place, &head, case, &greedy)?;
        Ok(logits.into_iter().map(f32::to_bits).collect())
    }

    /// Returns the bits of the logits that a fast head makes, with clusters or without, after holding a step
    /// on them to the oracle's.
    pub(super) fn fast_head_there(
        &self,
        place: &Place,
        (case, clusters): (&HeadCase, Option<&ClusterCase>),
        params: &SamplingParams,
    ) -> Result<Vec<u32>> {
        let head = match clusters {
            Some(of) => DeviceHead::new(&place.device, &case.clustered(of, Level::detect()?)?, case.rows())?,
            None => exact(place, case, case.rows())?,
        };
        let head = head.fast()?;
        if clusters.is_some() {
            // Clusters that a step probes must not reach the next step. In the first step all rows but the
            // last are padding, in the second every other row is.
            self.step_some(place, &head, (case, params), |row| row + 1 == case.rows())?;
            self.step_some(place, &head, (case, params), |row| row.is_multiple_of(2))?;
        }
        let (seen, logits) = self.step_all(place, &head, case, params)?;
        for (seen, logits) in seen.into_iter().zip(logits.chunks(case.vocab())) {
            let expected = Oracle.sample(&Case::of(logits, params.clone()))?;
            let differences = differences(&expected, &seen);
            assert!(differences.is_empty(), "a step on a fast head's logits:\n{differences}{case:?}");
        }
        Ok(logits.into_iter().map(f32::to_bits).collect())
    }

    /// Samples from the first hidden state of a case by a head with a screen, and by one without: beside
    /// padding, in a row of its own and in another's batch, and beside rows of which all logits are computed.
    pub(super) fn certified_there(&self, place: &Place, head: &HeadCase, case: &Case) -> Result<Observed> {
        let certified = Certified::new(head.exact(Level::detect()?)?);
        let trio = [Some(case), None, Some(case)];
        let six = [Some(case), None, Some(case), Some(case), Some(case), None];
        let exact = exact(place, head, six.len())?;
        let mut seen = self.step_hidden(&exact, &States::of(place, head, &[0; 3])?, &trio)?;
        let screened = exact.with_screen(&certified)?.with_least_saved(0);
        for cases in [&trio[..], &six[..]] {
            let states = States::of(place, head, &vec![0; cases.len()])?;
            seen.extend(self.step_hidden(&screened, &states, cases)?);
        }
        // The numbers of rows at which head_bounds changes its way, by turns.
        let sizes = [5, 9, 17, 33, 65, 129];
        let rows = sizes[(case.params.seed.unwrap_or(0) as usize + head.vocab()) % sizes.len()];
        let whole = Case::of(&vec![0.0; head.vocab()], SamplingParams { top_p: 0.5, ..Default::default() });
        let many: Vec<_> =
            (0..rows).map(|row| [Some(case), Some(&whole), Some(case), None][row % 4]).collect();
        let screened = DeviceHead::new(&place.device, &certified, rows)?.with_least_saved(0);
        let all = self.step_hidden(&screened, &States::of(place, head, &vec![0; rows])?, &many)?;
        seen.extend(all.into_iter().enumerate().filter(|(row, _)| row % 4 != 1).map(|(_, seen)| seen));
        same("with a screen or without", seen.into_iter().flatten(), head)
    }

    /// Samples from the first hidden state of a case by a clustered head: beside padding, and in a batch
    /// whose other rows probe other clusters.
    pub(super) fn clustered_there(
        &self,
        place: &Place,
        (head, clusters): (&HeadCase, &ClusterCase),
        case: &Case,
    ) -> Result<Observed> {
        let (vocab, width) = (head.vocab(), head.width);
        let own: Vec<f32> = (0..width).map(|i| head.state(0).logit(i)).collect();
        let turned: Vec<f32> = own.iter().map(|h| -h).collect();
        let mixed: Vec<f32> = own.iter().rev().zip(&turned).map(|(a, b)| a + b).collect();
        let states = [own.clone(), mixed, turned];
        let all = HeadCase { hidden: Logits::new(Dtype::F32, &states.concat()), ..head.clone() };
        let one = [Some(case), None];
        let four = [Some(case), None, Some(case), Some(case)];
        let mut seen = Vec::new();
        for cases in [&one[..], &four[..]] {
            let state_of = |row: usize| row % states.len();
            let named: Vec<usize> = (0..cases.len()).map(state_of).collect();
            // The number of probes is set twice, as callers change it.
            let of_one = ClusterCase { probes: 1, ..clusters.clone() };
            let of_one = head.clustered(&of_one, Level::detect()?)?;
            let on_device = DeviceHead::new(&place.device, &of_one, cases.len())?;
            let on_device = on_device.with_probes(clusters.probes)?;
            let results = self.step_hidden(&on_device, &States::of(place, &all, &named)?, cases)?;
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
        same("in batches", seen, head)
    }
}

/// Returns what all of a row's answers are.
fn same(what: &str, seen: impl IntoIterator<Item = Observed>, head: &HeadCase) -> Result<Observed> {
    let mut seen = seen.into_iter();
    let first = seen.next().expect("a row");
    for other in seen {
        let differences = differences(&first, &other);
        assert!(differences.is_empty(), "{what}:\n{differences}{head:?}");
    }
    Ok(first)
}
