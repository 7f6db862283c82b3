// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A kernel that is not Linux, whose only purpose is to write to the agent's port what no agent
 * writes. It drives the virtio console itself, without interrupts (Virtio 1.2, sections 4.2 and
 * 5.3), so that nothing in the guest checks its frames.
 *
 *	gcc -DATTACK=starts -ffreestanding -nostdlib -static -no-pie -mno-red-zone \
 *		-mgeneral-regs-only -Wl,-Ttext-segment=0x1000000,--build-id=none hostile_agent.c
 *
 * ATTACK is one of the functions below.
 */
#include <stdint.h>

/* vmm/src/layout.rs */
#define VIRTIO_BASE	0xD0000000ul
#define VIRTIO_STRIDE	0x1000ul
#define VIRTIO_DEVICES	10
#define HIGH_RAM_START	(1ul << 32)
#define CONSOLE		3
/* The agent's port is the first one. */
#define TRANSMIT	1
/* The device refuses longer chains than 4 MiB. */
#define PART		(1u << 20)

/* guest-kernel/protocol */
#define MAX_PAYLOAD	(4u << 20)
#define RECORD_SIZE	24u

/* The one long field of a message has room for this. */
#define MAX_TEXT	(MAX_PAYLOAD - 64)

/* The messages of guest-kernel/protocol/src/to_host.rs, in their order. */
enum {
	READY, STARTED, OUTPUT, INPUT_WANT, POSITION, RECORDS, RECORDS_VALID, MAPPED, REUSE, MAPS,
	CODE, BUILD_ID, LOST, TASK_START, TASK_EXEC, TASK_NAME, TASK_SIGNAL, TASK_END,
	TASK_UNTRACED, DRAINED, CRASH, STANDING, STOPPED, DEADLOCK, OUTLIVED, DISCARDED, ENDED,
};

static struct {
	struct { uint64_t address; uint32_t len; uint16_t flags, next; } descriptors[2];
	struct { uint16_t flags, index, ring[2]; } available;
	struct { uint16_t flags, index; struct { uint32_t id, len; } ring[2]; } used;
} queue __attribute__((aligned(4096)));

static volatile uint32_t *device;
/* A frame: its header and its payload. */
static uint8_t frame[8 + MAX_PAYLOAD + 1] __attribute__((aligned(4096)));
static uint32_t length;
/* Branch records, which the frames name by their addresses. */
static uint64_t records[4096][3] __attribute__((aligned(4096)));

static volatile uint32_t *reg(unsigned offset)
{
	return device + offset / 4;
}

static void connect(void)
{
	for (int i = 0; i < VIRTIO_DEVICES; i++) {
		device = (volatile uint32_t *)(VIRTIO_BASE + i * VIRTIO_STRIDE);
		if (*reg(0x008) == CONSOLE)
			break;
	}
	*reg(0x070) = 0;
	*reg(0x070) = 1 | 2;
	/* VIRTIO_F_VERSION_1 and VIRTIO_CONSOLE_F_MULTIPORT. */
	*reg(0x024) = 1;
	*reg(0x020) = 1;
	*reg(0x024) = 0;
	*reg(0x020) = 2;
	*reg(0x070) = 1 | 2 | 8;
	*reg(0x030) = TRANSMIT;
	*reg(0x038) = 2;
	*reg(0x080) = (uint32_t)(uintptr_t)queue.descriptors;
	*reg(0x090) = (uint32_t)(uintptr_t)&queue.available;
	*reg(0x0a0) = (uint32_t)(uintptr_t)&queue.used;
	*reg(0x044) = 1;
	*reg(0x070) = 1 | 2 | 4 | 8;
}

/* Writes a part of the guest's memory to the port, and waits until the host has it. */
static void write_part(const void *bytes, uint32_t len)
{
	queue.descriptors[0].address = (uintptr_t)bytes;
	queue.descriptors[0].len = len;
	queue.available.ring[queue.available.index % 2] = 0;
	__asm__ volatile("" ::: "memory");
	queue.available.index++;
	__asm__ volatile("" ::: "memory");
	*reg(0x050) = TRANSMIT;
	while (*(volatile uint16_t *)&queue.used.index != queue.available.index)
		__asm__ volatile("pause");
}

static void write_port(const uint8_t *bytes, uint32_t len)
{
	while (len) {
		uint32_t part = len < PART ? len : PART;

		write_part(bytes, part);
		bytes += part;
		len -= part;
	}
}

static void put(const void *bytes, uint32_t len)
{
	uint8_t *to = frame + length;

	length += len;
	__asm__ volatile("rep movsb" : "+D"(to), "+S"(bytes), "+c"(len) :: "memory");
}

static void put_byte(uint8_t byte)
{
	frame[length++] = byte;
}

/* A number: seven bits a byte, the low ones first. */
static void put_number(uint64_t value)
{
	for (; value > 0x7F; value >>= 7)
		put_byte(0x80 | (value & 0x7F));
	put_byte(value);
}

