//! Conformance checks of the host's KVM: tiny guests with a known outcome run on a scratch virtual
//! machine.
//!
//! Some KVMs offer all capabilities and then execute guests wrongly: SYSCALL from CPL 3 does not
//! change the CPL, or CPL 0 is interpreted and instructions are missing. A kernel fails there in
//! ways that are hard to find. So the tiny guests run before a real guest does, and each failed
//! check names what is wrong.
//!
//! | module | subject |
//! |---|---|
//! | [`guest`], [`exit`] | how a guest and its exits are described |
//! | [`code`] | the assembler of the guests' code |
//! | [`guests`], [`instructions`] | the guests, as tables |
//! | [`scratch`], [`tables`] | the machine that runs them, and its memory |
//! | [`time_limit`], [`watchdog`] | interruption of a guest that does not end |
//! | [`speed`] | measurements that no check depends on: speed and single-stepping |

pub mod code;
pub mod exit;
pub mod guest;
pub mod guests;
pub mod instructions;
pub mod scratch;
pub mod speed;
pub mod tables;
pub mod time_limit;
pub mod watchdog;

use kvm_bindings::kvm_regs;
use kvm_ioctls::Kvm;
use std::fmt::Write as _;
use std::time::Duration;
use vbts_cpu::Reservation;
use vbts_cpu::state::{rflags, vector};

use self::exit::Exit;
use self::guest::{Expect, Guest, Mode, Setup};
use self::guests::GUESTS;
use self::instructions::{DATA, ROWS, Row};
use self::scratch::Scratch;
use self::tables::{A, D, KERNEL_STACK, has_error_code, selector};
use super::{KvmError, Named, ioctl};

/// How long a guest runs before it is interrupted on purpose.
const KICK: Duration = Duration::from_millis(2);

/// One check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The behaviour that it checks.
    pub name: String,
    /// The difference from the expected outcome, if there is one.
    pub outcome: Result<(), String>,
}

/// Results of the checks.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// In the order in which they were made.
    pub checks: Vec<Check>,
    /// Speed at CPL 0.
    pub cpl0: Option<speed::Speed>,
    /// Speed at CPL 3.
    pub cpl3: Option<speed::Speed>,
    /// Whether KVM_GUESTDBG_SINGLESTEP works at CPL 0 and at CPL 3. Nothing depends on it.
    pub single_step: Option<[Result<(), String>; 2]>,
}

impl Report {
    /// The first check that failed.
    pub fn failure(&self) -> Option<(&str, &str)> {
        self.checks
            .iter()
            .find_map(|c| Some((c.name.as_str(), c.outcome.as_ref().err()?.as_str())))
    }

    /// Whether checks were made and none failed.
    pub fn passed(&self) -> bool {
        !self.checks.is_empty() && self.failure().is_none()
    }
}

/// Checks `kvm`, which has the capabilities that [`super::device`] needs. It takes some
/// milliseconds, and at most a second if a guest does not end.
pub fn run(kvm: &Kvm) -> Report {
    let mut report = Report::default();
    let mut scratch = match Scratch::new(kvm, true) {
        Ok(scratch) => scratch,
        Err(error) => {
            report.checks.push(Check {
                name: "a virtual machine with one processor".into(),
                outcome: Err(error.to_string()),
            });
            return report;
        }
    };
    for guest in GUESTS {
        let outcome = run_guest(&mut scratch, guest).or_else(|wrong| match wrong {
            // A single failure can be caused by the machine below the host: QEMU's SVM loses the
            // interrupt shadow of STI if a host interrupt arrives in it. An incorrect KVM fails
            // every time.
            CheckFailure::Outcome(why) => {
                tracing::debug!(check = guest.name, why, "the check failed, trying again");
                run_guest(&mut scratch, guest)
            }
            stuck @ CheckFailure::Stuck(_) => Err(stuck),
        });
        if !add_result(&mut report, guest.name, outcome) {
            return report;
        }
    }
    for mode in [Mode::Kernel, Mode::User] {
        for row in ROWS
            .iter()
            .filter(|row| mode == Mode::Kernel || !row.privileged)
        {
            let outcome = run_instructions(&mut scratch, row, mode);
            let cpl = if mode == Mode::Kernel { 0 } else { 3 };
            let name = format!("{} at CPL {cpl}", row.name);
            if !add_result(&mut report, &name, outcome) {
                return report;
            }
        }
    }
    let outcome = check_tsc_offset(&mut scratch);
    if !add_result(
        &mut report,
        "the time-stamp counter keeps its offset from the host's",
        outcome,
    ) {
        return report;
    }
    let outcome = check_gs_base(&mut scratch);
    let name = "the base of GS of a thread survives KVM_RUN";
    if !add_result(&mut report, name, outcome) {
        return report;
    }
    report.cpl0 = speed::measure(&mut scratch, Mode::Kernel).ok();
    report.cpl3 = speed::measure(&mut scratch, Mode::User).ok();
    report.single_step =
        Some([Mode::Kernel, Mode::User].map(|mode| speed::single_step(&mut scratch, mode)));
    report
}

