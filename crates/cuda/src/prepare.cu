// prepare.cu: what the rows of an operator ask for, made the requests of a step.
//
// Computes   for each output its parameters and its state, as filter.rs does on the host, of numbers that only the machine knows; the
//            line it reads, if there is such a line
// Never      reads a line; never trusts a number: what is outside its range counts as the nearest inside
// Twins      host src/filter.rs, spec/src/filter.rs | src/operators
// Shapes     columns [outputs], or of one for all; of temperatures and filters [lines]
// Grid       x = block of outputs, a thread each
// Traffic    what the columns have, 200 bytes an output out
// Requires   nothing of the kernels before it on the stream: it waits for them, and lets the survey begin after that

#include "cut.cuh"
#include "step.cuh"

// Columns, as their bits stand in Prepare::wide and Prepare::of_each.
enum ColumnBit : u32 {
    COLUMN_TEMPERATURE = 1,
    COLUMN_TOP_K = 2,
    COLUMN_TOP_P = 4,
    COLUMN_MIN_P = 8,
    COLUMN_SEED = 16,
    COLUMN_POSITION = 32,
    COLUMN_DRAW = 64,
    COLUMN_LINE = 128,
};

// Bits of Prepare::flags.
enum PrepareFlags : u32 {
    // Rows are lines, surveyed for whatever outputs read them.
    PREPARE_SURVEYS = 1,
    // All outputs are the same draw, that of the base, instead of each that of its number.
    PREPARE_ONE_DRAW = 2,
    // Positions of 64 bits are offsets: the low word is the position, the high one moves the seed.
    PREPARE_OFFSETS = 4,
};

// What the rows of an operator ask for.
struct alignas(16) Prepare {
    // What all have in common; a column, if there is one, stands for what it has.
    Params base;
    const float* temperatures;
    const void* top_ks;
    const float* top_ps;
    const float* min_ps;
    const void* seeds;
    const void* positions;
    const void* draws;
    const void* lines;
    // [rows], by which a step goes.
    Params* params;
    State* states;
    int* slots;
    int* forced;
    // The line that each row reads; null if row i reads line i.
    u32* read;
    u32 rows;
    // The number of the first.
    u32 first;
    u32 line_count;
    u32 vocab;
    // All filters that may be on, in the order they act, as in Params::chain.
    u32 filters;
    // Columns of 64 bits, and those of one number for each.
    u32 wide;
    u32 of_each;
    u32 position;
    float mu;
    u32 flags;
};

// A number of a column, of 32 bits or 64: as it is loaded, so that nobody waits for it before it is used.
struct Number {
    u32 low;
    u32 high;

    DEVICE_MEMBER Number(const Prepare& prepare, const void* column, u32 bit, u64 place) : low(0), high(0) {
        if (column == nullptr) {
            return;
        }
        const u32* words = (const u32*)column;
        const u32 wide = prepare.wide & bit ? 1 : 0;
        place = (prepare.of_each & bit ? place : 0) << wide;
        low = words[place];
        if (wide) {
            high = words[place + 1];
        }
    }

    DEVICE_MEMBER i64 whole(const Prepare& prepare, u32 bit) const {
        return prepare.wide & bit ? (i64)((u64)high << 32 | low) : (i64)(int)low;
    }
    DEVICE_MEMBER float real() const { return bits_float(low); }
};

// What stands in the columns of a line; all of it is loaded before any is used.
struct OfLine {
    Number temperature;
    Number top_k;
    Number top_p;
    Number min_p;

    DEVICE_MEMBER OfLine(const Prepare& prepare, u32 line)
        : temperature(prepare, prepare.temperatures, COLUMN_TEMPERATURE, line),
          top_k(prepare, prepare.top_ks, COLUMN_TOP_K, line), top_p(prepare, prepare.top_ps, COLUMN_TOP_P, line),
          min_p(prepare, prepare.min_ps, COLUMN_MIN_P, line) {}
};

