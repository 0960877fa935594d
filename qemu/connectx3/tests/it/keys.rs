//! The use of keys: regions, FAST_REG, LOCAL_INV, windows, and changes that Linux makes directly in the
//! table.

use connectx3_testdriver::driver::{KEY, Node, PD, Queue, Setup, data, data_of, exchange, remote};
use connectx3_testdriver::keys::{
    ALL, ATOMIC, BIND, LOCAL_READ, LOCAL_WRITE, PAGE, READ, REMOTE_READ, REMOTE_WRITE, SEND, SEND_INVALIDATE,
    WRITE, WindowBind, region,
};

/// Two connected queue pairs, and 16 KiB on each side.
struct Pair {
    a: Node,
    b: Node,
    qa: Queue,
    qb: Queue,
    here: u64,
    there: u64,
}

impl Pair {
    fn new() -> Self {
        let (mut a, mut b) = (Node::new(1), Node::new(2));
        let qa = a.connect(0x51, 0x81, &b, 0x62);
        let qb = b.connect(0x62, 0x92, &a, 0x51);
        let (here, there) = (a.alloc(0x4000), b.alloc(0x4000));
        let bytes: Vec<u8> = (0..0x4000u32).map(|i| (i % 251) as u8).collect();
        a.machine.put(here, &bytes);
        Self { a, b, qa, qb, here, there }
    }

    fn run(&mut self) {
        exchange(&mut self.a, &mut self.b, |_| false);
    }

    /// WRITEs from A's physical memory to B. Returns the syndrome.
    fn write(&mut self, key: u32, at: u64, len: u32) -> u8 {
        self.a.post_send(&mut self.qa, WRITE, 0, &[remote(at, key), data(self.here, len)].concat());
        self.run();
        self.a.poll(&mut self.qa).unwrap().syndrome
    }

    /// Returns the opcode and the syndrome of B's next completion.
    fn done_b(&mut self) -> (u8, u8) {
        self.run();
        let done = self.b.poll(&mut self.qb).unwrap();
        (done.opcode, done.syndrome)
    }

    /// Checks that B's own request, which has just been posted, succeeds.
    fn ok_b(&mut self) {
        let (opcode, syndrome) = self.done_b();
        assert!(opcode != 0x1e, "syndrome {syndrome:#x}");
    }
}

const VA: u64 = 0x7f00_1234_5678;

#[test]
fn a_region_of_pages_is_reached_by_its_own_addresses() {
    let mut pair = Pair::new();
    let key = pair.b.register(region(0x120, VA, 0x3000 - 0x678), pair.there);
    assert_eq!(pair.write(key, VA + 5, 10_000), 0);
    assert_eq!(pair.b.machine.bytes(pair.there + 0x678 + 5, 10_000), pair.a.machine.bytes(pair.here, 10_000));
    assert_eq!(pair.write(key, VA + 0x3000 - 0x678 - 63, 64), 0x13);
}

#[test]
fn the_entry_goes_there_and_back_by_commands() {
    let mut node = Node::new(1);
    let at = node.alloc(PAGE);
    let key = node.register(region(0x120, VA & !0xfff, PAGE), at);
    assert_eq!(node.try_command(0x00e, 0, 0x120, &[]), 0, "QUERY_MPT");
    assert_eq!((node.output(0x00), node.output(0x08)), (0x0002_0100 | ALL, 0x120), "the card's");
    assert_eq!((node.output(0x14), node.output(0x1c)), (0x1234_5000, PAGE as u32));
    // Handed over again without taking it back first; then taken back with the entry as output.
    let again = [(0x00, 0xf002_0100), (0x08, 0x120), (0x38, 12)];
    assert_eq!(node.try_command(0x00d, 0, 0x120, &again), 0x09);
    assert_eq!(node.try_command(0x00f, 0, 0x120, &[]), 0);
    assert_eq!(node.output(0x08), 0x120);
    assert_eq!(node.machine.be32(node.region_entry(0x120)) >> 28, 0xf, "the guest's");
    assert_eq!(node.deregister(key), 0x09, "the guest owns it already");
    assert_eq!(node.deregister(0x3_3300), 0x09, "the card never owned it");
    assert_eq!(node.try_command(0x00d, 0, 0x121, &again), 0x03, "a key of another index");
    assert_eq!(
        node.try_command(0x00d, 0, 0x121, &[(0x00, 0xf002_0100), (0x08, 0x121)]),
        0x03,
        "pages of 1 byte"
    );
}

