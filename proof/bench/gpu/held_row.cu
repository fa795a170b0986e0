// held_row.cu: a prototype of one kernel that draws from rows held in the shared memory of a cluster. It says what such
// a kernel can reach before one is built; each token is judged by a slow kernel. Its times stand in
// proof/bench/record/2026-12-01-h200-tested-levels.md.
//
// Computes   the race's winner among the tokens that top-k and top-p, joint, keep; logits or probabilities
// Build      nvcc -arch=sm_90a -std=c++17 -O3 -I crates/cuda/device proof/bench/gpu/held_row.cu -o held_row
//
//     load the block's tiles by bulk copies; meanwhile each tile's first arrival, and with SCORES that of every token
//     per tile: maximum, sum of weights                                       exchange 1: the row's first, its mass
//     count tokens and masses by 256 levels below the first                   exchange 2: the levels of all blocks
//     from the levels: which are certainly kept, which may be; race what may be kept    exchange 3: the winner
//     a winner of a level that may be kept: weigh the tokens before it        exchange 4, one race in ten or less
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "math/num.cuh"
#include "platform/sm90.cuh"

#define CHECK(call) \
    do { \
        cudaError_t error = call; \
        if (error != cudaSuccess) { \
            std::printf("%s: %s\n", #call, cudaGetErrorString(error)); \
            std::exit(1); \
        } \
    } while (0)

constexpr u32 TILE = 256, WARPS = 16, THREADS = 32 * WARPS, LEVELS = 256, MOST_BLOCKS = 8, PHASES = 10;
constexpr u32 FULL = 0xFFFFFFFFu;
constexpr float MASS_UNITS = 16384.0f;

struct Args {
    const float* rows;
    // Elements from a row to the next one, a multiple of four.
    u32 stride;
    u32 vocab, tiles, tiles_per_block, top_k;
    float scale, top_p;
    u64 seed;
    int* tokens;
    // Per row: how many races it took, plus 256 if a mass was too near its goal to decide.
    u32* races;
    i64* clocks;
};

DEVICE float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float log2_fast(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The weight of a value below `first`, and its log2.
template <bool PROBS>
DEVICE float weight_of(float z, float first, float scale) {
    return PROBS ? __fdividef(z, first) : exp2_fast((z - first) * scale);
}
template <bool PROBS>
DEVICE float log2_of(float z, float first, float scale) {
    return PROBS ? log2_rule(z) - log2_rule(first) : (z - first) * scale;
}
// log2 of the weight of a value, within 2^-14.
template <bool PROBS>
DEVICE float approx_log2_of(float z, float first, float scale) {
    return PROBS ? log2_fast(z) - log2_fast(first) : (z - first) * scale;
}
template <bool PROBS>
DEVICE float empty_value() {
    return PROBS ? 0.0f : -INF_F32;
}

// The level of a value below the first token, and its weight relative to the level's first value.
template <bool PROBS>
DEVICE u32 level_of(float z, float first, float scale, float& part) {
    if (PROBS) {
        u32 below = float_bits(first) - float_bits(z), level = below >> 20 < LEVELS ? below >> 20 : LEVELS - 1;
        part = __fdividef(z, bits_float(float_bits(first) - (level << 20)));
        return level;
    }
    float d = fminf((first - z) * scale * 10.0f, 65536.0f);
    u32 level = (u32)d < LEVELS ? (u32)d : LEVELS - 1;
    part = exp2_fast((u32_to_float(level) - d) * 0.1f);
    return level;
}
template <bool PROBS>
DEVICE float level_weight(u32 level, float first) {
    return PROBS ? __fdividef(bits_float(float_bits(first) - (level << 20)), first)
                 : exp2_fast(u32_to_float(level) * -0.1f);
}

struct First {
    float e;
    u32 offset;
    u32 word;
};
DEVICE First first_of_tile(u64 seed, u32 row, u32 tile) {
    PhiloxWords words = philox(seed, tile, row, TAG_TILE, 0);
    return First{exponential_from_u64((u64)words.w[0] << 32 | words.w[1]) * (1.0f / TILE), words.w[2] >> 24,
                 words.w[0]};
}
DEVICE float arrival_of(u64 seed, u32 row, const First& first, u32 tile, u32 offset) {
    PhiloxWords words = philox(seed, (tile * TILE + offset) / 4, row, TAG_TOKEN, 0);
    float later = exponential_from_u32(words.w[offset % 4]);
    return offset == first.offset ? first.e : first.e + later;
}
template <bool PROBS>
DEVICE u64 leader_of(const Args& args, u32 row, float z, float first, u32 id) {
    First arrival = first_of_tile(args.seed, row, id / TILE);
    float score = log2_of<PROBS>(z, first, args.scale) -
                  log2_of_normal(arrival_of(args.seed, row, arrival, id / TILE, id % TILE));
    return make_key(score + 0.0f, id);
}

// -log2(1 - u) of a random word, within a relative 2^-13.
DEVICE float approx_later(u32 word) {
    const float u = u32_to_float(word) * (1.0f / 4294967296.0f);
    return u < 1.0f / 64 ? u * fma_rn(u, 0.7213475f, 1.442695f) : -log2_fast(1.0f - u);
}

// Words that the blocks of a cluster send to each other, and the levels of all blocks.
struct Shared {
    Mbarrier exchanged[2];
    u64 words[2][4][MOST_BLOCKS];
    u64 levels[MOST_BLOCKS][LEVELS];
    u32 counts[LEVELS], masses[LEVELS];
    u64 parts[4][WARPS];
    u64 best;
    u32 score;
    // The first level that is not certainly kept, and the last that may be kept.
    u32 certain, last;
    float scan_masses[WARPS];
    u32 scan_counts[WARPS];
};

DEVICE float warp_add(float x) {
#pragma unroll
    for (u32 d = 16; d > 0; d /= 2) {
        x += __shfl_xor_sync(FULL, x, (int)d);
    }
    return x;
}
DEVICE u64 warp_most(u64 x) {
    u32 high = __reduce_max_sync(FULL, (u32)(x >> 32));
    u32 low = __reduce_max_sync(FULL, (u32)(x >> 32) == high ? (u32)x : 0);
    return (u64)high << 32 | low;
}

// Sends each warp-uniform word of thread 0 to all blocks, and waits for the words of all blocks.
template <u32 N>
DEVICE void exchange(Shared& shared, u32 blocks, u32 rank, u32& turn, const u64 (&own)[N]) {
    const u32 slot = turn & 1, parity = turn >> 1 & 1;
    turn++;
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            mbarrier_arrive(&shared.exchanged[slot], N * 8 * blocks);
        }
        if (threadIdx.x < blocks) {
#pragma unroll
            for (u32 i = 0; i < N; i++) {
                st_async_remote(threadIdx.x, &shared.words[slot][i][rank], own[i], &shared.exchanged[slot]);
            }
        }
    }
    mbarrier_wait_parity(&shared.exchanged[slot], parity);
}

