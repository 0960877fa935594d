//! The actions of the hostile guest, which bytes select.

use crate::input::Input;
use crate::world::{BAD_QP, GOOD_QP, OPEN, OPEN_KEY, SLAVE_QP, World, numbers};
use connectx3_testdriver::driver::{KEY, PD, Queue};
use connectx3_testdriver::keys::PAGE;

/// Numbers with a meaning: queues, keys, addresses.
pub(crate) const NUMBERS: [u32; 12] =
    [BAD_QP, GOOD_QP, 0x81, 0x82, KEY, OPEN_KEY, PD, PD + 4, 0x12000, (OPEN >> 32) as u32, SLAVE_QP, 0x100];

/// Numbers of queues that exist or may exist.
const QUEUES: [u32; 12] = [BAD_QP, 0x52, 0x53, 0x54, 0x55, 0x56, XRC_TARGET, 0x81, 0x82, 1, 0, 0x31];
/// Numbers of a virtual function's queues. The last ones but one are special, its own and its master's.
const SLAVE_QUEUES: [u32; 12] =
    [SLAVE_QP, 0x849, 0x84a, 0x84b, 0x84c, 0x84d, 1 << 23 | 0x84e, 0x80, 0x81, 0x50, 0x52, 0x450];
/// Opcodes of commands that have an effect.
const COMMANDS: [u32; 70] = [
    0x003, 0x004, 0x006, 0x007, 0x008, 0x009, 0x00a, 0x00b, 0x00c, 0x00d, 0x00e, 0x00f, 0x010, 0x011, 0x012,
    0x013, 0x014, 0x015, 0x016, 0x017, 0x018, 0x019, 0x01a, 0x01b, 0x01c, 0x01d, 0x01e, 0x01f, 0x020, 0x021,
    0x022, 0x023, 0x024, 0x025, 0x026, 0x027, 0x02c, 0x02d, 0x02f, 0x030, 0x031, 0x034, 0x035, 0x036, 0x037,
    0x038, 0x03a, 0x03b, 0x040, 0x043, 0x047, 0x048, 0x049, 0x04d, 0x054, 0x056, 0x061, 0xff6, 0xff9, 0xffa,
    0xffb, 0xffd, 0xffe, 0xfff, 0xf00, 0xf01, 0xf08, 0xf0a, 0xf0b, 0x03b,
];
/// Addresses of queues and tables in the guest's memory, where a changed word has an effect.
const PLACES: [u64; 6] = [0x10_0000, 0x18_0000, 0x1f_0000, 0x20_0000, 0x20_4000, 0x21_0000];
const RAM: u64 = 4 << 20;

/// Queue pairs of services other than the driver's: number, code of the service, and MTU or Ethernet.
const OTHERS: [(u32, u32, u32); 6] =
    [(0x52, 1, 3), (0x53, 3, 3), (0x54, 7, 7), (0x55, 0, 3), (0x56, 6, 3), (XRC_TARGET, 6, 3)];
/// A target of an extended reliable connection, which is marked by the top bit of its number.
const XRC_TARGET: u32 = 1 << 23 | 0x57;
/// The only XRC domain in use.
const XRC_DOMAIN: u32 = 1;

/// Creates queue pairs of each service: UC, UD, raw Ethernet, an RC one connected to itself, and both ends of
/// an XRC one.
pub(crate) fn make_queues(world: &mut World) {
    let bad = &mut world.bad;
    for (qpn, service, mtu) in OTHERS {
        let target = qpn & 1 << 23;
        let (qpn, cqn) = numbers(bad, qpn & !target, 0x82 + (qpn & 0xff));
        let qpn = target | qpn;
        let (cq, cq_record) = bad.create_cq(cqn, 0, 8);
        let ring = 1u64 << 12;
        let (buffer, record) = (bad.alloc(2 * ring), bad.alloc(4));
        for entry in 0..64 {
            bad.machine.put(buffer + (entry << 6), &[0xff; 4]);
        }
        let mtt = bad.map_pages(buffer, 2 * ring);
        let size = 6 << 3 | 2;
        let reset_to_init = [
            (0x08, service << 16),
            (0x0c, PD),
            (0x10, mtu << 29 | size << 16 | size << 8),
            (0x18, qpn),
            (0x84, cqn),
            (0x98, 7 << 13),
            (0xa0, XRC_DOMAIN),
            (0xa4, cqn),
            (0xac, record as u32),
            (0xd4, mtt),
        ];
        bad.command(0x019, 0, qpn, &reset_to_init);
        let mut path = bad.path_to(&world.good, qpn, if service == 0 { qpn } else { GOOD_QP });
        path.push((0x10, mtu << 29 | 2 << 6));
        bad.command(0x01a, 0, qpn, &path);
        bad.command(0x01b, 0, qpn, &[(0x28, 14 << 27), (0x78, 4 << 21 | 7 << 16 | 7 << 13), (0x80, 100)]);
        world.queues.push(Queue {
            qpn,
            cqn,
            send: buffer,
            send_index: 0,
            receive: buffer + ring,
            posted: 0,
            record,
            cq,
            cq_record,
            cq_log: 8,
            cq_index: 0,
        });
    }
}

