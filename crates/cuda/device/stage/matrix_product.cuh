// matrix_product.cuh: products of all rows of a matrix with columns, on tensor cores.
//
// Computes   the products of rows of weights, or of codes, with columns made of hidden states, for a block's ids
// Requires   a block as block/stage_queue.cuh has it: HEAD_COPY_WARPS warps and one for each HEAD_WARP_IDS of
//            `queue_ids`; on sm_90a `queue_ids` are a multiple of MATRIX_GROUP_IDS, and MATRIX_ALIGNMENT bytes of
//            dynamic shared memory are for the alignment of stages
//
// A sum depends on its row and column alone, not on how many columns are multiplied at once.
#pragma once

#include "block/stage_queue.cuh"
#include "platform/matrix.cuh"
#include "stage/head.cuh"
#include "warp/row.cuh"

// Rows of signed bytes, as Bf16 and F16 are rows of those types.
struct Codes {};

template <class T>
struct Summed {
    typedef float Sum;
};
template <>
struct Summed<Codes> {
    typedef int Sum;
};

#ifdef WARPGROUPS_MULTIPLY
template <u32 COLUMNS>
DEVICE void wgmma(float (*sums)[4], u64 rows, u64 columns, Bf16) {
    wgmma_bf16(Columns<COLUMNS>{}, sums, rows, columns);
}
template <u32 COLUMNS>
DEVICE void wgmma(float (*sums)[4], u64 rows, u64 columns, F16) {
    wgmma_f16(Columns<COLUMNS>{}, sums, rows, columns);
}
template <u32 COLUMNS>
DEVICE void wgmma(int (*sums)[4], u64 rows, u64 columns, Codes) {
    wgmma_s8(Columns<COLUMNS>{}, sums, rows, columns);
}
#else
DEVICE void mma(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], Bf16) { mma_bf16(sums, a, b); }
DEVICE void mma(float (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], F16) { mma_f16(sums, a, b); }
DEVICE void mma(int (&sums)[4], const u32 (&a)[4], const u32 (&b)[2], Codes) { mma_s8(sums, a, b); }

// A lane's words of a chunk of the rows `row` and `row + 8` of a stage, for two products: lane 4 g + t has word t of
// each quad.
DEVICE void load_fragments(u32 (&fragments)[2][4], const U32x4* rows, u32 row, u32 chunk) {
#pragma unroll
    for (u32 quad = 0; quad < 4; quad++) {
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            const U32x4& from = rows[MatrixPiece::row_place(row + 8 * i, 4 * chunk + quad)];
            fragments[quad / 2][quad % 2 * 2 + i] = from.word[lane_id() % 4];
        }
    }
}
#endif

// The matrix, with a row for each id, and the columns that multiply it, which lie as MatrixPiece says.
struct MatrixOperands {
    const char* rows;
    // From a row to the next, in bytes.
    u64 apart;
    // The bytes of a row, a multiple of MATRIX_CHUNK_BYTES; memory has the first `filled` of them,
    // and the others count as zeros.
    u32 bytes, filled;
    // Whether all rows begin at multiples of 16 bytes.
    bool are_aligned;
    const U32x4* columns;
    u32 column_count;
};

// The pieces of a stage for at most MATRIX_WARP_COLUMNS columns: longer pieces come faster from memory than short ones
// do.
constexpr u32 FEW_PIECES = HEAD_STAGE_BYTES / 16 / MatrixPiece::QUADS;

// A stage in shared memory: PIECES pieces of the rows of `queue_ids` ids, then of the COLUMNS columns that meet them.
// What all rows have of a piece lies together.
template <u32 COLUMNS, u32 PIECES>
struct MatrixStage {
    static constexpr u32 ROW_QUADS = PIECES * MatrixPiece::QUADS, CHUNK_QUADS = MATRIX_CHUNK_BYTES / 16,
                         CHUNKS = ROW_QUADS / CHUNK_QUADS;

    // The stages of a row, the last of which may be short.
    static DEVICE_MEMBER u32 count(const MatrixOperands& of) { return (of.bytes / 16 + ROW_QUADS - 1) / ROW_QUADS; }
    // Where its columns begin.
    static DEVICE_MEMBER u32 columns(const HeadStep& args) { return args.queue_ids * ROW_QUADS; }
};

// Starts to copy a stage's pieces of COLUMNS columns. They lie as in the stage; `from` are the columns' first pieces.
template <u32 COLUMNS, u32 PIECES>
DEVICE void copy_columns(U32x4* to, const U32x4* from, u32 number) {
    constexpr u32 QUADS = COLUMNS * MatrixPiece::QUADS, APART = MATRIX_GROUP_COLUMNS * MatrixPiece::QUADS;
    from += number * (PIECES * APART) + threadIdx.x;
    to += threadIdx.x;
#pragma unroll
    for (u32 piece = 0; piece < PIECES; piece++) {
#pragma unroll
        for (u32 i = 0; i < QUADS; i += HEAD_COPY_WARPS * 32) {
            if (i + HEAD_COPY_WARPS * 32 <= QUADS || threadIdx.x < QUADS - i) {
                cp_async(to + piece * QUADS + i, from + piece * APART + i);
            }
        }
    }
}

