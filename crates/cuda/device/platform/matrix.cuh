// matrix.cuh: products of small matrices by a warp.
//
// Computes   16 rows times 8 columns, added to sums: of signed bytes, exactly; of bf16 and f16, as the tensor cores
//            round
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
