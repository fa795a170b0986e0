//! The planner: one object that head, graph and sampler ask for a step's layout and for a rank's share.

use std::collections::BTreeMap;

use gumball_spec::{Error, Result};

use crate::layout::{LogitsLayout, StepKind, StepShape, Thresholds, decide};
use crate::share::{Ownership, Shares, VocabSplit};

/// What the layouts of a group are decided by. All ranks must have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannerConfig {
    /// The parts of the vocabulary.
    pub split: VocabSplit,
    /// Who owns which requests.
    pub ownership: Ownership,
    /// The layouts that may be taken besides [`LogitsLayout::Gather`], which always may: those that buffers and graphs are made for.
    pub layouts: Vec<LogitsLayout>,
    /// From where on each is taken.
    pub thresholds: Thresholds,
    /// The layout of all steps but prefill, if one is forced.
    pub forced: Option<LogitsLayout>,
}

impl PlannerConfig {
    /// Returns the configuration for a split: blocks of requests; `Swap` and `Survey` beside `Gather`.
    #[must_use]
    pub fn new(split: VocabSplit) -> Self {
        Self {
            split,
            ownership: Ownership::Blocks,
            layouts: vec![LogitsLayout::Swap, LogitsLayout::Survey],
            thresholds: Thresholds::default(),
            forced: None,
        }
    }

    /// Returns the configuration with what an environment says: thresholds, and `GUMBALL_DIST_LAYOUT`, which forces a layout.
    ///
    /// # Errors
    /// - [`Error::Unknown`] for a layout without that name.
    /// - Those of [`Thresholds::with_environment`].
    pub fn with_environment(mut self, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        if let Some(name) = variable("GUMBALL_DIST_LAYOUT").filter(|name| name != "auto") {
            self.forced = Some(LogitsLayout::of_name(&name)?);
        }
        self.thresholds = self.thresholds.with_environment(variable)?;
        Ok(self)
    }
}

/// What was decided for a step, and what follows for a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The layout.
    pub layout: LogitsLayout,
    /// The requests, shared out.
    pub shares: Shares,
    /// The number of requests, padding included, that the layout was decided for.
    pub batch: usize,
}

/// Decides the layouts of steps, and counts them.
#[derive(Clone, Debug)]
pub struct Planner {
    config: PlannerConfig,
    served: BTreeMap<(LogitsLayout, usize), u64>,
}

impl Planner {
    /// Makes a planner.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if a layout is forced that is not configured.
    pub fn new(config: PlannerConfig) -> Result<Self> {
        let planner = Self { config, served: BTreeMap::new() };
        planner.config.forced.map_or(Ok(()), |layout| planner.check(layout))?;
        Ok(planner)
    }

    /// Returns the configuration.
    #[must_use]
    pub fn config(&self) -> &PlannerConfig {
        &self.config
    }

    /// Returns the parts of the vocabulary.
    #[must_use]
    pub fn split(&self) -> &VocabSplit {
        &self.config.split
    }

    /// Checks that a layout was configured.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if it was not.
    pub fn check(&self, layout: LogitsLayout) -> Result<()> {
        if layout == LogitsLayout::Gather || self.config.layouts.contains(&layout) {
            return Ok(());
        }
        let names = self.config.layouts.iter().map(|layout| format!(", {}", layout.name()));
        let allowed = format!("one that was configured: gather{}", names.collect::<String>());
        Err(Error::out_of_range("layout", layout.name(), allowed))
    }

    /// Decides the layout of a step. Asking changes nothing and may be repeated: a graph asks when it is captured, the head and the
    /// sampler at every step.
    ///
    /// # Errors
    /// Those of [`decide`].
    pub fn plan(&self, shape: &StepShape) -> Result<Plan> {
        let PlannerConfig { split, layouts, thresholds, forced, .. } = &self.config;
        let decided = decide(shape, split.vocab(), split.world(), layouts, thresholds)?;
        let is_free = shape.kind != StepKind::Prefill;
        let layout = forced.filter(|_| is_free).unwrap_or(decided);
        Ok(self.plan_as(layout, shape))
    }

    /// Returns the plan of a step for a layout that the caller chose.
    #[must_use]
    pub fn plan_as(&self, layout: LogitsLayout, shape: &StepShape) -> Plan {
        let shares = Shares::new(self.config.ownership, shape.requests, self.split().world());
        Plan { layout, shares, batch: shape.batch() }
    }

    /// Counts a step.
    pub fn count(&mut self, plan: &Plan) {
        *self.served.entry((plan.layout, plan.batch)).or_default() += 1;
    }

    /// Returns how many steps each layout and batch size served.
    #[must_use]
    pub fn served(&self) -> &BTreeMap<(LogitsLayout, usize), u64> {
        &self.served
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> PlannerConfig {
        PlannerConfig::new(VocabSplit::even(100_000, 4).unwrap())
    }

    #[test]
    fn a_layout_that_was_not_configured_is_an_error() {
        let config = PlannerConfig { layouts: vec![LogitsLayout::Survey], ..config() };
        let planner = Planner::new(config.clone()).unwrap();
        assert_eq!(planner.check(LogitsLayout::Gather), Ok(()));
        let error = planner.check(LogitsLayout::Swap).unwrap_err();
        let said = "layout is swap, but must be one that was configured: gather, survey";
        assert_eq!(error.to_string(), said);
        let forced = PlannerConfig { forced: Some(LogitsLayout::Swap), ..config };
        assert_eq!(Planner::new(forced).unwrap_err().to_string(), said);
    }

    #[test]
    fn the_environment_forces_a_layout_for_all_but_prefill() {
        let variable = |name: &str| (name == "GUMBALL_DIST_LAYOUT").then(|| "swap".to_owned());
        let planner = Planner::new(config().with_environment(variable).unwrap()).unwrap();
        let shape = StepShape { requests: 1, ..Default::default() };
        assert_eq!(planner.plan(&shape).unwrap().layout, LogitsLayout::Swap);
        let shape = StepShape { kind: StepKind::Prefill, ..shape };
        assert_eq!(planner.plan(&shape).unwrap().layout, LogitsLayout::Gather);
        let error = config().with_environment(|_| Some("swop".to_owned())).unwrap_err();
        let said = "layout \"swop\" is not known; known are: gather, swap, survey, replicated; do you mean \"swap\"?";
        assert_eq!(error.to_string(), said);
    }

    #[test]
    fn steps_are_counted_by_layout_and_batch() {
        let mut planner = Planner::new(config()).unwrap();
        for requests in [1, 40, 40] {
            let shape = StepShape { requests, needs: crate::layout::Needs::Whole, ..Default::default() };
            let plan = planner.plan(&shape).unwrap();
            planner.count(&plan);
        }
        let served: Vec<_> = planner.served().iter().map(|(key, steps)| (*key, *steps)).collect();
        assert_eq!(served, [((LogitsLayout::Gather, 1), 1), ((LogitsLayout::Swap, 40), 2)]);
    }
}
