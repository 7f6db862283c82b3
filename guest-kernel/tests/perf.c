// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * perf, the other user of the Branch Trace Store: before, during and after a ptrace trace.
 */
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include "bts.h"

#define PAGES 64

/* perf's intel_bts */
static struct perf_event_attr intel_bts(void)
{
	struct perf_event_attr attr = { .exclude_kernel = 1, .disabled = 1 };
	FILE *file = fopen("/sys/bus/event_source/devices/intel_bts/type", "r");
	int type = -1;

	if (file) {
		if (fscanf(file, "%d", &type) != 1)
			type = -1;
		fclose(file);
	}
	attr.type = (unsigned int)type;
	return attr;
}

/* A sample for each branch: perf has its own buffer in the Debug Store area. */
static struct perf_event_attr branches(void)
{
	return (struct perf_event_attr){
		.type = PERF_TYPE_HARDWARE, .config = PERF_COUNT_HW_BRANCH_INSTRUCTIONS,
		.sample_period = 1, .sample_type = PERF_SAMPLE_IP | PERF_SAMPLE_ADDR,
		.exclude_kernel = 1, .exclude_hv = 1, .disabled = 1,
	};
}

/* Linux has drivers for the counters of older processors, which do not use the Debug Store. */
static int no_driver(void)
{
	int older = is_netburst() || !has_feature(" dtes64");

	if (older)
		snprintf(why, WHY_SIZE, "perf does not use this processor's Branch Trace Store");
	return older;
}

/* For processors with an erratum of the counters, the kernel refuses such a short period. */
static int no_branches(void)
{
	struct perf_event_attr attr = branches();
	int fd;

	if (no_driver())
		return 1;
	fd = perf_open(&attr, 0);
	if (fd >= 0)
		close(fd);
	else if (errno == EINVAL)
		snprintf(why, WHY_SIZE, "perf takes no period of 1 on this processor");
	return fd < 0 && errno == EINVAL;
}

static struct perf_event_attr counter(unsigned long long config)
{
	return (struct perf_event_attr){
		.type = PERF_TYPE_HARDWARE, .config = config, .exclude_kernel = 1, .exclude_hv = 1,
	};
}

/* Whether this process is traced itself, which occupies the Branch Trace Store. */
static int is_traced(void)
{
	int traced = proc_number("/proc/self/status", "TracerPid") > 0;

	if (traced)
		snprintf(why, WHY_SIZE, "this process is traced itself");
	return traced;
}

/* perf's driver is off with page-table isolation. */
static int no_intel_bts(void)
{
	if (is_isolated())
		snprintf(why, WHY_SIZE, "perf has no intel_bts with page-table isolation");
	return is_traced() || is_isolated() || no_driver();
}

/* perf and ptrace exclude each other. */
static int excluded(struct perf_event_attr attr)
{
	pid_t pid;
	int fd;

	if (is_traced())
		return 0;
	pid = start(work_none);
	CHECK(pid > 0);
	for (int i = 0; i < 3; i++) {
		fd = perf_open(&attr, 0);
		CHECK(fd >= 0);
		REFUSED(config(pid, 4096, O_TRACE), EBUSY);
		CHECK(flags_of(pid) == 0 && locked() == 0);
		close(fd);
		/* A trace that records no branches does not need the hardware. */
		CHECK(config(pid, 4096, i ? O_SCHED : 0) == 0);
		fd = perf_open(&attr, 0);
		CHECK(fd >= 0);
		REFUSED(config(pid, 4096, O_TRACE), EBUSY);
		CHECK(flags_of(pid) == (i ? O_SCHED : 0) && locked() == 4);
		close(fd);
		/* Before recording starts */
		CHECK(config(pid, 4096, O_TRACE) == 0);
		CHECK(perf_open(&attr, 0) == -1 && errno == EBUSY);
		CHECK(config(pid, 4096, O_SCHED) == 0);
		fd = perf_open(&attr, 0);
		CHECK(fd >= 0);
		close(fd);
		CHECK(config(pid, 0, 0) == 0);
	}
	fd = perf_open(&attr, 0);
	CHECK(fd >= 0);
	close(fd);
	stop(pid);
	return 0;
}

static int test_intel_bts(void)
{
	if (no_intel_bts())
		return 0;
	return excluded(intel_bts());
}

static int test_branches_event(void)
{
	if (no_branches())
		return 0;
	return excluded(branches());
}

