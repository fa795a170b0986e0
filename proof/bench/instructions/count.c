// Counts the instructions that a program runs in QEMU, as a plug-in of QEMU, and prints the number to standard error
// when the program ends.
//
// QEMU translates blocks of instructions and runs them; each run of a block adds its length to the count. A program of
// one thread is counted exactly, except for blocks that a signal leaves. The declarations are from version 1 of QEMU's
// interface for plug-ins, which QEMU 5 to 8 have; Debian has no package of its header.

#include <inttypes.h>
#include <stdio.h>

struct qemu_plugin_tb;
struct qemu_info_t;

extern void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*call)(uint64_t id, struct qemu_plugin_tb* block));
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb* block);
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb* block, int operation, void* to,
                                                     uint64_t number);
extern void qemu_plugin_register_atexit_cb(uint64_t id, void (*call)(uint64_t id, void* data), void* data);

/// The operation that adds to a 64-bit number.
enum { ADD_U64 = 0 };

int qemu_plugin_version = 1;

static uint64_t instructions;

static void translated(uint64_t id, struct qemu_plugin_tb* block) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, ADD_U64, &instructions, qemu_plugin_tb_n_insns(block));
}

static void ended(uint64_t id, void* data) {
    (void)id;
    (void)data;
    fprintf(stderr, "instructions %" PRIu64 "\n", instructions);
}

int qemu_plugin_install(uint64_t id, const struct qemu_info_t* info, int argc, char** argv) {
    (void)info;
    (void)argc;
    (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