/// Performs one action of a guest that attacks the command interface.
pub(crate) fn command_action(action: u8, input: &mut Input<'_>, world: &mut World) {
    match action % 16 {
        0..8 => command(input, world),
        8 | 9 => object(input, world),
        10 => {
            let offset = match input.byte() % 4 {
                0 => 0x80680 + 4 * u64::from(input.byte() % 8),
                1 => input.pick(&[0xf0010, 0x8069c, 0xf03fc, 0xf00d8, 0xf00dc, 0x1f000]),
                _ => u64::from(input.raw() & 0xf_ffff),
            };
            let value = input.word();
            world.bad.write_register(offset, value);
        }
        11 => {
            let offset = u64::from(input.raw() & 0xf_fffc);
            world.bad.card.read_bar0(offset, &mut [0; 8], &world.bad.machine);
            world.bad.card.read_bar2(offset, &mut [0; 8]);
        }
        12 => doorbell(input, world),
        13 => poke(input, world),
        _ => pass(input, world),
    }
}

/// Performs one action of a guest with queue pairs.
pub(crate) fn queue_action(action: u8, input: &mut Input<'_>, world: &mut World) {
    match action % 32 {
        0..8 => good_send(input, world),
        8..12 => send(input, world),
        12..16 => receive(input, world),
        16 | 17 => doorbell(input, world),
        18 | 19 => poke(input, world),
        20 | 21 => frame(input, world),
        22 | 23 => transition(input, world),
        24 => command(input, world),
        25 => object(input, world),
        _ => pass(input, world),
    }
}

/// Returns the number of a queue that exists or may exist.
pub(crate) fn queue_number(input: &mut Input<'_>, world: &World) -> u32 {
    input.pick(if world.bad.is_slave() { &SLAVE_QUEUES } else { &QUEUES })
}

/// Issues a command with any parameters and a mailbox of some words.
pub(crate) fn command(input: &mut Input<'_>, world: &mut World) {
    let opcode = if input.one_in(8) { input.raw() & 0xfff } else { input.pick(&COMMANDS) };
    let op_mod = u32::from(input.byte() % 4) * u32::from(input.byte() % 2);
    let in_mod = match input.byte() % 4 {
        0 => input.word(),
        1 => u32::from(input.byte() % 4),
        2 => queue_number(input, world),
        _ => input.pick(&[0x100, 0x120, 0x121, 0x1_0001, 1 << 31 | BAD_QP, 0x205, 0xd01, 256]),
    };
    let status = match input.byte() % 4 {
        0 => {
            let param = u64::from(input.word()) << 32 | u64::from(input.word());
            world.bad.raw_command(opcode, op_mod, in_mod, param).0
        }
        _ => {
            let mailbox: Vec<_> =
                (0..input.byte() % 12).map(|_| (4 * usize::from(input.byte()), input.word())).collect();
            world.bad.try_command(opcode, op_mod, in_mod, &mailbox)
        }
    };
    count(status, world);
}

/// Counts a command by its result.
pub(crate) fn count(status: u8, world: &mut World) {
    if status == 0 {
        world.report.commands += 1;
    } else {
        world.report.refused += 1;
    }
}