// The products of a block. A Job has the kernel's `args`, and these members. `operands()` returns the matrix and the
// columns. `begin()` waits for the kernels before, and returns whether there is anything to multiply. `ids(first, end)`
// loads what the job needs of a lane's two ids, `first` and `first + 8`; an id that is not below `end` is none.
// `finish<COLUMNS>(sums, ids, first_column)` takes the lane's sums. A job with MAY_LIST may multiply some ids only:
// `count()` says how many, after a wait for the kernel that lists them, and `id_at(i)` which is the i-th of them.
// Otherwise the i-th id is i.
template <class T, class Job>
struct MatrixProduct {
    typedef typename Summed<T>::Sum Sum;

    const Job& job;
    const HeadStep& args;
    const MatrixOperands operands;
    const u32 listed_count;
    const IdSets sets;
    StageQueue queue;

    DEVICE_MEMBER MatrixProduct(const Job& job, StageMbarriers& mbarriers, U32x4* stages)
        : job(job), args(job.args), operands(job.operands()), listed_count(count_of_job()),
          sets(count() == 0 ? 1 : count(), args.queue_ids), queue(mbarriers, stages, args.queue_stages) {}

    DEVICE_MEMBER u32 count_of_job() const {
        if constexpr (Job::MAY_LIST) {
            return job.count();
        }
        return 0;
    }

    // How many ids are multiplied.
    DEVICE_MEMBER u32 count() const { return Job::MAY_LIST ? listed_count : args.step.vocab; }

    // A copying thread's work: COLUMNS columns from `first_column` on, and the ids of all sets of the block. Returns
    // whether there is anything to multiply.
    template <u32 COLUMNS, u32 PIECES>
    DEVICE_MEMBER bool copy_stages(u32 first_column) {
        typedef MatrixStage<COLUMNS, PIECES> Stage;
        constexpr u32 ROWS = HEAD_COPY_WARPS * 32 / Stage::ROW_QUADS;
        // Warps that have given registers back have none to copy rows that are not aligned.
        constexpr bool IS_ALIGNED = PIECES < FEW_PIECES;
        const u32 quad = threadIdx.x % Stage::ROW_QUADS, first = threadIdx.x / Stage::ROW_QUADS;
        // The thread's rows are a multiple of eight apart, so their quads are in the same order.
        const u32 place = quad / MatrixPiece::QUADS * (args.queue_ids * MatrixPiece::QUADS) +
                          MatrixPiece::row_place(first, quad % MatrixPiece::QUADS);
        const u32 stages = Stage::count(operands);
        const U32x4* columns = operands.columns + MatrixPiece::columns_before(operands.bytes, first_column, 0);
        const u64 apart = ROWS * operands.apart;
        for (u32 set = 0; set < sets.count; set++) {
            const u32 first_id = sets.first(set), left = first_id < count() ? count() - first_id : 0;
            const u32 ids = left < sets.ids ? left : sets.ids, own = ids > first ? (ids - first + ROWS - 1) / ROWS : 0;
            const char* rows = operands.rows + (first_id + first) * operands.apart;
            // Finds the thread's n-th row, where it does not follow from the one before: only for few columns ids are
            // listed.
            static_assert(LISTED_TOGETHER <= MATRIX_WARP_COLUMNS, "few columns have all pieces of a stage");
            const auto seek = [&](const char*& from, u32 n, u32 at) INLINE {
                if constexpr (Job::MAY_LIST && PIECES == FEW_PIECES) {
                    from = operands.rows + (u64)job.id_at(first_id + first + n * ROWS) * operands.apart + at;
                }
            };
            for (u32 i = 0; i < stages; i++) {
                queue.acquire_empty();
                const u32 at = (i * Stage::ROW_QUADS + quad) * 16;
                U32x4* to = queue.quads() + place;
                const char* from = rows + at;
                const u32 here = at < operands.bytes ? own : 0;
                if (IS_ALIGNED || operands.are_aligned) {
#pragma unroll 4
                    for (u32 n = 0; n < here; n++) {
                        seek(from, n, at);
                        // Rows that are aligned are whole numbers of quads.
                        cp_async(to + n * (ROWS * MatrixPiece::QUADS), from, at < operands.filled);
                        from += apart;
                    }
                } else {
                    for (u32 n = 0; n < here; n++) {
                        seek(from, n, at);
                        unsigned short* shorts = (unsigned short*)(to + n * (ROWS * MatrixPiece::QUADS));
                        for (u32 j = 0; j < 8; j++) {
                            shorts[j] = at + 2 * j < operands.filled ? ((const unsigned short*)from)[j] : 0;
                        }
                        from += apart;
                    }
                }
                // Rows are on their way before the columns are there.
                if (first_column == 0 && set == 0 && i == 0 && !job.begin()) {
                    cp_async_wait_all();
                    return false;
                }
                copy_columns<COLUMNS, PIECES>(queue.quads() + Stage::columns(args), columns, i);
                queue.fill(!IS_ALIGNED && !operands.are_aligned);
            }
        }
        return true;
    }

