//! The parts of a parameter's description (stage, range, flag of the command), and the functions by which its
//! line in `table.rs` makes it.

use super::Parameter;

/// A flag of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Its name, if that is not the parameter's.
    pub name: Option<&'static str>,
    /// What stands for its value, empty if it has none.
    pub value: &'static str,
    /// The effect, for `--help`.
    pub help: &'static str,
}

/// The stage that a parameter speaks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Changes of logits, and bans.
    Edit,
    /// The softmax, which makes probabilities of logits.
    Temperature,
    /// The choice of tokens that may be drawn.
    Filter,
    /// The draw of one of them.
    Draw,
    /// The report.
    Logprobs,
}

/// Starts the rule of a parameter that does something unless it is neutral.
pub(super) const fn switch(stage: Stage) -> Parameter {
    Parameter { is_switch: true, ..setting(stage) }
}

/// Starts the rule of a parameter that says how others act.
pub(super) const fn setting(stage: Stage) -> Parameter {
    Parameter {
        name: "",
        about: "",
        range: None,
        stage,
        is_switch: false,
        filter: None,
        reads_history: false,
        of_logits: false,
        is_foreseen: false,
        is_required: false,
        usual: 0.0,
        flag: None,
    }
}

impl Parameter {
    pub(super) const fn within(self, range: Range) -> Self {
        Self { range: Some(range), ..self }
    }

    pub(super) const fn reads_history(self) -> Self {
        Self { reads_history: true, ..self }
    }

    pub(super) const fn of_logits(self) -> Self {
        Self { of_logits: true, ..self }
    }

    pub(super) const fn foreseen(self) -> Self {
        Self { is_foreseen: true, ..self }
    }

    pub(super) const fn required(self) -> Self {
        Self { is_required: true, ..self }
    }

    pub(super) const fn flag(self, value: &'static str, help: &'static str) -> Self {
        Self { flag: Some(Flag { name: None, value, help }), ..self }
    }

    pub(super) const fn flag_named(
        self,
        name: &'static str,
        value: &'static str,
        help: &'static str,
    ) -> Self {
        Self { flag: Some(Flag { name: Some(name), value, help }), ..self }
    }

    /// Returns the name inside the part: `base` of `dry.base`.
    #[must_use]
    pub fn field(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }
}

/// The range of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The least value.
    pub least: f64,
    /// The largest value.
    pub most: f64,
    /// Whether the least value itself lies outside.
    pub is_open: bool,
    /// The range in words, with the value that switches the parameter off.
    pub words: &'static str,
}

impl Range {
    /// Returns whether a value lies inside; NaN does not.
    #[must_use]
    pub fn contains(&self, value: f64) -> bool {
        (self.least..=self.most).contains(&value) && !(self.is_open && value == self.least)
    }

    /// Returns values for tests of a surface: the ends and their neighbours, as integers if `is_whole` and
    /// else as f32, NaN and infinities.
    #[must_use]
    pub fn probes(&self, is_whole: bool) -> Vec<f64> {
        let beside = |end: f64| match is_whole {
            true => [end - 1.0, end, end + 1.0],
            false => [(end as f32).next_down(), end as f32, (end as f32).next_up()].map(f64::from),
        };
        let mut probes = [beside(self.least), beside(self.most)].concat();
        probes.extend([f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
        probes
    }
}
