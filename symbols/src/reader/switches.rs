//! Functions that continue on another stack: what they jump or return to is not called by them.

/// Their names: that of Go's runtime, with which it starts and continues a goroutine, and those of
/// the C library and of Boost, which do so for a context.
const SWITCHES: [&str; 6] = [
    "gogo",
    "runtime.gogo",
    "runtime.gogo.abi0",
    "setcontext",
    "swapcontext",
    "jump_fcontext",
];

/// Whether the function with this name continues on another stack.
pub(super) fn is_switch(name: &[u8]) -> bool {
    SWITCHES.iter().any(|switch| switch.as_bytes() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole() {
        assert!(is_switch(b"runtime.gogo.abi0") && is_switch(b"swapcontext"));
        assert!(!is_switch(b"gogo2") && !is_switch(b"main.gogo") && !is_switch(b""));
    }
}
