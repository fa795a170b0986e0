//! Finds texts that were drawn by a watermark's key (rule W4), without the model and without its logits.
//!
//! Each token of a text that the key did not draw arrives at an `Exp(1)` time in the race of its context, so
//! `-ln(1 - exp(-time))` is `Exp(1)` too, and the sum of n of them has Erlang's law: the p-value is exact. A
//! marked text drew its tokens because they arrived early, so its sum is larger.
//!
//! Logarithms and exponentials are libm's, the same operations on every machine, WebAssembly among them; the
//! standard library takes each system's own. So a text has the same score and p-value, bit for bit, wherever
//! it is looked at.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::ops::Range;

use gumball_spec::{Error, Result, Watermark};

use scheme::Text;
pub use scheme::{Keys, Scheme, Second};

mod scheme;

/// How likely it is that a text without this mark scores as much.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// How many tokens count, namely tokens whose context lies in the text and comes for the first time.
    pub tokens: usize,
    /// How many tokens do not.
    pub skipped: usize,
    /// The sum of the scores of these tokens, whose number is the mean of a text without the mark.
    pub score: f64,
    /// The natural logarithm of the p-value.
    pub ln_p: f64,
}

/// A part of a text that is marked.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The places of its ids in the text.
    pub ids: Range<usize>,
    /// Its evidence; the p-value is multiplied by the number of parts that were looked at.
    pub evidence: Evidence,
}

impl Evidence {
    /// Returns the p-value; 0 if it is less than an f64 can be.
    #[must_use]
    pub fn p_value(&self) -> f64 {
        libm::exp(self.ln_p)
    }

    /// Returns the evidence as one of `trials`, of which the best is reported: the p-value is multiplied by
    /// their number (Bonferroni).
    #[must_use]
    pub fn among(self, trials: usize) -> Self {
        Self { ln_p: (self.ln_p + libm::log(trials.max(1) as f64)).min(0.0), ..self }
    }

    /// Judges a sum of scores.
    fn of(scheme: Scheme, sum: Sum) -> Self {
        let Sum { ids, tokens, score } = sum;
        let ln_p = match scheme {
            Scheme::VllmDualKey { alpha } => {
                // A sum of weighted scores has nearly the law of fewer scores, of the same mean and variance.
                let variance = (1.0 - alpha) * (1.0 - alpha) + alpha * alpha;
                ln_upper_gamma(tokens as f64 / variance, score / variance)
            }
            _ => ln_tail(tokens, score),
        };
        Self { tokens, skipped: ids - tokens, score, ln_p }
    }
}

/// A sum of scores, from the first id on.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    /// How many ids were added, and how many of them count.
    ids: usize,
    tokens: usize,
    score: f64,
}

impl Sum {
    fn and(self, scores: &[Option<f64>]) -> Self {
        let mut sum = Self { ids: self.ids + scores.len(), ..self };
        for score in scores.iter().flatten() {
            sum.tokens += 1;
            sum.score += score;
        }
        sum
    }
}

/// Returns the score of each id after the prompt: none where it has no context by the scheme's rules, or one
/// that came before (W2).
///
/// A text without its prompt has a prompt of no ids. Then a token may count that was not marked, if its
/// context came in the prompt, or not count that was. Of another engine's scheme a watermark's scope and
/// window do not matter.
#[must_use]
pub fn scores(
    ids: &[u32],
    prompt_len: usize,
    scheme: Scheme,
    watermark: &Watermark,
    keys: Keys,
) -> Vec<Option<f64>> {
    let count = watermark.context as usize;
    let Text { ids, first, output, window, most } = scheme.text(ids, prompt_len, watermark);
    // The last row with each context.
    let mut rows: HashMap<&[u32], usize> = HashMap::with_capacity(ids.len());
    let mut scores = vec![None; ids.len().saturating_sub(output)];
    for row in first..ids.len() {
        let context = &ids[row.saturating_sub(count)..row];
        let before = rows.insert(context, row);
        if rows.len() > most {
            break;
        }
        if row < output || before.is_some_and(|before| window == 0 || row - before <= window) {
            continue;
        }
        scores[row - output] = Some(scheme.score(keys, context, ids[row]));
    }
    scores
}

