//! Draws from probabilities, and rows renormalised or masked, in batches. Parameters are columns with one
//! value per row, as servers hold them.

use std::error::Error;
use std::sync::Arc;

use gumball_cuda::{
    Buffer, ColumnType, DeviceSlice, Draws, Gpu, IntType, Operators, Output, RowParams, Rows, RowsOut,
    Runtime,
};
use gumball_spec::{FilterOrder, Kind, SamplingParams};

use crate::softmax;
use crate::time_operators::Calls;

pub const NAMES: [&str; 14] = [
    "probs-plain",
    "probs-top-k",
    "probs-top-p",
    "probs-min-p",
    "probs-top-k-top-p",
    "probs-joint",
    "probs-top-p-99",
    "probs-top-k-1000",
    "probs-joint-1000",
    "top-k-renorm",
    "top-p-renorm",
    "top-k-top-p-renorm",
    "joint-renorm",
    "top-k-mask",
];

/// The columns of a batch.
struct Columns {
    top_k: Buffer,
    top_p: Buffer,
    min_p: Buffer,
}

impl Columns {
    fn new(runtime: &Arc<dyn Runtime>, name: &str, rows: usize) -> gumball_cuda::Result<Self> {
        let (k, p): (i32, f32) = match name {
            "probs-top-p-99" => (50, 0.99),
            "probs-top-k-1000" | "probs-joint-1000" => (1000, 0.95),
            _ => (50, 0.9),
        };
        Ok(Self {
            top_k: Buffer::of(runtime, &vec![k; rows])?,
            top_p: Buffer::of(runtime, &vec![p; rows])?,
            min_p: Buffer::of(runtime, &vec![0.05f32; rows])?,
        })
    }

    /// Returns the parameters of an operator.
    fn asked<'b>(&'b self, name: &str, common: &'b SamplingParams) -> RowParams<'b> {
        let with = |filter: &str| is_joint(name) && filter != "min-p" || name.contains(filter);
        RowParams {
            top_k: with("top-k").then(|| DeviceSlice::of(&self.top_k, IntType::I32)),
            top_p: with("top-p").then(|| DeviceSlice::of(&self.top_p, ColumnType::F32)),
            min_p: with("min-p").then(|| DeviceSlice::of(&self.min_p, ColumnType::F32)),
            ..RowParams::new(common)
        }
    }
}

/// Returns whether both filters of an operator act on the whole row.
fn is_joint(name: &str) -> bool {
    name.contains("joint")
}

/// Returns the calls of an operator over batches of logits, or over their softmax.
pub fn calls<'b>(
    gpu: &'b Arc<Gpu>,
    name: &'static str,
    batches: &'b [Rows<'b>],
) -> Result<Calls<'b>, Box<dyn Error>> {
    let runtime = Arc::clone(gpu) as Arc<dyn Runtime>;
    let (rows, vocab, dtype) = (batches[0].rows(), batches[0].vocab(), batches[0].dtype());
    let (masks, draws) = (name == "top-k-mask", name.starts_with("probs-"));
    let probabilities = if masks { None } else { Some(softmax::probabilities(gpu, batches, batches.len())?) };
    let out_bytes = if draws { 0 } else { rows * vocab * dtype.bytes() };
    let mut out = Buffer::zeroed(&runtime, (out_bytes * batches.len()).max(4))?;
    let (tokens, columns) = (Buffer::of(&runtime, &vec![0i32; rows])?, Columns::new(&runtime, name, rows)?);
    let order = if is_joint(name) { FilterOrder::Joint } else { FilterOrder::Default };
    let common = SamplingParams { order, ..SamplingParams::default() };
    let mut operators = Operators::new(runtime);
    let call = move |batch: usize| {
        let start = batch * rows * vocab;
        let given = match &probabilities {
            Some(all) => Rows::of(all, dtype, start, rows, vocab, vocab)?.with_kind(Kind::Probabilities),
            None => batches[batch],
        };
        let params = columns.asked(name, &common);
        if draws {
            let tokens = DeviceSlice::of(&tokens, IntType::I32);
            return operators.sample(&given, &params, &Draws::new(1, 9), None, &tokens, None);
        }
        let out = RowsOut::of(&mut out, dtype, start, rows, vocab, vocab)?;
        if masks {
            return operators.write(Output::Masked, Some(&given), &out, &params, None);
        }
        operators.write(Output::Probabilities, Some(&given), &out, &params, None)
    };
    let bytes = rows * vocab * dtype.bytes() + out_bytes;
    Ok(Calls { gpu, name, rows: batches[0], count: batches.len(), bytes, call: Box::new(call) })
}
