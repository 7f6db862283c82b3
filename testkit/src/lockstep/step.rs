//! Steps of a program: what each is, how often a family has it, and its code.

use iced_x86::code_asm::*;

use crate::Emit;
use crate::lockstep::instruction::{Group, Instructions};
use crate::lockstep::layout::{
    ALIAS, Area, DATA, DATA_PAGES, DEVICE, FRAME_COUNT, FRAMES, INTERRUPTS, WINDOW_PAGES, Window,
};
use crate::lockstep::{fields, slot, system};
use crate::platform::{INTERRUPT_PORT, NMI_PORT};
use crate::random::Random;

/// The kind of a step of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An instruction of general registers.
    Integer,
    /// An instruction of vector registers.
    Vector,
    /// A conditional branch across a few steps.
    Branch,
    /// A call of a routine beside the main code.
    Routine,
    /// Two PUSH and two POP.
    Stack,
    /// A string instruction.
    String,
    /// Accesses close to one base register.
    Fields,
    /// Some calls of a slot.
    Slot,
    /// Calls of all slots of a page.
    Sweep,
    /// Another frame for a page, and INVLPG.
    Remap,
    /// As `Remap` without INVLPG.
    RemapStale,
    /// Other flags of a page, and INVLPG.
    Flags,
    /// As `Flags` without INVLPG.
    FlagsStale,
    /// INVLPG.
    Invalidate,
    /// MOV to CR3 of the current value or of another one.
    AddressSpace,
    /// Another slot in the place of one.
    Replace,
    /// Another byte in a slot.
    Patch,
    /// LDMXCSR.
    Mxcsr,
    /// Another value of a bit of CR0, CR4 or XCR0 that vector instructions depend on.
    Control,
    /// Other bits of IA32_DEBUGCTL.
    DebugCtl,
    /// An interrupt or NMI by a device.
    Interrupt,
    /// STI or CLI.
    Mask,
    /// CPUID.
    Serialize,
    /// PAUSE.
    Pause,
    /// RFLAGS.TF for some instructions.
    Trap,
    /// Breakpoints and watchpoints.
    Breakpoint,
    /// INT n.
    SoftwareInterrupt,
    /// A short instruction of operating systems, or POPFQ.
    System,
    /// Another value of a bit that paging depends on.
    Paging,
    /// An access to a device, which returns the time.
    Device,
    /// A performance counter: its event, its value, or RDPMC.
    Counter,
}

/// Kinds of steps with their weights.
pub(super) type Weights = &'static [(Kind, u64)];

/// Draws a kind.
pub(super) fn pick(weights: Weights, random: &mut Random) -> Kind {
    let total = weights.iter().map(|w| w.1).sum();
    let mut left = random.below(total);
    for &(kind, weight) in weights {
        if left < weight {
            return kind;
        }
        left -= weight;
    }
    Kind::Integer
}

/// Labels of the main code around a step.
pub(super) struct Labels<'a> {
    /// Those of the steps from the next one on.
    pub following: &'a [CodeLabel],
    /// The end of the round, where it goes on after a fault.
    pub end: CodeLabel,
    /// The routines.
    pub routines: &'a [CodeLabel],
}

/// Steps that a conditional branch skips at most.
pub(super) const SKIPPED: usize = 4;

/// Writes the code of steps.
#[derive(Debug)]
pub(super) struct Emitter {
    pub instructions: Instructions,
    pub area: Area,
}

