//! A line that names the thing that the program waits for, while it has no results to show.

use std::borrow::Cow;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The line, on standard error; indicatif draws nothing where that is no terminal. Dropped, it is gone.
#[derive(Debug)]
pub struct Waiting(ProgressBar);

impl Waiting {
    /// Shows it.
    pub fn show(text: impl Into<Cow<'static, str>>) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{msg:.dim}") {
            bar.set_style(style);
        }
        bar.set_message(text);
        bar.tick();
        Self(bar)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