/// Looks for the mark of a key in the ids after a prompt.
#[must_use]
pub fn detect(ids: &[u32], prompt_len: usize, scheme: Scheme, watermark: &Watermark, keys: Keys) -> Evidence {
    Evidence::of(scheme, Sum::default().and(&scores(ids, prompt_len, scheme, watermark, keys)))
}

/// Looks for the mark of any of the keys with these numbers, and returns the number of the key with the
/// smallest p-value, which is multiplied by how many keys there are; a watermark's own key is not looked at.
///
/// # Errors
/// - [`Error::OutOfRange`] for a prompt of more ids than there are.
/// - [`Error::Length`] without a number, and the errors of [`Scheme::key`].
pub fn detect_any(
    ids: &[u32],
    prompt_len: usize,
    scheme: Scheme,
    watermark: &Watermark,
    numbers: &[u32],
) -> Result<(u32, Evidence)> {
    check_prompt(ids, prompt_len)?;
    let mut best: Option<(u32, Evidence)> = None;
    for number in numbers {
        let evidence = detect(ids, prompt_len, scheme, watermark, scheme.key(*number)?);
        if best.is_none_or(|(_, of_best)| evidence.ln_p < of_best.ln_p) {
            best = Some((*number, evidence));
        }
    }
    let (number, evidence) = best.ok_or_else(|| Error::length("keys", 0, "at least one number"))?;
    Ok((number, evidence.among(numbers.len())))
}

/// Looks for the parts of a text that a watermark's key marked, by windows of `length` ids after the prompt,
/// of which each begins a quarter later than the one before, and returns the parts with a p-value below
/// `alpha`, joined where they overlap or touch: at most one for each `length` ids, and one more.
///
/// # Errors
/// - [`Error::OutOfRange`] for a prompt of more ids than there are, a length of 0, and an `alpha` outside
///   0..1; and the errors of [`Scheme::key`].
pub fn find_marked(
    ids: &[u32],
    prompt_len: usize,
    scheme: Scheme,
    watermark: &Watermark,
    length: usize,
    alpha: f64,
) -> Result<Vec<Part>> {
    check_prompt(ids, prompt_len)?;
    let key = scheme.key(watermark.key)?;
    parts(scheme, &scores(ids, prompt_len, scheme, watermark, key), length, alpha)
}

fn check_prompt(ids: &[u32], prompt_len: usize) -> Result<()> {
    if prompt_len <= ids.len() {
        return Ok(());
    }
    let allowed = format!("at most {}, the number of ids", ids.len());
    Err(Error::out_of_range("prompt_len", prompt_len, allowed))
}

fn parts(scheme: Scheme, scores: &[Option<f64>], length: usize, alpha: f64) -> Result<Vec<Part>> {
    if length == 0 {
        return Err(Error::out_of_range("length", length, "at least 1"));
    }
    if !(0.0..1.0).contains(&alpha) {
        return Err(Error::out_of_range("alpha", alpha, "in 0..1"));
    }
    // A window that is longer than the text is the text.
    let length = length.min(scores.len().max(1));
    let step = length.div_ceil(4);
    let starts = (0..).step_by(step).take_while(|start| *start == 0 || start + length < scores.len() + step);
    let windows: Vec<_> =
        starts.map(|start| start..(start + length).min(scores.len())).filter(|ids| !ids.is_empty()).collect();
    let of = |sum| Evidence::of(scheme, sum).among(windows.len());
    let mut parts: Vec<(Range<usize>, Sum)> = Vec::new();
    for ids in &windows {
        let sum = Sum::default().and(&scores[ids.clone()]);
        if of(sum).ln_p >= libm::log(alpha) {
            continue;
        }
        match parts.last_mut().filter(|(last, _)| last.end >= ids.start) {
            Some((last, of_last)) => {
                *of_last = of_last.and(&scores[last.end..ids.end]);
                last.end = ids.end;
            }
            None => parts.push((ids.clone(), sum)),
        }
    }
    Ok(parts.into_iter().map(|(ids, sum)| Part { ids, evidence: of(sum) }).collect())
}

