//! How long a token takes, and how long reading its row does.
//!
//! Both are timed in turns on one thread, so that a ratio compares neighbours in time. The floor is
//! one maximum over the row by the best instructions of the machine.

use std::time::Instant;

use gumball_cpu::floor::Floor;

use crate::logits::Logits;

/// Rounds; their median counts, and their quartiles say how sure it is.
const ROUNDS: usize = 15;
/// The shortest time of a round, in seconds.
const ROUND_SECONDS: f64 = 1.5e-3;

/// The reading of rows.
#[derive(Debug)]
pub struct Reading<'a> {
    floor: Floor,
    logits: &'a Logits,
    next: usize,
}

impl<'a> Reading<'a> {
    /// Gets ready to read the rows of `logits`, one after the other.
    #[must_use]
    pub fn of(logits: &'a Logits) -> Self {
        Self { floor: Floor::best(), logits, next: 0 }
    }

    /// Returns what a reading does, in words.
    #[must_use]
    pub fn does(&self) -> &'static str {
        self.floor.does()
    }

    /// Reads the next row.
    pub fn read(&mut self) {
        std::hint::black_box(self.floor.read(self.logits.row(self.next)));
        self.next = (self.next + 1) % self.logits.rows();
    }
}

/// What rounds of timing came to, in microseconds of a call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The quartile that a quarter of the rounds were below.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// The quartile that a quarter of the rounds were above.
    pub high: f64,
}

impl Spread {
    /// Sorts the times of rounds.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let at = |quarter: usize| times[(times.len() - 1) * quarter / 4];
        Self { low: at(1), median: at(2), high: at(3) }
    }

    /// Returns the distance of the quartiles in parts of the median.
    #[must_use]
    pub fn share(&self) -> f64 {
        (self.high - self.low) / self.median
    }
}

/// Times two things in turns.
pub fn in_turns(mut a: impl FnMut(), mut b: impl FnMut()) -> (Spread, Spread) {
    let (calls_a, calls_b) = (calls(&mut a), calls(&mut b));
    let (mut times_a, mut times_b) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        times_a.push(round(&mut a, calls_a));
        times_b.push(round(&mut b, calls_b));
    }
    (Spread::of(times_a), Spread::of(times_b))
}

/// Returns how many calls fill a round, having warmed up.
fn calls(call: &mut impl FnMut()) -> u32 {
    call();
    let mut calls = 1;
    loop {
        let seconds = round(call, calls) * f64::from(calls) * 1e-6;
        if seconds >= ROUND_SECONDS {
            return calls;
        }
        calls *= 2;
    }
}

/// Returns the microseconds of a call.
fn round(call: &mut impl FnMut(), calls: u32) -> f64 {
    let start = Instant::now();
    (0..calls).for_each(|_| call());
    start.elapsed().as_secs_f64() * 1e6 / f64::from(calls)
}

/// Says why times on this machine cannot be trusted just now; none if they can. `spreads`: one for each thing
/// that was timed.
#[must_use]
pub fn doubt(spreads: &[Spread]) -> Option<String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").ok().and_then(|text| load(&text));
    if let Some(others) = load.map(|load| load.saturating_sub(1)).filter(|others| *others >= cores) {
        return Some(format!(
            "this machine is busy: {others} other threads want its {cores} cores, so every time here is too long, and by how much varies"
        ));
    }
    let wide = spreads.iter().filter(|spread| spread.share() > WIDE).count();
    (wide * 4 > spreads.len()).then(|| {
        format!(
            "the quartiles of {wide} of {} times lie more than {:.0} % apart: something else runs on this machine now and then",
            spreads.len(),
            WIDE * 100.0
        )
    })
}

/// From which distance of its quartiles on a time is in doubt.
const WIDE: f64 = 0.1;

/// Returns how many threads of the whole system want to run, as `/proc/loadavg` says: now, or in the last
/// minute if those were more.
fn load(text: &str) -> Option<usize> {
    let mut fields = text.split_whitespace();
    let minute: f64 = fields.next()?.parse().ok()?;
    let now: usize = fields.nth(2)?.split('/').next()?.parse().ok()?;
    Some(now.max(minute.round() as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_times_that_were_measured() {
        let spread = Spread::of(vec![5.0, 1.0, 4.0, 2.0, 3.0]);
        assert_eq!(spread, Spread { low: 2.0, median: 3.0, high: 4.0 });
        assert_eq!(Spread::of(vec![2.0]), Spread { low: 2.0, median: 2.0, high: 2.0 });
    }

    #[test]
    fn times_that_vary_are_doubted() {
        assert_eq!(load("15.70 15.14 10.18 2/512 4242\n"), Some(16));
        assert_eq!(load("0.10 0.20 0.30 17/512 4242\n"), Some(17));
        assert_eq!(load(""), None);
        let wide = Spread { low: 1.0, median: 2.0, high: 3.0 };
        assert!(doubt(&[wide]).is_some_and(|why| why.contains("busy") || why.contains("apart")));
    }
}