/// Issues a command that creates an object and is valid except for a few words.
pub(crate) fn object(input: &mut Input<'_>, world: &mut World) {
    let log = u32::from(input.byte() % 32);
    let number = queue_number(input, world);
    let mtt = u32::from(input.byte()) << 3;
    let record = 0x30_0000 + 8 * u32::from(input.byte());
    let stamps = u32::from(input.byte() % 2) << 19;
    let (opcode, in_mod, mut mailbox) = match input.byte() % 6 {
        0 => (0x013, number, vec![(0x00, 9 << 8), (0x0c, log << 24), (0x14, 3), (0x1c, mtt)]),
        1 => (0x016, number, vec![(0x00, stamps), (0x0c, log << 24), (0x14, 1), (0x1c, mtt), (0x3c, record)]),
        2 => (0x02c, number, vec![(0x0c, log << 24), (0x1c, mtt)]),
        3 => (
            0x035,
            number,
            vec![
                (0x00, log << 24 | number),
                (0x04, 2 << 24 | XRC_DOMAIN),
                (0x08, 0x81),
                (0x14, mtt),
                (0x18, PD),
                (0x2c, record),
            ],
        ),
        4 => {
            let words = [0xf002_7f00, 0x3002_0100, 0xf002_7d00, 0x0000_0000, 0x3000_0000];
            let first = if world.bad.is_slave() { 0x100 } else { 0x120 };
            let index = first + u32::from(input.byte() % 4);
            let flags = input.pick(&words);
            let mailbox = vec![
                (0x00, flags),
                (0x08, index),
                (0x0c, PD | 0x0b00_0000),
                (0x14, 0x1000),
                (0x1c, input.word()),
                (0x30, mtt),
                (0x34, input.word()),
                (0x38, 12),
            ];
            (0x00d, index, mailbox)
        }
        _ => {
            let service = input.pick(&[0, 1, 3, 6, 7]);
            let sizes = input.raw() & 0x007f_7f00;
            let mailbox = vec![
                (0x08, service << 16),
                (0x0c, PD),
                (0x10, 3 << 29 | sizes),
                (0x84, 0x81),
                (0x98, 7 << 13),
                (0xa0, XRC_DOMAIN),
                (0xa4, 0x81),
                (0xac, record),
                (0xb4, u32::from(input.byte() % 2) << 24 | 0x31),
                (0xd4, mtt),
            ];
            (0x019, if input.one_in(2) { number } else { 0x56 + u32::from(input.byte() % 8) }, mailbox)
        }
    };
    for _ in 0..input.byte() % 3 {
        mailbox.push((4 * usize::from(input.byte() % 64), input.word()));
    }
    let status = world.bad.try_command(opcode, 0, in_mod, &mailbox);
    count(status, world);
}

/// Issues a transition of a queue pair with a partly changed context.
pub(crate) fn transition(input: &mut Input<'_>, world: &mut World) {
    let opcode =
        input.pick(&[0x01a, 0x01b, 0x01c, 0x01d, 0x01e, 0x01f, 0x020, 0x021, 0x022, 0x02d, 0x038, 0x061]);
    let qpn = queue_number(input, world);
    let mut mailbox = world.bad.path_to(&world.good, qpn, GOOD_QP);
    mailbox.push((0, input.word()));
    for _ in 0..input.byte() % 4 {
        mailbox.push((4 * usize::from(input.byte() % 64), input.word()));
    }
    let notify = u32::from(input.byte() % 2) << 31;
    let status = world.bad.try_command(opcode, 0, notify | qpn, &mailbox);
    count(status, world);
}

/// Writes to the doorbell pages.
pub(crate) fn doorbell(input: &mut Input<'_>, world: &mut World) {
    let page = input.pick(&[0u64, 1, 0x80, 0x81, 0x7ff]);
    let within = match input.byte() % 4 {
        0 => 0x14,
        1 => 0x20,
        2 => 0x800 + 8 * u64::from(input.byte() % 4),
        _ => u64::from(input.raw() & 0xfff),
    };
    let first = if input.one_in(2) { queue_number(input, world) << 8 } else { input.word() };
    let data = [first, input.word()].map(u32::to_be_bytes).concat();
    let len = input.pick(&[4, 8, 8, 3]);
    world.bad.card.write_bar2(page * PAGE + within, &data[..len], &world.bad.machine);
}

/// Changes some of the guest's own memory: its tables, rings and doorbell records.
pub(crate) fn poke(input: &mut Input<'_>, world: &mut World) {
    let place = match input.byte() % 4 {
        0 => u64::from(input.raw()) % RAM,
        1 => {
            let count = world.queues.len();
            let queue = &world.queues[usize::from(input.byte()) % count];
            input.pick(&[queue.record, queue.cq_record, queue.send, queue.receive, queue.cq])
        }
        _ => input.pick(&PLACES) + 4 * (u64::from(input.byte()) << 4 | u64::from(input.byte() & 0xf)),
    };
    let limit = world.bad.machine.len() as u64 - 8;
    let word = input.word();
    world.bad.machine.put(place.min(limit) & !3, &word.to_be_bytes());
}

