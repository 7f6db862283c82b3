//! Any packets of a debugger, for a target that answers in any way.
#![no_main]

use std::io::{self, Cursor, Read, Write};

use libfuzzer_sys::fuzz_target;
use vbts_fuzz::input::Input;
use vbts_gdb::{
    Branch, BranchHistory, Capabilities, Condition, Connection, ProcessInfo, RegisterLayout,
    Registers, Result, Resumption, Stop, StopPoint, StopReason, SyscallBoundary, SyscallFilter,
    Target, TargetError, TargetFile, ThreadId, ThreadInfo, WatchAccess, serve,
};

/// Bit of the first byte: the rest are bytes of the connection. Without it, they are packets.
const RAW: u8 = 1;
/// Maximum size of a reply in bytes: that of a packet, with its frame.
const MAX_REPLY: usize = 0x2_0000 + 4;
/// Size of memory in bytes.
const MEMORY: u64 = 1 << 20;
/// Slices of a run without a stop.
const MAX_SLICES: u8 = 20;

/// A client that sends its packets at once.
struct Client {
    packets: Cursor<Vec<u8>>,
    /// Bytes of the reply since its start.
    reply: usize,
}

impl Read for Client {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.packets.read(buffer)
    }
}

impl Write for Client {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for &byte in bytes {
            self.reply = if byte == b'$' { 1 } else { self.reply + 1 };
            assert!(self.reply <= MAX_REPLY);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection for Client {
    fn is_readable(&mut self) -> io::Result<bool> {
        Ok(true)
    }
}

/// A target that chooses each answer by the next byte of the input.
struct Fickle<'a> {
    input: Input<'a>,
    slices: u8,
}

impl Fickle<'_> {
    fn result<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Result<T> {
        match self.input.u8() {
            0xf0..0xf4 => Err(TargetError::Unsupported),
            0xf4..0xf8 => Err(TargetError::Errno(self.input.u8())),
            0xf8..0xfe => Err(TargetError::Refused(self.text())),
            0xfe => Err(TargetError::Fatal(self.text())),
            _ => Ok(value(self)),
        }
    }

    fn text(&mut self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = usize::from(self.input.u8());
        self.input.bytes(length).to_vec()
    }

    fn thread(&mut self) -> ThreadId {
        ThreadId {
            process: u32::from(self.input.u8() & 3),
            thread: self.input.u8().into(),
        }
    }

    fn stop(&mut self) -> Stop {
        let thread = self.thread();
        let access = [
            WatchAccess::Write,
            WatchAccess::Read,
            WatchAccess::ReadWrite,
        ];
        let reason = match self.input.u8() % 18 {
            0 => StopReason::Step,
            1 => StopReason::Signal(self.input.u8()),
            2 => StopReason::Breakpoint,
            3 => StopReason::HardwareBreakpoint,
            4 => StopReason::Watchpoint {
                access: access[usize::from(self.input.u8() % 3)],
                address: self.input.u64(),
            },
            5 => StopReason::HistoryBegin,
            6 => StopReason::HistoryEnd,
            7 => StopReason::Syscall {
                number: self.input.u32(),
                boundary: SyscallBoundary::Entry,
            },
            8 => StopReason::Syscall {
                number: self.input.u32(),
                boundary: SyscallBoundary::Return,
            },
            9 => StopReason::Exec { path: self.bytes() },
            10 => StopReason::Fork {
                child: self.thread(),
            },
            11 => StopReason::Vfork {
                child: self.thread(),
            },
            12 => StopReason::VforkDone,
            13 => StopReason::ThreadCreated,
            14 => StopReason::ThreadExited {
                status: self.input.u8(),
            },
            15 => StopReason::Exited {
                status: self.input.u8(),
            },
            16 => StopReason::Killed {
                signal: self.input.u8(),
            },
            _ => StopReason::NoResumedThreads,
        };
        Stop { thread, reason }
    }
}