/// Returns the logarithm of the probability that `n` variables of the law Exp(1) have a sum of at least `x`:
/// that of fewer than n events, `e^-x` times the sum of `x^k / k!` over k < n.
fn ln_tail(n: usize, x: f64) -> f64 {
    if n == 0 || x <= 0.0 {
        return 0.0;
    }
    // The terms fall away from the largest one on both sides.
    let largest = (x as usize).min(n - 1);
    let (mut sum, mut term) = (1.0, 1.0);
    for k in (1..=largest).rev() {
        term *= k as f64 / x;
        sum += term;
        if term < sum * 1e-18 {
            break;
        }
    }
    term = 1.0;
    for k in largest + 1..n {
        term *= x / k as f64;
        sum += term;
        if term < sum * 1e-18 {
            break;
        }
    }
    let ln_largest = largest as f64 * libm::log(x) - x - ln_factorial(largest);
    (ln_largest + libm::log(sum)).min(0.0)
}

/// Returns the logarithm of the probability that a variable of the gamma law of this shape, of at least 1, is
/// at least `x`.
fn ln_upper_gamma(shape: f64, x: f64) -> f64 {
    if shape < 1.0 || x <= 0.0 {
        return 0.0;
    }
    let ln_density = shape * libm::log(x) - x - libm::lgamma(shape);
    if x < shape + 1.0 {
        let (mut k, mut term, mut sum) = (shape, 1.0 / shape, 1.0 / shape);
        while term > sum * 1e-18 {
            k += 1.0;
            term *= x / k;
            sum += term;
        }
        return libm::log1p(-libm::exp(ln_density + libm::log(sum)));
    }
    // A continued fraction, from its front, by Lentz's method.
    let (mut b, mut c, mut k) = (x + 1.0 - shape, f64::INFINITY, 0.0);
    let (mut d, mut factor) = (1.0 / b, f64::INFINITY);
    let mut fraction = d;
    while (factor - 1.0).abs() > 1e-15 {
        k += 1.0;
        b += 2.0;
        let a = k * (shape - k);
        d = 1.0 / (a * d + b);
        c = a / c + b;
        factor = c * d;
        fraction *= factor;
    }
    (ln_density + libm::log(fraction)).min(0.0)
}

/// Returns ln(n!), by Stirling's series where that is exact to f64.
fn ln_factorial(n: usize) -> f64 {
    if n < 32 {
        return (2..=n).map(|k| libm::log(k as f64)).sum();
    }
    let x = n as f64;
    let cube = x * x * x;
    let series = 1.0 / (12.0 * x) - 1.0 / (360.0 * cube) + 1.0 / (1260.0 * cube * x * x);
    x * libm::log(x) - x + 0.5 * libm::log(2.0 * std::f64::consts::PI * x) + series
}

#[cfg(test)]
mod tests {
    use std::f64::consts::LN_2;

    use gumball_spec::draw::arrival_by;
    use gumball_spec::watermark::{self, add_key};
    use gumball_spec::{Mark, Request, Row, SamplingParams, Scope, Status, oracle};
    use statrs::function::gamma::gamma_ur;

    use super::*;

    fn of_number(number: u32) -> (Watermark, Keys) {
        add_key(number, [number as u8 + 1; 16]).unwrap();
        (Watermark { key: number, context: 2, ..Watermark::default() }, Scheme::Gumball.key(number).unwrap())
    }