// P of F1, of a fraction below 1; rounded up.
DEVICE u32 fraction_to_u32(float p) {
    // Both are powers of two apart, so the product is exact.
    float scaled = p * 4294967296.0f;
    u32 whole = (u32)scaled;
    return whole + (u32_to_float(whole) < scaled);
}

// The most tokens that top-k may keep for joint filters to begin with it (filter.rs).
#define FEW 256

// Whether a chain of joint filters consists of top-k, top-p and min-p alone.
DEVICE bool are_prefixes(u32 chain) {
    bool prefixes = true;
    for (; chain != 0; chain >>= 4) {
        u32 filter = chain & 15;
        prefixes = prefixes && (filter == FILTER_TOP_K || filter == FILTER_TOP_P || filter == FILTER_MIN_P);
    }
    return prefixes;
}

// Puts joint filters, which stand as the host has them for few tokens of top-k, in the order for the row's own k (filter.rs).
DEVICE void order_joint(Params& params) {
    const u32 BOTH = FILTER_TOP_P << 4 | FILTER_TOP_K;
    if (!(params.asks & ASKS_JOINT) || !are_prefixes(params.chain)) {
        return;
    }
    bool both = (params.chain & 255) == BOTH;
    if (!both || params.top_k > FEW) {
        params.asks &= ~ASKS_JOINT;
        params.chain = both ? (params.chain & ~255u) | FILTER_TOP_K << 4 | FILTER_TOP_P : params.chain;
    }
}

// Whether filters in the order they act are tried on a list (filter.rs), however many tokens top-k keeps: where that is too many the
// list fails.
DEVICE bool lists(u32 chain, u32 asks) {
    u32 first = chain & 15, rest = chain >> 4;
    bool apart = (asks & ASKS_JOINT) && !are_prefixes(chain);
    bool short_first = first == FILTER_TOP_K || (first == FILTER_TOP_P && !(asks & ASKS_DYNAMIC_TEMPERATURE));
    for (; rest != 0; rest >>= 4) {
        u32 filter = rest & 15;
        bool listed = filter == FILTER_TOP_K || filter == FILTER_TOP_P || filter == FILTER_MIN_P || filter == FILTER_EPSILON ||
                      (filter == FILTER_XTC && rest >> 4 == 0);
        short_first = short_first && listed;
    }
    return short_first && !apart;
}