/* The last branches with each sample, from the processor's LBR stack */
static struct perf_event_attr last_branches(void)
{
	struct perf_event_attr attr = counter(PERF_COUNT_HW_BRANCH_INSTRUCTIONS);

	attr.sample_period = 1009;
	attr.sample_type = PERF_SAMPLE_BRANCH_STACK;
	attr.branch_sample_type = PERF_SAMPLE_BRANCH_USER | PERF_SAMPLE_BRANCH_ANY;
	attr.disabled = 1;
	return attr;
}

/* The LBR stack has the branches of the loop, and excludes the Branch Trace Store. */
static int test_last_branches(void)
{
	struct perf_event_attr attr = last_branches(), other = intel_bts();
	const size_t size = PAGES * sysconf(_SC_PAGESIZE);
	struct perf_event_mmap_page *page;
	long samples = 0, entries = 0;
	char *data;
	int fd;

	if (no_intel_bts())
		return 0;
	fd = perf_open(&attr, 0);
	if (fd < 0 && errno == EOPNOTSUPP) {
		snprintf(why, WHY_SIZE, "perf has no branch stacks on this processor");
		return 0;
	}
	CHECK(fd >= 0);
	page = mmap(NULL, size + sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(page != MAP_FAILED);
	data = (char *)page + sysconf(_SC_PAGESIZE);
	CHECK(!ioctl(fd, PERF_EVENT_IOC_ENABLE, 0));
	loop_a(20000);
	CHECK(!ioctl(fd, PERF_EVENT_IOC_DISABLE, 0));
	for (uint64_t at = 0; at < page->data_head && at < size;) {
		const struct perf_event_header *header = (void *)(data + at);
		const uint64_t *sample = (void *)(header + 1);

		CHECK(header->size);
		at += header->size;
		if (header->type != PERF_RECORD_SAMPLE)
			continue;
		samples++;
		for (uint64_t i = 0; i < sample[0]; i++)
			entries += sample[1 + 3 * i] == (uintptr_t)loop_a_branch &&
				   sample[2 + 3 * i] == (uintptr_t)loop_a_head;
	}
	if (samples < 10 || entries < 4 * samples)
		FAIL("%ld branches of the loop in %ld samples", entries, samples);
	CHECK(perf_open(&other, 0) == -1 && errno == EBUSY);
	munmap(page, size + sysconf(_SC_PAGESIZE));
	close(fd);
	fd = perf_open(&other, 0);
	CHECK(fd >= 0);
	CHECK(perf_open(&attr, 0) == -1 && errno == EBUSY);
	close(fd);
	return excluded(last_branches());
}

/* A trace that ends by itself also releases the Branch Trace Store. */
static int test_given_back(void)
{
	struct perf_event_attr attr = intel_bts();

	if (no_intel_bts())
		return 0;
	for (int how = 0; how < 3; how++) {
		pid_t pid = start(work_a);
		int status, fd;

		CHECK(pid > 0);
		CHECK(config(pid, 4096, O_TRACE) == 0);
		CHECK(perf_open(&attr, 0) == -1 && errno == EBUSY);
		if (how == 0) {
			stop(pid);
		} else {
			if (how == 1)
				CHECK(!ptrace(PTRACE_DETACH, pid, 0, 0));
			else
				CHECK(next_stop(pid, 0) >> 8 == AT_EXIT &&
				      !ptrace(PTRACE_CONT, pid, 0, 0));
			CHECK(waitpid(pid, &status, __WALL) == pid && WIFEXITED(status));
		}
		fd = perf_open(&attr, 0);
		CHECK(fd >= 0);
		close(fd);
	}
	return 0;
}

/* Fails unless perf can soon open its intel_bts: the kernel releases a trace in the background. */
static int soon_given_back(void)
{
	struct perf_event_attr attr = intel_bts();
	int fd = -1;

	for (int i = 0; i < 100 && fd < 0; i++) {
		fd = perf_open(&attr, 0);
		if (fd < 0)
			usleep(10000);
	}
	CHECK(fd >= 0);
	close(fd);
	return 0;
}

/*
 * A task that sleeps, or never enters the kernel by itself, does not keep the trace of a ptracer
 * that has died.
 */
static void work_pause(void)
{
	pause();
}

static void work_spin(void)
{
	for (;;)
		loop_a(1000);
}

static int tracer_dies(void (*work)(void), unsigned long flags)
{
	int ready[2], status;
	pid_t tracer, pid;

	CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1) && !pipe(ready));
	tracer = fork();
	if (!tracer) {
		pid = start(work);
		ptrace(PTRACE_SETOPTIONS, pid, 0, 0);
		if (pid < 0 || config_virtual(pid, RECORDS(KERNEL_MIN), flags, 1 << 20) ||
		    ptrace(PTRACE_CONT, pid, 0, 0) || write(ready[1], &pid, sizeof(pid)) < 0)
			_exit(1);
		/* Until the tracee sleeps, or records */
		usleep(20000);
		_exit(42);
	}
	CHECK(waitpid(tracer, &status, 0) == tracer && WIFEXITED(status) &&
	      WEXITSTATUS(status) == 42);
	CHECK(read(ready[0], &pid, sizeof(pid)) == sizeof(pid));
	TRY(soon_given_back());
	/* It has survived. */
	CHECK(waitpid(pid, &status, WNOHANG | __WALL) == 0);
	CHECK(!kill(pid, SIGKILL) && waitpid(pid, &status, __WALL) == pid && WIFSIGNALED(status));
	close(ready[0]);
	close(ready[1]);
	return 0;
}

