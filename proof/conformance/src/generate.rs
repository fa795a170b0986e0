//! Cases from bytes: any parameters in any combination that validates, and hostile rows.
//!
//! Every choice eats bytes in a fixed order, and a byte of zero chooses the tamest: so cutting the input
//! short, or zeroing it, makes a case simpler.

use gumball_spec::{
    Dry, DynamicTemperature, Field, Filter, FilterOrder, Kind, LogprobMode, LogprobModes, LogprobsParams,
    Loops, Mark, Mirostat, Parameter, Parameters, Range, SamplingParams, Scope, Section, TILE, Watermark,
    watermark,
};

use crate::backend::{Backend, Oracle};
use crate::bytes::Bytes;
use crate::case::{CallerEdit, Case, Dtype, Logits, UNIT};
use crate::drafted::{Drafted, Node};
use crate::rows::{self, Words};

/// Makes a case; its parameters validate for its row.
#[must_use]
pub fn case(data: &[u8]) -> Case {
    make(data, vocab)
}

/// Makes a case of a vocabulary as models have it, up to the largest.
#[must_use]
pub fn large_case(data: &[u8]) -> Case {
    make(data, |bytes| {
        let tiles = bytes.of(&[125, 256, 416, 417, 501, 594, 1024, 1536, 4096]);
        tiles * TILE - [0, 1, TILE - 1][usize::from(bytes.byte() % 3)]
    })
}

/// Makes a request with drafts. Most are what would be drawn; few trees are none.
#[must_use]
pub fn drafted(data: &[u8]) -> Drafted {
    let (shape, data) = data.split_at(data.len().min(100));
    let (bytes, root) = (&mut Bytes(shape), case(data));
    let (vocab, kind) = (root.vocab(), root.kind);
    let mut drafted = Drafted { greedy: bytes.seldom(5), ..Drafted::new(root, []) };
    let n = bytes.of(&[0, 1, 2, 4, 7, 64, 65]);
    for node in 0..n as i32 {
        let parent = if bytes.seldom(3) { bytes.below(n) as i32 % (node + 1) - 1 } else { node - 1 };
        let mut row = rows::grid(vocab, 0.5, 6, u64::from(bytes.byte()));
        if kind == Kind::Probabilities {
            row.iter_mut().for_each(|p| *p = p.abs());
        }
        drafted.nodes.push(Node {
            draft: if bytes.seldom(4) { bytes.below(vocab + 2) as i32 - 1 } else { UNDECIDED },
            parent: if bytes.seldom(40) { bytes.of(&[-2, n as i32, node, i32::MAX]) } else { parent },
            logits: Logits::new(drafted.root.logits.dtype(), &row),
            mask: drafted.root.mask.clone().filter(|_| bytes.seldom(2)),
            forced: bytes.seldom(6).then(|| bytes.below(vocab) as u32),
            hook: drafted.root.hook.filter(|_| bytes.seldom(2)),
        });
    }
    // What would be drawn shows by walking, one token at a time.
    for _ in 0..n {
        let Ok(walked) = Oracle.walk(&drafted) else { break };
        let (row, seen) = walked.last().expect("a walk has a row");
        let child = drafted.nodes.iter_mut().find(|node| node.parent == *row as i32 - 1);
        let Some(child) = child.filter(|child| child.draft == UNDECIDED) else { break };
        child.draft = seen.token;
    }
    drafted
}

/// A draft that was not chosen yet; it equals nothing.
const UNDECIDED: i32 = i32::MIN;

