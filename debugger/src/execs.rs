//! Programs that the process executes one after the other: each exec stops the client, forward and
//! backward, so that it reads the files of the other program.

use anyhow::anyhow;
use vbts_gdb::{StopReason, ThreadId};
use vbts_host::exit::Failure;

use crate::debugger::Debugger;
use crate::replay::{EventKind, TaskEvent};

/// The number of CS, and the selector that Linux gives it in a 32-bit program (`__USER32_CS`).
const CS: usize = 1;
const USER32_CS: u16 = 0x23;

impl Debugger {
    /// The execs of the process in the session.
    fn execs(&self) -> impl Iterator<Item = &TaskEvent> {
        let events = self.replay.events.iter();
        events.filter(|event| {
            event.kind == EventKind::Exec
                && event.thread.process == self.process
                && event.time > self.begin
                && event.time <= self.end
        })
    }

    /// The index of the program that the process executes at a position.
    pub(crate) fn program_at(&self, time: u64) -> usize {
        self.execs().filter(|exec| exec.time <= time).count()
    }

    /// The path of the program that the process executes at a position.
    pub(crate) fn program_path(&self, time: u64) -> Option<&[u8]> {
        let path = self.programs.get(self.program_at(time))?;
        Some(path)
            .filter(|path| !path.is_empty())
            .map(Vec::as_slice)
    }

    /// The stop of the client for an exec. Forward, it is at the exec, in the new program.
    pub(crate) fn exec_reason(&self, time: u64) -> Option<StopReason> {
        let path = self.program_path(time)?.to_vec();
        Some(StopReason::Exec { path })
    }

    /// The stop for an exec at `time`, on the way back: in the former program, in front of the
    /// system call.
    pub(crate) fn former_program(
        &mut self,
        thread: ThreadId,
        time: u64,
    ) -> Result<(u64, ThreadId, StopReason), Failure> {
        let path = self
            .program_path(time.saturating_sub(1))
            .map(<[u8]>::to_vec);
        let path = path.unwrap_or_default();
        let call = self.search_intervals(time, |debugger, start, search| {
            debugger.last_instruction(thread, start, search)
        })?;
        let call = call.unwrap_or(self.begin);
        Ok((call, thread, StopReason::Exec { path }))
    }

    /// Notes which program `thread` executes now.
    pub(crate) fn note_program(&mut self, thread: ThreadId) {
        self.program = self.program_at(self.replay.now());
        self.note_width(thread);
    }

    /// Notes whether the program that `thread` executes now has 32 bits.
    pub(crate) fn note_width(&mut self, thread: ThreadId) {
        if let Some(registers) = self.registers_of(thread) {
            self.is_32_bit = registers.segments[CS] == USER32_CS;
        }
    }

    /// Refuses a position at which the process executes another program than the client knows.
    pub(crate) fn check_program(&self, time: u64) -> Result<(), Failure> {
        match self.program_at(time) == self.program {
            true => Ok(()),
            false => Err(anyhow!(
                "the process executes another program then: continue or reverse-continue leads \
                 there, and catch exec stops there"
            )
            .into()),
        }
    }
}
