//! Drafts drawn by the request's own race from the rows of a drafter (rule S8).
//!
//! Two races with the same arrivals agree more often than two independent draws do, so a draft that is drawn
//! by the words of its position is likely to be the token that is drawn there later. Blocks need words of
//! their own (S6).

use crate::draw::{TAGS, Tags, first_arrivals};
use crate::edit::Hook;
use crate::error::{Error, Result};
use crate::num::Tag;
use crate::oracle::sample;
use crate::params::SamplingParams;
use crate::request::Request;
use crate::row::{NONE, Row};
use crate::survey::{Given, Measure};

use super::coupled::{check_drafts, check_marked};
use super::tree::MAX_DRAFTS;

/// Which random words draw a draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftWords {
    /// The words that the token of its position is drawn by.
    Position,
    /// The words of drafts that are judged as a block.
    Block {
        /// How many drafts stand before it on its path.
        depth: u32,
    },
}

impl DraftWords {
    /// Checks that drafts of a request may be drawn by these words: a mark has none of blocks (W3).
    ///
    /// # Errors
    /// - [`Error::Conflict`] for a watermark and a block.
    pub fn check(self, params: &SamplingParams) -> Result<()> {
        match self {
            DraftWords::Block { .. } => check_marked(params, 1),
            DraftWords::Position => Ok(()),
        }
    }

    /// Returns the tags of the race.
    #[must_use]
    pub fn tags(self) -> Tags {
        match self {
            DraftWords::Position => TAGS,
            DraftWords::Block { depth } => {
                [Tag::DraftTile, Tag::DraftToken].map(|tag| tag as u32 + 256 * depth)
            }
        }
    }

    /// Returns the position that counters hold, for a draft at a position.
    #[must_use]
    pub fn position(self, position: u32) -> u32 {
        match self {
            DraftWords::Position => position,
            DraftWords::Block { depth } => position.wrapping_sub(depth),
        }
    }
}

/// Checks that a draft may stand after a path of `depth` drafts.
///
/// # Errors
/// - [`Error::OutOfRange`] for a path of [`MAX_DRAFTS`] drafts or more.
pub fn check_path(depth: usize) -> Result<()> {
    if depth < MAX_DRAFTS {
        return Ok(());
    }
    Err(Error::out_of_range("paths", format!("of {depth} ids"), format!("of 0..{MAX_DRAFTS}")))
}

/// Draws `count` drafts from a row of a drafter, for the request at that row; [`NONE`] where there are no
/// more.
///
/// # Errors
/// The errors of [`check_drafts`] and [`sample`].
pub fn draft(
    row: Row<'_>,
    request: &Request<'_>,
    words: DraftWords,
    count: usize,
    hook: Option<Hook<'_>>,
) -> Result<Vec<i32>> {
    check_drafts(request.params, 1)?;
    words.check(request.params)?;
    let outcome = sample(row, request, hook)?;
    let ids = match request.emitted() {
        Some(forced) => vec![forced.id],
        None if outcome.order.is_empty() => Vec::new(),
        None if outcome.temperature == 0.0 => outcome.order.clone(),
        None => {
            let measure = Measure::new(request.kind, outcome.temperature);
            let kept = Given::new(&outcome.z, outcome.kept_ids(), measure);
            let race = Request { position: words.position(request.position), mark: outcome.mark, ..*request };
            first_arrivals(&race, &kept, words.tags(), count)
        }
    };
    Ok(ids.into_iter().map(|id| id as i32).chain(std::iter::repeat(NONE)).take(count).collect())
}