static int test_tracer_dies(void)
{
	if (no_intel_bts())
		return 0;
	for (int i = 0; i < 2; i++) {
		void (*work)(void) = i ? work_spin : work_pause;

		TRY(tracer_dies(work, O_TRACE));
		TRY(tracer_dies(work, O_SCHED));
		TRY(tracer_dies(work, O_TRACE | O_SCHED | O_VIRTUAL));
		TRY(tracer_dies(work, O_TRACE | O_KERNEL | O_VIRTUAL));
	}
	return 0;
}

/* A detach releases the trace at once, also of a task in the middle of a system call. */
static int test_detach_in_call(void)
{
	int status, fds[2];
	pid_t pid;

	if (no_intel_bts())
		return 0;
	CHECK(!pipe(fds));
	pid = fork();
	if (!pid) {
		char c;

		_exit(read(fds[0], &c, 1) != 1);
	}
	usleep(10000);
	TRY(attach(pid));
	CHECK(!ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD));
	CHECK(config(pid, 100 << 10, O_TRACE | O_SCHED) == 0 && locked() == 100);
	CHECK(!ptrace(PTRACE_SYSCALL, pid, 0, 0));
	CHECK(waitpid(pid, &status, __WALL) == pid && status >> 8 == (SIGTRAP | 0x80));
	CHECK(!ptrace(PTRACE_DETACH, pid, 0, 0));
	CHECK(locked() == 0);
	TRY(soon_given_back());
	CHECK(write(fds[1], "", 1) == 1 && waitpid(pid, &status, __WALL) == pid && !status);
	return 0;
}

/* Returns how often perf records, with the branches of the kernel, an entry to [start, end). */
static long entries(uint64_t start, uint64_t end)
{
	struct perf_event_attr attr = intel_bts();
	struct perf_event_mmap_page *page;
	const size_t size = PAGES * sysconf(_SC_PAGESIZE);
	long found = 0;
	uint64_t *aux;
	int fd;

	attr.exclude_kernel = 0;
	fd = perf_open(&attr, 0);
	CHECK(fd >= 0);
	page = mmap(NULL, 2 * sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(page != MAP_FAILED);
	page->aux_offset = 2 * sysconf(_SC_PAGESIZE);
	page->aux_size = size;
	aux = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, page->aux_offset);
	CHECK(aux != MAP_FAILED);
	CHECK(!ioctl(fd, PERF_EVENT_IOC_ENABLE, 0));
	/* Enough for perf's interrupt, at half of the buffer */
	loop_a(size / 24);
	CHECK(!ioctl(fd, PERF_EVENT_IOC_DISABLE, 0));
	for (uint64_t at = 0; at + 24 <= size; at += 24)
		found += aux[at / 8 + 1] >= start && aux[at / 8 + 1] < end;
	munmap(aux, size);
	munmap(page, 2 * sysconf(_SC_PAGESIZE));
	close(fd);
	return found;
}

