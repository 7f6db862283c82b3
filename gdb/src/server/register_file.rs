//! The registers in the order in which GDB numbers them, and the values of each.

use crate::registers::{Avx, Control, Fxsave, RegisterLayout, Registers};

/// A register of a target description.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) bits: u16,
    /// Name of the type in the target description.
    pub(crate) kind: &'static str,
    pub(crate) feature: Feature,
    place: Place,
}

/// A group of registers that a target description has or does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Feature {
    Core,
    Sse,
    Linux,
    Segments,
    Avx,
    Control,
}

/// Place of the value of a register in [`Registers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    General(usize),
    Rip,
    Rflags,
    Segment(usize),
    St(usize),
    X87(X87),
    Xmm(usize),
    Mxcsr,
    OrigRax,
    FsBase,
    GsBase,
    Ymmh(usize),
    Control(usize),
}

/// The x87 registers apart from the stack, in GDB's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum X87 {
    Fctrl,
    Fstat,
    Ftag,
    Fiseg,
    Fioff,
    Foseg,
    Fooff,
    Fop,
}

/// Registers by name, type and place, in GDB's order.
type Names = [(&'static str, &'static str, Place)];

#[rustfmt::skip]
const GENERAL_64: &Names = &[
    ("rax", "int64", Place::General(0)), ("rbx", "int64", Place::General(3)),
    ("rcx", "int64", Place::General(1)), ("rdx", "int64", Place::General(2)),
    ("rsi", "int64", Place::General(6)), ("rdi", "int64", Place::General(7)),
    ("rbp", "data_ptr", Place::General(5)), ("rsp", "data_ptr", Place::General(4)),
    ("r8", "int64", Place::General(8)), ("r9", "int64", Place::General(9)),
    ("r10", "int64", Place::General(10)), ("r11", "int64", Place::General(11)),
    ("r12", "int64", Place::General(12)), ("r13", "int64", Place::General(13)),
    ("r14", "int64", Place::General(14)), ("r15", "int64", Place::General(15)),
    ("rip", "code_ptr", Place::Rip),
];
#[rustfmt::skip]
const GENERAL_32: &Names = &[
    ("eax", "int32", Place::General(0)), ("ecx", "int32", Place::General(1)),
    ("edx", "int32", Place::General(2)), ("ebx", "int32", Place::General(3)),
    ("esp", "data_ptr", Place::General(4)), ("ebp", "data_ptr", Place::General(5)),
    ("esi", "int32", Place::General(6)), ("edi", "int32", Place::General(7)),
    ("eip", "code_ptr", Place::Rip),
];
#[rustfmt::skip]
const FLAGS_AND_SEGMENTS: &Names = &[
    ("eflags", "i386_eflags", Place::Rflags),
    ("cs", "int32", Place::Segment(1)), ("ss", "int32", Place::Segment(2)),
    ("ds", "int32", Place::Segment(3)), ("es", "int32", Place::Segment(0)),
    ("fs", "int32", Place::Segment(4)), ("gs", "int32", Place::Segment(5)),
];
const STACK: [&str; 8] = ["st0", "st1", "st2", "st3", "st4", "st5", "st6", "st7"];
#[rustfmt::skip]
const X87_CONTROL: &Names = &[
    ("fctrl", "int", Place::X87(X87::Fctrl)), ("fstat", "int", Place::X87(X87::Fstat)),
    ("ftag", "int", Place::X87(X87::Ftag)), ("fiseg", "int", Place::X87(X87::Fiseg)),
    ("fioff", "int", Place::X87(X87::Fioff)), ("foseg", "int", Place::X87(X87::Foseg)),
    ("fooff", "int", Place::X87(X87::Fooff)), ("fop", "int", Place::X87(X87::Fop)),
];
#[rustfmt::skip]
const XMM: [&str; 16] = [
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
    "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
];
#[rustfmt::skip]
const YMMH: [&str; 16] = [
    "ymm0h", "ymm1h", "ymm2h", "ymm3h", "ymm4h", "ymm5h", "ymm6h", "ymm7h",
    "ymm8h", "ymm9h", "ymm10h", "ymm11h", "ymm12h", "ymm13h", "ymm14h", "ymm15h",
];
const CONTROL: [(&str, &str); 7] = [
    ("k_gs_base", "int64"),
    ("cr0", "x86_cr0"),
    ("cr2", "data_ptr"),
    ("cr3", "int64"),
    ("cr4", "x86_cr4"),
    ("cr8", "int64"),
    ("efer", "x86_efer"),
];