    #[test]
    fn the_tail_is_that_of_the_gamma_law() {
        for (n, x) in
            [(1, 0.3), (1, 700.0), (2, 1.0), (40, 40.0), (40, 90.0), (500, 470.0), (500, 640.0), (9, 0.0)]
        {
            let expected = gamma_ur(n as f64, f64::max(x, 1e-300)).ln();
            let found = ln_tail(n, x);
            assert!(
                (found - expected).abs() <= 1e-9 * expected.abs().max(1.0),
                "{n} {x}: {found} {expected}"
            );
        }
        for (shape, x) in
            [(1.2, 0.4), (1.2, 9.0), (44.5, 20.0), (44.5, 44.5), (44.5, 120.0), (9000.7, 9300.0)]
        {
            let (expected, found) = (gamma_ur(shape, x).ln(), ln_upper_gamma(shape, x));
            assert!(
                (found - expected).abs() <= 1e-9 * expected.abs().max(1.0),
                "{shape} {x}: {found} {expected}"
            );
            let whole = shape.round();
            assert!((ln_upper_gamma(whole, x) - ln_tail(whole as usize, x)).abs() < 1e-10, "{whole} {x}");
        }
        // Far beyond what an f64 can be.
        assert!((ln_tail(1, 5000.0) + 5000.0).abs() < 1e-9);
        assert!((-1.0..-0.3).contains(&ln_tail(1_000_000, 1_000_000.0)));
    }

    #[test]
    fn a_text_that_is_marked_throughout_is_one_part_and_each_score_is_read_a_few_times() {
        // To sum the part again for each of its 187,497 windows would take hours.
        let scores: Vec<_> =
            (0..3_000_000).map(|id| (id % 7 != 0).then_some(2.0 + (id % 3) as f64)).collect();
        let found = parts(Scheme::Gumball, &scores, 64, 1e-3).unwrap();
        let whole = Evidence::of(Scheme::Gumball, Sum::default().and(&scores)).among(187_497);
        assert_eq!(found, [Part { ids: 0..scores.len(), evidence: whole }]);
    }

