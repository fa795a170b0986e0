//! Filters: turns temperature and filter parameters into what `filter.cuh` reads.

use gumball_spec::filter::fraction_to_u32;
use gumball_spec::num::log2;
use gumball_spec::survey::scale;
use gumball_spec::{Filter, FilterOrder, SamplingParams};

use crate::abi::{MAX_LISTED_TOP_K, Params, features, filters};

// A filter chain has four bits for each filter; another filter needs a wider field on both sides.
const _: () = assert!(4 * Filter::ALL.len() <= u64::BITS as usize);

/// Returns a filter's code in [`Params::filter_chain`].
fn code(filter: Filter) -> u32 {
    match filter {
        Filter::TopNSigma => filters::TOP_N_SIGMA,
        Filter::TopK => filters::TOP_K,
        Filter::TypicalP => filters::TYPICAL_P,
        Filter::TopP => filters::TOP_P,
        Filter::MinP => filters::MIN_P,
        Filter::TopA => filters::TOP_A,
        Filter::PLess => filters::P_LESS,
        Filter::EpsilonCutoff => filters::EPSILON,
        Filter::EtaCutoff => filters::ETA,
        Filter::Xtc => filters::XTC,
    }
}

/// Filters that each keep a prefix of the order, and that may be reordered if they act jointly: with top-p
/// first, neither top-k nor min-p depends on the mass of its given set. Other filters that keep prefixes,
/// such as top-a and epsilon, compare with that mass, so they are not among these.
const PREFIXES: [Filter; 3] = [Filter::TopP, Filter::TopK, Filter::MinP];

fn are_prefixes(chain: &[Filter]) -> bool {
    chain.iter().all(|filter| PREFIXES.contains(filter))
}

/// Sorts filters that act jointly into the order of least work. Returns whether they act jointly in that
/// order too; otherwise they act one after the other. A filter chain with other filters stays as it is and acts
/// jointly.
///
/// The intersection of prefixes of the order is the shortest of them. Only top-p depends on the mass of its
/// given set. With top-p first, such filters keep the same tokens one after the other: top-k counts from the
/// first token, and min-p compares with it.
///
/// A nucleus may be long, however. If top-k keeps at most `MAX_LISTED_TOP_K` tokens, top-k goes first, because its
/// candidate list is short whatever the nucleus is. Then top-p is second and jointly uses the mass of the
/// whole row, which the survey sums.
fn order_joint(chain: &mut [Filter], params: &SamplingParams) -> bool {
    if !are_prefixes(chain) {
        return true;
    }
    chain.sort_by_key(|filter| PREFIXES.iter().position(|other| other == filter));
    // With dynamic temperature, the survey does not know the scale of the mass.
    let few = params.top_k <= MAX_LISTED_TOP_K && params.dynamic_temperature.is_none();
    let first_top_k = few && chain.starts_with(&[Filter::TopP, Filter::TopK]);
    if first_top_k {
        chain.swap(0, 1);
    }
    first_top_k
}

/// Returns whether this filter chain usually keeps few tokens, so that the candidate-list path is tried
/// first.
fn fits_candidates(chain: &[Filter], joint: bool, params: &SamplingParams) -> bool {
    let Some((first, rest)) = chain.split_first() else { return false };
    let short = match first {
        Filter::TopK => params.top_k <= MAX_LISTED_TOP_K,
        // The survey sums weights for top-p, at a scale that must not depend on the row.
        Filter::TopP => params.dynamic_temperature.is_none(),
        _ => false,
    };
    // XTC leaves a set that is not a prefix, so no filter may follow it.
    let rest = if let [rest @ .., Filter::Xtc] = rest { rest } else { rest };
    let listable = |filter: &Filter| {
        use Filter::{EpsilonCutoff, MinP, TopA, TopK, TopP};
        matches!(filter, TopK | TopP | MinP | TopA | EpsilonCutoff)
    };
    let apart = joint && !are_prefixes(chain);
    short && !apart && rest.iter().all(listable)
}

/// Writes a request's filter parameters, and a temperature in the place of its own, into `prepared`.
pub(crate) fn prepare(params: &SamplingParams, temperature: f32, vocab: usize, prepared: &mut Params) {
    let greedy = SamplingParams::is_greedy(temperature);
    let dynamic = params.dynamic_temperature.filter(|_| temperature != 0.0);
    prepared.temperature = temperature;
    if greedy && dynamic.is_none() {
        prepared.features |= features::GREEDY;
        return;
    }
    if params.order == FilterOrder::Joint {
        prepared.features |= features::JOINT;
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
        prepared.mirostat_tau = mirostat.tau;
        prepared.mirostat_eta = mirostat.eta;
        // Mirostat acts alone, and temperature_last does not affect it (F6).
        prepared.filter_log2e_over_t = prepared.log2e_over_t;
        return;
    }
    let mut filters = [Filter::TopK; Filter::ALL.len()];
    let on = filters.iter_mut().zip(params.filters(vocab)).map(|(entry, filter)| *entry = filter).count();
    let chain = &mut filters[..on];
    if params.order == FilterOrder::Joint && !order_joint(chain, params) {
        prepared.features &= !features::JOINT;
    }
    for (i, filter) in chain.iter().enumerate() {
        prepared.filter_chain |= u64::from(code(*filter)) << (4 * i);
    }
    // A fraction below 1 becomes less than 2^32: the largest f32 below 1 is 1 - 2^-24.
    let fraction = |p: f32| if p < 1.0 { fraction_to_u32(p) as u32 } else { 0 };
    prepared.xtc_probability = fraction_to_u32(params.xtc_probability);
    prepared.top_k = params.top_k.clamp(0, vocab as i64) as u32;
    if fits_candidates(chain, prepared.features & features::JOINT != 0, params) {
        let of_row = chain[0] == Filter::TopP || prepared.features & features::JOINT != 0;
        prepared.features |= features::CANDIDATES | if of_row { features::FILTER_SUMS } else { 0 };
    }
    prepared.top_p = fraction(params.top_p);
    prepared.typical_p = fraction(params.typical_p);
    prepared.top_n_sigma = params.top_n_sigma;
    prepared.log2_min_p = log2(params.min_p);
    prepared.min_ratio = params.min_p;
    prepared.top_a = log2(params.top_a);
    prepared.epsilon = log2(params.epsilon_cutoff);
    prepared.eta = log2(params.eta_cutoff);
    prepared.xtc_threshold = log2(params.xtc_threshold);
}
