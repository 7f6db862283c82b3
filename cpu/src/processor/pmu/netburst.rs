//! The counters of NetBurst (SDM Vol. 3B 18.15): an ESCR selects the events, and the CCCR of a
//! counter selects the ESCR and says how to count.
//!
//! What is selected for either logical processor of a core applies: each processor has counters of
//! its own. PEBS, tags and extended cascading do not exist. The interrupt of an overflow comes
//! after the instruction, not at the next event.

use crate::model::netburst_pmu::{cascades_from, event, selected};
use crate::processor::pmu::event::Rate;
use crate::processor::pmu::{Counting, OS, USR};
use crate::state::netburst_pmu::{cccr, escr};
use crate::state::{NetBurstPmu, PmuRegister};

/// The highest value of the threshold.
const MAX_THRESHOLD: u64 = 15;

impl NetBurstPmu {
    /// What counter `n` counts; `None` if it is disabled.
    pub(super) fn counting(&self, n: usize, later: bool) -> Option<Counting> {
        let control = *self.cccr.get(n)?;
        let has = |flag| control & flag != 0;
        // A counter that has been started by another one runs as long as that one's OVF is set.
        let cascaded = has(cccr::CASCADE) && self.cccr.get(cascades_from(n))? & cccr::OVF != 0;
        if !(has(cccr::ENABLE) || cascaded) || !has(cccr::ACTIVE_THREAD) {
            return None;
        }
        let (pair, half) = selected(n, (control >> cccr::ESCR_SELECT & 7) as usize)?;
        let select = *self.escr.get(pair as usize)?.get(half)?;
        let os = if select & escr::OS != 0 { OS } else { 0 };
        let usr = if select & escr::USR != 0 { USR } else { 0 };
        let code = select >> escr::EVENT_SELECT & 0x3F;
        let mask = select >> escr::EVENT_MASK & 0xFFFF;
        let threshold = control >> cccr::THRESHOLD & MAX_THRESHOLD;
        let event = event(pair, code, mask, later);
        let (rate, rings) = match (has(cccr::COMPARE), has(cccr::COMPLEMENT)) {
            // Edges are those of the comparison.
            (true, _) if has(cccr::EDGE) => return None,
            // No event occurs so often in a cycle, whatever it is and at whatever CPL: "non-sleep
            // clockticks" (chapter 18).
            (true, true)
                if code != 0
                    && (threshold == MAX_THRESHOLD || threshold > 0 && event.is_some()) =>
            {
                (Rate::CYCLES, OS | USR)
            }
            // At another CPL nothing occurs that could be counted.
            (true, true) if os | usr != OS | USR => return None,
            (true, inverted) => (Rate::compared(event?, threshold + 1, inverted)?, os | usr),
            (false, _) => (Rate::Each(event?), os | usr),
        };
        let counting = Counting {
            register: PmuRegister::Counter(n),
            rate,
            rings,
            interrupts: has(cccr::OVF_PMI),
            starts: self.starts(n),
            forced: has(cccr::FORCE_OVF),
        };
        (rings != 0).then_some(counting)
    }

    /// Whether an overflow of counter `n` starts another one.
    fn starts(&self, n: usize) -> bool {
        let cccrs = self.cccr.iter().enumerate();
        let mut cascaded = cccrs.filter(|(m, _)| cascades_from(*m) == n);
        cascaded.any(|(_, control)| control & cccr::CASCADE != 0)
    }
}
