//! The softmax over batches: in a graph, or from the host.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use gumball_cuda::{Buffer, Column, Dtype, Gpu, Machine, Rows, RowsMut, Softmax, Temperature};

use crate::case::{CEILING_BYTES_PER_US, Times, version};
use crate::rows::Like;

/// What it is called: to f32, to the logits' own type elsewhere, and in their place.
pub const NAMES: [&str; 3] = ["softmax", "softmax-narrow", "softmax-in-place"];

const REPLAYS: usize = 20;
const WARM: usize = 3;
const EAGER: usize = 60;

/// A softmax of batches to one place each, or in these places.
pub struct SoftmaxCase<'b> {
    gpu: &'b Arc<Gpu>,
    name: &'static str,
    softmax: Softmax,
    batches: &'b [Rows<'b>],
    out: Buffer,
    dtype: Dtype,
    /// Each row's own, as servers hold them.
    temperatures: Buffer,
}

impl<'b> SoftmaxCase<'b> {
    pub fn new(
        gpu: &'b Arc<Gpu>,
        name: &'static str,
        batches: &'b [Rows<'b>],
    ) -> Result<Self, Box<dyn Error>> {
        let machine = Arc::clone(gpu) as Arc<dyn Machine>;
        let dtype = if name == NAMES[0] { Dtype::F32 } else { batches[0].dtype() };
        let bytes = batches[0].rows() * batches[0].vocab() * dtype.bytes();
        let out = Buffer::zeroed(&machine, bytes * batches.len())?;
        let temperatures = Buffer::of(&machine, &vec![0.8f32; batches[0].rows()])?;
        let softmax = Softmax::new(machine)?;
        let mut case = Self { gpu, name, softmax, batches, out, dtype, temperatures };
        if name == NAMES[2] {
            // What is in the places first: any numbers do, since none changes the time.
            (0..batches.len()).try_for_each(|batch| case.enqueue_to(batch, false))?;
        }
        Ok(case)
    }

    fn enqueue(&mut self, batch: usize) -> gumball_spec::Result<()> {
        self.enqueue_to(batch, self.name == NAMES[2])
    }

    fn enqueue_to(&mut self, batch: usize, in_place: bool) -> gumball_spec::Result<()> {
        let rows = &self.batches[batch];
        let (count, vocab) = (rows.rows(), rows.vocab());
        let out = RowsMut::of(&mut self.out, self.dtype, batch * count * vocab, count, vocab, vocab)?;
        let temperature = Temperature::Each(Column::of(&self.temperatures));
        if in_place {
            return self.softmax.enqueue_in_place(&out, temperature, None);
        }
        self.softmax.enqueue(rows, &out, temperature, None)
    }

    /// Times replays of a graph of all batches, by the device's clock.
    fn replays(&mut self) -> Result<Times, Box<dyn Error>> {
        let (gpu, batches) = (self.gpu, self.batches.len());
        let mut failed = None;
        let recording = gpu.record(&mut || {
            failed = (0..batches).try_for_each(|batch| self.enqueue(batch)).err();
            Ok(())
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        let mut times = Vec::new();
        for _ in 0..WARM + REPLAYS {
            // SAFETY: the softmax, its rows and where they go live.
            times.push(gpu.elapsed_us(|| unsafe { recording.replay() })? / batches as f32);
        }
        Ok(Times::new(times.split_off(WARM), batches))
    }

    /// Times calls from the host, each with a synchronisation.
    fn eager(&mut self) -> Result<Times, Box<dyn Error>> {
        let mut times = Vec::new();
        for call in 0..WARM + EAGER {
            let began = Instant::now();
            self.enqueue(call % self.batches.len())?;
            self.gpu.stream().synchronize()?;
            times.push(began.elapsed().as_secs_f32() * 1e6);
        }
        Ok(Times::new(times.split_off(WARM), 1))
    }

    fn bytes(&self) -> f64 {
        let rows = &self.batches[0];
        (rows.rows() * rows.vocab() * (rows.dtype().bytes() + self.dtype.bytes())) as f64
    }

    pub fn print_row(&mut self, like: Like) -> Result<(), Box<dyn Error>> {
        let times = self.replays()?;
        let (rows, dtype) = (self.batches[0].rows(), self.batches[0].dtype().name());
        let floor = self.bytes() / CEILING_BYTES_PER_US;
        println!(
            "{:17} {:5} {dtype:5} {rows:4} {floor:7.2} {:>16} {:>16} {:6.2}",
            self.name,
            like.name(),
            "",
            times.text(),
            f64::from(times.median_us) / floor
        );
        Ok(())
    }

    /// Prints results as `bench/gpu` reads them: one JSON object each.
    pub fn print_results(&mut self, like: Like, eager: bool) -> Result<(), Box<dyn Error>> {
        let eager = if eager { Some(("eager", self.eager()?)) } else { None };
        for (mode, times) in eager.into_iter().chain([("graph", self.replays()?)]) {
            let Times { median_us, p95_us, samples, calls } = times;
            let rows = &self.batches[0];
            print!(
                r#"{{"engine":"gumball","version":"{}","does":"softmax","task":"{}","#,
                version(),
                self.name
            );
            print!(r#""vocab":{},"dtype":"{}","rows":{},"#, rows.vocab(), rows.dtype().name(), rows.rows());
            print!(r#""rows_like":"{}","mode":"{mode}","median_us":{median_us:.3},"#, like.name());
            println!(r#""p95_us":{p95_us:.3},"samples":{samples},"calls":{calls}}}"#);
        }
        Ok(())
    }
}
