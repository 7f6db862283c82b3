//! The host's files in the guest: many of them with few descriptors, and what a writable share can
//! keep.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use vbts_tests::machine::{self, Machine, Skip, TestModule};
use vbts_tests::programs;

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("many_files_with_256_descriptors", many_files),
            ("unlinked_programs_with_256_descriptors", unlinked),
            ("special_files_on_a_writable_share", special_files),
            ("times_of_new_files_on_a_writable_share", times_of_new_files),
            ("set_user_id_bits_on_a_writable_share", set_user_id_bits),
            ("writes_that_the_host_refuses", refused_writes),
        ],
    )
}

/// A command line of `vbts trace` that may open 256 files, without the program.
fn with_few_descriptors(machine: &Machine) -> Command {
    let trace = machine.command(["trace", "--accel", machine.accel(), "--format", "raw"]);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""]);
    machine::append(&mut command, &trace).args(["--output", "/dev/null"]);
    command
}

/// Every file of a tree, lines in it, and what git says about it.
const LOOK: &str = "export LC_ALL=C; cd \"$0\"
    find . -xdev -path ./.git -prune -o -print | sort
    find . -xdev -path ./.git -prune -o -type f -printf '%p %s %n %m %T@\\n' | sort
    grep -r needle src | sort
    git status --short
    git log --oneline
    git grep -c needle | sort
    cat src/dir1*/file1* | cksum";

/// A tree with a few thousand files, which is larger than a few hundred descriptors.
fn tree(directory: &Path) -> Result<()> {
    for i in 0..60 {
        let directory = directory.join(format!("src/dir{i}/deep/deeper"));
        fs::create_dir_all(&directory)?;
        for j in 0..30 {
            let needle = if (i + j) % 37 == 0 { "needle" } else { "hay" };
            let text = format!("file {j} of directory {i}\n{needle}\n");
            let place = directory.ancestors().nth(j % 3).context("no parent")?;
            fs::write(place.join(format!("file{j}")), text)?;
        }
    }
    let git = "export HOME=/ GIT_CONFIG_NOSYSTEM=1; cd \"$0\"; git init -q . && git add . && \
               git -c user.name=n -c user.email=e@example.org commit -qm first";
    let made = Command::new("/bin/sh")
        .args(["-c", git])
        .arg(directory)
        .output()?;
    if !made.status.success() {
        let error = String::from_utf8_lossy(&made.stderr).into_owned();
        return Err(Skip(format!("git: {error}")).into());
    }
    fs::write(directory.join("src/dir7/deep/file1"), "changed\n")?;
    fs::write(directory.join("src/dir8/new"), "new\n")?;
    fs::remove_file(directory.join("src/dir9/deep/deeper/file0"))?;
    Ok(())
}

fn many_files(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    tree(directory.path())?;
    let look = |mut command: Command| {
        command.args(["/bin/sh", "-c", LOOK]).arg(directory.path());
        machine::finish(command)?.expect(0)
    };
    let mut trace = with_few_descriptors(machine);
    trace.arg("--");
    let guest = look(trace)?;
    let host = look(Command::new("env"))?;
    ensure!(host.stdout.len() > 100_000, "the host shows few files");
    let (host, guest) = (
        String::from_utf8(host.stdout)?,
        String::from_utf8(guest.stdout)?,
    );
    let mut differences = String::new();
    for (a, b) in host
        .lines()
        .zip(guest.lines())
        .filter(|(a, b)| a != b)
        .take(5)
    {
        writeln!(differences, "host:  {a}\nguest: {b}")?;
    }
    let lines = (host.lines().count(), guest.lines().count());
    ensure!(host == guest, "lines: {lines:?}\n{differences}");
    Ok(())
}