/// How a check failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckFailure {
    /// The guest had another outcome.
    Outcome(String),
    /// The guest did not end. No more guests can run on this machine.
    Stuck(String),
}

impl From<KvmError> for CheckFailure {
    fn from(error: KvmError) -> Self {
        Self::Outcome(error.to_string())
    }
}

/// Adds the result of a check. Returns whether more checks can be made.
fn add_result(report: &mut Report, name: &str, outcome: Result<(), CheckFailure>) -> bool {
    let (outcome, go_on) = match outcome {
        Ok(()) => (Ok(()), true),
        Err(CheckFailure::Outcome(why)) => (Err(why), true),
        Err(CheckFailure::Stuck(why)) => {
            (Err(format!("{why}; no further checks were made")), false)
        }
    };
    report.checks.push(Check {
        name: name.into(),
        outcome,
    });
    go_on
}

/// Checks that KVM keeps the guest's TSC offset. If the host's kernel marks its TSC as unstable,
/// KVM changes the offset at each load of the vCPU (`kvm_arch_vcpu_load`). The guest's timers,
/// which the VMM arms on the host's TSC, would then expire too early by the guest's TSC. Linux
/// before 5.16 does not report the offset: the check passes there.
fn check_tsc_offset(scratch: &mut Scratch) -> Result<(), CheckFailure> {
    const OFFSET: u64 = 1 << 40;
    if ioctl::set_tsc_offset(scratch.vcpu(), OFFSET).is_err() {
        return Ok(());
    }
    run_to_end(scratch)?;
    let offset = ioctl::tsc_offset(scratch.vcpu()).named("KVM_VCPU_TSC_OFFSET")?;
    match offset.wrapping_sub(OFFSET) as i64 {
        0 => Ok(()),
        moved => Err(CheckFailure::Outcome(format!(
            "KVM has changed it by {moved}: the host's kernel marks its time-stamp counter as unstable"
        ))),
    }
}

/// Checks that the base of GS stays, from which native code of the software CPU computes addresses
/// when it takes over.
fn check_gs_base(scratch: &mut Scratch) -> Result<(), CheckFailure> {
    let Ok(reservation) = Reservation::new() else {
        // There will be no native code.
        return Ok(());
    };
    reservation.select();
    run_to_end(scratch)?;
    match reservation.is_selected() {
        true => Ok(()),
        false => Err(CheckFailure::Outcome("KVM_RUN has changed it".into())),
    }
}

/// Runs a guest at CPL 0 that does nothing but end.
fn run_to_end(scratch: &mut Scratch) -> Result<(), CheckFailure> {
    let (code, exit) = Mode::Kernel.end();
    scratch.start(Mode::Kernel, code)?;
    let found = scratch.run(None)?;
    match found == exit {
        true => Ok(()),
        false => Err(unexpected_exit(scratch, &exit, &found)),
    }
}

