//! Every parameter is checked before anything is drawn or changed: each number's range by its table, and here
//! what concerns several of them, a vocabulary or a list.

use std::collections::HashSet;
use std::fmt::Display;

use super::{
    Filter, FilterOrder, LogprobMode, Loops, Parameter, Parameters, SamplingParams, Scope, Section, Watermark,
};
use crate::error::{Error, Result};
use crate::row::Kind;
use crate::shape::check_vocab;

/// The most ids of each list of a section, and of the end of a loop.
pub const MAX_SECTION_IDS: usize = 256;

fn check(ok: bool, parameter: &'static str, value: impl Display, allowed: &str) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::out_of_range(parameter, value, allowed)) }
}

fn ids_in_vocab(parameter: &'static str, ids: impl IntoIterator<Item = u32>, vocab: usize) -> Result<()> {
    for id in ids {
        check((id as usize) < vocab, parameter, id, &format!("an id in 0..{vocab}"))?;
    }
    Ok(())
}

impl SamplingParams {
    /// Checks every parameter against its range for a vocabulary of `vocab` ids.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for the first value outside its range, NaN included, an id outside the
    ///   vocabulary, or a repeated id or filter.
    /// - [`Error::Conflict`] if a filter is set but absent from an explicit order, or set beside mirostat; if
    ///   adaptive-p is on beside mirostat or logprobs of the mode `processed`; if a loop is to close a
    ///   section that is not given, or to force ids besides.
    /// - [`Error::OutOfRange`] for the number of a watermark's key that no call added to the process.
    /// - [`Error::Length`] for an empty bad word, a section without ids that close it, or a list of more than
    ///   256 ids.
    pub fn validate(&self, vocab: usize) -> Result<()> {
        check_vocab(vocab)?;
        self.validate_numbers()?;
        self.validate_order(vocab)?;
        self.validate_ids(vocab)
    }

    /// Checks every parameter as [`SamplingParams::validate`] does, and that rows of this kind can have it.
    ///
    /// Rows of probabilities know no temperature but 0 and 1, no penalties, finite biases, top-n-sigma or
    /// dynamic temperature (P2): all of these speak of logits.
    ///
    /// # Errors
    /// - The errors of [`SamplingParams::validate`].
    /// - [`Error::OutOfRange`] for another temperature.
    /// - [`Error::Conflict`] for a parameter that speaks of logits.
    pub fn validate_for(&self, kind: Kind, vocab: usize) -> Result<()> {
        self.validate(vocab)?;
        self.check_kind(kind)
    }

    /// Checks parameters that were validated for a vocabulary for a kind of rows, as
    /// [`SamplingParams::validate_for`] does.
    ///
    /// # Errors
    /// The errors of it, except the errors of [`SamplingParams::validate`].
    pub fn check_kind(&self, kind: Kind) -> Result<()> {
        if kind == Kind::Logits {
            return Ok(());
        }
        let t = self.temperature;
        check(t == 1.0 || Self::is_greedy(t), "temperature", t, "0 (greedy) or 1 for probabilities")?;
        // Bans are the same of both kinds.
        let only_bans = |parameter: &Parameter| {
            parameter.name == "logit_bias" && self.logit_bias.iter().all(|(_, bias)| bias.is_infinite())
        };
        let of_logits = self.switched_on().filter(|parameter| parameter.of_logits && !only_bans(parameter));
        // Of several an edit rather than a filter.
        match of_logits.min_by_key(|parameter| parameter.filter.is_some()) {
            None => Ok(()),
            Some(parameter) => {
                let reason = "it speaks of logits; hand over logits, or switch it off";
                Err(Error::Conflict { parameter: parameter.name, other: "probabilities", reason })
            }
        }
    }

    fn validate_numbers(&self) -> Result<()> {
        self.check_ranges()?;
        self.dry.check_ranges()?;
        self.mirostat.map_or(Ok(()), |mirostat| mirostat.check_ranges())?;
        self.section.as_ref().map_or(Ok(()), Parameters::check_ranges)?;
        self.loops.as_ref().map_or(Ok(()), Parameters::check_ranges)?;
        self.watermark.own().as_ref().map_or(Ok(()), Watermark::validate)?;
        if let Some(logprobs) = &self.logprobs {
            logprobs.check_ranges()?;
            let modes = logprobs.mode;
            check(
                modes.second != Some(modes.first),
                "logprobs.mode",
                modes,
                "one mode, or two different ones",
            )?;
            let is_logprob = LogprobMode::OF_LOGPROBS.contains(&modes.first);
            check(is_logprob, "logprobs.mode", modes, "radius behind a mode of logprobs, as in raw,radius")?;
        }
        let Some(dynamic) = self.dynamic_temperature else { return Ok(()) };
        dynamic.check_ranges()?;
        let max_ok = dynamic.max >= dynamic.min;
        check(max_ok, "dynamic_temperature.max", dynamic.max, "in dynamic_temperature.min..=2^100")
    }