#define NOTE(n) \
    if (CLOCKS && threadIdx.x == 0 && blockIdx.x == 0) { \
        args.clocks[n] = clock64(); \
    }

template <bool PROBS, bool SCORES, bool CLOCKS>
__global__ void __launch_bounds__(THREADS, SCORES ? 1 : 2) held_row(const __grid_constant__ Args args) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared& shared = *(Shared*)memory;
    Mbarrier* loaded = (Mbarrier*)(memory + (sizeof(Shared) + 127) / 128 * 128);
    float* held = (float*)(loaded + (args.tiles_per_block + 15) / 16 * 16);
    float* logs = held + args.tiles_per_block * TILE;
    const u32 blocks = cluster_nctarank(), rank = cluster_ctarank(), row = blockIdx.x / blocks;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const u32 from = rank * args.tiles_per_block;
    const u32 own = from >= args.tiles ? 0 : min(args.tiles_per_block, args.tiles - from);
    const float* source = args.rows + (u64)row * args.stride + (u64)from * TILE;
    NOTE(0);
    for (u32 tile = warp; tile < own; tile += WARPS) {
        const u32 size = min(TILE, args.vocab - (from + tile) * TILE), whole = size / 4 * 4;
        if (lane == 0) {
            mbarrier_init(&loaded[tile], 1);
            fence_mbarrier_init();
            mbarrier_arrive(&loaded[tile], whole * 4);
            if (whole != 0) {
                bulk_copy_async(&loaded[tile], held + tile * TILE, source + tile * TILE, whole * 4);
            }
        }
        for (u32 i = whole + lane; i < TILE; i += 32) {
            held[tile * TILE + i] = i < size ? source[tile * TILE + i] : empty_value<PROBS>();
        }
    }
    if (threadIdx.x < LEVELS) {
        shared.counts[threadIdx.x] = shared.masses[threadIdx.x] = 0;
    }
    if (threadIdx.x == 0) {
        mbarrier_init(&shared.exchanged[0], 1);
        mbarrier_init(&shared.exchanged[1], 1);
        fence_mbarrier_init();
        shared.best = 0;
        shared.score = 0;
    }
    __syncthreads();
    asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.release.aligned;" ::: "memory");
    // While the tiles load: each lane the first arrival of one of the warp's tiles.
    First arrival{1.0f, 0, 0};
    float log2_first = 0.0f;
    const u32 lane_tile = warp + lane * WARPS;
    if (lane_tile < own) {
        arrival = first_of_tile(args.seed, row, from + lane_tile);
        log2_first = log2_of_normal(arrival.e);
    }
    if (SCORES) {
        u32 n = 0;
        for (u32 tile = warp; tile < own; tile += WARPS, n++) {
            const float e = __shfl_sync(FULL, arrival.e, (int)n);
            const u32 offset = __shfl_sync(FULL, arrival.offset, (int)n);
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                const u32 at = half * 128 + lane * 4;
                PhiloxWords words = philox(args.seed, ((from + tile) * TILE + at) / 4, row, TAG_TOKEN, 0);
                float four[4];
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    const float later = approx_later(words.w[j]);
                    four[j] = log2_fast(e + (at + j == offset ? 0.0f : later));
                }
                *(float4*)(logs + tile * TILE + at) = make_float4(four[0], four[1], four[2], four[3]);
            }
        }
    }
    NOTE(1);
    // The warp's maximum, and its sum of weights relative to it; of the lane's tile the maximum and its offset.
    float maximum = -INF_F32, sum = 0.0f, tile_maximum = -INF_F32;
    u32 tile_offset = 0, n = 0;
    for (u32 tile = warp; tile < own; tile += WARPS, n++) {
        mbarrier_wait_parity(&loaded[tile], 0);
        const float4 low = *(float4*)(held + tile * TILE + lane * 4),
                     high = *(float4*)(held + tile * TILE + 128 + lane * 4);
        const float z[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        float most = fmaxf(fmaxf(fmaxf(z[0], z[1]), fmaxf(z[2], z[3])), fmaxf(fmaxf(z[4], z[5]), fmaxf(z[6], z[7])));
        most = from_ordered_bits(__reduce_max_sync(FULL, ordered_bits(most)));
        u32 offset = TILE;
#pragma unroll
        for (u32 j = 8; j-- > 0;) {
            offset = z[j] == most ? j / 4 * 128 + lane * 4 + j % 4 : offset;
        }
        offset = __reduce_min_sync(FULL, offset);
        tile_offset = lane == n ? offset : tile_offset;
        tile_maximum = lane == n ? most : tile_maximum;
        const float higher = fmaxf(maximum, most);
        if (higher > maximum) {
            sum *= maximum > -INF_F32 ? weight_of<PROBS>(maximum, higher, args.scale) : 0.0f;
            maximum = higher;
        }
        if (PROBS ? maximum > 0.0f : maximum > -INF_F32) {
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                sum += weight_of<PROBS>(z[j], maximum, args.scale);
            }
        }
    }
    sum = warp_add(sum);
    NOTE(2);
    u32 turn = 0;
    if (lane == 0) {
        shared.parts[0][warp] = (u64)ordered_bits(maximum) << 32 | float_bits(sum);
    }
    __syncthreads();
    u64 part = lane < WARPS ? shared.parts[0][lane] : 0;
    u32 first_bits = __reduce_max_sync(FULL, (u32)(part >> 32));
    float first = from_ordered_bits(first_bits);
    auto join = [&](u64 word) {
        float of = from_ordered_bits((u32)(word >> 32)), mass = bits_float((u32)word);
        return word != 0 && mass > 0.0f ? mass * weight_of<PROBS>(of, first, args.scale) : 0.0f;
    };
    float total = warp_add(join(part));
    // All blocks have begun, so that words may be sent.
    cluster_wait();
    const u64 mine[] = {(u64)first_bits << 32 | float_bits(total)};
    exchange<1>(shared, blocks, rank, turn, mine);
    part = lane < blocks ? shared.words[0][0][lane] : 0;
    first = from_ordered_bits(__reduce_max_sync(FULL, (u32)(part >> 32)));
    total = warp_add(join(part));
    NOTE(3);
    for (u32 tile = warp; tile < own; tile += WARPS) {
        const float4 low = *(float4*)(held + tile * TILE + lane * 4),
                     high = *(float4*)(held + tile * TILE + 128 + lane * 4);
        const float z[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
        u32 levels[8], least = LEVELS, most = 0;
        float parts[8];
#pragma unroll
        for (u32 j = 0; j < 8; j++) {
            levels[j] = level_of<PROBS>(z[j], first, args.scale, parts[j]);
            least = min(least, levels[j]);
            most = max(most, levels[j]);
        }
        if (__reduce_min_sync(FULL, least) == __reduce_max_sync(FULL, most)) {
            // A tile of one level, of a flat row for example.
            float mass = 0.0f;
            u32 count = 0;
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                mass += z[j] > empty_value<PROBS>() ? parts[j] : 0.0f;
                count += z[j] > empty_value<PROBS>();
            }
            mass = warp_add(mass);
            count = __reduce_add_sync(FULL, count);
            if (lane == 0) {
                atomicAdd(&shared.counts[least], count);
                atomicAdd(&shared.masses[least], (u32)(mass * MASS_UNITS));
            }
        } else {
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                // What lies beyond the last level weighs 2^-25 of the first: it is counted by the total alone.
                if (levels[j] < LEVELS - 1) {
                    atomicAdd(&shared.counts[levels[j]], 1u);
                    atomicAdd(&shared.masses[levels[j]], __float2uint_rn(parts[j] * MASS_UNITS));
                }
            }
        }
    }
    __syncthreads();
    NOTE(4);
    {
        const u32 slot = turn & 1, parity = turn >> 1 & 1;
        turn++;
        if (threadIdx.x == 0) {
            mbarrier_arrive(&shared.exchanged[slot], LEVELS * 8 * blocks);
        }
        const u32 level = threadIdx.x % LEVELS;
        const u64 word = (u64)shared.counts[level] << 32 | shared.masses[level];
        for (u32 to = threadIdx.x / LEVELS; to < blocks; to += THREADS / LEVELS) {
            st_async_remote(to, &shared.levels[rank][level], word, &shared.exchanged[slot]);
        }
        mbarrier_wait_parity(&shared.exchanged[slot], parity);
    }
    NOTE(5);
    if (threadIdx.x < LEVELS) {
        u32 count = 0;
        float mass = 0.0f;
        for (u32 b = 0; b < blocks; b++) {
            const u64 word = shared.levels[b][threadIdx.x];
            count += (u32)(word >> 32);
            mass += u32_to_float((u32)word);
        }
        mass *= level_weight<PROBS>(threadIdx.x, first) / MASS_UNITS;
#pragma unroll
        for (u32 d = 1; d < 32; d *= 2) {
            u32 c = __shfl_up_sync(FULL, count, d);
            float m = __shfl_up_sync(FULL, mass, d);
            count += lane >= d ? c : 0;
            mass += lane >= d ? m : 0.0f;
        }
        if (lane == 31) {
            shared.scan_counts[warp] = count;
            shared.scan_masses[warp] = mass;
        }
        asm volatile("bar.sync 1, 256;" ::: "memory");
        for (u32 w = 0; w < warp; w++) {
            count += shared.scan_counts[w];
            mass += shared.scan_masses[w];
        }
        const float goal = args.top_p * total;
        const bool may_end = count >= args.top_k || mass * (1.0f + 1.0f / 8192) >= goal;
        const bool ends = count >= args.top_k || mass * (1.0f - 1.0f / 8192) >= goal;
        const u32 may = __ballot_sync(FULL, may_end), does = __ballot_sync(FULL, ends);
        asm volatile("bar.sync 1, 256;" ::: "memory");
        if (lane == 0) {
            shared.scan_counts[warp] = may ? warp * 32 + __ffs((int)may) - 1 : LEVELS - 1;
            shared.scan_counts[8 + warp] = does ? warp * 32 + __ffs((int)does) - 1 : LEVELS - 1;
        }
        asm volatile("bar.sync 1, 256;" ::: "memory");
        if (warp == 0) {
            u32 own_end = lane < 16 ? shared.scan_counts[lane] : LEVELS - 1;
            u32 certain = __reduce_min_sync(FULL, lane < 8 ? own_end : LEVELS - 1);
            u32 last = __reduce_min_sync(FULL, lane >= 8 ? own_end : LEVELS - 1);
            if (lane == 0) {
                shared.certain = certain;
                shared.last = last;
            }
        }
    }
    __syncthreads();
    NOTE(6);
    const u32 certain = shared.certain, last = shared.last;
    auto in_levels = [&](float z) {
        float unused;
        return z > empty_value<PROBS>() && level_of<PROBS>(z, first, args.scale, unused) <= last;
    };
    u64 cut = 0;
    u32 races = 0;
    bool doubt = false;
    u64 winner = 0;
