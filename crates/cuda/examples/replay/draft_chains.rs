//! Chains of three drafts, in batches. Drafter and target differ, so most chains end at their first draft,
//! and their last token is drawn from a whole residual.

use std::error::Error;
use std::sync::Arc;

use gumball_cuda::{
    Buffer, DeviceIntMatrix, DeviceIntMatrixMut, DeviceSlice, DraftTreeRows, DraftTrees, Draws, Dtype, Gpu,
    IntType, Judge, Judged, Rows, Runtime,
};
use gumball_spec::verify::by_probabilities::Judgement;

use crate::rows::{COLD_BYTES, cold};
use crate::softmax;
use crate::time_operators::Calls;

pub const NAME: &str = "chain";
const DRAFTS: usize = 3;
/// The number of rows of a chain: its drafter's and its target's.
const ROWS: usize = 2 * DRAFTS + 1;

/// Returns the calls over batches of chains, with as many chains as `batches` have rows.
pub fn calls<'b>(
    gpu: &'b Arc<Gpu>,
    name: &'static str,
    batches: &'b [Rows<'b>],
) -> Result<Calls<'b>, Box<dyn Error>> {
    let runtime = Arc::clone(gpu) as Arc<dyn Runtime>;
    let (chains, vocab, dtype) = (batches[0].rows(), batches[0].vocab(), batches[0].dtype());
    if dtype != Dtype::F32 {
        return Err("chains are of f32".into());
    }
    let of_a_batch = chains * ROWS * vocab;
    let count = cold(COLD_BYTES, of_a_batch * size_of::<f32>());
    let probabilities = softmax::probabilities(gpu, batches, count * ROWS)?;
    let first_target = chains * DRAFTS * vocab;
    let mut drafts = Vec::with_capacity(count * chains * DRAFTS);
    let mut row = vec![0.0f32; vocab];
    for place in 0..count {
        for draft in 0..chains * DRAFTS {
            probabilities.read((place * of_a_batch + draft * vocab) * size_of::<f32>(), &mut row)?;
            let likeliest = (0..vocab).max_by(|a, b| row[*a].total_cmp(&row[*b]));
            drafts.push(likeliest.unwrap_or_default() as i32);
        }
    }
    let drafts = Buffer::of(&runtime, &drafts)?;
    let mut tokens = Buffer::of(&runtime, &vec![0i32; chains * (DRAFTS + 1)])?;
    let counts = [Buffer::of(&runtime, &vec![0u32; chains])?, Buffer::of(&runtime, &vec![0u32; chains])?];
    let judge = Judge::new(runtime)?;
    let call = move |place: usize| {
        let rows = |start: usize, rows: usize| {
            let start = place * of_a_batch + start;
            DraftTreeRows::of(&probabilities, start, [chains, rows, vocab], [rows * vocab, vocab])
        };
        let first = place * chains * DRAFTS;
        let asked = DraftTrees {
            draft_probs: Some(rows(0, DRAFTS)?),
            draft_token_ids: DeviceIntMatrix::of(&drafts, IntType::I32, first, chains, DRAFTS, DRAFTS)?,
            parents: None,
            target_probs: rows(first_target, DRAFTS + 1)?,
            draws: Draws::new(1, 9),
        };
        let tokens = DeviceIntMatrixMut::of(&mut tokens, IntType::I32, 0, chains, DRAFTS + 1, DRAFTS + 1)?;
        let (accepted, accepted_alone) = (
            Some(DeviceSlice::of(&counts[0], IntType::U32)),
            Some(DeviceSlice::of(&counts[1], IntType::U32)),
        );
        let out = Judged { accepted, accepted_alone, ..Judged::new(tokens) };
        judge.enqueue(&asked, Judgement::Rejection, &out)
    };
    // The row that the last token is drawn from, of drafter and target.
    let bytes = 2 * chains * vocab * size_of::<f32>();
    Ok(Calls { gpu, name, rows: batches[0], count, bytes, call: Box::new(call) })
}