    fn validate_order(&self, vocab: usize) -> Result<()> {
        if let FilterOrder::List(list) = &self.order {
            let mut seen = HashSet::new();
            for filter in list {
                check(seen.insert(filter), "order", filter, "a list of distinct filters")?;
            }
        }
        if self.is_adaptive() {
            let conflict =
                |other, reason| Err(Error::Conflict { parameter: "adaptive_target", other, reason });
            if self.mirostat.is_some() {
                return conflict("mirostat", "mirostat stands alone; switch one of them off");
            }
            if self.logprobs.as_ref().is_some_and(|given| given.mode.contains(LogprobMode::Processed)) {
                return conflict(
                    "logprobs.mode",
                    "of the law of its draw no logprobs are told; use another mode",
                );
            }
        }
        for filter in Filter::ALL.into_iter().filter(|filter| self.is_on(*filter, vocab)) {
            let conflict = |other, reason| Err(Error::Conflict { parameter: filter.name(), other, reason });
            if self.mirostat.is_some() {
                return conflict("mirostat", "mirostat stands alone; switch one of them off");
            }
            if matches!(&self.order, FilterOrder::List(list) if !list.contains(&filter)) {
                return conflict(
                    "order",
                    "the filter is set but absent from the list; name it or switch it off",
                );
            }
        }
        Ok(())
    }

    fn validate_ids(&self, vocab: usize) -> Result<()> {
        let mut seen = HashSet::new();
        for (id, bias) in &self.logit_bias {
            check((*id as usize) < vocab, "logit_bias", id, &format!("an id in 0..{vocab}"))?;
            check(seen.insert(id), "logit_bias", id, "an id that stands in the list once")?;
            check(*bias < f32::INFINITY, "logit_bias", bias, "finite, or -inf for a ban")?;
        }
        ids_in_vocab("allowed_ids", self.allowed_ids.iter().flatten().copied(), vocab)?;
        ids_in_vocab("banned_ids", self.banned_ids.iter().copied(), vocab)?;
        ids_in_vocab("xtc_exempt_ids", self.xtc_exempt_ids.iter().copied(), vocab)?;
        let exempt = self.no_repeat_ngram_exempt_ids.iter().copied();
        ids_in_vocab("no_repeat_ngram_exempt_ids", exempt, vocab)?;
        if self.bad_words.iter().any(Vec::is_empty) {
            return Err(Error::length("bad_words", 0, "at least one id in each sequence"));
        }
        if let Some(section) = &self.section {
            section.validate(vocab)?;
        }
        if let Some(loops) = &self.loops {
            loops.validate(self.section.is_some(), vocab)?;
        }
        if let Some(logprobs) = &self.logprobs {
            ids_in_vocab("logprobs.ids", logprobs.ids.iter().copied(), vocab)?;
        }
        Ok(())
    }
}

impl Section {
    /// Returns the ids that are forced at its end.
    #[must_use]
    pub fn end(&self) -> &[u32] {
        if self.end.is_empty() { &self.close } else { &self.end }
    }

    fn validate(&self, vocab: usize) -> Result<()> {
        let lists = [
            ("section.open", &self.open, 0),
            ("section.close", &self.close, 1),
            ("section.end", &self.end, 0),
        ];
        for (name, ids, least) in lists {
            if !(least..=MAX_SECTION_IDS).contains(&ids.len()) {
                let allowed = format!("{least} to {MAX_SECTION_IDS} ids");
                return Err(Error::length(name, ids.len(), allowed));
            }
        }
        let forced = if self.end.is_empty() { "section.close" } else { "section.end" };
        ids_in_vocab(forced, self.end().iter().copied(), vocab)?;
        let allowed = "in 0..=section.budget";
        check(self.min <= self.budget, "section.min", self.min, allowed)
    }
}