/// Runs one guest.
///
/// # Errors
/// The difference from the expected outcome.
pub fn run_guest(scratch: &mut Scratch, guest: &Guest) -> Result<(), CheckFailure> {
    scratch.start(guest.mode, (guest.code)())?;
    match guest.setup {
        Setup::Nothing => {}
        Setup::Interrupt(vector) => {
            ioctl::interrupt(scratch.vcpu(), vector).named("KVM_INTERRUPT")?;
        }
        Setup::Nmi => scratch.vcpu().nmi().named("KVM_NMI")?,
        Setup::Window => scratch.request_window(true),
    }
    guest
        .expect
        .iter()
        .try_for_each(|expect| expect_next(scratch, guest, expect))
}

/// Runs to the next exit, and compares it with `expect`.
fn expect_next(scratch: &mut Scratch, guest: &Guest, expect: &Expect) -> Result<(), CheckFailure> {
    let (wanted, answer) = match *expect {
        Expect::PageBits(address, bits) => {
            let entry = scratch.page_entry(address) & (A | D);
            return compare("accessed and dirty bits", entry, bits);
        }
        Expect::Rax(rax) => return compare("RAX", scratch.regs()?.rax, rax),
        Expect::Halt => (Exit::Halt, None),
        Expect::Out(port, value) => (Exit::Out(port, value), None),
        Expect::In(port, value) => (Exit::In(port), Some(value)),
        Expect::MmioWrite(gpa, size, value) => (Exit::MmioWrite(gpa, size, value), None),
        Expect::MmioRead(gpa, size, value) => (Exit::MmioRead(gpa, size), Some(value)),
        Expect::Wrmsr(index, value) => (Exit::Wrmsr(index, value), Some(0)),
        Expect::WrmsrRefused(index, value) => (Exit::Wrmsr(index, value), None),
        Expect::Rdmsr(index, value) => (Exit::Rdmsr(index), Some(value)),
        Expect::TaskPriority(value) => (Exit::TaskPriority(value), None),
        Expect::Window(_) => (Exit::Window, None),
        Expect::Kicked(_) => {
            scratch.interrupt_after(KICK);
            (Exit::Stuck, None)
        }
        Expect::Event(vector, ..) => (Exit::Event(vector), None),
        Expect::PageFault(..) => (Exit::Event(vector::PF), None),
        Expect::SystemCall(_) => (Exit::SystemCall, None),
    };
    let exit = scratch.run(answer)?;
    if exit != wanted {
        return Err(unexpected_exit(scratch, &wanted, &exit));
    }
    match *expect {
        Expect::Window(vector) | Expect::Kicked(vector) => {
            scratch.resume();
            scratch.request_window(false);
            ioctl::interrupt(scratch.vcpu(), vector).named("KVM_INTERRUPT")?;
            Ok(())
        }
        Expect::Event(vector, error, cpl) => {
            let error = has_error_code(vector).then_some(error.unwrap_or_default());
            check_frame(scratch, guest, cpl, error)
        }
        Expect::PageFault(error, cpl, address) => {
            compare("CR2", scratch.sregs()?.cr2, address)?;
            check_frame(scratch, guest, cpl, Some(error))
        }
        Expect::SystemCall(syscall) => check_system_call(scratch, guest, syscall),
        _ => Ok(()),
    }
}

/// Describes an unexpected exit, with its place.
fn unexpected_exit(scratch: &Scratch, wanted: &Exit, exit: &Exit) -> CheckFailure {
    let mut why = format!("{exit} instead of {wanted}");
    if let (Ok(regs), Ok(sregs)) = (scratch.regs(), scratch.sregs()) {
        let _ = write!(why, ", at CPL {}, RIP {:#x}", sregs.ss.dpl, regs.rip);
        if let Exit::Event(vector) = *exit {
            let _ = write!(why, ", {}", describe_frame(scratch, &regs, vector));
        }
    }
    if *exit == Exit::Stuck {
        CheckFailure::Stuck(why)
    } else {
        CheckFailure::Outcome(why)
    }
}

fn describe_frame(scratch: &Scratch, regs: &kvm_regs, vector: u8) -> String {
    let mut at = regs.rsp;
    let mut text = String::new();
    if has_error_code(vector) {
        let _ = write!(text, "error code {:#x}, ", scratch.read(at));
        at += 8;
    }
    let _ = write!(
        text,
        "from CS {:#x}, RIP {:#x}",
        scratch.read(at + 8),
        scratch.read(at)
    );
    text
}

