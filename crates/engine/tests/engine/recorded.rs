//! Graphs of the host program on an emulated device: their replays do what a pool of the host does,
//! and the host's copies follow.

use gumball_engine::unstable::{Recorded, StepVariant};
use gumball_engine::{
    Batch, DeviceBuffer, DeviceMatrix, DeviceSlice, Drafts, Dtype, Error, IntType, Pool, Rows, Slot, Work,
};
use gumball_spec::num::philox4x32_10;

use crate::cases::{VOCAB, device, params, rows};
use crate::device_verify::Both;

/// Captures work as the host program does; returns the call that replays the graph, and the recording.
fn captured(pool: &mut Pool, work: &[Work<'_>]) -> (impl Fn() + use<>, Recorded) {
    let (runtime, mut recorded) = (pool.device().unwrap().runtime().clone(), None);
    let graph = runtime.capture(&mut || {
        recorded = Some(pool.on_device().unwrap().record(work, StepVariant::Full).unwrap());
        let error = pool.enqueue(work).unwrap_err();
        assert!(matches!(error, Error::Conflict { other: "the capture of a graph", .. }), "{error}");
        Ok(())
    });
    let graph = graph.unwrap();
    // SAFETY: the pool and the memory that the work reads outlive the replays.
    (move || unsafe { graph.replay() }.unwrap(), recorded.unwrap())
}

/// The work of a graph or a call.
#[derive(Clone, Copy, PartialEq)]
enum Piece {
    Step,
    Verify,
    Shorten,
}
use Piece::{Shorten, Step, Verify};

/// Returns what is assigned for pieces of work.
fn batch<'a>(slots: &'a [Slot], pieces: &[Piece]) -> Batch<'a> {
    let counts = if pieces.contains(&Verify) { &[1; 3][..] } else { &[] };
    Batch { counts, ..Batch::of(slots) }
}

#[test]
fn replays_of_several_recordings_are_the_same_work_on_the_host() {
    let Some(device) = device() else { return };
    // The last two leave steps unseen in one replay, of which a device without histories could not tell the
    // tokens.
    let all: [&[Piece]; 7] = [
        &[Step],
        &[Step, Shorten],
        &[Verify],
        &[Verify, Shorten],
        &[Shorten],
        &[Step, Step],
        &[Shorten, Step, Shorten],
    ];
    for (keep_histories, works) in [(false, &all[..5]), (true, &all)] {
        let mut both = Both::new(&device, keep_histories);
        let mut slots = [0, 1, 6].map(|kind| both.admit(params(kind, 2), &[3, 7]));
        let (data, counts, chain) = (rows(0..6), [1, 0, 2], [5, 9, 7]);
        let upload = |list: &[i32]| DeviceBuffer::of(device.runtime(), list).unwrap();
        let (logits, ids, gone) =
            (DeviceBuffer::of(device.runtime(), &data).unwrap(), upload(&chain), upload(&counts));
        let there = |rows| Rows::from(DeviceMatrix::of(&logits, Dtype::F32, 0, rows, VOCAB, VOCAB).unwrap());
        let column = |buffer| DeviceSlice::of(buffer, IntType::I32);
        let on_device = |piece: &Piece| match piece {
            Step => Work::step(there(3)),
            Verify => Work::verify(there(6), Drafts::chain(column(&ids))),
            Shorten => Work::Shorten(column(&gone).into()),
        };
        let of_host = |rows: usize| Rows::logits(&data[..rows * VOCAB], rows, VOCAB).unwrap();
        let on_host = |piece: &Piece| match piece {
            Step => Work::step(of_host(3)),
            Verify => Work::verify(of_host(6), Drafts::chain(&chain)),
            Shorten => Work::Shorten((&counts).into()),
        };
        let graphs: Vec<_> = works
            .iter()
            .map(|pieces| {
                both.device.assign(&batch(&slots, pieces)).unwrap();
                let work: Vec<_> = pieces.iter().map(on_device).collect();
                (captured(&mut both.device, &work), work)
            })
            .collect();
        for turn in 0..120 {
            let [which, how, look, _] = philox4x32_10(7, [turn, 0, 0, 0]).map(|word| word as usize);
            slots.rotate_left(which % 2);
            let (pieces, ((replay, recorded), work)) = (works[how % works.len()], &graphs[how % works.len()]);
            match which % 8 {
                0 => both.step(&slots),
                1 => both.each(|pool| pool.push(slots[0], 8)),
                2 => {
                    both.each(|pool| pool.release(slots[2]));
                    slots[2] = both.admit(params(3, how as u64), &[3, 7]);
                }
                _ => {
                    both.each(|pool| pool.assign(&batch(&slots, pieces)));
                    if which % 8 == 3 {
                        both.device.enqueue(work).unwrap();
                    } else {
                        both.device.on_device().unwrap().before_replay(&[recorded]).unwrap();
                        replay();
                    }
                    let work: Vec<_> = pieces.iter().map(on_host).collect();
                    both.host.enqueue(&work).unwrap();
                    let has_outputs = pieces.iter().any(|piece| *piece != Shorten);
                    if has_outputs && (!keep_histories || look % 3 == 0) {
                        both.host.fetch(&mut both.wanted).unwrap();
                        both.device.fetch(&mut both.seen).unwrap();
                        both.agree(&slots);
                    }
                }
            }
            if !keep_histories || look % 5 == 0 {
                both.have_the_same(&slots);
            }
        }
    }
}

#[test]
fn a_replay_is_refused_for_another_shape_and_in_another_pool() {
    let Some(device) = device() else { return };
    let [mut both, mut other] = [(); 2].map(|()| Both::new(&device, false));
    let slots: [Slot; 2] = [0, 3].map(|kind| both.admit(params(kind, 2), &[3]));
    let logits = DeviceBuffer::of(device.runtime(), &rows(0..2)).unwrap();
    let step = Work::step(DeviceMatrix::of(&logits, Dtype::F32, 0, 2, VOCAB, VOCAB).unwrap());
    both.device.assign(&Batch::of(&slots)).unwrap();
    let (_, recorded) = captured(&mut both.device, &[step, step]);
    assert_eq!(recorded.steps(), 2);
    let refuse = |pool: &mut Pool, batch: Batch<'_>, text| {
        pool.assign(&batch).unwrap();
        let error = pool.on_device().unwrap().before_replay(&[&recorded]).unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    };
    refuse(&mut both.device, Batch::of(&slots[..1]), "slots has length 1, but must have 2 rows");
    let indices = Batch { row_indices: &[0, 0], ..Batch::of(&slots) };
    refuse(&mut both.device, indices, "assignment cannot be combined with step");
    let text = "recorded is that of another pool, but must be what this pool has recorded";
    other.device.admit(params(0, 2), &[3]).unwrap();
    refuse(&mut other.device, Batch::of(&[0]), text);
    for slot in slots {
        assert_eq!(both.device.sequence(slot).unwrap().position(), 1, "nothing was noted");
    }
}
