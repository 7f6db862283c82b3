//! The text of structures in arguments of system calls, as strace shows them.

use super::arguments::{Memory, pointer, quoted};
use super::flags;
use vbts_host::exit::signal_name;

/// Elements of a list that are shown, at most.
const SHOWN_ELEMENTS: u64 = 32;
/// The largest socket address that is read (`sizeof(struct sockaddr_storage)`).
const MAX_ADDRESS: usize = 128;
/// Size of `struct pollfd`, and how many of them are read at the end of a call.
const POLLFD: u64 = 8;
const MAX_POLLED: u64 = 1024;
/// Bytes of a name in `struct utsname`.
const UTSNAME: usize = 65;

/// The text of the structure of this kind at `value`. `count` is its size or the number of its
/// elements. `None`: the kind is no structure, or its memory cannot be read.
pub(super) fn text(kind: &str, value: u64, count: u64, memory: &Memory<'_>) -> Option<String> {
    match kind {
        "sigset" => memory.word(value).map(signals),
        "sigaction" => action(value, memory),
        "iovec" => list(value, 16, count, |at| {
            let (base, len) = (memory.word(at)?, memory.word(at.checked_add(8)?)?);
            let shown = len.min(flags::SHOWN as u64) as usize;
            let bytes = memory.bytes(base, shown)?;
            let base = quoted(&bytes, len > shown as u64);
            Some(format!("{{iov_base={base}, iov_len={len}}}"))
        }),
        "sockaddr" => address(value, count, memory),
        "poll" => list(value, POLLFD, count, |at| {
            let (descriptor, events, _) = polled(at, memory)?;
            Some(match descriptor {
                ..0 => format!("{{fd={descriptor}}}"),
                _ => format!("{{fd={descriptor}, events={}}}", flags::poll(events)),
            })
        }),
        "rlimit" => {
            let (now, most) = (memory.word(value)?, memory.word(value.checked_add(8)?)?);
            let (now, most) = (limit(now), limit(most));
            Some(format!("{{rlim_cur={now}, rlim_max={most}}}"))
        }
        "utsname" => {
            let name = |at: u64| {
                let bytes = memory.bytes(value.checked_add(at)?, UTSNAME)?;
                let end = bytes.iter().position(|byte| *byte == 0);
                Some(quoted(bytes.get(..end?)?, false))
            };
            let (system, node) = (name(0)?, name(UTSNAME as u64)?);
            Some(format!("{{sysname={system}, nodename={node}, ...}}"))
        }
        _ => None,
    }
}

/// The descriptor, the requested and the returned events of the `struct pollfd` at an address.
fn polled(at: u64, memory: &Memory<'_>) -> Option<(i32, u64, u64)> {
    let word = memory.word(at)?;
    Some((word as i32, word >> 32 & 0xFFFF, word >> 48))
}

/// The elements of a list of `poll` for which it has returned events.
pub(super) fn poll_result(value: u64, count: u64, memory: &Memory<'_>) -> Option<String> {
    let mut texts = Vec::new();
    for n in 0..count.min(MAX_POLLED) {
        let (descriptor, _, events) = polled(value.checked_add(n * POLLFD)?, memory)?;
        if events != 0 {
            let events = flags::poll(events);
            texts.push(format!("{{fd={descriptor}, revents={events}}}"));
        }
    }
    Some(format!("[{}]", texts.join(", ")))
}

/// The value of an option of a socket, which has `len` bytes.
pub(super) fn socket_option(
    level: u64,
    option: u64,
    value: u64,
    len: u64,
    memory: &Memory<'_>,
) -> Option<String> {
    const SOL_SOCKET: u64 = 1;
    const SO_LINGER: u64 = 13;
    match (level, option, len) {
        (SOL_SOCKET, SO_LINGER, 8) => {
            let (is_on, seconds) = (memory.number(value)?, memory.number(value.checked_add(4)?)?);
            Some(format!("{{l_onoff={is_on}, l_linger={seconds}}}"))
        }
        (_, _, 4) => Some(format!("[{}]", memory.number(value)?)),
        _ => {
            let shown = len.min(flags::SHOWN as u64) as usize;
            Some(quoted(&memory.bytes(value, shown)?, len > shown as u64))
        }
    }
}

