use super::*;
use alloc::vec::Vec;
use proptest::prelude::*;

/// The addresses 0 to 63 of a set, as bits.
fn bits<const N: usize>(spans: &Spans<N>) -> u64 {
    spans.spans().iter().flat_map(|s| s.start..s.end).fold(0, |all, at| all | 1 << at)
}

fn span_bits(start: u64, end: u64) -> u64 {
    (start..end).fold(0, |all, at| all | 1 << at)
}

fn is_sorted<const N: usize>(spans: &Spans<N>) -> bool {
    let sorted = spans.spans().windows(2).all(|w| w[0].end < w[1].start);
    sorted && spans.spans().iter().all(|s| s.start < s.end)
}

/// Additions (true) and removals of `start..end`.
type Steps = Vec<(bool, u64, u64)>;

fn steps(most: usize) -> impl Strategy<Value = Steps> {
    prop::collection::vec((any::<bool>(), 0u64..64, 0u64..65), 0..most)
}

/// Carries out steps on a set and on a model, and calls `check` with both after each.
fn compare<const N: usize>(
    steps: Steps,
    check: impl Fn(&Spans<N>, u64) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut spans = Spans::<N>::new();
    let mut model = 0;
    for (adds, start, end) in steps {
        if adds {
            spans.add(start, end);
            model |= span_bits(start, end);
        } else {
            spans.remove(start, end);
            model &= !span_bits(start, end);
        }
        prop_assert!(is_sorted(&spans));
        check(&spans, model)?;
    }
    Ok(())
}

proptest! {
    /// A set with room has the addresses of a model, whatever the order.
    #[test]
    fn a_set_is_exact(steps in steps(40)) {
        compare::<64>(steps, |spans, model| {
            prop_assert_eq!(bits(spans), model);
            prop_assert_eq!(spans.dropped(), 0);
            Ok(())
        })?;
    }

    /// A full set loses addresses, and never has one that was not added.
    #[test]
    fn a_full_set_is_a_part(steps in steps(60)) {
        compare::<4>(steps, |spans, model| {
            prop_assert_eq!(bits(spans) & !model, 0);
            prop_assert!(spans.dropped() > 0 || bits(spans) == model);
            Ok(())
        })?;
    }

    /// A map of hundreds of descriptors, as UEFI passes it, is merged to the runs of RAM.
    #[test]
    fn a_long_map_is_merged(kinds in prop::collection::vec(0u8..4, 1..1000), seed: u64) {
        let mut order: Vec<usize> = (0..kinds.len()).collect();
        order.sort_by_key(|n| (*n as u64 ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut spans = Spans::<512>::new();
        for n in order {
            // Three of four kinds become RAM.
            if kinds[n] != 0 {
                spans.add(n as u64 * PAGE, (n as u64 + 1) * PAGE);
            }
        }
        let runs = kinds.split(|kind| *kind == 0).filter(|run| !run.is_empty());
        let total: u64 = spans.spans().iter().map(Span::len).sum();
        prop_assert_eq!(spans.spans().len(), runs.clone().count());
        prop_assert_eq!(total, runs.map(|run| run.len() as u64 * PAGE).sum::<u64>());
    }

    /// The page for the start of processors is RAM below 640 KiB, is not taken, and is found if there is one.
    #[test]
    fn a_start_page_is_free_ram(
        ram in prop::collection::vec((0u64..0xc0, 0u64..0x40), 0..6),
        taken in prop::collection::vec((0u64..0xc0, 0u64..0x40), 0..6),
    ) {
        let mut spans = Spans::<16>::new();
        ram.iter().for_each(|(at, len)| spans.add(at * PAGE, (at + len) * PAGE));
        let taken: Vec<_> =
            taken.iter().map(|(at, len)| Span { start: at * PAGE + 1, end: (at + len) * PAGE + 1 }).collect();
        let is_free = |page: u64| {
            let inside = spans.spans().iter().any(|s| s.start <= page && page + PAGE <= s.end);
            inside && taken.iter().filter(|s| !s.is_empty()).all(|s| s.end <= page || page + PAGE <= s.start)
        };
        let free: Vec<_> = (1..CONVENTIONAL_END / PAGE).map(|n| n * PAGE).filter(|p| is_free(*p)).collect();
        let found = start_page(&spans, taken.iter().filter(|s| !s.is_empty()).copied());
        prop_assert_eq!(found.is_some(), !free.is_empty());
        prop_assert!(found.is_none_or(|page| free.contains(&page)));
        prop_assert!(!free.contains(&USUAL) || found == Some(USUAL));
    }
}