impl Emitter {
    /// Writes the code of a step. All about the step but its kind is drawn here.
    pub fn emit(
        &mut self,
        a: &mut CodeAssembler,
        kind: Kind,
        random: &mut Random,
        labels: &Labels<'_>,
    ) -> Emit {
        match kind {
            Kind::Integer => self.instruction(a, Group::Any, random),
            Kind::Vector => self.instruction(a, Group::Vector, random),
            Kind::Branch => {
                let skipped = random.below(SKIPPED as u64) as usize;
                branch(a, random.below(16), labels.following[skipped])
            }
            Kind::Routine => a.call(random.pick(labels.routines)),
            Kind::Stack => {
                let (x, y) = (scratch(random), scratch(random));
                a.push(x)?;
                a.push(y)?;
                a.pop(x)?;
                a.pop(y)
            }
            Kind::String => string(a, random),
            Kind::Fields => fields::emit(a, &mut self.instructions, random),
            Kind::Slot => self.slot(a, random, labels.end),
            Kind::Sweep => self.sweep(a, random, labels.end),
            Kind::Remap | Kind::RemapStale | Kind::Flags | Kind::FlagsStale => {
                system::page(a, kind, random)
            }
            Kind::Invalidate => {
                let window = window(random);
                a.mov(rax, window.page(random.below(WINDOW_PAGES)))?;
                a.invlpg(byte_ptr(rax))
            }
            Kind::AddressSpace => system::address_space(a, random),
            Kind::Replace => replace(a, random),
            Kind::Patch => {
                let at = slot_address(window_to_write(random), random) + random.below(slot::SIZE);
                a.mov(rax, at)?;
                match random.below(3) {
                    0 => a.xor(byte_ptr(rax), 1 << random.below(7)),
                    1 => a.mov(byte_ptr(rax), random.bits() as i8 as i32),
                    _ => a.mov(byte_ptr(rax), dil),
                }
            }
            Kind::Mxcsr => {
                a.mov(dword_ptr(DATA + 0x1FF8), system::mxcsr(random))?;
                match random.chance(50) {
                    true => a.ldmxcsr(dword_ptr(DATA + 0x1FF8)),
                    false => a.vldmxcsr(dword_ptr(DATA + 0x1FF8)),
                }
            }
            Kind::Control => system::control(a, random),
            Kind::DebugCtl => system::debug_control(a, random),
            Kind::Interrupt => match random.chance(80) {
                true => {
                    a.mov(eax, u32::from(INTERRUPTS.start) + random.below(8) as u32)?;
                    a.out(INTERRUPT_PORT, al)
                }
                false => a.out(NMI_PORT, al),
            },
            Kind::Mask if random.chance(60) => a.sti(),
            Kind::Mask => a.cli(),
            Kind::Serialize => {
                a.xor(eax, eax)?;
                a.push(rbx)?;
                a.cpuid()?;
                a.pop(rbx)
            }
            Kind::Pause => a.pause(),
            Kind::Trap => {
                a.pushfq()?;
                a.or(dword_ptr(rsp), 0x100)?;
                a.popfq()
            }
            Kind::Breakpoint => self.breakpoint(a, random),
            Kind::SoftwareInterrupt => a.int(i32::from(INTERRUPTS.start) + random.below(8) as i32),
            Kind::System => system::short(a, random),
            Kind::Paging => system::paging(a, random),
            Kind::Device => device(a, random),
            Kind::Counter => system::counter(a, random),
        }
    }

    fn instruction(&mut self, a: &mut CodeAssembler, group: Group, random: &mut Random) -> Emit {
        let instruction = self.instructions.next(random, group);
        a.add_instruction(instruction)
    }

    /// Has the program go on at `label` after a fault.
    pub fn recover_at(&self, a: &mut CodeAssembler, label: CodeLabel) -> Emit {
        a.lea(rax, ptr(label))?;
        a.mov(qword_ptr(self.area.recovery()), rax)
    }

    /// Calls a slot one or more times, each with the result of the last call as its argument.
    fn slot(&self, a: &mut CodeAssembler, random: &mut Random, end: CodeLabel) -> Emit {
        let (mut again, mut after) = (a.create_label(), a.create_label());
        let window = window(random);
        let at = slot_address(window, random);
        self.recover_at(a, after)?;
        a.mov(edi, random.bits() as u32)?;
        let most = random.pick(&[3, 3, 40]);
        a.mov(r14d, 1 + random.below(most) as u32)?;
        a.set_label(&mut again)?;
        match window {
            Window::Identity if random.chance(70) => a.call(at)?,
            _ => {
                a.mov(rax, at)?;
                a.call(rax)?;
            }
        }
        a.add(edi, eax)?;
        a.dec(r14d)?;
        a.jnz(again)?;
        a.add(qword_ptr(DATA + 0x1FF0), rdi)?;
        a.set_label(&mut after)?;
        self.recover_at(a, end)
    }

    /// Calls all slots of a page.
    fn sweep(&self, a: &mut CodeAssembler, random: &mut Random, end: CodeLabel) -> Emit {
        let (mut again, mut after) = (a.create_label(), a.create_label());
        let last = a.create_label();
        let first = window(random).page(random.below(DATA_PAGES));
        a.mov(r14, first)?;
        a.set_label(&mut again)?;
        self.recover_at(a, after)?;
        a.mov(edi, r14d)?;
        a.call(r14)?;
        a.add(qword_ptr(DATA + 0x1FF0), rax)?;
        a.set_label(&mut after)?;
        a.add(r14, slot::SIZE as i32)?;
        a.test(r14d, 0xFFF)?;
        a.jnz(again)?;
        let mut last = last;
        a.set_label(&mut last)?;
        self.recover_at(a, end)
    }

