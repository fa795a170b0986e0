// given_logprobs.cu: logprobs of given ids over given sets, entropies, and the gradient of both (L4, L5).
//
// Computes   given_logprobs: the logprobs of a row's ids over its set, the set's entropy, and the weights of the set
//            (three numbers)
//            given_gradient: the derivatives of a loss by the logits of a row, from those by logprobs and entropies
// Never      reads a tile without a member of the set; writes weights or probabilities; never depends on other rows
// Twins      oracle spec/src/logprobs/gradient.rs | CPU cpu/src/logprobs/gradient.rs | why docs/stages/logprobs.md
// Shapes     as in GivenArgs
// Grid       x = rows; whole warps, up to 256 threads. given_logprobs: GIVEN_TILE_BYTES of dynamic shared memory per
//            tile
// Traffic    given_logprobs: a row in. given_gradient: a row in, a row out. Both: the row's words of the set
// Requires   1 <= vocab <= 2^20; width <= MAX_GIVEN_IDS; elements aligned to their size, rows to 16 bytes for speed

#include "abi/given.cuh"
#include "block/mass.cuh"
#include "platform/sm90.cuh"
#include "stage/logprobs.cuh"
#include "warp/softmax.cuh"

// A row with its set and its ids.
template <class T>
struct GivenRow {
    LogitsRow<T> row;
    const u32* kept;
    u32 kept_words;
    const GivenArgs& args;
    u64 first_id;

    DEVICE_MEMBER explicit GivenRow(const GivenArgs& args)
        : kept(args.kept == nullptr ? nullptr : args.kept + blockIdx.x * args.kept_stride), kept_words(args.kept_words),
          args(args), first_id(args.flags & GIVEN_ONE_ID ? 0 : (u64)blockIdx.x * args.width) {
        row.logits = (const typename T::Element*)args.logits + blockIdx.x * args.stride;
        row.vocab = args.vocab;
        row.vectorized = ((u64)row.logits & 15) == 0;
    }

    DEVICE_MEMBER float temperature() const {
        return args.temperatures ? args.temperatures[(u64)blockIdx.x * args.temperature_stride] : args.temperature;
    }

    // The k-th id; -1 for a number outside the vocabulary, unless it is the ignored id.
    DEVICE_MEMBER int id(u32 k) const {
        i64 id =
            args.flags & GIVEN_IDS_I64 ? ((const i64*)args.ids)[first_id + k] : ((const int*)args.ids)[first_id + k];
        return id == args.ignored || (id >= 0 && id < (i64)args.vocab) ? (int)id : NO_TOKEN;
    }

    DEVICE_MEMBER u32 word(u32 index) const { return index < kept_words ? kept[index] : 0; }

    // The logit of the k-th id; -inf if that is no member, or ignored.
    DEVICE_MEMBER float logit(int id) const {
        bool holds = id != args.ignored && id >= 0 && (kept == nullptr || (word((u32)id / 32) >> (id % 32) & 1) != 0);
        return holds ? row.logit((u32)id) : -INF_F32;
    }

    // Whether all ids are ignored, in every thread: then the row is not read.
    DEVICE_MEMBER bool is_ignored(ReduceStorage& storage) const {
        u64 others = 0;
        for (u32 k = threadIdx.x; k < args.width; k += blockDim.x) {
            others |= id(k) != args.ignored;
        }
        return args.width > 0 && block_max(storage, others) == 0;
    }

    // The lanes' tiles among 32 of the warp's that may hold members, as bits. Lane i has tile start + i * warps.
    DEVICE_MEMBER u32 tiles_with_members(u32 start) const {
        u32 tile = start + lane_id() * warp_count(), any = tile < args.tiles;
        if (kept != nullptr && any) {
            any = 0;
#pragma unroll
            for (u32 i = 0; i < MASK_WORDS; i++) {
                any |= word(tile * MASK_WORDS + i);
            }
        }
        return __ballot_sync(FULL_MASK, any != 0);
    }

