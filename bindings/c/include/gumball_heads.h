// Heads: from hidden states to logits. See gumball.h, whose preamble holds here.

#ifndef GUMBALL_HEADS_H
#define GUMBALL_HEADS_H

// Made of the sources in bindings/c/src. Do not edit it: GUMBALL_BLESS=1 cargo test -p gumball-c --test header

#include "gumball.h"

GUMBALL_ENUM(gumball_head_kind) {
    // Gives the tokens and logprobs that follow from all logits, bit for bit. Where that is faster it
    // computes only the logits that could decide a row, which a screen finds: a copy of the weights in 8
    // bits.
    GUMBALL_HEAD_AUTO = 0,
    // The logits of the clusters of ids whose centroids look likeliest, all others being -inf: an
    // approximation.
    GUMBALL_HEAD_CLUSTERED = 1,
};

// Receives how far a build of clusters is: `done` of `of` ids were compared in assignment `iteration`, from
// 0, of at most `iterations`. Returns 0 to go on, another number to stop. `user`: the pointer of the config.
// It is called on a thread of the library, by one at a time.
typedef int32_t (*gumball_cluster_progress)(void *user, size_t iteration, size_t iterations, size_t done, size_t of);

// The weights of a head, what follows their product, and which kind of head computes it, where. Fields of
// another kind or place stay zero.
typedef struct {
    size_t struct_size;
    // A row for each id, 1..=2^20 of them, of as many weights as a hidden state has elements, 1..=2^16,
    // without gaps. The head reads them as long as it lives; they must not be freed or written meanwhile,
    // but weights in a device's memory may be written between steps. A clustered head reads them only while
    // it is made, unless it permutes them.
    gumball_matrix weights;
    // A float for each id that is added to the products, which a head of the host reads as long as it lives;
    // NULL: none.
    const float *bias;
    // The factor of every logit, above 0 and up to 2^16; 0: 1.
    float logit_scale;
    // The bound that a hyperbolic tangent keeps logits below, 2^-64 to 2^16; 0: none.
    float softcap;
    // Which logits it computes; over weights in a device's memory all, and gumball_head_copy brings screens
    // and clusters there.
    gumball_head_kind kind;
    // Over weights in a device's memory, above 0: the tensor cores compute the logits; not of weights in
    // GUMBALL_F32.
    uint32_t fast;
    // The device of weights in its memory; else NULL.
    const gumball_device *device;
    // On a device: how many hidden states a step may have, in 1..2^31; 0: 256. The head has memory for their
    // logits, 4 bytes for each id of each.
    size_t rows;
    // Of the host: the SIMD level, by its name; NULL: the machine's best. The logits are the same.
    const char *level;
    // Of GUMBALL_HEAD_AUTO on the host, above 0: the head has no screen, which saves a byte for each weight
    // and the time to make it; every logit is computed.
    uint64_t no_screen;
    // Of GUMBALL_HEAD_CLUSTERED: how many rows of a call are computed in part at most; in a call that has
    // more, every logit is computed, which is faster then. 0: 16 if more than a sixth of the clusters are
    // probed, else no number.
    size_t most_rows;
    // The path of a file that gumball_head_save, or the command `gumball head build`, wrote of these weights
    // and this bias: its copy is mapped instead of made, so it must not be written as long as the head
    // lives; its clusters are read. Clusters may also be of another program: a safetensors file with the
    // tensors vocab_maps, [clusters, capacity] of I64, I32 or U32 with -1 as padding, and centroids,
    // [clusters, width] of F32, BF16 or F16. NULL: none.
    const char *file;
    // Of GUMBALL_HEAD_CLUSTERED without a file: `clusters` maps of `capacity` ids, each id of the
    // vocabulary once, and UINT32_MAX after the ids of a cluster with fewer, which are copied.
    const uint32_t *vocab_maps;
    // With these: for each cluster as many floats as a hidden state has, finite, which are copied.
    const float *centroids;
    size_t clusters;
    // How many ids a cluster has at most, up to the vocabulary; the last of clusters that are built has the
    // ids that are left. 0 for these: 16.
    size_t capacity;
    // Of GUMBALL_HEAD_CLUSTERED without a file and `vocab_maps`, whose clusters are built: how often all
    // ids are assigned to clusters at most; 0: 10.
    size_t iterations;
    // Receives how far the build is; if it stops the build, the error is GUMBALL_UNAVAILABLE. NULL: no
    // function.
    gumball_cluster_progress progress;
    void *user;
    // Of GUMBALL_HEAD_CLUSTERED: how many clusters a hidden state probes, up to their number; 0: an eighth
    // of them.
    size_t probes;
    // Of GUMBALL_HEAD_CLUSTERED: ids that are always computed, such as ends of text, up to as many as the
    // vocabulary has; they are copied.
    const uint32_t *special_ids;
    size_t special_ids_len;
    // Of GUMBALL_HEAD_CLUSTERED. 0: the head takes a copy of the weights, in the order of its clusters. 1:
    // it permutes the rows where they lie, in memory that may be written and that it then reads as long as
    // it lives; another reader, a tied embedding for instance, must read the row of an id at its place
    // (`places` of gumball_head_info).
    uint64_t is_in_place;
} gumball_head_config;