/* perf's interrupts cost nothing more while there is no trace, nor soon after the last one. */
static int test_no_handler(void)
{
	uint64_t ours[2], nmi[2];
	pid_t pid;

	if (no_intel_bts())
		return 0;
	if (!find_function("bts_nmi", &ours[0], &ours[1]) ||
	    !find_function("nmi_handle", &nmi[0], &nmi[1]))
		FAIL("no bts_nmi or nmi_handle in /proc/kallsyms");
	for (int i = 0; i < 2; i++) {
		long n;

		/* Since the last trace, also that of another test */
		sleep(2);
		n = entries(ours[0], ours[1]);
		if (n)
			FAIL("bts_nmi was called, %ld branches, in round %d", n, i);
		/* Otherwise there was no interrupt. */
		CHECK(entries(nmi[0], nmi[1]) > 0);
		pid = start(work_a);
		CHECK(pid > 0 && config(pid, 4096, O_TRACE | O_SIGNAL) == 0);
		CHECK(next_stop(pid, 0) >> 8 == SIGIO);
		stop(pid);
	}
	return 0;
}

/* Returns the shortest time of a few in which CONFIG frees a trace, in ns. */
static uint64_t time_to_free(pid_t pid)
{
	uint64_t shortest = UINT64_MAX;

	for (int i = 0; i < 4; i++) {
		uint64_t begin, time;

		if (config(pid, 4096, O_TRACE))
			return UINT64_MAX;
		begin = monotonic();
		if (config(pid, 0, 0))
			return UINT64_MAX;
		time = monotonic() - begin;
		shortest = time < shortest ? time : shortest;
	}
	return shortest;
}

/* The ptracer that frees the last trace does not wait until the handler has gone. */
static int test_last_freed(void)
{
	const uint64_t more = 5 * 1000 * 1000;
	pid_t pid = start(work_none), other = start(work_none);
	uint64_t last, not_last;

	if (is_traced())
		return 0;
	CHECK(pid > 0 && other > 0);
	last = time_to_free(pid);
	CHECK(config(other, 4096, O_TRACE) == 0);
	not_last = time_to_free(pid);
	CHECK(not_last < UINT64_MAX);
	if (last > not_last + more)
		FAIL("%" PRIu64 " ns for the last trace, %" PRIu64 " for another one", last,
		     not_last);
	stop(pid);
	stop(other);
	return 0;
}

/* Returns how many branches of loop_a(1000) of this process intel_bts records. */
static long intel_bts_records(void)
{
	struct perf_event_attr attr = intel_bts();
	struct perf_event_mmap_page *page;
	const size_t size = PAGES * sysconf(_SC_PAGESIZE);
	uint64_t *aux;
	long found = 0;
	int fd = perf_open(&attr, 0);

	CHECK(fd >= 0);
	page = mmap(NULL, 2 * sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(page != MAP_FAILED);
	page->aux_offset = 2 * sysconf(_SC_PAGESIZE);
	page->aux_size = size;
	aux = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, page->aux_offset);
	CHECK(aux != MAP_FAILED);
	CHECK(!ioctl(fd, PERF_EVENT_IOC_ENABLE, 0));
	loop_a(1000);
	CHECK(!ioctl(fd, PERF_EVENT_IOC_DISABLE, 0));
	for (uint64_t at = 0; at + 24 <= page->aux_head && at + 24 <= size; at += 24)
		found += aux[at / 8] == (uintptr_t)loop_a_branch &&
			 aux[at / 8 + 1] == (uintptr_t)loop_a_head;
	munmap(aux, size);
	munmap(page, 2 * sysconf(_SC_PAGESIZE));
	close(fd);
	return found;
}

/* Returns how many branches of loop_a(1000) the branches event records, with perf's own buffer. */
static long sampled_branches(void)
{
	struct perf_event_attr attr = branches();
	struct perf_event_mmap_page *page;
	const size_t size = PAGES * sysconf(_SC_PAGESIZE);
	const size_t all = size + sysconf(_SC_PAGESIZE);
	long found = 0;
	char *data;
	int fd = perf_open(&attr, 0);

	CHECK(fd >= 0);
	page = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(page != MAP_FAILED);
	data = (char *)page + sysconf(_SC_PAGESIZE);
	CHECK(!ioctl(fd, PERF_EVENT_IOC_ENABLE, 0));
	loop_a(1000);
	CHECK(!ioctl(fd, PERF_EVENT_IOC_DISABLE, 0));
	for (uint64_t at = 0; at < page->data_head && at + 24 <= size;) {
		const struct perf_event_header *header = (void *)(data + at);
		const uint64_t *sample = (void *)(header + 1);

		CHECK(header->size);
		if (header->type == PERF_RECORD_SAMPLE)
			found += sample[0] == (uintptr_t)loop_a_branch &&
				 sample[1] == (uintptr_t)loop_a_head;
		at += header->size;
	}
	munmap(page, all);
	close(fd);
	return found;
}