/* The same byte many times. */
static void put_many(uint8_t byte, uint32_t len)
{
	uint8_t *to = frame + length;

	length += len;
	__asm__ volatile("rep stosb" : "+D"(to), "+c"(len) : "a"(byte) : "memory");
}

/* A byte string or a text: its length, and the same byte many times. */
static void put_string(uint8_t byte, uint32_t len)
{
	put_number(len);
	put_many(byte, len);
}

static void begin(uint8_t kind)
{
	length = 0;
	put_many(0, 8);
	put_number(kind);
}

static void send(void)
{
	*(uint32_t *)(frame + 4) = length - 8;
	write_port(frame, length);
}

static void start(uint32_t task, uint32_t process, uint64_t time)
{
	begin(TASK_START);
	put_number(task);
	put_number(0);
	put_number(process);
	put_number(0xFFFFFFFF);
	put_number(time);
	send();
}

static void end(uint32_t task, uint64_t time)
{
	begin(TASK_END);
	put_number(task);
	put_number(time);
	/* It exited with status 0. */
	put_number(0);
	put_byte(0);
	send();
}

static void exec(uint32_t task, uint32_t former, uint8_t letter, uint32_t len)
{
	begin(TASK_EXEC);
	put_number(task);
	put_number(former);
	put_number(0);
	put_string(letter, len);
	send();
}

static void drained(uint32_t task, uint64_t time)
{
	begin(DRAINED);
	put_number(task);
	put_number(time);
	send();
}

static void mapped(uint32_t task, uint64_t address, uint64_t len)
{
	uint64_t extent[2] = { address, len };

	begin(MAPPED);
	put_number(task);
	put_number(sizeof extent);
	put(extent, sizeof extent);
	send();
}

static void reuse(uint64_t messages)
{
	begin(REUSE);
	put_number(messages);
	send();
}

/* Mappings of a process, as many as a message has room for, and a record that needs them. */
static void maps(uint32_t process, uint32_t task)
{
	static const char line[] = "1000-2000 r-xp 00000000 00:00 0 /";
	const uint32_t size = sizeof line - 1 + 4000 + 1, lines = MAX_TEXT / size;

	begin(MAPS);
	put_number(process);
	put_number(lines * size);
	for (uint32_t i = 0; i < lines; i++) {
		put(line, sizeof line - 1);
		put_many('a' + process % 26, 4000);
		put("\n", 1);
	}
	send();
	mapped(task, (uintptr_t)records, RECORD_SIZE);
}

static void fill_records(void)
{
	for (int i = 0; i < 4096; i++) {
		records[i][0] = 0x400000 + 16 * i;
		records[i][1] = 0x400008 + 16 * i;
	}
}

/* Frames that no protocol has. */

static inline void reserved_bytes(void)
{
	begin(OUTPUT);
	frame[1] = 1;
	send();
}

static inline void giant_length(void)
{
	begin(OUTPUT);
	*(uint32_t *)(frame + 4) = 0xFFFFFFFF;
	for (;;)
		write_port(frame, sizeof frame);
}

static inline void unknown_kind(void)
{
	begin(0xFF);
	send();
}

static inline void names_beyond_the_frame(void)
{
	begin(DISCARDED);
	put_number(0);
	put_byte(1);
	/* A list of four bytes, which are the length of its first name. */
	put_string(0xFF, 4);
	send();
}

/* Records where there are none. */

static inline void outside_of_memory(void)
{
	start(1, 1, 0);
	mapped(1, HIGH_RAM_START - 8, RECORD_SIZE);
}

static inline void in_a_device(void)
{
	start(1, 1, 0);
	mapped(1, VIRTIO_BASE, RECORD_SIZE);
}

static inline void around_the_address_space(void)
{
	start(1, 1, 0);
	mapped(1, -8ul, RECORD_SIZE);
}

static inline void too_many_records(void)
{
	start(1, 1, 0);
	mapped(1, 0, -(uint64_t)RECORD_SIZE);
}

/* Tasks that are not what they say. */

static inline void never_announced(void)
{
	mapped(9, (uintptr_t)records, RECORD_SIZE);
}

static inline void ended_before(void)
{
	start(1, 1, 0);
	end(1, 1);
	exec(1, 1, 'x', 1);
}

static inline void starts(void)
{
	for (uint32_t task = 1;; task++)
		start(task, task, 0);
}

static inline void starts_and_ends(void)
{
	for (uint32_t task = 1;; task++) {
		start(task, task, 0);
		exec(task, task, 'x', 4096);
		end(task, 0);
	}
}

/* As many tasks as there can be, with the longest names. */
static inline void names(void)
{
	for (uint32_t task = 1; task <= 1 << 16; task++) {
		start(task, task, 0);
		exec(task, task, 'a' + task % 26, 4096);
	}
	for (;;)
		exec(1, 1, 'x', MAX_TEXT);
}

