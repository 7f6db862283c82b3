//! Debugging information from a server of debuginfod.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use vbts_tests::machine::{self, Machine};

use super::build_ids::{build_id, separate};
use super::{Traced, report, tool, traced};

/// Time in which the server has read a directory, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A server of the files in a directory.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start(directory: &Path) -> Result<Self> {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = free.local_addr()?.port();
        drop(free);
        let mut command = tool("debuginfod", &["--database=:memory:", "--scan-file-dir"])?;
        command.args(["--port", &port.to_string()]).arg(directory);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn()?;
        Ok(Self { process, port })
    }

    /// Waits until it has the debugging information of the file with this build ID.
    fn wait_for(&self, id: &str) -> Result<()> {
        let began = Instant::now();
        let has_it = || -> std::io::Result<bool> {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
            write!(stream, "GET /buildid/{id}/debuginfo HTTP/1.0\r\n\r\n")?;
            let mut start = [0; 12];
            stream.read_exact(&mut start)?;
            Ok(start.ends_with(b"200"))
        };
        while !has_it().unwrap_or(false) {
            ensure!(began.elapsed() < LIMIT, "debuginfod does not have {id}");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `--debuginfod` fetches what a stripped program lacks: the report is that of the whole one.
pub(super) fn fetches(machine: &Machine) -> Result<()> {
    let Traced {
        directory,
        program,
        trace,
    } = traced(machine, &["-O0", "-g", "-static"], &[])?;
    let id = build_id(&program)?;
    let list = report(machine, &["build-ids"], &trace)?;
    ensure!(list == format!("{id} {}\n", program.display()), "{list}");
    let source = vbts_tests::programs::source("answers.c");
    let words = ["lines", "--source", &source.display().to_string()];
    let whole = report(machine, &words, &trace)?;
    let path = |name: &str| directory.path().join(name);
    std::fs::create_dir(path("served"))?;
    separate(&program, &path("served/answers.debug"))?;
    let server = Server::start(&path("served"))?;
    server.wait_for(&id)?;
    let run = |servers: &str, cache: &str, status: i32| {
        let mut command = machine.command(["report", "--debuginfod"]);
        command
            .args(words)
            .arg(&trace)
            .env("DEBUGINFOD_CACHE_PATH", path(cache))
            .env("DEBUGINFOD_URLS", servers);
        machine::finish(command)?.expect(status)
    };
    let fetched = run(&format!("http://127.0.0.1:{}", server.port), "cache", 0)?;
    ensure!(fetched.stdout == whole.as_bytes(), "other lines");
    let wanted = "fetched the debugging information of 1 of 1 files";
    ensure!(fetched.stderr.contains(wanted), "{}", fetched.stderr);
    drop(server);
    // Everything is in the cache: no server is asked.
    let again = run("http://127.0.0.1:9", "cache", 0)?;
    ensure!(again.stdout == whole.as_bytes(), "other lines");
    ensure!(again.stderr.is_empty(), "{}", again.stderr);
    let unreachable = run("http://127.0.0.1:9", "empty", 0)?;
    ensure!(
        unreachable.stderr.contains("0 of 1 files") && unreachable.stderr.contains("refused"),
        "{}",
        unreachable.stderr
    );
    let none = run("", "cache", 125)?;
    ensure!(none.stderr.contains("DEBUGINFOD_URLS"), "{}", none.stderr);
    Ok(())
}
