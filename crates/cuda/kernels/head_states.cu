// head_states.cu: prepares hidden states for the kernels of a head, and decides which logits each row needs.
//
// Computes   each hidden state as f32, padded with zeros, or for tensor cores in the type of the weights; for a screen
//            its digits, 16 bits in two bytes, its length, the length of the part that the digits leave out, and its
//            product with the mean row of weights. Clears the count and the bitmap that the rows of a fast clustered
//            head add to
// Never      reads the hidden state of a row without a request
// Twins      CPU head/src/screen.rs (ScreenedStates) | why docs/heads.md
// Shapes     hidden [rows, width] of T; states [rows, padded_width]; digits as MatrixPiece has them
// Grid       x = rows; HEAD_STATES_THREADS threads; no dynamic shared memory
// Traffic    in: a hidden state, and the mean row; out: 4 bytes an element, and 2 more for a screen; for a fast head 2
// Requires   the kernels before are complete: they make requests and hidden states

#include "block/reduce.cuh"
#include "math/arrival.cuh"
#include "stage/head.cuh"
#include "warp/row.cuh"

// The longest hidden state that is screened, 2^50, the least unit of digits, which is a normal float, and the largest
// digit.
#define LONGEST_STATE bits_double((u64)(1023 + 50) << 52)
#define LEAST_UNIT bits_double((u64)(1023 - 126) << 52)
#define DIGIT_MOST 32512.0

// A factor that makes up for the roundings of a length, for any width.
#define LENGTH_UP (1.0 + bits_double((u64)(1023 - 30) << 52))

// The sums over a hidden state.
struct StateSums {
    double squares, rest, mean;
};

// The sums of the warp's numbers, in every lane.
DEVICE StateSums warp_sums(StateSums x) {
#pragma unroll
    for (u32 apart = 16; apart > 0; apart /= 2) {
        x.squares += __shfl_xor_sync(FULL_MASK, x.squares, (int)apart);
        x.rest += __shfl_xor_sync(FULL_MASK, x.rest, (int)apart);
        x.mean += __shfl_xor_sync(FULL_MASK, x.mean, (int)apart);
    }
    return x;
}

// The sums of the block's numbers, in every thread.
DEVICE StateSums block_sums(StateSums (&storage)[32], StateSums x) {
    x = warp_sums(x);
    if (lane_id() == 0) {
        storage[warp_id()] = x;
    }
    // RAW on storage: lane 0 of each warp wrote its warp's sums, all warps read all of them.
    __syncthreads();
    return warp_sums(lane_id() < warp_count() ? storage[lane_id()] : StateSums{0.0, 0.0, 0.0});
}

// The least power of two in which no element has more than DIGIT_MOST; 1 for zeros. `largest` is finite.
DEVICE double unit_of(float largest) {
    if (largest == 0.0f) {
        return 1.0;
    }
    // As f64 it is normal: its exponent less 14 makes 2^14 <= largest / unit < 2^15.
    const double wide = largest;
    const double unit = bits_double(((double_bits(wide) >> 52) - 14) << 52);
    return wide / unit > DIGIT_MOST ? 2.0 * unit : unit;
}

// Where one of an element's digits lies: even columns have the high digits of a state, the next ones its low digits.
DEVICE char* digit_place(const HeadStep& args, u32 column, u32 i) {
    return (char*)args.digits + MatrixPiece::word(args.codes_width, column, i / 4) * 4 + i % 4;
}

// Rounds a hidden state to the type of the weights, W, and pads it with zeros to whole stages of a product. A NaN
// stays one.
template <class T, class W>
DEVICE void round_state(const HeadStep& args, const typename T::Element* hidden, u32 row) {
    const u32 bytes = args.short_width * 2, count = MatrixPiece::words(bytes);
#pragma unroll 4
    for (u32 i = threadIdx.x; i < count; i += HEAD_STATES_THREADS) {
        const float low = 2 * i < args.width ? T::convert(hidden[2 * i]) : 0.0f;
        const float high = 2 * i + 1 < args.width ? T::convert(hidden[2 * i + 1]) : 0.0f;
        // The bits of a quiet NaN in both types.
        const u32 of_low = low == low ? W::pack_two(low, 0.0f) & 0xFFFF : 0x7FFF;
        const u32 of_high = high == high ? W::pack_two(high, 0.0f) & 0xFFFF : 0x7FFF;
        ((u32*)args.short_states)[MatrixPiece::word(bytes, row, i)] = of_low | of_high << 16;
    }
}

// The thread's part of two counts: of rows, in the low half, and of rows that need all logits, in the high half.
DEVICE u64 count_rows(const HeadStep& args) {
    u64 counts = 0;
    for (u32 row = threadIdx.x; row < args.step.rows; row += HEAD_STATES_THREADS) {
        const int slot = args.step.slots[row];
        if (slot >= 0) {
            const RowNeeds needs = needs_of_request(args.step.params[slot], args.step.kept_bits != nullptr);
            counts += 1 + ((u64)(needs.plan == PLAN_WHOLE) << 32);
        }
    }
    return counts;
}

// How often head_logits reads the weights for some rows.
DEVICE u32 passes_over_weights(u32 rows) { return (rows + HEAD_MANY_STATES - 1) / HEAD_MANY_STATES; }

