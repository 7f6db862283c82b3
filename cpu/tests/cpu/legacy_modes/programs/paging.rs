//! 32-bit and PAE paging (SDM Vol. 3A 4.3, 4.4, 4.6, 4.7): one entry with changing flags, and every
//! kind of access.

use iced_x86::code_asm::*;

use super::image::*;

const P: u64 = 1 << 0;
const RW: u64 = 1 << 1;
const US: u64 = 1 << 2;
const A: u64 = 1 << 5;
const D: u64 = 1 << 6;
const PS: u64 = 1 << 7;
const NX: u64 = 1 << 63;

/// Where the page is that the entry maps, and the memory behind it.
const PAGE: u32 = 0xA0_0000;
const MEMORY: u32 = 0x20_0000;
const DIRECTORY: u32 = TABLES[0];
const IDENTITY: u32 = TABLES[1];
const TABLE: u32 = TABLES[2];
/// The page-directory-pointer table.
const POINTERS: u32 = TABLES[3];
/// The values of the entry: eight bytes each.
const VALUES: u32 = 0x5000;

const PSE: u32 = 1 << 4;
const PAE: u32 = 1 << 5;
const NXE: u32 = 1 << 11;

/// A place in the paging structures.
struct Kind {
    name: &'static str,
    cr4: u32,
    efer: u32,
    /// Address of the entry.
    entry: u32,
    /// What it holds besides flags.
    value: u64,
    /// It maps the page, so that it has a dirty flag.
    leaf: bool,
    reserved: u64,
    /// Further values.
    more: &'static [u64],
}

const KINDS: &[Kind] = &[
    Kind {
        name: "32_bit_table",
        cr4: 0,
        efer: 0,
        entry: TABLE + 0x800,
        value: MEMORY as u64,
        leaf: true,
        reserved: 0,
        more: &[1 << 21 | 1 << 30 | 6],
    },
    Kind {
        name: "32_bit_directory",
        cr4: 0,
        efer: 0,
        entry: DIRECTORY + 8,
        value: TABLE as u64,
        leaf: false,
        // PS means nothing without CR4.PSE.
        reserved: 0,
        more: &[PS | US | RW | P],
    },
    Kind {
        name: "4_mbyte_page",
        cr4: PSE,
        efer: 0,
        entry: DIRECTORY + 8,
        value: PS,
        leaf: true,
        reserved: 1 << 21,
        more: &[1 << 21 | RW | P, 1 << 21 | US | P],
    },
    Kind {
        name: "pae_table",
        cr4: PAE,
        efer: 0,
        entry: TABLE,
        value: MEMORY as u64,
        leaf: true,
        reserved: NX | 0x7FFF << 48,
        more: &[NX | US | RW | P, 1 << 62 | US | P, 1 << 51 | P, NX | 6],
    },
    Kind {
        name: "pae_table_nx",
        cr4: PAE,
        efer: NXE,
        entry: TABLE,
        value: MEMORY as u64,
        leaf: true,
        reserved: 0x7FFF << 48,
        more: &[NX | US | RW | P, NX | P, 1 << 52 | US | RW | P],
    },
    Kind {
        name: "pae_directory_nx",
        cr4: PAE,
        efer: NXE,
        entry: DIRECTORY + 8 * 5,
        value: TABLE as u64,
        leaf: false,
        reserved: 0x7FFF << 48,
        more: &[NX | US | RW | P, 1 << 51 | P],
    },
    Kind {
        name: "2_mbyte_page",
        cr4: PAE,
        efer: NXE,
        entry: DIRECTORY + 8 * 5,
        value: MEMORY as u64 | PS,
        leaf: true,
        reserved: 0x7FFF << 48 | 0x1F_E000,
        more: &[NX | US | P, 1 << 13 | US | RW | P],
    },
];

/// An access to the page.
#[derive(Clone, Copy)]
struct Access {
    user: bool,
    write: bool,
    fetch: bool,
    wp: bool,
}

const fn access(user: bool, write: bool, fetch: bool, wp: bool) -> Access {
    Access {
        user,
        write,
        fetch,
        wp,
    }
}

const ACCESSES: [Access; 7] = [
    access(false, false, false, false),
    access(false, true, false, false),
    access(false, true, false, true),
    access(false, false, true, false),
    access(true, false, false, false),
    access(true, true, false, false),
    access(true, false, true, false),
];