impl Loops {
    fn validate(&self, has_section: bool, vocab: usize) -> Result<()> {
        let allowed = "in loops.min_period..=128";
        check(self.min_period <= self.max_period, "loops.max_period", self.max_period, allowed)?;
        if self.end.len() > MAX_SECTION_IDS {
            return Err(Error::length("loops.end", self.end.len(), format!("0 to {MAX_SECTION_IDS} ids")));
        }
        ids_in_vocab("loops.end", self.end.iter().copied(), vocab)?;
        let allowed = "false without `section`, whose end it is";
        check(has_section || !self.close, "loops.close", self.close, allowed)?;
        if self.close && !self.end.is_empty() {
            let (other, reason) = ("loops.end", "a loop ends in one way");
            return Err(Error::Conflict { parameter: "loops.close", other, reason });
        }
        Ok(())
    }
}

impl Watermark {
    /// Checks the ranges. Whether its number has a key is known where a request is admitted.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] for the first value outside its range.
    pub fn validate(&self) -> Result<()> {
        self.check_ranges()?;
        let is_scope = self.scope != Scope::Prompt;
        check(is_scope, "watermark.scope", self.scope, "output or both")
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DynamicTemperature, Field, Mirostat};
    use super::*;

    fn refused(params: SamplingParams) -> String {
        params.validate(1000).expect_err("must be refused").to_string()
    }

    fn closed(id: u32) -> Section {
        Section { close: vec![id], ..Section::default() }
    }

    macro_rules! refuses {
        ($($field:ident: $value:expr => $message:literal),* $(,)?) => {
            $(assert_eq!(refused(SamplingParams { $field: $value, ..Default::default() }), $message);)*
        };
    }

    #[test]
    fn each_error_names_parameter_value_and_range() {
        refuses! {
            temperature: -1.0 => "temperature is -1, but must be 0 (greedy) or in (0, 2^100]",
            temperature: f32::NAN => "temperature is NaN, but must be 0 (greedy) or in (0, 2^100]",
            top_k: -5 => "top_k is -5, but must be at least -1 (0, -1: off)",
            top_p: -0.5 => "top_p is -0.5, but must be in 0..=1 (1: off)",
            top_p: 1.9 => "top_p is 1.9, but must be in 0..=1 (1: off)",
            typical_p: f32::NAN => "typical_p is NaN, but must be in 0..=1 (1: off)",
            epsilon_cutoff: 2.0 => "epsilon_cutoff is 2, but must be in 0..=1 (0: off)",
            xtc_threshold: 0.0 => "xtc_threshold is 0, but must be in (0, 1]",
            top_n_sigma: f32::INFINITY => "top_n_sigma is inf, but must be finite and at least 0 (0: off)",
            top_n_sigma: -1.0 => "top_n_sigma is -1, but must be finite and at least 0 (0: off)",
            repetition_penalty: 0.0 => "repetition_penalty is 0, but must be in (0, 2^16] (1: off)",
            presence_penalty: 1e6 => "presence_penalty is 1000000, but must be in -2^16..=2^16 (0: off)",
            logit_bias: vec![(1000, 1.0)] => "logit_bias is 1000, but must be an id in 0..1000",
            logit_bias: vec![(1, 1.0), (1, 2.0)] => "logit_bias is 1, but must be an id that stands in the list once",
            logit_bias: vec![(1, f32::INFINITY)] => "logit_bias is inf, but must be finite, or -inf for a ban",
            banned_ids: vec![1000] => "banned_ids is 1000, but must be an id in 0..1000",
            no_repeat_ngram_exempt_ids: vec![7, 1000]
                => "no_repeat_ngram_exempt_ids is 1000, but must be an id in 0..1000",
            allowed_ids: Some(vec![7, 4000]) => "allowed_ids is 4000, but must be an id in 0..1000",
            bad_words: vec![vec![]] => "bad_words has length 0, but must have at least one id in each sequence",
            section: Some(Section::default()) => "section.close has length 0, but must have 1 to 256 ids",
            section: Some(Section { open: vec![1; 257], ..closed(1) })
                => "section.open has length 257, but must have 0 to 256 ids",
            section: closed(1000).into() => "section.close is 1000, but must be an id in 0..1000",
            section: Some(Section { end: vec![7, 1000], ..closed(5000) })
                => "section.end is 1000, but must be an id in 0..1000",
            section: Some(Section { budget: 4, min: 5, ..closed(1) })
                => "section.min is 5, but must be in 0..=section.budget",
            loops: Some(Loops { min_period: 129, ..Loops::default() })
                => "loops.min_period is 129, but must be in 1..=128",
            loops: Some(Loops { min_period: 9, max_period: 8, ..Loops::default() })
                => "loops.max_period is 8, but must be in loops.min_period..=128",
            loops: Some(Loops { min_copies: 1, ..Loops::default() })
                => "loops.min_copies is 1, but must be in 2..=2^16",
            loops: Some(Loops { every: 0, ..Loops::default() }) => "loops.every is 0, but must be in 1..2^32",
            loops: Some(Loops { end: vec![1; 257], ..Loops::default() })
                => "loops.end has length 257, but must have 0 to 256 ids",
            loops: Some(Loops { end: vec![1000], ..Loops::default() })
                => "loops.end is 1000, but must be an id in 0..1000",
            order: FilterOrder::List(vec![Filter::TopK, Filter::TopK]) => "order is top_k, but must be a list of distinct filters",
            mirostat: Some(Mirostat { tau: 0.0, eta: 0.1, mu: None }) => "mirostat.tau is 0, but must be in (0, 2^16]",
            dynamic_temperature: Some(DynamicTemperature { min: 1.0, max: 0.5, exponent: 1.0 })
                => "dynamic_temperature.max is 0.5, but must be in dynamic_temperature.min..=2^100",
        }
    }