/// Returns the registers of a process in GDB's order. The number of a register is its index.
pub(crate) fn rows(layout: RegisterLayout) -> Vec<Row> {
    let (general, word, vectors) = if layout.is_32_bit {
        (GENERAL_32, 32, 8)
    } else {
        (GENERAL_64, 64, 16)
    };
    let mut rows = Vec::new();
    let mut add = |names: &Names, bits, feature| {
        rows.extend(names.iter().map(|&(name, kind, place)| Row {
            name,
            bits,
            kind,
            feature,
            place,
        }));
    };
    add(general, word, Feature::Core);
    add(FLAGS_AND_SEGMENTS, 32, Feature::Core);
    for (index, name) in STACK.into_iter().enumerate() {
        add(&[(name, "i387_ext", Place::St(index))], 80, Feature::Core);
    }
    add(X87_CONTROL, 32, Feature::Core);
    for (index, &name) in XMM[..vectors].iter().enumerate() {
        add(&[(name, "vec128", Place::Xmm(index))], 128, Feature::Sse);
    }
    add(&[("mxcsr", "i386_mxcsr", Place::Mxcsr)], 32, Feature::Sse);
    if layout.is_linux {
        let name = if layout.is_32_bit {
            "orig_eax"
        } else {
            "orig_rax"
        };
        add(&[(name, "int", Place::OrigRax)], word, Feature::Linux);
    }
    if !layout.is_32_bit {
        let bases = [
            ("fs_base", "int", Place::FsBase),
            ("gs_base", "int", Place::GsBase),
        ];
        add(&bases, 64, Feature::Segments);
    }
    if layout.has_avx {
        for (index, &name) in YMMH[..vectors].iter().enumerate() {
            add(&[(name, "uint128", Place::Ymmh(index))], 128, Feature::Avx);
        }
    }
    if layout.has_control && !layout.is_32_bit {
        for (index, (name, kind)) in CONTROL.into_iter().enumerate() {
            add(&[(name, kind, Place::Control(index))], 64, Feature::Control);
        }
    }
    rows
}

impl Row {
    /// Returns the size of the register in bytes.
    pub(crate) fn size(self) -> usize {
        usize::from(self.bits / 8)
    }

    /// Returns the value of the register, of which the first [`size`](Self::size) bytes are used,
    /// or `None` if it is not known.
    pub(crate) fn get(self, registers: &Registers) -> Option<[u8; 16]> {
        let x87 = registers.fxsave.as_ref();
        let value = match self.place {
            Place::General(index) => registers.general[index].into(),
            Place::Rip => registers.rip.into(),
            Place::Rflags => registers.rflags.into(),
            Place::Segment(index) => registers.segments[index].into(),
            Place::St(index) => {
                let mut value = [0; 16];
                value[..10].copy_from_slice(&x87?.st[index]);
                u128::from_le_bytes(value)
            }
            Place::X87(register) => x87?.get(register).into(),
            Place::Xmm(index) => x87?.xmm[index],
            Place::Mxcsr => x87?.mxcsr.into(),
            Place::OrigRax => registers.orig_rax.into(),
            Place::FsBase => registers.fs_base.into(),
            Place::GsBase => registers.gs_base.into(),
            Place::Ymmh(index) => registers.avx.as_ref()?.ymmh[index],
            Place::Control(index) => registers.control.as_ref()?.fields()[index].into(),
        };
        Some(value.to_le_bytes())
    }

    /// Replaces the value of the register. A value that `registers` does not have stays unknown.
    /// The upper half of a register stays, of which a process of 32 bits has the lower one.
    pub(crate) fn set(self, registers: &mut Registers, bytes: &[u8]) {
        let mut value = [0; 16];
        let length = bytes.len().min(self.size());
        value[..length].copy_from_slice(&bytes[..length]);
        let value = u128::from_le_bytes(value);
        // The register's own size; the casts take the lower part of the value.
        let word = |old: u64| {
            if self.bits == 32 {
                old & !0xffff_ffff | value as u64
            } else {
                value as u64
            }
        };
        match self.place {
            Place::General(index) => registers.general[index] = word(registers.general[index]),
            Place::Rip => registers.rip = value as u64,
            Place::Rflags => registers.rflags = word(registers.rflags),
            Place::Segment(index) => registers.segments[index] = value as u16,
            // GDB writes all 64 bits, or for a process of 32 bits, a number with a sign.
            Place::OrigRax if self.bits == 32 => registers.orig_rax = value as i32 as u64,
            Place::OrigRax => registers.orig_rax = value as u64,
            Place::FsBase => registers.fs_base = value as u64,
            Place::GsBase => registers.gs_base = value as u64,
            Place::Ymmh(index) => {
                if let Some(Avx { ymmh }) = &mut registers.avx {
                    ymmh[index] = value;
                }
            }
            Place::Control(index) => {
                if let Some(control) = &mut registers.control {
                    *control.fields_mut()[index] = value as u64;
                }
            }
            Place::St(_) | Place::X87(_) | Place::Xmm(_) | Place::Mxcsr => {
                if let Some(fxsave) = &mut registers.fxsave {
                    fxsave.set(self.place, value);
                }
            }
        }
    }
}

