// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Runs tests of tools/testing/selftests, which `vbts test --kselftest` has built and installed on
 * the host. They see the host's root, below a layer that takes what they write.
 *
 * The result of a test is its exit status: 0, 4 for "skipped", anything else for "failed".
 */
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include "bts.h"

#define SKIPPED		4
/* Length of a line of output that is kept. The rest is cut off. */
#define LINE_SIZE	800
/* Most words in the first line of a script */
#define WORDS		8

/* Line of a test's output that explains its result. */
static char reason[LINE_SIZE];

static int mount_at(const char *source, const char *target, const char *type, const char *options)
{
	mkdir(target, 0755);
	if (mount(source, target, type, 0, options))
		FAIL("cannot mount %s at %s: %s", type, target, strerror(errno));
	return 0;
}

/* Mounts the host's root and makes it this process's root. */
static int enter_root(void)
{
	TRY(mount_at("root", "/lower", "9p",
		     "ro,trans=virtio,version=9p2000.L,cache=loose,access=any,msize=512000"));
	TRY(mount_at("layer", "/layer", "tmpfs", "mode=0755"));
	mkdir("/layer/upper", 0755);
	mkdir("/layer/work", 0755);
	TRY(mount_at("root", "/root", "overlay",
		     "lowerdir=/lower,upperdir=/layer/upper,workdir=/layer/work"));
	TRY(mount_at("proc", "/root/proc", "proc", NULL));
	TRY(mount_at("sysfs", "/root/sys", "sysfs", NULL));
	TRY(mount_at("devtmpfs", "/root/dev", "devtmpfs", NULL));
	TRY(mount_at("devpts", "/root/dev/pts", "devpts", "ptmxmode=0666"));
	TRY(mount_at("tmpfs", "/root/dev/shm", "tmpfs", "mode=1777"));
	/* A test that needs one of these says so. */
	mount("debugfs", "/root/sys/kernel/debug", "debugfs", 0, NULL);
	mount("tracefs", "/root/sys/kernel/tracing", "tracefs", 0, NULL);
	mount("securityfs", "/root/sys/kernel/security", "securityfs", 0, NULL);
	if (chdir("/root") || chroot("."))
		FAIL("cannot enter the host's root: %s", strerror(errno));
	return 0;
}

/* Executes a test. A script need not be executable: its first line names its interpreter. */
static void execute(const char *name)
{
	char line[256] = "", path[300], *words[WORDS + 2] = { 0 }, *rest = line + 2, *word;
	int n = 0;
	FILE *file;

	snprintf(path, sizeof(path), "./%s", name);
	execl(path, path, NULL);
	file = fopen(path, "r");
	if (file && fgets(line, sizeof(line), file) && !strncmp(line, "#!", 2)) {
		while (n < WORDS && (word = strsep(&rest, " \t\n")))
			if (*word)
				words[n++] = word;
		words[n] = path;
		execv(words[0], words);
	}
	fprintf(stderr, "cannot execute %s: %s\n", name, strerror(errno));
	_exit(126);
}

/* Prints a line of a test's output, and keeps it if it explains the result. */
static void take_line(const char *line)
{
	while (*line == ' ' || *line == '\t')
		line++;
	if (!*line)
		return;
	say(OUTPUT, "%s", line);
	if (strstr(line, "SKIP") || !strncmp(line, "not ok", 6) || !strncmp(line, "Bail out!", 9) ||
	    strstr(line, "[FAIL]") || !strncmp(line, "cannot execute", 14))
		snprintf(reason, sizeof(reason), "%s", line);
}

/*
 * Takes the output of a test until all its processes have closed it, or until `seconds` have
 * passed. Returns whether they have.
 */
static int take_output(int fd, int seconds)
{
	static char text[LINE_SIZE];
	struct timespec start, now;
	struct pollfd poll_fd = { fd, POLLIN, 0 };
	size_t used = 0;
	char piece[4096];
	ssize_t n;

	clock_gettime(CLOCK_MONOTONIC, &start);
	for (;;) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec - start.tv_sec >= seconds)
			return 0;
		if (poll(&poll_fd, 1, 1000) <= 0)
			continue;
		n = read(fd, piece, sizeof(piece));
		if (n <= 0)
			break;
		for (ssize_t i = 0; i < n; i++) {
			if (piece[i] != '\n') {
				if (used < sizeof(text) - 1)
					text[used++] = piece[i];
				continue;
			}
			text[used] = '\0';
			take_line(text);
			used = 0;
		}
	}
	text[used] = '\0';
	take_line(text);
	return 1;
}

/* Runs the test TARGET.NAME. Returns its status of wait(), or -1 if it has not ended. */
static int run_one(const char *directory, const char *test, int seconds)
{
	int output[2], status = -1, ended;
	const char *name = strchr(test, '.');
	char path[4096];
	pid_t pid;

	*reason = '\0';
	if (!name || pipe(output))
		return -1;
	snprintf(path, sizeof(path), "%s/%.*s", directory, (int)(name - test), test);
	pid = fork();
	if (!pid) {
		setsid();
		dup2(open("/dev/null", O_RDONLY), 0);
		dup2(output[1], 1);
		dup2(output[1], 2);
		close(output[0]);
		close(output[1]);
		setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
		setenv("HOME", "/root", 1);
		if (chdir(path)) {
			fprintf(stderr, "cannot execute in %s: %s\n", path, strerror(errno));
			_exit(126);
		}
		execute(name + 1);
	}
	close(output[1]);
	ended = take_output(output[0], seconds);
	if (!ended)
		kill(-pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	close(output[0]);
	return ended ? status : -1;
}

int run_kselftests(const char *directory, char **tests)
{
	const char *limit = getenv("CASE_SECONDS");
	const int seconds = limit ? atoi(limit) : 100;
	unsigned int number = 0, failures = 0;
	int status;

	say(REPORT, "KTAP version 1");
	if (enter_root()) {
		say(REPORT, "1..0 # SKIP %s", why);
		return 1;
	}
	say(REPORT, "# kselftest");
	for (; *tests; tests++) {
		say(REPORT, "# start %s", *tests);
		status = run_one(directory, *tests, seconds);
		number++;
		if (status == 0) {
			say(REPORT, "ok %u %s", number, *tests);
			continue;
		}
		if (status > 0 && WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) {
			say(REPORT, "ok %u %s # SKIP %s", number, *tests,
			    *reason ? reason : "the test gives no reason");
			continue;
		}
		failures++;
		if (status < 0)
			say(REPORT, "# no end after %d s: %s", seconds, reason);
		else if (WIFSIGNALED(status))
			say(REPORT, "# ended by signal %d: %s", WTERMSIG(status), reason);
		else
			say(REPORT, "# status %d: %s", WEXITSTATUS(status), reason);
		say(REPORT, "not ok %u %s", number, *tests);
	}
	return failures ? 1 : 0;
}
