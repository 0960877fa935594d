//! Ethernet on two cards in plain memory: details that tests with Linux do not show.

use connectx3::device::{Card, Profile};
use connectx3_testdriver::driver::{Node, Queue, Sizes, exchange};
use connectx3_testdriver::ethernet::{segment, tcp};
use verbs::MacAddr;

const TO: [u8; 6] = [2, 0, 0, 0, 0, 2];
const TCP_STATUS: u16 = 1 << 12 | 1 << 10 | 1 << 6;

fn node(number: u8, profile: &str) -> Node {
    let card = Card::new(Profile::named(profile, MacAddr([2, 0, 0, 0, 0, number])).unwrap());
    Node::with(card, Sizes::default(), number)
}

/// Creates two cards with a queue pair each. The second card's address is steered to its queue pair.
fn pair(profile: &str) -> (Node, Queue, Node, Queue) {
    let (mut a, mut b) = (node(1, profile), node(2, profile));
    let (qa, qb) = (a.raw(0x48, 0x90, &[]), b.raw(0x50, 0x91, &[(0xc0, 1 << 30)]));
    b.steer(true, TO, &[0x50]);
    (a, qa, b, qb)
}

fn word(entry: &[u8; 32], at: usize) -> u32 {
    u32::from_be_bytes(entry[at..at + 4].try_into().unwrap())
}