// The properties of a head, under the names of its config; of a head on a device dtype and kind are 0. The
// lists are the head's; NULL if there are none.
typedef struct {
    size_t struct_size;
    size_t vocab;
    size_t width;
    gumball_dtype dtype;
    gumball_head_kind kind;
    gumball_memory memory;
    // 1 if logits are left out, so that tokens, kept sets and logprobs may be others, as with
    // GUMBALL_HEAD_CLUSTERED.
    uint32_t is_approximate;
    // How many bytes a call that screens rows reads before it reads weights; 0 without a screen.
    size_t screen_bytes;
    // Of GUMBALL_HEAD_CLUSTERED: how many rows of a call are computed in part at most; SIZE_MAX where it
    // does not matter how many there are.
    size_t most_rows;
    // Of a head with a screen: the ids whose logits are always computed, since a weight or the bias is not
    // finite or very large, ascending.
    const uint32_t *unscreened;
    size_t unscreened_len;
    size_t clusters;
    size_t capacity;
    size_t probes;
    // How many bytes of centroids a call reads.
    size_t centroid_bytes;
    // `clusters` maps of `capacity` ids, with UINT32_MAX after the ids of a cluster with fewer.
    const uint32_t *vocab_maps;
    const float *centroids;
    // For each of `vocab` ids the row of the permuted weights that is its own.
    const uint32_t *places;
    const uint32_t *special_ids;
    size_t special_ids_len;
} gumball_head_info;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes a head. GUMBALL_HEAD_AUTO without a file takes a byte for each weight, and the time to read all of
// them, unless `no_screen`; GUMBALL_HEAD_CLUSTERED that builds its clusters the time to compare each row
// with all centroids, up to `iterations` times, over the threads that pools of the process share. Built
// clusters are balanced, and the same on every machine.
//
// Cost: setup.
gumball_head *gumball_head_new(const gumball_head_config *config);

// Copies a head of the host to a device: of the same kind, with the same results unless it is fast. Returns
// when it is there; the head of the host may end then.
//
// `rows`, `fast`: as in gumball_head_config; a clustered head may be fast, one with a screen may not.
// `weights`: the same weights in the device's memory, of the same type and in the order of ids, which a head
// then reads as long as it lives, one with a screen or clusters unchanged; only the data derived from them
// is copied. NULL: all of the head is copied.
//
// Cost: setup.
gumball_head *gumball_head_copy(const gumball_head *head, const gumball_device *device, size_t rows, uint32_t fast, const gumball_matrix *weights);

// Writes what a head has derived from its weights to a file, for `file` in gumball_head_config: its screen,
// or a clustered head's clusters and centroids, with a checksum and the digest of the weights in the order
// of ids, which are not in it. The file appears when it is whole.
//
// `path`: where. `name`: the name of the tensor of weights, which is kept in the file; NULL: lm_head.weight.
//
// Cost: setup.
gumball_code gumball_head_save(const gumball_head *head, const char *path, const char *name);

// Ends a head, on a device when its steps are done; its weights can go then. Graphs that have it must not be
// replayed any more.
//
// Cost: setup.
void gumball_head_free(gumball_head *head);

// Cost: small.
gumball_code gumball_head_describe(const gumball_head *head, gumball_head_info *out);

// Computes all logits of hidden states of the host, whichever kind the head is. `logits`: memory for a float
// for each id and hidden state.
//
// Cost: compute.
gumball_code gumball_head_logits(const gumball_head *head, const gumball_matrix *hidden, float *logits);

// Waits for the device, and writes the rows and logits that a head there has computed for all pools. On the
// host pools count: gumball_pool_counts.
//
// Cost: wait.
gumball_code gumball_head_counts(const gumball_head *head, gumball_counts *out);

// Sets how many clusters a clustered head of the host probes for a hidden state from now on, 1 to their
// number. No other thread may use the head meanwhile.
//
// Cost: small.
gumball_code gumball_head_set_probes(gumball_head *head, size_t probes);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* GUMBALL_HEADS_H */