template <class T>
DEVICE void prepare_state(const HeadStep& args) {
    __shared__ ReduceStorage reductions;
    __shared__ StateSums storage[32];
    grid_dependency_wait();
    trigger_dependents();
    const u32 row = blockIdx.x;
    const int slot = args.step.slots[row];
    if (row == 0 && args.probed_bits != nullptr) {
        for (u32 i = threadIdx.x; i < cluster_words(args); i += HEAD_STATES_THREADS) {
            probed_by_any(args)[i] = 0;
        }
        if (threadIdx.x == 0 && args.listed_count != nullptr) {
            *args.listed_count = 0;
        }
    }
    HeadRow& out = args.head_rows[row];
    if (slot < 0) {
        if (threadIdx.x == 0) {
            out.plan = PLAN_NONE;
        }
        return;
    }
    const Params& params = args.step.params[slot];
    const typename T::Element* hidden = (const typename T::Element*)args.hidden + row * args.hidden_stride;
    if (args.flags & (HEAD_FAST_BF16 | HEAD_FAST_F16)) {
        if (args.flags & HEAD_FAST_BF16) {
            round_state<T, Bf16>(args, hidden, row);
        } else {
            round_state<T, F16>(args, hidden, row);
        }
        if (threadIdx.x == 0) {
            out.plan = PLAN_WHOLE;
            if (!(args.flags & HEAD_CLUSTERED)) {
                atomicAdd(&args.counts[0], (u64)1);
            }
        }
        return;
    }
    float* state = args.states + (u64)row * args.padded_width;
    u32 largest = 0;
#pragma unroll 4
    for (u32 i = threadIdx.x; i < args.padded_width; i += HEAD_STATES_THREADS) {
        const float h = i < args.width ? T::convert(hidden[i]) : 0.0f;
        state[i] = h;
        const u32 magnitude = float_bits(h) & 0x7FFFFFFFu;
        largest = magnitude > largest ? magnitude : largest;
    }
    // The requests' fields are read while the hidden state is on its way.
    RowNeeds needs{PLAN_WHOLE, 0, 0.0f};
    u64 counts = 0;
    if (args.flags & HEAD_SCREENED) {
        counts = count_rows(args);
        needs = needs_of_request(params, args.step.kept_bits != nullptr);
        if (threadIdx.x == blockDim.x - 1) {
            const EditMasks masks(args.step, row, slot, params.features);
            out.mask = masks.mask;
            out.allowed = masks.allowed;
            out.touched = masks.touched;
            out.has_exclusions = masks.any();
            const RngStream rng = race_stream(params, args.step.states[slot]);
            out.seed = rng.seed;
            out.position = rng.position;
            out.draw = rng.draw;
            out.log2e_over_t = params.log2e_over_t;
        }
    }
    largest = (u32)block_max(reductions, largest);
    bool is_screened = false;
    bool saves = false;
    if (args.flags & HEAD_SCREENED) {
        counts = block_sum(reductions, counts);
        saves = passes_over_weights((u32)(counts >> 32)) < passes_over_weights((u32)counts);
    }
    if (saves && largest < float_bits(INF_F32)) {
        // The unit is a power of two, so its inverse is exact, and so are products with both.
        const double unit = unit_of(bits_float(largest)), inverse = 1.0 / unit;
        StateSums sums{0.0, 0.0, 0.0};
#pragma unroll 4
        for (u32 i = threadIdx.x; i < args.width; i += HEAD_STATES_THREADS) {
            const double h = T::convert(hidden[i]);
            const double rounded = rint(h * inverse), left = h - unit * rounded;
            const int digit = (int)rounded, high = (digit + 128) >> 8;
            sums.squares += h * h;
            sums.rest += left * left;
            sums.mean += args.mean[i] * h;
            *digit_place(args, 2 * row, i) = (char)high;
            *digit_place(args, 2 * row + 1, i) = (char)(digit - 256 * high);
        }
        sums = block_sums(storage, sums);
        const double length = sqrt(sums.squares), norm = length * LENGTH_UP;
        is_screened = length <= LONGEST_STATE && unit >= LEAST_UNIT && needs.count <= args.most_contenders;
        if (threadIdx.x == 0) {
            out.unit = double_to_float(unit);
            out.mean = double_to_float(sums.mean);
            out.norm = double_to_float(norm);
            out.rest = double_to_float(sqrt(sums.rest) * LENGTH_UP);
            // The mean's product is rounded once for each element. What subnormal numbers lose is BOUND_SLACK's.
            out.slack =
                double_to_float((args.width + 2.0) * bits_double((u64)(1023 - 52) << 52) * args.mean_norm * norm);
        }
    }
    if (threadIdx.x == 0) {
        out.plan = is_screened ? needs.plan : PLAN_WHOLE;
        out.count = needs.count;
        out.offset = needs.offset;
        out.contenders = 0;
        out.best_score = 0;
        if (out.plan == PLAN_WHOLE && !(args.flags & HEAD_CLUSTERED)) {
            atomicAdd(&args.counts[0], (u64)1);
        }
    }
}

#define HEAD_STATES_OF(type, T) \
    KERNEL(head_states_##type, HEAD_STATES_THREADS, HeadStep, args) { prepare_state<T>(args); }

FOR_EACH_TYPE(HEAD_STATES_OF)
