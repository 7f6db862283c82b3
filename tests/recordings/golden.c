// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A kernel that does what a recording depends on: instructions of each unit, time, timers,
// interrupts, ports and the console. It prints a hash after each part, so that a difference shows
// what it is in. tests/tests/guests/golden.rs says how to build and record it.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

#define SERIAL 0x3F8
#define LAPIC 0xFEE00000UL

static u64 hash = 0xCBF29CE484222325;

static void add(u64 value)
{
	for (int i = 0; i < 8; i++) {
		hash = (hash ^ (value & 0xFF)) * 0x100000001B3;
		value >>= 8;
	}
}

static void out(u16 port, u8 value)
{
	asm volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static u8 in(u16 port)
{
	u8 value;
	asm volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

static void print(const char *text)
{
	while (*text)
		out(SERIAL, *text++);
}

static void part(const char *name)
{
	print(name);
	print(" ");
	for (int shift = 60; shift >= 0; shift -= 4)
		out(SERIAL, "0123456789abcdef"[hash >> shift & 15]);
	print("\n");
}

static u64 tsc(void)
{
	u32 low, high;
	asm volatile("rdtsc" : "=a"(low), "=d"(high));
	return (u64)high << 32 | low;
}

static void cpuid(void)
{
	const u32 leaves[] = {
		0, 1, 2, 4, 6, 7, 0xA, 0xD, 0x15, 0x80000000, 0x80000001, 0x80000008,
	};
	for (unsigned i = 0; i < sizeof leaves / sizeof *leaves; i++) {
		u32 a = leaves[i], b, c = 0, d;
		asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
		add((u64)a << 32 | b);
		add((u64)c << 32 | d);
	}
	part("cpuid");
}

// Flags that the manual leaves undefined are in it, too.
static void integers(void)
{
	u64 x = 88172645463325252, flags;
	u8 counts[] = { 0, 1, 3, 13, 31, 32, 63 };
	for (int i = 0; i < 200000; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		u64 y = x, z = x >> 11;
		asm volatile("shldq %%cl, %2, %0; pushfq; popq %1"
			     : "+r"(y), "=r"(flags) : "r"(z), "c"(counts[i % 7]) : "cc");
		add(y ^ flags);
		asm volatile("imulq %2, %0; pushfq; popq %1"
			     : "+r"(y), "=r"(flags) : "r"(z) : "cc");
		add(y ^ flags);
		z = i % 5 ? z : 0;
		asm volatile("bsfq %2, %0; pushfq; popq %1"
			     : "+r"(y), "=r"(flags) : "r"(z) : "cc");
		add(y ^ flags);
		asm volatile("andw %w2, %w0; rcrw $3, %w0; pushfq; popq %1"
			     : "+r"(y), "=r"(flags) : "r"(x) : "cc");
		add(y ^ flags);
	}
	part("integers");
}

#define X87(code) \
	for (int i = 1; i < 400; i++) { \
		long double x = i * 0.003L, y = 1.0L / i; \
		struct { u64 low, high; } result = { 0, 0 }; \
		u16 status; \
		asm volatile("fldt %2; fldt %3; " code "; fstpt %0; fnstsw %1; fninit" \
			     : "=m"(result), "=a"(status) : "m"(y), "m"(x) : "memory"); \
		add(result.low); \
		add((result.high & 0xFFFF) << 16 | status); \
	}

static void floating(void)
{
	asm volatile("fninit");
	X87("fsin");
	X87("fcos");
	X87("fptan; fstp %%st");
	X87("f2xm1");
	X87("fyl2x");
	X87("fyl2xp1");
	X87("fpatan");
	X87("fdivrp");
	X87("fsqrt");
	for (u32 i = 0; i < 100; i++) {
		float in[4] = { i + 0.5f, i * 7.0f + 1, 1.0f / (i + 3), -3.0f * i }, estimates[8];
		asm volatile("movups %1, %%xmm0; rcpps %%xmm0, %%xmm1; rsqrtps %%xmm0, %%xmm2;"
			     "movups %%xmm1, %0; movups %%xmm2, 16%0"
			     : "=m"(estimates) : "m"(in) : "xmm0", "xmm1", "xmm2");
		for (int j = 0; j < 8; j++)
			add(((u32 *)estimates)[j]);
	}
	part("floating");
}

struct gate {
	u16 low, selector, flags, middle;
	u32 high, reserved;
};
static struct gate idt[256] __attribute__((aligned(16)));
static volatile int interrupts;

void handler(void);
asm(".globl handler\nhandler:\n"
    "incl interrupts(%rip)\n"
    "pushq %rax\n"
    "movl $0xFEE000B0, %eax\n"
    "movl $0, (%rax)\n"
    "popq %rax\n"
    "iretq\n");

static void write_apic(u32 offset, u32 value)
{
	*(volatile u32 *)(LAPIC + offset) = value;
}

// The processor halts until its timer is due, and the time after each interrupt is exact.
static void timers(void)
{
	u16 cs;
	asm("movw %%cs, %0" : "=r"(cs));
	u64 address = (u64)handler;
	idt[0x40] = (struct gate){ address, cs, 0x8E00, address >> 16, address >> 32, 0 };
	struct {
		u16 limit;
		u64 base;
	} __attribute__((packed)) table = { sizeof idt - 1, (u64)idt };
	asm volatile("lidt %0" : : "m"(table));
	out(0x21, 0xFF);
	out(0xA1, 0xFF);
	write_apic(0xF0, 0x1FF);
	write_apic(0x320, 0x40);
	write_apic(0x3E0, 0xB);
	for (int i = 1; i <= 12; i++) {
		u64 before = tsc();
		write_apic(0x380, i * 1000000);
		while (interrupts < i)
			asm volatile("sti; hlt; cli");
		add(tsc() - before);
	}
	part("timers");
}

static void clocks(void)
{
	for (int i = 0; i < 10; i++) {
		out(0x70, i);
		add(in(0x71));
	}
	out(0x43, 0x34);
	out(0x40, 0);
	out(0x40, 0);
	for (int i = 0; i < 50; i++) {
		out(0x43, 0);
		add(in(0x40));
		add(in(0x40));
	}
	add(tsc());
	part("clocks");
}

// Whatever is typed comes at its time.
static void console(void)
{
	print("? ");
	// The receiver has an interrupt, which is masked, and the port is ready to receive.
	out(SERIAL + 1, 1);
	out(SERIAL + 4, 3);
	for (u8 key = 0; key != '\n';) {
		while (!(in(SERIAL + 5) & 1)) {
			write_apic(0x380, 1000000);
			asm volatile("sti; hlt; cli");
		}
		key = in(SERIAL);
		out(SERIAL, key);
		add(key);
		add(tsc());
	}
	part("console");
}

void start(void);
asm(".globl start\nstart:\n"
    "leaq stack_end(%rip), %rsp\n"
    "movq %cr0, %rax\n"
    "andq $~0xC, %rax\n"
    "orq $0x22, %rax\n"
    "movq %rax, %cr0\n"
    "movq %cr4, %rax\n"
    "orq $0x600, %rax\n"
    "movq %rax, %cr4\n"
    "call run\n"
    ".bss\n.balign 16\n.skip 16384\nstack_end:\n.text\n");

void run(void)
{
	print("golden\n");
	cpuid();
	integers();
	floating();
	timers();
	clocks();
	console();
	// The end, with status 7.
	out(0xF4, 7);
	for (;;)
		asm volatile("hlt");
}
