// onchip.cuh: rows of probabilities by one read: a row lies in the shared memory of a cluster until it is known and written.
//
// Computes   what softmax.cuh says, for every so many-th row a cluster
// Never      waits for another block in more than one warp; never copies from or to what does not lie on 16 bytes
// Twins      definition spec/src/outputs.rs | src/softmax.rs | why docs/stages/softmax.md
// Requires   clusters of as many blocks as a row has; a warp more than work at tiles, and shared memory for theirs; rows >= clusters
#pragma once

#include "chip.cuh"
#include "softmax.cuh"

#define MOST_ROWS 4
#define MOST_BLOCKS 16
#define MOST_WARPS 19
// A tile alone is too small to be fetched, awaited and gone on from: two neighbours are.
#define PAIR (2 * TILE)

// What a block knows of the rows that are under way; that of its n-th row lies in place n % MOST_ROWS.
struct Beside {
    // The block's tiles are weighed; the blocks of the cluster have told of their first tokens, and of their masses; all is known.
    Flight weighed[MOST_ROWS];
    Flight keys_told[MOST_ROWS];
    Flight masses_told[MOST_ROWS];
    Flight known[MOST_ROWS];
    u64 keys[MOST_ROWS][MOST_BLOCKS];
    u64 masses[MOST_ROWS][MOST_BLOCKS];
    Scale scales[MOST_ROWS];
    Probabilities probabilities[MOST_ROWS];
};

// The maxima of two tiles' logits, side by side; odd values are cleaned.
DEVICE void maxima_of(float (&z)[2][PER_LANE], u32& odd, float (&maxima)[2]) {
    u32 bits[2];
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        bits[half] = (u32)__reduce_max_sync(ALL_LANES, (int)float_bits(largest_of(z[half], All())));
        maxima[half] = bits_float(bits[half]);
    }
    // Bits of positive floats compare as they do, above all with a sign; infinities and NaN, which has none here, are above them.
    if ((bits[0] > bits[1] ? bits[0] : bits[1]) >= float_bits(INFINITE)) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            int lanes;
            maxima[half] = from_signed_order(maximum_of(z[half], All(), All(), odd, lanes));
        }
    }
}

// Goes round places that are used again and again, and knows which phase of theirs it is in.
struct Round {
    u32 place;
    u32 odd_phase;

    DEVICE_MEMBER void advance(u32 places) {
        bool last = ++place == places;
        place = last ? 0 : place;
        odd_phase ^= last;
    }
};

// Fetches a pair that may begin anywhere, and end.
template <class Element>
DEVICE_APART void fetch_rest(const Element* from, Element* to, u32 size, Flight* flight) {
    constexpr u32 PER_QUAD = 16 / sizeof(Element);
    u32 lane = lane_id(), ahead = (u32)(-(u64)from % 16) / sizeof(Element);
    size = size < PAIR ? size : PAIR;
    ahead = ahead < size ? ahead : size;
    u32 middle = (size - ahead) / PER_QUAD * PER_QUAD, rest = size - ahead - middle;
    if (lane == 0) {
        arrive(flight, middle * sizeof(Element));
        if (middle > 0) {
            copy_flies(flight, to + ahead, from + ahead, middle * sizeof(Element));
        }
    }
    if (lane < ahead) {
        to[lane] = from[lane];
    }
    if (lane < rest) {
        to[size - rest + lane] = from[size - rest + lane];
    }
}

// A block at work. Its tiles of a row are dealt out to its warps in pairs, neighbours to each; a warp has the same of every row. Where
// they come to lie on chip goes round: a pair that is written makes room for the one that is that many pairs later.
template <class T, class Out>
struct Work {
    typedef typename T::Element Element;
    static constexpr u32 PER_QUAD = 16 / sizeof(Element);
    // A pair lies on chip as far from a multiple of 16 bytes as it does in memory.
    static constexpr u32 QUADS = PAIR / PER_QUAD + 1;

    const Softmax& softmax;
    Beside& beside;
    // The warp's pairs, and whether they are there; the block's records of the rows under way.
    Quad* chips;
    Flight* flights;
    TileWeights* records;
    // How many warps work at tiles, and which of them this one is; the first warp of the block is none.
    u32 workers;
    u32 worker;
    u32 rank;
    // Of all clusters, and this one; how many rows it has.
    u32 clusters;
    u32 cluster;
    u32 count;
    // Of every row, the block's tiles and the warp's.
    Span tiles;
    Span own;
    // Up to which of the warp's tiles they are pairs that are whole.
    u32 whole_end;

