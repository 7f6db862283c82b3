//! A process or the machine of a replay as the target of a server of GDB's protocol.

use vbts_gdb::{
    BranchHistory, Capabilities, Condition, Direction, RegisterLayout, Registers, Result,
    Resumption, Stop, StopPoint, StopReason, SyscallFilter, Target, TargetError, TargetFile,
    ThreadId, ThreadInfo,
};
use vbts_host::exit::Failure;

use crate::debugger::{Debugger, EFAULT, ESRCH, fatal};
use crate::kernel_view::has_avx;
use crate::program_files::ENOENT;
use crate::replay::EventKind;

/// SIGILL, SIGTRAP, SIGBUS, SIGFPE and SIGSEGV, which have an address.
const FAULTS: [u8; 5] = [4, 5, 7, 8, 11];
/// The name of the kernel's file for GDB.
const KERNEL_FILE: &[u8] = b"/kernel";
/// SIGINT of Linux.
const SIGINT: u8 = 2;

/// What is known of the recorded run alone.
pub(crate) fn unrecorded() -> TargetError {
    TargetError::Refused("the program was changed, and what it does is not recorded".into())
}

impl Target for Debugger {
    fn capabilities(&self) -> Capabilities {
        let mut capabilities =
            Capabilities::REVERSE | Capabilities::BRANCH_TRACE | Capabilities::CONDITIONS;
        if self.is_kernel_view {
            return capabilities;
        }
        capabilities |= Capabilities::PASS_SIGNALS | Capabilities::SIGNAL_INFORMATION;
        capabilities |= Capabilities::PROCESS_EVENTS;
        let has_calls = self.replay.system_call().is_some();
        capabilities.set(Capabilities::CATCH_SYSCALLS, has_calls);
        capabilities.set(Capabilities::AUXILIARY_VECTOR, self.auxiliary.is_some());
        let path = self.program_path(self.replay.now());
        capabilities.set(Capabilities::EXECUTABLE, path.is_some());
        capabilities
    }

    fn register_layout(&mut self, _process: u32) -> Result<RegisterLayout> {
        // GDB asks once, and a kernel enables AVX at its start.
        let has_avx = self.is_kernel_view || self.replay.cpu().is_some_and(has_avx);
        Ok(RegisterLayout {
            is_32_bit: self.is_32_bit,
            is_linux: !self.is_kernel_view,
            has_avx,
            has_control: self.is_kernel_view,
        })
    }

    fn threads(&mut self) -> Result<Vec<ThreadInfo>> {
        if self.has_detached {
            return Ok(Vec::new());
        }
        let mut threads = self.thread_list();
        threads.extend(self.other_threads());
        Ok(threads)
    }

    fn current_stop(&mut self) -> Result<Stop> {
        Ok(self.stop.clone())
    }

    fn read_registers(&mut self, thread: ThreadId) -> Result<Registers> {
        self.registers_of(thread).ok_or(TargetError::Errno(ESRCH))
    }

    fn write_registers(&mut self, thread: ThreadId, registers: &Registers) -> Result<()> {
        match self.is_kernel_view {
            true => self.change_processor(thread, registers),
            false => self.change_registers(thread, registers),
        }
    }

    fn read_memory(&mut self, thread: ThreadId, address: u64, buffer: &mut [u8]) -> Result<usize> {
        match self.read_as(thread, address, buffer) {
            0 if !buffer.is_empty() => Err(TargetError::Errno(EFAULT)),
            read => Ok(read),
        }
    }

    fn write_memory(&mut self, thread: ThreadId, address: u64, bytes: &[u8]) -> Result<()> {
        match self.is_kernel_view {
            true => self.change_machine_memory(thread, address, bytes),
            false => self.change_memory(address, bytes),
        }
    }

    fn add_stop_point(&mut self, process: u32, point: StopPoint) -> Result<()> {
        let points = self.points_of(process);
        points.map_or(Ok(()), |points| points.add(point))
    }

    fn remove_stop_point(&mut self, process: u32, point: StopPoint) -> Result<()> {
        if let Some(points) = self.points_of(process) {
            points.remove(point);
        }
        Ok(())
    }