#pragma unroll 1
    while (true) {
        races++;
        if (SCORES) {
            // The block's best approximate score, and the exact ones of all that may reach it.
            float best = -INF_F32;
            for (u32 tile = warp; tile < own; tile += WARPS) {
#pragma unroll
                for (u32 j = 0; j < 8; j++) {
                    const u32 at = j * 32 + lane;
                    const float z = held[tile * TILE + at];
                    if (in_levels(z) && make_key(z, (from + tile) * TILE + at) > cut) {
                        best = fmaxf(best, approx_log2_of<PROBS>(z, first, args.scale) - logs[tile * TILE + at]);
                    }
                }
            }
            u32 bits = __reduce_max_sync(FULL, ordered_bits(best));
            if (lane == 0) {
                atomicMax(&shared.score, bits);
            }
            __syncthreads();
            const float least = from_ordered_bits(shared.score) - 1.0f / 256;
            if (best >= least && best > -INF_F32) {
                for (u32 tile = warp; tile < own; tile += WARPS) {
                    for (u32 j = 0; j < 8; j++) {
                        const u32 at = j * 32 + lane, id = (from + tile) * TILE + at;
                        const float z = held[tile * TILE + at];
                        if (in_levels(z) && make_key(z, id) > cut &&
                            approx_log2_of<PROBS>(z, first, args.scale) - logs[tile * TILE + at] >= least) {
                            atomicMax(&shared.best, leader_of<PROBS>(args, row, z, first, id));
                        }
                    }
                }
            }
        } else {
            // Tiles that may hold a better token than the best of the tiles' first ones.
            u64 lead = 0;
            const u32 id = (from + lane_tile) * TILE + tile_offset;
            if (lane_tile < own && in_levels(tile_maximum) && make_key(tile_maximum, id) > cut) {
                lead = make_key(log2_of<PROBS>(tile_maximum, first, args.scale) -
                                    log2_of_normal(arrival_of(args.seed, row, arrival, from + lane_tile, tile_offset)) +
                                    0.0f,
                                id);
            }
            lead = warp_most(lead);
            if (lane == 0) {
                atomicMax(&shared.best, lead);
            }
            __syncthreads();
            const float bound = log2_of<PROBS>(tile_maximum, first, args.scale) - log2_first;
            bool open =
                lane_tile < own && in_levels(tile_maximum) && ordered_bits(bound + 0.0f) >= (u32)(shared.best >> 32);
            for (u32 left = __ballot_sync(FULL, open); left != 0; left &= left - 1) {
                const u32 n = __ffs((int)left) - 1, tile = warp + n * WARPS;
                const float e = __shfl_sync(FULL, arrival.e, (int)n);
                const u32 offset = __shfl_sync(FULL, arrival.offset, (int)n);
                const float least = from_ordered_bits((u32)(*(volatile u64*)&shared.best >> 32)) - 1.0f / 256;
#pragma unroll 1
                for (u32 half = 0; half < 2; half++) {
                    const u32 at = half * 128 + lane * 4;
                    PhiloxWords words = philox(args.seed, ((from + tile) * TILE + at) / 4, row, TAG_TOKEN, 0);
                    for (u32 j = 0; j < 4; j++) {
                        const float z = held[tile * TILE + at + j];
                        const float later = u32_to_float(words.w[j]) * (1.44269f / 4294967296.0f);
                        const float approx = approx_log2_of<PROBS>(z, first, args.scale) -
                                             log2_fast(e + (at + j == offset ? 0.0f : later));
                        if (in_levels(z) && approx >= least && make_key(z, (from + tile) * TILE + at + j) > cut) {
                            atomicMax(&shared.best,
                                      leader_of<PROBS>(args, row, z, first, (from + tile) * TILE + at + j));
                        }
                    }
                }
            }
        }
        __syncthreads();
        NOTE(7);
        // The winner's score and id, and its value.
        u64 best = shared.best;
        const u32 at = key_id(best) - from * TILE;
        const u64 words[] = {best, best != 0 ? (u64)float_bits(held[at < own * TILE ? at : 0]) : 0};
        const u32 slot = turn & 1;
        exchange<2>(shared, blocks, rank, turn, words);
        u64 leader = lane < blocks ? shared.words[slot][0][lane] : 0;
        best = warp_most(leader);
        const u32 by = __ffs((int)__ballot_sync(FULL, leader == best)) - 1;
        const float z = bits_float((u32)shared.words[slot][1][by]);
        winner = make_key(z, key_id(best));
        NOTE(8);
        float unused;
        if (level_of<PROBS>(z, first, args.scale, unused) < certain || best == 0) {
            break;
        }
        // The number and the mass of the tokens before the winner.
        u32 count = 0;
        float mass = 0.0f;
        for (u32 tile = warp; tile < own; tile += WARPS) {
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
                const u32 at = j * 32 + lane;
                const float own_z = held[tile * TILE + at];
                const bool before = make_key(own_z, (from + tile) * TILE + at) > winner;
                count += before;
                mass += before ? weight_of<PROBS>(own_z, first, args.scale) : 0.0f;
            }
        }
        count = __reduce_add_sync(FULL, count);
        mass = warp_add(mass);
        if (lane == 0) {
            shared.parts[0][warp] = (u64)count << 32 | float_bits(mass);
        }
        __syncthreads();
        u64 word = lane < WARPS ? shared.parts[0][lane] : 0;
        const u64 sums[] = {(u64)__reduce_add_sync(FULL, (u32)(word >> 32)) << 32 |
                            float_bits(warp_add(bits_float((u32)word)))};
        const u32 sent = turn & 1;
        exchange<1>(shared, blocks, rank, turn, sums);
        word = lane < blocks ? shared.words[sent][0][lane] : 0;
        count = __reduce_add_sync(FULL, (u32)(word >> 32));
        mass = warp_add(bits_float((u32)word));
        const float goal = args.top_p * total;
        doubt |= fabsf(mass - goal) < goal * (1.0f / 65536);
        if (count < args.top_k && mass < goal) {
            break;
        }
        cut = winner;
        if (threadIdx.x == 0) {
            shared.best = 0;
            shared.score = 0;
        }
        __syncthreads();
    }
    if (rank == 0 && threadIdx.x == 0) {
        args.tokens[row] = (int)key_id(winner);
        args.races[row] = races + (doubt ? 256 : 0);
    }
    NOTE(9);
}

