//! Port I/O: IN, OUT, INS, OUTS (SDM Vol. 1 chapter 19).

use iced_x86::Code;

use crate::exec::string::distance;
use crate::exec::table::{Backend, Table};
use crate::insn::{Abort, Exec, Flow, Insn, seg};
use crate::processor::cpu::Cpu;
use crate::state::descriptor::system;
use crate::state::gpr::{RAX, RCX, RDI, RDX, RSI};
use crate::state::int::Int;

const AX: u8 = RAX as u8;

impl Cpu {
    /// Whether the current task may use `size` ports from `port` (SDM Vol. 1 19.5.2). In
    /// virtual-8086 mode IOPL has no effect on it.
    fn check_port(&mut self, port: u16, size: usize) -> Result<(), Abort> {
        if self.cpl <= self.iopl() && !self.is_virtual_8086() {
            return Ok(());
        }
        let tr = self.sys.tr;
        // A 16-bit TSS has no map.
        if matches!(tr.ty(), system::TSS_16_AVAILABLE | system::TSS_16_BUSY) {
            return Err(self.gp(0));
        }
        let at = self.io_map()? + u64::from(port >> 3);
        // Two bytes are read, so that a map needs a byte of ones after its end.
        if at + 1 > u64::from(tr.limit) {
            return Err(self.gp(0));
        }
        let bits: u16 = self.load_system(tr.base.wrapping_add(at))?;
        let mask = ((1u16 << size) - 1) << (port & 7);
        if bits & mask != 0 {
            Err(self.gp(0))
        } else {
            Ok(())
        }
    }

    fn port_in<T: Int>(&mut self, port: u16) -> T {
        let mut bytes = [0; 8];
        self.platform
            .pio_read(self.now(), port, &mut bytes[..T::BYTES]);
        self.after_bus();
        T::from_u64(u64::from_le_bytes(bytes))
    }

    fn port_out<T: Int>(&mut self, port: u16, value: T) {
        let bytes = value.zext().to_le_bytes();
        self.platform
            .pio_write(self.now(), port, &bytes[..T::BYTES]);
        self.after_bus();
    }
}

/// The port: an immediate byte or DX.
#[inline(always)]
fn port<const DX: bool>(cpu: &Cpu, insn: &Insn) -> u16 {
    if DX {
        cpu.gpr[RDX] as u16
    } else {
        insn.imm as u8 as u16
    }
}

fn in_<const DX: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let port = port::<DX>(cpu, insn);
    cpu.check_port(port, T::BYTES)?;
    let v = cpu.port_in::<T>(port);
    cpu.w(AX, v);
    cpu.end_block(insn)
}

fn out<const DX: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let port = port::<DX>(cpu, insn);
    cpu.check_port(port, T::BYTES)?;
    cpu.port_out(port, cpu.r::<T>(AX));
    cpu.end_block(insn)
}

/// INS (`IN`) or OUTS. The memory operand may be a register of a device, too.
fn string<const IN: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    cpu.with_devices(|cpu| iteration::<IN, T>(cpu, insn))
}

/// One iteration of INS or OUTS; a repeated instruction is restarted for each.
fn iteration<const IN: bool, T: Int>(cpu: &mut Cpu, insn: &Insn) -> Exec {
    let repeated = insn.prefix & (Insn::REP | Insn::REPNE) != 0;
    let count = cpu.index(insn, RCX);
    if repeated && count == 0 {
        return Ok(Flow::Next);
    }
    let port = cpu.gpr[RDX] as u16;
    cpu.check_port(port, T::BYTES)?;
    let id = if IN { RDI } else { RSI };
    let segment = if IN { seg::ES } else { insn.seg };
    let offset = cpu.index(insn, id);
    let la = cpu.linear_address(segment, offset, T::BYTES as u32, IN)?;
    if IN {
        // The port must not be read if the store would fault.
        cpu.check_writable(la, T::BYTES)?;
        let v = cpu.port_in::<T>(port);
        cpu.store(la, v)?;
    } else {
        let v = cpu.load::<T>(la)?;
        cpu.port_out(port, v);
    }
    cpu.set_index(insn, id, offset.wrapping_add(distance::<T>(cpu, 1)));
    if repeated {
        cpu.set_index(insn, RCX, count - 1);
        if count > 1 {
            cpu.pmu.idle += 1;
            cpu.rip = cpu.this_rip(insn);
            return Ok(Flow::Jump);
        }
    }
    cpu.end_block(insn)
}

pub(super) fn rows<B: Backend>(t: &mut Table<B>) {
    use Code::*;
    t.handler([In_AL_imm8], in_::<false, u8>);
    t.handler([In_AX_imm8], in_::<false, u16>);
    t.handler([In_EAX_imm8], in_::<false, u32>);
    t.handler([In_AL_DX], in_::<true, u8>);
    t.handler([In_AX_DX], in_::<true, u16>);
    t.handler([In_EAX_DX], in_::<true, u32>);
    t.handler([Out_imm8_AL], out::<false, u8>);
    t.handler([Out_imm8_AX], out::<false, u16>);
    t.handler([Out_imm8_EAX], out::<false, u32>);
    t.handler([Out_DX_AL], out::<true, u8>);
    t.handler([Out_DX_AX], out::<true, u16>);
    t.handler([Out_DX_EAX], out::<true, u32>);
    t.handler([Insb_m8_DX], string::<true, u8>);
    t.handler([Insw_m16_DX], string::<true, u16>);
    t.handler([Insd_m32_DX], string::<true, u32>);
    t.handler([Outsb_DX_m8], string::<false, u8>);
    t.handler([Outsw_DX_m16], string::<false, u16>);
    t.handler([Outsd_DX_m32], string::<false, u32>);
}
