// SPDX-License-Identifier: MIT
// A plugin for qemu's user emulators (plugin interface 1). It prints the number of instructions that a program executed.
#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// Debian's packages do not include qemu-plugin.h. The plugin uses only these parts of the header.
typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
                                           void (*cb)(qemu_plugin_id_t id, struct qemu_plugin_tb * tb));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb * tb);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb * tb, enum qemu_plugin_op op, void * p, uint64_t n);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, void (*cb)(qemu_plugin_id_t id, void * data), void * data);
void qemu_plugin_outs(const char * text);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t n_instructions;  // number of instructions of all threads together

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb * tb) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, &n_instructions,
                                             qemu_plugin_tb_n_insns(tb));
}

static void ended(qemu_plugin_id_t id, void * data) {
    (void)id;
    (void)data;
    char text[64];
    snprintf(text, sizeof text, "instructions %" PRIu64 "\n", n_instructions);
    qemu_plugin_outs(text);
}

__attribute__((visibility("default"))) int qemu_plugin_install(qemu_plugin_id_t id, const void * info, int argc,
                                                               char ** argv) {
    (void)info;
    (void)argc;
    (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
