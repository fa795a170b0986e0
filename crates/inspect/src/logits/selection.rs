//! Which rows of a file are meant.

use std::str::FromStr;

use gumball_engine::unstable::shown;

use crate::text::count;

/// Row numbers separated by commas, from 0; `A-B` stands for all from A to B.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection(Vec<(usize, usize)>);

impl FromStr for Selection {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("\"{}\" selects no rows; write 0,3,8-15", shown(text));
        let number = |text: &str| text.trim().parse::<usize>().map_err(|_| bad());
        let range = |part: &str| match part.split_once('-') {
            None => number(part).map(|row| (row, row)),
            Some((first, last)) => Ok((number(first)?, number(last)?)),
        };
        let ranges = text.split(',').map(range).collect::<Result<Vec<_>, _>>()?;
        if ranges.iter().any(|(first, last)| first > last) { Err(bad()) } else { Ok(Self(ranges)) }
    }
}

/// The most rows that are used in one go.
const MOST: usize = 1 << 24;

impl Selection {
    /// Returns how many rows there must be.
    #[must_use]
    pub fn least_rows(&self) -> usize {
        self.0.iter().map(|(_, last)| last.saturating_add(1)).max().unwrap_or(0)
    }

    /// Returns whether a row is named.
    #[must_use]
    pub fn names(&self, row: usize) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&row))
    }

    /// Returns which of `rows` rows are to be held, ascending, and the places among them of those that are
    /// meant, in the order named; without a selection all.
    ///
    /// # Errors
    /// The errors of [`Self::of`].
    pub(super) fn chosen(meant: Option<&Self>, rows: usize) -> Result<(Vec<usize>, Vec<usize>), String> {
        let Some(meant) = meant else { return Ok(((0..rows).collect(), (0..rows).collect())) };
        let named = meant.of(rows).map_err(|reason| format!("--rows: {reason}"))?;
        let mut held = named.clone();
        held.sort_unstable();
        held.dedup();
        let places = named.iter().map(|row| held.partition_point(|other| other < row));
        Ok((held.clone(), places.collect()))
    }

    /// Returns how many rows are named, those named twice counted twice.
    pub(super) fn len(&self) -> usize {
        let length = |(first, last): &(usize, usize)| (last - first).saturating_add(1);
        self.0.iter().map(length).fold(0, usize::saturating_add)
    }

    /// Returns the rows, in the order named, if there are that many.
    ///
    /// # Errors
    /// A sentence that names the first row that does not exist, or says that too many are named.
    pub fn of(&self, rows: usize) -> Result<Vec<usize>, String> {
        match self.0.iter().find(|(_, last)| *last >= rows) {
            Some((_, last)) => Err(format!("there is no row {last}; rows are 0..{rows}")),
            None if self.len() > MOST => Err(format!(
                "{} rows are named; at most {} can be",
                count(self.len() as u64),
                count(MOST as u64)
            )),
            None => Ok(self.0.iter().flat_map(|(first, last)| *first..=*last).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_in_the_order_named() {
        let selection: Selection = "4,0-2".parse().unwrap();
        assert_eq!(selection.of(5), Ok(vec![4, 0, 1, 2]));
        assert_eq!(selection.of(4), Err("there is no row 4; rows are 0..4".to_owned()));
        for text in ["", "a", "3-1", "1-"] {
            assert!(text.parse::<Selection>().is_err(), "{text}");
        }
    }
}
