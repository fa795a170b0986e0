// params_from_columns.cu: makes a step's requests from an operator's columns of parameters.
//
// Computes   for each output its Params and State, as the host does for requests, from numbers that only device memory
//            holds; its slot, and the row that it reads
// Never      reads a row of logits; trusts a number: a value outside its range counts as the nearest one inside
// Twins      host src/requests/filter_params.rs, spec/src/filter.rs | src/operators
// Shapes     columns of seeds, positions, draws and row indices [outputs] or [1]; of temperatures and filters
//            [logits_rows] or [1]; with slots all of these [pool_size] or [1], and slots [requests] or [1]
// Grid       x = blocks of 128 outputs, one thread per output
// Traffic    in: the columns; out: 256 bytes per output
// Requires   nothing of the kernels before it on the stream: it waits for them, and then triggers the survey

#include "abi/operators.cuh"
#include "math/arrival.cuh"
#include "math/kind.cuh"

// A number of a column, of 32 or 64 bits, as the words that were loaded: a thread waits for them only at their use.
struct ColumnValue {
    u32 low;
    u32 high;

    DEVICE_MEMBER ColumnValue(const ParamColumns& args, const void* column, u32 bit, u64 index) : low(0), high(0) {
        if (column == nullptr) {
            return;
        }
        const u32* words = (const u32*)column;
        const u32 is_64_bit = args.columns_64_bit & bit ? 1 : 0;
        index = (args.per_row_columns & bit ? index : 0) << is_64_bit;
        low = words[index];
        if (is_64_bit) {
            high = words[index + 1];
        }
    }

    DEVICE_MEMBER i64 integer(const ParamColumns& args, u32 bit) const {
        return args.columns_64_bit & bit ? (i64)((u64)high << 32 | low) : (i64)(int)low;
    }
    DEVICE_MEMBER float real() const { return bits_float(low); }
};

// One row's numbers in the columns of parameters. The constructor issues all loads before a thread uses one of them.
struct RowColumns {
    ColumnValue temperature;
    ColumnValue top_k;
    ColumnValue top_p;
    ColumnValue min_p;

    DEVICE_MEMBER RowColumns(const ParamColumns& args, u32 logits_row)
        : temperature(args, args.temperatures, COLUMN_TEMPERATURE, logits_row),
          top_k(args, args.top_ks, COLUMN_TOP_K, logits_row), top_p(args, args.top_ps, COLUMN_TOP_P, logits_row),
          min_p(args, args.min_ps, COLUMN_MIN_P, logits_row) {}
};

// The P of F1 for a fraction p in (0, 1): p 2^32, rounded up.
DEVICE u32 fraction_to_u32(float p) {
    // Multiplication by a power of two is exact here.
    float scaled = p * 4294967296.0f;
    u32 whole = (u32)scaled;
    return whole + (u32_to_float(whole) < scaled);
}

// Writes one row's numbers from the columns into its request's parameters:
//
//     set the temperature and its scales; a greedy row has no filters, and ends here
//     set top-k, top-p and min-p
//     take the chain of the filters that are on, which the host has made
DEVICE void apply_columns(const ParamColumns& args, const RowColumns& own, Params& params) {
    bool dynamic = params.features & FEATURE_DYNAMIC_TEMPERATURE;
    if (args.temperatures) {
        float t = own.temperature.real();
        // A NaN temperature counts as 0.
        t = t > 0.0f ? fminf(t, bits_float((127 + 100) << 23)) : 0.0f;
        dynamic = dynamic && t != 0.0f;
        params.temperature = t;
        if (t < bits_float((127 - 100) << 23) && !dynamic) {
            params.features = FEATURE_GREEDY | (params.features & (FEATURE_LOGPROBS | FEATURE_LOGPROB_SUMS));
            params.effective_temperature = 0.0f;
        } else if (!dynamic) {
            params.effective_temperature = t;
            params.log2e_over_t = log2_e() / t;
            bool last = (params.features & FEATURE_TEMPERATURE_LAST) && !(params.features & FEATURE_MIROSTAT);
            params.filter_log2e_over_t = last ? log2_e() : params.log2e_over_t;
        }
    }
    if (params.features & FEATURE_GREEDY) {
        params.filter_chain = 0;
        params.chain = CHAIN_NONE;
        return;
    }
    u32 on = 0;
    if (args.top_ks) {
        i64 k = own.top_k.integer(args, COLUMN_TOP_K);
        const u32 count = k < 0 ? 0 : k < (i64)args.vocab ? (u32)k : args.vocab;
        params.filter_numbers[FILTER_TOP_K] = count;
        on |= k > 0 && k < (i64)args.vocab ? ROW_TOP_K : 0;
        on |= count > MAX_LISTED_TOP_K ? ROW_LONG_TOP_K : 0;
    }
    if (args.top_ps) {
        float p = own.top_p.real();
        params.filter_numbers[FILTER_TOP_P] = p < 1.0f && p > 0.0f ? fraction_to_u32(p) : 0;
        on |= p < 1.0f ? ROW_TOP_P : 0;
    }
    if (args.min_ps) {
        float min_p = own.min_p.real();
        params.min_ratio = min_p > 0.0f ? fminf(min_p, 1.0f) : 0.0f;
        params.filter_numbers[FILTER_MIN_P] = min_p > 0.0f ? float_bits(log2_rule(params.min_ratio)) : 0;
        on |= min_p > 0.0f ? ROW_MIN_P : 0;
    }
    params.filter_chain = args.filters[on].filter_chain;
    params.features |= args.filters[on].features;
    params.chain = args.filters[on].chain;
    const bool begins_with_top_k = (params.filter_chain & 15) == FILTER_TOP_K;
    params.first_tokens = begins_with_top_k ? params.filter_numbers[FILTER_TOP_K] : args.filters[on].first_tokens;
}

