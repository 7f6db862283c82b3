/*
 * System calls and page faults that take many branches in the kernel, with few user branches
 * between them.
 */
#include "sys.h"

enum { SYS_read = 0, SYS_open = 2, SYS_close = 3, SYS_munmap = 11, SYS_getrandom = 318 };

static u8 buffer[64 << 10];

int run(void)
{
	u64 bytes = 0, read = 0, faults = 0;

	for (int i = 0; i < 3; i++)
		bytes += syscall3(SYS_getrandom, buffer, sizeof(buffer), 0);
	for (int i = 0; i < 5; i++) {
		long fd = syscall3(SYS_open, "/proc/self/maps", 0, 0), n;

		while ((n = syscall3(SYS_read, fd, buffer, 100)) > 0)
			read += n;
		syscall2(SYS_close, fd, 0);
	}
	for (int i = 0; i < 5; i++) {
		u8 *p = (u8 *)syscall6(SYS_mmap, 0, 1 << 20, 3, 0x22, -1, 0);

		for (u64 at = 0; at < 1 << 20; at += 4096)
			faults += ++p[at];
		syscall2(SYS_munmap, p, 1 << 20);
	}
	print_number("bytes ", bytes);
	print_number("faults ", faults);
	return read < 500;
}
