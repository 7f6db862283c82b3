//! The machine around the job: clock, host name, loopback, and the port that ends it all.

use std::arch::asm;
use std::io;
use std::time::Duration;

use rustix::fs::Timespec;
use vbts_protocol::{EXIT_PORT, ErrorKind, Job};

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

/// Ends the machine with `status`.
pub fn exit(status: u8) -> ! {
    // SAFETY: nothing but the exit port is written. Without the permission of `enable_exit_port`
    // this is a #GP, which kills PID 1 and so panics the kernel: the host notices that as well.
    unsafe {
        asm!("out dx, eax", in("dx") EXIT_PORT, in("eax") u32::from(status), options(nomem, nostack))
    };
    // Not a machine with an exit port. PID 1 must not return.
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Sets up what the job says about the machine.
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
    if let Some(seconds) = job.epoch {
        set_clock(seconds).map_err(|error| {
            Failure::os(
                ErrorKind::Internal,
                format_args!("wall clock {seconds}"),
                error,
            )
        })?;
    }
    enable_loopback().map_err(|error| Failure::os(ErrorKind::Internal, "loopback interface", error))
}

fn set_clock(seconds: i64) -> io::Result<()> {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    // SAFETY: rustix's Timespec is the kernel's struct timespec, and lives until the call returns.
    match unsafe {
        libc::syscall(
            libc::SYS_clock_settime,
            libc::CLOCK_REALTIME,
            &raw const time,
        )
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Brings `lo` up, which a kernel with the Internet protocols gives 127.0.0.1.
fn enable_loopback() -> io::Result<()> {
    // Of a kind that any kernel has: the request is about the interface.
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