    /// Sets breakpoints at code and watchpoints at data, or none.
    fn breakpoint(&self, a: &mut CodeAssembler, random: &mut Random) -> Emit {
        let mut enabled = 0x400;
        for (n, register) in [dr0, dr1, dr2, dr3].into_iter().enumerate() {
            if random.chance(40) {
                let kind = random.pick(&[0, 1, 3]);
                let at = match kind {
                    0 => slot_address(window(random), random),
                    _ => random.pick(&[DATA, ALIAS]) + 8 * random.below(0x40),
                };
                a.mov(rax, at)?;
                a.mov(register, rax)?;
                let len = if kind == 0 { 0 } else { random.below(4) };
                enabled |= 1 << (2 * n) | kind << (16 + 4 * n) | len << (18 + 4 * n);
            }
        }
        if random.chance(50) {
            enabled = 0x400;
        }
        a.mov(rax, enabled)?;
        a.mov(dr7, rax)
    }
}

/// A register that the main code does not depend on.
pub(super) fn scratch(random: &mut Random) -> AsmRegister64 {
    random.pick(&[rax, rcx, rdx, rsi, rdi, r8, r9, r10, r11, r14])
}

/// A window to call or to invalidate.
fn window(random: &mut Random) -> Window {
    random.pick(&[Window::Identity, Window::Low, Window::High])
}

/// A window to write to: mostly the one whose pages are always there.
fn window_to_write(random: &mut Random) -> Window {
    let identity = Window::Identity;
    random.pick(&[identity, identity, identity, Window::Low, Window::High])
}

/// The address of a slot, often one of the last of a page.
fn slot_address(window: Window, random: &mut Random) -> u64 {
    let slot = match random.below(4) {
        0 => slot::LAST,
        1 => 1 + random.below(4),
        _ => 1 + random.below(slot::LAST - 1),
    };
    window.page(random.below(DATA_PAGES)) + slot::SIZE * slot
}

/// Writes another slot over one of a frame, through its physical address.
fn replace(a: &mut CodeAssembler, random: &mut Random) -> Emit {
    let slot = match random.below(5) {
        0 => 0,
        1 => slot::LAST,
        2 => 1 + random.below(4),
        _ => 1 + random.below(slot::LAST - 1),
    };
    let at = FRAMES + (random.below(FRAME_COUNT) << 12) + slot::SIZE * slot;
    for (n, half) in slot::random(slot, random).chunks(8).enumerate() {
        let half = half
            .iter()
            .rev()
            .fold(0, |value, byte| value << 8 | u64::from(*byte));
        a.mov(rax, half)?;
        a.mov(qword_ptr(at + 8 * n as u64), rax)?;
    }
    Ok(())
}

/// Accesses a device, in memory or by a port.
fn device(a: &mut CodeAssembler, random: &mut Random) -> Emit {
    let at = DEVICE + random.below(0x100);
    match random.below(7) {
        0 => a.mov(eax, dword_ptr(at)),
        1 => a.add(r9, qword_ptr(at)),
        2 => a.mov(byte_ptr(at), al),
        3 => a.xor(dword_ptr(at), edx),
        4 => a.in_(eax, 0x90),
        5 => a.movups(xmm3, xmmword_ptr(at)),
        _ => {
            a.mov(rsi, at)?;
            a.mov(rdi, DATA + 0x1800)?;
            a.mov(ecx, random.below(8) as u32)?;
            a.rep().movsb()
        }
    }
}

/// A string instruction with a small count, most with REP.
fn string(a: &mut CodeAssembler, random: &mut Random) -> Emit {
    let address = |random: &mut Random| {
        random.pick(&[DATA, ALIAS, FRAMES]) + random.pick(&[0, 0x800, 0xFE0]) + random.below(0x40)
    };
    let (source, target) = (
        address(random),
        random.pick(&[DATA, ALIAS]) + random.below(0x1000),
    );
    a.mov(rsi, source)?;
    a.mov(rdi, target)?;
    a.mov(ecx, random.below(0x30) as u32)?;
    match random.below(10) {
        0 => a.rep().movsb(),
        1 => a.rep().movsq(),
        2 => a.rep().stosb(),
        3 => a.rep().stosd(),
        4 => a.repe().cmpsb(),
        5 => a.repne().scasb(),
        6 => a.rep().lodsw(),
        7 => a.movsd(),
        8 => a
            .std()
            .and_then(|()| a.rep().movsb())
            .and_then(|()| a.cld()),
        _ => a.cmpsq(),
    }
}

fn branch(a: &mut CodeAssembler, condition: u64, to: CodeLabel) -> Emit {
    match condition {
        0 => a.jo(to),
        1 => a.jno(to),
        2 => a.jb(to),
        3 => a.jae(to),
        4 => a.je(to),
        5 => a.jne(to),
        6 => a.jbe(to),
        7 => a.ja(to),
        8 => a.js(to),
        9 => a.jns(to),
        10 => a.jp(to),
        11 => a.jnp(to),
        12 => a.jl(to),
        13 => a.jge(to),
        14 => a.jle(to),
        _ => a.jg(to),
    }
}