impl Kind {
    fn values(&self) -> Vec<u64> {
        let flags = [0, US | RW, P, RW | P, US | P, US | RW | P];
        let all = flags.iter().chain(self.more);
        all.map(|f| f | self.value).collect()
    }

    /// The error code of the page fault, if there is one, and the flags of the entry afterwards.
    fn outcome(&self, value: u64, a: Access) -> (Option<u32>, u64) {
        let (rw, us, nx) = (value & RW != 0, value & US != 0, value & NX != 0);
        let code = u32::from(a.write) << 1
            | u32::from(a.user) << 2
            | u32::from(a.fetch && self.efer & NXE != 0) << 4;
        if value & P == 0 {
            return (Some(code), value);
        }
        if value & self.reserved != 0 {
            return (Some(code | 9), value);
        }
        if a.user && !us || a.write && !rw && (a.user || a.wp) || a.fetch && nx {
            return (Some(code | 1), value);
        }
        let dirty = if self.leaf && a.write { D } else { 0 };
        (None, value | A | dirty)
    }

    fn image(&self) -> Image {
        let mut i = Image::new();
        let values = self.values();
        i.put64(VALUES, &values);
        let all = US | RW | P;
        if self.cr4 & PAE != 0 {
            i.put64(POINTERS, &[u64::from(DIRECTORY) | P]);
            let large = |n: u64| n << 21 | PS | all;
            i.put64(DIRECTORY, &[large(0), large(1)]);
            i.put64(DIRECTORY + 8 * 5, &[u64::from(TABLE) | all]);
            i.put64(TABLE, &[u64::from(MEMORY) | all]);
        } else {
            for n in 0..0x400 {
                i.put32(IDENTITY + 4 * n, &[n << 12 | all as u32]);
            }
            i.put32(DIRECTORY, &[IDENTITY | all as u32, 0, TABLE | all as u32]);
            i.put32(TABLE + 0x800, &[MEMORY | all as u32]);
        }
        let root = if self.cr4 & PAE != 0 {
            POINTERS
        } else {
            DIRECTORY
        };
        // EDI: the value; ESI: the access. Each leaves by way of EBX.
        let dispatch = CODE32 + 0x300;
        let after = CODE32 + 0x500;
        i.attempts32(
            |a| {
                a.mov(dword_ptr(MEMORY), 0xC3C3_C3C3u32 as i32)?;
                a.mov(ecx, 0xC000_0080u32)?;
                a.mov(eax, self.efer)?;
                a.xor(edx, edx)?;
                a.wrmsr()?;
                a.mov(eax, self.cr4)?;
                a.mov(cr4, eax)?;
                a.mov(eax, root)?;
                a.mov(cr3, eax)?;
                a.mov(eax, 0x8000_0011u32)?;
                a.mov(cr0, eax)?;
                a.xor(edi, edi)?;
                a.xor(esi, esi)?;
                a.jmp(u64::from(dispatch))
            },
            &[],
        );
        i.assemble(32, dispatch, |a| {
            a.xor(eax, eax)?;
            a.mov(cr2, eax)?;
            a.mov(eax, dword_ptr(edi * 8 + VALUES))?;
            a.mov(dword_ptr(self.entry), eax)?;
            if self.cr4 & PAE != 0 {
                a.mov(eax, dword_ptr(edi * 8 + VALUES + 4))?;
                a.mov(dword_ptr(self.entry + 4), eax)?;
            }
            a.mov(eax, cr3)?;
            a.mov(cr3, eax)?;
            a.mov(ebx, after)?;
            a.mov(edx, PAGE)?;
            a.mov(eax, esi)?;
            a.shl(eax, 6)?;
            a.add(eax, CODE32 as i32 + 0x600)?;
            a.jmp(eax)
        });
        for (n, access) in (0..).zip(ACCESSES) {
            let at = CODE32 + 0x600 + 0x40 * n;
            let user = USER + 0x40 * n;
            let body = |a: &mut CodeAssembler| {
                if access.fetch {
                    a.call(edx)
                } else if access.write {
                    a.mov(byte_ptr(edx), 0xC3)
                } else {
                    a.mov(al, byte_ptr(edx))
                }
            };
            i.assemble(32, at, |a| {
                a.mov(eax, 0x8000_0011 | u32::from(access.wp) << 16)?;
                a.mov(cr0, eax)?;
                if access.user {
                    return to_user(a, user);
                }
                body(a)?;
                a.int(COMPLETED_VECTOR)
            });
            i.assemble(32, user, |a| {
                a.mov(eax, i32::from(sel::USER_DATA))?;
                a.mov(ds, ax)?;
                body(a)?;
                a.int(COMPLETED_VECTOR)
            });
        }
        let end = |a: &mut CodeAssembler| {
            a.mov(eax, cr2)?;
            report(a)?;
            a.mov(eax, dword_ptr(self.entry))?;
            report(a)?;
            a.inc(esi)?;
            a.cmp(esi, ACCESSES.len() as i32)?;
            a.jb(u64::from(dispatch))?;
            a.xor(esi, esi)?;
            a.inc(edi)?;
            a.cmp(edi, values.len() as i32)?;
            a.jb(u64::from(dispatch))?;
            exit(a)
        };
        i.assemble(32, after, end);
        for &value in &values {
            for access in ACCESSES {
                let (fault, left) = self.outcome(value, access);
                match fault {
                    Some(error) => i.expect(&[EXCEPTION | 14, error, PAGE]),
                    None => i.expect(&[EXCEPTION | COMPLETED_VECTOR as u32, 0, 0]),
                }
                i.expect(&[left as u32]);
            }
        }
        if values.iter().any(|v| v & P != 0 && v & self.reserved != 0) {
            i.deviates("qemu", "reports reserved bits without P");
        }
        if !self.leaf {
            i.deviates("qemu", "marks directories of pages that fault");
        }
        i
    }
}

