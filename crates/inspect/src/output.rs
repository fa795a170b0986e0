//! Where a command writes: lines of its own, in styles, and text that is not its own.
//!
//! Styles are taken out where they cannot be seen, in a file, a pipe or under `NO_COLOR`. A model's text must
//! come through that unchanged, escape sequences included: it is data. On a terminal the same sequences would
//! be obeyed, so there control characters are shown instead ([`shown`]). What goes to standard error is said
//! or lost; it ends no command.

use std::fmt;
use std::io::{self, BufWriter, IsTerminal, Write};

use anstream::adapter::StripBytes;
use anstream::{AutoStream, ColorChoice};

use crate::shown::escaped;
pub use crate::shown::{message, shown, without_middle};

/// Standard output, or what stands for it.
pub struct Output<'a> {
    to: Box<dyn Write + 'a>,
    /// None where styles stay in.
    strip: Option<StripBytes>,
    is_terminal: bool,
}

impl fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("is_terminal", &self.is_terminal).finish_non_exhaustive()
    }
}

impl Output<'static> {
    /// Takes standard output.
    #[must_use]
    pub fn stdout() -> Self {
        let stdout = io::stdout();
        let strip = AutoStream::choice(&stdout) == ColorChoice::Never;
        let is_terminal = stdout.is_terminal();
        Self::new(BufWriter::new(stdout), !strip, is_terminal)
    }
}

impl<'a> Output<'a> {
    /// Takes any place to write to.
    pub fn new(to: impl Write + 'a, with_styles: bool, is_terminal: bool) -> Self {
        let strip = (!with_styles).then(StripBytes::new);
        Self { to: Box::new(to), strip, is_terminal }
    }

    /// Writes text that is not the command's own: as it is, or on a terminal with its control characters
    /// shown.
    ///
    /// # Errors
    /// What writing gives.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        if self.is_terminal {
            let lines = |c: char| matches!(c, '\n' | '\t');
            return self.to.write_all(escaped(text, lines).as_bytes());
        }
        self.to.write_all(text.as_bytes())
    }
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self { to, strip, .. } = self;
        match strip {
            None => to.write_all(bytes)?,
            Some(strip) => strip.strip_next(bytes).try_for_each(|part| to.write_all(part))?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Writes a line to standard error, in styles where they are seen; where it cannot be written, nothing
/// happens.
pub fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(anstream::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}]0;owned\u{7}\u{9b}2Jb\r\n\tc\u{202e}";

    fn written(with_styles: bool, is_terminal: bool) -> String {
        let mut to = Vec::new();
        let mut out = Output::new(&mut to, with_styles, is_terminal);
        write!(out, "\u{1b}[1mbold\u{1b}[0m ").unwrap();
        out.text(HOSTILE).unwrap();
        drop(out);
        String::from_utf8(to).unwrap()
    }

    #[test]
    fn text_keeps_every_character_in_a_pipe_and_moves_no_terminal() {
        assert_eq!(written(false, false), format!("bold {HOSTILE}"));
        let seen = written(true, true);
        assert_eq!(seen, "\u{1b}[1mbold\u{1b}[0m a\\u{1b}]0;owned\\u{7}\\u{9b}2Jb\\r\n\tc\\u{202e}");
    }
}
