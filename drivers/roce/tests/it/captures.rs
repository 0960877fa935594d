//! The captures of Linux: every frame is parsed, checked, and emitted again byte for byte.

use crate::common::{data, frames};
use roce::wire::{Ext, Frame, Net, Service, Syndrome, rc_source_port};
use serde_json::Value;
use std::collections::BTreeMap;
use verbs::QpNum;

#[test]
fn every_frame_verifies_and_emits_to_the_same_bytes() {
    let mut captures: Vec<_> = std::fs::read_dir(data()).unwrap().map(|e| e.unwrap().path()).collect();
    captures.retain(|path| path.extension().is_some_and(|e| e == "pcap"));
    assert_eq!(captures.len(), 26);
    let (mut packets, mut opcodes) = (0, BTreeMap::new());
    for path in captures {
        for (n, bytes) in frames(&path).iter().enumerate() {
            let frame = Frame::parse(bytes).unwrap_or_else(|e| panic!("{path:?} frame {n}: {e}"));
            assert!(frame.icrc_ok(), "{path:?} frame {n}: ICRC");
            let mut again = vec![0xaa; bytes.len()];
            assert_eq!(frame.emit(&mut again), Some(bytes.len()), "{path:?} frame {n}");
            assert_eq!(&again, bytes, "{path:?} frame {n}");
            assert_eq!(frame.emit(&mut vec![0; bytes.len() - 1]), None);
            packets += 1;
            *opcodes.entry(frame.packet.bth.opcode.to_byte()).or_insert(0) += 1;
        }
    }
    assert_eq!(packets, 723);
    // All opcodes of the reliable connection except SEND last with invalidate, and some of the other
    // services.
    assert_eq!(opcodes.keys().filter(|&&code| code < 0x20).count(), 22, "{opcodes:?}");
}

#[test]
fn every_flipped_bit_that_the_icrc_covers_is_seen() {
    let path = data().join("rc_write.pcap");
    let bytes = &frames(&path)[0];
    let mut seen = 0;
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        // Not covered: Ethernet; of IPv4 the type of service, time to live and checksum; of UDP the checksum;
        // a byte of the base header. But IPv4's own checksum covers its header.
        let free = bit / 8 < 14 || matches!(bit / 8, 40 | 41) || bit / 8 == 46;
        let passes = Frame::parse(&bad).is_ok_and(|frame| frame.icrc_ok());
        if bit / 8 >= 14 {
            assert_eq!(passes, free, "bit {bit}");
            seen += 1;
        }
    }
    assert!(seen > 400);
}

#[test]
fn fields_are_as_an_independent_decoder_says() {
    let text = std::fs::read_to_string(data().join("golden_vectors.json")).unwrap();
    let vectors: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(vectors.len(), 65);
    for vector in &vectors {
        let (hex, fields) = (vector["hex"].as_str().unwrap(), &vector["fields"]);
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
        let frame = Frame::parse(&bytes).unwrap();
        let found = decode(&frame);
        for (name, value) in &found {
            // The decoder writes flags as numbers.
            let expected = &fields[*name];
            assert_eq!(expected.as_u64(), Some(*value), "{name} of {vector}");
        }
        assert_eq!(frame.headers.net.src().to_string().trim_start_matches("::ffff:"), fields["src"]);
        assert_eq!(frame.headers.net.dst().to_string().trim_start_matches("::ffff:"), fields["dst"]);
        let numbers =
            ["psn", "va", "rkey", "dmalen", "imm", "swap_add", "compare", "orig", "syndrome", "msn", "qkey"];
        for name in numbers {
            let known = fields.get(name).is_some();
            assert_eq!(found.contains_key(name), known, "{name} of {vector}");
        }
    }
}

