//! Instructions of extensions that a model lacks, and that CPUID therefore does not report.

use vbts_cpu::state::vector::UD;
use vbts_cpu::state::{Activity, cr4, gpr};
use vbts_cpu::{MODELS, model};

use super::random::Random;
use super::{every_form, put};
use crate::common::{Guest, KERNEL, KERNEL_STACK};
use iced_x86::Mnemonic;

/// `every_instruction_does_what_the_host_does` shows that the same forms complete on a model that
/// has the extensions. With `VBTS_TEST_JIT`, both run native code.
#[test]
fn an_instruction_that_the_model_lacks_raises_ud() {
    const LONG_MODE: u32 = 1 << 29;
    let models = MODELS.iter().filter_map(|name| model(name));
    let mut counts = Vec::new();
    for model in models.filter(|m| m.cpuid(0x8000_0001, 0).edx & LONG_MODE != 0) {
        let mut guest = Guest::of(model);
        guest.update(|s| s.sys.cr4 |= cr4::OSFXSR);
        let mut count = 0;
        every_form(&mut Random::new(0x1AC5), |form, _| {
            let i = &form.instruction;
            // Without LZCNT and BMI1, these two are BSR and BSF.
            let is_other = matches!(i.mnemonic(), Mnemonic::Lzcnt | Mnemonic::Tzcnt);
            let has_all = i.cpuid_features().iter().all(|f| model.executes(*f));
            if is_other || has_all {
                return;
            }
            count += 1;
            put(&mut guest, form);
            guest.update(|s| {
                s.activity = Activity::Active;
                (s.rip, s.gpr[gpr::RSP]) = (KERNEL, KERNEL_STACK);
            });
            let frame = guest.run_to_exception(UD, None);
            assert_eq!(frame.rip, KERNEL, "{} {i}", model.name);
        });
        counts.push(count);
    }
    // The model `max` has them all.
    assert_eq!(counts.iter().filter(|count| **count == 0).count(), 1);
    assert!(counts.iter().any(|count| *count > 500), "{counts:?}");
}
