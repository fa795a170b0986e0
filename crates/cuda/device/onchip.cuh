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

// Fetches a tile that may begin anywhere, and end.
template <class Element>
DEVICE_APART void fetch_rest(const Element* from, Element* to, u32 size, Flight* flight) {
    constexpr u32 PER_QUAD = 16 / sizeof(Element);
    u32 lane = lane_id(), ahead = (u32)(-(u64)from % 16) / sizeof(Element);
    size = size < TILE ? size : TILE;
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

// A block at work. Its tiles of a row are dealt out to its warps, neighbours to each; a warp has the same of every row. Where they
// come to lie on chip goes round: a tile that is written makes room for the one that is that many tiles later.
template <class T, class Out>
struct Work {
    typedef typename T::Element Element;
    static constexpr u32 PER_QUAD = 16 / sizeof(Element);
    // A tile lies on chip as far from a multiple of 16 bytes as it does in memory.
    static constexpr u32 QUADS = TILE / PER_QUAD + 1;

    const Softmax& softmax;
    Beside& beside;
    // The warp's tiles, and whether they are there; the block's records of the rows under way.
    Quad* chips;
    Flight* flights;
    TileWeights* records;
    u32 workers;
    u32 rank;
    // Of all clusters, and this one; how many rows it has.
    u32 clusters;
    u32 cluster;
    u32 count;
    // Of every row, the block's tiles and the warp's.
    Span tiles;
    Span own;

    // A tile to be fetched.
    struct Cursor {
        const Element* from;
        // Of the warp's tiles of its row, after those that come; of its row, whether they are whole and lie on 16 bytes.
        u32 left;
        u32 plain;
        u32 n;
    };

    // At the warp's first tile of a row; nowhere if there is none.
    DEVICE_MEMBER Cursor start(u32 n) const {
        Cursor cursor{logits(n) + own.from * TILE, own.to - own.from, 0, n};
        cursor.left = n < count ? cursor.left : 0;
        cursor.plain = wide_end(off(logits(n))) == own.to;
        return cursor;
    }

    DEVICE_MEMBER Work(const Softmax& softmax, Beside& beside, Quad* room) : softmax(softmax), beside(beside) {
        workers = warps() - 1;
        chips = room + warp_id() * softmax.slots * QUADS;
        records = (TileWeights*)(room + workers * softmax.slots * QUADS);
        flights = (Flight*)(records + MOST_ROWS * softmax.share) + warp_id() * softmax.slots;
        rank = rank_in_cluster();
        clusters = gridDim.x / softmax.blocks_per_row;
        cluster = blockIdx.x / softmax.blocks_per_row;
        count = (softmax.rows - cluster + clusters - 1) / clusters;
        tiles = Span{0, softmax.tiles}.part(rank, softmax.share);
        own = tiles.part(warp_id(), (softmax.share + workers - 1) / workers);
    }

    DEVICE_MEMBER u32 row(u32 n) const { return cluster + n * clusters; }

    DEVICE_MEMBER const Element* logits(u32 n) const { return (const Element*)softmax.logits + row(n) * softmax.stride; }

    // How many elements after a multiple of 16 bytes the tiles of a row begin.
    static DEVICE_MEMBER u32 off(const Element* row) { return (u32)(u64)row % 16 / sizeof(Element); }

    // Begins to fetch the tile of the cursor, and moves that on: whole quads by one copy, what is left at the ends by lanes.
    DEVICE_MEMBER void fetch(Cursor& cursor, u32 slot) const {
        if (cursor.left == 0) {
            return;
        }
        Quad* to = chips + slot * QUADS;
        if (cursor.plain) {
            if (lane_id() == 0) {
                arrive(flights + slot, TILE * sizeof(Element));
                copy_flies(flights + slot, to, cursor.from, TILE * sizeof(Element));
            }
        } else {
            u32 tile = own.to - cursor.left;
            fetch_rest(cursor.from, (Element*)to + off(cursor.from), softmax.vocab - tile * TILE, flights + slot);
        }
        cursor.from += TILE;
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

    // Up to which of the warp's tiles of a row they are whole and lie on 16 bytes.
    DEVICE_MEMBER u32 wide_end(u32 off) const {
        u32 whole = softmax.vocab / TILE < own.to ? softmax.vocab / TILE : own.to;
        return off == 0 && whole > own.from ? whole : own.from;
    }

    // Weighs the warp's tiles of a row.
    DEVICE_MEMBER void weigh(u32 n, Round& slot, const Round& place, float temperature) const {
        Scale scale(temperature);
        u32 off = this->off(logits(n)), wide = wide_end(off), odd = 0;
        TileWeights *first = records + place.place * softmax.share + (own.from - tiles.from), *to = first;
        auto weigh_one = [&](float(&z)[PER_LANE]) INLINE {
            int lanes, maximum = maximum_of(z, All(), All(), odd, lanes);
            Halves sum = sum_of_weights(z, from_signed_order(maximum), scale.s);
            if (lane_id() == 0) {
                *to = TileWeights{sum.sum(), from_signed_order(maximum), 0};
            }
            to++;
            slot.advance(softmax.slots);
        };
        u32 tile = own.from;
#pragma unroll 1
        for (; tile < wide; tile++) {
            wait_for(flights + slot.place, slot.odd_phase);
            float z[PER_LANE];
            load_wide<T>((const Element*)(chips + slot.place * QUADS), lane_id(), z);
            weigh_one(z);
        }
#pragma unroll 1
        for (; tile < own.to; tile++) {
            wait_for(flights + slot.place, slot.odd_phase);
            // Without it a lane would miss logits that others copied.
            __syncwarp();
            float z[PER_LANE];
            load_narrow((const Element*)(chips + slot.place * QUADS) + off, tile, z);
            weigh_one(z);
        }
        odd = __reduce_or_sync(ALL_LANES, odd);
        if (lane_id() == 0) {
            // The odd values of all of the warp's tiles stand in the record of the first.
            if (odd != 0) {
                first->reserved = odd;
            }
            if (warp_id() == 0) {
                beside.scales[place.place] = scale;
            }
            arrive(&beside.weighed[place.place]);
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
        for (; tile < wide; tile++) {
            float z[PER_LANE], p[PER_LANE];
            load_wide_as<T, Placed<T, Out>>((const Element*)(chips + slot.place * QUADS), lane_id(), z);
            // Without it a copy would overwrite what a lane has not read yet.
            __syncwarp();
            fetch(next, slot.place);
            probabilities.shared(z, p);
            store_wide<T>(to, lane_id(), p);
            to += TILE;
            slot.advance(softmax.slots);
        }
#pragma unroll 1
        for (; tile < own.to; tile++) {
            float z[PER_LANE];
            load_narrow((const Element*)(chips + slot.place * QUADS) + off, tile, z);
            // As above.
            __syncwarp();
            fetch(next, slot.place);
            if (odd) {
                clean_share(z, Nothing());
            }
            sink.write(probabilities, tile, false, z);
            slot.advance(softmax.slots);
        }
    }

    // Tells the other blocks of a row what this one has, and hears of them: first of the first token of each, then of its mass relative
    // to the first of all.
    DEVICE_MEMBER void exchange(u32 n, const Round& place) const {
        u32 lane = lane_id(), size = tiles.to - tiles.from, blocks = softmax.blocks_per_row;
        wait_for(&beside.weighed[place.place], place.odd_phase);
        const TileWeights* own = records + place.place * softmax.share;
        Scale scale = beside.scales[place.place];
        u64 key = 0;
        u32 odd = 0;
        for (u32 i = lane; i < size; i += 32) {
            u64 other = key_of_tile(own[i].maximum, tiles.from + i);
            key = other > key ? other : key;
            odd |= own[i].reserved;
        }
        key = warp_max(key) | __reduce_or_sync(ALL_LANES, odd);
        key = all_tell(key, beside.keys[place.place], &beside.keys_told[place.place], place.odd_phase);
        key = lane < blocks ? key : 0;
        odd = __reduce_or_sync(ALL_LANES, (u32)key & 0xFFFF);
        Heard whole = heard_of(warp_max(key), odd);
        u64 mass = 0;
        for (u32 i = lane; i < size; i += 32) {
            mass += mass_of_tile(own[i], whole, scale);
        }
        mass = all_tell(warp_sum(mass), beside.masses[place.place], &beside.masses_told[place.place], place.odd_phase);
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
    u32 warp = warp_id(), count = work.count;
    if (warp < work.workers && lane_id() < softmax.slots) {
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
    if (warp == work.workers) {
        // One warp hears of other blocks, so that no other waits for anybody.
        for (u32 n = 0; n < count; n++) {
            work.exchange(n, heard);
            heard.advance(MOST_ROWS);
        }
        return;
    }
    auto next_tile = work.start(0);
    for (u32 slot = 0; slot < softmax.slots; slot++) {
        work.fetch(next_tile, slot);
    }
    Round weighed{0, 0}, weighed_slot{0, 0}, written_slot{0, 0};
    float next = temperature_of(softmax, work.row(0));
    for (u32 n = 0; n < count + softmax.lead; n++) {
        if (n < count) {
            float temperature = next;
            // It comes while this one is worked on.
            next = n + 1 < count ? temperature_of(softmax, work.row(n + 1)) : 1.0f;
            work.weigh(n, weighed_slot, weighed, temperature);
            weighed.advance(MOST_ROWS);
        }
        if (n >= softmax.lead) {
            work.write(n - softmax.lead, written_slot, heard, next_tile);
            heard.advance(MOST_ROWS);
        }
    }
}
