//! Rows that are spread over the devices of the ranks of a group.
//!
//! Devices write into each other's memory: the host takes part when a group is made, and not in its steps. So steps are enqueued,
//! captured and replayed like those of one device.

mod at_devices;
mod step;
mod watch;

use std::time::Duration;

use gumball_cuda::{MemoryHandle, Windows};
use gumball_dist::{Costs, LogitsLayout, Plan, Planner, StepDigest, What};
use gumball_spec::error::quoted;
use gumball_spec::{Error, RanksError, Result};

use super::on_gpu::OnGpu;
use super::probabilities::refused;
use crate::config::{PoolConfig, Ranks};
use crate::ranks::Common;
use crate::route::Route;
use crate::slot::Slot;
use crate::verify_mode::VerifyMode;

/// A device as the place of rows that are spread over the devices of several ranks.
#[derive(Debug)]
pub(crate) struct GpuRanks {
    // Dropped in this order: the windows are the last that peers use.
    gpu: OnGpu,
    common: Common,
    windows: Windows,
    timeout: Duration,
    assigned: Assigned,
    /// That of the last step.
    digest: StepDigest,
    broken: Option<Error>,
    /// Why the waits of the device were ended, if they were.
    gone: Option<Error>,
}

/// The assignment of the next steps, in the order of the batch.
#[derive(Debug, Default)]
struct Assigned {
    slots: Vec<Slot>,
    /// How many drafts each request has, and how they are judged; `None` for a step.
    drafts: Option<(Vec<u32>, VerifyMode)>,
    plan: Option<Plan>,
    /// That of a step without drafts of the host.
    digest: StepDigest,
    /// The first of the assigned rows that each rank owns, and the number of rows.
    first_rows: Vec<usize>,
    /// The first of the assigned requests of each rank, and the number of requests.
    first_requests: Vec<usize>,
    /// The row of the batch that each assigned row is; empty if they have one order.
    batch_rows: Vec<u32>,
}

/// The most bytes of why a device of a rank cannot reach the memory of another.
const MOST_REASON: usize = 400;

impl GpuRanks {
    pub fn new(config: &PoolConfig, ranks: Ranks) -> Result<Self> {
        let Ranks { mut planner, transport, timeout } = ranks;
        planner.costs.get_or_insert(Costs::NVLINK);
        if config.route == Route::Probabilities {
            return Err(refused("ranks"));
        }
        if config.kept {
            let reason = "kept sets are not sent to other ranks";
            return Err(Error::Conflict { parameter: "kept", other: "ranks", reason });
        }
        let gpu = OnGpu::new(config)?;
        let parameters = [
            ("slots", config.slots.to_string()),
            ("rows", gpu.rows.to_string()),
            ("widths", format!("{:?}", config.widths)),
            ("timeout", format!("{timeout:?}")),
        ];
        let (rank, world) = (transport.rank(), transport.world());
        let planner = Planner::new(planner)?;
        let surveys = planner.config().layouts.contains(&LogitsLayout::Survey);
        let windows = Windows::new(&gpu.workspace, rank, world, surveys)?;
        let common = Common::join(planner, transport, &parameters)?;
        let mut ranks = Self {
            gpu,
            common,
            windows,
            timeout,
            assigned: Assigned::default(),
            digest: StepDigest::default(),
            broken: None,
            gone: None,
        };
        ranks.map_windows()?;
        Ok(ranks)
    }

    /// Hands out this rank's window and maps those of the others, on all ranks or on none.
    fn map_windows(&mut self) -> Result<()> {
        let own = self.windows.handle();
        let own_bytes = own.as_ref().map_or(&[][..], |handle| bytemuck::bytes_of(handle));
        let messages =
            self.common.group.all_gather(What::Windows, own_bytes, |_| size_of::<MemoryHandle>())?;
        let handle = |bytes: &Vec<u8>| bytemuck::try_pod_read_unaligned::<MemoryHandle>(bytes).ok();
        let handles: Option<Vec<MemoryHandle>> = messages.iter().map(handle).collect();
        let mapped = match (own, handles) {
            (Err(error), _) => Err(error),
            // Another rank has no handle, and says why in the next exchange.
            (_, None) => Ok(()),
            // The ranks agreed on the limits of their workspaces, and `drop` waits for all before it frees a window.
            (_, Some(handles)) => self.windows.map(&handles, self.timeout),
        };
        let said = mapped.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let said = &said.as_bytes()[..said.len().min(MOST_REASON)];
        let reasons = self.common.group.all_gather(What::Windows, said, |_| MOST_REASON)?;
        match reasons.iter().enumerate().find(|(_, reason)| !reason.is_empty()) {
            None => Ok(()),
            Some((rank, reason)) => Err(RanksError::Unavailable {
                what: "access between devices".to_owned(),
                reason: format!("rank {rank}: {}", quoted(reason, MOST_REASON)),
            }
            .into()),
        }
    }
}

/// Returns whether an error says that a rank has ended.
fn is_lost(error: &Error) -> bool {
    matches!(error.of_ranks(), Some(RanksError::Lost { .. }))
}

impl Drop for GpuRanks {
    fn drop(&mut self) {
        // Waits for the last step; its results are not needed any more.
        let _ = self.read_results(&mut []);
        self.windows.unmap();
        // A window may be freed once no rank writes it any more: all have come here, or have ended. An exchange ends at the first rank
        // that is lost, and says nothing of those behind it.
        self.common.group.begin(StepDigest::default());
        match self.common.group.all_gather(What::Windows, &[], |_| 0) {
            Ok(_) => {}
            Err(error) if is_lost(&error) && self.common.group.world() == 2 => {}
            Err(_) => self.windows.abandon(),
        }
    }
}