/// Up to `count` elements of `size` bytes at `address`.
fn list(
    address: u64,
    size: u64,
    count: u64,
    element: impl Fn(u64) -> Option<String>,
) -> Option<String> {
    let shown = (0..count.min(SHOWN_ELEMENTS)).map(|n| element(address.checked_add(n * size)?));
    let mut texts = shown.collect::<Option<Vec<String>>>()?;
    if count > SHOWN_ELEMENTS {
        texts.push("...".into());
    }
    Some(format!("[{}]", texts.join(", ")))
}

/// A set of signals. If most are in it, strace names the others.
fn signals(set: u64) -> String {
    let (sign, named) = match set.count_ones() {
        33.. => ("~", !set),
        _ => ("", set),
    };
    let names = (1..=64).filter(|signal| named >> (signal - 1) & 1 == 1);
    let names = names.map(|signal| {
        let name = signal_name(signal);
        name.strip_prefix("SIG").unwrap_or(&name).to_owned()
    });
    format!("{sign}[{}]", names.collect::<Vec<_>>().join(" "))
}

/// The kernel's `struct sigaction`.
fn action(value: u64, memory: &Memory<'_>) -> Option<String> {
    let word = |at: u64| memory.word(value.checked_add(at)?);
    let (handler, options, restorer, mask) = (word(0)?, word(8)?, word(16)?, word(24)?);
    let handler = match handler {
        0 => "SIG_DFL".into(),
        1 => "SIG_IGN".into(),
        _ => pointer(handler),
    };
    let (mask, options) = (signals(mask), flags::text("sa_flags", options)?);
    let restorer = match options.contains("SA_RESTORER") {
        true => format!(", sa_restorer={}", pointer(restorer)),
        false => String::new(),
    };
    Some(format!(
        "{{sa_handler={handler}, sa_mask={mask}, sa_flags={options}{restorer}}}"
    ))
}

/// A limit of a resource. Multiples of 1024 are shown as such.
fn limit(value: u64) -> String {
    match value {
        u64::MAX => "RLIM64_INFINITY".into(),
        1025.. if value.is_multiple_of(1024) => format!("{}*1024", value / 1024),
        _ => value.to_string(),
    }
}

/// The address of a socket.
fn address(value: u64, len: u64, memory: &Memory<'_>) -> Option<String> {
    const UNIX: u16 = 1;
    const INET: u16 = 2;
    let len = usize::try_from(len).ok().filter(|len| *len >= 2)?;
    let bytes = memory.bytes(value, len.min(MAX_ADDRESS))?;
    let (family, rest) = bytes.split_first_chunk()?;
    match (u16::from_le_bytes(*family), rest) {
        (UNIX, [0, ..]) => Some(format!("{{sa_family=AF_UNIX, sun_path=@{}}}", {
            quoted(rest.get(1..)?, false)
        })),
        (UNIX, [_, ..]) => {
            let path = rest.split(|byte| *byte == 0).next().unwrap_or_default();
            let path = quoted(path, false);
            Some(format!("{{sa_family=AF_UNIX, sun_path={path}}}"))
        }
        (INET, [high, low, a, b, c, d, ..]) => {
            let port = u16::from_be_bytes([*high, *low]);
            Some(format!(
                "{{sa_family=AF_INET, sin_port=htons({port}), \
                 sin_addr=inet_addr(\"{a}.{b}.{c}.{d}\")}}"
            ))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_signals_are_as_short_as_those_of_strace() {
        assert_eq!(signals(0), "[]");
        assert_eq!(signals(1 << 1 | 1 << 11), "[INT USR2]");
        assert_eq!(signals(!(1 << 8)), "~[KILL]");
        assert_eq!(signals(u64::MAX), "~[]");
    }

    #[test]
    fn limits_are_multiples_of_1024() {
        assert_eq!(limit(8 << 20), "8192*1024");
        assert_eq!(limit(1024), "1024");
        assert_eq!(limit(20000), "20000");
        assert_eq!(limit(u64::MAX), "RLIM64_INFINITY");
    }
}
