//! `--net`: Debian's unmodified kernel and the host exchange data through a TAP device in a
//! separate network namespace.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use vbts_tests::machine::{self, Machine, Skip, TestModule};

use crate::stock_kernel::{PATIENCE, boot, initrd_with};

inventory::submit! { TestModule::new(module_path!(), trials) }

fn trials(module: &str) -> Vec<Trial> {
    machine::trials_of(
        module,
        &[
            ("a_guest_and_the_host_exchange_data", guest_and_host),
            ("other_devices_are_refused", bad_devices),
        ],
    )
}

/// Creates a TAP device in an empty namespace.
const TAP: &str = "
    ip link set lo up && ip tuntap add dev tap0 mode tap && ip address add 192.0.2.1/24 dev tap0 && ip link set tap0 up";

/// The host's servers: one sends the file `data`, the other answers with the SHA-256 of the data
/// that it receives.
const SERVER: &str = r#"
import hashlib, socketserver, threading
class Send(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(open("data", "rb").read())
class Sum(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(hashlib.sha256(self.rfile.read()).hexdigest().encode() + b"  sent\n")
for port, handler in [(7000, Send), (7001, Sum)]:
    server = socketserver.ThreadingTCPServer(("192.0.2.1", port), handler)
    threading.Thread(target=server.serve_forever).start()
"#;

/// Another process that uses the TAP device.
const HOLDER: &str = r#"
import fcntl, struct, time
device = open("/dev/net/tun", "r+b", 0)
fcntl.ioctl(device, 0x400454CA, struct.pack("16sH22x", b"tap0", 0x1002))  # TUNSETIFF, IFF_TAP | IFF_NO_PI
open("held", "w").close()
time.sleep(1000)
"#;

/// The guest's commands.
const JOB: &str = "
    cat /sys/class/net/eth0/address /sys/class/net/eth0/mtu
    ip link set eth0 up; ip address add 192.0.2.2/24 dev eth0
    ping -c 3 -s 1472 -W 60 192.0.2.1 | tail -n 2
    nc 192.0.2.1 7000 </dev/null >got; sha256sum got
    nc 192.0.2.1 7001 <got
    cat /proc/net/dev; dmesg --level=warn,err,crit 2>/dev/null; poweroff -f";

/// A command that runs `script` in a separate network namespace.
///
/// # Errors
/// [`Skip`] if this user cannot create a namespace with a TAP device.
fn in_namespace(directory: &Path, script: &str) -> Result<Command> {
    let command = |options: &[&str], script: &str| {
        let mut command = Command::new("unshare");
        command
            .args(options)
            .args(["sh", "-c", script, "sh"])
            .current_dir(directory);
        command
    };
    let mut why = String::new();
    // The first command needs root.
    for options in [&["--net"][..], &["--user", "--map-root-user", "--net"]] {
        let possible = command(options, TAP).output()?;
        if possible.status.success() {
            return Ok(command(options, &format!("{TAP} && {script}")));
        }
        let error = String::from_utf8_lossy(&possible.stderr);
        why = error.lines().last().unwrap_or("no reason given").to_owned();
    }
    Err(Skip(format!("no TAP device in a network namespace here: {why}")).into())
}

/// Adds the program and the arguments of `command` to those of `outer`.
fn within(mut outer: Command, command: &Command) -> Command {
    outer.arg(command.get_program()).args(command.get_args());
    outer
}

fn guest_and_host(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let directory = directory.path();
    let data: Vec<u8> = (0..3_000_001u32)
        .map(|n| (n.wrapping_mul(n) >> 7) as u8)
        .collect();
    fs::write(directory.join("data"), &data)?;
    fs::write(directory.join("server"), SERVER)?;
    let sum = Command::new("sha256sum")
        .arg(directory.join("data"))
        .output()?;
    let sum = String::from_utf8_lossy(&sum.stdout)[..64].to_owned();

    let initrd = initrd_with(directory, JOB, &[])?;
    let net = "tap=tap0,mac=02:00:00:00:00:07";
    let guest = boot(machine, &initrd, &["--net", net, "--append", "quiet"])?;
    // The guest takes seconds to boot, so the server is ready before it.
    let script = r#"{ python3 server & server=$!; "$@"; status=$?; kill $server; exit $status; }"#;
    let command = within(in_namespace(directory, script)?, &guest);
    let run = machine::finish_within(command, PATIENCE)?.expect(0)?;
    let output = String::from_utf8_lossy(&run.stdout);
    for expected in [
        "02:00:00:00:00:07\r\n1500\r\n",
        "3 packets transmitted, 3 packets received, 0% packet loss",
        &format!("{sum}  got"),
        &format!("{sum}  sent"),
    ] {
        ensure!(
            output.contains(expected),
            "no {expected:?} in\n{output}\n{}",
            run.stderr
        );
    }
    Ok(())
}

fn bad_devices(machine: &Machine) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let guest = |tap: &str| {
        let mut command = machine.command(["run", "--accel", "soft", "--kernel"]);
        command.arg(machine.kernel()).args(["--timeout", "100"]);
        command.args(["--net", &format!("tap={tap}")]);
        command
    };
    fs::write(directory.path().join("holder"), HOLDER)?;
    let holder = r#"
        { python3 holder & until [ -e held ]; do sleep 0.1; done; "$@"; status=$?; kill $!; exit $status; }"#;
    for (script, tap, message) in [
        (
            r#""$@""#,
            "tap7",
            "there is no network device tap7: `ip tuntap add",
        ),
        (r#""$@""#, "lo", "lo is no TAP device"),
        (holder, "tap0", "another program is using tap0"),
        (
            r#"ip tuntap add dev tun0 mode tun && "$@""#,
            "tun0",
            "tun0 is no TAP device",
        ),
    ] {
        let command = within(in_namespace(directory.path(), script)?, &guest(tap));
        let run = machine::finish(command)?.expect(125)?;
        let expected = format!("--net tap={tap}: ");
        ensure!(
            run.stderr.contains(&expected) && run.stderr.contains(message),
            "{}",
            run.stderr
        );
    }
    Ok(())
}
