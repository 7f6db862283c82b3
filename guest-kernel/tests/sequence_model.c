// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * What the requests return, and what they change: ptrace_bts(2) as a program.
 */
#include "sequences.h"

#define PAGE		4096ul
#define ALL_FLAGS	(O_TRACE | O_SCHED | O_SIGNAL | O_CUT | O_KERNEL | O_VIRTUAL | O_NSECS | \
			 O_MAPPED | 0xff00ul)
#define STATUS_FLAGS	(O_PAUSED | O_LOST)

static unsigned long pages_of(unsigned long bytes)
{
	return (bytes + PAGE - 1) / PAGE;
}

static unsigned long records_of(unsigned long bytes)
{
	return bytes / sizeof(struct record);
}

static unsigned long virtual_nr_of(const struct config *cfg)
{
	return cfg->flags & O_VIRTUAL ? records_of(cfg->virtual_size) : 0;
}

static unsigned long segments_of(const struct config *cfg)
{
	return cfg->flags & O_MAPPED ? cfg->virtual_size : 0;
}

static unsigned long least(unsigned long flags)
{
	return flags & O_KERNEL ? KERNEL_MIN : 64;
}

/* Records at which a buffer is nearly full */
static long nearly_full(const struct tracee *tracee, unsigned long flags)
{
	return flags & O_KERNEL ? (long)tracee->nr - KERNEL_MIN / 2 : threshold(tracee->nr);
}

bool keeps_buffers(const struct tracee *tracee, const struct config *cfg)
{
	const unsigned long nr = records_of(cfg->size), virtual_nr = virtual_nr_of(cfg);

	if (!tracee->nr || tracee->segments != segments_of(cfg))
		return false;
	if (tracee->nr == nr && tracee->virtual_nr == virtual_nr)
		return true;
	return cfg->flags & O_CUT && nr && tracee->cut_nr == nr &&
	       tracee->virtual_cut_nr == virtual_nr;
}

/* The error of a request that needs other buffers */
static int allocation_error(const struct tracee *tracee, const struct config *cfg)
{
	const struct tracer *tracer = tracee->tracer;
	const unsigned long segments = segments_of(cfg) ? segments_of(cfg) : 1;
	const unsigned long nr = records_of(cfg->size);
	const unsigned long left = tracer->limit - tracer->pages;
	const unsigned long wanted = pages_of(cfg->size) * segments;

	if (cfg->virtual_size >= TOO_LARGE / 2 && cfg->flags & O_VIRTUAL)
		return cfg->flags & O_CUT ? UNKNOWN : ENOMEM;
	if (cfg->flags & O_VIRTUAL && virtual_nr_of(cfg) / 2 < nr)
		return cfg->flags & O_CUT ? UNKNOWN : EINVAL;
	if (!nr)
		return ENOMEM;
	if (cfg->size >= TOO_LARGE / 2 || (!tracer->privileged && wanted > left))
		return cfg->flags & O_CUT ? UNKNOWN : ENOMEM;
	if (cfg->flags & (O_SIGNAL | O_VIRTUAL) && nr < least(cfg->flags))
		return EINVAL;
	return 0;
}

static int kept_error(const struct tracee *tracee, unsigned long flags)
{
	if (!(flags & (O_SIGNAL | O_VIRTUAL)))
		return 0;
	if (tracee->nr < least(flags))
		return EINVAL;
	if (flags & O_SIGNAL && tracee->virtual_nr)
		return tracee->records ? UNKNOWN : 0;
	if (flags & O_SIGNAL && tracee->records >= nearly_full(tracee, flags))
		return EBUSY;
	return 0;
}

