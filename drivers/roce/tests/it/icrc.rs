//! The ICRC by carry-less multiplication equals that by tables, for captures of Linux and for any bytes.

use crate::common::{data, frames};
use proptest::prelude::*;
use roce::wire::Icrc;

#[test]
#[cfg_attr(miri, ignore = "too many bytes")]
fn captured_frames() {
    let mut compared = 0;
    for entry in std::fs::read_dir(data()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "pcap") {
            for bytes in frames(&path) {
                assert_eq!(Icrc::START.feed(&bytes), Icrc::START.feed_by_table(&bytes), "{path:?}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 723);
}

const CASES: u32 = if cfg!(miri) { 4 } else { 512 };
const LONGEST: usize = if cfg!(miri) { 300 } else { 5000 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_in_any_pieces(
        bytes in proptest::collection::vec(any::<u8>(), 0..LONGEST),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let (mut crc, mut from) = (Icrc::START, 0);
        for to in cuts.into_iter().chain([bytes.len()]) {
            crc = crc.feed(&bytes[from..to]);
            from = to;
        }
        prop_assert_eq!(crc, Icrc::START.feed_by_table(&bytes));
    }
}