#[test]
fn linux_registers_anew_in_the_table_itself() {
    let mut pair = Pair::new();
    let key = pair.b.register(region(0x120, VA & !0xfff, PAGE), pair.there);
    assert_eq!(pair.write(key, VA & !0xfff, 64), 0);
    assert_eq!(pair.b.try_command(0x00f, 1, 0x120, &[]), 0);
    // Linux keeps the key, changes the address, and then hands the entry over by its first byte.
    let entry = pair.b.region_entry(0x120);
    pair.b.machine.put(entry + 0x10, &0x5000_0000u64.to_be_bytes());
    pair.b.machine.put(entry, &[0]);
    assert_eq!(pair.b.try_command(0x02f, 0, 0, &[]), 0, "SYNC_TPT");
    assert_eq!(pair.write(key, 0x5000_0000 + 100, 64), 0);
    assert_eq!(pair.b.machine.bytes(pair.there + 100, 64), pair.a.machine.bytes(pair.here, 64));
    assert_eq!(pair.b.try_command(0x00f, 1, 0x120, &[]), 0, "and takes it back as any other");
    assert_eq!(pair.write(key, 0x5000_0000, 64), 0x13);
}

#[test]
fn fast_registered_memory_lives_from_the_one_request_to_the_other() {
    let mut pair = Pair::new();
    let free = pair.b.fast_region(0x130, PD, 4);
    let list = pair.b.alloc(PAGE);
    // Pages out of order.
    for (place, page) in [2u64, 0, 3].into_iter().enumerate() {
        let entry = (pair.there + page * PAGE) | 1;
        pair.b.machine.put(list + 8 * place as u64, &entry.to_be_bytes());
    }
    for lap in 0..3u32 {
        let key = free | lap;
        let mut qb = std::mem::replace(&mut pair.qb, pair.b.connect(0x70 + lap, 0xa0 + lap, &pair.a, 0x99));
        pair.b.fast_register(
            &mut qb,
            key,
            LOCAL_READ | LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ,
            list,
            VA,
            9000,
        );
        pair.qb = qb;
        pair.ok_b();
        assert_eq!(pair.write(key, VA, 9000), 0);
        let bytes = pair.a.machine.bytes(pair.here, 9000);
        let first = (PAGE - 0x678) as usize;
        assert_eq!(pair.b.machine.bytes(pair.there + 2 * PAGE + 0x678, first), bytes[..first]);
        assert_eq!(pair.b.machine.bytes(pair.there, PAGE as usize), bytes[first..first + PAGE as usize]);
        // The list may be changed as soon as the request has completed.
        let mut qb = std::mem::replace(&mut pair.qb, pair.b.connect(0x75 + lap, 0xa5 + lap, &pair.a, 0x99));
        pair.b.local_invalidate(&mut qb, key);
        pair.qb = qb;
        pair.ok_b();
    }
    assert_eq!(pair.write(free | 2, VA, 64), 0x13);
}

