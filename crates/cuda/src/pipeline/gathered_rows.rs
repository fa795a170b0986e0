//! Rows that are gathered outside of steps: whole on each rank, as long as it works with them.

use gumball_spec::Result;

use crate::memory::rows::Rows;
use crate::pipeline::exchange::Spread;
use crate::pipeline::rank_rows::{Exchange, RankRows};
use crate::pipeline::windows::Windows;
use crate::pipeline::workspace::Workspace;

/// Rows whose exchange is enqueued. All ranks must release them, before any of them gathers others.
#[derive(Debug)]
pub struct GatheredRows {
    exchange: Exchange,
    rows: Rows<'static>,
}

impl GatheredRows {
    /// Enqueues the exchange of rows of which each rank has a part. `ranks`: those of
    /// [`ExchangeLayout::Gather`](crate::ExchangeLayout::Gather) without rows or requests.
    ///
    /// # Errors
    /// - [`Error::Conflict`](gumball_spec::Error::Conflict) if the windows were made without room for rows.
    /// - [`Error::Length`](gumball_spec::Error::Length) if the rows are shorter than this rank's part.
    /// - [`Error::Unavailable`](gumball_spec::Error::Unavailable) if the device fails.
    ///
    /// # Panics
    /// If the windows were made for another workspace, or have room for fewer rows.
    pub fn gather(
        workspace: &Workspace,
        windows: &Windows,
        ranks: &RankRows<'_>,
        parts: &Rows<'_>,
    ) -> Result<Self> {
        assert!(parts.rows() <= workspace.limits().rows, "more rows than a window has");
        let spread = Spread::of_gathered(workspace, windows, ranks, parts.rows())?;
        let rows = spread.window_rows(parts)?;
        let exchange = spread.exchange(workspace, (parts, None), &workspace.bare_step())?;
        // SAFETY: the windows and this workspace outlive enqueued work, and have room for these rows. The
        // creator of `Rows` guarantees the logits.
        unsafe { exchange.begin(workspace) }?;
        Ok(Self { exchange, rows })
    }

    /// Enqueues that this rank reads the rows no more.
    ///
    /// # Errors
    /// - [`Error::Unavailable`](gumball_spec::Error::Unavailable) if the device fails.
    pub fn release(&self, workspace: &Workspace) -> Result<()> {
        // SAFETY: as above. No results travel.
        Ok(unsafe { self.exchange.end(workspace) }?)
    }

    /// Returns the whole rows, which lie in this rank's window until they are released.
    #[must_use]
    pub fn rows(&self) -> &Rows<'_> {
        &self.rows
    }
}