// Judges each row's token slowly: it must be kept, and each token with a better score must be dropped.
template <bool PROBS>
__global__ void judge(const Args args, u32* wrong) {
    __shared__ double mass[32];
    __shared__ u32 counts[32], listed, list[8192];
    __shared__ float first;
    const u32 row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float* z = args.rows + (u64)row * args.stride;
    float most = -INF_F32;
    for (u32 id = threadIdx.x; id < args.vocab; id += blockDim.x) {
        most = fmaxf(most, z[id]);
    }
    u32 bits = __reduce_max_sync(FULL, ordered_bits(most));
    if (threadIdx.x == 0) {
        listed = 1;
        list[0] = (u32)args.tokens[row];
        *(u32*)&first = 0;
    }
    __syncthreads();
    if (lane == 0) {
        atomicMax((u32*)&first, bits);
    }
    __syncthreads();
    const float top = from_ordered_bits(*(u32*)&first);
    const u32 token = (u32)args.tokens[row];
    const u64 winner = leader_of<PROBS>(args, row, z[token], top, token);
    for (u32 id = threadIdx.x; id < args.vocab; id += blockDim.x) {
        if (z[id] > empty_value<PROBS>() && leader_of<PROBS>(args, row, z[id], top, id) > winner) {
            u32 at = atomicAdd(&listed, 1u);
            if (at < 8192) {
                list[at] = id;
            }
        }
    }
    __syncthreads();
    double total = 0.0;
    for (u32 i = 0; i <= min(listed, 8192u); i++) {
        // First the row's mass, then for each listed token what comes before it.
        const u64 key = i == 0 ? 0 : make_key(z[list[i - 1]], list[i - 1]);
        double own = 0.0;
        u32 count = 0;
        for (u32 id = threadIdx.x; id < args.vocab; id += blockDim.x) {
            if (make_key(z[id], id) > key) {
                own += PROBS ? (double)z[id] : exp2((double)(z[id] - top) * args.scale);
                count++;
            }
        }
        for (u32 d = 16; d > 0; d /= 2) {
            own += __shfl_xor_sync(FULL, own, (int)d);
        }
        count = __reduce_add_sync(FULL, count);
        __syncthreads();
        if (lane == 0) {
            mass[warp] = own;
            counts[warp] = count;
        }
        __syncthreads();
        double sum = 0.0;
        u32 number = 0;
        for (u32 w = 0; w < blockDim.x / 32; w++) {
            sum += mass[w];
            number += counts[w];
        }
        if (i == 0) {
            total = sum;
            continue;
        }
        const bool kept = number < args.top_k && sum < args.top_p * total;
        if (threadIdx.x == 0 && kept != (i == 1)) {
            atomicAdd(wrong, 1u);
        }
    }
}

