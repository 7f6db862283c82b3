//! Files of the host that fail.

/// Files to which no byte can be written, and the error. The second one is the memory of this
/// process at address 0.
pub const BROKEN: [(&str, &str); 2] = [
    ("/dev/full", "No space left"),
    ("/proc/self/mem", "Input/output error"),
];
