//! Repetition, frequency and presence penalty, sixteen distinct ids at a time (rule E2).

use std::ops::Range;

use gumball_spec::{Row, Scope};

use crate::history::Entry;
use crate::lanes::{Element, Kernel, Lanes, Mask, Proven, WIDTH, dispatch};
use crate::task::Task;
use crate::tiles::Overlay;

/// Adds the penalised ids of a task that a row has to an empty overlay.
///
/// bias: of ascending ids that the row has, added to the penalised ones before the penalties. window: a
/// buffer.
pub fn penalties(
    level: Proven,
    row: Row<'_>,
    task: &Task<'_>,
    ids: Range<u32>,
    bias: &[(u32, f32)],
    window: &mut Vec<Entry>,
    overlay: &mut Overlay,
) {
    let params = task.prepared.params();
    let (f, p) = (params.frequency_penalty, params.presence_penalty);
    let repetition = (params.repetition_penalty != 1.0).then_some(params.repetition_scope);
    let counted = (f != 0.0 || p != 0.0).then_some(params.penalty_scope);
    if repetition.is_none() && counted.is_none() {
        return;
    }
    // By id, so that those outside the row come first and last; they edit nothing (E5).
    let entries = task.history.entries_of(params.penalty_window, window);
    let place = |id: u32| entries.partition_point(|entry| entry.id < id);
    let (entries, start) = (&entries[place(ids.start)..place(ids.end)], ids.start);
    let r = params.repetition_penalty;
    match row {
        Row::F32(row) => {
            dispatch(level, Penalties { row, start, entries, bias, repetition, counted, r, f, p, overlay })
        }
        Row::Bf16(row) => {
            dispatch(level, Penalties { row, start, entries, bias, repetition, counted, r, f, p, overlay })
        }
        Row::F16(row) => {
            dispatch(level, Penalties { row, start, entries, bias, repetition, counted, r, f, p, overlay })
        }
    }
}

struct Penalties<'a, E> {
    row: &'a [E],
    /// The id of the row's first place.
    start: u32,
    entries: &'a [Entry],
    /// By id.
    bias: &'a [(u32, f32)],
    /// What counts as seen, if the repetition penalty is on.
    repetition: Option<Scope>,
    /// What frequency and presence count, if one is on.
    counted: Option<Scope>,
    r: f32,
    f: f32,
    p: f32,
    overlay: &'a mut Overlay,
}

impl<E: Element> Kernel for Penalties<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<L: Lanes>(self, l: L) {
        let Self { row, start, entries, mut bias, overlay, .. } = self;
        let length = entries.len().next_multiple_of(WIDTH);
        overlay.ids.resize(length, 0);
        overlay.z.resize(length, 0.0);
        overlay.raw.resize(length, 0.0);
        let (ids, _) = overlay.ids.as_chunks_mut::<WIDTH>();
        let (out, _) = overlay.z.as_chunks_mut::<WIDTH>();
        let (raw, _) = overlay.raw.as_chunks_mut::<WIDTH>();
        let (r, f, p) = (l.splat(self.r), l.splat(self.f), l.splat(self.p));
        let (lowest, zero) = (l.splat(f32::NEG_INFINITY), l.splat(0.0));
        for (((entries, ids), out), raw) in entries.chunks(WIDTH).zip(ids).zip(out).zip(raw) {
            let (mut z, mut added, mut counts, mut seen) = ([0.0; WIDTH], [0.0; WIDTH], [0; WIDTH], 0);
            for (i, entry) in entries.iter().enumerate() {
                if !bias.is_empty() {
                    bias = &bias[bias.partition_point(|(id, _)| *id < entry.id)..];
                    added[i] =
                        bias.first().filter(|(id, _)| *id == entry.id).map_or(0.0, |(_, amount)| *amount);
                }
                ids[i] = entry.id - start;
                z[i] = row[ids[i] as usize].to_f32();
                counts[i] = count(entry, self.counted);
                seen |= Mask::from(count(entry, self.repetition) > 0) << i;
            }
            let z = l.add(l.min(l.max(l.load(&z), lowest), l.splat(f32::MAX)), zero);
            l.store(z, raw);
            let changeable = l.gt(z, lowest);
            let counts = l.load_u(&counts);
            let any = l.less_u(l.splat_u(0), counts);

            let biased = clamp(l, l.add(z, l.load(&added)));
            let positive = l.gt(biased, zero);
            let repeated = clamp(l, l.select(positive, l.div(biased, r), l.mul(biased, r)));
            let y = l.select(seen, repeated, biased);
            let fewer = clamp(l, l.sub(y, l.mul(f, l.float_of_u64(l.splat_u(0), counts))));
            let fewer = clamp(l, l.sub(fewer, p));
            let y = l.select(any, fewer, y);
            l.store(l.add(l.select(changeable, y, z), zero), out);
        }
        overlay.ids.truncate(entries.len());
        overlay.z.truncate(entries.len());
        overlay.raw.truncate(entries.len());
    }
}

#[inline(always)]
fn clamp<L: Lanes>(l: L, z: L::F) -> L::F {
    l.max(l.min(z, l.splat(f32::MAX)), l.splat(-f32::MAX))
}

#[inline(always)]
fn count(entry: &Entry, scope: Option<Scope>) -> u32 {
    match scope {
        None => 0,
        Some(Scope::Prompt) => entry.prompt,
        Some(Scope::Output) => entry.output,
        Some(Scope::Both) => entry.prompt + entry.output,
    }
}