#[test]
fn a_local_request_waits_for_what_is_before_it_and_comes_before_what_follows() {
    let mut pair = Pair::new();
    let free = pair.a.fast_region(0x130, PD, 4);
    let list = pair.a.alloc(PAGE);
    let entry = pair.here | 1;
    pair.a.machine.put(list, &entry.to_be_bytes());
    let (Pair { a, qa, there, here, .. }, all) = (&mut pair, LOCAL_READ | LOCAL_WRITE);
    a.post_send(qa, WRITE, 0, &[remote(*there, KEY), data(*here, 2000)].concat());
    a.fast_register(qa, free, all, list, *here, PAGE);
    a.post_send(qa, WRITE, 0, &[remote(*there + 0x2000, KEY), data_of(free, *here + 8, 1000)].concat());
    a.local_invalidate(qa, free);
    // The key is invalid: this request fails, and the next one is flushed.
    a.post_send(qa, WRITE, 0, &[remote(*there, KEY), data_of(free, *here, 8)].concat());
    a.post_send(qa, WRITE, 0, &[remote(*there, KEY), data(*here, 8)].concat());
    assert!(a.poll(qa).is_none(), "nothing was sent, so nothing has completed");
    pair.run();
    let ended: Vec<_> =
        std::iter::from_fn(|| pair.a.poll(&mut pair.qa)).map(|e| (e.wqe, e.opcode, e.syndrome)).collect();
    assert_eq!(ended, [(0, 8, 0), (1, 0x19, 0), (2, 8, 0), (3, 0x1b, 0), (4, 0x1e, 0x04), (5, 0x1e, 0x05)]);
    assert_eq!(pair.b.machine.bytes(pair.there + 0x2000, 1000), pair.a.machine.bytes(pair.here + 8, 1000));
}

#[test]
fn requests_on_keys_that_make_no_sense_are_refused() {
    type Post = fn(&mut Node, &mut Queue, u64);
    let cases: [(&str, Post); 10] = [
        ("a region that is not free", |n, q, list| n.fast_register(q, KEY, ALL, list, VA, 10)),
        ("a region of another domain", |n, q, list| {
            let key = n.fast_region(0x131, PD + 1, 4);
            n.fast_register(q, key, ALL, list, VA, 10);
        }),
        ("more pages than it has", |n, q, list| {
            let key = n.fast_region(0x131, PD, 2);
            n.fast_register(q, key, ALL, list, VA, 2 * PAGE);
        }),
        ("more bytes than there are", |n, q, list| {
            let key = n.fast_region(0x131, PD, 2);
            n.fast_register(q, key, ALL, list, u64::MAX - 8, 10);
        }),
        ("a list outside memory", |n, q, _| {
            let key = n.fast_region(0x131, PD, 2);
            n.fast_register(q, key, ALL, u64::MAX - 4, VA, 10);
        }),
        ("an index that was never given", |n, q, list| n.fast_register(q, 0x3_0000, ALL, list, VA, 10)),
        ("a window", |n, q, list| {
            let key = n.window(0x131, PD, true);
            n.fast_register(q, key, ALL, list, VA, 10);
        }),
        ("LOCAL_INV of a wrong key", |n, q, _| n.local_invalidate(q, KEY + 1)),
        ("LOCAL_INV of a key that may not be taken away", |n, q, _| n.local_invalidate(q, KEY)),
        ("LOCAL_INV twice", |n, q, _| {
            let key = n.fast_region(0x131, PD, 2);
            n.local_invalidate(q, key);
        }),
    ];
    for (name, post) in cases {
        let mut pair = Pair::new();
        let list = pair.b.alloc(PAGE);
        pair.b.machine.put(list, &(pair.there | 1).to_be_bytes());
        post(&mut pair.b, &mut pair.qb, list);
        assert_eq!(pair.done_b(), (0x1e, 0x06), "{name}");
        let words = [remote(pair.here, KEY), data(pair.there, 8)].concat();
        pair.b.post_send(&mut pair.qb, WRITE, 0, &words);
        assert_eq!(pair.done_b(), (0x1e, 0x05), "{name}: the queue pair is in error");
    }
}