    #[test]
    fn the_exponent_of_dynamic_temperature_is_1_if_left_out() {
        assert_eq!(DynamicTemperature::new(0.5, 1.5).exponent, 1.0);
        #[cfg(feature = "serde")]
        {
            let read: DynamicTemperature = serde_json::from_str(r#"{"min": 0.5, "max": 1.5}"#).unwrap();
            assert_eq!(read, DynamicTemperature::new(0.5, 1.5));
        }
    }

    #[test]
    fn a_filter_that_would_be_silently_ignored_is_refused() {
        let order = FilterOrder::List(vec![Filter::TopK]);
        let message = refused(SamplingParams { top_p: 0.9, order, ..Default::default() });
        assert!(message.starts_with("top_p cannot be combined with order"), "{message}");
        let mirostat = Some(Mirostat { tau: 5.0, eta: 0.1, mu: None });
        let message = refused(SamplingParams { min_p: 0.1, mirostat, ..Default::default() });
        assert!(message.starts_with("min_p cannot be combined with mirostat"), "{message}");
    }

    #[test]
    fn a_loop_closes_a_section_or_forces_ids() {
        let loops = Loops { close: true, ..Loops::default() };
        let message = refused(SamplingParams { loops: Some(loops.clone()), ..Default::default() });
        assert_eq!(message, "loops.close is true, but must be false without `section`, whose end it is");
        let loops = Some(Loops { end: vec![1], ..loops });
        let message = refused(SamplingParams { loops, section: Some(closed(1)), ..Default::default() });
        assert!(message.starts_with("loops.close cannot be combined with loops.end"), "{message}");
    }

    #[test]
    fn a_number_outside_its_range_is_refused_and_its_ends_are_not() {
        fn walk<T: Parameters>(part: impl Fn(&mut SamplingParams) -> &mut T) {
            for parameter in T::TABLE {
                let Some(range) = parameter.range else { continue };
                // The outcome for a value, `None` if the field's type cannot hold it; and whether that type
                // holds integers.
                let set = |value: f64| {
                    let mut params = SamplingParams::default();
                    let (_, field) = part(&mut params).field(parameter.field()).unwrap();
                    let is_whole = matches!(field, Field::Whole(_) | Field::Count(_));
                    let fits = field.set(value);
                    (fits.then(|| params.validate(1000).map_err(|error| error.to_string())), is_whole)
                };
                for value in range.probes(set(0.0).1) {
                    match set(value).0 {
                        None => {}
                        Some(Ok(())) => assert!(range.contains(value), "{} takes {value}", parameter.name),
                        Some(Err(error)) => {
                            assert!(!range.contains(value), "{error}");
                            let start = format!("{} is ", parameter.name);
                            assert!(error.starts_with(&start) && error.ends_with(range.words), "{error}");
                        }
                    }
                }
            }
        }
        walk(|params| params);
        walk(|params| &mut params.dry);
        walk(|params| params.logprobs.get_or_insert_default());
        walk(|params| params.loops.get_or_insert_default());
        let section = Section { close: vec![1], ..Section::default() };
        walk(|params| params.section.get_or_insert(section.clone()));
        let mirostat = Mirostat { tau: 5.0, eta: 0.1, mu: None };
        walk(|params| params.mirostat.get_or_insert(mirostat));
        let widest = DynamicTemperature::new(0.0, 2f32.powi(100));
        walk(|params| params.dynamic_temperature.get_or_insert(widest));
    }
}
