//! System calls whose arguments depend on each other, in the form of strace.

use super::arguments::{Memory, input, pointer};
use super::{flags, socket_options, structures};
use vbts_host::exit::signal_name;

/// Flags of `clone` (include/uapi/linux/sched.h).
const CLONE_PIDFD: u64 = 0x1000;
const CLONE_SETTLS: u64 = 0x8_0000;
const CLONE_PARENT_SETTID: u64 = 0x10_0000;
const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
const CLONE_CHILD_SETTID: u64 = 0x100_0000;
/// Size of the first version of `struct clone_args`, up to `tls`.
const CLONE_ARGS: u64 = 64;

/// Operations of `futex` (include/uapi/linux/futex.h), without their flags.
const FUTEX_OPERATION: u64 = 0x7F;
/// All bits of a futex.
const MATCH_ANY: u64 = 0xFFFF_FFFF;

/// The texts of all arguments of the call `name`, when it has returned `result`; `None` if each
/// argument has a text of its own.
pub(super) fn arguments(
    name: &str,
    values: &[u64; 6],
    result: i64,
    memory: Option<&Memory<'_>>,
) -> Option<Vec<String>> {
    match name {
        "clone" => Some(clone(values, result, memory)),
        "clone3" => clone3(values, result, memory?),
        "futex" => Some(futex(values, memory)),
        "setsockopt" | "getsockopt" => Some(socket_option(name, values, result, memory)),
        _ => None,
    }
}

fn clone(values: &[u64; 6], result: i64, memory: Option<&Memory<'_>>) -> Vec<String> {
    let [flags, stack, parent, child, tls, _] = *values;
    let mut texts = vec![
        format!("child_stack={}", pointer(stack)),
        format!("flags={}", flags::clone(flags)),
    ];
    if flags & (CLONE_PARENT_SETTID | CLONE_PIDFD) != 0 {
        let number = memory.and_then(|memory| memory.number(parent));
        texts.push(match number.filter(|_| result >= 0) {
            Some(number) => format!("parent_tid=[{number}]"),
            None => format!("parent_tid={}", pointer(parent)),
        });
    }
    if flags & CLONE_SETTLS != 0 {
        texts.push(format!("tls={tls:#x}"));
    }
    if flags & (CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID) != 0 {
        texts.push(format!("child_tidptr={}", pointer(child)));
    }
    texts
}

fn clone3(values: &[u64; 6], result: i64, memory: &Memory<'_>) -> Option<Vec<String>> {
    let [address, size, ..] = *values;
    if size < CLONE_ARGS {
        return None;
    }
    let word = |at: u64| memory.word(address.checked_add(at)?);
    let (flags, pidfd, child, parent) = (word(0)?, word(8)?, word(16)?, word(24)?);
    let (signal, stack, stack_size, tls) = (word(32)?, word(40)?, word(48)?, word(56)?);
    let mut fields = vec![format!("flags={}", flags::clone(flags))];
    if flags & CLONE_PIDFD != 0 {
        fields.push(format!("pidfd={}", pointer(pidfd)));
    }
    if flags & (CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID) != 0 {
        fields.push(format!("child_tid={}", pointer(child)));
    }
    if flags & CLONE_PARENT_SETTID != 0 {
        fields.push(format!("parent_tid={}", pointer(parent)));
    }
    fields.push(match signal {
        0 => "exit_signal=0".into(),
        signal => format!("exit_signal={}", signal_name(signal as i32)),
    });
    fields.push(format!("stack={}", pointer(stack)));
    fields.push(match stack_size {
        0 => "stack_size=0".into(),
        size => format!("stack_size={size:#x}"),
    });
    if flags & CLONE_SETTLS != 0 {
        fields.push(format!("tls={tls:#x}"));
    }
    let mut text = format!("{{{}}}", fields.join(", "));
    let number = memory.number(parent);
    if let (true, Some(number)) = (result >= 0 && flags & CLONE_PARENT_SETTID != 0, number) {
        text.push_str(&format!(" => {{parent_tid=[{number}]}}"));
    }
    Some(vec![text, size.to_string()])
}

