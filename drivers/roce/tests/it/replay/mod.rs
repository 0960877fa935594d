//! Linux as the reference: our queue pair takes the place of either side of each captured connection, and
//! must send exactly what Linux sent, byte for byte: requests and responses, with operation, PSN, syndrome,
//! MSN, payload and ICRC.
//!
//! A table says how each capture is replayed. A capture that is not in it fails the test.

mod capture;
mod end;
mod play;

use crate::common;
use capture::{Capture, SERVER};
use end::End;
use play::{Compared, Requests, Rules, play};
use roce::wire::{Frame, Net, Service, rc_source_port};
use verbs::Status;

/// The replay of a capture.
enum Replay {
    /// A connection, from both sides: its rules, then the numbers of requests and responses of the server and
    /// of the client that are compared.
    Connection(Rules, [Compared; 2]),
    /// Datagrams or an unreliable connection, in which no response is determined by the specification. The
    /// frames are parsed, checked and emitted again (`captures.rs`); `ud.rs` sends and receives those of
    /// `ud_send`.
    Unanswered,
}

const fn sides(server: (usize, usize), client: (usize, usize)) -> [Compared; 2] {
    [
        Compared { requests: server.0, responses: server.1 },
        Compared { requests: client.0, responses: client.1 },
    ]
}

/// Makes the replay of a connection on which the client requests and the server responds.
const fn plain(requests: usize, responses: usize) -> Replay {
    Replay::Connection(Rules::PLAIN, sides((0, responses), (requests, 0)))
}

const TABLE: [(&str, Replay); 26] = [
    ("cm_rping", Replay::Connection(Rules { memory_changes: true, ..Rules::PLAIN }, sides((8, 4), (4, 8)))),
    ("cm_udaddy", Replay::Unanswered),
    ("perftest_write_lat", Replay::Connection(Rules::PLAIN, sides((5, 5), (5, 5)))),
    ("rc_atomic", plain(4, 4)),
    (
        "rc_bad_addr_read",
        Replay::Connection(
            Rules { refusal: Some(Status::RemoteAccessError), ..Rules::PLAIN },
            sides((0, 1), (1, 0)),
        ),
    ),
    (
        "rc_bad_rkey",
        Replay::Connection(
            Rules { refusal: Some(Status::RemoteAccessError), refused_key: true, ..Rules::PLAIN },
            sides((0, 1), (1, 0)),
        ),
    ),
    (
        "rc_burst",
        Replay::Connection(
            Rules { requests: Requests::SameButAckRequest, ..Rules::PLAIN },
            sides((0, 33), (96, 0)),
        ),
    ),
    ("rc_ipv6_mixed", plain(7, 6)),
    (
        "rc_loss",
        Replay::Connection(
            Rules { requests: Requests::OneOfTheirs, lost_every: Some(7), ..Rules::PLAIN },
            sides((0, 20), (38, 0)),
        ),
    ),
    ("rc_mixed", plain(7, 6)),
    ("rc_mtu256", plain(18, 13)),
    ("rc_mtu4096", plain(18, 13)),
    ("rc_mtu4096_read", plain(13, 18)),
    ("rc_pingpong", Replay::Connection(Rules::PLAIN, sides((3, 3), (3, 3)))),
    ("rc_psn_wrap", plain(18, 13)),
    ("rc_read", plain(13, 18)),
    ("rc_read8", plain(8, 16)),
    ("rc_rnr", plain(5, 5)),
    ("rc_send", plain(18, 13)),
    ("rc_send_imm", plain(7, 5)),
    ("rc_send_inv", plain(2, 2)),
    ("rc_write", plain(18, 13)),
    ("rc_write_imm", plain(10, 6)),
    ("uc_send", Replay::Unanswered),
    ("uc_write_imm", Replay::Unanswered),
    ("ud_send", Replay::Unanswered),
];

/// The names of the captures that are small enough for Miri.
const SMALL: [&str; 5] = ["rc_atomic", "rc_bad_rkey", "rc_pingpong", "rc_rnr", "rc_send_inv"];

#[test]
fn every_capture_is_in_the_table() {
    let names: Vec<_> = TABLE.iter().map(|(name, _)| *name).collect();
    assert_eq!(common::captures(), names);
}

#[test]
fn either_side_sends_what_linux_sent() {
    for (name, replay) in &TABLE {
        // The interpreter takes about ten minutes for all.
        if cfg!(miri) && !SMALL.contains(name) {
            continue;
        }
        let capture = Capture::load(name);
        let Replay::Connection(rules, expected) = replay else {
            assert!(capture.connection().is_empty(), "{name} has answers");
            continue;
        };
        // With the connection manager, Linux computes the port from other numbers.
        for event in capture.connection().iter().filter(|_| *name != "cm_rping") {
            let (to, from) = capture.numbers(event.side);
            let (Net::V4(_, udp) | Net::V6(_, udp)) = event.frame.headers.net else { panic!("no RoCEv1") };
            assert_eq!(udp.src, rc_source_port(to, from), "{name}");
        }
        let compared = [0, 1].map(|side| play(name, &capture, rules, side));
        assert_eq!(compared, *expected, "{name}: frames compared, of the server and of the client");
        // These are all frames of the capture, except datagrams beside the connection and repetitions after a
        // loss.
        let count: usize = compared.iter().map(|c| c.requests + c.responses).sum();
        assert_eq!(count == capture.connection().len(), rules.requests != Requests::OneOfTheirs, "{name}");
    }
}

/// Linux acknowledges each request that asks for it. Ours may acknowledge several at once: if all requests
/// arrive before it responds, each of its responses is still one of Linux's, and the last is the same.
#[test]
#[cfg_attr(miri, ignore = "too many bytes")]
fn one_acknowledgement_stands_for_several() {
    for name in ["rc_burst", "rc_write", "rc_send"] {
        let capture = Capture::load(name);
        let events = capture.connection();
        let mut server = End::new(&capture, &events, SERVER, false);
        for event in events.iter().filter(|e| e.side != SERVER) {
            if event.needs_receive() {
                server.post_receive();
            }
            server.receive_only(event.packet());
        }
        server.send();
        let theirs: Vec<_> = events.iter().filter(|e| e.side == SERVER).map(|e| *e.packet()).collect();
        let ours: Vec<_> = server.responses.iter().map(|bytes| Frame::parse(bytes).unwrap().packet).collect();
        assert!(ours.iter().all(|ours| theirs.contains(ours)), "{name}");
        assert_eq!(ours.last(), theirs.last(), "{name}");
        assert!(ours.len() < theirs.len() / 4, "{name}: {} for {}", ours.len(), theirs.len());
    }
}

/// For services without responses, only the sender is determined: its PSNs increase by one per packet.
#[test]
#[cfg_attr(miri, ignore = "too many bytes")]
fn unanswered_services_count_up() {
    for (name, replay) in &TABLE {
        if matches!(replay, Replay::Connection(..)) {
            continue;
        }
        let capture = Capture::load(name);
        let all = capture.all();
        assert!(!all.is_empty() && all.len() == capture.len());
        for side in [0, 1] {
            for qp in [0, 1] {
                let of = |e: &&capture::Event<'_>| {
                    e.side == side && usize::from(e.packet().bth.dest_qp.get() != 1) == qp
                };
                let events: Vec<_> = all.iter().filter(of).collect();
                for pair in events.windows(2) {
                    assert_eq!(pair[1].psn(), pair[0].psn().add(1), "{name}");
                    assert_ne!(pair[0].packet().bth.opcode.service, Service::Rc, "{name}");
                }
            }
        }
    }
}