// What a line asks for.
DEVICE void ask(const Prepare& prepare, const OfLine& own, Params& params) {
    bool dynamic = params.asks & ASKS_DYNAMIC_TEMPERATURE;
    if (prepare.temperatures) {
        float t = own.temperature.real();
        // NaN counts as 0.
        t = t > 0.0f ? fminf(t, bits_float((127 + 100) << 23)) : 0.0f;
        dynamic = dynamic && t != 0.0f;
        params.temperature = t;
        if (t < bits_float((127 - 100) << 23) && !dynamic) {
            params.asks = ASKS_GREEDY;
            params.effective_temperature = 0.0f;
        } else if (!dynamic) {
            params.effective_temperature = t;
            params.s = log2_e() / t;
            bool last = (params.asks & ASKS_TEMPERATURE_LAST) && !(params.asks & ASKS_MIROSTAT);
            params.filter_s = last ? log2_e() : params.s;
        }
    }
    if (params.asks & ASKS_GREEDY) {
        params.chain = 0;
        return;
    }
    i64 k = params.top_k;
    float p = 1.0f, min_p = 0.0f;
    if (prepare.top_ks) {
        k = own.top_k.whole(prepare, COLUMN_TOP_K);
        params.top_k = k < 0 ? 0 : k < (i64)prepare.vocab ? (u32)k : prepare.vocab;
    }
    if (prepare.top_ps) {
        p = own.top_p.real();
        params.top_p = p < 1.0f && p > 0.0f ? fraction_to_u32(p) : 0;
    }
    if (prepare.min_ps) {
        min_p = own.min_p.real();
        params.min_ratio = min_p > 0.0f ? fminf(min_p, 1.0f) : 0.0f;
        params.min_p = min_p > 0.0f ? log2_rule(params.min_ratio) : 0.0f;
    }
    u32 chain = 0, shift = 0;
#pragma unroll 1
    for (u32 filters = prepare.filters; filters != 0; filters >>= 4) {
        u32 filter = filters & 15;
        bool off = (filter == FILTER_TOP_K && prepare.top_ks && !(k > 0 && k < (i64)prepare.vocab)) ||
                   (filter == FILTER_TOP_P && prepare.top_ps && !(p < 1.0f)) ||
                   (filter == FILTER_MIN_P && prepare.min_ps && !(min_p > 0.0f));
        if (!off) {
            chain |= filter << shift;
            shift += 4;
        }
    }
    params.chain = chain;
    order_joint(params);
    chain = params.chain;
    // A number of all is known to the host, which goes by how many tokens that are.
    bool listed = lists(chain, params.asks) && ((chain & 15) != FILTER_TOP_K || prepare.top_ks || params.asks & ASKS_LIST);
    params.asks &= ~(ASKS_LIST | ASKS_SUMS);
    bool of_row = (chain & 15) == FILTER_TOP_P || params.asks & ASKS_JOINT;
    params.asks |= (listed ? ASKS_LIST : 0) | (listed && of_row ? ASKS_SUMS : 0);
}

#define PREPARE_THREADS 128

KERNEL(prepare, PREPARE_THREADS, Prepare, prepare) {
    fetch_argument(prepare);
    // The kernel before may write what is read here, and the rows too, which the survey reads as soon as it is let begin.
    wait_for_previous();
    let_next_begin();
    u32 row = blockIdx.x * PREPARE_THREADS + threadIdx.x;
    if (row >= prepare.rows) {
        return;
    }
    u32 output = prepare.first + row;
    const Number seed(prepare, prepare.seeds, COLUMN_SEED, output), draw(prepare, prepare.draws, COLUMN_DRAW, output);
    const Number offset(prepare, prepare.positions, COLUMN_POSITION, output);
    u64 line = output;
    bool there = true;
    if (prepare.lines) {
        i64 own = Number(prepare, prepare.lines, COLUMN_LINE, output).whole(prepare, COLUMN_LINE);
        // There are fewer lines than words, so one below 0 is beyond the last.
        line = prepare.wide & COLUMN_LINE ? (u64)own : (u32)own;
        there = line < prepare.line_count;
        line = there ? line : 0;
        prepare.read[row] = (u32)line;
    }
    const OfLine own(prepare, (u32)line);
    prepare.slots[row] = there ? (int)row : -1;
    prepare.forced[row] = -1;
    Params params = prepare.base;
    if (there) {
        ask(prepare, own, params);
    }
    if (prepare.seeds) {
        params.seed = (u64)seed.whole(prepare, COLUMN_SEED);
    }
    if (prepare.draws) {
        params.draw = draw.low;
    } else if (!(prepare.flags & PREPARE_ONE_DRAW)) {
        params.draw = output;
    }
    if (prepare.flags & PREPARE_SURVEYS) {
        params.asks = ASKS_GREEDY | (params.asks & ASKS_SUMS);
    }
    u64 position = prepare.position;
    if (prepare.positions) {
        position = (u64)offset.whole(prepare, COLUMN_POSITION);
        if (prepare.flags & PREPARE_OFFSETS && prepare.wide & COLUMN_POSITION) {
            params.seed += seed_of_offset(position);
        }
    }
    prepare.params[row] = params;
    State state{};
    state.position = (u32)position;
    state.mu = prepare.mu;
    state.step = 1;
    prepare.states[row] = state;
}