struct Case {
    const char* name;
    u32 rows, vocab, top_k;
    float top_p, noise, exponent;
    bool probs, scores;
    u32 blocks;
};

template <bool PROBS, bool SCORES, bool CLOCKS>
void launch(const Args& args, u32 rows, u32 blocks, u32 smem, cudaStream_t stream) {
    auto kernel = held_row<PROBS, SCORES, CLOCKS>;
    CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(rows * blocks);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = smem;
    config.stream = stream;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {blocks, 1, 1};
    config.attrs = &attribute;
    config.numAttrs = 1;
    CHECK(cudaLaunchKernelEx(&config, kernel, args));
}
void launch_any(bool probs, bool scores, bool clocks, const Args& args, u32 rows, u32 blocks, u32 smem,
                cudaStream_t stream) {
    if (clocks) {
        probs ? (scores ? launch<true, true, true> : launch<true, false, true>)(args, rows, blocks, smem, stream)
              : (scores ? launch<false, true, true> : launch<false, false, true>)(args, rows, blocks, smem, stream);
    } else {
        probs ? (scores ? launch<true, true, false> : launch<true, false, false>)(args, rows, blocks, smem, stream)
              : (scores ? launch<false, true, false> : launch<false, false, false>)(args, rows, blocks, smem, stream);
    }
}

