//! Operators: softmax, renormalisation, masks, draws and judged drafts over batches of rows, without
//! sequences.
//!
//! They serve engines that hold probabilities or must return them, and that choose seeds and positions
//! themselves. A row's result is a function of its numbers, its parameters and its draw, as in a
//! [`Pool`](crate::Pool). The batch, the thread count and the SIMD level do not change it, nor does it differ
//! between the host and a device. All arguments are checked before anything is written.
//!
//! | file | holds |
//! | --- | --- |
//! | `arrays`, `matrix` | what operators read and write |
//! | `params`, `draws`, `draft_trees` | arguments; draws and draft trees on the host |
//! | `radii` | how far logits may move before another token is drawn |
//! | `selected_logprobs` | logprobs of tokens that are there already |
//! | `logprobs` | the same over given sets, with entropies and the gradient |
//! | `host` | rows over threads |
//! | `device`, `columns` | kernels of a device; lists that are copied there |

mod arrays;
#[cfg(feature = "cuda")]
mod columns;
#[cfg_attr(not(feature = "cuda"), path = "no_device.rs")]
mod device;
mod draft_trees;
mod draws;
mod host;
mod logprobs;
mod matrix;
mod params;
mod pools;
mod radii;
mod selected_logprobs;

use std::sync::{Mutex, MutexGuard, PoisonError};

use gumball_cpu::{Level, Output};
use gumball_spec::verify::by_probabilities::Judgement;
use gumball_spec::{Error, Kind, Result, SamplingParams, Status};

use arrays::{device_column, host_column, wrong_memory};
use device::OnDevice;
use host::Host;
use selected_logprobs::Selected;

pub use arrays::{PerRowMut, RowsInOut, RowsOut};
pub use draft_trees::{DraftTreeCounts, DraftTrees, HostDraftTrees};
pub use draws::Draws;
pub use logprobs::{GivenLogprobs, GivenTokens, LossDerivatives, WEIGHED_NUMBERS};
pub use matrix::LogitsMut;
pub use params::{PerRow, RowParams};
pub use pools::PoolSlots;

use crate::masks::Masks;
use crate::rows::Rows;

/// The operators of the host or of a device. They keep their buffers from call to call.
///
/// All arrays of a call lie in the memory of the operators: an array that lies elsewhere is an
/// [`Error::OutOfRange`]. Only lists of parameters may lie on the host for operators of a device.
///
/// On a device a call only launches kernels, in the order of the device's stream, and waits for nothing.
/// After a call with at least as many rows it allocates nothing either, so it can be captured in a graph. Its
/// launches share memory of these operators: use separate operators for each stream, and replay graphs that
/// were captured with the same operators one after the other. In columns on a device a value outside its
/// range counts as the nearest value inside, and NaN turns the parameter off.
///
/// ```
/// use gumball_engine::{LogitsMut, Operators, Rows};
///
/// let operators = Operators::new(None, Some(1))?;
/// let logits = [0.0f32, 0.0, 2.0, f32::NEG_INFINITY];
/// let mut probabilities = [0.0f32; 4];
/// let out = LogitsMut::new(&mut probabilities[..], 2, 2)?;
/// operators.softmax((Rows::logits(&logits, 2, 2)?, out), 1.0.into(), None)?;
/// assert_eq!(probabilities, [0.5, 0.5, 1.0, 0.0]);
/// # Ok::<(), gumball_engine::Error>(())
/// ```
#[derive(Debug)]
pub struct Operators {
    place: Place,
}

/// Where operators work.
#[derive(Debug)]
enum Place {
    Host(Host),
    Device(Box<Mutex<OnDevice>>),
}