int config_error(const struct tracee *tracee, const struct config *cfg, unsigned long size)
{
	const unsigned long flags = cfg->flags & ~STATUS_FLAGS;
	const unsigned long signr = flags >> 8 & 0xff;

	if (size && size < CONFIG_SIZE)
		return EINVAL;
	if (flags & ~ALL_FLAGS)
		return EINVAL;
	if (flags & O_KERNEL && !tracee->tracer->privileged)
		return EPERM;
	if (flags & O_MAPPED) {
		if (flags & (O_KERNEL | O_VIRTUAL) || !(flags & O_SIGNAL) ||
		    cfg->virtual_size < 2 || cfg->virtual_size > 1024)
			return EINVAL;
		if (!tracee->tracer->privileged)
			return EPERM;
	}
	if (signr && !(flags & O_SIGNAL))
		return EINVAL;
	if (signr > 64 || signr == SIGKILL || signr == SIGSTOP)
		return EINVAL;
	if (!cfg->size)
		return flags & ~O_CUT ? EINVAL : 0;
	if (flags & O_VIRTUAL && cfg->virtual_size < sizeof(struct record))
		return EINVAL;
	if (keeps_buffers(tracee, cfg))
		return kept_error(tracee, flags);
	return allocation_error(tracee, cfg);
}

int take_error(const struct tracee *tracee, unsigned long back, bool running)
{
	if (!tracee->nr)
		return ENXIO;
	if (running && !(tracee->flags & (O_TRACE | O_KERNEL | O_SCHED)))
		return EINVAL;
	if (!tracee->segments || back > tracee->taken)
		return EINVAL;
	if (tracee->records && tracee->taken - back + 1 >= tracee->segments)
		return ENOBUFS;
	return 0;
}

int drain_running_error(const struct tracee *tracee)
{
	if (!tracee->nr)
		return ENXIO;
	if (!(tracee->flags & (O_TRACE | O_KERNEL | O_SCHED)) ||
	    !(tracee->flags & (O_SIGNAL | O_VIRTUAL)))
		return EINVAL;
	return 0;
}

void unmap_segments(struct tracee *tracee)
{
	if (!tracee->map)
		return;
	munmap((void *)tracee->map, tracee->map_pages * PAGE);
	/* Those of the trace are counted there. */
	if (tracee->map_pages != tracee->buffer_pages)
		tracee->tracer->pages -= tracee->map_pages;
	tracee->map = NULL;
}

void forget_trace(struct tracee *tracee)
{
	tracee->tracer->pages -= tracee->buffer_pages + tracee->reserve_pages;
	/* Segments that are mapped remain locked. */
	if (tracee->map)
		tracee->tracer->pages += tracee->map_pages;
	*tracee = (struct tracee){ .tracer = tracee->tracer,
				   .pid = tracee->pid,
				   .map = tracee->map,
				   .map_pages = tracee->map_pages,
				   .exact = true };
	unmap_segments(tracee);
}

/* If CONFIG has moved records to the virtual buffer, the newest ones replace the oldest ones. */
static int learn_move(struct tracee *tracee)
{
	const long n = bts(SIZE, tracee->pid, NULL, 0), room = tracee->virtual_nr;

	if (n == tracee->records)
		return 0;
	if (tracee->records <= room || n != room)
		FAIL("CONFIG leaves %ld records of %ld in a buffer for %ld", n, tracee->records,
		     room);
	tracee->records = n;
	tracee->exact = false;
	return 0;
}

