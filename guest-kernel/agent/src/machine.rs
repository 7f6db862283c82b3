//! Sets up the machine for the job: clock, host name, loopback; and ends it through the exit port.

use std::arch::asm;
use std::io;
use std::time::Duration;

use rustix::fs::Timespec;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use vbts_protocol::{EXIT_PORT, ErrorKind, Job, MAX_OPEN_FILES};

use crate::failure::Failure;

/// Lets this process write to the exit port.
pub fn enable_exit_port() -> Result<(), Failure> {
    // SAFETY: ioperm only changes which I/O ports this process may use.
    if unsafe { libc::ioperm(EXIT_PORT.into(), size_of::<u32>() as libc::c_ulong, 1) } == 0 {
        return Ok(());
    }
    Err(Failure::os(
        ErrorKind::Internal,
        format_args!("exit port {EXIT_PORT:#x}"),
        io::Error::last_os_error(),
    ))
}

/// Takes from this process, a child of the agent, what [`enable_exit_port`] has given it: otherwise
/// the program that it executes could end the machine.
pub fn disable_exit_port() -> io::Result<()> {
    // SAFETY: as above.
    match unsafe { libc::ioperm(EXIT_PORT.into(), size_of::<u32>() as libc::c_ulong, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends the machine with `status`.
pub fn exit(status: u8) -> ! {
    // SAFETY: only the exit port is written. Without the permission of `enable_exit_port` the
    // instruction raises #GP, which kills PID 1. The kernel then panics, which the host detects.
    unsafe {
        asm!(
            "out dx, eax",
            in("dx") EXIT_PORT,
            in("eax") u32::from(status),
            options(nomem, nostack)
        )
    };
    // The machine has no exit port. PID 1 must not return.
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Sets up the machine as the job requires.
pub fn configure(job: &Job) -> Result<(), Failure> {
    if let Some(name) = &job.hostname {
        rustix::system::sethostname(&name.0).map_err(|error| {
            Failure::os(
                ErrorKind::Internal,
                format_args!("host name {name:?}"),
                error,
            )
        })?;
    }
    if let Some(epoch) = job.epoch {
        set_clock(epoch).map_err(|error| {
            Failure::os(
                ErrorKind::Internal,
                format_args!("wall clock {epoch}"),
                error,
            )
        })?;
    }
    // The agent keeps a file open for each traced process.
    let files = Rlimit {
        current: Some(MAX_OPEN_FILES.into()),
        maximum: Some(MAX_OPEN_FILES.into()),
    };
    setrlimit(Resource::Nofile, files)
        .map_err(|error| Failure::os(ErrorKind::Internal, "limit of open files", error))?;
    enable_loopback().map_err(|error| Failure::os(ErrorKind::Internal, "loopback interface", error))
}

/// Sets the wall clock to `epoch` seconds since 1970 plus the uptime. Whatever the epoch, the clock
/// thus begins its seconds at the same times, and the kernel's work for it takes the same time.
fn set_clock(epoch: i64) -> io::Result<()> {
    // In this order the difference is never too large: Linux refuses a wall clock that is behind
    // the uptime.
    let wall = clock_gettime(ClockId::Realtime);
    let booted = wall - clock_gettime(ClockId::Monotonic);
    let offset = Timespec {
        tv_sec: epoch,
        tv_nsec: 0,
    } - booted;
    // SAFETY: all-zero is a valid timex.
    let mut change: libc::timex = unsafe { std::mem::zeroed() };
    change.modes = libc::ADJ_SETOFFSET | libc::ADJ_NANO;
    // In a 32-bit guest these fields have 32 bits, so the epoch is before 2038.
    #[allow(clippy::useless_conversion, reason = "time_t has 64 bits on x86_64")]
    let seconds = offset.tv_sec.try_into();
    change.time.tv_sec = seconds.map_err(|_| io::ErrorKind::InvalidInput)?;
    // With ADJ_NANO.
    change.time.tv_usec = offset.tv_nsec as libc::suseconds_t;
    // SAFETY: adjtimex reads and writes a timex.
    if unsafe { libc::adjtimex(&raw mut change) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Brings up `lo`. A kernel with the Internet protocols gives it the address 127.0.0.1.
fn enable_loopback() -> io::Result<()> {
    // Every kernel has this kind of socket. The request is for the interface.
    let socket = std::os::unix::net::UnixDatagram::unbound()?;
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an ifreq.
    match unsafe {
        libc::ioctl(
            std::os::fd::AsRawFd::as_raw_fd(&socket),
            libc::SIOCSIFFLAGS,
            &raw const request,
        )
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