impl Target for Fickle<'_> {
    fn capabilities(&self) -> Capabilities {
        Capabilities::all()
    }

    fn register_layout(&mut self, _: u32) -> Result<RegisterLayout> {
        self.result(|target| {
            let bits = target.input.u8();
            RegisterLayout {
                is_32_bit: bits & 1 != 0,
                is_linux: bits & 2 != 0,
                has_avx: bits & 4 != 0,
                has_control: bits & 8 != 0,
            }
        })
    }

    fn threads(&mut self) -> Result<Vec<ThreadInfo>> {
        self.result(|target| {
            let count = target.input.u8() % 8;
            let thread = |_| ThreadInfo {
                id: target.thread(),
                name: target.text(),
                processor: None,
                state: target.text(),
            };
            (0..count).map(thread).collect()
        })
    }

    fn current_stop(&mut self) -> Result<Stop> {
        self.result(Self::stop)
    }

    fn read_registers(&mut self, _: ThreadId) -> Result<Registers> {
        self.result(|target| Registers {
            rip: target.input.u64(),
            ..Registers::default()
        })
    }

    fn write_registers(&mut self, _: ThreadId, _: &Registers) -> Result<()> {
        self.result(|_| ())
    }

    fn read_memory(&mut self, _: ThreadId, address: u64, buffer: &mut [u8]) -> Result<usize> {
        if address >= MEMORY {
            return Err(TargetError::Errno(14));
        }
        let length = buffer.len();
        self.result(|target| {
            buffer.fill(target.input.u8());
            length >> (target.input.u8() & 15)
        })
    }

    fn write_memory(&mut self, _: ThreadId, _: u64, _: &[u8]) -> Result<()> {
        self.result(|_| ())
    }

    fn add_stop_point(&mut self, _: u32, point: StopPoint) -> Result<()> {
        if let StopPoint::Watchpoint {
            address, length, ..
        } = point
        {
            assert!(length > 0 && address.checked_add(length - 1).is_some());
        }
        self.result(|_| ())
    }

    fn set_conditions(&mut self, _: u32, _: u64, conditions: Vec<Condition>) -> Result<()> {
        for condition in conditions {
            let mut read = |_: u64, bytes: &mut [u8]| {
                bytes.fill(self.input.u8());
                self.input.u8() & 1 == 0
            };
            condition.holds(&Registers::default(), &mut read);
        }
        self.result(|_| ())
    }

    fn remove_stop_point(&mut self, _: u32, _: StopPoint) -> Result<()> {
        self.result(|_| ())
    }

    fn catch_syscalls(&mut self, _: u32, filter: SyscallFilter) -> Result<()> {
        if let SyscallFilter::Numbers(numbers) = filter {
            assert!(numbers.is_sorted());
        }
        self.result(|_| ())
    }

    fn pass_signals(&mut self, _: u64) -> Result<()> {
        self.result(|_| ())
    }

    fn report_threads(&mut self, _: bool) -> Result<()> {
        self.result(|_| ())
    }

    fn resume(&mut self, _: &Resumption) -> Result<()> {
        self.result(|_| ())
    }

    fn run(&mut self, console: &mut Vec<u8>) -> Result<Option<Stop>> {
        self.slices += 1;
        if self.slices.is_multiple_of(MAX_SLICES) {
            return Ok(Some(Stop {
                thread: ThreadId {
                    process: 1,
                    thread: 1,
                },
                reason: StopReason::Step,
            }));
        }
        console.extend(self.bytes());
        self.result(|target| (target.input.u8() & 1 == 0).then(|| target.stop()))
    }

    fn interrupt(&mut self) -> Result<Stop> {
        self.result(Self::stop)
    }

    fn detach(&mut self, _: Option<u32>) -> Result<()> {
        self.result(|_| ())
    }

    fn kill(&mut self, _: Option<u32>) -> Result<()> {
        self.result(|_| ())
    }

    fn attach(&mut self, _: u32) -> Result<Stop> {
        self.result(Self::stop)
    }

    fn restart(&mut self, _: &[Vec<u8>]) -> Result<Stop> {
        self.result(Self::stop)
    }

    fn monitor(&mut self, _: ThreadId, _: &str, output: &mut Vec<u8>) -> Result<()> {
        output.extend(self.bytes());
        self.result(|_| ())
    }

    fn auxiliary_vector(&mut self, _: u32) -> Result<Vec<u8>> {
        self.result(Self::bytes)
    }

    fn executable(&mut self, _: u32) -> Result<Vec<u8>> {
        self.result(Self::bytes)
    }

    fn signal_information(&mut self, _: ThreadId) -> Result<Vec<u8>> {
        self.result(Self::bytes)
    }

    fn processes(&mut self) -> Result<Vec<ProcessInfo>> {
        self.result(|target| {
            let process = target.input.u32();
            let (user, command) = (target.text(), target.text());
            vec![ProcessInfo {
                process,
                user,
                command,
                processors: vec![process],
            }]
        })
    }

    fn relocation(&mut self) -> Result<u64> {
        self.result(|target| target.input.u64())
    }

    fn open_file(&mut self, _: Option<u32>, _: &[u8]) -> Result<Box<dyn TargetFile>> {
        self.result(|target| Box::new(target.bytes()) as Box<dyn TargetFile>)
    }

    fn read_link(&mut self, _: Option<u32>, _: &[u8]) -> Result<Vec<u8>> {
        self.result(Self::bytes)
    }

    fn trace_branches(&mut self, _: ThreadId, _: bool) -> Result<()> {
        self.result(|_| ())
    }

    fn branches(&mut self, _: ThreadId, _: Option<u64>, limit: usize) -> Result<BranchHistory> {
        self.result(|target| {
            let count = usize::from(target.input.u8()).min(limit);
            let branch = |_| Branch {
                from: target.input.u64(),
                to: target.input.u32().into(),
            };
            let branches = (0..count).map(branch).collect();
            BranchHistory {
                branches,
                first: None,
                position: target.input.u8().into(),
            }
        })
    }
}

/// Frames each line of `text` as a packet.
fn frames(text: &[u8]) -> Vec<u8> {
    let mut frames = b"$QStartNoAckMode#b0".to_vec();
    for line in text.split(|&byte| byte == b'\n') {
        frames.push(b'$');
        frames.extend(line.iter().filter(|byte| !matches!(byte, b'#' | b'$')));
        frames.extend(b"#00");
    }
    frames
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let mode = input.u8();
    let length = usize::from(input.u16());
    let text = input.bytes(length);
    let packets = if mode & RAW == 0 {
        frames(text)
    } else {
        text.to_vec()
    };
    let client = Client {
        packets: Cursor::new(packets),
        reply: 0,
    };
    let _ = serve(client, &mut Fickle { input, slices: 0 });
});
