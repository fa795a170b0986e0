// matrix.cuh: products of small matrices by a warp.
//
// Computes   16 rows times 8 columns, added to sums: of signed bytes, exactly; of bf16 and f16, as the tensor cores
//            round; on sm_90a, where WARPGROUPS_MULTIPLY is defined, 64 rows times up to 128 columns at a time by four
//            warps
// Requires   sm_80, or a host that exchanges words among the lanes of a warp; whole warps
//
// Lane 4 g + t has words of the rows g (`a[0]`, `a[2]`) and g + 8 (`a[1]`, `a[3]`) and of column g (`b`), and the sums
// of row g and columns 2 t and 2 t + 1, then the elements of row g + 8.
#pragma once

#include "platform/portability.cuh"

#ifdef __CUDACC__

// Multiplies 16 rows of 32 signed bytes by 8 columns, and adds the products to `sums`: the tensor core's product
// m16n8k32, in integers and therefore exact. All 32 lanes call it.

DEVICE void mma_s8(int (&sums)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Multiply 16 rows of 16 numbers by 8 columns, and add the products to `sums`: the tensor core's product m16n8k16. A
// sum depends on its row and column alone, but how it is rounded is the hardware's. All 32 lanes call them.
DEVICE void mma_bf16(float (&sums)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEVICE void mma_f16(float (&sums)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define WARPGROUPS_MULTIPLY

// An operand of `wgmma_*`: rows, or columns, of 128 bytes, one next to the other in shared memory. Quad q of row r is
// stored as quad q ^ r % 8 of the row (the swizzle of 128 bytes). `quads` is the address of a row whose number is a
// multiple of eight; adding n to the operand moves it by n quads.
DEVICE unsigned long long wgmma_operand(const void* quads) {
    const unsigned long long address = (unsigned int)__cvta_generic_to_shared(quads) / 16 & 0x3FFF;
    // From eight rows to the next eight are 64 quads; the swizzle has the number 1.
    return address | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// Lets the products that follow see all stores and copies to shared memory that the thread has made or waited for.
DEVICE void wgmma_acquire() { asm volatile("fence.proxy.async.shared::cta;\nwgmma.fence.sync.aligned;" ::: "memory"); }

// Waits for all products that the warpgroup has begun.
DEVICE void wgmma_wait() {
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// Multiply 64 rows of 16 numbers, or of 32 signed bytes, by 8 COLUMNS columns, and add the products to the sums of the
// warpgroup: each of its warps has 16 of the rows, with the sums of eight columns as `mma_*` has them. A sum has the
// same bits for any number of columns. All threads of the warpgroup call them between `wgmma_acquire` and `wgmma_wait`.
template <unsigned int COLUMNS>
struct Columns {};

#define SUMS_1(of, c) of(sums[c][0]), of(sums[c][1]), of(sums[c][2]), of(sums[c][3])
#define SUMS_2(of, c) SUMS_1(of, c), SUMS_1(of, c + 1)
#define SUMS_4(of, c) SUMS_2(of, c), SUMS_2(of, c + 2)
#define SUMS_8(of, c) SUMS_4(of, c), SUMS_4(of, c + 4)
#define SUMS_16(of, c) SUMS_8(of, c), SUMS_8(of, c + 8)
#define NAMES_1 "%0,%1,%2,%3"
#define NAMES_2 NAMES_1 ",%4,%5,%6,%7"
#define NAMES_4 NAMES_2 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_8 NAMES_4 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_16 \
    NAMES_8 \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%" \
    "59,%60,%61,%62,%63"
#define WGMMA(name, number, of, product, flags, columns, width, a, b) \
    DEVICE void wgmma_##name(Columns<columns>, number(*sums)[4], unsigned long long rows, unsigned long long others) { \
        asm volatile("{\n.reg .pred adds;\nsetp.eq.u32 adds, 0, 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #width product " {" NAMES_##columns "}, %" #a ", %" #b \
                                                                                             ", adds" flags ";\n}" \
                     : SUMS_##columns(of, 0) \
                     : "l"(rows), "l"(others)); \
    }
#define WGMMA_OF(name, number, of, product, flags) \
    WGMMA(name, number, of, product, flags, 1, 8, 4, 5) \
    WGMMA(name, number, of, product, flags, 2, 16, 8, 9) \
    WGMMA(name, number, of, product, flags, 4, 32, 16, 17) \
    WGMMA(name, number, of, product, flags, 8, 64, 32, 33) \
    WGMMA(name, number, of, product, flags, 16, 128, 64, 65)

WGMMA_OF(bf16, float, "+f", "k16.f32.bf16.bf16", ", 1, 1, 0, 0")
WGMMA_OF(f16, float, "+f", "k16.f32.f16.f16", ", 1, 1, 0, 0")
WGMMA_OF(s8, int, "+r", "k32.s32.s8.s8", "")

#endif

#else

DEVICE int dot_of_bytes(unsigned int a, unsigned int b) {
    int sum = 0;
    for (int i = 0; i < 32; i += 8) {
        sum += (int)(signed char)(a >> i) * (int)(signed char)(b >> i);
    }
    return sum;
}

// Calls `add(i, a, b)` for each of a lane's four sums and each pair of words that meet in it.
template <class F>
DEVICE void for_words_that_meet(const unsigned int (&a)[4], const unsigned int (&b)[2], F add) {
    // Of each lane: the words of row g, of row g + 8, and of column g.
    const unsigned int words[3][2] = {{a[0], a[2]}, {a[1], a[3]}, {b[0], b[1]}};
    unsigned long long lanes[3][32];
    for (int i = 0; i < 3; i++) {
        const unsigned long long own = words[i][0] | (unsigned long long)words[i][1] << 32;
        const auto* all = emulator::exchange_with_warp(own);
        for (int lane = 0; lane < 32; lane++) {
            lanes[i][lane] = all[lane];
        }
    }
    const unsigned int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (unsigned int i = 0; i < 4; i++) {
        const unsigned int column = 2 * t + i % 2;
        for (unsigned int k = 0; k < 4; k++) {
            const unsigned long long row = lanes[i / 2][4 * g + k], of_column = lanes[2][4 * column + k];
            add(i, (unsigned int)row, (unsigned int)of_column);
            add(i, (unsigned int)(row >> 32), (unsigned int)(of_column >> 32));
        }
    }
}

DEVICE void mma_s8(int (&sums)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {
    for_words_that_meet(a, b, [&](unsigned int i, unsigned int row, unsigned int column) INLINE {
        sums[i] += dot_of_bytes(row, column);
    });
}

// As the hardware may round: products are exact, and the sum of all sixteen is rounded once.
template <class F>
DEVICE void mma_shorts(float (&sums)[4], const unsigned int (&a)[4], const unsigned int (&b)[2], F convert) {
    double wide[4] = {sums[0], sums[1], sums[2], sums[3]};
    for_words_that_meet(a, b, [&](unsigned int i, unsigned int row, unsigned int column) INLINE {
        wide[i] += (double)convert((unsigned short)row) * convert((unsigned short)column);
        wide[i] += (double)convert((unsigned short)(row >> 16)) * convert((unsigned short)(column >> 16));
    });
    for (int i = 0; i < 4; i++) {
        sums[i] = (float)wide[i];
    }
}
DEVICE void mma_bf16(float (&sums)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {
    mma_shorts(sums, a, b, [](unsigned short x) INLINE { return bits_float((unsigned int)x << 16); });
}
DEVICE void mma_f16(float (&sums)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {
    mma_shorts(sums, a, b, [](unsigned short x) INLINE { return f16_to_float(x); });
}

#endif

// Gives back registers, until every thread of the warpgroup has REGISTERS, or takes as many. A warpgroup that takes
// registers waits until other warpgroups of the block have given them back. On other devices than sm_90a nothing
// changes.
template <unsigned int REGISTERS>
DEVICE void shrink_registers() {
#ifdef WARPGROUPS_MULTIPLY
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
}
template <unsigned int REGISTERS>
DEVICE void grow_registers() {
#ifdef WARPGROUPS_MULTIPLY
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
#endif
}