    // Loads a lane's slice of a tile as it came, -inf where it is no member.
    DEVICE_MEMBER void load(u32 tile, float (&z)[ITEMS_PER_LANE]) const {
        u32 lane = lane_id();
        row.load(tile, lane, z);
        if (kept != nullptr) {
            u32 words = lane < MASK_WORDS ? word(tile * MASK_WORDS + lane) : 0;
            u32 bits = lane_bits<T>(words, lane);
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                z[j] = bits >> j & 1 ? z[j] : -INF_F32;
            }
        }
    }

    // Calls `f(tile, z)` for each of the warp's tiles that may hold members; the next one loads meanwhile. Calls
    // `skipped(tile)` for each of the others.
    template <class F, class Skipped>
    DEVICE_MEMBER void for_each_tile(F f, Skipped skipped) const {
        for (u32 start = warp_id(); start < args.tiles; start += 32 * warp_count()) {
            u32 left = tiles_with_members(start), all = left;
            float next[ITEMS_PER_LANE];
            u32 lane = left != 0 ? __ffs((int)left) - 1 : 0;
            if (left != 0) {
                load(start + lane * warp_count(), next);
            }
            while (left != 0) {
                float z[ITEMS_PER_LANE];
#pragma unroll
                for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                    z[j] = next[j];
                }
                u32 tile = start + lane * warp_count();
                left &= left - 1;
                if (left != 0) {
                    lane = __ffs((int)left) - 1;
                    load(start + lane * warp_count(), next);
                }
                f(tile, z);
            }
            for (u32 i = 0; i < 32; i++) {
                u32 tile = start + i * warp_count();
                if (!(all >> i & 1) && tile < args.tiles) {
                    skipped(tile);
                }
            }
        }
    }
};

// The sums of a tile in shared memory: of its members' weights, and of the weights times the distances below the
// maximum.
struct GivenSums {
    u64* weights;
    u64* distances;
    float* maxima;

    DEVICE_MEMBER GivenSums(U32x4* smem, u32 tiles)
        : weights((u64*)smem), distances(weights + tiles), maxima((float*)(distances + tiles)) {}
};

// Stores the sums of a tile (M3, M5).
template <bool ENTROPY>
DEVICE void sum_given_tile(const GivenSums& sums, u32 tile, float (&z)[ITEMS_PER_LANE], float log2e_over_t) {
    float maximum = finite_tile_max(z);
    u32 q_sum = 0;
    u64 r_sum = 0;
#pragma unroll
    for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
        float below = maximum - z[j];
        u32 q = weight_of_distance(below, log2e_over_t);
        q_sum += q;
        if (ENTROPY) {
            // The distance in units of 2^-20, capped at 32: `weight_of_distance` has it as d / 64, too.
            float d = mul_saturate(below, log2e_over_t * (1.0f / 64.0f));
            r_sum += (u64)q * float_to_u32(67108864.0f * fminf(d, 0.5f));
        }
    }
    u64 q = warp_sum_u32(q_sum), r = ENTROPY ? warp_sum(r_sum) : 0;
    if (lane_id() == 0) {
        sums.weights[tile] = q;
        sums.distances[tile] = r;
        sums.maxima[tile] = maximum;
    }
}