/* A trace with several context switches. */
static void work_yield(void)
{
	for (int i = 0; i < 50; i++) {
		loop_a(101);
		usleep(10);
	}
}

static int trace_in_between(unsigned long flags)
{
	static struct record r[8192];
	pid_t pid = start(work_yield);
	long n;

	CHECK(pid > 0);
	CHECK(config(pid, sizeof(r), O_TRACE | flags) == 0);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	n = bts(DRAIN, pid, r, 0);
	CHECK(n > 5000 && n < 8192 && count(r, n, loop_a_branch, loop_a_head) == 5000);
	stop(pid);
	return 0;
}

/* intel_bts records all branches before a trace and after it. */
static int test_intel_bts_records(void)
{
	if (no_intel_bts())
		return 0;
	for (int i = 0; i < 3; i++) {
		long n = intel_bts_records();

		if (n != 999)
			FAIL("%ld of 999 branches in round %d", n, i);
		TRY(trace_in_between(i ? O_SIGNAL : O_SCHED));
	}
	return 0;
}

/*
 * The Debug Store area belongs to perf. While a counter is open, perf keeps the area and its own
 * buffer, so a context switch away from the traced task must restore the fields.
 */
static int test_area_is_restored(void)
{
	struct perf_event_attr cycles = counter(PERF_COUNT_HW_CPU_CYCLES);
	int fd;

	if (is_traced() || no_branches())
		return 0;
	fd = perf_open(&cycles, 0);
	CHECK(fd >= 0);
	for (int i = 0; i < 3; i++) {
		long n = sampled_branches();

		if (n != 999)
			FAIL("%ld of 999 branches in round %d", n, i);
		TRY(trace_in_between(i ? O_SIGNAL : O_SCHED));
	}
	close(fd);
	return 0;
}

/*
 * Counts instructions of this process. Another virtual machine may have counters that do not count.
 */
static int no_counter(void)
{
	struct perf_event_attr attr = counter(PERF_COUNT_HW_INSTRUCTIONS);
	int fd = perf_open(&attr, 0);
	uint64_t value = 0;

	if (fd >= 0) {
		loop_a(10000);
		if (read(fd, &value, sizeof(value)) != sizeof(value))
			value = 0;
		close(fd);
	}
	if (!value)
		snprintf(why, WHY_SIZE, "this processor does not count instructions");
	return !value;
}

