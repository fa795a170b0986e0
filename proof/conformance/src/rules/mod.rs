//! The rules, one test body each, in families; the registry that programs and tests run them from.
//!
//! A body gets a [`Check`]: the backend under test and the rule's name. It says what must be seen, derived
//! by hand or in f64, and every result that it looks at is held to the oracle in all other fields, too.

use std::fmt;

use gumball_cpu::Output;
use gumball_spec::verify::by_probabilities::{Emitted, Judgement, Trial};
use gumball_spec::verify::draft::DraftWords;
use gumball_spec::verify::{DraftChain, DraftTree, Verified};
use gumball_spec::{Error, NONE, SamplingParams};

use crate::backend::Backend;
use crate::case::{Case, Dtype};
use crate::compare;
use crate::drafted::{Drafted, Walked};
use crate::head_case::{ClusterCase, HeadCase};
use crate::observed::Observed;

/// Lists a family's bodies, under the rule each holds, and makes a macro that turns them into tests.
macro_rules! rules {
    ($tests:ident: $($rule:ident $name:ident),* $(,)?) => {
        rules!(@ ($) $tests: $($rule $name),*);
    };
    (@ ($d:tt) $tests:ident: $($rule:ident $name:ident),*) => {
        /// The bodies of this family.
        pub const RULES: &[$crate::rules::Rule] = &[$($crate::rules::Rule {
            name: stringify!($name),
            rule: stringify!($rule),
            body: $name,
        }),*];

        #[doc(hidden)]
        #[macro_export]
        macro_rules! $tests {
            ($d run:path) => {
                $(#[test]
                fn $name() {
                    $d run(stringify!($name));
                })*
            };
        }
    };
}

/// Declares the registry of the families' bodies, and the macro that makes a test of each body.
macro_rules! families {
    ($($family:path => $tests:ident),* $(,)?) => {
        const FAMILIES: &[&[Rule]] = &[$({
            use $family as family;
            family::RULES
        }),*];

        families!(@ ($) $($tests)*);
    };
    (@ ($d:tt) $($tests:ident)*) => {
        /// Makes a libtest test of every body; each calls `run` with the body's name.
        #[macro_export]
        macro_rules! each_rule {
            ($d run:path) => {
                $($d crate::$tests!($d run);)*
            };
        }
    };
}

pub mod clustered_head;
pub mod head;

pub mod edit;
pub mod survey;

pub mod filter;

pub mod draw;

pub mod logprobs;

pub mod probabilities;

pub mod radius;

pub mod verify;

pub mod params;

families! {
    head => head_rules,
    clustered_head => clustered_head_rules,
    edit::penalties => penalty_rules,
    edit::dry => dry_rules,
    edit::bans => ban_rules,
    edit::sections => section_rules,
    edit::loops => loop_rules,
    survey::order => order_rules,
    survey::mass => mass_rules,
    filter::temperature => temperature_rules,
    filter::prefixes => prefix_rules,
    filter::intervals => interval_rules,
    filter::chains => chain_rules,
    filter::agreement => agreement_rules,
    draw::race => race_rules,
    draw::laws => law_rules,
    draw::adaptive => adaptive_rules,
    draw::marks => mark_rules,
    draw::neighbours => neighbour_rules,
    logprobs => logprob_rules,
    radius => radius_rules,
    probabilities::measure => measure_rules,
    probabilities::filters => probability_filter_rules,
    probabilities::min_p => probability_min_p_rules,
    probabilities::refusals => refusal_rules,
    probabilities::outputs => output_rules,
    verify::coupled => coupled_rules,
    verify::judged => judged_rules,
    verify::rejection => rejection_rules,
    verify::by_probabilities => by_probabilities_rules,
    verify::draft => draft_rules,
    verify::edges => edge_rules,
    params => params_rules,
}

/// A test body and the rule it holds.
#[derive(Clone, Copy)]
pub struct Rule {
    /// The body's name, a line of the semantics.
    pub name: &'static str,
    /// The rule's number.
    pub rule: &'static str,
    body: fn(&Check<'_>),
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.rule, self.name)
    }
}

impl Rule {
    /// Returns whether the rule is about filters, masses, rows of probabilities or logprobs, for which rows
    /// are searched. Laws of draws are left out: a search finds the same kept set, from which the draw is the
    /// same.
    #[must_use]
    pub fn is_searched(&self) -> bool {
        self.rule.starts_with(['F', 'M', 'P', 'L']) && !self.name.starts_with("draws_")
    }