/// Returns a frame's fields under the decoder's names.
fn decode(frame: &Frame<'_>) -> BTreeMap<&'static str, u64> {
    let mut fields = BTreeMap::new();
    let mut put = |name, value: u64| fields.insert(name, value);
    let (bth, ext) = (&frame.packet.bth, &frame.packet.ext);
    let udp = match &frame.headers.net {
        Net::V4(ip, udp) => {
            put("v6", 0);
            put("tos", ip.tos.into());
            put("ttl", ip.ttl.into());
            put("ip_id", ip.id.into());
            put("df", (ip.flags_fragment >> 14 & 1).into());
            udp
        }
        Net::V6(ip, udp) => {
            put("v6", 1);
            put("tos", ip.traffic_class.into());
            put("ttl", ip.hop_limit.into());
            udp
        }
        Net::Grh(_) | Net::InfiniBand(..) => panic!("no RoCEv1 in the captures"),
    };
    put("sport", udp.src.into());
    put("udp_csum", udp.checksum.into());
    put("opcode", bth.opcode.to_byte().into());
    put("se", bth.solicited.into());
    put("mig", bth.migrated.into());
    put("pad", bth.pad.into());
    put("tver", bth.version.into());
    put("pkey", bth.pkey.into());
    put("resv8a", bth.congestion.into());
    put("dqpn", bth.dest_qp.get().into());
    put("ackreq", bth.ack_request.into());
    put("psn", bth.psn.get().into());
    put("paylen", frame.packet.payload.len() as u64);
    let (reth, imm, aeth, deth) = match *ext {
        Ext::None => (None, None, None, None),
        Ext::Reth(reth) => (Some(reth), None, None, None),
        Ext::RethImm(reth, imm) => (Some(reth), Some(imm), None, None),
        Ext::Imm(imm) => (None, Some(imm), None, None),
        Ext::Invalidate(key) => {
            put("inv_rkey", key.0.into());
            (None, None, None, None)
        }
        Ext::Aeth(aeth) => (None, None, Some(aeth), None),
        Ext::Atomic(atomic) => {
            put("va", atomic.addr.0);
            put("rkey", atomic.key.0.into());
            put("swap_add", atomic.swap_add);
            put("compare", atomic.compare);
            (None, None, None, None)
        }
        Ext::AtomicAck(aeth, before) => {
            put("orig", before);
            (None, None, Some(aeth), None)
        }
        Ext::Deth(deth) => (None, None, None, Some(deth)),
        Ext::DethImm(deth, imm) => (None, Some(imm), None, Some(deth)),
        Ext::Cnp(_) => panic!("no congestion notification in the captures"),
    };
    if let Some(reth) = reth {
        put("va", reth.addr.0);
        put("rkey", reth.key.0.into());
        put("dmalen", reth.len.into());
    }
    if let Some(imm) = imm {
        put("imm", imm.into());
    }
    if let Some(aeth) = aeth {
        put("syndrome", aeth.syndrome.to_byte().into());
        put("msn", aeth.msn.into());
    }
    if let Some(deth) = deth {
        put("qkey", deth.qkey.into());
        put("sqpn", deth.src_qp.get().into());
    }
    fields
}

#[test]
fn source_ports_equal_those_of_linux() {
    // The two queue pair numbers of each connection, from the programs' output next to the captures.
    for (name, a, b) in [("rc_rnr", 32, 112), ("rc_atomic", 20, 40)] {
        let port = rc_source_port(QpNum::new(a), QpNum::new(b));
        assert_eq!(port, rc_source_port(QpNum::new(b), QpNum::new(a)));
        for bytes in frames(&data().join(name).with_extension("pcap")) {
            let frame = Frame::parse(&bytes).unwrap();
            assert!(matches!(frame.headers.net, Net::V4(_, udp) if udp.src == port), "{name}");
            assert_eq!(frame.packet.bth.opcode.service, Service::Rc);
        }
    }
}

#[test]
fn the_rnr_timer_of_linux_is_ours() {
    let naks = frames(&data().join("rc_rnr.pcap"));
    let timers: Vec<_> = naks
        .iter()
        .filter_map(|bytes| match Frame::parse(bytes).unwrap().packet.ext {
            Ext::Aeth(aeth) => match aeth.syndrome {
                Syndrome::RnrNak(timer) => Some((timer.code(), timer.delay().as_micros())),
                _ => None,
            },
            _ => None,
        })
        .collect();
    assert!(!timers.is_empty());
    assert!(timers.iter().all(|&t| t == (20, 10_240)), "{timers:?}");
}
