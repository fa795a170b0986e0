//! Text on a terminal: styles, and columns that line up.

use std::io::{self, Write};

use anstyle::{AnsiColor, Reset, Style};

use crate::shown::shown;

/// Headings.
pub const HEAD: Style = Style::new().bold();
/// What matters less.
pub const DIM: Style = Style::new().dimmed();
/// What holds, and winners.
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
/// What does not hold.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// Text about things that were left out or need a look.
pub const WARN: Style = AnsiColor::Yellow.on_default();
/// The end of a style.
pub const PLAIN: Reset = Reset;

/// On which side of its column a cell stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows of cells under headings.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(String, Side)>,
    rows: Vec<(Style, Vec<String>)>,
}

impl Table {
    /// Makes an empty table; a heading that starts with `>` stands over a column of numbers.
    #[must_use]
    pub fn new(headings: &[&str]) -> Self {
        let column = |heading: &&str| match heading.strip_prefix('>') {
            Some(heading) => (heading.to_owned(), Side::Right),
            None => ((*heading).to_owned(), Side::Left),
        };
        Self { columns: headings.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Appends a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.styled(Style::new(), cells);
    }

    /// Appends a row in a style; control characters in its cells are shown as escapes.
    pub fn styled(&mut self, style: Style, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push((style, cells.iter().map(|cell| shown(cell)).collect()));
    }

    /// Writes the table, indented.
    ///
    /// # Errors
    /// What writing gives.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|(_, cells)| cells[column].chars().count());
            cells.max().unwrap_or(0).max(self.columns[column].0.chars().count())
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |out: &mut dyn Write, style: Style, cells: &[String]| -> io::Result<()> {
            let mut text = String::new();
            for ((cell, width), (_, side)) in cells.iter().zip(&widths).zip(&self.columns) {
                let pad = " ".repeat(width - cell.chars().count());
                text.push_str("  ");
                match side {
                    Side::Left => text.extend([cell.as_str(), &pad]),
                    Side::Right => text.extend([pad.as_str(), cell]),
                }
            }
            writeln!(out, "{style}{}{style:#}", text.trim_end())
        };
        let headings: Vec<String> = self.columns.iter().map(|(heading, _)| heading.clone()).collect();
        line(out, DIM, &headings)?;
        for (style, cells) in &self.rows {
            line(out, *style, cells)?;
        }
        Ok(())
    }
}

/// Formats a probability with four significant digits, small ones in powers of ten.
#[must_use]
pub fn probability(p: f64) -> String {
    match p {
        0.0 => "0".to_owned(),
        p if p >= 0.000_1 => format!("{p:.4}"),
        p => format!("{p:.1e}"),
    }
}

/// Formats a whole number with commas between thousands.
#[must_use]
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["name", ">n"]);
        table.row(vec!["a".into(), "10".into()]);
        table.row(vec!["long".into(), "7".into()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        let text = anstream::adapter::strip_str(std::str::from_utf8(&out).unwrap()).to_string();
        assert_eq!(text, "  name   n\n  a     10\n  long   7\n");
    }

    #[test]
    fn thousands_are_set_apart() {
        assert_eq!([0, 999, 1000, 1_048_576].map(count), ["0", "999", "1,000", "1,048,576"]);
    }
}
