//! InfiniBand packets: the specification's sample, and any packet parsed after its emission.

use proptest::prelude::*;
use roce::wire::{
    Bth, CABLE, ETHERTYPE_INFINIBAND, Error, Ethernet, Ext, Frame, Headers, Ipv6, Lrh, Net, Opcode,
    Operation, Symbol, vcrc,
};
use verbs::{MacAddr, Psn, QpNum};

/// The local packet of specification 7.8.1 with its ICRC, as its authors computed it: a WRITE of 14 bytes.
const SAMPLE: [u8; 56] = [
    0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87, 0x00, 0x87, 0xb1, 0xb3, 0x00,
    0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02, 0x38, 0xf2, 0x7a, 0x05, 0x00, 0x00,
    0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c, 0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00,
    0x00, 0x96, 0x25, 0xb7, 0x5a,
];

fn on_cable(packet: &[u8]) -> Vec<u8> {
    let ethernet = Ethernet { dst: CABLE, src: MacAddr([2; 6]), ethertype: ETHERTYPE_INFINIBAND };
    let symbol = (Symbol::Packet as u16).to_be_bytes();
    [&ethernet.emit(), &symbol[..], packet, &vcrc(packet)].concat()
}

#[test]
fn the_sample_packet_of_the_specification() {
    let bytes = on_cable(&SAMPLE);
    let frame = Frame::parse(&bytes).unwrap();
    assert!(frame.icrc_ok());
    let lrh = Lrh { lane: 7, service_level: 1, dlid: 0x375c, slid: 0x17d2 };
    assert_eq!(frame.headers.net, Net::InfiniBand(lrh, None));
    assert_eq!(frame.packet.bth.opcode, Opcode::rc(Operation::WriteOnly));
    assert_eq!(frame.packet.bth.pkey, 0x2487);
    assert_eq!(frame.packet.bth.dest_qp, QpNum::new(0x87_b1b3));
    assert!(matches!(frame.packet.ext, Ext::Reth(reth) if reth.len == 14));
    assert_eq!(frame.packet.payload, &SAMPLE[36..50]);
    let mut again = vec![0; bytes.len()];
    assert_eq!(frame.emit(&mut again), Some(bytes.len()));
    assert_eq!(again, bytes);
    // The padding of a short Ethernet frame changes nothing.
    let padded = [&bytes[..], &[0; 9]].concat();
    assert!(Frame::parse(&padded).unwrap().icrc_ok());
}

#[test]
fn every_flipped_bit_is_seen_by_a_check() {
    let bytes = on_cable(&SAMPLE);
    for bit in 14 * 8..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Frame::parse(&bad).is_err(), "bit {bit}");
        // With a new variant CRC, as a switch computes it, only changes of the virtual lane and of one byte
        // of the base header pass, and the length field determines the end of the packet.
        if (16..72).contains(&(bit / 8)) {
            let bad = on_cable(&bad[16..72]);
            let free = (bit / 8 == 16 && bit % 8 >= 4) || bit / 8 == 16 + 8 + 4;
            assert_eq!(Frame::parse(&bad).is_ok_and(|frame| frame.icrc_ok()), free, "bit {bit}");
        }
    }
}

#[test]
fn other_symbols_and_raw_packets_are_not_ours() {
    let mut bytes = on_cable(&SAMPLE);
    bytes[15] = Symbol::Polling as u16 as u8;
    assert_eq!(Frame::parse(&bytes), Err(Error::NotRoce));
    let mut raw = SAMPLE;
    raw[1] &= !3;
    assert_eq!(Frame::parse(&on_cable(&raw)), Err(Error::NotRoce));
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 256 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_packet_there_and_back(
        (lane, service_level) in (0..16u8, 0..16u8),
        (dlid, slid) in any::<(u16, u16)>(),
        grh in proptest::option::of((any::<[u8; 16]>(), any::<[u8; 16]>(), any::<u8>(), any::<u8>())),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let grh = grh.map(|(src, dst, traffic_class, hop_limit)| Ipv6 {
            traffic_class, flow_label: 0, next_header: Ipv6::NEXT_IBA, hop_limit, src, dst,
        });
        let headers = Headers {
            ethernet: Ethernet { dst: CABLE, src: MacAddr([2; 6]), ethertype: ETHERTYPE_INFINIBAND },
            net: Net::InfiniBand(Lrh { lane, service_level, dlid, slid }, grh),
        };
        let bth = Bth::new(Opcode::rc(Operation::SendOnly), QpNum::new(7), Psn::new(9));
        let mut bytes = vec![0; headers.frame_len(&Ext::None, payload.len())];
        let len = bytes.len();
        let fill = |to: &mut [u8]| to.copy_from_slice(&payload);
        prop_assert_eq!(headers.emit(&bth, &Ext::None, payload.len(), &mut bytes, fill), Some(len));
        let frame = Frame::parse(&bytes).unwrap();
        prop_assert!(frame.icrc_ok());
        prop_assert_eq!(frame.headers, headers);
        prop_assert_eq!(frame.packet.payload, &payload[..]);
        // A router may change the lane, the hop limit and the whole local route header: the ICRC of a packet
        // with GRH stays right.
        let origin = frame.origin();
        if grh.is_some() {
            prop_assert_eq!(&origin[..], &bytes[24..64]);
            let mut routed = bytes[16..len - 2].to_vec();
            (routed[2], routed[7], routed[8 + 7]) = (0x12, 0x34, 0x56);
            prop_assert!(Frame::parse(&on_cable(&routed)).unwrap().icrc_ok());
        } else {
            prop_assert_eq!(origin, [0; 40]);
        }
    }
}