/// A program and a file that are removed on the host while the guest uses them.
fn unlinked(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let shared = directory.path();
    tree(shared)?;
    fs::copy("/bin/sh", shared.join("sh"))?;
    let data: String = (0..100_000).map(|i| format!("line {i}\n")).collect();
    fs::write(shared.join("data"), &data)?;
    // The guest tells by a file when it runs, and waits for one of the host. Meanwhile it uses more
    // files than there are descriptors.
    let script = "exec 3<data; find . >/dev/null; echo > ready
        until [ -e go ]; do find . >/dev/null; done
        find . >/dev/null; cksum <&3";
    let mut command = with_few_descriptors(machine);
    command
        .arg("--share")
        .arg(format!("{}:rw", shared.display()))
        .args(["--", "./sh", "-c", script])
        .current_dir(shared);
    let (removed, gone) = (shared.join("sh"), shared.join("data"));
    let (ready, go) = (shared.join("ready"), shared.join("go"));
    let host = std::thread::spawn(move || -> std::io::Result<()> {
        for _ in 0..6000 {
            if ready.exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        fs::remove_file(removed)?;
        fs::remove_file(gone)?;
        fs::write(go, "")
    });
    let run = machine::finish(command);
    let changed = host.join().ok().context("the host's part panicked")?;
    let run = run?.expect(0)?;
    changed?;
    let expected = directory.path().join("expected");
    fs::write(&expected, &data)?;
    let host = Command::new("cksum")
        .stdin(fs::File::open(&expected)?)
        .output()?;
    ensure!(run.stdout == host.stdout, "{run:?}");
    Ok(())
}

/// Makes special files in the current directory, uses them, and says what is not possible.
const SPECIAL: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			printf("line %d: %s\n", __LINE__, strerror(errno)); \
			return 1; \
		} \
	} while (0)