    // Adds a stage's products to a warp's sums. Lane 4 g + t has `own`, the number of the warp's first id in the stage
    // plus g, and the sums of the ids `own` and `own + 8` with the columns 8 i + 2 t and 8 i + 2 t + 1, for each i. The
    // first `chunks` chunks of the stage are no padding.
    template <u32 COLUMNS, u32 PIECES>
    DEVICE_MEMBER void multiply_stage(const U32x4* rows, u32 own, u32 chunks, Sum (&sums)[COLUMNS / 8][4]) const {
        typedef MatrixStage<COLUMNS, PIECES> Stage;
        const U32x4* columns = rows + Stage::columns(args);
#ifdef WARPGROUPS_MULTIPLY
        constexpr u32 AT_ONCE = COLUMNS < 128 ? COLUMNS : 128;
        const u64 of_ids = wgmma_operand(rows + own / MATRIX_GROUP_IDS * (MATRIX_GROUP_IDS * MatrixPiece::QUADS));
        const u64 of_columns = wgmma_operand(columns);
        wgmma_acquire();
        const auto multiply_chunk = [&](u32 chunk) INLINE {
            const u32 first_quad = chunk * Stage::CHUNK_QUADS, quad = first_quad % MatrixPiece::QUADS,
                      piece = first_quad / MatrixPiece::QUADS;
            const u64 a = of_ids + piece * args.queue_ids * MatrixPiece::QUADS + quad;
            const u64 b = of_columns + piece * COLUMNS * MatrixPiece::QUADS + quad;
#pragma unroll
            for (u32 k = 0; k < Stage::CHUNK_QUADS; k += 2) {
#pragma unroll
                for (u32 first = 0; first < COLUMNS; first += AT_ONCE) {
                    wgmma<AT_ONCE / 8>(sums + first / 8, a + k, b + first * MatrixPiece::QUADS + k, T{});
                }
            }
        };
        constexpr u32 CHUNKS_AT_ONCE = Stage::CHUNKS;
#else
        // All chunks of 64 columns at once would spill registers.
        constexpr u32 EIGHTS = COLUMNS / 8, CHUNKS_AT_ONCE = EIGHTS < 8 ? Stage::CHUNKS : 2;
        const u32 g = lane_id() / 4, t = lane_id() % 4;
        const auto multiply_chunk = [&](u32 chunk) INLINE {
            u32 of_rows[2][4];
            load_fragments(of_rows, rows, own, chunk);
            U32x4 of_columns[EIGHTS];
#pragma unroll
            for (u32 eight = 0; eight < EIGHTS; eight++) {
                of_columns[eight] = columns[MatrixPiece::column_place(eight * 8 + g, chunk * Stage::CHUNK_QUADS + t)];
            }
#pragma unroll
            for (u32 k = 0; k < 2; k++) {
#pragma unroll
                for (u32 eight = 0; eight < EIGHTS; eight++) {
                    const u32 of_column[2] = {of_columns[eight].word[2 * k], of_columns[eight].word[2 * k + 1]};
                    mma(sums[eight], of_rows[k], of_column, T{});
                }
            }
        };
#endif
        if (chunks >= Stage::CHUNKS) {
            // Without a condition between them, loads for one chunk overlap the products of another.
#pragma unroll CHUNKS_AT_ONCE
            for (u32 chunk = 0; chunk < Stage::CHUNKS; chunk++) {
                multiply_chunk(chunk);
            }
        } else {
#pragma unroll 1
            for (u32 chunk = 0; chunk < chunks; chunk++) {
                multiply_chunk(chunk);
            }
        }
#ifdef WARPGROUPS_MULTIPLY
        wgmma_wait();
#endif
    }

