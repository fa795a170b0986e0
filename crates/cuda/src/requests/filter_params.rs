//! Filters: turns temperature and filter parameters into what `filter.cuh` reads.

use gumball_spec::filter::fraction_to_u32;
use gumball_spec::num::log2;
use gumball_spec::survey::scale;
use gumball_spec::{Chain, Filter, FilterOrder, Reading, SamplingParams, Wanted};

use crate::abi::{MAX_LISTED_TOP_K, Params, RowFilters, features, filter_code, readings};

/// The features that say how a filter chain acts.
pub(crate) const DECIDED_BY_CHAIN: u32 = features::JOINT
    | features::CANDIDATES
    | features::FILTER_SUMS
    | features::TESTED_DRAW
    | features::TESTED_COUNT;

/// Returns a request's filters in the order in which kernels take them, their features of
/// [`DECIDED_BY_CHAIN`], and what must be read at a temperature. Greedy requests and mirostat use neither
/// filters nor features. `short` says whether its top-k, if it is on, is at most `MAX_LISTED_TOP_K`.
pub(crate) fn row_filters(
    params: &SamplingParams,
    temperature: f32,
    vocab: usize,
    short: bool,
) -> (RowFilters, Reading) {
    let mut filters = [Filter::TopK; Filter::ALL.len()];
    let on = filters.iter_mut().zip(params.filters(vocab)).map(|(entry, filter)| *entry = filter).count();
    let filters = &mut filters[..on];
    let joint = params.order == FilterOrder::Joint && order_joint(filters, params, short);
    let reading = Reading::of(params, temperature, filters, joint);
    let chain = Chain::of(reading, params, filters, joint);
    let counted = filters.first().and_then(|filter| params.counted(*filter));
    let tested = Chain::tested(reading, filters, !short);
    let first_tokens = counted.map_or(0, |count| count.min(vocab) as u32);
    let mut row = RowFilters { chain: chain as u32, first_tokens, ..RowFilters::default() };
    for (i, filter) in filters.iter().enumerate() {
        row.filter_chain |= filter_code(*filter) << (4 * i);
    }
    for (bit, is_set) in [
        (features::JOINT, joint),
        (features::CANDIDATES, chain.has_list()),
        (features::FILTER_SUMS, chain.has_mass()),
        (features::TESTED_DRAW, tested.is_some()),
        (features::TESTED_COUNT, tested == Some(Filter::TopK)),
    ] {
        row.features |= if is_set { bit } else { 0 };
    }
    (row, reading)
}

/// Returns the code of what must be read of a row for its token and its logprobs.
fn reading_code(params: &SamplingParams, reading: Reading) -> u32 {
    let logprobs = params.logprobs.as_ref().map(|logprobs| logprobs.mode);
    match reading.with(&Wanted { logprobs, ..Wanted::default() }) {
        Reading::First => readings::FIRST,
        Reading::Top(_) => readings::TOP,
        Reading::Race(0.0) => readings::RACE,
        // Which tokens min-p keeps is known only once the first one is, so all that it could keep are
        // computed.
        Reading::Race(_) | Reading::Likely(_) => readings::LIKELY,
        Reading::Mass(_) => readings::MASS,
        Reading::Whole(_) => readings::WHOLE,
    }
}

/// Sorts filters that act jointly into the order of least work. Returns whether they act jointly in that
/// order too; otherwise they act one after the other. A filter chain with other filters stays as it is and
/// acts jointly.
///
/// The intersection of prefixes of the order is the shortest of them. Only top-p depends on the mass of its
/// given set. With top-p first, such filters keep the same tokens one after the other: top-k counts from the
/// first token, and min-p compares with it.
///
/// A nucleus may be long, however. If top-k is short, it goes first, because its candidate list is short
/// whatever the nucleus is. Then top-p is second and jointly uses the mass of the whole row, which the survey
/// sums.
fn order_joint(chain: &mut [Filter], params: &SamplingParams, short: bool) -> bool {
    if !chain.iter().all(|filter| filter.kind().prefix) {
        return true;
    }
    chain.sort_by_key(|filter| *filter != Filter::TopP);
    // With dynamic temperature, the survey does not know the scale of the mass.
    let first_top_k =
        short && params.dynamic_temperature.is_none() && chain.starts_with(&[Filter::TopP, Filter::TopK]);
    if first_top_k {
        chain.swap(0, 1);
    }
    first_top_k
}

/// Returns the number of a filter as kernels have it, 0 for a flag.
fn filter_number(params: &SamplingParams, filter: Filter, vocab: usize) -> u32 {
    let (kind, number) = (filter.kind(), params.number(filter).unwrap_or(0.0));
    match number as f32 {
        // All of 2^32 leaves 0.
        share if kind.share => fraction_to_u32(share) as u32,
        threshold if kind.log2 => log2(threshold).to_bits(),
        _ if kind.counted.is_some() => number.clamp(0.0, vocab as f64) as u32,
        number => number.to_bits(),
    }
}

/// Writes a request's filter parameters, and a temperature in the place of its own, into `prepared`.
pub(crate) fn prepare(params: &SamplingParams, temperature: f32, vocab: usize, prepared: &mut Params) {
    let greedy = SamplingParams::is_greedy(temperature);
    let dynamic = params.dynamic_temperature.filter(|_| temperature != 0.0);
    prepared.temperature = temperature;
    let (row, reading) = row_filters(params, temperature, vocab, params.top_k <= MAX_LISTED_TOP_K);
    (prepared.reading, prepared.chain) = (reading_code(params, reading), row.chain);
    if greedy && dynamic.is_none() {
        prepared.features |= features::GREEDY;
        return;
    }
    if params.temperature_last {
        prepared.features |= features::TEMPERATURE_LAST;
    }
    if let Some(dynamic) = dynamic {
        prepared.features |= features::DYNAMIC_TEMPERATURE;
        prepared.dynamic_min = dynamic.min;
        prepared.dynamic_max = dynamic.max;
        prepared.dynamic_exponent = dynamic.exponent;
    } else {
        prepared.effective_temperature = temperature;
        prepared.log2e_over_t = scale(temperature);
    }
    prepared.filter_log2e_over_t = if params.temperature_last { scale(1.0) } else { prepared.log2e_over_t };
    if let Some(mirostat) = params.mirostat {
        prepared.features |= features::MIROSTAT;
        prepared.mu_target = mirostat.tau;
        prepared.mu_rate = mirostat.eta;
        // Mirostat acts alone, and temperature_last does not affect it (F6).
        prepared.filter_log2e_over_t = prepared.log2e_over_t;
        return;
    }
    if params.is_adaptive() {
        prepared.features |= features::ADAPTIVE;
        prepared.mu_target = params.adaptive_target;
        prepared.mu_rate = params.adaptive_decay;
    }
    prepared.filter_chain = row.filter_chain;
    prepared.features |= row.features;
    for filter in Filter::ALL {
        prepared.filter_numbers[filter_code(filter) as usize] = filter_number(params, filter, vocab);
    }
    prepared.first_tokens = row.first_tokens;
    prepared.min_keep = params.min_keep.min(vocab as u32);
    prepared.min_ratio = params.min_p;
    prepared.xtc_threshold = log2(params.xtc_threshold);
}
