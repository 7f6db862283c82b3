// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A QEMU plugin that does what a Branch Trace Store does: for each taken branch it writes 24 bytes
 * (from, to, flags) into a circular buffer. With "records=FILE", it appends the buffer to that file
 * each time that it is full. When QEMU ends, it appends the number of branches to the file that
 * "out=FILE" names.
 *
 * No package of Debian has qemu-plugin.h. These are its declarations, from the chapter "QEMU TCG
 * Plugins" of QEMU 7.2's manual.
 *
 * The plugin counts a branch when execution continues, after the end of a translated block, at
 * another address than the next. It misses a branch to the next address, and an interrupt in the
 * middle of a block, so the counts are approximate.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef uint64_t qemu_plugin_id_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
					   void (*cb)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *tb, void (*cb)(unsigned, void *),
					  int flags, void *data);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, void (*cb)(qemu_plugin_id_t, void *),
				    void *data);

int qemu_plugin_version = PLUGIN_VERSION;

struct block { uint64_t start, last, end; };
enum { RECORDS = (1 << 16) / 24 };
static struct { uint64_t from, to, flags; } records[RECORDS];
/* For one processor. Several would need one of these each. */
static const struct block nowhere, *before = &nowhere;
static uint64_t taken, at;
static int out = -1, kept = -1;

/* Writes the records so far, if they are kept. */
static void keep(void)
{
	size_t size = at * sizeof(records[0]);

	if (kept >= 0 && write(kept, records, size) != (ssize_t)size) {
		perror("plugin: records");
		_exit(1);
	}
	at = 0;
}

static void executed(unsigned processor, void *data)
{
	const struct block *now = data;

	(void)processor;
	if (before->end != now->start) {
		records[at].from = before->last;
		records[at].to = now->start;
		records[at].flags = 0;
		taken++;
		if (++at == RECORDS)
			keep();
	}
	before = now;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	const struct qemu_plugin_insn *last = qemu_plugin_tb_get_insn(
		tb, qemu_plugin_tb_n_insns(tb) - 1);
	/* Never freed, because translated code has its address. */
	struct block *block = malloc(sizeof(*block));

	(void)id;
	block->start = qemu_plugin_tb_vaddr(tb);
	block->last = qemu_plugin_insn_vaddr(last);
	block->end = block->last + qemu_plugin_insn_size(last);
	qemu_plugin_register_vcpu_tb_exec_cb(tb, executed, 0 /* QEMU_PLUGIN_CB_NO_REGS */, block);
}

static void finished(qemu_plugin_id_t id, void *data)
{
	(void)id, (void)data;
	keep();
	dprintf(out, "%lu\n", taken);
}

int qemu_plugin_install(qemu_plugin_id_t id, const void *info, int argc, char **argv)
{
	(void)info;
	for (int i = 0; i < argc; i++) {
		const char *name = strchr(argv[i], '=');
		int *file = !strncmp(argv[i], "out=", 4) ? &out : &kept;

		if (!name)
			return -1;
		*file = open(name + 1, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
		if (*file < 0)
			return -1;
	}
	if (out < 0)
		return -1;
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_atexit_cb(id, finished, NULL);
	return 0;
}