    /// Draws a text of `count` tokens from the same row.
    fn text(watermark: Option<Watermark>, vocab: u32, count: usize, seed: u64) -> (Vec<u32>, Vec<bool>) {
        let row: Vec<f32> = (0..vocab).map(|id| (id % 7) as f32 * 0.3).collect();
        let watermark = watermark.map_or(Mark::Off, Mark::Own);
        let params = SamplingParams { watermark, ..SamplingParams::default() };
        let (mut output, mut marked) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let mut request = Request { output: &output, ..Request::new(&params, &[], seed) };
            request.position = output.len() as u32;
            let outcome = oracle::sample(Row::F32(&row), &request, None).unwrap();
            marked.push(outcome.status.contains(Status::MARKED));
            output.push(outcome.token as u32);
        }
        (output, marked)
    }

    #[test]
    fn marked_texts_are_found_and_others_are_not() {
        let (watermark, key) = of_number(50);
        let (_, other) = of_number(51);
        let (ids, marked) = text(Some(watermark), 60, 200, 7);
        let found: Vec<bool> =
            scores(&ids, 0, Scheme::Gumball, &watermark, key).iter().map(Option::is_some).collect();
        assert_eq!(found, marked);
        let evidence = detect(&ids, 0, Scheme::Gumball, &watermark, key);
        assert_eq!(evidence.tokens + evidence.skipped, 200);
        assert!(evidence.p_value() < 1e-30, "{evidence:?}");
        let (number, best) = detect_any(&ids, 0, Scheme::Gumball, &watermark, &[51, 50]).unwrap();
        assert_eq!((number, best), (50, evidence.among(2)));
        assert!(best.ln_p > evidence.ln_p && detect_any(&ids, 0, Scheme::Gumball, &watermark, &[]).is_err());
        assert!(detect(&ids, 0, Scheme::Gumball, &watermark, other).p_value() > 1e-4);
        assert!(detect(&text(None, 60, 200, 7).0, 0, Scheme::Gumball, &watermark, key).p_value() > 1e-4);
        // A short vocabulary repeats its contexts, which do not count twice.
        for (scope, window) in [(Scope::Output, 0), (Scope::Both, 0), (Scope::Output, 5)] {
            let watermark = Watermark { scope, window, ..watermark };
            let (ids, marked) = text(Some(watermark), 5, 120, 9);
            let found: Vec<bool> =
                scores(&ids, 0, Scheme::Gumball, &watermark, key).iter().map(Option::is_some).collect();
            assert_eq!(found, marked, "{watermark:?}");
        }
    }

    #[test]
    fn p_values_of_unmarked_texts_are_uniform() {
        let (watermark, key) = of_number(50);
        let mut counts = [0u32; 10];
        for seed in 0..400 {
            // Half of each text is the same in all.
            let mut ids: Vec<u32> = (0..100).map(|i| i * i % 97).collect();
            ids.extend(text(None, 60, 30, seed).0);
            counts
                [(detect(&ids, 100, Scheme::Gumball, &watermark, key).p_value() * 10.0).min(9.0) as usize] +=
                1;
        }
        let chi: f64 = counts.iter().map(|count| (f64::from(*count) - 40.0).powi(2) / 40.0).sum();
        assert!(chi < 40.0, "{counts:?}");
    }

    #[test]
    fn scores_have_the_mean_that_the_probability_gives() {
        // The token of probability p scores f(p) on average (W4).
        of_number(50);
        let key = watermark::key(50).unwrap();
        let p = [0.6f32, 0.3, 0.1];
        let mut means = [(0.0, 0.0); 3];
        for row in 0..30_000u32 {
            let words = key.words([row, 7]);
            let score = |id: u32| -(-(-f64::from(arrival_by(words, id)) * LN_2).exp_m1()).ln();
            let first = |id: u32| arrival_by(words, id) / p[id as usize];
            let winner = (0..3).min_by(|a, b| first(*a).total_cmp(&first(*b))).unwrap();
            let mean = &mut means[winner as usize];
            *mean = (mean.0 + score(winner), mean.1 + 1.0);
        }
        for (p, (sum, count)) in p.iter().zip(means) {
            let p = f64::from(*p);
            let f: f64 = (1..100_000).map(f64::from).map(|k| 1.0 / (k * (1.0 + k * p))).sum();
            assert!((sum / count / f - 1.0).abs() < 0.04, "{p}: {} {f}", sum / count);
        }
    }

    #[test]
    fn a_marked_part_is_found_where_it_is() {
        let (watermark, _) = of_number(50);
        let (mut ids, _) = text(None, 60, 400, 1);
        ids.extend(text(Some(watermark), 60, 150, 3).0);
        ids.extend(text(None, 60, 400, 5).0);
        let find = |length, alpha| find_marked(&ids, 0, Scheme::Gumball, &watermark, length, alpha);
        let found = find(100, 1e-6).unwrap();
        let [part] = &found[..] else { panic!("{found:?}") };
        assert!(part.ids.start >= 325 && part.ids.end <= 625 && part.evidence.p_value() < 1e-10, "{part:?}");
        for length in [951, usize::MAX - 1, usize::MAX] {
            assert_eq!(find(length, 1e-6), find(ids.len(), 1e-6), "a window of {length}");
            assert!(find_marked(&[], 0, Scheme::Gumball, &watermark, length, 0.01).unwrap().is_empty());
        }
        assert!(find(0, 0.01).is_err() && find(1, f64::NAN).is_err());
        assert!(find_marked(&ids, 951, Scheme::Gumball, &watermark, 1, 0.01).is_err());
    }
}