fn make(data: &[u8], vocab: fn(&mut Bytes<'_>) -> usize) -> Case {
    let bytes = &mut Bytes(data);
    let high_seed = bytes.word();
    let vocab = vocab(bytes);
    let logits = row(bytes, vocab);
    let params = params(bytes, vocab);
    debug_assert_eq!(params.validate(vocab), Ok(()));
    let (prompt, output) = (ids(bytes, vocab), ids(bytes, vocab));
    let mut case = Case::new(logits, params).after(&prompt, &output);
    case.seed = u64::from(high_seed) << 32 | u64::from(bytes.word());
    case.position = bytes.of(&[0, 1, 77, u32::MAX]).wrapping_add(u32::from(bytes.byte()));
    case.draw = bytes.of(&[0, 0, 1, u32::MAX]);
    if bytes.seldom(3) {
        case.mu = bytes.of(&[0.5, 2.0, 7.0, -1.0, 30.0, 1e30]);
    }
    case.mask = mask(bytes, vocab);
    if bytes.seldom(8) {
        case.forced = Some((bytes.below(65_536) % vocab) as u32);
    }
    if bytes.seldom(8) {
        let value = bytes.of(&[1.0, 0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30]);
        let id = (bytes.below(65_536) % vocab) as u32;
        let other = (bytes.below(65_536) % vocab) as u32;
        let edits = [
            CallerEdit::Write(id, value),
            CallerEdit::AddToMultiples(1 + id % 7, 0.75),
            CallerEdit::Copy(other, id),
            CallerEdit::Reverse,
        ];
        case.hook = Some(bytes.of(&edits));
    }
    if bytes.seldom(3) {
        probabilities(bytes, &mut case);
    }
    if bytes.seldom(4) {
        case.logits = case.logits.placed(bytes.below(40));
    }
    case
}

/// Makes a case one of probabilities: mostly powers of two of its logits, in some unit, and now and then its
/// logits as they are, negative ones included.
fn probabilities(bytes: &mut Bytes<'_>, case: &mut Case) {
    case.kind = Kind::Probabilities;
    case.hook = None;
    speak_of_probabilities(&mut case.params);
    let row = case.logits.row();
    let values = (0..row.vocab()).map(|id| row.logit(id));
    let unit = bytes.of(&[1.0, 1.0, 1e-3, 1e-30, 1e-40, 1e30]);
    let values: Vec<f32> = match bytes.byte() % 4 {
        3 => values.collect(),
        2 => values.map(|z| (z.exp2() * 64.0).round() / 64.0 * unit).collect(),
        _ => values.map(|z| if z.is_infinite() { z.max(0.0) } else { z.exp2() * unit }).collect(),
    };
    case.logits = Logits::new(case.logits.dtype(), &values);
}

/// Returns parameters with a filter near its usual value.
#[must_use]
pub fn with_filter(params: SamplingParams, filter: Filter, words: &mut Words) -> SamplingParams {
    let Parameter { usual, range, .. } = *filter.parameter();
    let value = match range {
        // A mass, mostly a large one; a usual share is small.
        Some(Range { most: 1.0, .. }) if usual > 0.5 => 0.01 + 0.98 * f64::from(words.fraction()).sqrt(),
        Some(range) => range.most.min(usual * (3.0 * f64::from(words.fraction()) - 1.0).exp2()),
        None => usual,
    };
    let mut params = params.with_filter(filter, value);
    if filter == Filter::Xtc {
        params.xtc_threshold = 0.001 + 0.1 * words.fraction();
    }
    params
}

/// Switches off what speaks of logits (P2).
pub fn speak_of_probabilities(params: &mut SamplingParams) {
    *params = params.only(|parameter| !parameter.of_logits || parameter.name == "logit_bias");
    params.temperature = if SamplingParams::is_greedy(params.temperature) { 0.0 } else { 1.0 };
    params.logit_bias.iter_mut().for_each(|(_, bias)| *bias = f32::NEG_INFINITY);
}

fn vocab(bytes: &mut Bytes<'_>) -> usize {
    match bytes.byte() {
        0..100 => bytes.of(&[1, 2, 3, 7, 16, 31, 33, 64]),
        100..180 => bytes.of(&[255, 256, 257, 511, 512, 513, 767, 1023, 1024, 1025]),
        180..254 => 1 + bytes.below(1030),
        _ => 1 + bytes.below(5000),
    }
}

fn row(bytes: &mut Bytes<'_>, vocab: usize) -> Logits {
    let dtype = bytes.of(&Dtype::ALL);
    let kind = bytes.byte() % 12;
    let seed = u64::from(bytes.word());
    let mut words = Words(seed);
    let mut row: Vec<f32> = match kind {
        0 => vec![bytes.number(); vocab],
        1 | 2 => rows::model_like(vocab, seed),
        3 => rows::bell(vocab, f32::from(bytes.byte()) / 16.0, seed),
        4 => rows::grid(vocab, 0.25, 1 + bytes.below(40), seed),
        5 if seed % 2 == 1 => rows::few_values(vocab, seed),
        5 => rows::bell(vocab, 1e-6, seed),
        6 => rows::bell(vocab, 1e-41, seed),
        7 => rows::bell(vocab, 1e30, seed),
        8 => (0..vocab).map(|_| f32::from_bits(words.word() as u32)).collect(),
        9 => (0..vocab).map(|id| -(id as f32) * 0.37).collect(),
        10 => (0..vocab).map(|_| bytes.number()).collect(),
        // Most of the mass in many small weights.
        _ => (0..vocab).map(|id| if id == vocab / 2 { 0.0 } else { -10.0 - words.fraction() }).collect(),
    };
    for _ in 0..bytes.byte() % 8 {
        let id = bytes.below(65_536) % vocab;
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -f32::MAX, -0.0, 1e-45, 30.0];
        row[id] = bytes.of(&odd);
    }
    if bytes.seldom(16) {
        let from = bytes.below(65_536) % vocab;
        row[from..].fill(f32::NEG_INFINITY);
    }
    Logits::new(dtype, &row)
}

