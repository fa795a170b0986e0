// A pool on the program's own stream, over its own memory, in a graph that it captures itself: stream [NAME].
//
// The driver is loaded at run time and its functions are declared here, so that this needs no toolkit. Without a driver
// the test is skipped.

#include <dlfcn.h>

#include "check.h"
#include "rows.h"

enum { VOCAB = 32000, ROWS = 3, STEPS = 4 };

static float rows[ROWS][VOCAB];

static const char *const requests[ROWS] = {
    "{\"seed\": 11}",
    "{\"seed\": 12, \"temperature\": 0.7, \"top_p\": 0.9}",
    "{\"seed\": 13, \"temperature\": 0.7, \"top_k\": 50, \"repetition_penalty\": 1.2, \"logprobs\": {}}",
};

// The driver's functions, by what they do here. Handles are pointers, addresses of the device 64-bit numbers.
#define DRIVER(each) \
    each(init, "cuInit", (unsigned flags)); \
    each(retain, "cuDevicePrimaryCtxRetain", (void **context, int device)); \
    each(set_current, "cuCtxSetCurrent", (void *context)); \
    each(stream_create, "cuStreamCreate", (void **stream, unsigned flags)); \
    each(stream_destroy, "cuStreamDestroy_v2", (void *stream)); \
    each(alloc, "cuMemAlloc_v2", (unsigned long long *address, size_t bytes)); \
    each(release, "cuMemFree_v2", (unsigned long long address)); \
    each(copy_up, "cuMemcpyHtoDAsync_v2", (unsigned long long to, const void *from, size_t bytes, void *stream)); \
    each(copy_down, "cuMemcpyDtoH_v2", (void *to, unsigned long long from, size_t bytes)); \
    each(begin_capture, "cuStreamBeginCapture_v2", (void *stream, int mode)); \
    each(end_capture, "cuStreamEndCapture", (void *stream, void **graph)); \
    each(instantiate, "cuGraphInstantiateWithFlags", (void **runnable, void *graph, unsigned long long flags)); \
    each(launch, "cuGraphLaunch", (void *runnable, void *stream))
#define DECLARED(name, symbol, parameters) int(*name) parameters
#define LOADED(name, symbol, parameters) \
    function = dlsym(library, symbol); \
    CHECK(function != NULL); \
    memcpy(&cu.name, &function, sizeof function)

static struct {
    DRIVER(DECLARED);
} cu;

static int load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *function;
    if (library != NULL) {
        DRIVER(LOADED);
    }
    return library != NULL && cu.init(0) == 0;
}

int main(int count, char **arguments) {
    if (!load()) {
        printf("stream: skipped, there is no CUDA\n");
        return EXIT_SUCCESS;
    }
    void *context = NULL, *stream = NULL, *graph = NULL, *runnable = NULL;
    unsigned long long memory = 0;
    CHECK(cu.retain(&context, 0) == 0 && cu.set_current(context) == 0);
    CHECK(cu.stream_create(&stream, 1) == 0);
    CHECK(cu.alloc(&memory, sizeof rows) == 0);
    for (int i = 0; i < ROWS; i++) {
        model_like(rows[i], VOCAB, (uint64_t)i);
    }
    CHECK(cu.copy_up(memory, rows, sizeof rows, stream) == 0);

    gumball_device *opened = gumball_device_open(count > 1 ? arguments[1] : "cuda");
    gumball_device *device = gumball_device_on_stream(opened, stream);
    gumball_device_free(opened);
    CHECK(device != NULL);
    gumball_pool *host = pool_of(VOCAB, 1), *pool = device_pool_of(device, VOCAB);
    gumball_outputs *wanted = outputs_of(), *seen = outputs_of();
    int32_t slots[ROWS];
    for (int i = 0; i < ROWS; i++) {
        slots[i] = admit(host, requests[i], NULL, 0);
        CHECK(admit(pool, requests[i], NULL, 0) == slots[i]);
    }
    gumball_rows logits = rows_of(rows, GUMBALL_F32, ROWS, VOCAB);
    gumball_rows there = rows_of((const void *)(uintptr_t)memory, GUMBALL_F32, ROWS, VOCAB);
    there.matrix.memory = GUMBALL_DEVICE;
    const gumball_work work = work_of(GUMBALL_WORK_STEP, &there);
    gumball_variant variant = GUMBALL_FULL;

    // In turn with the copy that is on the stream, so nothing waits.
    OK(assign(pool, slots, ROWS));
    OK(gumball_pool_enqueue(pool, &work, 1));
    OK(gumball_pool_fetch(pool, seen));
    OK(take_step(host, &logits, slots, ROWS, wanted));
    CHECK(same_outputs(wanted, seen));

    // Captured by the program, per thread, and launched by it.
    CHECK(cu.begin_capture(stream, 1) == 0);
    OK(gumball_pool_needed_variant(pool, &variant));
    FAILS(gumball_pool_enqueue(pool, &work, 1), GUMBALL_CONFLICT, "work");
    gumball_recorded *recorded = gumball_pool_record(pool, variant, &work, 1);
    const gumball_recorded *replays[] = {recorded};
    CHECK(cu.end_capture(stream, &graph) == 0);
    CHECK(cu.instantiate(&runnable, graph, 0) == 0);
    for (int turn = 0; turn < STEPS; turn++) {
        OK(gumball_pool_before_replay(pool, replays, 1));
        CHECK(cu.launch(runnable, stream) == 0);
        OK(take_step(host, &logits, slots, ROWS, wanted));
    }
    OK(gumball_pool_fetch(pool, seen));
    CHECK(same_outputs(wanted, seen));

    // The tokens lie on the device where they are said to.
    int32_t tokens[ROWS];
    SIZED(gumball_outputs_view, view);
    OK(gumball_pool_outputs(pool, &view));
    CHECK(cu.copy_down(tokens, (unsigned long long)(uintptr_t)view.tokens, sizeof tokens) == 0);
    CHECK(memcmp(tokens, view_of(wanted).tokens, sizeof tokens) == 0);

    gumball_recorded_free(recorded);
    gumball_device_free(device);
    // Frees the pools, which use the stream.
    const int status = verdict("stream");
    return cu.release(memory) == 0 && cu.stream_destroy(stream) == 0 ? status : EXIT_FAILURE;
}