template <class T>
DEVICE void given_logprobs(const GivenArgs& args) {
    DYNAMIC_SMEM(smem);
    __shared__ ReduceStorage storage;
    GivenRow<T> given(args);
    u64 row = blockIdx.x;
    float* logprobs = args.logprobs + row * args.width;
    float t = given.temperature();
    TemperatureScale scale(t);
    float temperature = fminf(t, bits_float((127 + 100) << 23)), s = scale.log2e_over_t;
    bool is_ignored = given.is_ignored(storage), has_gradient = !is_ignored && !scale.greedy;
    GivenSums sums(smem, args.tiles);
    float first = 0.0f;
    u64 mass = 0, distances = 0;
    if (has_gradient) {
        auto skip = [&](u32 tile) INLINE {
            if (lane_id() == 0) {
                sums.weights[tile] = 0;
            }
        };
        if (args.entropies != nullptr) {
            given.for_each_tile(
                [&](u32 tile, float (&z)[ITEMS_PER_LANE]) INLINE { sum_given_tile<true>(sums, tile, z, s); }, skip);
        } else {
            given.for_each_tile(
                [&](u32 tile, float (&z)[ITEMS_PER_LANE]) INLINE { sum_given_tile<false>(sums, tile, z, s); }, skip);
        }
        // RAW on the sums: lane 0 of each warp wrote the sums of the warp's tiles, all threads read the sums of all
        // tiles.
        __syncthreads();
        u64 most = 0;
        // A tile with a member has a weight of 2^28.
        for (u32 tile = threadIdx.x; tile < args.tiles; tile += blockDim.x) {
            u64 bits = sums.weights[tile] != 0 ? ordered_bits(sums.maxima[tile]) : 0;
            most = bits > most ? bits : most;
        }
        most = block_max(storage, most);
        has_gradient = most != 0;
        first = has_gradient ? from_ordered_bits((u32)most) : 0.0f;
        for (u32 tile = threadIdx.x; tile < args.tiles; tile += blockDim.x) {
            u64 q = sums.weights[tile];
            if (q != 0) {
                float maximum = sums.maxima[tile], factor = tile_factor(maximum, first, s);
                u64 d = fixed_distance(exponent(first, Origin(maximum), s));
                mass += tile_mass(factor, q);
                distances += tile_mass(factor, (sums.distances[tile] + q * d) >> 24);
            }
        }
        mass = block_sum(storage, mass);
        distances = args.entropies != nullptr ? block_sum(storage, distances) : 0;
    }
    LogprobTerms terms;
    if (has_gradient) {
        terms.set(first, temperature, mass);
    }
    for (u32 k = threadIdx.x; k < args.width; k += blockDim.x) {
        int id = given.id(k);
        float z = given.logit(id);
        logprobs[k] = id == args.ignored ? 0.0f : !(z > -INF_F32) ? -INF_F32 : has_gradient ? terms.of(z) : 0.0f;
    }
    if (threadIdx.x == 0) {
        float n = has_gradient ? relative_mass(mass) : 0.0f;
        float distance = has_gradient ? 16.0f * (u64_to_float(distances) / u64_to_float(mass)) : 0.0f;
        float* weighed = args.weighed == nullptr ? nullptr : args.weighed + row * WEIGHED_NUMBERS;
        if (weighed != nullptr) {
            weighed[0] = first;
            weighed[1] = n;
            weighed[2] = distance;
        }
        if (args.entropies != nullptr) {
            double entropy = double_product(ln_2(), float_to_double(has_gradient ? log2_rule(n) + distance : 0.0f));
            args.entropies[row] = double_to_float(entropy);
        }
    }
}

// The derivative by a member's logit (L5).
struct GivenSlope {
    float first;
    float log2e_over_t;
    float factor;
    float offset;
    float inverse;

    // The derivative by a logit that may be -inf or NaN, which are no member's, but not +inf. `own`: a_j.
    DEVICE_MEMBER float of(float z, float own) const {
        float y = (z - first) * log2e_over_t;
        float share = exp2_scaled(y, 0) * fma_rn(factor, y, offset);
        return (own - (y >= -126.0f ? share : 0.0f)) * inverse;
    }
};

// The ids of a row, their logits, and the derivatives of the loss by their logprobs and logits, in shared memory.
struct GivenOwn {
    int ids[MAX_GIVEN_IDS];
    float logits[MAX_GIVEN_IDS];
    float derivatives[MAX_GIVEN_IDS];
    float values[MAX_GIVEN_IDS];
    GivenSlope slope;
};