/// Returns a data segment of a work request, as four 32-bit words: length, key, and the two halves of an
/// address. `input` decides if they are valid.
fn segment(input: &mut Input<'_>) -> [u32; 4] {
    let len = match input.byte() % 4 {
        0 => input.word(),
        1 => u32::from(input.byte()),
        _ => u32::from(input.byte()) << 5,
    };
    let key = if input.one_in(4) { input.word() } else { KEY };
    let at = 0x20_0000 + (u32::from(input.byte()) << 12);
    let high = if input.one_in(16) { input.word() } else { 0 };
    [len, key, high, at]
}

/// Posts a valid work request over the connection to the honest guest.
pub(crate) fn good_send(input: &mut Input<'_>, world: &mut World) {
    let opcode = input.pick(&[0x08, 0x09, 0x0a, 0x10, 0x12]);
    let (at, len) = (u32::from(input.byte()) << 3, 8 * (1 + u32::from(input.byte() % 128)));
    let mut words = Vec::new();
    if opcode != 0x0a {
        // Sometimes beyond the end of the open region.
        words.extend([(OPEN >> 32) as u32, OPEN as u32 + 4 * at, OPEN_KEY, 0]);
    }
    if opcode == 0x12 {
        words.extend([0, 1, 0, 0]);
    }
    let len = if opcode == 0x12 { 8 } else { len.min(if opcode == 0x0a { 256 } else { 1024 }) };
    words.extend([len, KEY, 0, 0x20_0000 + 16 * at]);
    let Some(index) = world.queues.iter().position(|queue| matches!(queue.qpn, BAD_QP | SLAVE_QP)) else {
        return;
    };
    let mut queue = world.queues.swap_remove(index);
    world.bad.post_send(&mut queue, opcode, 0, &words);
    world.queues.push(queue);
}

/// Posts any work request, and rings its doorbell.
pub(crate) fn send(input: &mut Input<'_>, world: &mut World) {
    let opcode = if input.one_in(16) {
        input.word()
    } else {
        input.pick(&[0x00, 0x01, 0x08, 0x09, 0x0a, 0x0a, 0x0b, 0x0e, 0x10, 0x11, 0x12, 0x18, 0x19, 0x1b])
    };
    let mut words = Vec::new();
    if !input.one_in(4) && matches!(opcode & 0x1f, 0x08..=0x09 | 0x10..=0x12) {
        let offset = u32::from(input.byte()) << 4;
        let key = if input.one_in(4) { input.word() } else { OPEN_KEY };
        words.extend([(OPEN >> 32) as u32, OPEN as u32 + offset, key, 0]);
    }
    if matches!(opcode & 0x1f, 0x0e | 0x11 | 0x12 | 0x18 | 0x19 | 0x1b) {
        words.extend((0..input.byte() % 13).map(|_| input.word()));
    }
    if input.one_in(4) {
        // Inline data, or a datagram's address.
        words.extend((0..input.byte() % 16).map(|_| input.word()));
    }
    for _ in 0..input.byte() % 3 {
        words.extend(segment(input));
    }
    words.truncate(60);
    let count = world.queues.len();
    let index = usize::from(input.byte()) % count;
    let immediate = input.word();
    let mut queue = world.queues.swap_remove(index);
    world.bad.post_send(&mut queue, opcode, immediate, &words);
    world.queues.push(queue);
}

/// Posts a receive, or writes a doorbell record.
pub(crate) fn receive(input: &mut Input<'_>, world: &mut World) {
    let count = world.queues.len();
    let mut queue = world.queues.swap_remove(usize::from(input.byte()) % count);
    let [len, key, _, at] = segment(input);
    world.bad.post_receive_of(&mut queue, key, u64::from(at), len);
    if input.one_in(4) {
        world.bad.machine.put(queue.record, &input.word().to_be_bytes());
    }
    world.queues.push(queue);
}

/// Delivers an arbitrary frame from the network.
pub(crate) fn frame(input: &mut Input<'_>, world: &mut World) {
    let mut frame = world.bad.mac.0.to_vec();
    frame.extend([2, 0, 0, 0, 0, 2]);
    frame.extend(input.pick(&[[0x08, 0x00], [0x89, 0x15], [0x08, 0x06], [0x81, 0x00], [0x86, 0xdd]]));
    let len = usize::from(input.byte());
    frame.extend(input.take(len));
    let to = if input.one_in(2) { &mut world.bad } else { &mut world.good };
    to.card.receive(usize::from(input.byte() % 3), &frame, &to.machine);
}

/// Advances time and carries frames in both directions.
pub(crate) fn pass(input: &mut Input<'_>, world: &mut World) {
    let ns = 1u64 << (input.byte() % 34);
    world.bad.machine.advance(ns);
    world.good.machine.advance(ns);
    world.exchange();
}
