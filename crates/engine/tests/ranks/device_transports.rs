//! How rows travel between the devices of ranks: as was asked for, or as they can.

use std::sync::Arc;

use gumball_cuda::Tap;
use gumball_engine::dist::LogitsLayout::{Replicated, Survey, Swap};
use gumball_engine::dist::TransportKind::{self, Auto, Nccl, OneSided};
use gumball_engine::dist::{PlannerConfig, StepKind, Threads, Transport, VocabSplit};
use gumball_engine::{Device, Error, Place, Pool, PoolConfig, ProgramCommunicator, Ranks};

use crate::batch::on_ranks;

const VOCAB: usize = 600;

/// A rank's report of its pool: the transport, the warning, and whether rows are surveyed; or why there is
/// none.
type Made = Result<(&'static str, Option<String>, bool), Error>;

/// Makes the pools of two ranks. `of_last`: whether the last rank's device maps
/// memory of others, and sends messages.
fn made(devices: TransportKind, of_last: (bool, bool), forced: bool) -> Vec<Made> {
    on_ranks(2, |rank| {
        let tap = Tap::on(Arc::clone(Device::emulated().expect("a C++ compiler").runtime()));
        if rank.rank() == 1 {
            tap.set_apart(of_last.0, of_last.1);
        }
        let place = Place::device(Device::new(Arc::new(tap)), 4);
        let planner = PlannerConfig {
            layouts: vec![Swap, Survey, Replicated],
            forced: forced.then_some(Survey),
            ..PlannerConfig::new(VocabSplit::even(VOCAB, 2)?)
        };
        let ranks = Ranks { devices, ..Ranks::new(planner, Box::new(rank)) };
        let pool = Pool::over(PoolConfig { slots: 4, place, ..PoolConfig::new(VOCAB) }, ranks)?;
        let info = pool.ranks().expect("it has ranks");
        let surveys = info.planner.check(Survey).is_ok();
        let decided = info.planner.plan(&pool.shape(&[], 0, StepKind::Decode)?)?.layout;
        assert!(surveys || decided != Survey);
        Ok((info.transport, info.warning.map(str::to_owned), surveys))
    })
}

#[test]
fn devices_that_do_not_reach_each_other_send_messages_and_the_pool_says_why() {
    let unsurveyed =
        "no step takes the layout survey: a survey exchanges words inside kernels, which NCCL does not carry";
    let apart = "rows travel by nccl, because devices do not reach each other's memory: rank 1: no CUDA: map failed: it is kept apart";
    for (devices, of_last, transport, warning, surveys) in [
        (Auto, (true, true), "onesided", None, true),
        (OneSided, (true, false), "onesided", None, true),
        (Auto, (false, true), "nccl", Some(format!("{apart}; {unsurveyed}")), false),
        (Nccl, (true, true), "nccl", Some(unsurveyed.to_owned()), false),
    ] {
        for of_rank in made(devices, of_last, false) {
            assert_eq!(of_rank.unwrap(), (transport, warning.clone(), surveys), "{devices:?}, {of_last:?}");
        }
    }
}

#[test]
fn a_way_between_devices_that_cannot_serve_is_refused_on_all_ranks_with_the_reason() {
    let (windows, messages) = (
        "rank 1: no CUDA: map failed: it is kept apart",
        "rank 1: no CUDA: new_group failed: it is kept apart",
    );
    let surveys =
        "the layout survey is forced, but a survey exchanges words inside kernels, which NCCL does not carry";
    for (devices, of_last, forced, said) in [
        (OneSided, (false, true), false, format!("no access between devices: {windows}")),
        (Nccl, (true, false), false, format!("no transport nccl: {messages}")),
        (
            Auto,
            (false, false),
            false,
            format!("no access between devices: {windows}; and of transport nccl {messages}"),
        ),
        (Nccl, (true, true), true, format!("no transport nccl: {surveys}")),
        (Auto, (false, true), true, format!("no access between devices: {surveys}")),
    ] {
        for of_rank in made(devices, of_last, forced) {
            assert_eq!(of_rank.unwrap_err().to_string(), said, "{devices:?}, {of_last:?}");
        }
    }
}

#[test]
fn a_communicator_of_the_program_serves_gpus_by_nccl_alone() {
    // SAFETY: it is not called: no rank has a GPU.
    let communicator = || Some(unsafe { ProgramCommunicator::new(std::ptr::null_mut()) });
    let over = |devices, place, rank: Threads| {
        let planner = PlannerConfig::new(VocabSplit::even(VOCAB, rank.world()).unwrap());
        let ranks = Ranks { devices, communicator: communicator(), ..Ranks::new(planner, Box::new(rank)) };
        Pool::over(PoolConfig { slots: 4, place, ..PoolConfig::new(VOCAB) }, ranks).unwrap_err()
    };
    let emulated = || Place::device(Device::emulated().expect("a C++ compiler"), 4);
    let of_ranks = on_ranks(2, |rank| Ok::<_, Error>(over(Auto, emulated(), rank)));
    for error in of_ranks {
        let said = "no transport nccl: rank 0: no CUDA: communicator failed: emulated devices take none";
        assert_eq!(error.unwrap().to_string(), said);
    }
    for (devices, place) in [(OneSided, emulated()), (Auto, Place::threads(1))] {
        let alone = gumball_engine::dist::threads(1, crate::batch::PATIENCE).remove(0);
        let said = "communicator cannot be combined with transport: it carries rows on devices, and no transport but nccl does so by it";
        assert_eq!(over(devices, place, alone).to_string(), said);
    }
}

#[test]
fn rows_in_host_memory_do_not_travel_as_those_on_devices() {
    let planner = PlannerConfig::new(VocabSplit::even(VOCAB, 1).unwrap());
    let alone = gumball_engine::dist::threads(1, crate::batch::PATIENCE).remove(0);
    let ranks = Ranks { devices: Nccl, ..Ranks::new(planner, Box::new(alone)) };
    let error = Pool::over(PoolConfig::new(VOCAB), ranks).unwrap_err();
    assert_eq!(error.to_string(), "no transport nccl: rows in host memory take unix, torch or threads");
}