impl Operators {
    /// Makes operators of the host for a SIMD level and a number of threads.
    ///
    /// `level`: `None` takes the best level of the processor. `threads`: in 1..=1024, where 1 is the caller's
    /// thread. `None` takes the threads that all pools and operators share, one per core.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a level that the processor lacks, or a number of threads outside its
    ///   range.
    /// - [`Error::Unavailable`] if the threads cannot be started.
    pub fn new(level: Option<Level>, threads: Option<usize>) -> Result<Self> {
        Ok(Self { place: Place::Host(Host::new(level, threads)?) })
    }

    /// Returns whether the operators work on a device.
    #[must_use]
    pub fn is_on_device(&self) -> bool {
        !matches!(self.place, Place::Host(_))
    }

    /// Writes the softmax of each row at its temperature, fused.
    ///
    /// The maximum is subtracted before the division by the temperature, so logits of +-1e6 at 0.01 stay
    /// finite. Equal logits get equal probabilities, bit for bit. At temperature 0 the first of the largest
    /// logits gets 1. A row without a logit above -inf becomes all 0 and has the status `EMPTY`.
    ///
    /// # Shapes and units
    /// `rows`: R rows of f32, bf16 or f16 to read, and R rows to write: on the host of any of these types, on
    /// a device f32 or the type of the logits; or R rows to replace. Each number is rounded to the written
    /// type once. `temperature`: one, or one per row. `statuses`: R.
    ///
    /// # Errors
    /// - [`Error::Length`] or [`Error::OutOfRange`] if a shape or type differs.
    /// - [`Error::OutOfRange`] for a temperature other than 0 and outside (0, 2^100] that the host can see,
    ///   or for rows of probabilities.
    /// - [`Error::Conflict`] if the host program captures the stream and a list of the host would have to be
    ///   copied.
    /// - [`Error::Unavailable`] if the system refuses the memory to list the rows; if the device fails; or if
    ///   the host program captures the stream and the operator would have to allocate memory.
    ///
    /// After an error nothing has been written.
    pub fn softmax<'a>(
        &self,
        rows: impl Into<RowsInOut<'a>>,
        temperature: PerRow<'_, f32>,
        statuses: Option<PerRowMut<'_, Status>>,
    ) -> Result<()> {
        let rows = rows.into();
        if rows.kind() == Kind::Probabilities {
            return Err(Error::out_of_range("kind", "probabilities", "logits"));
        }
        let common = SamplingParams::default();
        let params = RowParams { temperature: Some(temperature), ..RowParams::new(&common) };
        self.write(Output::Probabilities, rows, &params, statuses)
    }

    /// Writes the distribution that each row's token is drawn from (rule P4). For logits it is the softmax
    /// after temperature, bans and filters. For probabilities, which need not sum to 1, it is the kept ones,
    /// renormalised. A row without a token becomes all 0.
    ///
    /// All filters of the parameters apply, alone, as a chain or joint. XTC uses its random words for seed 0,
    /// position 0 and draw index 0.
    ///
    /// # Shapes and units
    /// `rows`, `statuses`: as for [`Operators::softmax`]. `params`: columns of R.
    ///
    /// # Errors
    /// - The errors of [`Operators::softmax`].
    /// - The errors of [`SamplingParams::validate_for`], for values that the host can see.
    /// - [`Error::Unavailable`] for bans and biases on a device.
    ///
    /// After an error nothing has been written.
    pub fn probabilities<'a>(
        &self,
        rows: impl Into<RowsInOut<'a>>,
        params: &RowParams<'_>,
        statuses: Option<PerRowMut<'_, Status>>,
    ) -> Result<()> {
        self.write(Output::Probabilities, rows.into(), params, statuses)
    }

    /// Writes each row with only the tokens that its filters and bans keep. Other logits become -inf, other
    /// probabilities 0.
    ///
    /// Rows of only -inf stay as they are. Kept numbers are written as the stages read them: -0.0 as +0.0,
    /// and +inf as `f32::MAX`, which bf16 and f16 round to +inf again.
    ///
    /// # Shapes and units
    /// As for [`Operators::probabilities`].
    ///
    /// # Errors
    /// The errors of [`Operators::probabilities`].
    pub fn mask_logits<'a>(
        &self,
        rows: impl Into<RowsInOut<'a>>,
        params: &RowParams<'_>,
        statuses: Option<PerRowMut<'_, Status>>,
    ) -> Result<()> {
        self.write(Output::Masked, rows.into(), params, statuses)
    }

    fn write(
        &self,
        output: Output,
        rows: RowsInOut<'_>,
        params: &RowParams<'_>,
        statuses: Option<PerRowMut<'_, Status>>,
    ) -> Result<()> {
        let RowsInOut { from, to } = rows;
        match (&self.place, to) {
            (Place::Host(host), RowsOut::Host(to)) => {
                let from = from.map(Rows::here).transpose()?;
                let statuses = host_column("statuses", statuses, to.rows())?;
                let written = host.write(output, from, to, params)?;
                if let Some(statuses) = statuses {
                    statuses.copy_from_slice(&written);
                }
                Ok(())
            }
            (Place::Device(device), RowsOut::Device(to)) => {
                let from = from.map(Rows::there).transpose()?;
                let statuses = device_column("statuses", statuses)?;
                lock(device).write(output, from.as_ref(), &to, params, statuses.as_ref())
            }
            _ => Err(self.wrong_memory("rows")),
        }
    }

    /// Draws a token for each output from the row that it reads, after temperature, filters and bans.
    ///
    /// The token equals the token of a [`Pool`](crate::Pool) whose sequence has this seed, position and draw
    /// index. An output gets [`NONE`](crate::NONE) if its row has no logit above -inf or no probability above
    /// 0, or if its index in a column on the device is not a row.
    ///
    /// # Shapes and units
    /// `rows`: L rows of either kind. `row_indices`: the index of the row that each of R outputs reads; if
    /// `None`, R is L. `params`: columns of L. `draws`: columns of R. `tokens`: R, on a device of i32 or i64.
    /// `statuses`: R, the status of the row that each output reads.
    ///
    /// # Errors
    /// - [`Error::Length`] or [`Error::OutOfRange`] if a shape or type differs, or if a row index that the
    ///   host can see is not a row, or if there are 2^32 outputs or more.
    /// - [`Error::OutOfRange`] for seeds without positions, and without seeds if the host program captures
    ///   the stream.
    /// - [`Error::Unavailable`] without seeds if the system has no entropy.
    /// - The errors of [`SamplingParams::validate_for`], for values that the host can see.
    /// - [`Error::Conflict`] and [`Error::Unavailable`] as in [`Operators::probabilities`].
    ///
    /// After an error nothing has been written.
    pub fn sample<'a>(
        &self,
        rows: impl Into<Rows<'a>>,
        row_indices: Option<PerRow<'_, u32>>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        tokens: PerRowMut<'_, i32>,
        statuses: Option<PerRowMut<'_, Status>>,
    ) -> Result<()> {
        let rows = rows.into();
        match &self.place {
            Place::Host(host) => {
                let rows = rows.here()?;
                let tokens = tokens.on_host("tokens")?;
                let statuses = host_column("statuses", statuses, tokens.len())?;
                host.sample(rows, row_indices, params, draws, tokens, statuses)
            }
            Place::Device(device) => {
                let rows = rows.there()?;
                let tokens = tokens.on_device("tokens")?;
                let statuses = device_column("statuses", statuses)?;
                lock(device).sample(&rows, row_indices, params, draws, &tokens, statuses.as_ref())
            }
        }
    }

    /// Draws a token for each row, by parameters, seeds, positions and draw indices that lie in pools, each
    /// at the row's slot. Otherwise as [`Operators::sample`].
    ///
    /// A program that keeps an element of each pool for every request of its own draws for any of them, in
    /// any order, without gathering their numbers. An output is [`NONE`](crate::NONE) if its slot in a column
    /// on the device is not an index of the pools.
    ///
    /// # Shapes and units
    /// `rows`: L rows of either kind. `pools.slots`: one for each `pools.rows_per_slot` rows. Lists in
    /// `params` and `draws`: `pools.size` elements, columns on a device that or one. `tokens`, `statuses`: L.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a slot that the host can see and that is not below `pools.size`, for pools
    ///   without elements, and unless `rows_per_slot` divides the number of rows.
    /// - [`Error::OutOfRange`] for `high_draws` without positions of 64 bits, so on the host;
    ///   [`Error::Conflict`] for it beside draw indices or offsets.
    /// - The errors of [`Operators::sample`].
    ///
    /// After an error nothing has been written.
    pub fn sample_from_pools<'a>(
        &self,
        rows: impl Into<Rows<'a>>,
        pools: &PoolSlots<'_>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        tokens: PerRowMut<'_, i32>,
        statuses: Option<PerRowMut<'_, Status>>,
    ) -> Result<()> {
        let rows = rows.into();
        match &self.place {
            Place::Host(host) => {
                let rows = rows.here()?;
                let tokens = tokens.on_host("tokens")?;
                let statuses = host_column("statuses", statuses, tokens.len())?;
                host.sample_from_pools(rows, pools, params, draws, tokens, statuses)
            }
            Place::Device(device) => {
                let rows = rows.there()?;
                let tokens = tokens.on_device("tokens")?;
                let statuses = device_column("statuses", statuses)?;
                lock(device).sample_from_pools(&rows, pools, params, draws, &tokens, statuses.as_ref())
            }
        }
    }

    /// Writes the radius of each row: how far all its logits may move without another token being drawn than
    /// the one that [`Operators::sample`] draws by these parameters and keys (rule L7).
    ///
    /// It is, bit for bit, the one that a [`Pool`](crate::Pool) reports in the mode `radius`.
    ///
    /// # Shapes and units
    /// `rows`: R rows of logits. `params`, `draws`: columns of R. `radii`: R, in units of a logit.
    ///
    /// # Errors
    /// - [`Error::Conflict`] for rows of probabilities, and for parameters of which no radius is known; a
    ///   column counts as switched on.
    /// - The errors of [`Operators::sample`].
    ///
    /// After an error nothing has been written.
    pub fn radii<'a>(
        &self,
        rows: impl Into<Rows<'a>>,
        params: &RowParams<'_>,
        draws: &Draws<'_>,
        radii: PerRowMut<'_, f32>,
    ) -> Result<()> {
        let rows = rows.into();
        match &self.place {
            Place::Host(host) => {
                let rows = rows.here()?;
                radii::edits(params, rows.kind(), rows.vocab())?;
                let radii = host_column("radii", Some(radii), rows.rows())?.expect("it is there");
                host.radii(rows, params, draws, radii)
            }
            Place::Device(device) => {
                let rows = rows.there()?;
                let size = radii::edits(params, rows.kind(), rows.vocab())?.size;
                lock(device).radii(&rows, params, draws, size, &radii.on_device("radii")?)
            }
        }
    }

    /// Writes the logprob of one token of each row, and its rank: the ones that a step in which the token is
    /// forced reports in mode `raw` (rule L1), bit for bit. Nothing is drawn.
    ///
    /// # Shapes and units
    /// `rows`: R rows of either kind. `tokens`: an id for each of R rows, or [`NONE`](crate::NONE); in a
    /// column on a device of i32 or i64. `logprobs`: R natural logarithms; -inf for a token whose logit is
    /// -inf or NaN or whose probability is 0, and for `NONE`. `ranks`: R, 1 for the most likely token; 0
    /// where the logprob is -inf for one of these reasons. `statuses`: R, one for each row. The row of a
    /// `NONE` is not read. A token in a column on a device that is no id of the vocabulary counts as `NONE`,
    /// and its row has the status [`Status::NO_ID`].
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a token that the host can see and that is neither an id of the vocabulary
    ///   nor `NONE`, and for arrays that lie in the other memory.
    /// - [`Error::Length`] or [`Error::OutOfRange`] if a shape or type differs.
    /// - [`Error::Conflict`] and [`Error::Unavailable`] as in [`Operators::softmax`].
    ///
    /// After an error nothing has been written.
    pub fn selected_logprobs<'a>(
        &self,
        rows: impl Into<Rows<'a>>,
        tokens: PerRow<'_, i32>,
        logprobs: PerRowMut<'_, f32>,
        ranks: Option<PerRowMut<'_, u32>>,
        statuses: Option<PerRowMut<'_, Status>>,
    ) -> Result<()> {
        let selected = Selected { tokens, logprobs, ranks, statuses };
        match &self.place {
            Place::Host(host) => host.selected_logprobs(rows.into().here()?, selected),
            Place::Device(device) => lock(device).selected_logprobs(&rows.into().there()?, selected),
        }
    }

    /// Writes the logprobs of given ids over given sets of tokens, and the entropies of these sets (rule L4).
    /// The logprob is, bit for bit, the one that a step without edits reports for these logits: with the
    /// step's kept set in mode `processed`, without a set in mode `tempered`, at temperature 1 in mode `raw`.
    ///
    /// # Shapes and units
    /// `rows`: R rows of logits. `tokens`, `out`: the shapes that their fields name. Logprobs are natural;
    /// -inf for an id that its set does not hold, for one whose logit is -inf or NaN, and for `NONE`; 0 for
    /// the ignored id. A row of which all ids are ignored is not read, and all that is written of it is 0.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for an id that is neither of the vocabulary nor `NONE` nor ignored, for a
    ///   temperature outside 0..=2^100, for more than 1024 ids of a row, for rows of probabilities, and for
    ///   arrays that lie in the other memory.
    /// - [`Error::Length`] or [`Error::OutOfRange`] if a shape or type differs.
    /// - [`Error::Conflict`] and [`Error::Unavailable`] as in [`Operators::softmax`].
    ///
    /// After an error nothing has been written.
    pub fn logprobs<'a>(
        &self,
        rows: impl Into<Rows<'a>>,
        tokens: &GivenTokens<'_>,
        out: GivenLogprobs<'_>,
    ) -> Result<()> {
        match &self.place {
            Place::Host(host) => host.logprobs(rows.into().here()?, tokens, out),
            Place::Device(device) => lock(device).logprobs(&rows.into().there()?, tokens, out),
        }
    }

    /// Writes the derivatives of a loss by logits, from its derivatives by the logprobs and the entropies
    /// that [`Operators::logprobs`] wrote (rule L5), in one visit to the rows.
    ///
    /// # Shapes and units
    /// `rows`: the R rows of logits of the former call, and R rows to write, each number rounded once to
    /// their type; or R rows of logits to replace. `tokens`: the value of the former call. `by`: the shapes
    /// that its fields name.
    ///
    /// # Errors
    /// - The errors of [`Operators::logprobs`]. After an error nothing has been written.
    pub fn logprobs_gradient<'a>(
        &self,
        rows: impl Into<RowsInOut<'a>>,
        tokens: &GivenTokens<'_>,
        by: &LossDerivatives<'_>,
    ) -> Result<()> {
        let RowsInOut { from, to } = rows.into();
        match (&self.place, to) {
            (Place::Host(host), RowsOut::Host(to)) => {
                host.logprobs_gradient(from.map(Rows::here).transpose()?, to, tokens, by)
            }
            (Place::Device(device), RowsOut::Device(to)) => {
                let from = from.map(Rows::there).transpose()?;
                lock(device).logprobs_gradient(from.as_ref(), &to, tokens, by)
            }
            _ => Err(self.wrong_memory("rows")),
        }
    }

    /// Packs sets of ids, as kept sets are, without a wait: first how many ids each has, then of each its
    /// ids, ascending, without gaps; of a set with more ids than words its words.
    ///
    /// # Shapes and units
    /// `sets`: a bitmask for each of R rows; on a device its words are a multiple of 4, and so are the words
    /// between rows, from an address that is a multiple of 16. `packed`: R (1 + words) words, of which the
    /// last are not written where sets are short.
    ///
    /// # Errors
    /// - [`Error::Length`] or [`Error::OutOfRange`] if a shape differs, or an array lies in the other memory.
    /// - [`Error::Unavailable`] if the device fails.
    ///
    /// After an error nothing has been written.
    pub fn pack_kept(&self, sets: Masks<'_>, packed: PerRowMut<'_, u32>) -> Result<()> {
        match (&self.place, sets) {
            (Place::Host(_), Masks::Host(sets)) => sets.pack(packed.on_host("packed")?),
            (Place::Device(device), Masks::Device(sets)) => {
                lock(device).pack_kept(&sets, &packed.on_device("packed")?)
            }
            (_, Masks::None) => Err(Error::out_of_range("sets", "absent", "a bitmask for each row")),
            _ => Err(self.wrong_memory("sets")),
        }
    }

    /// Walks each tree of drafts from its root while a draft is accepted, and draws one more token where the
    /// walk ends: by rejection (rule S4 for chains, S5), a chain as a whole (S6), or by thresholds (S7).
    ///
    /// By rejection and as a block every emitted token has the distribution of the target's row, if the
    /// drafts were drawn as these rules ask for. Thresholds are biased towards the drafts.
    ///
    /// Chains, which have no `parents`, are fastest by rejection with `draft_probs`: accepting a draft reads
    /// two probabilities, and of each chain at most two rows are read in full.
    ///
    /// # Shapes and units
    /// `trees`: the shapes that its fields name. `draws`: one per tree, at the position of its first drafts.
    /// `counts`: one per tree.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for a vocabulary outside 1..=2^20, more than 64 drafts (except for the chains
    ///   named above), a threshold outside 0..=1, or a parent that the host sees and that makes no tree, or
    ///   no chain although it is judged as a block.
    /// - [`Error::Length`] if a shape differs.
    /// - [`Error::Conflict`] for `counts.accepted_alone` of other trees than the chains named above.
    /// - The errors of [`Operators::sample`] for seeds without positions, and without seeds.
    /// - [`Error::Conflict`] and [`Error::Unavailable`] as in [`Operators::softmax`].
    ///
    /// After an error nothing has been written.
    pub fn judge(
        &self,
        trees: DraftTrees<'_>,
        judgement: Judgement,
        draws: &Draws<'_>,
        counts: DraftTreeCounts<'_>,
    ) -> Result<()> {
        match (&self.place, trees) {
            (Place::Host(host), DraftTrees::Host { trees, tokens, rows }) => {
                host.judge(&trees, judgement, draws, (tokens, rows), counts)
            }
            (
                Place::Device(device),
                DraftTrees::Device { draft_probs, draft_token_ids, parents, target_probs, tokens, rows },
            ) => {
                let drafts = (draft_token_ids, parents);
                lock(device).judge(
                    (draft_probs, target_probs),
                    drafts,
                    judgement,
                    draws,
                    (tokens, rows),
                    counts,
                )
            }
            _ => Err(self.wrong_memory("trees")),
        }
    }

    /// Returns the error for an argument that lies in the other memory than the operators'.
    fn wrong_memory(&self, parameter: &'static str) -> Error {
        match &self.place {
            Place::Host(_) => wrong_memory(parameter, "a device", "the host"),
            Place::Device(_) => wrong_memory(parameter, "the host", "the device"),
        }
    }
}

/// Locks a device's operators. A panic leaves them consistent: a call checks first and then only launches.
fn lock(device: &Mutex<OnDevice>) -> MutexGuard<'_, OnDevice> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The resource that errors name when the system refuses memory proportional to the rows.
const MEMORY: &str = "memory for rows";
