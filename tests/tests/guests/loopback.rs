//! Programs that talk to themselves: over the loopback interface, and with the kernel through
//! io_uring.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Skip, TestModule};
use vbts_tests::programs;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("tcp_and_udp_over_both_protocols", sockets),
            ("io_uring", io_uring),
            ("other_families_are_not_supported", families),
            ("a_web_server_and_its_client", web_server),
        ],
    )
}

/// The beginning of each program.
const COMMON: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			printf("line %d: %s\n", __LINE__, strerror(errno)); \
			_exit(1); \
		} \
	} while (0)
"#;

/// Builds a program and runs it in the guest. Returns its output.
fn output(machine: &Machine, text: &str) -> Result<String> {
    let directory = tempfile::tempdir()?;
    let source = directory.path().join("program.c");
    std::fs::write(&source, [COMMON, text].concat())?;
    let program: PathBuf = programs::gcc(
        &source,
        &directory.path().join("program"),
        &["-static", "-Wall"],
    )?;
    let trace = directory.path().join("trace");
    let run = machine.trace("raw", &trace, &[], &[program])?.expect(0)?;
    Ok(String::from_utf8(run.stdout)?)
}

/// A parent that serves, and a child that connects to it, with each protocol.
const SOCKETS: &str = r#"
static void talk(int family, int type, const char *name)
{
	struct sockaddr_in v4 = {AF_INET, 0, {htonl(INADDR_LOOPBACK)}, {0}};
	struct sockaddr_in6 v6 = {AF_INET6, 0, 0, IN6ADDR_LOOPBACK_INIT, 0};
	struct sockaddr *address = family == AF_INET ? (void *)&v4 : (void *)&v6;
	socklen_t size = family == AF_INET ? sizeof v4 : sizeof v6;
	int server = socket(family, type, 0), status;
	char buffer[10] = "";

	CHECK(server >= 0 && bind(server, address, size) == 0);
	CHECK(getsockname(server, address, &size) == 0);
	CHECK(type == SOCK_DGRAM || listen(server, 1) == 0);
	if (fork() == 0) {
		int client = socket(family, type, 0);
		CHECK(connect(client, address, size) == 0);
		CHECK(send(client, "hello", 5, 0) == 5);
		_exit(0);
	}
	if (type == SOCK_STREAM)
		server = accept(server, NULL, NULL);
	CHECK(recv(server, buffer, 5, MSG_WAITALL) == 5);
	CHECK(wait(&status) > 0 && status == 0);
	printf("%s: %s\n", name, buffer);
}

int main(void)
{
	talk(AF_INET, SOCK_STREAM, "TCP");
	talk(AF_INET6, SOCK_STREAM, "TCP over IPv6");
	talk(AF_INET, SOCK_DGRAM, "UDP");
	talk(AF_INET6, SOCK_DGRAM, "UDP over IPv6");
	return 0;
}
"#;

fn sockets(machine: &Machine) -> Result<()> {
    let output = output(machine, SOCKETS)?;
    let expected = "TCP: hello\nTCP over IPv6: hello\nUDP: hello\nUDP over IPv6: hello\n";
    ensure!(output == expected, "{output}");
    Ok(())
}

/// Reads from a pipe through a ring. The read waits for the write that comes after it.
const IO_URING: &str = r#"
#include <linux/io_uring.h>

static void *map(int ring, size_t size, off_t at)
{
	void *to = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, at);

	CHECK(to != MAP_FAILED);
	return to;
}

int main(void)
{
	struct io_uring_params p = {0};
	char buffer[6] = "";
	int ends[2], ring = syscall(SYS_io_uring_setup, 2, &p);

	CHECK(ring >= 0 && p.features & IORING_FEAT_SINGLE_MMAP && pipe(ends) == 0);
	char *sq = map(ring, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe),
		       IORING_OFF_SQ_RING);
	struct io_uring_sqe *sqe = map(ring, p.sq_entries * sizeof *sqe, IORING_OFF_SQES);
	sqe->opcode = IORING_OP_READ;
	sqe->fd = ends[0];
	sqe->addr = (unsigned long)buffer;
	sqe->len = 5;
	sqe->user_data = 7;
	*(unsigned *)(sq + p.sq_off.array) = 0;
	__atomic_store_n((unsigned *)(sq + p.sq_off.tail), 1, __ATOMIC_RELEASE);
	CHECK(syscall(SYS_io_uring_enter, ring, 1, 0, 0, NULL, 0) == 1);
	CHECK(write(ends[1], "hello", 5) == 5);
	CHECK(syscall(SYS_io_uring_enter, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 0);
	struct io_uring_cqe *cqe = (struct io_uring_cqe *)(sq + p.cq_off.cqes);
	printf("%d bytes of %d: %s\n", cqe->res, (int)cqe->user_data, buffer);
	return 0;
}
"#;

fn io_uring(machine: &Machine) -> Result<()> {
    let output = output(machine, IO_URING)?;
    ensure!(output == "5 bytes of 7: hello\n", "{output}");
    Ok(())
}

/// Families that the guide names.
const FAMILIES: &str = r#"
int main(void)
{
	static const int families[] = {AF_PACKET, AF_ALG, AF_VSOCK, AF_BLUETOOTH, AF_CAN, AF_XDP};

	for (int i = 0; i < 6; i++) {
		CHECK(socket(families[i], SOCK_RAW, 0) < 0);
		CHECK(errno == EAFNOSUPPORT);
	}
	CHECK(socket(AF_NETLINK, SOCK_RAW, 0) >= 0);
	/* There is no way to another machine. */
	struct sockaddr_in to = {AF_INET, htons(80), {htonl(0xc0000201)}, {0}};
	int client = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(connect(client, (struct sockaddr *)&to, sizeof to) < 0 && errno == ENETUNREACH);
	return 0;
}
"#;

fn families(machine: &Machine) -> Result<()> {
    let output = output(machine, FAMILIES)?;
    ensure!(output.is_empty(), "{output}");
    Ok(())
}

/// A thread serves a page to the main thread.
const WEB_SERVER: &str = r#"
import http.server, threading, urllib.request

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"page " + self.path.encode())

    def log_message(self, *arguments):
        pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
for path in ("/a", "/b"):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}{path}") as answer:
        print(answer.status, answer.read())
server.shutdown()
"#;

fn web_server(machine: &Machine) -> Result<()> {
    const PROGRAM: [&str; 3] = ["/usr/bin/python3", "-c", WEB_SERVER];
    let host = Command::new(PROGRAM[0]).args(&PROGRAM[1..]).output();
    let host = host.map_err(|error| Skip(format!("{}: {error}", PROGRAM[0])))?;
    let trace = tempfile::NamedTempFile::new()?;
    let run = machine.trace("raw", trace.path(), &[], &PROGRAM)?;
    let run = run.expect(0)?;
    ensure!(
        host.status.success() && run.stdout == host.stdout,
        "{host:?}\n{run:?}"
    );
    Ok(())
}