fn half(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

#[test]
fn checksums_are_filled_by_the_sender_and_judged_by_the_receiver() {
    let (mut a, mut qa, mut b, mut qb) = pair("pro");
    let places = b.post_buffers(&mut qb, 4);
    let frame = tcp(TO, "10.0.0.1", "10.0.0.2", [80, 4000], &[7; 100]);
    a.send_frame(&mut qa, &frame, true, 0);
    a.send_frame(&mut qa, &frame, false, 0);
    let six = tcp(TO, "fe80::1", "fe80::2", [80, 4000], &[7; 101]);
    a.send_frame(&mut qa, &six, true, 0);
    // A frame that is not IP and has less than the minimum length.
    a.send_frame(&mut qa, &frame[..20], true, 0);
    exchange(&mut a, &mut b, |_| false);
    for _ in 0..4 {
        assert_eq!(a.raw_completion(&mut qa).unwrap()[0x1f] & 0x5f, 0x4a);
    }
    let good = b.raw_completion(&mut qb).unwrap();
    assert_eq!((word(&good, 0), word(&good, 0x14) as usize), (0x50, frame.len()));
    assert_eq!((half(&good, 0x10), half(&good, 0x1a), good[0x13]), (TCP_STATUS, 0xffff, 4));
    let bad = b.raw_completion(&mut qb).unwrap();
    assert_eq!(half(&bad, 0x10), TCP_STATUS & !(1 << 12), "the IP header's checksum is wrong too");
    assert_ne!(half(&bad, 0x1a), 0xffff);
    assert_eq!(bad[0x13], 0);
    let six = b.raw_completion(&mut qb).unwrap();
    assert_eq!((half(&six, 0x10), half(&six, 0x1a)), (1 << 12 | 1 << 10 | 1 << 8, 0xffff));
    let short = b.raw_completion(&mut qb).unwrap();
    assert_eq!((half(&short, 0x10), word(&short, 0x14)), (0, 60));
    assert_eq!(b.machine.bytes(places[3] + 20, 40), [0; 40], "padded with zeros");
}

#[test]
fn a_large_send_becomes_segments_that_follow_one_another() {
    let (mut a, mut qa, mut b, mut qb) = pair("pro");
    let places = b.post_buffers(&mut qb, 4);
    let data: Vec<u8> = (0..2500u32).map(|n| n as u8).collect();
    let at = a.alloc(data.len() as u64);
    a.machine.put(at, &data);
    let header = tcp(TO, "10.0.0.1", "10.0.0.2", [80, 4000], &[]);
    let mut rest = (1000u32 << 16 | header.len() as u32).to_be_bytes().to_vec();
    rest.extend(&header);
    rest.resize(rest.len().next_multiple_of(16), 0);
    rest.extend(segment(at, data.len()));
    a.write_request(&mut qa, 0x4e, 0, 0x3c, &rest);
    a.ring(&qa);
    exchange(&mut a, &mut b, |_| false);
    assert_eq!(a.raw_completion(&mut qa).unwrap()[0x1f] & 0x1f, 0x0e);
    assert_eq!(a.raw_completion(&mut qa), None, "one completion for all");
    for (index, &place) in places.iter().take(3).enumerate() {
        let entry = b.raw_completion(&mut qb).unwrap();
        let part = &data[index * 1000..(index * 1000 + 1000).min(2500)];
        assert_eq!(word(&entry, 0x14) as usize, 54 + part.len());
        assert_eq!((half(&entry, 0x10), half(&entry, 0x1a)), (TCP_STATUS, 0xffff), "its checksums are right");
        let frame = b.machine.bytes(place, 54 + part.len());
        assert_eq!(half(&frame, 16) as usize, 40 + part.len(), "the packet's length");
        assert_eq!(half(&frame, 18), 0x1234 + index as u16, "its identification");
        assert_eq!(frame[38..42], (1000 + 1000 * index as u32).to_be_bytes(), "its sequence number");
        // The header has FIN, PSH and CWR, without ACK (0x10): CWR stays only in the first segment, FIN and
        // PSH only in the last.
        assert_eq!(frame[47], [0x90, 0x10, 0x19][index]);
        assert_eq!(frame[54..], *part);
    }
    assert_eq!(b.raw_completion(&mut qb), None);
}

#[test]
fn tags_are_put_in_and_taken_off() {
    let (mut a, mut b) = (node(1, "pro"), node(2, "pro"));
    let mut qa = a.raw(0x48, 0x90, &[]);
    // One queue pair removes tags, the other one keeps them.
    let (mut off, mut on) = (b.raw(0x50, 0x91, &[]), b.raw(0x51, 0x92, &[(0xc0, 1 << 30)]));
    b.steer(true, TO, &[0x50, 0x51]);
    let (off_at, on_at) = (b.post_buffers(&mut off, 2), b.post_buffers(&mut on, 2));
    let frame = tcp(TO, "10.0.0.1", "10.0.0.2", [80, 4000], &[3; 64]);
    const CUSTOMER: u32 = 1 << 14;
    const SERVICE: u32 = 1 << 15;
    a.send_frame(&mut qa, &frame, false, 0x6005 << 16 | CUSTOMER);
    a.send_frame(&mut qa, &frame, false, 0x0007 << 16 | SERVICE);
    exchange(&mut a, &mut b, |frame| {
        assert_eq!(frame.len(), 118 + 4);
        false
    });
    for (index, (flag, tci, ethertype)) in
        [(1u32 << 29, 0x6005, 0x8100u16), (1 << 30, 7, 0x88a8)].into_iter().enumerate()
    {
        let entry = b.raw_completion(&mut off).unwrap();
        assert_eq!((word(&entry, 0), half(&entry, 0x0c)), (flag | 0x50, tci));
        assert_eq!(word(&entry, 0x14) as usize, frame.len());
        assert_eq!(b.machine.bytes(off_at[index], frame.len()), frame);
        let entry = b.raw_completion(&mut on).unwrap();
        assert_eq!((word(&entry, 0), word(&entry, 0x14) as usize), (flag | 0x51, frame.len() + 4));
        let whole = b.machine.bytes(on_at[index], frame.len() + 4);
        assert_eq!((half(&whole, 12), half(&whole, 14)), (ethertype, tci));
        assert_eq!(whole[16..], frame[12..]);
    }
}

#[test]
fn frames_keep_their_check_sequence_if_the_queue_pair_wants_it() {
    const KEEPS_FCS: u32 = 1 << 29;
    const KEEPS_TAG: u32 = 1 << 30;
    let (mut a, mut b) = (node(1, "pro"), node(2, "pro"));
    let mut qa = a.raw(0x48, 0x90, &[]);
    let mut whole = b.raw(0x50, 0x91, &[(0xc0, KEEPS_FCS | KEEPS_TAG)]);
    let mut stripped = b.raw(0x51, 0x92, &[(0xc0, KEEPS_FCS)]);
    b.steer(true, TO, &[0x50, 0x51]);
    let (whole_at, stripped_at) = (b.post_buffers(&mut whole, 3), b.post_buffers(&mut stripped, 2));
    let frame = tcp(TO, "10.0.0.1", "10.0.0.2", [80, 4000], &[3; 64]);
    const CUSTOMER: u32 = 1 << 14;
    a.send_frame(&mut qa, &frame, true, 0);
    a.send_frame(&mut qa, &frame, true, 0x0005 << 16 | CUSTOMER);
    exchange(&mut a, &mut b, |_| false);
    for (index, tag) in [0, 4].into_iter().enumerate() {
        let entry = b.raw_completion(&mut whole).unwrap();
        let len = word(&entry, 0x14) as usize;
        assert_eq!(len, frame.len() + tag + 4);
        // The CRC of Ethernet over a frame with its check sequence is a constant.
        let bytes = b.machine.bytes(whole_at[index], len);
        assert_eq!(crc32(&bytes), 0x2144_df1c);
        assert_eq!(
            half(&entry, 0x10) & TCP_STATUS,
            TCP_STATUS,
            "the card's findings about the frame are the same"
        );
        // Without the tag, the check sequence is still that of the frame as received.
        let entry = b.raw_completion(&mut stripped).unwrap();
        assert_eq!(word(&entry, 0x14) as usize, len - tag);
        assert_eq!(b.machine.bytes(stripped_at[index] + len as u64 - tag as u64 - 4, 4), bytes[len - 4..]);
    }
    // A buffer with room for the frame but not for the check sequence.
    let at = b.alloc(0x1000);
    b.post_buffers(&mut stripped, 1);
    b.post_receive(&mut whole, at, frame.len() as u32);
    for _ in 0..2 {
        a.send_frame(&mut qa, &frame, true, 0);
        exchange(&mut a, &mut b, |_| false);
    }
    assert_eq!(b.raw_completion(&mut whole).unwrap()[0x1f] & 0x1f, 1, "the third buffer posted before");
    let entry = b.raw_completion(&mut whole).unwrap();
    assert_eq!((entry[0x1f] & 0x1f, entry[0x1b]), (0x1e, 0x01), "local length error");
}

/// Computes the CRC-32 of Ethernet bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ ((crc & 1) * 0xedb8_8320))
    })
}