void run(const Case& c) {
    const u32 tiles = (c.vocab + TILE - 1) / TILE, per_block = (tiles + c.blocks - 1) / c.blocks;
    const u32 smem = (u32)(sizeof(Shared) + 256 + 8 * (per_block + 16) + per_block * TILE * 4 * (c.scores ? 2 : 1));
    if (smem > 227 * 1024 || per_block > 32 * WARPS) {
        std::printf("%s by %u blocks: does not fit\n", c.name, c.blocks);
        return;
    }
    const u32 stride = (c.vocab + 3) / 4 * 4;
    const u64 size = (u64)c.rows * stride;
    const u32 copies = (u32)std::max<u64>(4, std::min<u64>(64, 300000000 / (4 * size)));
    // A few rows, again and again.
    const u32 some = std::min(16u, c.rows * copies);
    std::vector<float> host((u64)some * stride);
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (u32 r = 0; r < some; r++) {
        float* z = &host[(u64)r * stride];
        double sum = 0.0;
        for (u32 i = 0; i < c.vocab; i++) {
            z[i] = -c.exponent * std::log1p((float)i) + c.noise * normal(random);
            sum += std::exp((double)z[i]);
        }
        std::shuffle(z, z + c.vocab, random);
        for (u32 i = 0; i < c.vocab && c.probs; i++) {
            z[i] = (float)(std::exp((double)z[i]) / sum);
        }
    }
    float* rows;
    int* tokens;
    u32 *races, *wrong;
    i64* clocks;
    CHECK(cudaMalloc(&rows, size * copies * 4));
    CHECK(cudaMalloc(&tokens, c.rows * 4));
    CHECK(cudaMalloc(&races, c.rows * 4));
    CHECK(cudaMalloc(&wrong, 4));
    CHECK(cudaMalloc(&clocks, PHASES * 8));
    for (u64 r = 0; r < (u64)c.rows * copies; r++) {
        const float* from = &host[r % some * stride];
        CHECK(cudaMemcpy(rows + r * stride, from, (u64)stride * 4, cudaMemcpyHostToDevice));
    }
    CHECK(cudaMemset(wrong, 0, 4));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    auto args_of = [&](u32 copy) {
        return Args{rows + copy * size,    stride, c.vocab, tiles, per_block, c.top_k, 1.44269504f, c.top_p,
                    0x123456789ull + copy, tokens, races,   clocks};
    };
    u32 doubts = 0, more = 0, judged = 0;
    for (u32 copy = 0; copy < copies && judged < 256; copy++) {
        Args args = args_of(copy);
        launch_any(c.probs, c.scores, false, args, c.rows, c.blocks, smem, stream);
        CHECK(cudaStreamSynchronize(stream));
        if (c.probs) {
            judge<true><<<c.rows, 512, 0, stream>>>(args, wrong);
        } else {
            judge<false><<<c.rows, 512, 0, stream>>>(args, wrong);
        }
        std::vector<u32> taken(c.rows);
        CHECK(cudaMemcpy(taken.data(), races, c.rows * 4, cudaMemcpyDeviceToHost));
        for (u32 r : taken) {
            doubts += r >= 256;
            more += r % 256 > 1;
        }
        judged += c.rows;
    }
    u32 errors;
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(&errors, wrong, 4, cudaMemcpyDeviceToHost));
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (u32 copy = 0; copy < copies; copy++) {
        launch_any(c.probs, c.scores, false, args_of(copy), c.rows, c.blocks, smem, stream);
    }
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t start, end;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    std::vector<float> times;
    for (u32 i = 0; i < 24; i++) {
        CHECK(cudaEventRecord(start, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, start, end));
        times.push_back(1000.0f * ms / (float)copies);
    }
    std::sort(times.begin(), times.end());
    std::printf("%-40s %u blocks %s %3u rows: %7.2f us; wrong %u, doubts %u, raced again %u of %u; clocks", c.name,
                c.blocks, c.scores ? "scores" : "lazy  ", c.rows, times[times.size() / 2], errors, doubts, more,
                judged);
    launch_any(c.probs, c.scores, true, args_of(0), c.rows, c.blocks, smem, stream);
    launch_any(c.probs, c.scores, true, args_of(1), c.rows, c.blocks, smem, stream);
    std::vector<i64> noted(PHASES);
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(noted.data(), clocks, PHASES * 8, cudaMemcpyDeviceToHost));
    for (u32 i = 1; i < PHASES; i++) {
        std::printf(" %lld", noted[i] - noted[i - 1]);
    }
    std::printf("\n");
    std::fflush(stdout);
    cudaFree(rows), cudaFree(tokens), cudaFree(races), cudaFree(wrong), cudaFree(clocks);
}

