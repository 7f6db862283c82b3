//! The code of the guests, assembled when vbts is compiled.

/// The machine code of a guest.
pub type Code = fn() -> &'static [u8];

/// Assembles lines of code into a [`Code`]: `code!("mov eax, {value}", "hlt"; value = 5)`. The code
/// must be position-independent, because it is copied into the guest's memory.
macro_rules! code {
    ($($line:expr),+ $(; $($name:ident = $value:expr),+)? $(,)?) => {
        || {
            let (start, end): (*const u8, *const u8);
            // SAFETY: the lines go to a data section, and are not executed here. The two
            // instructions that remain load the addresses of labels into registers.
            unsafe {
                core::arch::asm!(
                    ".pushsection .rodata.guests, \"a\"",
                    "770:",
                    $($line,)+
                    "779:",
                    ".popsection",
                    "lea {start}, [rip + 770b]",
                    "lea {end}, [rip + 779b]",
                    start = out(reg) start,
                    end = out(reg) end,
                    $($($name = const $value,)+)?
                    options(nomem, nostack, pure, preserves_flags),
                );
                // SAFETY: both labels are in one piece of this program's read-only data, in this
                // order.
                core::slice::from_raw_parts(start, end.offset_from_unsigned(start))
            }
        }
    };
}

/// An instruction that faults. The handler returns to the next instruction.
macro_rules! fault {
    ($instruction:literal) => {
        concat!(
            "lea r14, [rip + 771f]; lea r15, [rip + 772f]; 771: ",
            $instruction,
            "; 772:"
        )
    };
}

/// An instruction that traps.
macro_rules! trap {
    ($instruction:literal) => {
        concat!("lea r14, [rip + 773f]; ", $instruction, "; 773:")
    };
}

/// The end of a guest at CPL 3: #UD, the exception that a KVM most probably handles correctly.
macro_rules! leave {
    () => {
        "lea r14, [rip + 774f]; 774: ud2"
    };
}

pub(super) use {code, fault, leave, trap};