/// The key of Microsoft's "Verifying the RSS Hash Calculation".
const MICROSOFT: [u32; 10] = [
    0x6d5a_56da,
    0x255b_0ec2,
    0x4167_253d,
    0x43a3_8fb0,
    0xd0ca_2bcb,
    0xae7b_30b4,
    0x77cb_2da3,
    0x8030_f20c,
    0x6a42_b73b,
    0xbeac_01fa,
];

#[test]
fn frames_are_spread_by_their_hash() {
    const ALL: u32 = 0x3c;
    const TOEPLITZ: u32 = 1 << 8;
    let (mut a, mut b) = (node(1, "pro"), node(2, "pro"));
    let mut qa = a.raw(0x48, 0x90, &[]);
    let mut rings: Vec<_> = (0..4).map(|index| b.raw(0x60 + index, 0xa0 + index, &[])).collect();
    rings.iter_mut().for_each(|ring| drop(b.post_buffers(ring, 4)));
    let mut context = vec![(0x00, 1 << 13), (0x3c, 2 << 24 | 0x60), (0x40, 0x60), (0x44, TOEPLITZ | ALL)];
    context.extend(MICROSOFT.iter().enumerate().map(|(index, word)| (0x48 + 4 * index, *word)));
    b.raw(0x50, 0xb0, &context);
    b.steer(true, TO, &[0x50]);
    let vectors = [
        ("66.9.149.187", "161.142.100.80", [2794, 1766], 0x51cc_c178),
        ("199.92.111.2", "65.69.140.83", [14230, 4739], 0xc626_b0ea),
        ("3ffe:2501:200:1fff::7", "3ffe:2501:200:3::1", [2794, 1766], 0x4020_7d3d),
        ("3ffe:501:8::260:97ff:fe40:efab", "ff02::1", [14230, 4739], 0xdde5_1bbf),
    ];
    for (source, destination, ports, hash) in vectors {
        a.send_frame(&mut qa, &tcp(TO, source, destination, ports, &[1; 20]), true, 0);
        exchange(&mut a, &mut b, |_| false);
        let ring = (hash & 3) as usize;
        let entry = b.raw_completion(&mut rings[ring]).unwrap();
        assert_eq!((word(&entry, 0), word(&entry, 4)), (0x60 + ring as u32, hash), "{source}");
    }
    // Frames that are not IP go to the default queue pair.
    let mut other = tcp(TO, "10.0.0.1", "10.0.0.2", [1, 2], &[]);
    other[12..14].copy_from_slice(&[0x88, 0xcc]);
    a.send_frame(&mut qa, &other, false, 0);
    exchange(&mut a, &mut b, |_| false);
    assert_eq!(word(&b.raw_completion(&mut rings[0]).unwrap(), 4), 0);
}

#[test]
fn a_queue_pair_that_spreads_needs_memory_for_sends_only() {
    let mut node = node(1, "pro");
    node.raw(0x60, 0xa0, &[]);
    // Linux creates such a queue pair over an indirection table with one send of 64 bytes and no receives;
    // here it is at the end of a page.
    const LAST: u32 = 63 << 6;
    let place = node.alloc(64);
    let mtt = node.map_pages(place, 64);
    let context = [
        (0x00, 7 << 16 | 1 << 13),
        (0x08, 0xff00_0200),
        (0x3c, 0x60),
        (0x40, 0x60),
        (0x7c, 0xa0),
        (0x90, LAST),
        (0xcc, mtt),
    ];
    let words: Vec<_> = context.into_iter().map(|(offset, word)| (offset + 8, word)).collect();
    assert_eq!(node.try_command(0x019, 0, 0x50, &words), 0);
}