    fn set_conditions(
        &mut self,
        process: u32,
        address: u64,
        conditions: Vec<Condition>,
    ) -> Result<()> {
        let points = self.points_of(process);
        points.map_or(Ok(()), |points| points.set_conditions(address, conditions))
    }

    fn catch_syscalls(&mut self, _process: u32, filter: SyscallFilter) -> Result<()> {
        self.caught_calls = filter;
        Ok(())
    }

    fn pass_signals(&mut self, signals: u64) -> Result<()> {
        self.passed_signals = signals;
        Ok(())
    }

    fn resume(&mut self, resumption: &Resumption) -> Result<()> {
        self.follow_resumed(&resumption.threads);
        let threads = self.threads()?.into_iter().map(|thread| thread.id);
        self.stopped_threads = threads
            .filter(|id| resumption.threads.iter().all(|(resumed, _)| resumed != id))
            .collect();
        self.resumption = Some(resumption.clone());
        self.search = None;
        self.interrupted = None;
        let stopped = self.processor_of(self.stop.thread);
        self.replay.leave_breakpoint(stopped);
        if resumption.direction == Direction::Forward {
            self.resume_departed(&resumption.threads);
        }
        Ok(())
    }

    fn run(&mut self, console: &mut Vec<u8>) -> Result<Option<Stop>> {
        if let Some(stop) = self.end_of_vfork() {
            self.stop = stop.clone();
            return Ok(Some(stop));
        }
        let direction = self
            .resumption
            .as_ref()
            .map(|resumption| resumption.direction);
        let ran = match direction {
            Some(Direction::Backward) => self.run_backward(),
            _ => self.run_forward(),
        };
        console.append(&mut self.replay.agent.output);
        if self.is_kernel_view {
            console.append(&mut self.replay.machine.take_console());
        }
        let stop = ran.map_err(fatal)?;
        if let Some(stop) = &stop {
            self.stop = stop.clone();
            self.resumption = None;
            self.note_fork(stop);
            if matches!(stop.reason, StopReason::Exec { .. }) {
                self.note_program(stop.thread);
            }
        }
        Ok(stop)
    }

    fn interrupt(&mut self) -> Result<Stop> {
        if let Some(search) = self.search.take() {
            self.replay.seek(search.from).map_err(fatal)?;
        }
        self.resumption = None;
        self.stop = self.stop_here(StopReason::Signal(SIGINT));
        Ok(self.stop.clone())
    }

    fn detach(&mut self, process: Option<u32>) -> Result<()> {
        self.leave(process);
        Ok(())
    }

    fn kill(&mut self, process: Option<u32>) -> Result<()> {
        self.detach(process)
    }

    fn monitor(&mut self, thread: ThreadId, command: &str, output: &mut Vec<u8>) -> Result<()> {
        let done = self.command(thread, command, output);
        // What is to be shown came first.
        output.splice(..0, self.replay.agent.output.drain(..));
        done
    }

    fn auxiliary_vector(&mut self, _process: u32) -> Result<Vec<u8>> {
        self.read_auxiliary().ok_or(TargetError::Errno(ESRCH))
    }

    /// The child of a fork has the program of its parent.
    fn executable(&mut self, _process: u32) -> Result<Vec<u8>> {
        let path = self.program_path(self.replay.now());
        path.map(<[u8]>::to_vec).ok_or(TargetError::Errno(ESRCH))
    }

    fn trace_branches(&mut self, thread: ThreadId, enable: bool) -> Result<()> {
        self.set_traced(thread, enable)
    }

    fn branches(
        &mut self,
        thread: ThreadId,
        since: Option<u64>,
        limit: usize,
    ) -> Result<BranchHistory> {
        self.traced_branches(thread, since, limit)
    }

