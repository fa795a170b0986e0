//! The planner: one object that head, graph and sampler ask for a step's layout and for a rank's share.

use std::collections::BTreeMap;

use gumball_spec::{Error, Result};

use crate::costs::Costs;
use crate::layout::{LogitsLayout, StepKind, StepShape};
use crate::share::{Ownership, Shares, VocabSplit};

/// The settings that decide the layouts of a group. All ranks must have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannerConfig {
    /// The parts of the vocabulary.
    pub split: VocabSplit,
    /// Who owns which requests.
    pub ownership: Ownership,
    /// The layouts that may be taken, which memory and graphs are made for. [`LogitsLayout::Gather`] may
    /// besides, unless these are [`LogitsLayout::Replicated`] alone.
    pub layouts: Vec<LogitsLayout>,
    /// What layouts cost. `None`: [`Costs::NVLINK`] for a pool on devices; on the host [`Costs::NETWORK`]
    /// over `torch`, else [`Costs::HOST`].
    pub costs: Option<Costs>,
    /// The bytes of a logit, 4 or 2, by which layouts are decided; devices load the kernels of its types at
    /// the start.
    pub logit_bytes: usize,
    /// The layout of all steps that it serves, if one is forced: prefill gathers, and drafts that are judged
    /// are not surveyed.
    pub forced: Option<LogitsLayout>,
}

impl PlannerConfig {
    /// Returns the configuration for a split: blocks of requests; `Swap` and `Survey` beside `Gather`; logits
    /// of f32.
    #[must_use]
    pub fn new(split: VocabSplit) -> Self {
        Self {
            split,
            ownership: Ownership::Blocks,
            layouts: vec![LogitsLayout::Swap, LogitsLayout::Survey],
            costs: None,
            logit_bytes: 4,
            forced: None,
        }
    }

    /// Returns the configuration with what an environment says: `GUMBALL_DIST_LAYOUT` forces a layout.
    ///
    /// # Errors
    /// - [`Error::Unknown`] for a layout without that name.
    pub fn with_environment(mut self, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        if let Some(name) = variable("GUMBALL_DIST_LAYOUT").filter(|name| name != "auto") {
            self.forced = Some(LogitsLayout::of_name(&name)?);
        }
        Ok(self)
    }

    /// Returns whether steps may take a layout.
    #[must_use]
    pub fn may_take(&self, layout: LogitsLayout) -> bool {
        let is_implied = layout == LogitsLayout::Gather && self.layouts != [LogitsLayout::Replicated];
        is_implied || self.layouts.contains(&layout)
    }

    /// Returns the layout of a step: a pure function, so that all who ask it agree.
    ///
    /// If `Replicated` is all that was configured, it is that. Prefill gathers. Data-parallel hidden states
    /// take a replicated head where there is one. Otherwise it is the layout that takes the least time, by
    /// the costs, of the ones that may be taken and serve the step. Drafts that are judged by probabilities
    /// are not surveyed.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for more requests than the graph was captured for.
    pub fn decide(&self, shape: &StepShape) -> Result<LogitsLayout> {
        if shape.captured.is_some_and(|captured| captured < shape.requests) {
            let allowed = format!("in 0..={}, the batch that the graph was captured for", shape.batch());
            return Err(Error::out_of_range("requests", shape.requests, allowed));
        }
        Ok(match shape.kind {
            _ if !self.may_take(LogitsLayout::Gather) => LogitsLayout::Replicated,
            StepKind::Prefill => LogitsLayout::Gather,
            _ if shape.data_parallel && self.layouts.contains(&LogitsLayout::Replicated) => {
                LogitsLayout::Replicated
            }
            _ => self.costs.unwrap_or(Costs::HOST).least(shape, &self.split, self.logit_bytes, &self.layouts),
        })
    }
}

