//! Measures sealing and opening: `cargo run --release -p proto --example channel_speed`.
use proto::channel::{ClusterKey, Handshake, HandshakeStep, Role};
use std::hint::black_box;
use std::time::Instant;

fn main() {
    let key = ClusterKey::from_bytes([7; 32]);
    let (node, roles) = (key.for_role(Role::Node).expect("a whole key"), key.roles().expect("a whole key"));
    let handshakes = 200;
    let start = Instant::now();
    let mut pair = None;
    for _ in 0..handshakes {
        let (responder, challenge) = Handshake::responder(&roles, [[3; 32], [2; 32]]);
        let initiator = Handshake::initiator(&node, [1; 32]);
        let Ok(HandshakeStep::Continue { reply: first, next: initiator }) =
            initiator.feed(&mut &challenge[..])
        else {
            unreachable!("a whole challenge")
        };
        let Ok(HandshakeStep::Done { reply, channel: b }) = responder.feed(&mut &first[..]) else {
            unreachable!("a whole first message of the right key")
        };
        let Ok(HandshakeStep::Done { channel: a, .. }) = initiator.feed(&mut &reply[..]) else {
            unreachable!("a whole reply of the right key")
        };
        pair = Some((a, b));
    }
    println!("handshake, both sides: {:.0} us", start.elapsed().as_secs_f64() * 1e6 / f64::from(handshakes));
    let (mut a, mut b) = pair.expect("at least one handshake");
    println!("{:>8}  {:>10}  {:>10}  {:>10}", "bytes", "seal MB/s", "open MB/s", "seal us");
    for len in [16, 256, 4096, 48 << 10, 1 << 20] {
        let rounds = (64 << 20) / len.max(1024);
        let message = vec![5u8; len];
        let mut sealed = Vec::new();
        a.sealer.seal(&message, &mut sealed).expect("a short message");
        let mut opened = b.opener.open(&mut &sealed[..]).expect("untouched");
        let (mut seal, mut open) = (0.0, 0.0);
        for _ in 0..rounds {
            let start = Instant::now();
            a.sealer.seal_into(black_box(&message), &mut sealed).expect("room");
            seal += start.elapsed().as_secs_f64();
            let start = Instant::now();
            opened = b.opener.open(&mut black_box(&sealed[..])).expect("untouched");
            open += start.elapsed().as_secs_f64();
        }
        assert_eq!(opened.as_deref(), Some(&message[..]));
        let megabytes = (len * rounds) as f64 / 1e6;
        let us = seal * 1e6 / rounds as f64;
        println!("{len:>8}  {:>10.0}  {:>10.0}  {us:>10.2}", megabytes / seal, megabytes / open);
    }
}