    // A pair to be fetched.
    struct Cursor {
        const Element* from;
        // How many of the warp's pairs of a row are to come, this one with them; whether all are whole and lie on 16 bytes.
        u32 left;
        u32 plain;
        u32 n;
    };

    // At the warp's first pair of a row; nowhere if there is none.
    DEVICE_MEMBER Cursor start(u32 n) const {
        Cursor cursor{logits(n) + own.from * TILE, (own.to - own.from + 1) / 2, 0, n};
        cursor.left = n < count ? cursor.left : 0;
        cursor.plain = wide_end(off(logits(n))) == own.to;
        return cursor;
    }

    DEVICE_MEMBER Work(const Softmax& softmax, Beside& beside, Quad* room) : softmax(softmax), beside(beside) {
        workers = warps() - 1;
        worker = warp_id() - 1;
        chips = room + worker * softmax.slots * QUADS;
        records = (TileWeights*)(room + workers * softmax.slots * QUADS);
        flights = (Flight*)(records + MOST_ROWS * softmax.share) + worker * softmax.slots;
        rank = rank_in_cluster();
        clusters = gridDim.x / softmax.blocks_per_row;
        cluster = blockIdx.x / softmax.blocks_per_row;
        count = (softmax.rows - cluster + clusters - 1) / clusters;
        tiles = Span{0, softmax.tiles}.part(rank, softmax.share);
        own = tiles.part(worker, (softmax.share / 2 + workers - 1) / workers * 2);
        u32 whole = softmax.vocab / PAIR * 2 < own.to ? softmax.vocab / PAIR * 2 : own.to / 2 * 2;
        whole_end = whole > own.from ? whole : own.from;
    }

    DEVICE_MEMBER u32 row(u32 n) const { return cluster + n * clusters; }

    DEVICE_MEMBER const Element* logits(u32 n) const { return (const Element*)softmax.logits + row(n) * softmax.stride; }

    // How many elements after a multiple of 16 bytes the tiles of a row begin.
    static DEVICE_MEMBER u32 off(const Element* row) { return (u32)(u64)row % 16 / sizeof(Element); }

    // Begins to fetch the pair of the cursor, and moves that on: whole quads by one copy, what is left at the ends by lanes.
    DEVICE_MEMBER void fetch(Cursor& cursor, u32 slot) const {
        if (cursor.left == 0) {
            return;
        }
        Quad* to = chips + slot * QUADS;
        if (cursor.plain) {
            if (chosen_lane()) {
                arrive(flights + slot, PAIR * sizeof(Element));
                copy_flies(flights + slot, to, cursor.from, PAIR * sizeof(Element));
            }
        } else {
            u32 end = own.to * TILE < softmax.vocab ? own.to * TILE : softmax.vocab;
            u32 begin = (u32)(cursor.from - logits(cursor.n));
            fetch_rest(cursor.from, (Element*)to + off(cursor.from), end - begin, flights + slot);
        }
        cursor.from += PAIR;
        if (--cursor.left == 0) {
            cursor = start(cursor.n + 1);
        }
    }

    // A lane's share of a tile on chip that may lie anywhere, -inf beyond the vocabulary.
    DEVICE_MEMBER void load_narrow(const Element* at, u32 tile, float (&z)[PER_LANE]) const {
#pragma unroll
        for (u32 j = 0; j < PER_LANE; j++) {
            u32 place = j * 32 + lane_id();
            z[j] = tile * TILE + place < softmax.vocab ? T::convert(at[place]) : -INFINITE;
        }
    }

    // Up to which of the warp's tiles of a row they are pairs that are whole and lie on 16 bytes.
    DEVICE_MEMBER u32 wide_end(u32 off) const { return off == 0 ? whole_end : own.from; }

    // The pair that lies in a place.
    DEVICE_MEMBER const Element* pair(const Round& slot) const { return (const Element*)(chips + slot.place * QUADS); }

    // Where a warp is with weighing: at a tile of its n-th row, which lies in a place.
    struct Weighing {
        u32 n;
        u32 tile;
        u32 odd;
        Round slot;
        Round place;
        Scale scale;
        // That of the row, and of the next one.
        float temperature;
        float next;
    };

    DEVICE_MEMBER Weighing start_weighing() const {
        float temperature = temperature_of(softmax, row(0));
        return Weighing{0, own.from, 0, Round{0, 0}, Round{0, 0}, Scale(temperature), temperature, next_temperature(0, temperature)};
    }

    // It comes while the row before is worked on.
    DEVICE_MEMBER float next_temperature(u32 n, float otherwise) const {
        return n + 1 < count ? temperature_of(softmax, row(n + 1)) : otherwise;
    }

