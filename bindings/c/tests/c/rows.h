// Rows of logits made of integers alone: those of the golden draws, and the same on every machine.
#ifndef ROWS_H
#define ROWS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

// A stream of words (splitmix64).
static inline uint64_t next_word(uint64_t *state) {
    *state += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t x = *state;
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

// A bell-shaped number of deviation 1: the sum of twelve uniform ones.
static inline float next_bell(uint64_t *state) {
    uint64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        uint64_t word = next_word(state);
        for (int part = 0; part < 4; part++) {
            sum += word >> (16 * part) & 0xFFFF;
        }
    }
    return ((float)sum - 6.0f * 65535.0f) / 65536.0f;
}

static inline void bell(float *row, size_t vocab, uint64_t seed) {
    for (size_t id = 0; id < vocab; id++) {
        row[id] = 2.0f * next_bell(&seed);
    }
}

// A bell, and twenty peaks raised by 6 to 14.
static inline void model_like(float *row, size_t vocab, uint64_t seed) {
    for (size_t id = 0; id < vocab; id++) {
        row[id] = 2.0f * next_bell(&seed);
    }
    for (int peak = 0; peak < 20; peak++) {
        size_t id = (size_t)(next_word(&seed) % vocab);
        float fraction = (float)(next_word(&seed) >> 40) / 16777216.0f;
        row[id] += 6.0f + 8.0f * fraction;
    }
}

// Twenty distinct values, so that most cuts fall on ties.
static inline void grid(float *row, size_t vocab, uint64_t seed) {
    for (size_t id = 0; id < vocab; id++) {
        row[id] = 0.5f * (float)(next_word(&seed) % 20);
    }
}

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline void to_bf16(const float *row, uint16_t *out, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(row[i]);
        out[i] = (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
}

// For numbers that have a half-precision form, normal or zero.
static inline void to_f16(const float *row, uint16_t *out, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = bits_of(row[i]);
        uint32_t exponent = (bits >> 23 & 0xFF) - 127 + 15;
        uint32_t half = (bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 0x3FF);
        out[i] = (uint16_t)((bits & 0x7FFFFFFF) == 0 ? 0 : half);
    }
}

#endif