/* What waits for records that never come. */

static inline void untraced_later(void)
{
	start(1, 1, 0);
	for (uint32_t task = 2;; task++) {
		begin(TASK_UNTRACED);
		put_number(task);
		put_number(1);
		put_number(-1ul);
		put_string(0, 0);
		put_string(0, 0);
		send();
	}
}

static inline void events_later(void)
{
	start(1, 1, 0);
	start(2, 2, 0);
	drained(2, -1ul);
	for (;;) {
		begin(LOST);
		put_number(2);
		put_number(1);
		send();
	}
}

static inline void records_later(void)
{
	fill_records();
	start(1, 1, 0);
	start(2, 2, 0);
	drained(2, -1ul);
	for (;;)
		mapped(2, (uintptr_t)records, sizeof records);
}

static inline void mappings(void)
{
	for (uint32_t task = 1; task < 1 << 16; task++) {
		start(task, task, 0);
		maps(task, task);
	}
}

static inline void mappings_without_records(void)
{
	for (uint32_t task = 1; task < 1 << 16; task++) {
		start(task, task, 0);
		begin(MAPS);
		put_number(task);
		put_string('x', MAX_TEXT);
		send();
	}
}

/* Memory that is used again while the host reads it, and before. */
static inline void taken_out_of_order(void)
{
	fill_records();
	start(1, 1, 0);
	reuse(-1ul);
	for (int i = 0; i < 100; i++) {
		mapped(1, (uintptr_t)records, sizeof records);
		/* Without a word to the host: it reads what is there then, or what was. */
		for (int j = 0; j < 4096; j += 512)
			records[j][i % 2] = -1ul;
		reuse(i % 3 ? 0 : -1ul);
	}
	for (int i = 0; i < 2; i++) {
		begin(RECORDS_VALID);
		send();
	}
	end(1, 0);
}

/* Words for the user. */

static inline void crashes(void)
{
	for (uint32_t task = 1;; task++) {
		start(task, task, 0);
		begin(CRASH);
		put_number(task);
		put_number(11);
		put_number(1);
		/* The address, the registers and the instruction. */
		for (int i = 0; i < 1 + 19; i++)
			put_number(-1ul);
		put_string(0xFF, 15);
		send();
		/* Some stay, with what is known of their crashes. */
		if (task > 1000 || task % 2)
			end(task, 0);
	}
}

static inline void standing(void)
{
	start(1, 1, 0);
	for (;;) {
		begin(STANDING);
		put_number(1);
		put_string('7', 1 << 20);
		put_string(0x1B, 1 << 20);
		send();
	}
}

static inline void notes(void)
{
	for (;;) {
		for (int kind = OUTLIVED; kind <= DISCARDED; kind++) {
			const uint32_t len = 1 << 20;

			begin(kind);
			if (kind == OUTLIVED)
				put_byte(1);
			put_number(0xFFFFFFFF);
			if (kind == DISCARDED)
				put_byte(1);
			put_number(3 * (sizeof len + len));
			for (int i = 0; i < 3; i++) {
				put(&len, sizeof len);
				put_many(0x1B, len);
			}
			send();
		}
	}
}

static inline void wants(void)
{
	for (uint32_t fd = 0;; fd++) {
		begin(INPUT_WANT);
		put_number(fd);
		put_number(0xFFFFFFFF);
		put_byte(fd % 2);
		send();
	}
}

static inline void code(void)
{
	start(1, 1, 0);
	for (uint64_t i = 0;; i++) {
		begin(CODE);
		put_number((uint32_t)i);
		put_number(i % 4);
		put_number(i << 22);
		put_string(i, MAX_TEXT);
		send();
	}
}

static inline void build_ids(void)
{
	for (uint64_t i = 0;; i++) {
		begin(BUILD_ID);
		put_number(1 << 20);
		put(&i, sizeof i);
		put_many(i, (1 << 20) - sizeof i);
		put_number((1 << 20) + sizeof i);
		put(&i, sizeof i);
		put_many('x', 1 << 20);
		send();
	}
}

static inline void signals_and_ends(void)
{
	start(1, 1, 0);
	for (uint32_t i = 0;; i++) {
		begin(TASK_SIGNAL);
		put_number(1);
		put_number(-1ul);
		put_number(i);
		send();
		begin(i % 2 ? STOPPED : ENDED);
		send();
	}
}

__attribute__((used)) static void run(void)
{
	connect();
	ATTACK();
	/* The host ends the machine. */
	for (;;)
		*reg(0x050) = TRANSMIT;
}

static uint8_t stack[1 << 16] __attribute__((aligned(16), used));

__asm__(".globl _start\n"
	"_start: cld\n"
	"	lea	stack + 0x10000(%rip), %rsp\n"
	"	call	run\n");
