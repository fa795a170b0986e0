//! The head of a request: where it lies, and how tokens are drawn from hidden states there.
//!
//! On the host the request's pool computes and draws. On a device a pool of that device does both, and the
//! host's pool follows: drafts come from it, and it knows the text so far. Both draw the same tokens; only a
//! fast head, which devices alone have, may differ.

use gumball_engine::head::HostMatrix;
use gumball_engine::{
    Batch, Device, DeviceHead, Drafts, HeadCounts, Level, Masks, NONE, Outputs, Place, Pool, PoolConfig,
    Route, Rows, Slot, Widths,
};

use crate::Result;
use crate::head::{HeadArgs, HeadFigures, HeadKind, ModelHead};
use crate::model::Llama;

/// A head, and what draws with it.
#[derive(Debug)]
pub enum RequestHead {
    /// It lies on the host, and the request's pool draws.
    Host(ModelHead),
    /// It lies on a device, and a pool there draws.
    Device(Box<HeadOnDevice>),
}

impl RequestHead {
    /// Makes the head that arguments name for a model, on the device of `place` if there is one; `None` if
    /// they name none. `host` and `slot`: the pool that holds the request. `special_ids`: the ids whose
    /// logits a clustered head always computes. The arguments have passed [`HeadArgs::check`].
    ///
    /// # Errors
    /// - The errors of [`HeadArgs::of_model`] and [`HeadOnDevice::new`].
    pub fn new(
        args: &HeadArgs,
        model: &Llama,
        special_ids: &[u32],
        place: Option<&OnDevice>,
        (host, slot): (&mut Pool, Slot),
    ) -> Result<Option<Self>> {
        let level = host.level().map_or_else(Level::detect, Ok)?;
        let (kind, head) = if args.head == Some(HeadKind::Fast) {
            (HeadKind::Fast, args.rounded(model, level)?)
        } else {
            let Some(head) = args.of_model(model, special_ids, level)? else { return Ok(None) };
            (head.kind(), head)
        };
        Ok(Some(match place {
            Some(place) => Self::Device(Box::new(HeadOnDevice::new(place, kind, &head, host, slot)?)),
            None => Self::Host(head),
        }))
    }