fn futex(values: &[u64; 6], memory: Option<&Memory<'_>>) -> Vec<String> {
    let [address, operation, value, timeout, other, last] = *values;
    let text = |kind: &str, value: u64| input(kind, value, None, memory).unwrap_or_default();
    let number = |value: u64| (value & 0xFFFF_FFFF).to_string();
    let bits = |bits: u64| match bits & MATCH_ANY {
        MATCH_ANY => "FUTEX_BITSET_MATCH_ANY".to_owned(),
        bits => format!("{bits:#x}"),
    };
    let mut texts = vec![text("address", address), text("futex", operation)];
    texts.extend(match operation & FUTEX_OPERATION {
        // WAIT; WAKE and FD; LOCK_PI and LOCK_PI2; UNLOCK_PI and TRYLOCK_PI.
        0 => vec![number(value), text("timespec", timeout)],
        1 | 2 => vec![number(value)],
        6 | 13 => vec![text("timespec", timeout)],
        7 | 8 => Vec::new(),
        // REQUEUE; CMP_REQUEUE and CMP_REQUEUE_PI; WAKE_OP.
        3 => vec![number(value), number(timeout), text("address", other)],
        4 | 12 => vec![
            number(value),
            number(timeout),
            text("address", other),
            number(last),
        ],
        5 => vec![
            number(value),
            number(timeout),
            text("address", other),
            flags::wake_operation(last),
        ],
        // WAIT_BITSET, WAKE_BITSET, WAIT_REQUEUE_PI.
        9 => vec![number(value), text("timespec", timeout), bits(last)],
        10 => vec![number(value), bits(last)],
        11 => vec![
            number(value),
            text("timespec", timeout),
            text("address", other),
        ],
        _ => vec![
            number(value),
            pointer(timeout),
            pointer(other),
            format!("{last:#x}"),
        ],
    });
    texts
}

fn socket_option(
    name: &str,
    values: &[u64; 6],
    result: i64,
    memory: Option<&Memory<'_>>,
) -> Vec<String> {
    let [descriptor, level, option, address, size, _] = *values;
    let is_read = name == "getsockopt";
    let number = |at: u64| memory.and_then(|memory| memory.number(at));
    // The kernel says how much it has written.
    let len = match is_read {
        true => number(size).map_or(0, i64::from) as u64,
        false => size & 0xFFFF_FFFF,
    };
    let is_known = !is_read || result >= 0;
    let value = memory
        .filter(|_| is_known)
        .and_then(|memory| structures::socket_option(level, option, address, len, memory));
    let size = match number(size).filter(|_| is_read) {
        Some(len) => format!("[{len}]"),
        None if is_read => pointer(size),
        None => len.to_string(),
    };
    vec![
        (descriptor as i32).to_string(),
        socket_options::level(level),
        socket_options::option(level, option),
        value.unwrap_or_else(|| pointer(address)),
        size,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(name: &str, values: [u64; 6]) -> String {
        arguments(name, &values, 0, None).unwrap().join(", ")
    }

    #[test]
    fn a_futex_has_the_arguments_of_its_operation() {
        for (values, expected) in [
            (
                [0x10, 0x80, 2, 0, 9, 9],
                "0x10, FUTEX_WAIT_PRIVATE, 2, NULL",
            ),
            ([0x10, 1, 1, 9, 9, 9], "0x10, FUTEX_WAKE, 1"),
            (
                [0x10, 0x189, 4, 0, 0, u64::MAX],
                "0x10, FUTEX_WAIT_BITSET_PRIVATE|FUTEX_CLOCK_REALTIME, 4, NULL, \
                 FUTEX_BITSET_MATCH_ANY",
            ),
            ([0x10, 10, 1, 0, 0, 6], "0x10, FUTEX_WAKE_BITSET, 1, 0x6"),
            (
                [0x10, 0x84, 1, 2, 0x20, 5],
                "0x10, FUTEX_CMP_REQUEUE_PRIVATE, 1, 2, 0x20, 5",
            ),
            (
                [0x10, 5, 1, 2, 0x20, 0x1000_1003],
                "0x10, FUTEX_WAKE_OP, 1, 2, 0x20, \
                 FUTEX_OP_ADD<<28|0x1<<12|FUTEX_OP_CMP_EQ<<24|0x3",
            ),
            ([0x10, 0x87, 1, 2, 3, 4], "0x10, FUTEX_UNLOCK_PI_PRIVATE"),
        ] {
            assert_eq!(texts("futex", values), expected);
        }
    }

    #[test]
    fn a_clone_names_its_arguments_in_the_order_of_strace() {
        assert_eq!(
            texts("clone", [0x0120_0011, 0, 0, 0x7f10, 0, 0]),
            "child_stack=NULL, flags=CLONE_CHILD_CLEARTID|CLONE_CHILD_SETTID|SIGCHLD, \
             child_tidptr=0x7f10"
        );
        assert_eq!(
            texts("clone", [0x0018_0100, 0x5000, 0x10, 0x20, 0x30, 0]),
            "child_stack=0x5000, flags=CLONE_VM|CLONE_SETTLS|CLONE_PARENT_SETTID, \
             parent_tid=0x10, tls=0x30"
        );
    }

    #[test]
    fn options_of_sockets_have_names() {
        assert_eq!(
            texts("setsockopt", [3, 1, 2, 0x10, 4, 0]),
            "3, SOL_SOCKET, SO_REUSEADDR, 0x10, 4"
        );
        assert_eq!(
            texts("setsockopt", [3, 6, 1, 0x10, 4, 0]),
            "3, SOL_TCP, TCP_NODELAY, 0x10, 4"
        );
    }
}
