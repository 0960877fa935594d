//! The arena compared with the arena of `platform`, which is the model, and its own additions.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use super::*;
use proptest::prelude::*;

const LEN: u64 = 3 * PAGE;

#[derive(Clone, Debug)]
enum Access {
    Read(u64, u64),
    Write(u64, Vec<u8>),
    Fill(u64, u64, u8),
    Copy(u64, u64, u64),
    FetchAdd(u64, u64),
    CompareSwap(u64, u64, u64),
}

fn accesses() -> impl Strategy<Value = Access> {
    let at = || prop_oneof![0..LEN + 9, Just(0), (0..LEN / 8).prop_map(|n| n * 8)];
    let len = || prop_oneof![0..40u64, 0..LEN + 9];
    prop_oneof![
        (at(), len()).prop_map(|(at, len)| Access::Read(at, len)),
        (at(), proptest::collection::vec(any::<u8>(), 0..100)).prop_map(|(at, data)| Access::Write(at, data)),
        (at(), len(), any::<u8>()).prop_map(|(at, len, byte)| Access::Fill(at, len, byte)),
        (at(), at(), len()).prop_map(|(src, dst, len)| Access::Copy(src, dst, len)),
        (at(), any::<u64>()).prop_map(|(at, add)| Access::FetchAdd(at, add)),
        (at(), 0..3u64, any::<u64>()).prop_map(|(at, compare, swap)| Access::CompareSwap(at, compare, swap)),
    ]
}

/// Does an access, and returns its results.
fn apply(memory: &dyn Memory, access: &Access) -> (Result<u64, MemoryError>, Vec<u8>) {
    let at = |offset: u64| IoAddr(memory.range().0.0 + offset);
    match access {
        Access::Read(from, len) => {
            let mut buf = vec![0xee; *len as usize];
            let done = memory.read(at(*from), &mut buf).map(|()| 0);
            (done, buf)
        }
        Access::Write(to, data) => (memory.write(at(*to), data).map(|()| 0), Vec::new()),
        Access::Fill(to, len, byte) => (memory.fill(at(*to), *len, *byte).map(|()| 0), Vec::new()),
        Access::Copy(src, dst, len) => (memory.copy(at(*src), at(*dst), *len).map(|()| 0), Vec::new()),
        Access::FetchAdd(to, add) => (memory.fetch_add(at(*to), *add), Vec::new()),
        Access::CompareSwap(to, compare, swap) => (memory.compare_swap(at(*to), *compare, *swap), Vec::new()),
    }
}

proptest! {
    #[test]
    fn accesses_are_those_of_the_model(all in proptest::collection::vec(accesses(), 1..40)) {
        let arena = Arena::map(LEN, false).unwrap();
        let model = platform::Arena::new(IoAddr(0x1000_0000), LEN);
        for access in &all {
            prop_assert_eq!(apply(&arena, access), apply(&model, access), "{:?}", access);
        }
        let whole = Access::Read(0, LEN);
        prop_assert_eq!(apply(&arena, &whole), apply(&model, &whole));
    }
}

#[test]
fn addresses_outside_are_refused() {
    let arena = Arena::map(LEN, false).unwrap();
    let base = arena.range().0.0;
    for (addr, len) in [(0, 1), (base - 1, 1), (base - 1, 2), (base + LEN, 1), (base, LEN + 1), (u64::MAX, 2)]
    {
        assert_eq!(arena.check(IoAddr(addr), len), Err(MemoryError::OutOfRange), "{addr:#x}+{len}");
    }
    assert_eq!(arena.check(IoAddr(base), LEN), Ok(()));
}

#[test]
fn runs_are_zeroed_when_taken_again() {
    let arena = Arena::map(1, false).unwrap();
    let run = arena.alloc(1).unwrap();
    assert_eq!((run, arena.alloc(1)), (arena.range().0, None));
    arena.fill(run, PAGE, 0xff).unwrap();
    arena.free(run, 1);
    let run = arena.alloc(PAGE).unwrap();
    let mut bytes = [1; PAGE as usize];
    arena.read(run, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&b| b == 0));
    assert_eq!(arena.stats(), MemoryStats { total: PAGE, free: 0 });
}

#[test]
fn a_reader_of_the_last_byte_sees_all() {
    let arena = Arena::map(PAGE, false).unwrap();
    // Not aligned, and not a multiple of a word.
    let (at, last) = (IoAddr(arena.range().0.0 + 3), IoAddr(arena.range().0.0 + 3 + 60));
    for _ in 0..20 {
        arena.fill(at, 61, 0).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| (1..=255).for_each(|n| arena.write(at, &[n; 61]).unwrap()));
            scope.spawn(|| {
                let (mut end, mut all) = ([0], [0; 61]);
                // The writer always comes to its end.
                while end[0] != 255 {
                    arena.read(last, &mut end).unwrap();
                    arena.read(at, &mut all).unwrap();
                    // A later read returns data of the same round or a later one.
                    assert!(all.iter().all(|&b| b >= end[0]), "{end:?}: {all:?}");
                }
            });
        });
    }
}

#[test]
fn too_much_is_an_error() {
    assert!(Arena::map(u64::MAX, false).is_err());
    assert!(Arena::map(1 << 62, false).is_err());
}