#[test]
fn the_same_flow_has_the_same_ring_by_exclusive_or() {
    let (mut a, mut b) = (node(1, "pro"), node(2, "pro"));
    let mut qa = a.raw(0x48, 0x90, &[]);
    let mut rings: Vec<_> = (0..4).map(|index| b.raw(0x60 + index, 0xa0 + index, &[])).collect();
    rings.iter_mut().for_each(|ring| drop(b.post_buffers(ring, 40)));
    b.raw(0x50, 0xb0, &[(0x00, 1 << 13), (0x3c, 2 << 24 | 0x60), (0x40, 0x60), (0x44, 0x3c)]);
    b.steer(true, TO, &[0x50]);
    let mut counts = [0; 4];
    for port in 0..32u16 {
        for _ in 0..2 {
            let frame = tcp(TO, "10.0.0.1", "10.0.0.2", [5000 + port, 80], &[]);
            a.send_frame(&mut qa, &frame, true, 0);
            exchange(&mut a, &mut b, |_| false);
        }
        let hits: Vec<_> = (0..4)
            .filter(|&ring| {
                let (first, second) =
                    (b.raw_completion(&mut rings[ring]), b.raw_completion(&mut rings[ring]));
                assert_eq!(first.is_some(), second.is_some(), "both frames of a flow");
                first.is_some()
            })
            .collect();
        assert_eq!(hits.len(), 1);
        counts[hits[0]] += 1;
    }
    assert_eq!(counts, [8; 4], "consecutive ports are spread evenly");
}

#[test]
fn frames_go_where_steering_and_filters_say() {
    const GROUP: [u8; 6] = [1, 0, 0x5e, 0, 0, 7];
    let (mut a, mut qa, mut b, mut qb) = pair("pro");
    b.post_buffers(&mut qb, 16);
    let mut heard = |a: &mut Node, b: &mut Node, to: [u8; 6], word1: u32| {
        let frame = tcp(to, "10.0.0.1", "10.0.0.2", [1, 2], &[0; 20]);
        a.send_frame(&mut qa, &frame, true, word1);
        exchange(a, b, |_| false);
        b.raw_completion(&mut qb).is_some()
    };
    assert!(heard(&mut a, &mut b, TO, 0));
    assert!(!heard(&mut a, &mut b, [2, 0, 0, 0, 0, 3], 0), "another's address");
    assert!(!heard(&mut a, &mut b, GROUP, 0));
    // Promiscuous mode: the default entries of unicast and multicast.
    let members = [(0x04, 1 << 30 | 1), (0x20, 0x50)];
    b.command(0x026, 1, 1 << 16 | 1 << 1, &members);
    assert!(heard(&mut a, &mut b, [2, 0, 0, 0, 0, 3], 0));
    assert!(!heard(&mut a, &mut b, GROUP, 0));
    b.command(0x026, 1, 1 << 16, &members);
    assert!(heard(&mut a, &mut b, GROUP, 0));
    // The filter of groups: on, with one group, off.
    assert_eq!(b.raw_command(0x048, 2, 1, 0).0, 0);
    assert!(!heard(&mut a, &mut b, GROUP, 0));
    assert_eq!(b.raw_command(0x048, 0, 1, 0x0100_5e00_0007).0, 0);
    assert!(heard(&mut a, &mut b, GROUP, 0));
    // VLANs: all, then only 5.
    const TAG: u32 = 1 << 14;
    assert!(heard(&mut a, &mut b, TO, 5 << 16 | TAG) && heard(&mut a, &mut b, TO, 6 << 16 | TAG));
    b.command(0x047, 0, 1, &[(4 * 127, 1 << 5)]);
    assert!(heard(&mut a, &mut b, TO, 5 << 16 | TAG) && heard(&mut a, &mut b, TO, 0));
    assert!(!heard(&mut a, &mut b, TO, 6 << 16 | TAG));
    // A frame that is too long for the port.
    b.command(0x00c, 1, 1, &[(0x00, 1), (0x04, 80)]);
    assert!(heard(&mut a, &mut b, TO, 0));
    assert!(!heard(&mut a, &mut b, TO, 5 << 16 | TAG));
}