fn compare(what: &str, is: u64, should: u64) -> Result<(), CheckFailure> {
    if is == should {
        Ok(())
    } else {
        Err(CheckFailure::Outcome(format!(
            "{what} is {is:#x} instead of {should:#x}"
        )))
    }
}

/// Checks that the processor is at CPL 0 in a handler, with the frame of an event at `cpl` on the
/// stack (SDM Vol. 3A 6.14.2).
fn check_frame(
    scratch: &Scratch,
    guest: &Guest,
    cpl: u8,
    error: Option<u32>,
) -> Result<(), CheckFailure> {
    let (regs, sregs) = (scratch.regs()?, scratch.sregs()?);
    compare(
        "CS in the handler",
        sregs.cs.selector.into(),
        selector::KERNEL_CS.into(),
    )?;
    compare("CPL in the handler", sregs.ss.dpl.into(), 0)?;
    compare("IF in the handler", regs.rflags & rflags::IF, 0)?;
    let size = if error.is_some() { 48 } else { 40 };
    compare("RSP in the handler", regs.rsp, KERNEL_STACK - size)?;
    let mut at = regs.rsp;
    if let Some(error) = error {
        compare("the error code", scratch.read(at), error.into())?;
        at += 8;
    }
    let mode = if cpl == 0 { Mode::Kernel } else { guest.mode };
    let (_, stack, cs, ss) = mode.layout();
    if guest.mode != Mode::Compatibility {
        compare("RIP in the frame", scratch.read(at), regs.r14)?;
    }
    compare("CS in the frame", scratch.read(at + 8), cs.into())?;
    compare("RSP in the frame", scratch.read(at + 24), stack)?;
    compare("SS in the frame", scratch.read(at + 32), ss.into())
}

/// Checks that the processor is at CPL 0 at the entry point of SYSCALL or SYSENTER (SDM Vol. 2B).
fn check_system_call(scratch: &Scratch, guest: &Guest, syscall: bool) -> Result<(), CheckFailure> {
    let (regs, sregs) = (scratch.regs()?, scratch.sregs()?);
    compare("CPL after the system call", sregs.ss.dpl.into(), 0)?;
    compare(
        "CS after the system call",
        sregs.cs.selector.into(),
        selector::KERNEL_CS.into(),
    )?;
    compare(
        "SS after the system call",
        sregs.ss.selector.into(),
        selector::KERNEL_SS.into(),
    )?;
    compare("IF after the system call", regs.rflags & rflags::IF, 0)?;
    if syscall {
        compare("RCX after SYSCALL", regs.rcx, regs.r14)?;
        compare("R11 after SYSCALL", regs.r11, guest.mode.flags())?;
        compare("RSP after SYSCALL", regs.rsp, guest.mode.layout().1)
    } else {
        compare("RSP after SYSENTER", regs.rsp, KERNEL_STACK)
    }
}

/// Runs a row of instructions at the CPL of `mode`.
fn run_instructions(scratch: &mut Scratch, row: &Row, mode: Mode) -> Result<(), CheckFailure> {
    let data = if mode == Mode::Kernel {
        DATA[0]
    } else {
        DATA[1]
    };
    let (last, wanted) = mode.end();
    let mut code = (row.code)().to_vec();
    let mut end = mode.layout().0 + code.len() as u64;
    code.extend(last);
    if wanted == Exit::Halt {
        // RIP is after HLT, but at UD2, which faults.
        end += last.len() as u64;
    }
    scratch.start(mode, &code)?;
    let mut regs = scratch.regs()?;
    regs.r8 = data;
    scratch.set_regs(&regs)?;
    let exit = scratch.run(None)?;
    if exit != wanted {
        return Err(unexpected_exit(scratch, &wanted, &exit));
    }
    let regs = scratch.regs()?;
    let rip = if mode == Mode::Kernel {
        regs.rip
    } else {
        scratch.read(regs.rsp)
    };
    compare("RIP at the end", rip, end)?;
    compare("RAX", regs.rax, row.result)
}

#[cfg(test)]
mod tests;
