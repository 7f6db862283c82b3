//! The target description: which registers there are, as XML ("Target Descriptions" in GDB's
//! manual).

use std::fmt::Write;

use super::register_file::{Feature, rows};
use crate::registers::RegisterLayout;

/// Bits of a register of flags, by name and number.
type Bits = &'static [(&'static str, u8)];

const EFLAGS: Bits = &[
    ("CF", 0),
    ("", 1),
    ("PF", 2),
    ("AF", 4),
    ("ZF", 6),
    ("SF", 7),
    ("TF", 8),
    ("IF", 9),
    ("DF", 10),
    ("OF", 11),
    ("NT", 14),
    ("RF", 16),
    ("VM", 17),
    ("AC", 18),
    ("VIF", 19),
    ("VIP", 20),
    ("ID", 21),
];
const MXCSR: Bits = &[
    ("IE", 0),
    ("DE", 1),
    ("ZE", 2),
    ("OE", 3),
    ("UE", 4),
    ("PE", 5),
    ("DAZ", 6),
    ("IM", 7),
    ("DM", 8),
    ("ZM", 9),
    ("OM", 10),
    ("UM", 11),
    ("PM", 12),
    ("FZ", 15),
];
const CR0: Bits = &[
    ("PE", 0),
    ("MP", 1),
    ("EM", 2),
    ("TS", 3),
    ("ET", 4),
    ("NE", 5),
    ("WP", 16),
    ("AM", 18),
    ("NW", 29),
    ("CD", 30),
    ("PG", 31),
];
const CR4: Bits = &[
    ("VME", 0),
    ("PVI", 1),
    ("TSD", 2),
    ("DE", 3),
    ("PSE", 4),
    ("PAE", 5),
    ("MCE", 6),
    ("PGE", 7),
    ("PCE", 8),
    ("OSFXSR", 9),
    ("OSXMMEXCPT", 10),
    ("UMIP", 11),
    ("LA57", 12),
    ("VMXE", 13),
    ("SMXE", 14),
    ("FSGSBASE", 16),
    ("PCIDE", 17),
    ("OSXSAVE", 18),
    ("SMEP", 20),
    ("SMAP", 21),
    ("PKE", 22),
];
const EFER: Bits = &[("SCE", 0), ("LME", 8), ("LMA", 10), ("NXE", 11)];

/// The types of the SSE registers, as in GDB's own descriptions, without bfloat16: GDB before
/// version 11 does not know it.
const VECTORS: &str = r#"<vector id="v8h" type="ieee_half" count="8"/>
<vector id="v4f" type="ieee_single" count="4"/>
<vector id="v2d" type="ieee_double" count="2"/>
<vector id="v16i8" type="int8" count="16"/>
<vector id="v8i16" type="int16" count="8"/>
<vector id="v4i32" type="int32" count="4"/>
<vector id="v2i64" type="int64" count="2"/>
<union id="vec128">
<field name="v8_half" type="v8h"/>
<field name="v4_float" type="v4f"/>
<field name="v2_double" type="v2d"/>
<field name="v16_int8" type="v16i8"/>
<field name="v8_int16" type="v8i16"/>
<field name="v4_int32" type="v4i32"/>
<field name="v2_int64" type="v2i64"/>
<field name="uint128" type="uint128"/>
</union>
"#;

impl Feature {
    /// Returns the name of the feature, and its types.
    fn heading(self) -> (&'static str, String) {
        match self {
            Self::Core => ("org.gnu.gdb.i386.core", flags("i386_eflags", 4, EFLAGS)),
            Self::Sse => (
                "org.gnu.gdb.i386.sse",
                VECTORS.to_owned() + &flags("i386_mxcsr", 4, MXCSR),
            ),
            Self::Linux => ("org.gnu.gdb.i386.linux", String::new()),
            Self::Segments => ("org.gnu.gdb.i386.segments", String::new()),
            Self::Avx => ("org.gnu.gdb.i386.avx", String::new()),
            Self::Control => (
                "org.vbts.control",
                flags("x86_cr0", 8, CR0) + &flags("x86_cr4", 8, CR4) + &flags("x86_efer", 8, EFER),
            ),
        }
    }
}

fn flags(name: &str, size: u8, bits: Bits) -> String {
    let fields: String = bits
        .iter()
        .map(|(name, bit)| format!("<field name=\"{name}\" start=\"{bit}\" end=\"{bit}\"/>\n"))
        .collect();
    format!("<flags id=\"{name}\" size=\"{size}\">\n{fields}</flags>\n")
}

/// Returns the target description of a process.
pub(super) fn target_xml(layout: RegisterLayout) -> String {
    let architecture = if layout.is_32_bit {
        "i386"
    } else {
        "i386:x86-64"
    };
    let mut xml = format!(
        "<?xml version=\"1.0\"?>\n<!DOCTYPE target SYSTEM \"gdb-target.dtd\">\n\
         <target version=\"1.0\">\n<architecture>{architecture}</architecture>\n"
    );
    if layout.is_linux {
        xml.push_str("<osabi>GNU/Linux</osabi>\n");
    }
    let rows = rows(layout);
    for group in rows.chunk_by(|a, b| a.feature == b.feature) {
        let (name, types) = group[0].feature.heading();
        // Writing to a string does not fail.
        let _ = write!(xml, "<feature name=\"{name}\">\n{types}");
        for row in group {
            let (name, bits, kind) = (row.name, row.bits, row.kind);
            let is_float = row.feature == Feature::Core && kind == "int";
            let group = if is_float { " group=\"float\"" } else { "" };
            let _ = writeln!(
                xml,
                "<reg name=\"{name}\" bitsize=\"{bits}\" type=\"{kind}\"{group}/>"
            );
        }
        xml.push_str("</feature>\n");
    }
    xml.push_str("</target>\n");
    xml
}
