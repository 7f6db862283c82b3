/* Many system calls. Neither entries into the kernel nor returns from it are user branches. */
#include "sys.h"

int run(void)
{
	u64 pid = syscall0(SYS_getpid), same = 0, errors = 0, old = 0;

	for (int i = 0; i < 200; i++) {
		same += (u64)syscall0(SYS_getpid) == pid;
		if (i % 3 == 0)
			errors += syscall3(SYS_write, -1, "", 0) == -9;	/* EBADF */
		if (i % 5 == 0)
			errors += syscall0(9999) == -38;		/* ENOSYS */
		if (i % 7 == 0)
			syscall4(SYS_rt_sigprocmask, 0, 0, &old, 8);
		if (i % 50 == 0)
			print_number("line ", i);
	}
	print_number("same ", same);
	print_number("errors ", errors);
	return old != 0;
}