#[test]
fn steering_by_the_address_table() {
    let (mut a, mut b) = (node(1, "a0"), node(2, "a0"));
    let mut qa = a.raw(0x48, 0x90, &[]);
    let mut rings: Vec<_> = (0..3).map(|index| b.raw(0x80 + index, 0xa0 + index, &[])).collect();
    rings.iter_mut().for_each(|ring| drop(b.post_buffers(ring, 4)));
    // The address is in row 1 of the table; multicast goes to the third queue pair.
    b.command(0x00c, 1, 0x201, &[(0x08, 0x8000_0200), (0x0c, 2)]);
    let queues = |promiscuous: u32| {
        [(0x00, 0x80), (0x04, 7 << 16), (0x14, promiscuous << 31 | 0x80), (0x18, 2 << 30 | 0x82)]
    };
    b.command(0x00c, 1, 0x101, &queues(0));
    let mut heard = |a: &mut Node, b: &mut Node, to: [u8; 6]| {
        a.send_frame(&mut qa, &tcp(to, "10.0.0.1", "10.0.0.2", [1, 2], &[]), true, 0);
        exchange(a, b, |_| false);
        (0..3).filter(|&ring| b.raw_completion(&mut rings[ring]).is_some()).collect::<Vec<_>>()
    };
    assert_eq!(heard(&mut a, &mut b, TO), [1]);
    assert_eq!(heard(&mut a, &mut b, [0xff; 6]), [2]);
    assert_eq!(heard(&mut a, &mut b, [2, 0, 0, 0, 0, 9]), Vec::<usize>::new());
    b.command(0x00c, 1, 0x101, &queues(1));
    assert_eq!(heard(&mut a, &mut b, [2, 0, 0, 0, 0, 9]), [0]);
    assert_ne!(b.try_command(0x007, 0, 0, &[(0x000, 2 << 24), (0x0d8, 1 << 27)]), 0, "B0 is not offered");
}

#[test]
fn ports_and_queue_pairs_count_frames() {
    let (mut a, mut b) = (node(1, "pro"), node(2, "pro"));
    let mut qa = a.raw(0x48, 0x90, &[(0x1c, 3 << 24)]);
    let mut qb = b.raw(0x50, 0x91, &[(0x1c, 4 << 24)]);
    b.steer(true, TO, &[0x50]);
    b.post_buffers(&mut qb, 2);
    let frame = tcp(TO, "10.0.0.1", "10.0.0.2", [1, 2], &[0; 200]);
    a.send_frame(&mut qa, &frame, true, 0);
    a.send_frame(&mut qa, &frame, true, 0xa005 << 16 | 1 << 14);
    a.send_frame(&mut qa, &tcp([0xff; 6], "10.0.0.1", "10.0.0.2", [1, 2], &[]), true, 0);
    exchange(&mut a, &mut b, |_| false);
    let lens = (258, 262, 64);
    a.command(0x049, 0, 1, &[]);
    // Counts of sent frames: by size, by priority 5 and without tag, broadcast, octets.
    assert_eq!((a.output(0x598 + 0x40 + 4), a.output(0x598 + 3 * 0x50 + 0x40 + 4)), (1, 1));
    assert_eq!(a.output(0x598 + 3 * 0x50 + 5 * 8 + 4), 1);
    assert_eq!(a.output(0x8b8 + 0x40 + 4), 1);
    assert_eq!(a.output(0xa98 + 8 * 24 + 4), 2);
    assert_eq!(a.output(0x9a8 + 5 * 24 + 4), lens.1);
    b.command(0x049, 0, 1 | 1 << 8, &[]);
    assert_eq!((b.output(0x480 + 8 * 24 + 4), b.output(0x480 + 5 * 24 + 4)), (2, 1));
    assert_eq!(b.output(0x3a8 + 8 * 24 + 4), lens.0 + lens.2);
    b.command(0x049, 0, 1, &[]);
    assert_eq!(b.output(0x480 + 8 * 24 + 4), 0, "begun anew");
    a.command(0x054, 0, 3, &[]);
    assert_eq!((a.output(0x24), a.output(0x2c)), (3, 254 + 258 + 60));
    b.command(0x054, 0, 4 | 1 << 31, &[]);
    assert_eq!((b.output(0x14), b.output(0x1c)), (2, 254 + 258));
    b.command(0x054, 0, 4, &[]);
    assert_eq!(b.output(0x14), 0);
    // A frame without a buffer is lost, and is counted.
    a.send_frame(&mut qa, &frame, true, 0);
    exchange(&mut a, &mut b, |_| false);
    b.command(0x049, 0, 1, &[]);
    assert_eq!((b.output(0xb98), b.output(0xb9c)), (1, 1));
}
