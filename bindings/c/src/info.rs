//! The description of a pool, and its counts.

use std::ffi::c_char;

use gumball_engine::RanksInfo;
use gumball_engine::dist::LogitsLayout;

use crate::error::Code;
use crate::ffi::{call, require};
use crate::pool::Pool;
use crate::versioned::{versioned, zeroed};

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolInfo {
    pub struct_size: usize,
    pub vocab: usize,
    pub slots: usize,
    /// How many sequences are in flight.
    pub len: usize,
    pub rank: usize,
    pub world: usize,
    /// This rank, 0 of 1 without others, has the logits of the ids from this one to `end_id`.
    pub first_id: usize,
    pub end_id: usize,
    /// The most ids of a rank, to which rows of logits may be padded.
    pub most_ids: usize,
    /// The name of the transport of rows that was taken, unix, or onesided or nccl on devices, which is the
    /// pool's; without ranks NULL.
    pub transport: *const c_char,
    /// Why rows on devices take another transport or fewer layouts than they would in another place, in words
    /// that are the pool's; NULL if they do not.
    pub warning: *const c_char,
    /// 1 if steps of the assigned rows send whole rows to other ranks' devices.
    pub sends_rows: u64,
}

versioned!(PoolInfo, "gumball_pool_info", sends_rows: u64);

/// Numbers since a pool or a head was made; a number that is not counted at its place stays 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    pub struct_size: usize,
    /// Rows whose logits were all computed from hidden states. Heads on a device count rows and logits
    /// themselves: gumball_head_counts.
    pub whole_rows: u64,
    /// Rows that a part of their logits decided by a screen, and how many that took.
    pub certified_rows: u64,
    pub certified_logits: u64,
    /// Rows of which a clustered head computed the probed clusters alone, and how many logits that took; one
    /// that several rows need counts for each.
    pub clustered_rows: u64,
    pub clustered_logits: u64,
    /// How many times all weights, a screen, and centroids were read: once for all rows of a call, or of a
    /// chunk of a score, that need them.
    pub weight_reads: u64,
    pub screen_reads: u64,
    pub centroid_reads: u64,
    /// How many steps each gumball_variant has served on a device: those for replays of the program's graphs
    /// as it was named, others as their rows need.
    pub variant_steps: [u64; 7],
    /// How many steps each gumball_row_layout has served.
    pub layout_steps: [u64; 4],
    /// How many bytes this rank has sent to others, without the 44 in front of each message; devices write
    /// into each other's memory instead.
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

versioned!(Counts, "gumball_counts", received_bytes: u64);

impl Counts {
    pub(crate) fn of_heads(seen: &gumball_engine::HeadCounts) -> Self {
        Self {
            whole_rows: seen.whole_rows,
            certified_rows: seen.certified_rows,
            certified_logits: seen.certified_logits,
            clustered_rows: seen.clustered_rows,
            clustered_logits: seen.clustered_logits,
            weight_reads: seen.weight_reads,
            screen_reads: seen.screen_reads,
            centroid_reads: seen.centroid_reads,
            ..zeroed()
        }
    }
}

/// Cost: small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_describe(pool: Option<&Pool>, out: *mut PoolInfo) -> Code {
    call(|c| {
        let pool = require("pool", pool)?;
        let inner = &pool.inner;
        let vocab = inner.vocab();
        let mut info = PoolInfo {
            vocab,
            slots: inner.capacity(),
            len: inner.len(),
            world: 1,
            end_id: vocab,
            most_ids: vocab,
            ..zeroed()
        };
        if let Some(RanksInfo { planner, group, sends_rows, .. }) = inner.ranks() {
            info.sends_rows = sends_rows.into();
            let (split, ids) = (&planner.config().split, planner.split().ids(group.rank()));
            (info.rank, info.world) = (group.rank(), group.world());
            (info.first_id, info.end_id, info.most_ids) = (ids.start, ids.end, split.width());
            info.transport = pool.transport.as_ptr();
            if let Some(warning) = &pool.warning {
                info.warning = warning.as_ptr();
            }
        }
        c.write("out", out, info)
    })
}

/// Cost: small.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gumball_pool_counts(pool: Option<&mut Pool>, out: *mut Counts) -> Code {
    call(|c| {
        let pool = &mut require("pool", pool)?.inner;
        let mut counts = Counts::of_heads(&pool.head_counts());
        if pool.device().is_some() {
            counts.variant_steps = pool.on_device()?.variants().map(|(_, steps)| steps);
        }
        if let Some(RanksInfo { planner, group, .. }) = pool.ranks() {
            for ((layout, _), steps) in planner.served() {
                let index = LogitsLayout::ALL.iter().position(|known| known == layout);
                counts.layout_steps[index.expect("one of all")] += steps;
            }
            for counted in group.traffic().values() {
                counts.sent_bytes += counted.sent_bytes;
                counts.received_bytes += counted.received_bytes;
            }
        }
        c.write("out", out, counts)
    })
}
