//! The settings of a pool: its vocabulary, its limits, and where its rows are computed.

use std::time::Duration;

use gumball_cpu::Level;
use gumball_dist::{PlannerConfig, Transport, TransportKind};
use gumball_spec::layout::Widths;
use gumball_spec::{Error, Result, SamplingParams, Watermark, watermark};

use crate::device::{Device, ProgramCommunicator};
use crate::route::Route;

/// The settings of a pool.
///
/// ```
/// use gumball_engine::{Place, Pool, PoolConfig};
/// let pool = Pool::new(PoolConfig { slots: 8, place: Place::threads(2), ..PoolConfig::new(32_000) })?;
/// # Ok::<(), gumball_engine::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// The number of ids in the vocabulary of all requests; in 1..=2^20.
    pub vocab: usize,
    /// How many sequences can be in flight, in 1..2^31. The pool reserves memory for all of them when it is
    /// made; the operating system provides each slot's memory when the slot is first used.
    pub slots: usize,
    /// How many logprobs the outputs have places for, both in 0..=2^20; a request may ask for no more.
    pub widths: Widths,
    /// Whether outputs tell the [kept set](crate::Outputs::kept) of every row, which costs a sort of it on
    /// the host, and the fastest kernels of a device.
    pub kept: bool,
    /// The mark of requests that name none.
    pub watermark: Option<Watermark>,
    /// Whether no request may be without that mark or one of its own.
    pub enforce_all: bool,
    /// The route. A device takes [`Route::Race`] and [`Route::Probabilities`].
    pub route: Route,
    /// Where rows are computed.
    pub place: Place,
}

impl PoolConfig {
    /// Returns the default for a vocabulary: 256 slots, a place for the token's logprob and none besides, no
    /// kept sets, no mark, the route [`Route::Race`], and the place [`Place::host`].
    #[must_use]
    pub fn new(vocab: usize) -> Self {
        Self {
            vocab,
            slots: 256,
            widths: Widths::default(),
            kept: false,
            watermark: None,
            enforce_all: false,
            route: Route::Race,
            place: Place::host(),
        }
    }

    /// Returns what pools of all ranks must have alike besides their vocabulary and place, each with its
    /// name.
    pub(crate) fn terms(&self) -> Vec<(&'static str, String)> {
        let Self { slots, widths, kept, watermark, enforce_all, route, .. } = self;
        vec![
            ("slots", slots.to_string()),
            ("widths", format!("{widths:?}")),
            ("kept", kept.to_string()),
            ("watermark", format!("{:?}", (watermark, enforce_all))),
            ("route", route.to_string()),
        ]
    }
}

/// The mark of a pool's requests that name none (W5), which may be enforced.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DefaultMark {
    watermark: Option<Watermark>,
    enforce_all: bool,
}

impl DefaultMark {
    /// Checks the mark of a pool.
    pub fn new(config: &PoolConfig) -> Result<Self> {
        let PoolConfig { watermark, enforce_all, .. } = *config;
        match watermark {
            Some(mark) => {
                mark.validate()?;
                watermark::key(mark.key)?;
            }
            None if enforce_all => {
                return Err(Error::out_of_range("enforce_all", true, "false in a pool without a watermark"));
            }
            None => {}
        }
        Ok(Self { watermark, enforce_all })
    }

    /// Returns the parameters that a request has in the pool.
    pub fn marked(&self, params: SamplingParams) -> Result<SamplingParams> {
        let watermark = params.watermark.in_pool(self.watermark, self.enforce_all)?;
        Ok(SamplingParams { watermark, ..params })
    }
}

/// Where the rows of a pool are computed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Place {
    /// On the host.
    Host {
        /// How many threads take the rows of a step, in 1..=1024: 1 is the caller's, `None` the threads that
        /// all pools and operators share, one a core, or the caller's where none can be started.
        threads: Option<usize>,
        /// The SIMD level; `None`: the machine's best.
        level: Option<Level>,
    },
    /// On a device. The pool allocates all its memory there at once, except the lists and histories of
    /// requests.
    Device {
        /// The device.
        device: Device,
        /// The number of rows that a step can have; in 1..2^31.
        rows: usize,
        /// The number of tokens by which a history on the device can grow before the pool moves it, which
        /// waits for the device; in 1..2^31.
        history_growth: usize,
        /// Whether the device keeps the histories of all requests, or only the histories that edits read. Set
        /// this to replay steps without fetching each one's outputs and still read the sequences back.
        keep_histories: bool,
    },
}

impl Place {
    /// Returns the host, with the threads that all pools share and the machine's best level.
    #[must_use]
    pub fn host() -> Self {
        Self::Host { threads: None, level: None }
    }

    /// Returns the host, with a number of threads, in 1..=1024: 1 is the caller's.
    #[must_use]
    pub fn threads(threads: usize) -> Self {
        Self::Host { threads: Some(threads), level: None }
    }

    /// Returns a device, for steps of at most `rows` rows, in 1..2^31. Histories grow by 4096 tokens, and the
    /// device keeps the histories that edits read.
    ///
    /// ```no_run
    /// use gumball_engine::{Device, Place, Pool, PoolConfig};
    /// let place = Place::device(Device::cuda(0)?, 64);
    /// let pool = Pool::new(PoolConfig { slots: 64, place, ..PoolConfig::new(151_936) })?;
    /// # Ok::<(), gumball_engine::Error>(())
    /// ```
    #[must_use]
    pub fn device(device: Device, rows: usize) -> Self {
        Self::Device { device, rows, history_growth: 4096, keep_histories: false }
    }
}

/// The ranks that a pool is spread over: see [`Pool::over`](crate::Pool::over).
#[derive(Debug)]
pub struct Ranks {
    /// How the vocabulary is split, and which layouts steps may have.
    pub planner: PlannerConfig,
    /// The connection to the other ranks. Over devices it serves to make the group, and to end it.
    pub transport: Box<dyn Transport>,
    /// How rows travel between devices: [`TransportKind::OneSided`] or [`TransportKind::Nccl`], or `Auto`,
    /// which takes the second where devices do not reach each other's memory. Rows in host memory travel by
    /// `transport`, and `Auto` is for them.
    pub devices: TransportKind,
    /// The program's own communicator of NCCL, from which the ranks make theirs, in place of one that they
    /// make from nothing; rows on GPUs travel by NCCL then.
    pub communicator: Option<ProgramCommunicator>,
    /// How long a device waits for a rank at most; on the host the transport says so. Ranks that compile the
    /// kernels of their rows at the start wait for each other besides.
    pub timeout: Duration,
}

impl Ranks {
    /// Returns ranks that take the usual way between devices, and wait for each other as long there as the
    /// transport does.
    #[must_use]
    pub fn new(planner: PlannerConfig, transport: Box<dyn Transport>) -> Self {
        Self {
            planner,
            devices: TransportKind::Auto,
            communicator: None,
            timeout: transport.timeout(),
            transport,
        }
    }

    /// Checks that rows can travel as was asked for, on a device or in host memory.
    pub(crate) fn check(&self, on_device: bool) -> Result<()> {
        self.devices.check(on_device)?;
        if self.communicator.is_some() && (!on_device || self.devices == TransportKind::OneSided) {
            let reason = "it carries rows on devices, and no transport but nccl does so by it";
            return Err(Error::Conflict { parameter: "communicator", other: "transport", reason });
        }
        Ok(())
    }
}
