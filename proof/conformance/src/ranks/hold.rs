//! Random batches over ranks, under every layout, held to a pool on one device with the whole rows; then
//! drafts of their requests.

use gumball_cuda::Rows;
use gumball_engine::dist::{LogitsLayout, PlannerConfig, StepKind};
use gumball_engine::{
    Batch as Requests, Device, HostMasks, Masks, Outputs, Place, Pool, PoolConfig, Slot, Work,
};

use super::Connect;
use super::hold_batch::{Batch, DISTINCT, STEPS, upload};
use super::hold_drafts::hold_drafts;
use super::hold_graph::{hold_graph, hold_heads};
use crate::batch::{WIDTHS, distinct};
use crate::rows::Words;

/// Holds batches of `rows` rows in total to one device. Returns how many there were, and of how many tokens
/// the logprob was held to the trainer's function.
///
/// # Errors
/// A text that says what differs, or what failed.
pub fn hold(device: &Device, connect: &dyn Connect, rows: u64) -> Result<[u64; 2], String> {
    let (mut held, mut index) = ([0; 2], 0);
    while held[0] < rows {
        let more = hold_batch(device, connect, index)?;
        held = [held[0] + more[0], held[1] + more[1]];
        index += 1;
    }
    Ok(held)
}

pub(super) fn hold_batch(device: &Device, connect: &dyn Connect, index: usize) -> Result<[u64; 2], String> {
    let transport = connect.connect(index)?;
    let (rank, world) = (transport.rank(), transport.world());
    let batch = Batch::new(index, world).map_err(|error| error.to_string())?;
    let told = |error: &dyn std::fmt::Display| format!("{batch:?}: {error}");
    let place = Place::Device {
        device: device.clone(),
        rows: batch.rows,
        history_growth: 4096,
        keep_histories: true,
    };
    let kept = batch.kept;
    let config =
        PoolConfig { slots: batch.rows, widths: WIDTHS, place, kept, ..PoolConfig::new(batch.vocab) };
    let planner = PlannerConfig {
        ownership: batch.ownership,
        layouts: connect.layouts(),
        ..PlannerConfig::new(batch.split.clone())
    };
    let distinct: Vec<Vec<f32>> = (0..DISTINCT as u64).map(|seed| distinct(batch.vocab, seed)).collect();
    let run = || -> gumball_spec::Result<Option<String>> {
        let mut one = Pool::new(config.clone())?;
        let mut many = Pool::over(config, connect.ranks(planner, transport))?;
        let mut slots: Vec<Slot> = Vec::new();
        for row in 0..batch.rows {
            let (params, prompt) = (batch.params(row), [row as u32 % batch.vocab as u32, 0, 1]);
            slots.push(one.admit(params.clone(), &prompt)?);
            many.admit(params, &prompt)?;
        }
        let (runtime, split) = (device.runtime(), &batch.split);
        let all: Vec<usize> = (0..batch.rows).collect();
        let whole = upload(runtime, &batch, &distinct, &all, (0..batch.vocab, batch.vocab))?;
        let whole = Rows::of(&whole, batch.dtype, 0, batch.rows, batch.vocab, batch.vocab)?;
        let part = upload(runtime, &batch, &distinct, &all, (split.ids(rank), split.width()))?;
        let part = Rows::of(&part, batch.dtype, 0, batch.rows, split.width(), split.width())?;
        let mask_words = batch.vocab.div_ceil(32);
        let mut words = Words(batch.seed);
        // Of most ids, of ids of one word, or of none.
        let mut mask_word = |row: usize, word: usize| match row / 6 % 5 {
            0 => 0,
            1 if word != row * 7 % mask_words => 0,
            _ => (words.word() | words.word()) as u32,
        };
        let masks: Vec<u32> =
            (0..batch.rows * mask_words).map(|at| mask_word(at / mask_words, at % mask_words)).collect();
        let present: Vec<bool> = all.iter().map(|row| row % 6 == 5).collect();
        let masks =
            Masks::Host(HostMasks::new(&masks, batch.rows, mask_words, mask_words)?.with_present(&present)?);
        let masks = if batch.masked { masks } else { Masks::None };
        let forced: Vec<_> = all.iter().map(|row| (row % 11 == 10).then_some(*row as u32 % 200)).collect();
        let options = Requests { masks, forced: &forced, ..Requests::of(&slots) };
        // A pool that tells kept sets is not surveyed.
        let is_taken = |layout: &LogitsLayout| !batch.kept || *layout != LogitsLayout::Survey;
        let layouts: Vec<LogitsLayout> = connect.layouts().into_iter().filter(is_taken).collect();
        for layout in layouts.iter().copied() {
            let planned = many
                .ranks()
                .expect("it has ranks")
                .planner
                .plan_as(layout, &many.shape(&slots, 0, StepKind::Decode)?);
            let plan = Some(planned);
            let own: Vec<usize> = planned.shares.of(rank).collect();
            let owned = upload(runtime, &batch, &distinct, &own, (0..batch.vocab, batch.vocab))?;
            let rows = match layout {
                LogitsLayout::Replicated => {
                    Rows::of(&owned, batch.dtype, 0, own.len(), batch.vocab, batch.vocab)?
                }
                _ => part,
            };
            let (mut found, mut wanted) = (Outputs::new(), Outputs::new());
            let differs = |what: &str, found: &Outputs, wanted: &Outputs| {
                if let Some(row) =
                    (0..batch.rows).find(|row| batch.kept && found.kept(*row) != wanted.kept(*row))
                {
                    return Some(format!(
                        "rank {rank}, {layout:?}, {what}: the kept set of row {row} differs"
                    ));
                }
                let differing = found.words().iter().zip(wanted.words()).position(|(a, b)| a != b);
                differing.map(|word| {
                    let (row, a, b) = (word % batch.rows, found.words()[word], wanted.words()[word]);
                    format!("rank {rank}, {layout:?}, {what}: word {word}, of row {row} or so, is {a:08x} and not {b:08x}")
                })
            };
            for step in 0..STEPS {
                one.assign(&options)?;
                one.enqueue(&[Work::step(whole)])?;
                many.assign(&Requests { plan, ..options })?;
                many.enqueue(&[Work::step(rows)])?;
                one.fetch(&mut wanted)?;
                many.fetch(&mut found)?;
                let text = differs(&format!("step {step}"), &found, &wanted);
                if let Some(text) = text.or(batch.hold_trained(&distinct, (&mut many, &slots), &found)?) {
                    return Ok(Some(text));
                }
            }
            one.assign(&Requests::of(&slots))?;
            many.assign(&Requests { plan, ..Requests::of(&slots) })?;
            let graph = many.capture(&[Work::step(rows); STEPS])?;
            many.replay(&graph)?;
            one.enqueue(&[Work::step(whole); STEPS])?;
            one.fetch(&mut wanted)?;
            many.fetch(&mut found)?;
            if let Some(text) = differs("the end of a graph", &found, &wanted) {
                return Ok(Some(text));
            }
            for slot in &slots {
                if one.sequence(*slot)?.state() != many.sequence(*slot)?.state() {
                    return Ok(Some(format!("rank {rank}, {layout:?}: the state of slot {slot} differs")));
                }
            }
        }
        let (slots, layouts) = (&slots, &layouts[..]);
        let pools = (&mut one, &mut many);
        if let Some(text) = hold_drafts(&batch, &distinct, pools, (slots, layouts), (whole, part))? {
            return Ok(Some(text));
        }
        if let Some(text) = hold_graph(&batch, &distinct, (&mut one, &mut many), (slots, layouts))? {
            return Ok(Some(text));
        }
        hold_heads(&batch, (&mut one, &mut many), (slots, layouts))
    };
    match run().map_err(|error| told(&error))? {
        None => Ok([(batch.rows * connect.layouts().len() * 2 * STEPS) as u64, batch.trained.get()]),
        Some(text) => Err(told(&text)),
    }
}
