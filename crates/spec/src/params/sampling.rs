//! Questions of stages and tests to parameters: which filters are on, which parameters act.

use super::{
    Dry, DynamicTemperature, Field, Filter, FilterOrder, LogprobsParams, Loops, Parameter, Parameters,
    SamplingParams, Section, Stage, Watermark,
};

/// Temperatures below this are greedy (N6).
pub const MIN_TEMPERATURE: f32 = f32::from_bits((127 - 100) << 23);

/// The place in the table of each filter's parameter.
const PLACES: [usize; Filter::ALL.len()] = {
    let mut places = [usize::MAX; Filter::ALL.len()];
    let mut place = 0;
    while place < SamplingParams::TABLE.len() {
        if let Some(filter) = SamplingParams::TABLE[place].filter {
            places[filter as usize] = place;
        }
        place += 1;
    }
    let mut filter = 0;
    while filter < places.len() {
        assert!(places[filter] < SamplingParams::TABLE.len(), "each filter has a parameter");
        filter += 1;
    }
    places
};

impl SamplingParams {
    /// Returns whether a temperature means greedy: it is 0, or so small that only the most likely token could
    /// be drawn.
    #[must_use]
    pub fn is_greedy(temperature: f32) -> bool {
        temperature < MIN_TEMPERATURE
    }

    /// Returns a temperature as rows report it: 0 where it is greedy (F7).
    #[must_use]
    pub fn zero_if_greedy(temperature: f32) -> f32 {
        if Self::is_greedy(temperature) { 0.0 } else { temperature }
    }

    /// Returns whether a row with a forced token is read: for logprobs, or for the entropy of a dynamic
    /// temperature (D2).
    #[must_use]
    pub fn reads_forced_rows(&self) -> bool {
        self.logprobs.is_some() || self.dynamic_temperature.is_some() && self.temperature != 0.0
    }

    /// Returns the parameters that do something: switches that are not neutral, in the table's order.
    pub fn switched_on(&self) -> impl Iterator<Item = &'static Parameter> {
        let places = Self::TABLE.iter().enumerate();
        places.filter(|(place, switch)| switch.is_switch && self.differs_at(*place)).map(|(_, switch)| switch)
    }

    /// Returns whether the rows of a request may be edited, by more than a bitmask.
    #[must_use]
    pub fn edits(&self) -> bool {
        self.switched_on().any(|switch| switch.stage == Stage::Edit)
    }

    /// Returns whether a filter is set: its value is none that switches it off, though no row may lose a
    /// token by it.
    #[must_use]
    pub fn is_on(&self, filter: Filter, vocab: usize) -> bool {
        let is_all = filter == Filter::TopK && self.top_k as u64 >= vocab as u64;
        !is_all && self.differs_at(PLACES[filter as usize])
    }

    /// Returns a filter's number; none if it has a flag instead.
    #[must_use]
    pub fn number(&self, filter: Filter) -> Option<f64> {
        self.number_at(PLACES[filter as usize])
    }

    /// Returns how many first tokens of its given set a filter looks at, if it looks at no others.
    #[must_use]
    pub fn counted(&self, filter: Filter) -> Option<usize> {
        let own = if filter == Filter::TopK { self.top_k as usize } else { usize::MAX };
        filter.kind().counted.map(|most| most.min(own))
    }

    /// Returns the parameters with a filter at a value: rounded if it is an integer, 1 if it is true.
    #[must_use]
    pub fn with_filter(mut self, filter: Filter, value: f64) -> Self {
        match self.field(filter.parameter().name).expect("the table names fields").1 {
            Field::Whole(field) => *field = value.round() as i64,
            field => _ = field.set(value),
        }
        self
    }

    /// Returns the parameters that [`SamplingParams::parameter`] finds: the fields of `dry`, `section`,
    /// `loops`, `watermark` and `logprobs` follow the part.
    pub fn parameters() -> impl Iterator<Item = &'static Parameter> {
        Self::TABLE.iter().flat_map(|parameter| {
            let fields = match parameter.name {
                "dry" => Dry::TABLE,
                "section" => Section::TABLE,
                "loops" => Loops::TABLE,
                "watermark" => Watermark::TABLE,
                "logprobs" => LogprobsParams::TABLE,
                _ => &[],
            };
            std::iter::once(parameter).chain(fields)
        })
    }

    /// Returns a parameter by its whole name: `top_p`, `dry.base`. Naming a field of `section`, `loops`,
    /// `watermark` or `logprobs` makes an absent part the default one.
    pub fn parameter(&mut self, name: &str) -> Option<(&'static Parameter, Field<'_>)> {
        match name.split_once('.') {
            Some(("dry", name)) => self.dry.field(name),
            Some(("section", name)) => self.section.get_or_insert_default().field(name),
            Some(("loops", name)) => self.loops.get_or_insert_default().field(name),
            Some(("watermark", name)) => self.watermark.own_mut().field(name),
            Some(("logprobs", name)) => self.logprobs.get_or_insert_default().field(name),
            _ => self.field(name),
        }
    }

    /// Returns the filters that are on, in the order they act.
    pub fn filters(&self, vocab: usize) -> impl Iterator<Item = Filter> + '_ {
        let listed: &[Filter] = match &self.order {
            FilterOrder::Default | FilterOrder::Joint => &Filter::ALL,
            FilterOrder::List(list) => list,
        };
        listed.iter().copied().filter(move |filter| self.is_on(*filter, vocab))
    }

    /// Returns whether adaptive-p is on.
    #[must_use]
    pub fn is_adaptive(&self) -> bool {
        self.adaptive_target >= 0.0
    }

    /// Returns the parameter by which draws move a number of the state, `mu`: mirostat's limit, or the mean
    /// of adaptive-p.
    #[must_use]
    pub fn steered_by(&self) -> Option<&'static str> {
        let adaptive = self.is_adaptive().then_some("adaptive_target");
        adaptive.or(self.mirostat.map(|_| "mirostat"))
    }

    /// Returns `mu` before the first token: mirostat's limit, the mean of adaptive-p, or 0.
    #[must_use]
    pub fn initial_mu(&self) -> f32 {
        let others = if self.is_adaptive() { self.adaptive_target } else { 0.0 };
        self.mirostat.map_or(others, |mirostat| mirostat.mu.unwrap_or(2.0 * mirostat.tau))
    }
}

impl DynamicTemperature {
    /// Returns the range with an exponent of 1.
    #[must_use]
    pub fn new(min: f32, max: f32) -> Self {
        Self { min, max, ..Self::neutral() }
    }
}

impl Filter {
    /// Returns the parameter that switches the filter on.
    #[must_use]
    pub fn parameter(self) -> &'static Parameter {
        &SamplingParams::TABLE[PLACES[self as usize]]
    }

    /// Returns the neutral parameters with this filter at its usual value.
    #[must_use]
    pub fn alone(self) -> SamplingParams {
        SamplingParams::default().with_filter(self, self.parameter().usual)
    }
}