#[test]
fn a_user_has_neither_fast_registration_nor_the_reserved_key() {
    let (mut a, b) = (Node::new(1), Node::new(2));
    let user = Setup { kernel: false, ..Setup::default() };
    let list = a.alloc(PAGE);
    let key = a.fast_region(0x131, PD, 2);
    let mut queue = a.connect_as(0x51, 0x81, &b, 0x62, user);
    a.fast_register(&mut queue, key, ALL, list, VA, 10);
    assert_eq!(a.poll(&mut queue).unwrap().syndrome, 0x02);
    let mut queue = a.connect_as(0x52, 0x82, &b, 0x62, user);
    a.post_send(&mut queue, SEND, 0, &data_of(0x100, list, 8));
    assert_eq!(a.poll(&mut queue).unwrap().syndrome, 0x04);
    let mut queue = a.connect_as(0x53, 0x83, &b, 0x62, Setup::default());
    a.post_send(&mut queue, SEND, 0, &data_of(0x100, list, 8));
    assert!(a.poll(&mut queue).is_none(), "a kernel's has it");
}

#[test]
fn a_send_takes_a_key_of_the_receiver_away() {
    let mut pair = Pair::new();
    let key = pair.b.register(region(0x120, VA, 0x1000), pair.there);
    pair.b.post_receive(&mut pair.qb, pair.there + 0x2000, 100);
    pair.a.post_send(&mut pair.qa, SEND_INVALIDATE, key, &data(pair.here, 20));
    pair.run();
    assert_eq!(pair.a.poll(&mut pair.qa).unwrap().opcode, SEND_INVALIDATE as u8);
    let received = pair.b.poll(&mut pair.qb).unwrap();
    assert_eq!((received.opcode, received.imm, received.len), (3, key, 20));
    assert_eq!(pair.write(key, VA, 8), 0x13);
}

#[test]
fn a_send_that_takes_away_what_it_may_not_ends_both() {
    let mut pair = Pair::new();
    pair.b.post_receive(&mut pair.qb, pair.there + 0x2000, 100);
    pair.a.post_send(&mut pair.qa, SEND_INVALIDATE, KEY, &data(pair.here, 20));
    pair.run();
    assert_eq!(pair.a.poll(&mut pair.qa).unwrap().syndrome, 0x13);
    assert_eq!(pair.b.poll(&mut pair.qb).unwrap().syndrome, 0x12);
}

/// Binds windows of both types.
#[test]
fn windows_open_a_part_of_a_region_and_close_it() {
    for (type2, zero_based) in [(false, false), (true, false), (true, true)] {
        let mut pair = Pair::new();
        let mut given = region(0x120, VA, 0x2000);
        given.rights = LOCAL_READ | LOCAL_WRITE | BIND;
        let lkey = pair.b.register(given, pair.there);
        let window = pair.b.window(0x140, PD, type2);
        let bind = WindowBind {
            key: window | 1,
            lkey,
            rights: REMOTE_WRITE | ATOMIC,
            start: VA + 0x100,
            len: 0x1000,
            type2,
            zero_based,
        };
        pair.b.bind(&mut pair.qb, &bind);
        pair.ok_b();
        let first = if zero_based { 0 } else { VA + 0x100 };
        assert_eq!(pair.write(window | 1, first + 4, 0xffc), 0);
        let bytes = pair.a.machine.bytes(pair.here, 0xffc);
        assert_eq!(pair.b.machine.bytes(pair.there + 0x678 + 0x104, 0xffc), bytes);
        assert_eq!(pair.b.deregister(lkey), 0x21, "a window is bound to it");
        if type2 {
            pair.b.local_invalidate(&mut pair.qb, window | 1);
        } else {
            pair.b.bind(&mut pair.qb, &WindowBind { key: window | 2, len: 0, ..bind });
        }
        pair.ok_b();
        assert_eq!(pair.write(window | 1, first, 8), 0x13, "closed");
        assert_eq!(pair.b.deregister(lkey), 0);
        assert_eq!(pair.b.deregister(window), 0);
    }
}