/// Makes parameters that validate for a vocabulary.
#[must_use]
pub fn params(bytes: &mut Bytes<'_>, vocab: usize) -> SamplingParams {
    let mut params = SamplingParams {
        temperature: bytes.of(&[1.0, 0.7, 0.0, 0.01, 2.0, UNIT, 1e-31, 1e30, 0.3, 1.0]),
        temperature_last: bytes.seldom(5),
        ..Default::default()
    };
    if bytes.seldom(6) {
        let min = bytes.of(&[0.5, 0.0, 1.0, 1e-3]);
        let max = min + bytes.of(&[0.0, 1.0, 0.25, 1e20]);
        let exponent = bytes.of(&[1.0, 0.5, 2.0, 65_536.0, 1e-3]);
        params.dynamic_temperature = Some(DynamicTemperature { min, max, exponent });
    }
    if bytes.seldom(8) {
        let mu = bytes.of(&[None, Some(3.0), Some(-2.0)]);
        let (tau, eta) = (bytes.of(&[5.0, 0.1, 65_536.0]), bytes.of(&[0.1, 0.0, 65_536.0]));
        params.mirostat = Some(Mirostat { tau, eta, mu });
    } else {
        filters(bytes, &mut params, vocab);
    }
    penalties(bytes, &mut params);
    lists(bytes, &mut params, vocab);
    if bytes.seldom(2) {
        let first = bytes.of(&LogprobMode::OF_LOGPROBS);
        let second = Some(bytes.of(&LogprobMode::ALL)).filter(|second| *second != first && bytes.seldom(2));
        let mode = LogprobModes { first, second };
        let top_n = bytes.of(&[0, 1, 5, 20, 300, 2000]);
        params.logprobs = Some(LogprobsParams { mode, top_n, ids: vocab_ids(bytes, vocab, 5) });
    }
    if bytes.seldom(4) {
        params.section = Some(section(bytes, vocab));
    }
    if bytes.seldom(4) {
        params.loops = Some(loops(bytes, vocab, params.section.is_some()));
    }
    if bytes.seldom(4) {
        add_keys();
        params.watermark = Mark::Own(Watermark {
            key: bytes.of(&[0, 1, 2, 3]),
            context: bytes.of(&[1, 2, 4, 64]),
            scope: bytes.of(&[Scope::Output, Scope::Both]),
            window: bytes.of(&[0, 1, 3, 20, 8192]),
        });
    }
    let is_processed = |given: &LogprobsParams| given.mode.contains(LogprobMode::Processed);
    if bytes.seldom(6) && params.mirostat.is_none() && !params.logprobs.as_ref().is_some_and(is_processed) {
        params.adaptive_target = bytes.of(&[0.3, 0.0, 1.0, 0.6]);
        params.adaptive_decay = bytes.of(&[0.9, 0.0, 0.5, 0.99]);
    }
    params
}

/// The keys of watermarks that cases have, by number.
pub const KEYS: [[u8; 16]; 4] = [[0; 16], [0xFF; 16], *b"0123456789abcdef", *b"Gumball's tests."];

/// Makes these keys known.
pub fn add_keys() {
    for (number, key) in KEYS.into_iter().enumerate() {
        watermark::add_key(number as u32, key).expect("no other keys");
    }
}

