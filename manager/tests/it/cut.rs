//! Properties of cutting: no byte is lost, no record is cut in two, and nodes are balanced.
use manager::core::{Cutter, Excess, split_size};
use proptest::prelude::*;
use proto::{CutRule, InputFile};

/// A split as a node receives it.
#[derive(Debug, PartialEq)]
struct Split {
    rank: usize,
    file: u32,
    offset: u64,
    bytes: Vec<u8>,
}

fn describe(files: &[Vec<u8>]) -> Vec<InputFile> {
    files.iter().map(|bytes| InputFile { name: "f".into(), len: bytes.len() as u64 }).collect()
}

/// Cuts files whose bytes come in pieces of `step`.
fn cut(rule: &CutRule, files: &[Vec<u8>], nodes: usize, step: usize) -> (Vec<Split>, Cutter) {
    let mut cutter = Cutter::new(rule.clone(), &describe(files), nodes);
    let mut splits: Vec<Split> = Vec::new();
    let mut open = false;
    for piece in files.iter().flat_map(|file| file.chunks(step)) {
        assert!(!cutter.finished());
        cutter
            .push(piece, |piece| {
                assert!(!piece.bytes.is_empty());
                if open {
                    let split = splits.last_mut().expect("an open split");
                    assert_eq!((split.rank, split.file), (piece.rank, piece.file), "one split at a time");
                    assert_eq!(split.offset + split.bytes.len() as u64, piece.offset);
                    split.bytes.extend_from_slice(piece.bytes);
                } else {
                    let (rank, file, offset) = (piece.rank, piece.file, piece.offset);
                    splits.push(Split { rank, file, offset, bytes: piece.bytes.into() });
                }
                open = !piece.end_of_split;
            })
            .expect("no more than announced");
    }
    assert!(!open, "the last split has ended");
    assert!(cutter.finished());
    (splits, cutter)
}

fn check(rule: &CutRule, files: &[Vec<u8>], nodes: usize, step: usize) {
    let (splits, cutter) = cut(rule, files, nodes, step);
    for (index, file) in files.iter().enumerate() {
        let own: Vec<&Split> = splits.iter().filter(|split| split.file as usize == index).collect();
        assert_eq!(&own.iter().flat_map(|split| split.bytes.clone()).collect::<Vec<u8>>(), file);
        let mut end = 0;
        for split in own {
            assert_eq!(split.offset, end);
            end += split.bytes.len() as u64;
            let last = *split.bytes.last().expect("no empty split");
            assert!(rule.allows(last) || end == file.len() as u64);
        }
    }
    let total = files.iter().map(|file| file.len() as u64).sum();
    let target = split_size(total, nodes) as usize;
    for split in &splits {
        // The split was cut at the first possible byte.
        let tail = split.bytes.get(target.saturating_sub(1)..split.bytes.len() - 1).unwrap_or_default();
        assert!(!tail.iter().any(|&byte| rule.allows(byte)));
    }
    let longest = splits.iter().map(|split| split.bytes.len() as u64).max().unwrap_or(0);
    let (least, most) = (cutter.loads().iter().min().unwrap(), cutter.loads().iter().max().unwrap());
    assert!(most - least <= longest, "{:?}, longest split {longest}", cutter.loads());
    if longest <= 2 * target as u64 {
        assert!(*most <= cutter.share());
    }
}

#[test]
fn big_inputs_are_shared_evenly() {
    for nodes in [1, 3, 4, 8, 16] {
        let line = b"the quick brown fox jumps over the lazy dog\n";
        let text: Vec<u8> = line.iter().copied().cycle().take(40_000_001).collect();
        let (_, cutter) = cut(&CutRule::after(|b| b == b'\n'), &[text], nodes, 48 << 10);
        let share = 40_000_001 / nodes as u64;
        for load in cutter.loads() {
            assert!(load.abs_diff(share) <= share / 50 + 1, "{nodes} nodes: {:?}", cutter.loads());
        }
    }
}

#[test]
fn split_sizes() {
    assert_eq!(split_size(0, 4), 1);
    assert_eq!(split_size(1, 4), 1);
    assert_eq!(split_size(400, 4), 100, "small inputs: one split for each node");
    assert_eq!(split_size(4 << 20, 4), 256 << 10, "four splits for each node");
    assert_eq!(split_size(17 << 30, 4), 4 << 20, "never above 4 MiB");
    assert_eq!(split_size(u64::MAX, 4095).next_power_of_two(), 4 << 20);
}

#[test]
fn a_record_longer_than_a_split_stays_whole() {
    let mut text = vec![b'a'; 5_000_000];
    text.extend_from_slice(b"\nb\n");
    let (splits, _) = cut(&CutRule::after(|b| b == b'\n'), &[text], 4, 48 << 10);
    assert_eq!(splits.iter().map(|split| split.bytes.len()).collect::<Vec<_>>(), [5_000_001, 2]);
}

#[test]
fn empty_files_make_no_splits() {
    let (splits, cutter) = cut(&CutRule::Anywhere, &[vec![], vec![], vec![1], vec![]], 2, 5);
    assert_eq!(splits, [Split { rank: 0, file: 2, offset: 0, bytes: vec![1] }]);
    assert_eq!(cutter.loads(), [1, 0]);
    assert!(Cutter::new(CutRule::Anywhere, &[], 3).finished());
}

#[test]
fn excess_is_an_error() {
    let mut cutter = Cutter::new(CutRule::Anywhere, &describe(&[vec![0; 3]]), 2);
    assert_eq!(cutter.push(&[0; 4], |_| {}), Err(Excess));
}

proptest! {
    #[test]
    fn cutting_holds(
        files in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..3000), 0..6),
        nodes in 1usize..17,
        step in 1usize..4000,
        allowed in 0u8..=255,
    ) {
        check(&CutRule::after(|b| b < allowed), &files, nodes, step);
        check(&CutRule::Anywhere, &files, nodes, step);
    }

    #[test]
    fn cutting_does_not_depend_on_how_bytes_come(
        file in proptest::collection::vec(any::<u8>(), 0..3000),
        nodes in 1usize..9,
        step in 1usize..4000,
    ) {
        let rule = CutRule::after(|b| b % 7 == 0);
        let files = [file];
        prop_assert_eq!(cut(&rule, &files, nodes, step).0, cut(&rule, &files, nodes, 1 << 20).0);
    }
}