/* Returns the count of an event of this process for a call of loop_a(rounds) from here. */
static long counted(unsigned long long config, unsigned long rounds, unsigned long period,
		    long *samples)
{
	struct perf_event_attr attr = counter(config);
	struct perf_event_mmap_page *page;
	const size_t size = PAGES * sysconf(_SC_PAGESIZE);
	uint64_t value;
	int fd;

	attr.disabled = 1;
	attr.sample_period = period;
	attr.sample_type = period ? PERF_SAMPLE_IP : 0;
	fd = perf_open(&attr, 0);
	CHECK(fd >= 0);
	page = mmap(NULL, size + sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(page != MAP_FAILED);
	CHECK(!ioctl(fd, PERF_EVENT_IOC_ENABLE, 0));
	loop_a(rounds);
	CHECK(!ioctl(fd, PERF_EVENT_IOC_DISABLE, 0));
	CHECK(read(fd, &value, sizeof(value)) == sizeof(value));
	*samples = 0;
	for (uint64_t at = 0; at < page->data_head;) {
		const struct perf_event_header *header = (void *)((char *)page +
								  sysconf(_SC_PAGESIZE) + at);

		CHECK(header->size);
		*samples += header->type == PERF_RECORD_SAMPLE;
		at += header->size;
	}
	munmap(page, size + sysconf(_SC_PAGESIZE));
	close(fd);
	return (long)value;
}

/*
 * Counts of instructions and branches are exact, whatever interrupts the program. The code around
 * the loop always counts the same.
 */
static int test_counts(void)
{
	static const struct {
		unsigned long long config;
		long each;
	} events[] = {
		{ PERF_COUNT_HW_INSTRUCTIONS, 2 },
		{ PERF_COUNT_HW_BRANCH_INSTRUCTIONS, 1 },
	};
	/*
	 * The watchdog for hard lockups counts cycles, for which NetBurst has one counter. The file
	 * is read-only without that watchdog.
	 */
	const int watched = !access("/proc/sys/kernel/nmi_watchdog", W_OK);
	long none, cycles;

	if (no_counter())
		return 0;
	if (watched)
		TRY(set_kernel("nmi_watchdog", "0"));
	for (unsigned int i = 0; i < 2; i++) {
		long few = counted(events[i].config, 1000, 0, &none);
		long many = counted(events[i].config, 20001000, 0, &none);

		CHECK(few > 0 && many > 0);
		if (many - few != 20000000 * events[i].each)
			FAIL("event %u: %ld, then %ld", i, few, many);
		if (few - 1000 * events[i].each > 1000)
			FAIL("event %u: %ld in 1000 rounds", i, few);
	}
	/* How many cycles there are depends on the processor. */
	cycles = counted(PERF_COUNT_HW_CPU_CYCLES, 20000000, 0, &none);
	if (watched)
		TRY(set_kernel("nmi_watchdog", "1"));
	if (cycles < 5000000)
		FAIL("hardly any cycles");
	return 0;
}

/* Each overflow is a sample, and their number follows from the count. */
static int test_overflows(void)
{
	const unsigned long period = 400009;
	long n, samples;

	if (no_counter())
		return 0;
	for (int i = 0; i < 2; i++) {
		n = counted(i ? PERF_COUNT_HW_BRANCH_INSTRUCTIONS : PERF_COUNT_HW_INSTRUCTIONS,
			    20000000, period, &samples);
		CHECK(n >= 20000000);
		if (samples != n / (long)period)
			FAIL("%ld samples of %ld events", samples, n);
	}
	return 0;
}

/* Counters do not affect a trace, and a trace does not affect counters. */
static int test_counters_beside(void)
{
	struct perf_event_attr attr = counter(PERF_COUNT_HW_INSTRUCTIONS);
	static struct record r[8192];
	uint64_t alone, traced;
	long n;

	if (no_counter())
		return 0;
	for (int i = 0; i < 2; i++) {
		pid_t pid = start(work_a);
		int fd;

		CHECK(pid > 0);
		fd = perf_open(&attr, pid);
		CHECK(fd >= 0);
		if (i)
			CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL) == 0);
		CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
		CHECK(read(fd, i ? &traced : &alone, sizeof(alone)) == sizeof(alone));
		if (i) {
			n = bts(DRAIN, pid, r, 0);
			CHECK(n > 0 && count(r, n, loop_a_branch, loop_a_head) == 999);
		}
		close(fd);
		stop(pid);
	}
	if (alone < 2000 || traced < alone - alone / 20 || traced > alone + alone / 20)
		FAIL("%" PRIu64 " instructions, %" PRIu64 " with a trace", alone, traced);
	return 0;
}