int apply_config(struct tracee *tracee, const struct config *cfg)
{
	const unsigned long flags = cfg->flags & ~(STATUS_FLAGS | O_CUT);
	struct config now;

	if (!cfg->size) {
		forget_trace(tracee);
		return 0;
	}
	if (!keeps_buffers(tracee, cfg)) {
		forget_trace(tracee);
		CHECK(bts(STATUS, tracee->pid, &now, sizeof(now)) == sizeof(now));
		tracee->nr = records_of(now.size);
		tracee->segments = segments_of(cfg);
		tracee->virtual_nr = flags & O_VIRTUAL ? records_of(now.virtual_size) : 0;
		if (cfg->flags & O_CUT) {
			tracee->cut_nr = records_of(cfg->size);
			tracee->virtual_cut_nr = virtual_nr_of(cfg);
		} else {
			CHECK(tracee->nr == records_of(cfg->size));
			CHECK(tracee->virtual_nr == virtual_nr_of(cfg));
		}
		if (tracee->nr > records_of(cfg->size) || !tracee->nr)
			FAIL("CONFIG of %lu bytes makes %lu", cfg->size, now.size);
		tracee->buffer_pages = pages_of(RECORDS(tracee->nr)) *
				       (tracee->segments ? tracee->segments : 1);
		tracee->tracer->pages += tracee->buffer_pages;
	} else if (flags & O_KERNEL && flags & O_VIRTUAL && !(flags & O_SIGNAL)) {
		TRY(learn_move(tracee));
	}
	tracee->tracer->pages -= tracee->reserve_pages;
	tracee->reserve_pages = 0;
	/* Pages for the records of the kernel: the interface does not say how many. */
	if (flags & O_KERNEL && flags & O_VIRTUAL) {
		tracee->reserve_pages = locked() / 4 - tracee->tracer->pages;
		if (!tracee->reserve_pages || tracee->reserve_pages > 2 * tracee->nr / 170 + 2)
			FAIL("%lu pages for records of the kernel", tracee->reserve_pages);
	}
	tracee->tracer->pages += tracee->reserve_pages;
	if (flags & O_KERNEL)
		tracee->spilled = true;
	tracee->flags = flags;
	tracee->paused = false;
	return 0;
}

int check_state(const struct tracee *tracee)
{
	const unsigned long flags = tracee->flags | (tracee->paused ? O_PAUSED : 0) |
				    (tracee->lost ? O_LOST : 0);
	const unsigned long third = tracee->segments ? tracee->segments :
						       RECORDS(tracee->virtual_nr);
	struct config now = { 0 };
	long n;

	CHECK(bts(STATUS, tracee->pid, &now, sizeof(now)) == sizeof(now));
	if (now.size != RECORDS(tracee->nr) || now.flags != flags || now.virtual_size != third)
		FAIL("STATUS is %#lx, %#lx, %#lx instead of %#lx, %#lx, %#lx", now.size, now.flags,
		     now.virtual_size, RECORDS(tracee->nr), flags, third);
	n = bts(SIZE, tracee->pid, NULL, 0);
	if (tracee->nr ? n != tracee->records : n != -1 || errno != ENXIO)
		FAIL("SIZE is %ld instead of %ld", n, tracee->records);
	if (locked() != (long)(tracee->tracer->pages * PAGE / 1024))
		FAIL("%ld KiB are locked instead of %lu", locked(),
		     tracee->tracer->pages * PAGE / 1024);
	return 0;
}

int learn_state(struct tracee *tracee)
{
	const unsigned long flags = flags_of(tracee->pid);
	const bool wraps = !(tracee->flags & (O_SIGNAL | O_VIRTUAL));

	if (!tracee->nr)
		return check_state(tracee);
	tracee->paused = flags & O_PAUSED;
	tracee->lost = flags & O_LOST;
	tracee->records = bts(SIZE, tracee->pid, NULL, 0);
	if (tracee->paused && !(tracee->flags & O_SIGNAL))
		FAIL("a trace without O_SIGNAL has paused");
	/* Pages for the records of the kernel are there beside both buffers. */
	if (!tracee->spilled &&
	    tracee->records > (long)(tracee->nr + tracee->virtual_nr))
		FAIL("%ld records in buffers for %lu and %lu", tracee->records, tracee->nr,
		     tracee->virtual_nr);
	/* The oldest records may have been overwritten. */
	if (tracee->lost || (wraps && tracee->records == (long)tracee->nr) ||
	    (tracee->virtual_nr && !(tracee->flags & O_SIGNAL) &&
	     tracee->records > (long)(tracee->virtual_nr - tracee->nr)))
		tracee->exact = false;
	return check_state(tracee);
}