    // Weighs the warp's tiles of rows before the n-th, and those of that before `end`.
    DEVICE_MEMBER void weigh(Weighing& at, u32 n, u32 end) const {
        while (at.n < count) {
            weigh_tiles(at, at.n < n ? own.to : end);
            if (at.n >= n) {
                return;
            }
            tell_weighed(at);
            at.n++;
            at.tile = own.from;
            at.odd = 0;
            at.place.advance(MOST_ROWS);
            if (at.next != at.temperature) {
                at.temperature = at.next;
                at.scale = Scale(at.next);
            }
            at.next = next_temperature(at.n, at.temperature);
        }
    }

    // Weighs the warp's tiles of a row up to one that begins a pair, or all.
    DEVICE_MEMBER void weigh_tiles(Weighing& at, u32 end) const {
        u32 off = this->off(logits(at.n)), wide = wide_end(off), tile = at.tile;
        wide = wide < end ? wide : end;
        TileWeights* to = records + at.place.place * softmax.share + (tile - tiles.from);
        auto told = [&](const Halves& sum, float maximum) INLINE {
            if (lane_id() == 0) {
                *to = TileWeights{sum.sum(), maximum, 0};
            }
            to++;
        };
#pragma unroll 1
        for (; tile < wide; tile += 2) {
            wait_for(flights + at.slot.place, at.slot.odd_phase);
            float z[2][PER_LANE];
            load_wide<T>(pair(at.slot), lane_id(), z[0]);
            load_wide<T>(pair(at.slot) + TILE, lane_id(), z[1]);
            float maxima[2];
            maxima_of(z, at.odd, maxima);
            Halves sums[2];
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                sums[half] = sum_of_weights(z[half], maxima[half], at.scale.s);
            }
            told(sums[0], maxima[0]);
            told(sums[1], maxima[1]);
            at.slot.advance(softmax.slots);
        }
#pragma unroll 1
        for (; tile < end; tile++) {
            bool second = (tile - own.from) % 2 != 0;
            if (!second) {
                wait_for(flights + at.slot.place, at.slot.odd_phase);
                // Without it a lane would miss logits that others copied.
                __syncwarp();
            }
            float z[PER_LANE];
            load_narrow(pair(at.slot) + off + second * TILE, tile, z);
            int lanes;
            float maximum = from_signed_order(maximum_of(z, All(), All(), at.odd, lanes));
            told(sum_of_weights(z, maximum, at.scale.s), maximum);
            if (second || tile + 1 == own.to) {
                at.slot.advance(softmax.slots);
            }
        }
        at.tile = tile;
    }

    // The warp's tiles of a row are weighed.
    DEVICE_MEMBER void tell_weighed(const Weighing& at) const {
        u32 odd = __reduce_or_sync(ALL_LANES, at.odd), place = at.place.place;
        if (lane_id() == 0) {
            // The odd values of all of the warp's tiles stand in the record of the first.
            if (odd != 0) {
                records[place * softmax.share + (own.from - tiles.from)].reserved = odd;
            }
            if (worker == 0) {
                beside.scales[place] = at.scale;
            }
            arrive(&beside.weighed[place]);
        }
    }

    // Writes the warp's tiles of a row, once that is known, and fetches others in their stead.
    DEVICE_MEMBER void write(u32 n, Round& slot, const Round& place, Cursor& next) const {
        Sink<T, Out> sink(softmax, row(n));
        u32 off = this->off(logits(n));
        wait_for(&beside.known[place.place], place.odd_phase);
        const Probabilities probabilities = beside.probabilities[place.place];
        bool odd = own.from < own.to && records[place.place * softmax.share + own.from - tiles.from].reserved != 0;
        // Almost all tiles of almost all rows.
        u32 wide = sink.wide && !odd && !probabilities.is_all_or_nothing() ? wide_end(off) : own.from;
        u32 tile = own.from;
        Out* to = sink.row + tile * TILE;
#pragma unroll 1
        for (; tile < wide; tile += 2) {
            float z[2][PER_LANE];
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                load_wide_as<T, Placed<T, Out>>(pair(slot) + half * TILE, lane_id(), z[half]);
            }
            // Without it a copy would overwrite what a lane has not read yet.
            __syncwarp();
            fetch(next, slot.place);
#pragma unroll
            for (u32 half = 0; half < 2; half++) {
                store_shared<T>(to + half * TILE, lane_id(), probabilities, z[half]);
            }
            to += PAIR;
            slot.advance(softmax.slots);
        }