impl Fxsave {
    fn get(&self, register: X87) -> u32 {
        match register {
            X87::Fctrl => self.fcw.into(),
            X87::Fstat => self.fsw.into(),
            X87::Ftag => self.ftw.into(),
            X87::Fiseg => self.fcs.into(),
            X87::Fioff => self.fip,
            X87::Foseg => self.fds.into(),
            X87::Fooff => self.fdp,
            X87::Fop => self.fop.into(),
        }
    }

    fn set(&mut self, place: Place, value: u128) {
        match place {
            Place::St(index) => self.st[index].copy_from_slice(&value.to_le_bytes()[..10]),
            Place::Xmm(index) => self.xmm[index] = value,
            Place::Mxcsr => self.mxcsr = value as u32,
            Place::X87(X87::Fctrl) => self.fcw = value as u16,
            Place::X87(X87::Fstat) => self.fsw = value as u16,
            Place::X87(X87::Ftag) => self.ftw = value as u16,
            Place::X87(X87::Fiseg) => self.fcs = value as u16,
            Place::X87(X87::Fioff) => self.fip = value as u32,
            Place::X87(X87::Foseg) => self.fds = value as u16,
            Place::X87(X87::Fooff) => self.fdp = value as u32,
            Place::X87(X87::Fop) => self.fop = value as u16 & 0x7ff,
            _ => {}
        }
    }
}

impl Control {
    /// Returns the registers in the order of [`CONTROL`].
    fn fields(&self) -> [u64; 7] {
        let Self {
            kernel_gs_base,
            cr0,
            cr2,
            cr3,
            cr4,
            cr8,
            efer,
        } = *self;
        [kernel_gs_base, cr0, cr2, cr3, cr4, cr8, efer]
    }

    fn fields_mut(&mut self) -> [&mut u64; 7] {
        let Self {
            kernel_gs_base,
            cr0,
            cr2,
            cr3,
            cr4,
            cr8,
            efer,
        } = self;
        [kernel_gs_base, cr0, cr2, cr3, cr4, cr8, efer]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINUX_64: RegisterLayout = RegisterLayout {
        is_32_bit: false,
        is_linux: true,
        has_avx: true,
        has_control: true,
    };

    fn all() -> Registers {
        Registers {
            fxsave: Some(Fxsave::default()),
            avx: Some(Avx::default()),
            control: Some(Control::default()),
            ..Registers::default()
        }
    }

    #[test]
    fn numbers_are_those_of_gdb() {
        // amd64-tdep.h and i386-tdep.h in GDB's source: AMD64_RIP_REGNUM, …
        let number = |layout, name| rows(layout).iter().position(|row| row.name == name);
        for (name, regnum) in [
            ("rsp", 7),
            ("rip", 16),
            ("st0", 24),
            ("xmm0", 40),
            ("orig_rax", 57),
            ("fs_base", 58),
        ] {
            assert_eq!(number(LINUX_64, name), Some(regnum), "{name}");
        }
        let linux_32 = RegisterLayout {
            is_32_bit: true,
            ..LINUX_64
        };
        for (name, regnum) in [
            ("esp", 4),
            ("eip", 8),
            ("st0", 16),
            ("xmm0", 32),
            ("mxcsr", 40),
            ("orig_eax", 41),
        ] {
            assert_eq!(number(linux_32, name), Some(regnum), "{name}");
        }
    }

    #[test]
    fn each_register_has_a_place_of_its_own() {
        let rows = rows(LINUX_64);
        for (changed, row) in rows.iter().enumerate() {
            let mut registers = all();
            row.set(&mut registers, &[1; 16]);
            for (index, other) in rows.iter().enumerate() {
                let value = other.get(&registers).unwrap();
                let is_changed = value.iter().any(|&byte| byte != 0);
                assert_eq!(is_changed, index == changed, "{} {}", row.name, other.name);
            }
        }
    }

    #[test]
    fn a_process_of_32_bits_keeps_the_upper_halves() {
        let rows = rows(RegisterLayout {
            is_32_bit: true,
            ..LINUX_64
        });
        let mut registers = all();
        registers.general[0] = u64::MAX;
        rows[0].set(&mut registers, &[0; 4]);
        assert_eq!(registers.general[0], 0xffff_ffff_0000_0000);
    }

    #[test]
    fn what_is_not_known_stays_unknown() {
        let mut registers = Registers::default();
        for row in rows(LINUX_64) {
            row.set(&mut registers, &[255; 16]);
            let is_known = matches!(
                row.place,
                Place::General(_) | Place::Rip | Place::Rflags | Place::Segment(_)
            ) || matches!(row.feature, Feature::Linux | Feature::Segments);
            assert_eq!(row.get(&registers).is_some(), is_known, "{}", row.name);
        }
    }
}