/* perf and a trace both use performance monitoring interrupts, and each handles its own. */
static int test_sampling_beside(void)
{
	struct perf_event_attr attr = counter(PERF_COUNT_HW_INSTRUCTIONS);
	static struct record r[64];
	struct path path = { 0 }, reference;
	unsigned long stops = 0, samples = 0;
	struct perf_event_mmap_page *page;
	const size_t size = PAGES * sysconf(_SC_PAGESIZE);
	int status, fd;
	pid_t pid;
	long n;

	if (no_counter())
		return 0;
	TRY(path_reference(&reference));
	pid = start(work_maze);
	CHECK(pid > 0);
	attr.sample_period = 1009;
	attr.sample_type = PERF_SAMPLE_IP;
	fd = perf_open(&attr, pid);
	CHECK(fd >= 0);
	page = mmap(NULL, size + sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(page != MAP_FAILED);
	CHECK(config(pid, sizeof(r), O_TRACE | O_SIGNAL) == 0);
	do {
		status = next_stop(pid, 0);
		CHECK(status >> 8 == SIGIO || status >> 8 == AT_EXIT);
		n = bts(DRAIN, pid, r, 0);
		CHECK(n >= 0);
		TRY(path_add(&path, r, n));
		stops++;
	} while (status >> 8 == SIGIO);
	CHECK(!(flags_of(pid) & O_LOST));
	/* Header and address */
	samples = page->data_head / 16;
	if (stops < 100 || samples < 50)
		FAIL("only %lu stops and %lu samples", stops, samples);
	munmap(page, size + sysconf(_SC_PAGESIZE));
	close(fd);
	stop(pid);
	return path_compare(&path, &reference);
}

/* Makes this process one of an ordinary user, which can still be traced by its parent. */
static int become_nobody(void)
{
	CHECK(!setgid(65534) && !setuid(65534) && !prctl(PR_SET_DUMPABLE, 1));
	return 0;
}

/* Runs a test as an ordinary user. */
static int as_nobody(int (*test)(void))
{
	pid_t pid = fork();
	int status;

	if (!pid)
		_exit(become_nobody() || test());
	CHECK(waitpid(pid, &status, 0) == pid);
	return status ? -1 : 0;
}

static int refused_by_policy(void)
{
	struct perf_event_attr attr = counter(PERF_COUNT_HW_INSTRUCTIONS);
	pid_t pid = start(work_none);

	CHECK(pid > 0);
	CHECK(perf_open(&attr, 0) == -1 && errno == EACCES);
	REFUSED(config(pid, 4096, O_TRACE), EACCES);
	REFUSED(config(pid, 4096, O_TRACE | O_SCHED), EACCES);
	CHECK(flags_of(pid) == 0);
	/* Scheduling events are none of perf's. */
	CHECK(config(pid, 4096, O_SCHED) == 0);
	stop(pid);
	return 0;
}

static int allowed_by_policy(void)
{
	pid_t pid = start(work_none);

	CHECK(pid > 0 && config(pid, 4096, O_TRACE) == 0);
	stop(pid);
	return 0;
}

/* perf_event_paranoid can refuse all events to users, and so branches. */
static int test_policy(void)
{
	int strict, usual;
	pid_t pid;

	if (no_counter())
		return 0;
	TRY(set_kernel("perf_event_paranoid", "3"));
	strict = as_nobody(refused_by_policy);
	pid = start(work_none);
	CHECK(pid > 0 && config(pid, 4096, O_TRACE) == 0);
	stop(pid);
	TRY(set_kernel("perf_event_paranoid", "2"));
	usual = strict ? 0 : as_nobody(allowed_by_policy);
	return strict || usual ? -1 : 0;
}

/* Set when perf has got the hardware, in memory that all processes share */
static volatile int *perf_has_it;

static void work_loops(void)
{
	for (;;)
		(*perf_has_it ? loop_b : loop_a)(1000);
}

/* Restarts a tracee for some time. */
static int run_for_a_while(pid_t pid)
{
	int status;

	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	usleep(10000);
	CHECK(!kill(pid, SIGSTOP));
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
	return 0;
}

/* An ordinary user's ptracer. Tells the administrator when to go on, and waits for that. */
static int trace_as_user(int from_root, int to_root)
{
	static struct record r[4096];
	pid_t pid = start(work_loops);
	char byte = 0;
	long n;

	CHECK(pid > 0 && config(pid, sizeof(r), O_TRACE) == 0);
	TRY(run_for_a_while(pid));
	CHECK(!(flags_of(pid) & O_LOST));
	CHECK(!ptrace(PTRACE_CONT, pid, 0, 0));
	CHECK(write(to_root, &byte, 1) == 1 && read(from_root, &byte, 1) == 1);
	/* perf has the hardware. The records remain, and there are no new ones. */
	CHECK(!kill(pid, SIGSTOP) && waitpid(pid, NULL, __WALL) == pid);
	n = bts(DRAIN, pid, r, 0);
	CHECK(count(r, n, loop_a_branch, loop_a_head) > 1000);
	CHECK(count(r, n, loop_b_branch, loop_b_head) == 0);
	TRY(run_for_a_while(pid));
	CHECK(bts(SIZE, pid, NULL, 0) == 0 && flags_of(pid) & O_LOST);
	REFUSED(config(pid, sizeof(r), O_TRACE), EBUSY);
	CHECK(write(to_root, &byte, 1) == 1 && read(from_root, &byte, 1) == 1);
	/* perf has finished. */
	CHECK(config(pid, sizeof(r), O_TRACE) == 0 && bts(CLEAR, pid, NULL, 0) == 0);
	TRY(run_for_a_while(pid));
	n = bts(DRAIN, pid, r, 0);
	CHECK(count(r, n, loop_b_branch, loop_b_head) > 1000);
	CHECK(!(flags_of(pid) & O_LOST));
	stop(pid);
	return 0;
}

/* No user can keep an administrator's perf from the hardware, also while the tracee runs. */
static int test_administrator_first(void)
{
	struct perf_event_attr attr = branches();
	int to_user[2], to_root[2], status, fd = -1;
	pid_t tracer;
	char byte = 0;

	if (is_traced() || no_branches())
		return 0;
	perf_has_it = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(perf_has_it != MAP_FAILED);
	CHECK(!pipe(to_user) && !pipe(to_root));
	tracer = fork();
	if (!tracer)
		_exit(become_nobody() || trace_as_user(to_user[0], to_root[1]));
	close(to_root[1]);
	if (read(to_root[0], &byte, 1) == 1) {
		fd = perf_open(&attr, 0);
		CHECK(fd >= 0);
		*perf_has_it = 1;
		usleep(10000);
		CHECK(write(to_user[1], &byte, 1) == 1);
	}
	if (read(to_root[0], &byte, 1) == 1) {
		close(fd);
		CHECK(write(to_user[1], &byte, 1) == 1);
	}
	CHECK(waitpid(tracer, &status, 0) == tracer);
	return status ? -1 : 0;
}

/* An ordinary user's ptracer, which does not lose the hardware */
static int keep_as_user(int from_root, int to_root)
{
	pid_t pid = start(work_a);
	char byte = 0;

	CHECK(pid > 0 && config(pid, 60 << 10, O_TRACE) == 0);
	CHECK(write(to_root, &byte, 1) == 1 && read(from_root, &byte, 1) == 1);
	CHECK(next_stop(pid, 0) >> 8 == AT_EXIT);
	CHECK(bts(SIZE, pid, NULL, 0) > 999 && !(flags_of(pid) & O_LOST));
	stop(pid);
	return 0;
}

/* Where perf is refused because of an administrator's trace, it takes nothing from users. */
static int test_administrator_traces(void)
{
	struct perf_event_attr attr = branches();
	int to_user[2], to_root[2], status, fd = 0;
	pid_t tracer, pid;
	char byte = 0;

	if (is_traced() || no_branches())
		return 0;
	CHECK(!pipe(to_user) && !pipe(to_root));
	pid = start(work_none);
	CHECK(pid > 0 && config(pid, 4096, O_TRACE) == 0);
	tracer = fork();
	if (!tracer)
		_exit(become_nobody() || keep_as_user(to_user[0], to_root[1]));
	close(to_root[1]);
	if (read(to_root[0], &byte, 1) == 1) {
		fd = perf_open(&attr, 0);
		CHECK(write(to_user[1], &byte, 1) == 1);
	}
	CHECK(waitpid(tracer, &status, 0) == tracer);
	stop(pid);
	if (status)
		return -1;
	CHECK(fd < 0);
	return 0;
}

/* An ordinary user's ptracer that asks for the hardware as often as it can */
static int ask_as_user(int to_root)
{
	pid_t pid = start(work_none);
	char byte = 0;

	CHECK(pid > 0 && config(pid, 4096, O_TRACE) == 0 && write(to_root, &byte, 1) == 1);
	for (;;)
		config(pid, 4096, O_TRACE);
}

/* A ptracer that asks again whenever it has lost the hardware does not get it before perf. */
static int test_administrator_always(void)
{
	struct perf_event_attr attr = branches();
	int to_root[2], refused = 0;
	const int times = 300;
	pid_t tracer;
	char byte;

	if (is_traced() || no_branches())
		return 0;
	CHECK(!pipe(to_root));
	tracer = fork();
	if (!tracer)
		_exit(become_nobody() || ask_as_user(to_root[1]));
	close(to_root[1]);
	CHECK(read(to_root[0], &byte, 1) == 1);
	for (int i = 0; i < times; i++) {
		int fd = perf_open(&attr, 0);

		refused += fd < 0;
		if (fd >= 0)
			close(fd);
		/* So that the ptracer gets the hardware again, at another time in each round */
		usleep(i);
	}
	CHECK(!kill(tracer, SIGKILL) && waitpid(tracer, NULL, 0) == tracer);
	if (refused)
		FAIL("perf was refused %d of %d times", refused, times);
	return 0;
}

const struct test perf_tests[] = {
	{ "intel_bts", test_intel_bts },
	{ "branches_event", test_branches_event },
	{ "last_branches", test_last_branches },
	{ "given_back", test_given_back },
	{ "tracer_dies", test_tracer_dies },
	{ "detach_in_call", test_detach_in_call },
	{ "no_handler", test_no_handler },
	{ "last_freed", test_last_freed },
	{ "intel_bts_records", test_intel_bts_records },
	{ "area_is_restored", test_area_is_restored },
	{ "counts", test_counts },
	{ "overflows", test_overflows },
	{ "counters_beside", test_counters_beside },
	{ "sampling_beside", test_sampling_beside },
	{ "policy", test_policy },
	{ "administrator_first", test_administrator_first },
	{ "administrator_traces", test_administrator_traces },
	{ "administrator_always", test_administrator_always },
	{ 0 },
};