int main() {
    const u32 ALL = ~0u;
    for (bool scores : {true, false}) {
        for (u32 blocks : {2u, 4u, 8u}) {
            for (u32 rows : {1u, 8u, 32u}) {
                run(Case{"a: 32000 Zipf 1.2 p .9", rows, 32000, ALL, 0.9f, 0.6f, 1.2f, false, scores, blocks});
            }
            run(Case{"b: 50257 bell k1000 p .95 probabilities", 1, 50257, 1000, 0.95f, 2.0f, 0.0f, true, scores,
                     blocks});
            run(Case{"b: 152064 bell k1000 p .95 probabilities", 1, 152064, 1000, 0.95f, 2.0f, 0.0f, true, scores,
                     blocks});
            run(Case{"32000 bell k1000 p .95", 8, 32000, 1000, 0.95f, 2.0f, 0.0f, false, scores, blocks});
            run(Case{"151936 Zipf 1.2 p .95", 1, 151936, ALL, 0.95f, 0.6f, 1.2f, false, scores, blocks});
            run(Case{"151936 flat k20000", 1, 151936, 20000, 1.0f, 1e-4f, 0.0f, false, scores, blocks});
        }
    }
    for (u32 blocks : {3u, 4u, 6u, 8u}) {
        for (u32 rows : {32u, 128u, 512u}) {
            run(Case{"c: 151936 Zipf 1.2 p .95", rows, 151936, ALL, 0.95f, 0.6f, 1.2f, false, false, blocks});
        }
    }
    return 0;
}