    /// Returns whether the body counts how often tokens are drawn, in thousands of draws.
    #[must_use]
    pub fn counts_draws(&self) -> bool {
        self.name.starts_with("draws_")
            || self.name.starts_with("rare_tokens_")
            || self.name.ends_with("follow_their_probabilities")
    }

    /// Runs the body against a backend.
    ///
    /// # Panics
    /// If the backend does not hold the rule; the message names rule, case and field.
    pub fn run(&self, backend: &dyn Backend) {
        (self.body)(&Check { backend, rule: self.rule, name: self.name });
    }
}

/// Returns all bodies.
pub fn all() -> impl Iterator<Item = &'static Rule> {
    FAMILIES.iter().copied().flatten()
}

/// Returns the rule of a body's name.
///
/// # Panics
/// If there is no such body.
#[must_use]
pub fn named(name: &str) -> &'static Rule {
    all().find(|rule| rule.name == name).expect("the body is registered")
}

/// A backend under test, for one rule.
#[derive(Debug)]
pub struct Check<'a> {
    /// The backend.
    pub backend: &'a dyn Backend,
    rule: &'static str,
    name: &'static str,
}

impl Check<'_> {
    /// Fails the rule for a case.
    ///
    /// # Panics
    /// Always.
    pub fn fail(&self, case: &Case, what: impl fmt::Display) -> ! {
        panic!("{} {}: {} {what}\nof the case\n{case:?}", self.rule, self.name, self.backend.name());
    }

    /// Returns all items, or every fourth from the turn's own on where a draw takes long: the turns of a body
    /// together try each item, and fast backends try every item in every turn.
    pub(crate) fn by_turns<T>(
        &self,
        turn: usize,
        all: impl IntoIterator<Item = T>,
    ) -> impl Iterator<Item = T> {
        let step = if self.backend.patience(4) < 4 { 4 } else { 1 };
        all.into_iter().skip(turn % step).step_by(step)
    }

    /// Returns what the backend saw, or refused, after holding it to the oracle.
    pub fn attempt(&self, case: &Case) -> Result<Observed, Error> {
        match compare::against_oracle(self.backend, case) {
            Ok(seen) => seen,
            Err(text) => panic!("{} {}: {text}", self.rule, self.name),
        }
    }

    /// Returns what the backend saw, after holding it to the oracle.
    pub fn sees(&self, case: &Case) -> Observed {
        self.attempt(case).unwrap_or_else(|error| self.fail(case, format_args!("refused: {error}")))
    }

    /// Returns the kept ids, in order: the oracle's where the backend does not report its own.
    pub fn kept(&self, case: &Case) -> Vec<u32> {
        self.kept_of(case, &self.sees(case))
    }

    fn kept_of(&self, case: &Case, seen: &Observed) -> Vec<u32> {
        let oracle = || crate::Oracle.sample(case).ok()?.kept;
        seen.kept.clone().or_else(oracle).unwrap_or_default()
    }

    /// Holds the kept ids, in order.
    pub fn keeps(&self, case: &Case, ids: &[u32]) {
        let kept = self.kept(case);
        if kept != ids {
            self.fail(case, format_args!("keeps {kept:?}, not {ids:?},"));
        }
    }

    /// Holds the kept ids to be the first of the ids as they are numbered.
    pub fn keeps_first(&self, case: &Case, count: u32) {
        self.kept_first(case, &self.sees(case), count);
    }

    /// Holds the kept ids of what was seen to be the first of the ids as they are numbered.
    pub fn kept_first(&self, case: &Case, seen: &Observed, count: u32) {
        let kept = self.kept_of(case, seen);
        if !kept.iter().copied().eq(0..count) {
            let first = &kept[..kept.len().min(16)];
            self.fail(case, format_args!("keeps {} ids from {first:?}, not 0..{count},", kept.len()));
        }
    }

    /// Returns what the backend writes of a case in f32, after holding it to the oracle in every type, beside
    /// the row and in its place.
    pub fn writes(&self, case: &Case, output: Output) -> Vec<f32> {
        for to in [Some(Dtype::F32), Some(Dtype::Bf16), Some(Dtype::F16), None] {
            let (expected, seen) =
                (crate::Oracle.write(case, output, to), self.backend.write(case, output, to));
            if expected != seen {
                let differs = match (&expected, &seen) {
                    (Ok((e, of_e)), Ok((s, of_s))) => match e.iter().zip(s).position(|(e, s)| e != s) {
                        Some(id) => format!("id {id} is {:08x}, not {:08x}", s[id], e[id]),
                        None => format!("status {of_s:?}, not {of_e:?}"),
                    },
                    _ => format!(
                        "{:?}, not {:?}",
                        seen.map(|seen| seen.1),
                        expected.map(|expected| expected.1)
                    ),
                };
                self.fail(case, format_args!("writes {output:?} to {to:?} differently, {differs}"));
            }
        }
        let written = self.backend.write(case, output, Some(Dtype::F32));
        let (values, _) = written.unwrap_or_else(|error| self.fail(case, format_args!("refused: {error}")));
        values.into_iter().map(f32::from_bits).collect()
    }

    /// Returns the bits of the logits that the backend's head gives, or its refusal, after holding them to
    /// the definition.
    pub fn head(&self, case: &HeadCase) -> Result<Vec<u32>, Error> {
        let (expected, seen) = (case.by_the_oracle(), self.backend.head(case));
        assert_eq!(seen, expected, "{} {}: {} of {case:?}", self.rule, self.name, self.backend.name());
        seen
    }

    /// Returns the logits of the backend's fast head, `[rows, vocab]`, after holding a step on them to the
    /// definition; `None` if it has none.
    pub fn fast_head(&self, case: &HeadCase, params: &SamplingParams) -> Option<Vec<f32>> {
        self.fast_clusters(case, None, params)
    }

    /// Returns the same of a fast head with clusters, if there are some.
    pub fn fast_clusters(
        &self,
        case: &HeadCase,
        clusters: Option<&ClusterCase>,
        params: &SamplingParams,
    ) -> Option<Vec<f32>> {
        let bits = self.backend.fast_head(case, clusters, params);
        let bits = bits.unwrap_or_else(|error| panic!("{} {}: refused: {error}", self.rule, self.name));
        bits.map(|bits| bits.into_iter().map(f32::from_bits).collect())
    }

    /// Returns what the backend's certified head gives for a request and the first hidden state, after
    /// holding it to the definition. `case` is the request; its logits are of no matter.
    pub fn certifies(&self, head: &HeadCase, case: &Case) -> Observed {
        let bits = head.by_the_oracle().unwrap_or_else(|error| panic!("refused: {error}"));
        let logits: Vec<f32> = bits[..head.vocab()].iter().map(|z| f32::from_bits(*z)).collect();
        let case = Case { logits: crate::Logits::new(crate::case::Dtype::F32, &logits), ..case.clone() };
        let expected = crate::Oracle.sample(&case).unwrap_or_else(|error| panic!("refused: {error}"));
        let expected = Observed { kept: None, ..expected };
        let seen = self.backend.certified(head, &case);
        let seen = seen.unwrap_or_else(|error| self.fail(&case, format_args!("refused: {error}")));
        let differences = crate::observed::differences(&expected, &seen);
        if !differences.is_empty() {
            self.fail(&case, format_args!("has, by a certified head,\n{differences}"));
        }
        expected
    }

    /// Returns what the backend's clustered head gives for a request and the first hidden state, after
    /// holding it to the definition. `case` is the request; its logits are of no matter.
    pub fn clusters(&self, head: &HeadCase, clusters: &ClusterCase, case: &Case) -> Observed {
        let logits = head.clustered_by_the_oracle(clusters);
        let logits = logits.unwrap_or_else(|error| panic!("refused: {error}"));
        let case = Case { logits: crate::Logits::new(Dtype::F32, &logits), ..case.clone() };
        let expected = crate::Oracle.sample(&case).unwrap_or_else(|error| panic!("refused: {error}"));
        let seen = self.backend.clustered(head, clusters, &case);
        let seen = seen.unwrap_or_else(|error| self.fail(&case, format_args!("refused: {error}")));
        let differences = crate::observed::differences(&expected, &seen);
        if !differences.is_empty() {
            self.fail(&case, format_args!("has, by clusters {clusters:?},\n{differences}"));
        }
        expected
    }

    /// Returns what the backend makes of a request with drafts from the hidden states of a head, after
    /// holding it to the oracle's walk over their logits. The logits of the drafts' rows are not read.
    pub fn walks_hidden(&self, head: &HeadCase, drafted: &Drafted) -> Walked {
        let bits = head.by_the_oracle().unwrap_or_else(|error| panic!("refused: {error}"));
        let mut rows = bits.chunks(head.vocab()).map(|row| {
            let row: Vec<f32> = row.iter().map(|z| f32::from_bits(*z)).collect();
            crate::Logits::new(Dtype::F32, &row)
        });
        let mut drafted = drafted.clone();
        drafted.root.logits = rows.next().expect("a hidden state for the root");
        drafted.nodes.iter_mut().zip(rows).for_each(|(node, row)| node.logits = row);
        let expected = crate::Oracle.walk(&drafted).unwrap_or_else(|error| panic!("refused: {error}"));
        let seen = self.backend.walk_hidden(head, &drafted);
        let seen = seen.unwrap_or_else(|error| self.fail_drafted(&drafted, format_args!("refused: {error}")));
        let same = expected.len() == seen.len()
            && expected.iter().zip(&seen).all(|((a, expected), (b, seen))| {
                a == b && crate::observed::differences(expected, seen).is_empty()
            });
        if !same {
            self.fail_drafted(&drafted, format_args!("gives {seen:?}, not {expected:?},"));
        }
        seen
    }

    /// Returns what the backend makes of a chain, after holding it to the oracle.
    pub fn verifies(&self, chain: &DraftChain<'_>) -> (Vec<i32>, Verified) {
        let (expected, seen) = (chain.verify().expect("valid"), self.verified(chain));
        assert_eq!(seen, expected, "{} {}: {} of {chain:?}", self.rule, self.name, self.backend.name());
        seen
    }

    /// Returns what the backend makes of a chain.
    pub fn verified(&self, chain: &DraftChain<'_>) -> (Vec<i32>, Verified) {
        let DraftChain { drafts, draft_probs, target_probs, vocab, seed, position, draw } = *chain;
        let (tree, draft_probs) = (DraftTree { drafts, parents: None }, Some(draft_probs));
        let trial = Trial { tree, draft_probs, target_probs, vocab, seed, position, draw };
        let seen = self.backend.judge(&trial, Judgement::Rejection);
        let Emitted { rows, mut tokens, status, accepted_alone } =
            seen.unwrap_or_else(|error| panic!("{} {}: refused: {error}", self.rule, self.name));
        assert!(rows.iter().copied().eq(0..tokens.len()), "{rows:?} of {chain:?}");
        let (accepted, accepted_alone) = (rows.len() as u32 - 1, accepted_alone.expect("a chain has it"));
        tokens.resize(drafts.len() + 1, NONE);
        (tokens, Verified { accepted, accepted_alone, status })
    }

    /// Returns the drafts that the backend draws from a row, or its refusal, after holding them to the
    /// oracle.
    pub fn drafts(&self, case: &Case, words: DraftWords, count: usize) -> Result<Vec<i32>, Error> {
        let (expected, seen) =
            (crate::Oracle.draft(case, words, count), self.backend.draft(case, words, count));
        if seen != expected {
            self.fail(case, format_args!("drafts {seen:?}, not {expected:?}, by {words:?}"));
        }
        seen
    }

    /// Returns what the backend makes of drafts that are judged by probabilities, after holding it to the
    /// oracle.
    pub fn judges(&self, trial: &Trial<'_>, judgement: Judgement) -> Result<Emitted, Error> {
        let (expected, seen) = (trial.judge(judgement), self.backend.judge(trial, judgement));
        let Self { rule, name, backend } = self;
        assert_eq!(seen, expected, "{rule} {name}: {} of {judgement:?} of {trial:?}", backend.name());
        seen
    }

    /// Returns what the backend saw of a request with drafts, or refused, after holding each row of the walk
    /// to the oracle.
    pub fn attempts(&self, drafted: &Drafted) -> Result<Walked, Error> {
        match compare::drafts_against_oracle(self.backend, drafted) {
            Ok(seen) => seen,
            Err(text) => panic!("{} {}: {text}", self.rule, self.name),
        }
    }

    /// Returns what the backend saw of a request with drafts, after holding it to the oracle.
    pub fn walks(&self, drafted: &Drafted) -> Walked {
        let refused = |error| self.fail_drafted(drafted, format_args!("refused: {error}"));
        self.attempts(drafted).unwrap_or_else(refused)
    }

    /// Holds the rows that a walk goes through, and the tokens that come out of them.
    pub fn walks_to(&self, drafted: &Drafted, rows: &[usize], tokens: &[i32]) {
        let seen: (Vec<usize>, Vec<i32>) =
            self.walks(drafted).iter().map(|(row, seen)| (*row, seen.token)).unzip();
        if (&seen.0[..], &seen.1[..]) != (rows, tokens) {
            self.fail_drafted(drafted, format_args!("gives {seen:?}, not {:?}", (rows, tokens)));
        }
    }

    fn fail_drafted(&self, drafted: &Drafted, what: impl fmt::Display) -> ! {
        panic!("{} {}: {} {what}\nof\n{drafted:?}", self.rule, self.name, self.backend.name());
    }

    /// Holds the token.
    pub fn draws(&self, case: &Case, token: i32) {
        let seen = self.sees(case).token;
        if seen != token {
            self.fail(case, format_args!("draws {seen}, not {token},"));
        }
    }
}
