//! Times calls of an operator over batches: in a graph, or one by one from the host.

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use gumball_cuda::{Gpu, Rows, Runtime};

use crate::rows::Like;
use crate::time_steps::{CEILING_BYTES_PER_US, Times, version};

const REPLAYS: usize = 20;
const WARM: usize = 3;
const EAGER: usize = 60;

/// Enqueues the call over a batch, given its index.
pub type Call<'b> = Box<dyn FnMut(usize) -> gumball_spec::Result<()> + 'b>;

/// An operator, and the batches that it is called over.
pub struct Calls<'b> {
    pub gpu: &'b Arc<Gpu>,
    pub name: &'static str,
    /// The rows of the first call, and the number of calls, each of which reads other rows.
    pub rows: Rows<'b>,
    pub count: usize,
    /// The bytes that a call has to move at least.
    pub bytes: usize,
    pub call: Call<'b>,
}

impl Calls<'_> {
    /// Times `warm` replays of a graph with all batches, which do not count, and `count` others, by CUDA
    /// events.
    pub fn replays(&mut self, warm: usize, count: usize) -> Result<Times, Box<dyn Error>> {
        let (gpu, calls) = (self.gpu, self.count);
        // The first call allocates the operator's scratch memory, which a call under capture cannot.
        (self.call)(0)?;
        gpu.synchronize()?;
        let mut failed = None;
        let captured = gpu.capture(&mut || {
            failed = (0..calls).try_for_each(|batch| (self.call)(batch)).err();
            Ok(())
        })?;
        if let Some(error) = failed {
            return Err(error.into());
        }
        let mut times = Vec::new();
        for _ in 0..warm + count {
            // SAFETY: the operator, its rows and its outputs live as long as this call.
            times.push(gpu.elapsed_us(|| unsafe { captured.replay() })? / calls as f32);
        }
        Ok(Times::new(times.split_off(warm), calls))
    }

    /// Times calls from the host, each with a synchronisation.
    fn eager(&mut self) -> Result<Times, Box<dyn Error>> {
        let mut times = Vec::new();
        for call in 0..WARM + EAGER {
            let began = Instant::now();
            (self.call)(call % self.count)?;
            self.gpu.synchronize()?;
            times.push(began.elapsed().as_secs_f32() * 1e6);
        }
        Ok(Times::new(times.split_off(WARM), 1))
    }

    pub fn print_row(&mut self, like: Like) -> Result<(), Box<dyn Error>> {
        let times = self.replays(WARM, REPLAYS)?;
        let (rows, dtype) = (self.rows.rows(), self.rows.dtype().name());
        let floor = self.bytes as f64 / CEILING_BYTES_PER_US;
        println!(
            "{:19} {:10} {dtype:5} {rows:4} {floor:7.2} {:>16} {:>16} {:6.2}",
            self.name,
            like.name,
            "",
            times.text(),
            f64::from(times.median_us) / floor
        );
        Ok(())
    }

    /// Prints results as `proof/bench/gpu` reads them: one JSON object each.
    pub fn print_results(&mut self, like: Like, eager: bool) -> Result<(), Box<dyn Error>> {
        let eager = if eager { Some(("eager", self.eager()?)) } else { None };
        for (mode, times) in eager.into_iter().chain([("graph", self.replays(WARM, REPLAYS)?)]) {
            let Times { median_us, p95_us, samples, calls } = times;
            let rows = &self.rows;
            print!(
                r#"{{"engine":"gumball","version":"{}","does":"operator","task":"{}","#,
                version(),
                self.name
            );
            print!(r#""vocab":{},"dtype":"{}","rows":{},"#, rows.vocab(), rows.dtype().name(), rows.rows());
            print!(r#""rows_like":"{}","mode":"{mode}","median_us":{median_us:.3},"#, like.name);
            println!(r#""p95_us":{p95_us:.3},"samples":{samples},"calls":{calls}}}"#);
        }
        Ok(())
    }
}