    // A multiplying warp's work.
    template <u32 COLUMNS, u32 PIECES>
    DEVICE_MEMBER void multiply_stages(u32 first_column) {
        typedef MatrixStage<COLUMNS, PIECES> Stage;
        const u32 own = (warp_id() - HEAD_COPY_WARPS) * HEAD_WARP_IDS + lane_id() / 4;
        const u32 all_chunks = operands.bytes / MATRIX_CHUNK_BYTES, stages = Stage::count(operands);
        for (u32 set = 0; set < sets.count; set++) {
            const u32 first_id = sets.first(set), left = count() - first_id;
            // A warp beyond the set's ids multiplies stale rows: none of its ids is below `end`.
            const u32 end = first_id < count() ? first_id + (sets.ids < left ? sets.ids : left) : 0;
            // These loads overlap the copies.
            const typename Job::Ids ids = job.ids(first_id + own, end);
            Sum sums[COLUMNS / 8][4] = {};
#pragma unroll 1
            for (u32 i = 0; i < stages; i++) {
                queue.acquire_full();
                multiply_stage<COLUMNS, PIECES>(queue.quads(), own, all_chunks - i * Stage::CHUNKS, sums);
                queue.release();
            }
            job.template finish<COLUMNS>(sums, ids, first_column);
        }
    }

    // The work of a thread that copies, or of one that multiplies. Returns whether there is more to do.
    template <bool COPIES, u32 COLUMNS, u32 PIECES>
    DEVICE_MEMBER bool some_columns(u32 first_column) {
        if (queue.stage_quads == 0) {
            // Later passes have at most as many columns, so stages of this size fit them all.
            queue.stage_quads = (args.queue_ids + COLUMNS) * MatrixStage<COLUMNS, PIECES>::ROW_QUADS;
        }
        if constexpr (COPIES) {
            return copy_stages<COLUMNS, PIECES>(first_column);
        } else {
            multiply_stages<COLUMNS, PIECES>(first_column);
            return true;
        }
    }

    // The work of a thread for all columns. Fewer columns multiply fewer zeros; a column's sums are the same in all.
    template <bool COPIES>
    DEVICE_MEMBER void few_columns() {
        const u32 columns = operands.column_count;
        if (columns <= 8) {
            some_columns<COPIES, 8, FEW_PIECES>(0);
        } else if (columns <= 16) {
            some_columns<COPIES, 16, FEW_PIECES>(0);
        } else if (columns <= 32) {
            some_columns<COPIES, 32, FEW_PIECES>(0);
        } else {
            for (u32 column = 0; column < columns && some_columns<COPIES, 64, FEW_PIECES>(column); column += 64) {
            }
        }
    }

#ifdef WARPGROUPS_MULTIPLY
    // The work of a thread for more than MATRIX_WARP_COLUMNS columns, of aligned rows. Before it copying warps give
    // back registers, and multiplying warps take them for the sums of up to 256 columns.
    template <bool COPIES>
    DEVICE_MEMBER void many_columns() {
        const u32 columns = operands.column_count;
        bool goes_on = true;
        for (u32 column = 0, left = columns; column < columns && goes_on; left = columns - column) {
            if (left > 128) {
                goes_on = some_columns<COPIES, 256, 1>(column);
                column += 256;
            } else if (left > 64) {
                goes_on = some_columns<COPIES, 128, 1>(column);
                column += 128;
            } else {
                goes_on = some_columns<COPIES, 64, 1>(column);
                column += 64;
            }
        }
    }
#endif
};

// The whole work of a block.
template <class T, class Job>
DEVICE void matrix_product(const Job& job) {
    DYNAMIC_SMEM(smem);
    __shared__ StageMbarriers mbarriers;
#ifdef WARPGROUPS_MULTIPLY
    constexpr u32 ALIGNMENT = MATRIX_ALIGNMENT / 16;
    U32x4* const stages = smem + (ALIGNMENT - smem_address(smem) / 16 % ALIGNMENT) % ALIGNMENT;
#else
    U32x4* const stages = smem;
#endif
    MatrixProduct<T, Job> product(job, mbarriers, stages);
    // The compiler is to see that all lanes of a warp go the same way.
    const bool copies = __shfl_sync(FULL_MASK, warp_id(), 0) < HEAD_COPY_WARPS;
#ifdef WARPGROUPS_MULTIPLY
    if (product.operands.are_aligned && product.operands.column_count > MATRIX_WARP_COLUMNS) {
        // Copying warps give back what multiplying warps take, if the kernel has 128 registers a thread.
        constexpr u32 COPYING = 32, MULTIPLYING = 160;
        static_assert(HEAD_COPY_WARPS * (128 - COPYING) >= HEAD_PRODUCT_WARPS * (MULTIPLYING - 128),
                      "too few given back");
        if (copies) {
            shrink_registers<COPYING>();
            product.template many_columns<true>();
        } else {
            grow_registers<MULTIPLYING>();
            if (job.begin()) {
                product.template many_columns<false>();
            }
        }
        return;
    }
#endif
    if (copies) {
        product.template few_columns<true>();
    } else if (job.begin()) {
        product.template few_columns<false>();
    }
}