    /// Verifies a chain of drafts from hidden states, one for each row: a draft is accepted if it equals the
    /// token that the request draws there. Appends the emitted tokens to the sequence in `slot`. The drafts
    /// come with the masks of the rows.
    ///
    /// # Errors
    /// The errors of [`Pool::verify`].
    pub fn verify(
        &mut self,
        pool: &mut Pool,
        slot: Slot,
        states: HostMatrix<'_>,
        drafts: (&[i32], Masks<'_>),
        out: &mut Outputs,
    ) -> Result<()> {
        match self {
            Self::Host(head) => {
                let counts = &[drafts.0.len() as u32];
                let batch = Batch { slots: &[slot], counts, masks: drafts.1, ..Batch::default() };
                Ok(pool.verify(Rows::hidden(head.head(), states), &batch, &Drafts::chain(drafts.0), out)?)
            }
            Self::Device(head) => {
                head.verify(states, drafts, out)?;
                let emitted = out.request(0).tokens.iter().filter(|token| **token != NONE);
                Ok(emitted.copied().try_for_each(|token| pool.push(slot, token as u32))?)
            }
        }
    }

    /// Returns its kind.
    #[must_use]
    pub fn kind(&self) -> HeadKind {
        match self {
            Self::Host(head) => head.kind(),
            Self::Device(head) => head.kind,
        }
    }

    /// Returns how many bytes the head has read for each of `tokens` tokens. `counts`: the work of the host's
    /// pool for the rows of this model.
    ///
    /// # Errors
    /// - [`gumball_engine::Error::Unavailable`] if the device fails.
    pub fn figures(&self, counts: HeadCounts, tokens: usize) -> Result<HeadFigures> {
        match self {
            Self::Host(head) => Ok(head.figures(counts, tokens)),
            Self::Device(head) => head.figures(tokens),
        }
    }
}

/// Where the tokens of a request are drawn on a device.
#[derive(Clone, Debug)]
pub struct OnDevice {
    /// The device.
    pub device: Device,
    /// The way from logits to tokens there.
    pub route: Route,
    /// How many logprobs a row reports.
    pub widths: Widths,
    /// The rows of a pass: one more than it may have drafts.
    pub rows: usize,
}

/// A model's head in a device's memory, with the request in a pool there.
#[derive(Debug)]
pub struct HeadOnDevice {
    head: DeviceHead<'static>,
    pool: Pool,
    slot: Slot,
    kind: HeadKind,
    /// The bytes of a row of weights, and of all centroids of a clustered head.
    row_bytes: usize,
    centroid_bytes: usize,
    /// The most rows that a pass had.
    most_rows: usize,
}

impl HeadOnDevice {
    /// Copies a model's head to a device, and admits the request there that `slot` of the host's pool holds.
    /// Figures count the bytes of a row and of the centroids as `model_head` has them.
    ///
    /// # Errors
    /// - The errors of [`DeviceHead::new`], [`Pool::new`] and [`Pool::admit`].
    /// - [`gumball_engine::Error::OutOfRange`] for a fast head of f32 weights.
    pub fn new(
        place: &OnDevice,
        kind: HeadKind,
        model_head: &ModelHead,
        host: &mut Pool,
        slot: Slot,
    ) -> Result<Self> {
        let OnDevice { device, route, widths, rows } = place;
        let (head, weights) = (model_head.head(), model_head.weights());
        let (row_bytes, centroid_bytes) =
            (head.width() * weights.element_bytes(), model_head.centroid_bytes());
        let copied = DeviceHead::new(device, head, *rows)?;
        let copied = if kind == HeadKind::Fast { copied.fast()? } else { copied };
        let config = PoolConfig {
            slots: 1,
            widths: *widths,
            route: route.clone(),
            place: Place::device(device.clone(), *rows),
            ..PoolConfig::new(host.vocab())
        };
        let mut pool = Pool::new(config)?;
        let sequence = host.sequence(slot)?;
        let slot = pool.resume(sequence.params().clone(), sequence.state())?;
        Ok(Self { head: copied, pool, slot, kind, row_bytes, centroid_bytes, most_rows: 0 })
    }

    fn verify(
        &mut self,
        states: HostMatrix<'_>,
        (ids, masks): (&[i32], Masks<'_>),
        out: &mut Outputs,
    ) -> Result<()> {
        self.most_rows = self.most_rows.max(states.rows());
        let batch = Batch { slots: &[self.slot], counts: &[ids.len() as u32], masks, ..Batch::default() };
        Ok(self.pool.verify(Rows::hidden(&self.head, states), &batch, &Drafts::chain(ids), out)?)
    }

    fn figures(&self, tokens: usize) -> Result<HeadFigures> {
        let counts = self.head.counts()?;
        // A device does not count how often it reads weights that several rows share. A row alone reads them
        // once; and the screen, also where that leaves too many logits, unless its request never takes it.
        let certified = counts.certified_rows;
        let is_screened = certified > 0 || self.pool.needs_whole_row(self.slot, false)?.is_none();
        let screened_rows = if is_screened { counts.whole_rows + certified } else { 0 };
        let bytes = counts.whole_rows as f64 * (self.row_bytes * self.head.vocab()) as f64
            + screened_rows as f64 * self.head.screen_bytes() as f64
            + counts.clustered_rows as f64 * self.centroid_bytes as f64
            + (counts.certified_logits + counts.clustered_logits) as f64 * self.row_bytes as f64;
        Ok(HeadFigures {
            device: self.pool.device().map(Device::name),
            bytes_a_token: (self.most_rows <= 1).then_some(bytes / tokens.max(1) as f64),
            ..HeadFigures::of(self.kind, &(&self.head).into(), counts)
        })
    }
}