/// Makes a section of few ids, so that a history that repeats opens and closes it.
fn section(bytes: &mut Bytes<'_>, vocab: usize) -> Section {
    let few = vocab.min(4);
    let mut ids =
        |lengths: &[usize]| -> Vec<u32> { (0..bytes.of(lengths)).map(|_| bytes.below(few) as u32).collect() };
    let (open, close, end) = (ids(&[1, 0, 2]), ids(&[1, 1, 2, 3]), ids(&[0, 1, 2, 5]));
    let budget = bytes.of(&[3, 0, 1, 2, 8, 30, u32::MAX]);
    Section { open, close, end, budget, min: bytes.of(&[0, 0, 1, 2, 5, 40]).min(budget) }
}

/// Makes loops that short repeats are.
fn loops(bytes: &mut Bytes<'_>, vocab: usize, has_section: bool) -> Loops {
    let min_period = bytes.of(&[1, 1, 2, 3]);
    let close = has_section && bytes.seldom(2);
    let count = if close { 0 } else { bytes.of(&[0, 1, 3]) };
    Loops {
        min_period,
        max_period: min_period + bytes.of(&[0, 1, 5, 40]),
        min_copies: bytes.of(&[2, 2, 3, 65_536]),
        min_tokens: bytes.of(&[0, 3, 6, 20]),
        every: bytes.of(&[1, 1, 2, 3, 16]),
        close,
        end: (0..count).map(|_| bytes.below(vocab.min(4)) as u32).collect(),
    }
}

fn filters(bytes: &mut Bytes<'_>, params: &mut SamplingParams, vocab: usize) {
    // Now and then those alone that a GPU answers from a short list.
    let among: &[Filter] = match bytes.byte() % 8 {
        0 => &[],
        1 | 2 => &[Filter::TopK, Filter::TopP, Filter::MinP],
        _ => &Filter::ALL,
    };
    for parameter in SamplingParams::TABLE {
        if !parameter.filter.is_some_and(|filter| among.contains(&filter)) || bytes.byte() % 8 < 3 {
            continue;
        }
        match params.field(parameter.name).expect("the table names fields").1 {
            Field::Whole(k) => {
                *k = bytes.of(&[1, 2, 5, 40, 256, vocab as i64 / 2, vocab as i64 - 1, 1 << 40])
            }
            Field::Number(share) if parameter.range.is_some_and(|range| range.most == 1.0) => {
                *share = bytes.fraction()
            }
            Field::Number(number) => *number = bytes.of(&[1.0, 0.5, 2.0, 3.0, 1e-20, 1e20]),
            flag => _ = flag.set(1.0),
        }
    }
    if params.is_on(Filter::Xtc, vocab) {
        params.xtc_probability = bytes.of(&[1.0, 0.5, 0.01]);
        params.xtc_threshold = bytes.fraction().max(f32::from_bits(1));
        if bytes.seldom(3) {
            params.xtc_exempt_ids = vocab_ids(bytes, vocab, 20);
        }
    }
    match bytes.byte() % 4 {
        0 | 1 => {}
        2 => params.order = FilterOrder::Joint,
        _ => {
            let mut list = Filter::ALL.to_vec();
            (1..list.len()).for_each(|i| list.swap(i, bytes.below(i + 1)));
            let named = list.into_iter().filter(|filter| params.is_on(*filter, vocab) || bytes.seldom(2));
            params.order = FilterOrder::List(named.collect());
        }
    }
    if bytes.seldom(8) {
        params.min_keep = bytes.of(&[2, 1, 3, 40, 300, u32::MAX]);
    }
}