/// The layout decided for a step, and each rank's share of it.
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
    /// - [`Error::OutOfRange`] if a layout is forced that is not configured, or a logit has neither 4 bytes
    ///   nor 2.
    pub fn new(mut config: PlannerConfig) -> Result<Self> {
        if ![2, 4].contains(&config.logit_bytes) {
            return Err(Error::out_of_range("logit_bytes", config.logit_bytes, "4 or 2"));
        }
        config.layouts = LogitsLayout::ALL.into_iter().filter(|layout| config.may_take(*layout)).collect();
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

    /// Sets what layouts cost, where all ranks have found it out at start.
    pub fn set_costs(&mut self, costs: Costs) {
        self.config.costs = Some(costs);
    }

    /// Takes a layout from the configured ones, because the ranks cannot serve it.
    pub fn leave_out(&mut self, layout: LogitsLayout) {
        self.config.layouts.retain(|configured| *configured != layout);
    }

    /// Checks that a layout was configured.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] if it was not.
    pub fn check(&self, layout: LogitsLayout) -> Result<()> {
        if self.config.layouts.contains(&layout) {
            return Ok(());
        }
        let names: Vec<&str> = self.config.layouts.iter().map(|layout| layout.name()).collect();
        let allowed = format!("one that was configured: {}", names.join(", "));
        Err(Error::out_of_range("layout", layout.name(), allowed))
    }

    /// Decides the layout of a step. Asking changes nothing and may be repeated: a graph asks when it is
    /// captured, the head and the sampler at every step.
    ///
    /// # Errors
    /// The errors of [`PlannerConfig::decide`].
    pub fn plan(&self, shape: &StepShape) -> Result<Plan> {
        let decided = self.config.decide(shape)?;
        let serves = |layout: &LogitsLayout| match shape.kind {
            StepKind::Prefill => false,
            StepKind::Decode | StepKind::Verify => true,
            StepKind::Judge => *layout != LogitsLayout::Survey,
        };
        let layout = self.config.forced.filter(serves).unwrap_or(decided);
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
    use LogitsLayout::{Gather, Replicated, Survey, Swap};

    use super::*;
    use crate::layout::Needs;

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

    fn decided(shape: StepShape, layouts: &[LogitsLayout]) -> LogitsLayout {
        PlannerConfig { layouts: layouts.to_vec(), ..config() }.decide(&shape).unwrap()
    }

    #[test]
    fn prefill_gathers_whatever_is_configured() {
        let shape = StepShape { requests: 64, kind: StepKind::Prefill, ..Default::default() };
        assert_eq!(decided(shape, &LogitsLayout::ALL), Gather);
    }

    #[test]
    fn a_replicated_head_serves_data_parallel_hidden_states() {
        let shape =
            StepShape { requests: 64, needs: Needs::Whole, data_parallel: true, ..Default::default() };
        assert_eq!(decided(shape, &LogitsLayout::ALL), Replicated);
        assert_eq!(decided(shape, &[Gather]), Gather);
        let shape = StepShape { data_parallel: false, ..shape };
        assert_eq!(decided(shape, &[Replicated, Swap]), Swap);
    }

    #[test]
    fn a_replicated_head_that_is_all_there_is_serves_every_step() {
        for kind in [StepKind::Prefill, StepKind::Decode, StepKind::Verify, StepKind::Judge] {
            let shape = StepShape { requests: 64, kind, ..Default::default() };
            assert_eq!(
                [&[Replicated][..], &[Gather, Replicated]].map(|of| decided(shape, of)),
                [Replicated, Gather]
            );
        }
        let alone = PlannerConfig { layouts: vec![Replicated], ..config() };
        let error = Planner::new(alone).unwrap().check(Gather).unwrap_err();
        assert_eq!(error.to_string(), "layout is gather, but must be one that was configured: replicated");
        let mut planner =
            Planner::new(PlannerConfig { layouts: vec![Survey, Replicated], ..config() }).unwrap();
        planner.leave_out(Survey);
        assert_eq!([Gather, Replicated].map(|layout| planner.check(layout)), [Ok(()), Ok(())]);
    }

    #[test]
    fn the_batch_of_the_graph_decides_and_not_the_requests_in_it() {
        let shape = StepShape { requests: 1, needs: Needs::Whole, ..Default::default() };
        let of = |captured| decided(StepShape { captured, ..shape }, &[Swap]);
        assert_eq!([None, Some(1), Some(64)].map(of), [Gather, Gather, Swap]);
        let shape = StepShape { requests: 17, captured: Some(16), ..Default::default() };
        assert_eq!(
            config().decide(&shape).unwrap_err().to_string(),
            "requests is 17, but must be in 0..=16, the batch that the graph was captured for"
        );
    }

    #[test]
    fn one_rank_exchanges_nothing() {
        let split = VocabSplit::even(100_000, 1).unwrap();
        let shape = StepShape { requests: 64, ..Default::default() };
        assert_eq!(PlannerConfig::new(split).decide(&shape), Ok(Gather));
    }

    #[test]
    fn a_logit_has_four_bytes_or_two() {
        let error = Planner::new(PlannerConfig { logit_bytes: 3, ..config() }).unwrap_err();
        assert_eq!(error.to_string(), "logit_bytes is 3, but must be 4 or 2");
    }

    #[test]
    fn the_environment_forces_a_layout_for_all_steps_that_it_serves() {
        let variable = |name: &str| (name == "GUMBALL_DIST_LAYOUT").then(|| "swap".to_owned());
        let planner = Planner::new(config().with_environment(variable).unwrap()).unwrap();
        let shape = StepShape { requests: 1, ..Default::default() };
        assert_eq!(planner.plan(&shape).unwrap().layout, LogitsLayout::Swap);
        let shape = StepShape { kind: StepKind::Prefill, ..shape };
        assert_eq!(planner.plan(&shape).unwrap().layout, LogitsLayout::Gather);
        let planner = Planner::new(PlannerConfig { forced: Some(Survey), ..config() }).unwrap();
        let kinds = [StepKind::Decode, StepKind::Verify, StepKind::Judge, StepKind::Prefill];
        let layouts =
            kinds.map(|kind| planner.plan(&StepShape { requests: 64, kind, ..shape }).unwrap().layout);
        assert_eq!(layouts, [Survey, Survey, Swap, Gather]);
        let error = config().with_environment(|_| Some("swop".to_owned())).unwrap_err();
        let said = "layout \"swop\" is not known (do you mean \"swap\"?); known are: gather, swap, survey, replicated";
        assert_eq!(error.to_string(), said);
    }

    #[test]
    fn steps_are_counted_by_layout_and_batch() {
        let mut planner = Planner::new(config()).unwrap();
        for requests in [1, 40, 40] {
            let shape = StepShape { requests, needs: Needs::Whole, ..Default::default() };
            let plan = planner.plan(&shape).unwrap();
            planner.count(&plan);
        }
        let served: Vec<_> = planner.served().iter().map(|(key, steps)| (*key, *steps)).collect();
        assert_eq!(served, [((LogitsLayout::Gather, 1), 1), ((LogitsLayout::Swap, 40), 2)]);
    }
}