// Returns the index that a column has for an output or a request. If it is not below `count`, it returns 0, and `there`
// becomes false.
DEVICE u32 index_in(const ParamColumns& args, const void* column, u32 bit, u32 at, u32 count, bool& there) {
    const i64 own = ColumnValue(args, column, bit, at).integer(args, bit);
    // As an unsigned number, a negative index is not below `count`.
    const u64 index = args.columns_64_bit & bit ? (u64)own : (u32)own;
    there = index < count;
    return there ? (u32)index : 0;
}

KERNEL(params_from_columns, COLUMNS_THREADS, ParamColumns, args) {
    warm_constant_bank(args);
    // The preceding kernel may write the columns and the rows of logits. The survey reads the rows as soon as it
    // starts, so this kernel triggers it only after the wait.
    grid_dependency_wait();
    trigger_dependents();
    u32 row = blockIdx.x * COLUMNS_THREADS + threadIdx.x;
    if (row >= args.rows) {
        return;
    }
    u32 output = args.first_output + row;
    // The elements of the columns of draws and of parameters, and how many outputs of the same request come before.
    u64 draws_row = output, logits_row = output;
    u32 ahead = 0;
    bool there = true;
    if (args.pool_slots) {
        const u32 request = output / args.rows_per_slot;
        ahead = output - request * args.rows_per_slot;
        draws_row = index_in(args, args.pool_slots, COLUMN_SLOT, request, args.pool_size, there);
        logits_row = draws_row;
    }
    const ColumnValue seed(args, args.seeds, COLUMN_SEED, draws_row), draw(args, args.draws, COLUMN_DRAW, draws_row);
    const ColumnValue offset(args, args.positions, COLUMN_POSITION, draws_row);
    if (args.row_indices) {
        logits_row = index_in(args, args.row_indices, COLUMN_ROW_INDEX, output, args.logits_rows, there);
        args.row_indices_out[row] = (u32)logits_row;
    }
    const RowColumns own(args, (u32)logits_row);
    args.slots[row] = there ? (int)row : -1;
    args.forced[row] = -1;
    Params params = args.base;
    if (there) {
        apply_columns(args, own, params);
    }
    if (args.seeds) {
        params.seed = (u64)seed.integer(args, COLUMN_SEED);
    }
    if (args.draws) {
        params.draw = draw.low;
    } else if (!(args.flags & FROM_COLUMNS_ONE_DRAW)) {
        params.draw = output;
    }
    if (args.flags & FROM_COLUMNS_SHARED_ROWS) {
        params.features = FEATURE_GREEDY | (params.features & FEATURE_FILTER_SUMS);
    }
    u64 position = args.position;
    if (args.positions) {
        position = (u64)offset.integer(args, COLUMN_POSITION);
        if (args.flags & FROM_COLUMNS_HIGH_DRAWS) {
            params.draw = (u32)(position >> 32);
        }
        if (args.flags & FROM_COLUMNS_OFFSETS && args.columns_64_bit & COLUMN_POSITION) {
            params.seed += seed_from_offset(position);
        }
    }
    args.params[row] = params;
    State state{};
    state.position = (u32)position + ahead;
    state.mirostat_mu = args.mirostat_mu;
    state.step = 1;
    args.states[row] = state;
}