/// The registers of PAE paging: loaded by MOV to CR3, which refuses reserved bits (4.4.1).
fn pointer_registers() -> Image {
    let mut i = Image::new();
    let all = US | RW | P | PS;
    i.put64(DIRECTORY, &[all]);
    i.put64(POINTERS, &[u64::from(DIRECTORY) | P]);
    i.attempts32(
        |a| {
            a.mov(eax, PAE)?;
            a.mov(cr4, eax)?;
            a.mov(eax, POINTERS)?;
            a.mov(cr3, eax)?;
            a.mov(eax, 0x8000_0011u32)?;
            a.mov(cr0, eax)
        },
        &[
            // A new second entry is not seen,
            Attempt::Kernel(|a| {
                a.mov(dword_ptr(POINTERS + 8), (DIRECTORY as u64 | P) as i32)?;
                a.invlpg(byte_ptr(0x4000_0000))?;
                a.mov(eax, dword_ptr(0x4000_0000))
            }),
            // until CR3 is written.
            Attempt::Kernel(|a| {
                a.mov(eax, cr3)?;
                a.mov(cr3, eax)?;
                a.mov(eax, dword_ptr(0x4000_0000))
            }),
            // Reserved bits: refused, and nothing changes.
            Attempt::Kernel(|a| {
                a.mov(dword_ptr(POINTERS), (DIRECTORY as u64 | RW | P) as i32)?;
                a.mov(eax, cr3)?;
                a.mov(cr3, eax)
            }),
            Attempt::Kernel(|a| a.mov(eax, dword_ptr(0x4000_0000))),
            // They do not count in an entry that is not present.
            Attempt::Kernel(|a| {
                a.mov(dword_ptr(POINTERS), (DIRECTORY as u64 | P) as i32)?;
                a.mov(dword_ptr(POINTERS + 8), 0x1E6)?;
                a.mov(eax, cr3)?;
                a.mov(cr3, eax)?;
                a.mov(eax, dword_ptr(0x4000_0000))
            }),
        ],
    );
    i.expect(&[EXCEPTION | 14, 0, COMPLETED, EXCEPTION | 13, 0, COMPLETED]);
    i.expect(&[EXCEPTION | 14, 0]);
    i.deviates("qemu", "reads the table at every walk");
    i
}

pub fn programs() -> Vec<(String, Image)> {
    let kinds = KINDS.iter();
    let mut all: Vec<_> = kinds
        .map(|k| (format!("paging_{}", k.name), k.image()))
        .collect();
    all.push(("paging_pae_registers".to_owned(), pointer_registers()));
    all
}
