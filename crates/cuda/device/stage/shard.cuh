// shard.cuh: rows of which each rank has a part, its shard: how a rank reads its shard, and the words that ranks send
// each other about a row.
//
// Tiles and ids of a shard count from the start of the first tile that it has ids of, so the functions that summarise,
// list and race whole rows serve shards too. Of that tile the first `skipped` ids may be another rank's: no thread
// reads them here. A tile that a border cuts has a record on each side, of the ids there. Random numbers belong to a
// token's place in the vocabulary (N8), which ShardStream knows.
//
// Words are stored together with their turn, 64 bits at once, so that the reader sees by the word itself that it has
// come (stage/exchange.cuh). For each row and each rank that sends there are two places, for odd and for even turns. A
// rank that takes turn t + 2 has ended turn t + 1, for which it needed a word or a flag of each rank; so these have
// ended turn t.
#pragma once

#include "math/arrival.cuh"
#include "stage/exchange.cuh"
#include "warp/row.cuh"

// Whether words about shards decide a row: if it has no logprobs, and no filter weighs the whole row. The host knows
// the same of all rows together (src/requests/step_features.rs).
DEVICE bool is_decided(const Params& params) {
    return params.chain >= CHAIN_SHORT_LIST && params.reading > READING_MASS && !(params.features & FEATURE_LOGPROBS);
}

// Where a shard lies in its vocabulary, and which rows of it are surveyed.
struct ShardPlace {
    u32 first_tile;
    u32 skipped;
    // Whether there are rows that words do not decide.
    bool is_mixed;

    // Whether a tile begins with ids that are not here.
    DEVICE_MEMBER bool cuts(u32 tile) const { return tile == 0 && skipped != 0; }
    DEVICE_MEMBER bool surveys(const Step& step, u32, int slot) const {
        return !is_mixed || is_decided(step.params[slot]);
    }
};

DEVICE ShardPlace place_of(const ShardStep& args) {
    return ShardPlace{args.first_tile, args.skipped, args.swap_slots != nullptr};
}

// Names a draw, for tiles and ids that count from the start of a shard.
struct ShardStream : RngStream {
    u32 first_tile;
};

// These are chosen before the templates of math/arrival.cuh.
DEVICE PhiloxWords tile_words(const ShardStream& rng, u32 tile) {
    return tile_words((const RngStream&)rng, rng.first_tile + tile);
}

DEVICE float token_arrival(const ShardStream& rng, const FirstArrival& first, u32 tile, u32 offset) {
    return token_arrival((const RngStream&)rng, first, rng.first_tile + tile, offset);
}

DEVICE void lane_words(const ShardStream& rng, u32 id, u32 id_of_fifth, u32 (&words)[ITEMS_PER_LANE]) {
    const u32 shift = rng.first_tile * TILE;
    lane_words((const RngStream&)rng, shift + id, shift + id_of_fifth, words);
}

// A rank's shard of a row, as it came.
template <class T>
struct ShardRow : LogitsRow<T> {
    typedef LogitsRow<T> Base;
    u32 first_id;
    u32 skipped;

    DEVICE_MEMBER ShardRow(const ShardStep& args, u32 index)
        : Base(args.step, index), first_id(args.first_tile * TILE), skipped(args.skipped) {}

    // Loads a lane's slice of a tile, MASKED_VALUE where ids are not here.
    DEVICE_MEMBER void load(u32 tile, u32 lane, float (&z)[ITEMS_PER_LANE]) const {
        if (tile != 0 || skipped == 0) {
            Base::load(tile, lane, z);
            return;
        }
        note_tile_read(tile * TILE, Base::vocab, lane);
        load_single<T>(Base::logits, 0, skipped, Base::vocab, lane, z);
    }

    // The logit of an id below the shard's end, cleaned.
    DEVICE_MEMBER float logit(u32 id) const { return id >= skipped ? Base::logit(id) : MASKED_VALUE; }
};

// Returns the key or the leader of a shard's token as one of the vocabulary's, whose ids count from its start; 0 stays
// 0.
DEVICE u64 in_vocabulary(const ShardStep& args, u64 of_shard) {
    // The low word is the complement of the id.
    return of_shard != 0 ? of_shard - args.first_tile * TILE : 0;
}

// A row of a turn, about which words are sent.
struct RowWords {
    const ShardStep& args;
    u32 row;
    u32 turn;

    // Returns where a rank's words arrive in the window of a rank.
    DEVICE_MEMBER u64* place(u32 receiver, u32 sender) const {
        const u64 words = args.peers.windows[receiver] + args.words_offset + turn % 2 * args.words_bytes;
        return (u64*)words + ((u64)row * args.peers.world + sender) * SHARD_WORDS;
    }

    DEVICE_MEMBER void send(u32 receiver, u32 index, u32 word) const {
        store_relaxed_system(place(receiver, args.peers.rank) + index, flag_of(turn, word));
    }

    // Waits for a word. Returns false if it does not come.
    DEVICE_MEMBER bool receive(u32 sender, u32 index, u32& word) const {
        const u64* from = place(args.peers.rank, sender) + index;
        u64 arrived;
        bool has_come = wait_for_word(
            args.peers, sender, arrived, [&] { return load_relaxed_system(from); },
            [&](u64 found) { return turn_of(found) == turn; });
        word = (u32)arrived;
        return has_come;
    }
};