#pragma unroll 1
        for (; tile < own.to; tile++) {
            bool second = (tile - own.from) % 2 != 0, last = second || tile + 1 == own.to;
            float z[PER_LANE];
            load_narrow(pair(slot) + off + second * TILE, tile, z);
            if (last) {
                // As above.
                __syncwarp();
                fetch(next, slot.place);
            }
            if (odd) {
                clean_share(z, Nothing());
            }
            sink.write(probabilities, tile, false, z);
            if (last) {
                slot.advance(softmax.slots);
            }
        }
    }

    // Tells the other blocks of a row what this one has, and hears of them: first of the first token of each, then of its mass relative
    // to the first of all.
    DEVICE_MEMBER void exchange(u32 n, const Round& place) const {
        u32 lane = lane_id(), size = tiles.to - tiles.from, blocks = softmax.blocks_per_row;
        wait_for(&beside.weighed[place.place], place.odd_phase);
        ToldTiles<4> told(records + place.place * softmax.share, size, lane, 32);
        Scale scale = beside.scales[place.place];
        u32 odd = 0;
        u64 key = told.key(tiles.from, odd);
        key = warp_max(key) | __reduce_or_sync(ALL_LANES, odd);
        key = all_tell(key, beside.keys[place.place], &beside.keys_told[place.place], place.odd_phase);
        key = lane < blocks ? key : 0;
        odd = __reduce_or_sync(ALL_LANES, (u32)key & 0xFFFF);
        Heard whole = heard_of(warp_max(key), odd);
        u64 mass = all_tell(warp_sum(told.mass(whole, scale)), beside.masses[place.place], &beside.masses_told[place.place], place.odd_phase);
        mass = warp_sum(lane < blocks ? mass : 0);
        if (lane == 0) {
            beside.probabilities[place.place].set(whole, scale, mass);
            arrive(&beside.known[place.place]);
            if (softmax.statuses && rank == 0) {
                softmax.statuses[row(n)] = whole.status();
            }
        }
    }

  private:
    // Each block tells all blocks a word; lanes get the word of the block of their number, those beyond any.
    DEVICE_MEMBER u64 all_tell(u64 word, u64* words, Flight* told, u32 odd_phase) const {
        u32 lane = lane_id(), blocks = softmax.blocks_per_row;
        if (blocks == 1) {
            return word;
        }
        if (lane == 0) {
            arrive(told, blocks * sizeof(u64));
        }
        if (lane < blocks) {
            tell_block(lane, words + rank, word, told);
        }
        wait_for(told, odd_phase);
        return words[lane % MOST_BLOCKS];
    }
};

template <class T, class Out>
DEVICE void softmax_on_chip(const Softmax& softmax) {
    __shared__ Beside beside;
    ON_CHIP(room);
    Work<T, Out> work(softmax, beside, room);
    u32 count = work.count;
    if (warp_id() != 0 && lane_id() < softmax.slots) {
        flight_begins(work.flights + lane_id(), 1);
    }
    if (threadIdx.x < MOST_ROWS) {
        flight_begins(&beside.weighed[threadIdx.x], work.workers);
        flight_begins(&beside.keys_told[threadIdx.x], 1);
        flight_begins(&beside.masses_told[threadIdx.x], 1);
        flight_begins(&beside.known[threadIdx.x], 1);
    }
    flights_made();
    // Without it a warp, or another block, would use flights that are not made yet.
    meet_cluster();
    Round heard{0, 0};
    if (warp_id() == 0) {
        // One warp hears of other blocks, so that no other waits for anybody.
        for (u32 n = 0; n < count; n++) {
            work.exchange(n, heard);
            heard.advance(MOST_ROWS);
        }
        return;
    }
    auto next_pair = work.start(0);
    for (u32 slot = 0; slot < softmax.slots; slot++) {
        work.fetch(next_pair, slot);
    }
    // A warp has weighed so many rows besides the one that it writes, and of the next one the tiles before `ahead`.
    u32 pairs = (work.own.to - work.own.from + 1) / 2, rows_ahead = MOST_ROWS - 2, ahead = work.own.from;
    if (softmax.ahead < rows_ahead * pairs) {
        rows_ahead = softmax.ahead / pairs;
        ahead += 2 * (softmax.ahead % pairs);
    }
    auto weighing = work.start_weighing();
    Round slot{0, 0};
    for (u32 n = 0; n < count; n++) {
        work.weigh(weighing, n + 1 + rows_ahead, ahead);
        work.write(n, slot, heard, next_pair);
        heard.advance(MOST_ROWS);
    }
}