fn penalties(bytes: &mut Bytes<'_>, params: &mut SamplingParams) {
    let on = bytes.byte() & bytes.of(&[0, 0xFF, 0x0F]);
    if on & 1 != 0 {
        params.repetition_penalty = bytes.of(&[1.1, 2.0, 0.5, 65_536.0, 1e-40]);
        params.repetition_scope = bytes.of(&Scope::ALL);
    }
    if on & 2 != 0 {
        params.frequency_penalty = bytes.of(&[0.1, -0.5, 65_536.0, 1e-40]);
        params.penalty_scope = bytes.of(&Scope::ALL);
    }
    if on & 4 != 0 {
        params.presence_penalty = bytes.of(&[0.3, -1.5, -65_536.0]);
        params.penalty_scope = bytes.of(&Scope::ALL);
    }
    if on & 8 != 0 {
        params.dry = Dry {
            multiplier: bytes.of(&[0.8, 65_536.0, 1e-30]),
            base: bytes.of(&[1.75, 1.0, 65_536.0]),
            allowed_length: bytes.of(&[2, 1, 3, 10, u32::MAX]),
            breakers: (0..bytes.byte() % 3).map(|_| u32::from(bytes.byte() % 8)).collect(),
            window: bytes.of(&[0, 0, 8, 1, 2, 30, 1000]),
        };
    }
    if on & 64 != 0 {
        params.penalty_window = bytes.of(&[8, 1, 2, 30, 64, 1000]);
    }
    if on & 16 != 0 {
        params.no_repeat_ngram = bytes.of(&[2, 1, 3, 5, u32::MAX]);
        params.no_repeat_ngram_scope = bytes.of(&Scope::ALL);
        params.no_repeat_ngram_window = bytes.of(&[0, 0, 8, 1, 3, 30, 1000]);
    }
    if on & 32 != 0 {
        params.min_tokens = bytes.of(&[3, 1, 1000]);
        params.stop_ids = (0..bytes.byte() % 4).map(|_| u32::from(bytes.byte())).collect();
    }
}

fn lists(bytes: &mut Bytes<'_>, params: &mut SamplingParams, vocab: usize) {
    let on = bytes.byte() & bytes.of(&[0, 0xFF, 0x0F]);
    if on & 1 != 0 {
        let mut ids = vocab_ids(bytes, vocab, 12);
        ids.sort_unstable();
        ids.dedup();
        let bias = |bytes: &mut Bytes<'_>| {
            if bytes.seldom(5) { f32::NEG_INFINITY } else { bytes.number() }
        };
        params.logit_bias = ids.into_iter().map(|id| (id, bias(bytes))).collect();
        params.bias_first = on & 128 != 0;
    }
    if on & 2 != 0 {
        params.banned_ids = vocab_ids(bytes, vocab, 8);
    }
    if params.no_repeat_ngram > 0 && on & 2 != 0 {
        params.no_repeat_ngram_exempt_ids = vocab_ids(bytes, vocab, 3);
    }
    if on & 4 != 0 {
        params.bad_words = (0..bytes.byte() % 4)
            .map(|_| (0..1 + bytes.byte() % 3).map(|_| u32::from(bytes.byte() % 8)).collect())
            .collect();
    }
    if on & 16 != 0 {
        params.allowed_ids = Some(vocab_ids(bytes, vocab, 40));
    }
}

fn vocab_ids(bytes: &mut Bytes<'_>, vocab: usize, at_most: u8) -> Vec<u32> {
    (0..bytes.byte() % (at_most + 1)).map(|_| (bytes.below(65_536) % vocab) as u32).collect()
}

/// Makes a history: few ids, so that it repeats, some of them outside the vocabulary.
fn ids(bytes: &mut Bytes<'_>, vocab: usize) -> Vec<u32> {
    let len = bytes.of(&[0, 1, 3, 8, 20, 60, 300]);
    let (seed, distinct) = (u64::from(bytes.byte()), 1 + bytes.below(8));
    let mut words = Words(seed);
    let odd = |words: &mut Words| [vocab as u32, u32::MAX, 1 << 20, vocab as u32 - 1][words.below(4)];
    (0..len)
        .map(|_| if words.below(16) == 0 { odd(&mut words) } else { words.below(distinct) as u32 })
        .collect()
}

fn mask(bytes: &mut Bytes<'_>, vocab: usize) -> Option<Vec<u32>> {
    let mut words = Words(u64::from(bytes.byte()));
    let len = vocab.div_ceil(32);
    match bytes.byte() % 16 {
        0..10 => None,
        10 => Some(vec![u32::MAX; len]),
        11 => Some((0..len).map(|_| words.word() as u32).collect()),
        12 => Some((0..len / 2).map(|_| words.word() as u32).collect()),
        13 => {
            let mut mask = vec![0; len];
            let id = words.below(vocab);
            mask[id / 32] = 1 << (id % 32);
            Some(mask)
        }
        14 => Some((0..len + 3).map(|_| (words.word() & words.word() & words.word()) as u32).collect()),
        _ => Some(vec![0; words.below(len + 1)]),
    }
}
