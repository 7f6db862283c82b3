//! Checks the DS area when the guest begins to record branches with it.

use vbts_bts::{BtsFields, DropReason};

use crate::processor::cpu::Cpu;

/// A DS area that the manual calls malformed (SDM Vol. 3B 17.4.9.2) when TR and BTS are set. What a
/// processor does with it is undefined, while this one drops records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedDsArea {
    /// IA32_DS_AREA.
    pub la: u64,
    /// Its fields, unless they could not be read.
    pub fields: Option<BtsFields>,
    /// Why the area is malformed.
    pub reason: DropReason,
}

impl Cpu {
    /// Checks the DS area if the guest has set TR and BTS, or has written IA32_DS_AREA while they
    /// are set, since the last call. The guest does not observe this. Returns what is wrong.
    pub fn check_armed_ds_area(&mut self) -> Option<MalformedDsArea> {
        if !std::mem::take(&mut self.armed) || !self.recorder.tracing() {
            return None;
        }
        let (la, area) = (self.recorder.ds_area(), self.recorder.area());
        let mut bytes = [0; BtsFields::SIZE];
        let fields = bytes
            .get_mut(..area.fields_size())
            .is_some_and(|bytes| self.read_quietly(la, bytes))
            .then(|| area.fields(&bytes));
        let checked = match &fields {
            Some(fields) => area.check(fields),
            None => Err(DropReason::Unmapped),
        };
        let reason = checked.err()?;
        Some(MalformedDsArea { la, fields, reason })
    }
}
