//! The window: slots that are filled without another look at the DS area.

use vbts_bts::Window;

use crate::values::*;

/// Slots below this address are in the window.
#[inline(always)]
fn end(window: &Window) -> u64 {
    // SAFETY: `END_OFFSET` is the offset of a `u64` in `Window`, by its documentation.
    unsafe {
        (&raw const *window)
            .byte_add(Window::END_OFFSET)
            .cast::<u64>()
            .read()
    }
}

#[inline(always)]
fn window(given: Given) -> Option<Window> {
    Some(given.recorder()?.area().window(&given.fields))
}

properties! {
    /// A window begins at the index. Wherever it has a slot on a dword boundary, storing a record
    /// with the index there fills that slot and advances the index, and does nothing else.
    fn prove_every_slot_of_a_window_is_plain(given, slot) {
        let Some(window) = window(given) else {
            return true;
        };
        let inside = slot >= window.index() && slot < end(&window) && slot & 3 == 0;
        implies(!window.is_empty(), window.index() == given.fields.index)
            && implies(inside, given.is_plain(slot))
    }

    /// A window is empty only if the next record is not plain, and ends only where one is not.
    fn prove_a_window_ends_where_a_record_is_not_plain(given, slot) {
        let Some(window) = window(given) else {
            return true;
        };
        let begins = !window.is_empty() || !given.is_plain(given.fields.index);
        let next = slot.wrapping_add(RECORD);
        let last = slot >= window.index() && slot < end(&window) && next >= end(&window);
        begins && implies(last && slot & 3 == 0, !given.is_plain(next))
    }

    /// Taking a slot gives the index, which advances by a record and does not overflow. An empty
    /// window, also one that was closed, gives none and stays as it is.
    fn prove_taking_a_slot_advances_the_index(given, limit) {
        let mut window = Window::over(given.fields.index, given.fields.absolute_maximum);
        if limit & 1 != 0 {
            window.close();
        }
        let before = window;
        match window.take() {
            Some(slot) => {
                !before.is_empty()
                    && slot == before.index()
                    && slot.checked_add(RECORD) == Some(window.index())
                    && end(&window) == end(&before)
            }
            None => before.is_empty() && window == before,
        }
    }

    /// The slots of a buffer end below its end, and one that is left out would not. Those of a
    /// window up to an address end there, and none that does is left out.
    fn prove_slots_end_below_the_limit(given, slot) {
        let limit = given.fields.absolute_maximum;
        let window = Window::over(given.fields.index, limit);
        let inside = slot >= window.index() && slot < end(&window);
        let fits = slot >= window.index() && slot.checked_add(RECORD).is_some_and(|end| end <= limit);
        let last = given.fields.threshold;
        let cut = window.up_to(last);
        let remains = slot >= cut.index() && slot < end(&cut);
        let ends = slot.checked_add(RECORD - 1).is_some_and(|end| end <= last);
        inside == fits && remains == (inside && ends) && cut.index() == window.index()
    }

    /// Records of the 32-bit format have no window.
    fn prove_a_32_bit_record_has_no_window(given, unused) {
        let _ = unused;
        window(given.on_netburst()).is_none_or(|window| window.is_empty())
    }

    /// Wrong: a circular buffer's window does not reach its end.
    fn refute_a_window_reaches_the_end_of_the_buffer(given, slot) {
        let Some(window) = window(given) else {
            return true;
        };
        implies(
            !window.is_empty() && slot & 3 == 0 && slot >= window.index(),
            (slot < end(&window)) == (slot <= given.fields.absolute_maximum.saturating_sub(RECORD)),
        )
    }
}
