// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Requests whose memory a user of userfaultfd(2) controls: the kernel reads and writes it without
 * a lock that others need, and waits as long as the user likes.
 */
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include "bts.h"

#define PAGE	4096ul
#define PAGES	64ul

/* Pages that are there only when serve() has put them there */
static char *area;
static int fault_fd;
/* Called once, while the request waits for its first page. Returns 0, or -1 with a reason. */
static int (*at_fault)(void);
static int at_fault_failed;
static unsigned long served;

static int to_tracee[2], to_tracer[2];
static pid_t tracee;
/* Set by the tracee, in memory that it shares with the test */
static volatile int *arrived;

/* Returns 0 with a reason in `why` if this kernel has no userfaultfd. */
static int make_area(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .mode = UFFDIO_REGISTER_MODE_MISSING };

	fault_fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fault_fd < 0 && errno == ENOSYS) {
		snprintf(why, WHY_SIZE, "this kernel has no userfaultfd");
		return 0;
	}
	CHECK(fault_fd >= 0 && !ioctl(fault_fd, UFFDIO_API, &api));
	area = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(area != MAP_FAILED);
	range.range.start = (uintptr_t)area;
	range.range.len = PAGES * PAGE;
	CHECK(!ioctl(fault_fd, UFFDIO_REGISTER, &range));
	return 0;
}

/* Removes the pages. Then they are missing again. */
static int empty_area(int (*check)(void))
{
	served = 0;
	at_fault = check;
	CHECK(!madvise(area, PAGES * PAGE, MADV_DONTNEED));
	return 0;
}

/* A thread: gives the request one page after the other. */
static void *serve(void *argument)
{
	struct pollfd wait = { .fd = fault_fd, .events = POLLIN };
	struct uffd_msg message;
	struct uffdio_zeropage zero;

	for (;;) {
		if (poll(&wait, 1, -1) != 1)
			return argument;
		if (read(fault_fd, &message, sizeof(message)) != sizeof(message))
			continue;
		if (at_fault && at_fault())
			at_fault_failed = 1;
		at_fault = NULL;
		served++;
		zero = (struct uffdio_zeropage){
			.range = { message.arg.pagefault.address & -PAGE, PAGE },
		};
		ioctl(fault_fd, UFFDIO_ZEROPAGE, &zero);
	}
}

static int start_serving(void)
{
	pthread_t thread;

	CHECK(!pthread_create(&thread, NULL, serve, NULL));
	return 0;
}

/* Another tracer, with its own tracee */
static int other_traces(void)
{
	static struct record r[4096];
	pid_t pid = start(work_a);
	long n;

	CHECK(pid > 0 && config(pid, sizeof(r), O_TRACE) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 0 && count(r, n, loop_a_branch, loop_a_head) == 999);
	CHECK(config(pid, 0, 0) == 0);
	stop(pid);
	return 0;
}