int main(void)
{
	struct timespec times[2] = {{1000, 123456789}, {2000, 999999999}};
	struct sockaddr_un address = {AF_UNIX, "socket"};
	char buffer[100] = "";
	struct stat st;

	/* A pipe, between two programs of the guest. */
	CHECK(mkfifo("pipe", 0640) == 0);
	if (fork() == 0) {
		int out = open("pipe", O_WRONLY);
		_exit(write(out, "through a pipe", 14) != 14);
	}
	int in = open("pipe", O_RDONLY);
	CHECK(in >= 0 && read(in, buffer, sizeof buffer) == 14);
	int status;
	CHECK(wait(&status) > 0 && status == 0);

	/* A socket. */
	int server = socket(AF_UNIX, SOCK_STREAM, 0), client = socket(AF_UNIX, SOCK_STREAM, 0);
	CHECK(bind(server, (struct sockaddr *)&address, sizeof address) == 0);
	CHECK(listen(server, 1) == 0);
	CHECK(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
	CHECK(send(client, "x", 1, 0) == 1 && recv(accept(server, 0, 0), buffer, 1, 0) == 1);
	CHECK(stat("socket", &st) == 0 && S_ISSOCK(st.st_mode));

	/* Times. */
	CHECK(stat("stamped", &st) == 0 && st.st_mtim.tv_nsec == 999999999);
	int file = open("file", O_CREAT | O_RDWR, 0600);
	CHECK(file >= 0 && symlink("file", "link") == 0);
	CHECK(futimens(file, times) == 0);
	CHECK(fstat(file, &st) == 0 && st.st_mtim.tv_sec == 2000);
	CHECK(st.st_mtim.tv_nsec == 999999999 && st.st_atim.tv_nsec == 123456789);
	CHECK(utimensat(AT_FDCWD, "link", times, AT_SYMLINK_NOFOLLOW) == 0);
	CHECK(lstat("link", &st) == 0 && st.st_atim.tv_sec == 1000);
	CHECK(utimensat(AT_FDCWD, "stamped", times, 0) == 0);

	/* Extended attributes. */
	CHECK(setxattr("file", "user.one", "value", 5, 0) == 0);
	CHECK(setxattr("file", "user.two", "", 0, 0) == 0);
	CHECK(fgetxattr(file, "user.one", buffer, sizeof buffer) == 5);
	CHECK(memcmp(buffer, "value", 5) == 0);
	CHECK(removexattr("file", "user.two") == 0);
	CHECK(listxattr("file", buffer, sizeof buffer) == 9);
	CHECK(getxattr("file", "user.two", buffer, sizeof buffer) < 0 && errno == ENODATA);
	CHECK(setxattr("file", "security.capability", "x", 1, 0) < 0);

	/* What a share cannot do. */
	CHECK(open(".", O_TMPFILE | O_RDWR, 0600) < 0 && errno == EOPNOTSUPP);
	CHECK(mknod("device", S_IFCHR | 0600, 0x103) < 0 && errno == EPERM);

	/* A file that is removed while it is open. */
	CHECK(unlink("file") == 0 && write(file, "data", 4) == 4);
	CHECK(lseek(file, 0, SEEK_SET) == 0 && read(file, buffer, 4) == 4);
	CHECK(fstat(file, &st) == 0 && st.st_nlink == 0);
	CHECK(setxattr("pipe", "user.x", "x", 1, 0) < 0);
	return 0;
}
"#;

fn special_files(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let source = directory.path().join("special.c");
    fs::write(&source, SPECIAL)?;
    let program = programs::gcc(
        &source,
        &directory.path().join("special"),
        &["-static", "-Wall"],
    )?;
    let shared = directory.path().join("shared");
    fs::create_dir(&shared)?;
    let test = shared.join("test");
    fs::write(&test, "")?;
    let set = rustix::fs::setxattr(&test, "user.x", b"", rustix::fs::XattrFlags::empty());
    if let Err(error) = set {
        return Err(Skip(format!("extended attributes: {error}")).into());
    }
    fs::rename(&test, shared.join("stamped"))?;
    let stamp = std::time::UNIX_EPOCH + std::time::Duration::from_nanos(1_999_999_999);
    let stamped = fs::File::options()
        .write(true)
        .open(shared.join("stamped"))?;
    stamped.set_modified(stamp)?;
    let mut command = with_few_descriptors(machine);
    command
        .arg("--share")
        .arg(format!("{}:rw", shared.display()))
        .arg("--")
        .arg(program)
        .current_dir(&shared);
    machine::finish(command)?.expect(0)?;
    let metadata = |name: &str| shared.join(name).symlink_metadata();
    ensure!(metadata("pipe")?.file_type().is_fifo());
    ensure!(metadata("socket")?.file_type().is_socket());
    for name in ["link", "stamped"] {
        let metadata = metadata(name)?;
        let times = [
            (metadata.atime(), metadata.atime_nsec()),
            (metadata.mtime(), metadata.mtime_nsec()),
        ];
        let set = [(1000, 123_456_789), (2000, 999_999_999)];
        ensure!(times == set, "{name}: {times:?}");
    }
    ensure!(metadata("file").is_err() && metadata("device").is_err());
    Ok(())
}

/// A file, a copy with its times, and what is made of both with a second `make`.
const MAKEFILE: &str = "all: copy
\t$(MAKE) -f second
file:
\techo 1 >$@
copy: file
\tcp -p file $@
";
const SECOND: &str = "both: file copy
\tcat file copy >$@
";

/// In the guest, what a program makes in a writable share is not in the future, whatever the date
/// is. On the host it has the host's times, in the same order.
fn times_of_new_files(machine: &Machine) -> Result<()> {
    const EPOCH: i64 = 1_000_000_000;
    let directory = tempfile::tempdir()?;
    let path = |name: &str| directory.path().join(name);
    for (name, text) in [("Makefile", MAKEFILE), ("second", SECOND)] {
        fs::write(path(name), text)?;
        let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(900_000_000);
        fs::File::options()
            .append(true)
            .open(path(name))?
            .set_modified(old)?;
    }
    let began = fs::metadata(path("."))?.mtime();
    let share = format!("{}:rw", directory.path().display());
    let epoch = EPOCH.to_string();
    let options = ["--quiet", "--share", &share, "--epoch", &epoch];
    let in_guest = |lines: &str| {
        let lines = format!("cd {} && {lines}", directory.path().display());
        let output = Path::new("/dev/null");
        machine.trace("raw", output, &options, &["/bin/sh", "-c", &lines])
    };
    let lines = "make -s && make && stat -c %n:%X:%Y:%Z * . && sleep 5 && touch last";
    let first = in_guest(lines)?.expect(0)?;
    ensure!(first.stderr.is_empty(), "{}", first.stderr);
    let text = String::from_utf8(first.stdout)?;
    for line in text
        .lines()
        .filter(|line| line.contains(':') && !line.starts_with("make"))
    {
        let [name, times @ ..] = &line.split(':').collect::<Vec<_>>()[..] else {
            continue;
        };
        let made = ["file", "copy", "both", "."].contains(name);
        for time in times {
            let time: i64 = time.parse()?;
            let since = EPOCH..EPOCH + 60;
            ensure!(!made || since.contains(&time), "{line}");
        }
    }
    ensure!(text.contains("is up to date"), "{text}");
    // The guest's clock has shown times that are still to come here.
    let now = std::time::SystemTime::now();
    let mut last = None;
    for name in ["file", "copy", "both", "last"] {
        let file = fs::metadata(path(name))?;
        let time = file.modified()?;
        ensure!(
            file.mtime() >= began && time <= now && last <= Some(time),
            "{name}: {time:?}"
        );
        last = Some(time);
    }
    let mut make = Command::new("make");
    make.arg("-C").arg(directory.path());
    let host = machine::finish(make)?.expect(0)?;
    let host = String::from_utf8(host.stdout)?;
    ensure!(
        host.contains("is up to date") && !host.contains("cat "),
        "{host}"
    );
    Ok(())
}

/// What a guest does to the programs of a writable share, and to its directories.
const CHANGE_PROGRAMS: &str = "echo x >>appended && : >emptied && truncate -s 2 cut &&
    printf y | dd of=overwritten conv=notrunc status=none &&
    chmod g+s directory appended && chmod u+s appended && mkdir directory/new &&
    echo new >directory/file && chgrp 1 directory/file && chmod 2775 directory/new";

/// The guest's user can be root, whose writes keep set-user-ID bits in the guest. On the host
/// nothing that a guest writes is run with other rights than those of the user that runs it.
fn set_user_id_bits(machine: &Machine) -> Result<()> {
    const PROGRAMS: [&str; 4] = ["appended", "emptied", "cut", "overwritten"];
    for sandbox in ["auto", "off"] {
        let directory = tempfile::tempdir()?;
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("directory"))?;
        for name in [&PROGRAMS[..], &["untouched"]].concat() {
            fs::write(path(name), "program")?;
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o6755))?;
        }
        let share = format!("{}:rw", directory.path().display());
        let options = ["--quiet", "--sandbox", sandbox, "--share", &share];
        let lines = format!("cd {} && {CHANGE_PROGRAMS}", directory.path().display());
        let command = ["/bin/sh", "-c", &lines];
        let run = machine.trace("raw", Path::new("/dev/null"), &options, &command)?;
        let run = run.expect(0)?;
        ensure!(run.stderr.is_empty(), "{}", run.stderr);
        let mode = |name: &str| Ok::<_, anyhow::Error>(fs::metadata(path(name))?.mode() & 0o7777);
        for name in PROGRAMS {
            ensure!(mode(name)? == 0o755, "{sandbox}: {name}: {:o}", mode(name)?);
        }
        ensure!(mode("untouched")? == 0o6755, "{:o}", mode("untouched")?);
        ensure!(fs::read(path("cut"))? == b"pr");
        ensure!(fs::read(path("overwritten"))? == b"yrogram");
        ensure!(fs::read(path("directory/file"))? == b"new\n");
    }
    Ok(())
}