    /// GDB asks for the mappings of the process, as Linux shows them in /proc, and for the program
    /// and its libraries if its host does not have them. In the kernel's view there is the file of
    /// the kernel.
    fn open_file(&mut self, _process: Option<u32>, path: &[u8]) -> Result<Box<dyn TargetFile>> {
        if self.is_kernel_view {
            return match path == KERNEL_FILE && !self.kernel_file.is_empty() {
                true => Ok(Box::new(self.kernel_file.clone())),
                false => Err(TargetError::Errno(ENOENT)),
            };
        }
        if !self.client_has_files && self.files.is_none() {
            return Err(TargetError::Unsupported);
        }
        let child = self.forked.as_ref().map(|child| child.thread.process);
        let is_known = [Some(self.process), child]
            .into_iter()
            .flatten()
            .any(|process| {
                // The child has the mappings of its parent.
                is_maps_of(process, path)
            });
        let maps = self.replay.agent.maps.get(&self.process);
        match (maps.filter(|_| is_known), &self.files) {
            (Some(maps), _) => Ok(Box::new(maps.clone())),
            (None, Some(files)) => files.open(path),
            (None, None) => Err(TargetError::Errno(ENOENT)),
        }
    }

    fn signal_information(&mut self, thread: ThreadId) -> Result<Vec<u8>> {
        if self.replay.departure.is_some() {
            return Err(unrecorded());
        }
        let now = self.replay.now();
        let mut events = self.replay.events.iter();
        let found = events.find_map(|event| match &event.kind {
            EventKind::Signal(_, info) if event.time == now && event.thread == thread => {
                Some(match self.is_32_bit {
                    true => narrowed(info),
                    false => info.clone(),
                })
            }
            _ => None,
        });
        found.ok_or_else(|| TargetError::Refused("the thread has not stopped for a signal".into()))
    }
}

/// The `siginfo_t` of a 32-bit program, from that of a 64-bit kernel: pointers have 4 bytes.
fn narrowed(info: &[u8]) -> Vec<u8> {
    let mut narrow = vec![0; info.len()];
    let mut copy = |from: usize, to: usize, len: usize| {
        let source = info.get(from..from + len);
        if let (Some(source), Some(target)) = (source, narrow.get_mut(to..to + len)) {
            target.copy_from_slice(source);
        }
    };
    // The signal, an error, and the code. The parts that depend on them are aligned to 8 bytes in
    // the kernel: an address, or two numbers and a value.
    copy(0, 0, 12);
    copy(16, 12, 8);
    copy(24, 20, 4);
    if info.first().is_some_and(|signal| FAULTS.contains(signal)) {
        copy(24, 16, 4);
    }
    narrow
}

/// Returns whether `path` is that of the mappings of `process` or of one of its threads.
fn is_maps_of(process: u32, path: &[u8]) -> bool {
    let path = std::str::from_utf8(path).unwrap_or_default();
    let rest = path.strip_prefix(&format!("/proc/{process}/"));
    match rest
        .map(|rest| rest.split('/').collect::<Vec<_>>())
        .as_deref()
    {
        Some(["maps"]) => true,
        Some(["task", thread, "maps"]) => thread.parse::<u32>().is_ok(),
        _ => false,
    }
}

impl Debugger {
    /// Serves a client until it ends the session.
    ///
    /// # Errors
    /// The connection fails, or the replay.
    pub fn serve(
        &mut self,
        connection: impl vbts_gdb::Connection,
    ) -> std::result::Result<(), Failure> {
        match vbts_gdb::serve(connection, self) {
            Ok(_) => Ok(()),
            Err(error) => Err(anyhow::Error::from(error).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_of_a_32_bit_program_has_short_pointers() {
        let mut info = vec![0; 48];
        (info[0], info[8], info[16], info[24]) = (11, 1, 0x10, 7);
        let narrow = narrowed(&info);
        assert_eq!(
            (narrow[0], narrow[8], narrow[12], narrow[16]),
            (11, 1, 0x10, 7)
        );
        // A process and a user have sent another one, with a value.
        (info[0], info[20]) = (10, 5);
        let narrow = narrowed(&info);
        assert_eq!((narrow[12], narrow[16], narrow[20]), (0x10, 5, 7));
        assert_eq!(narrow.len(), info.len());
    }

    #[test]
    fn mappings_are_the_only_files() {
        for path in ["/proc/30/maps", "/proc/30/task/31/maps"] {
            assert!(is_maps_of(30, path.as_bytes()));
        }
        for path in [
            "/proc/31/maps",
            "/proc/30/task/x/maps",
            "/proc/30/mem",
            "maps",
            "/etc/passwd",
        ] {
            assert!(!is_maps_of(30, path.as_bytes()), "{path}");
        }
    }
}