/* Other tracers can use the hardware while a request waits. */
static int others_work(void)
{
	int status = 0;
	pid_t pid = fork();

	if (!pid) {
		alarm(20);
		_exit(other_traces() ? 1 : 0);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
	if (WIFSIGNALED(status))
		FAIL("another tracer waits for a request that waits for a page");
	return status ? -1 : 0;
}

static int test_drain(void)
{
	static const unsigned long flags[] = { 0, O_VIRTUAL };
	const unsigned long room = PAGES * PAGE / sizeof(struct record);
	struct path reference;

	TRY(make_area());
	if (*why)
		return 0;
	maze_steps = 2000;
	TRY(path_reference(&reference));
	TRY(start_serving());
	for (unsigned int i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
		struct path path = { 0 };
		pid_t pid = start(work_maze);
		long n;

		CHECK(pid > 0);
		CHECK(config_virtual(pid, RECORDS(flags[i] ? 170 : room), O_TRACE | flags[i],
				     1 << 20) == 0);
		CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
		TRY(empty_area(others_work));
		n = bts(DRAIN, pid, area, room);
		if (at_fault_failed)
			return -1;
		CHECK(n > 0 && !at_fault);
		if (served != (RECORDS(n) + PAGE - 1) / PAGE)
			FAIL("%lu pages for %ld records", served, n);
		TRY(path_add(&path, (struct record *)area, n));
		TRY(path_compare(&path, &reference));
		stop(pid);
		free(path.r);
	}
	return 0;
}

static void work_wait(void)
{
	char turn = 0;

	loop_a(1000);
	if (write(to_tracer[1], &turn, 1) != 1 || read(to_tracee[0], &turn, 1) != 1)
		_exit(1);
	*arrived = 1;
	loop_b(1000);
}

/* What a tracee that waits shares with the test */
static int make_shared(void)
{
	arrived = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(arrived != MAP_FAILED && !pipe(to_tracee) && !pipe(to_tracer));
	return 0;
}

/*
 * Starts a tracee with these options of ptrace, which records loop_a() and then waits in a system
 * call.
 */
static int start_waiting(unsigned long flags, long options)
{
	char turn;

	tracee = start(work_wait);
	CHECK(tracee > 0 && !ptrace(PTRACE_SETOPTIONS, tracee, 0, options));
	CHECK(config(tracee, RECORDS(4096), O_TRACE | O_SIGNAL | flags) == 0);
	CHECK(!ptrace(PTRACE_CONT, tracee, 0, 0));
	CHECK(read(to_tracer[0], &turn, 1) == 1);
	/* So that it blocks. */
	usleep(10000);
	return 0;
}

static int wake_tracee(void)
{
	char turn = 0;

	CHECK(write(to_tracee[1], &turn, 1) == 1);
	usleep(10000);
	return 0;
}

/* The tracee waits, too, because its records are being taken. */
static int waits_with_us(void)
{
	TRY(wake_tracee());
	if (*arrived)
		FAIL("the tracee runs unrecorded while its records are taken");
	return others_work();
}

static int test_drain_running(void)
{
	static struct record r[4096];
	int status;
	long n;

	TRY(make_area());
	if (*why)
		return 0;
	TRY(start_serving());
	TRY(make_shared());
	TRY(start_waiting(O_SCHED, PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL));
	TRY(empty_area(waits_with_us));
	n = bts(DRAIN_RUNNING, tracee, area, PAGES * PAGE / sizeof(struct record));
	if (at_fault_failed)
		return -1;
	CHECK(n > 0 && served > 1);
	CHECK(count((struct record *)area, n, loop_a_branch, loop_a_head) == 999);
	CHECK(waitpid(tracee, &status, __WALL) == tracee && status >> 8 == AT_EXIT);
	CHECK(*arrived && !(flags_of(tracee) & O_LOST));
	memcpy(r, area, RECORDS(n));
	n += bts(DRAIN, tracee, r + n, 0);
	CHECK(count(r, n, loop_b_branch, loop_b_head) == 999);
	TRY(check_sched(r, n, "waiting", 3));
	stop(tracee);
	return 0;
}

static int kill_it(void)
{
	siginfo_t info = { 0 };

	TRY(wake_tracee());
	CHECK(!kill(tracee, SIGKILL));
	for (int i = 0; i < 100 && !info.si_pid; i++) {
		usleep(10000);
		CHECK(!waitid(P_PID, tracee, &info, WEXITED | WNOWAIT | WNOHANG | __WALL));
	}
	if (!info.si_pid)
		FAIL("the tracee cannot be killed while its records are taken");
	return 0;
}

/* The trace stays until the request has ended, although the tracee has ended meanwhile. */
static int test_tracee_killed(void)
{
	long n;

	TRY(make_area());
	if (*why)
		return 0;
	TRY(start_serving());
	TRY(make_shared());
	/* Without an exit stop, in which it would wait for us */
	TRY(start_waiting(0, PTRACE_O_EXITKILL));
	TRY(empty_area(kill_it));
	n = bts(DRAIN_RUNNING, tracee, area, PAGES * PAGE / sizeof(struct record));
	if (at_fault_failed)
		return -1;
	CHECK(n > 0);
	CHECK(count((struct record *)area, n, loop_a_branch, loop_a_head) == 999);
	CHECK(waitpid(tracee, NULL, __WALL) == tracee);
	CHECK(locked() == 0);
	return 0;
}

/* What the parent of a tracer needs to know */
struct waiting {
	pid_t tracee;
	int fault_fd;
};

/* A tracer whose request never gets a page */
static int wait_for_ever(int request, int to_parent)
{
	struct waiting waiting;

	TRY(make_area());
	TRY(start_waiting(0, 0));
	if (request == DRAIN)
		CHECK(!kill(tracee, SIGSTOP) && waitpid(tracee, NULL, __WALL) == tracee);
	waiting = (struct waiting){ tracee, fault_fd };
	CHECK(write(to_parent, &waiting, sizeof(waiting)) == sizeof(waiting));
	bts(request, tracee, area, PAGES * PAGE / sizeof(struct record));
	FAIL("request %d ended without a page (errno %d)", request, errno);
}

/* Waits until a process waits for a page. */
static int await_fault(pid_t pid, int its_fault_fd)
{
	struct pollfd wait = { .events = POLLIN };
	int pidfd = syscall(SYS_pidfd_open, pid, 0);

	CHECK(pidfd >= 0);
	wait.fd = syscall(SYS_pidfd_getfd, pidfd, its_fault_fd, 0);
	CHECK(wait.fd >= 0 && poll(&wait, 1, 20000) == 1 && wait.revents == POLLIN);
	close(wait.fd);
	close(pidfd);
	return 0;
}

/* The tracer can be killed while it waits, and its tracee then goes on without a trace. */
static int tracer_killed(int request)
{
	struct waiting waiting;
	int to_us[2], status;
	pid_t tracer;

	CHECK(!pipe(to_us));
	TRY(make_shared());
	tracer = fork();
	if (!tracer)
		_exit(wait_for_ever(request, to_us[1]) ? 1 : 0);
	close(to_us[1]);
	if (read(to_us[0], &waiting, sizeof(waiting)) != sizeof(waiting))
		return -1;
	TRY(await_fault(tracer, waiting.fault_fd));
	CHECK(!kill(tracer, SIGKILL));
	CHECK(waitpid(tracer, &status, 0) == tracer && WIFSIGNALED(status));
	CHECK(!kill(waiting.tracee, SIGCONT));
	TRY(wake_tracee());
	CHECK(waitpid(waiting.tracee, &status, __WALL) == waiting.tracee);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0 && *arrived);
	close(to_us[0]);
	return others_work();
}