/// The host refuses what the guest writes beyond a limit of the size of files. The guest's kernel
/// writes from its cache, so that a program that does not ask has not learnt of it.
fn refused_writes(machine: &Machine) -> Result<()> {
    const LIMIT: u64 = 4096;
    let directory = tempfile::tempdir()?;
    let directory = directory.path().canonicalize()?;
    let script = "echo ready; until [ -e go ]; do sleep 0.1; done
        head -c 100000 /dev/zero > told; echo $?
        dd if=/dev/zero of=asked bs=100000 count=1 conv=fsync status=none; echo $?
        exit $0";
    for (status, expected) in [("0", 125), ("3", 3)] {
        let mut command = machine.command(["trace", "--accel", machine.accel(), "--quiet"]);
        let share = format!("{}:rw", directory.display());
        command.args([
            "--format",
            "raw",
            "--output",
            "/dev/null",
            "--share",
            &share,
            "--",
        ]);
        command
            .args(["/bin/sh", "-c", script, status])
            .current_dir(&directory);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = machine::Killed(command.spawn()?);
        let stdout = child.0.stdout.take().context("no pipe")?;
        let mut lines = BufReader::new(stdout).lines();
        ensure!(lines.next().context("no line")?? == "ready");
        // The guest has the limits that vbts had when it started.
        let pid = Pid::from_raw(child.0.id().cast_signed());
        let limit = Rlimit {
            current: Some(LIMIT),
            maximum: Some(LIMIT),
        };
        prlimit(pid, Resource::Fsize, limit)?;
        fs::write(directory.join("go"), "")?;
        let said = lines.collect::<Result<Vec<_>, _>>()?;
        ensure!(said == ["0", "1"], "{said:?}");
        let ended = machine::wait(&mut child.0, Duration::from_secs(60))?;
        let mut stderr = String::new();
        let mut pipe = child.0.stderr.take().context("no pipe")?;
        pipe.read_to_string(&mut stderr)?;
        ensure!(ended == Some(expected), "{ended:?}: {stderr}");
        for part in [
            "vbts: the host has refused writes to 2 files",
            &format!("{}/told: File too large", directory.display()),
            &format!("{}/asked: File too large", directory.display()),
        ] {
            ensure!(stderr.contains(part), "{stderr}");
        }
        ensure!(fs::metadata(directory.join("told"))?.len() <= LIMIT);
        fs::remove_file(directory.join("go"))?;
    }
    Ok(())
}
