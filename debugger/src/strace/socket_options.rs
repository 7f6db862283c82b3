//! Names of the options of sockets.

use super::flags::{Numbers, named};

const SOCKET_LEVEL: Numbers = &[
    (0, "SOL_IP"),
    (1, "SOL_SOCKET"),
    (6, "SOL_TCP"),
    (17, "SOL_UDP"),
    (41, "SOL_IPV6"),
    (263, "SOL_PACKET"),
    (270, "SOL_NETLINK"),
];
const SOCKET_OPTION: Numbers = &[
    (1, "SO_DEBUG"),
    (2, "SO_REUSEADDR"),
    (3, "SO_TYPE"),
    (4, "SO_ERROR"),
    (5, "SO_DONTROUTE"),
    (6, "SO_BROADCAST"),
    (7, "SO_SNDBUF"),
    (8, "SO_RCVBUF"),
    (9, "SO_KEEPALIVE"),
    (10, "SO_OOBINLINE"),
    (12, "SO_PRIORITY"),
    (13, "SO_LINGER"),
    (15, "SO_REUSEPORT"),
    (16, "SO_PASSCRED"),
    (17, "SO_PEERCRED"),
    (18, "SO_RCVLOWAT"),
    (19, "SO_SNDLOWAT"),
    (20, "SO_RCVTIMEO_OLD"),
    (21, "SO_SNDTIMEO_OLD"),
    (25, "SO_BINDTODEVICE"),
    (26, "SO_ATTACH_FILTER"),
    (28, "SO_PEERNAME"),
    (29, "SO_TIMESTAMP_OLD"),
    (30, "SO_ACCEPTCONN"),
    (31, "SO_PEERSEC"),
    (32, "SO_SNDBUFFORCE"),
    (33, "SO_RCVBUFFORCE"),
    (36, "SO_MARK"),
    (38, "SO_PROTOCOL"),
    (39, "SO_DOMAIN"),
    (46, "SO_BUSY_POLL"),
    (49, "SO_INCOMING_CPU"),
    (60, "SO_ZEROCOPY"),
];
const TCP_OPTION: Numbers = &[
    (1, "TCP_NODELAY"),
    (2, "TCP_MAXSEG"),
    (3, "TCP_CORK"),
    (4, "TCP_KEEPIDLE"),
    (5, "TCP_KEEPINTVL"),
    (6, "TCP_KEEPCNT"),
    (7, "TCP_SYNCNT"),
    (8, "TCP_LINGER2"),
    (9, "TCP_DEFER_ACCEPT"),
    (10, "TCP_WINDOW_CLAMP"),
    (11, "TCP_INFO"),
    (12, "TCP_QUICKACK"),
    (13, "TCP_CONGESTION"),
    (18, "TCP_USER_TIMEOUT"),
    (23, "TCP_FASTOPEN"),
];
const IP_OPTION: Numbers = &[
    (1, "IP_TOS"),
    (2, "IP_TTL"),
    (8, "IP_PKTINFO"),
    (10, "IP_MTU_DISCOVER"),
    (11, "IP_RECVERR"),
    (12, "IP_RECVTTL"),
    (13, "IP_RECVTOS"),
    (24, "IP_BIND_ADDRESS_NO_PORT"),
    (32, "IP_MULTICAST_IF"),
    (33, "IP_MULTICAST_TTL"),
    (34, "IP_MULTICAST_LOOP"),
    (35, "IP_ADD_MEMBERSHIP"),
];
const IPV6_OPTION: Numbers = &[
    (16, "IPV6_UNICAST_HOPS"),
    (18, "IPV6_MULTICAST_HOPS"),
    (19, "IPV6_MULTICAST_LOOP"),
    (25, "IPV6_RECVERR"),
    (26, "IPV6_V6ONLY"),
    (49, "IPV6_RECVPKTINFO"),
    (67, "IPV6_TCLASS"),
];
/// The level of an option of a socket.
pub(super) fn level(value: u64) -> String {
    named(SOCKET_LEVEL, value & 0xFFFF_FFFF)
}

/// An option of a socket.
pub(super) fn option(level: u64, value: u64) -> String {
    let names = match level & 0xFFFF_FFFF {
        0 => IP_OPTION,
        1 => SOCKET_OPTION,
        6 => TCP_OPTION,
        41 => IPV6_OPTION,
        _ => &[],
    };
    named(names, value & 0xFFFF_FFFF)
}