static int test_tracer_killed(void)
{
	TRY(make_area());
	if (*why)
		return 0;
	CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
	TRY(tracer_killed(DRAIN));
	return tracer_killed(DRAIN_RUNNING);
}

/* Requests that read or write a structure in a page that is missing */
static int test_structures(void)
{
	struct config *cfg;
	struct record *one;
	uint64_t *offset;
	pid_t pid;
	long n;

	TRY(make_area());
	if (*why)
		return 0;
	TRY(start_serving());
	cfg = (void *)area;
	one = (void *)area;
	offset = (void *)area;
	pid = start(work_a);
	CHECK(pid > 0);
	/* A page of zeros: no trace */
	CHECK(config(pid, 4096, O_TRACE) == 0);
	TRY(empty_area(others_work));
	CHECK(bts(CONFIG, pid, cfg, 0) == 0 && served == 1 && flags_of(pid) == 0);
	CHECK(config_virtual(pid, RECORDS(300), O_TRACE | O_SIGNAL | O_MAPPED, 3) == 0);
	TRY(empty_area(others_work));
	CHECK(bts(STATUS, pid, cfg, sizeof(*cfg)) == sizeof(*cfg) && served == 1);
	CHECK(cfg->size == RECORDS(300) && cfg->virtual_size == 3);
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	TRY(empty_area(others_work));
	CHECK(bts(GET, pid, one, 0) == sizeof(*one) && served == 1 && one->qualifier == BRANCH);
	TRY(empty_area(others_work));
	n = bts(TAKE, pid, offset, 0);
	CHECK(n > 0 && n <= 300 && served == 1 && *offset == 0);
	CHECK(next_stop(pid, 0) >> 8 == SIGIO);
	TRY(empty_area(others_work));
	do
		n = bts(TAKE_RUNNING, pid, offset, 1);
	while (n < 0 && errno == EAGAIN);
	CHECK(n > 0 && n <= 300 && served == 1 && *offset == 8192);
	stop(pid);
	return at_fault_failed ? -1 : 0;
}

const struct test userfault_tests[] = {
	{ "drain", test_drain },
	{ "drain_running", test_drain_running },
	{ "tracee_killed", test_tracee_killed },
	{ "tracer_killed", test_tracer_killed },
	{ "structures", test_structures },
	{ 0 },
};
