// SPDX-License-Identifier: Apache-2.0 OR MIT
// A kernel with a table of tasks, each of which writes a letter to the serial port. The name of the
// last one is too long for its member, and overwrites the function that the task is to run.
// Entered by the 64-bit boot protocol of Linux. A fault is the end of the machine: there is no IDT.
#define SERIAL 0x3f8

__asm__(".globl _start\n"
	"_start:	lea stack + 4096(%rip), %rsp\n"
	"	call kernel\n");

char stack[4096];

struct task { char name[8]; void (*run)(struct task *); };
static struct task tasks[4];
static int count;

static void put(char c)
{
	__asm__ volatile("outb %0, %w1" : : "a"(c), "Nd"(SERIAL));
}

static void show(struct task *task)
{
	put(task->name[0]);
}

static void add(const char *name)
{
	struct task *task = &tasks[count++];
	char *to = task->name;

	task->run = show;
	while ((*to++ = *name++))	// guilty
		;
}

void kernel(void)
{
	add("idle");
	add("init");
	add("network worker");
	for (;;)
		for (int n = 0; n < count; n++)
			tasks[n].run(&tasks[n]);
}
