// matrix.cuh: products of small matrices by a warp.
//
// Requires   sm_80, or a host that exchanges words among the lanes of a warp; whole warps
#pragma once

#include "platform/portability.cuh"

// Multiplies 16 rows of 32 signed bytes by 8 columns, and adds the products to `sums`: the tensor core's product m16n8k32, in integers
// and therefore exact. Lane 4 g + t has bytes of the rows g (`a[0]`, `a[2]`) and g + 8 (`a[1]`, `a[3]`) and of column g (`b`), and the
// sums of row g and columns 2 t and 2 t + 1, then those of row g + 8. All 32 lanes call it.
#ifdef __CUDACC__

DEVICE void mma_s8(int (&sums)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
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
DEVICE void mma_s8(int (&sums)[4], const unsigned int (&a)[4], const unsigned int (&b)[2]) {
    // Of each lane: the words of row g, those of row g + 8, and those of column g.
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
            const unsigned long long row = lanes[i / 2][4 * g + k], digits = lanes[2][4 * column + k];
            sums[i] += dot_of_bytes((unsigned int)row, (unsigned int)digits) +
                       dot_of_bytes((unsigned int)(row >> 32), (unsigned int)(digits >> 32));
        }
    }
}

#endif