template <class T>
DEVICE void given_gradient(const GivenArgs& args) {
    __shared__ GivenOwn own;
    __shared__ float tiles[GIVEN_THREADS / 32][TILE];
    GivenRow<T> given(args);
    u64 row = blockIdx.x;
    const float* weighed = args.weighed + row * WEIGHED_NUMBERS;
    typename T::Element* out = (typename T::Element*)args.out + row * args.out_stride;
    const bool out_is_aligned = (u64)out % 16 == 0;
    const float zeros[ITEMS_PER_LANE] = {};
    auto clear = [&](u32 tile) INLINE {
        store_tile<T>(out, args.vocab, tile, out_is_aligned && (tile + 1) * TILE <= args.vocab, zeros);
    };
    if (!(weighed[1] > 0.0f)) {
        for (u32 tile = warp_id(); tile < args.tiles; tile += warp_count()) {
            clear(tile);
        }
        return;
    }
    for (u32 k = threadIdx.x; k < args.width; k += blockDim.x) {
        own.ids[k] = given.id(k);
        own.logits[k] = given.logit(own.ids[k]);
        own.derivatives[k] = args.of_logprobs[row * args.width + k];
    }
    // RAW on own: each thread reads what the others loaded of the ids.
    __syncthreads();
    if (threadIdx.x == 0) {
        double all = 0.0, n = float_to_double(weighed[1]);
        for (u32 k = 0; k < args.width; k++) {
            all = own.logits[k] > -INF_F32 ? double_sum(all, float_to_double(own.derivatives[k])) : all;
        }
        float h = args.of_entropies == nullptr ? 0.0f : args.of_entropies[row];
        double factor = double_ratio(double_product(ln_2(), float_to_double(h)), n);
        double mean = double_product(factor, float_to_double(weighed[2]));
        float t = given.temperature();
        own.slope.first = weighed[0];
        own.slope.log2e_over_t = TemperatureScale(t).log2e_over_t;
        own.slope.factor = double_to_float(factor);
        own.slope.offset = double_to_float(double_sum(double_ratio(all, n), mean));
        own.slope.inverse = 1.0f / fminf(t, bits_float((127 + 100) << 23));
    }
    // RAW on own.slope: thread 0 wrote it, all threads read it.
    __syncthreads();
    const GivenSlope slope = own.slope;
    for (u32 k = threadIdx.x; k < args.width; k += blockDim.x) {
        double sum = 0.0;
        for (u32 i = 0; i < args.width; i++) {
            sum = own.ids[i] == own.ids[k] ? double_sum(sum, float_to_double(own.derivatives[i])) : sum;
        }
        own.values[k] = slope.of(own.logits[k], double_to_float(sum));
    }
    given.for_each_tile(
        [&](u32 tile, float (&z)[ITEMS_PER_LANE]) INLINE {
            float x[ITEMS_PER_LANE];
            const bool vectorized = given.row.is_vectorized(tile) && out_is_aligned;
#pragma unroll
            for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                x[j] = slope.of(min_or_nan(z[j], MAX_F32), 0.0f);
            }
            if (!vectorized) {
                float* own_tile = tiles[warp_id()];
#pragma unroll
                for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                    own_tile[offset_in_tile<T>(lane_id(), j)] = x[j];
                }
                // RAW on own_tile: the lanes wrote derivatives, other lanes read them.
                __syncwarp();
#pragma unroll
                for (u32 j = 0; j < ITEMS_PER_LANE; j++) {
                    x[j] = own_tile[written_offset<T>(lane_id(), j, false)];
                }
                // WAR on own_tile: all lanes read it, they overwrite it for the next tile.
                __syncwarp();
            }
            store_tile<T>(out, args.vocab, tile, vectorized, x);
        },
        clear);
    // WAW on out: a tile's warp wrote the derivatives as if no id was asked for, the ids' threads write theirs.
    __syncthreads();
    for (u32 k = threadIdx.x; k < args.width; k += blockDim.x) {
        if (own.logits[k] > -INF_F32) {
            store_one<T>(out + own.ids[k], own.values[k]);
        }
    }
}

#define GIVEN(type, T) \
    KERNEL_MIN_BLOCKS(given_logprobs_##type, GIVEN_THREADS, 5, GivenArgs, args) { given_logprobs<T>(args); } \
    KERNEL_MIN_BLOCKS(given_gradient_##type, GIVEN_THREADS, 5, GivenArgs, args) { given_gradient<T>(args); }

FOR_EACH_TYPE(GIVEN)