#[test]
fn a_bound_window_that_the_guest_takes_back_releases_its_region() {
    let mut pair = Pair::new();
    let lkey = pair.b.register(
        connectx3_testdriver::keys::Region { rights: ALL | BIND, ..region(0x120, VA, 0x2000) },
        pair.there,
    );
    let window = pair.b.window(0x140, PD, false);
    let bind = WindowBind {
        key: window | 7,
        lkey,
        rights: REMOTE_READ,
        start: VA,
        len: 0x1000,
        type2: false,
        zero_based: false,
    };
    pair.b.bind(&mut pair.qb, &bind);
    pair.ok_b();
    assert_eq!(pair.b.deregister(lkey), 0x21);
    // A window that is bound again elsewhere counts once.
    pair.b.bind(&mut pair.qb, &WindowBind { key: window | 8, start: VA + 0x1000, ..bind });
    pair.ok_b();
    let words = [remote(VA + 0x1004, window | 8), data(pair.here + 0x3000, 100)].concat();
    pair.a.post_send(&mut pair.qa, READ, 0, &words);
    pair.run();
    assert_eq!(pair.a.poll(&mut pair.qa).unwrap().syndrome, 0);
    assert_eq!(pair.b.deregister(window), 0);
    assert_eq!(pair.b.deregister(lkey), 0);
}

#[test]
fn binds_that_make_no_sense_are_refused() {
    let good = WindowBind {
        key: 0x1_4001,
        lkey: 0x1_2000,
        rights: REMOTE_WRITE,
        start: VA,
        len: 0x1000,
        type2: true,
        zero_based: false,
    };
    let rights = LOCAL_READ | LOCAL_WRITE | BIND;
    let cases = [
        ("beyond the region", rights, PD, WindowBind { start: VA + 0x1001, ..good }),
        ("before the region", rights, PD, WindowBind { start: VA - 1, ..good }),
        ("round the end of addresses", rights, PD, WindowBind { len: u64::MAX, ..good }),
        ("of the other type", rights, PD, WindowBind { type2: false, ..good }),
        ("to no region", rights, PD, WindowBind { lkey: 0x1_2001, ..good }),
        ("to a window", rights, PD, WindowBind { lkey: 0x1_4000, ..good }),
        ("of a region", rights, PD, WindowBind { key: 0x1_2001, ..good }),
        ("without bytes", rights, PD, WindowBind { len: 0, ..good }),
        ("to a region without windows", LOCAL_READ | LOCAL_WRITE, PD, good),
        ("to be written in a region that is only read", LOCAL_READ | BIND, PD, good),
        ("to a region of another domain", rights, PD + 1, good),
    ];
    for (name, rights, pd, bind) in cases {
        let mut pair = Pair::new();
        let given = connectx3_testdriver::keys::Region { rights, pd, ..region(0x120, VA, 0x2000) };
        pair.b.register(given, pair.there);
        pair.b.window(0x140, PD, true);
        pair.b.bind(&mut pair.qb, &bind);
        assert_eq!(pair.done_b(), (0x1e, 0x06), "{name}");
        assert_eq!(pair.b.deregister(0x1_2000), 0, "{name}: nothing is bound");
    }
}

/// A request resolved under a key must not access memory for which the key's index is used later.
#[test]
fn a_request_under_way_does_not_outlive_its_key() {
    let mut pair = Pair::new();
    let key = pair.a.register(region(0x120, VA, 0x1000), pair.here);
    let secret = pair.a.alloc(PAGE);
    pair.a.machine.put(secret, &[0x5e; PAGE as usize]);
    // A READ into the region, whose answer comes after the key was reused for other memory.
    let words = [remote(pair.there, KEY), data_of(key, VA, 1000)].concat();
    pair.a.post_send(&mut pair.qa, READ, 0, &words);
    pair.a.card.progress(&pair.a.machine);
    assert_eq!(pair.a.deregister(key), 0);
    let again = pair.a.register(region(0x120, VA, 0x1000), secret);
    assert_eq!(again, key, "even the same key");
    pair.run();
    assert_eq!(pair.a.poll(&mut pair.qa).unwrap().syndrome, 0x04);
    assert_eq!(pair.a.machine.bytes(secret, PAGE as usize), [0x5e; PAGE as usize]);
}
