//! Tests of the exchange against recordings of two Linux machines (`tests/data`): the same messages in the
//! same order on both sides, and the same bytes except for values that depend on the machine.

use crate::support::{both, pair};
use perftest::message::{Bandwidth, DONE, KEYS_LEN, Keys, VERSION};
use std::path::Path;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    Version,
    /// The page size, then the cache line size.
    Size,
    Mtu,
    Keys,
    /// The value with this index, among the five of a result.
    Value(usize),
    Done,
}

/// Returns all messages of a side, in order: `keys` messages of keys, the values of a result if there is one,
/// then `after` messages of keys.
fn messages(keys: usize, result: bool, after: usize, done: bool) -> Vec<Message> {
    let mut all = vec![Message::Version, Message::Size, Message::Size, Message::Mtu];
    all.extend([Message::Keys].repeat(keys));
    all.extend((0..5).filter(|_| result).map(Message::Value));
    all.extend([Message::Keys].repeat(after));
    all.extend([Message::Done].iter().filter(|_| done));
    all
}

impl Message {
    const fn len(self) -> usize {
        match self {
            Self::Version => VERSION.len(),
            Self::Size => 4,
            Self::Mtu => 2,
            Self::Keys => KEYS_LEN,
            Self::Value(_) => 8,
            Self::Done => DONE.len(),
        }
    }
}

/// Returns the client's and the server's bytes.
fn recorded(name: &str) -> [Vec<u8>; 2] {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name).with_extension("hex");
    let text = std::fs::read_to_string(path).unwrap();
    let (client, server) = text.strip_prefix("client\n").unwrap().split_once("server\n").unwrap();
    [client, server].map(|hex| {
        let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.chunks(2).map(byte).collect()
    })
}

fn cut(bytes: &[u8], messages: &[Message]) -> Vec<Vec<u8>> {
    let mut rest = bytes;
    let cut = messages.iter().map(|message| {
        let (first, next) = rest.split_at(message.len());
        rest = next;
        first.to_vec()
    });
    let cut = cut.collect();
    assert!(rest.is_empty(), "{} bytes too many", rest.len());
    cut
}

fn same(command: &str, file: &str, messages: &[Message]) {
    let nodes = pair(0);
    for result in both(&nodes, command) {
        result.unwrap();
    }
    let [server, client] = nodes[0].said();
    for ((side, ours), linux) in [("client", client), ("server", server)].iter().zip(recorded(file)) {
        for ((message, ours), linux) in messages.iter().zip(cut(ours, messages)).zip(cut(&linux, messages)) {
            match message {
                Message::Version | Message::Size | Message::Mtu | Message::Done => {
                    assert_eq!(ours, linux, "{command}: {message:?}");
                }
                // A server that measures nothing sends uninitialised memory.
                Message::Value(_) if *side == "server" && !command.contains("-b") => {}
                Message::Keys => {
                    // Each message is decoded and encoded without a change; the numbers in them differ.
                    for bytes in [ours, linux] {
                        let bytes: [u8; KEYS_LEN] = bytes.try_into().unwrap();
                        assert_eq!(Keys::parse(&bytes).unwrap().encode(), bytes, "{command}");
                    }
                }
                Message::Value(n @ (0 | 1)) => assert_eq!(ours, linux, "{command}: value {n}"),
                Message::Value(n) => {
                    let value = |bytes: Vec<u8>| {
                        let mut values = [[0; 8]; 5];
                        values[*n] = bytes.try_into().unwrap();
                        let Bandwidth { peak, average, rate, .. } = Bandwidth::decode(values);
                        [0.0, 0.0, peak, average, rate][*n]
                    };
                    assert!(value(ours) >= 0.0 && value(linux) > 0.0, "{command}: value {n}");
                }
            }
        }
    }
}

#[test]
fn write_latency() {
    same("ib_write_lat -s 8 -n 5", "write_lat", &messages(4, false, 0, false));
}

#[test]
fn bidirectional_sends_on_two_queue_pairs() {
    same("ib_send_bw -s 64 -n 5 -b -q 2", "send_bw", &messages(2 + 1 + 2 + 1, true, 1, true));
}

#[test]
fn one_sided_bandwidth() {
    same("ib_read_bw -s 64 -n 5", "read_bw", &messages(1 + 1 + 1 + 1, true, 1, true));
}

#[test]
fn atomic_latency() {
    same("ib_atomic_lat -n 5", "atomic_lat", &messages(4, false, 1, true));
}
