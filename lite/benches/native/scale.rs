//! The cost of an operation as regions and memory grow; it should stay the same.
//!
//! The RNIC reports that bytes have moved, and moves none: in a machine the processor does not move them,
//! so their distance in memory is not part of LITE's cost. The handles, which LITE does access, are all
//! there.
//!
//! Beside the regions stands the time of a write to one region that cannot begin before one random cache
//! line is there, among as many lines as the handles fill: the least cost that an operation through one of
//! that many handles can have on this machine.
//!
//! The figures are those of a program that keeps running: before each measurement, all regions have been
//! used several times, because the processor's last cache keeps lines that are used again. The cost after
//! other work has filled the processor's caches stands beside it.

use crate::{Effort, clock, median, print_wire, time};
use lite::testing::Native;
use lite::{Config, Lmr, NodeId, Permissions};
use serde_json::{Value, json};

const RIGHTS: Permissions = Permissions::READ.union(Permissions::WRITE);
const REGIONS: [u32; 4] = [1, 100, 10_000, 100_000];
const MEMORY_MIB: [u64; 4] = [1, 16, 128, 1024];
const DATA: [u8; 64] = [7; 64];
/// The factor of operations in a round; the number of rounds is smaller.
const LONGER: u32 = 10;

/// The operation of [`count`] that picks regions at random.
const RANDOM: &str = "random-write";
/// The number of times that all regions are used before the measurement.
const PASSES: u32 = 8;

/// An element of a chain, which fills one cache line.
#[repr(align(64))]
#[derive(Clone, Default)]
pub(crate) struct Line(pub u32);

/// Cache lines each of which names the next, in a random order.
pub(crate) fn chain(count: u32) -> Vec<Line> {
    let (mut order, mut place) = ((0..count).collect::<Vec<_>>(), 1);
    for i in (1..count).rev() {
        let j = next(&mut place, u64::from(i) + 1, true);
        order.swap(i as usize, j as usize);
    }
    let mut lines = vec![Line::default(); count as usize];
    for (here, there) in order.iter().zip(order.iter().cycle().skip(1)) {
        lines[*here as usize] = Line(*there);
    }
    lines
}

/// Writes 64 bytes to one region, `count` times, at the offset that the next of the lines names: always the
/// same offset, but the write cannot begin before the line is there.
fn writes_by_line(native: &Native, one: &Lmr, lines: &[Line], at: &mut u32, count: u32) {
    native.run_on(1, async {
        for _ in 0..count {
            *at = std::hint::black_box(lines[*at as usize].0);
            one.write(u64::from(*at >> 31), &DATA).await.unwrap();
        }
    });
}

/// Allocates `count` regions of that many bytes on the second node.
fn regions(count: u32, len: u64) -> (Native, Vec<Lmr>) {
    let memory = u64::from(count) * len.next_multiple_of(4096) + (8 << 20);
    let native = Native::new(&[8 << 20, memory], clock, &Config::default());
    let lite = native.nodes[0].lite.clone();
    let all = native.run(async {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(lite.alloc(NodeId(2), len, RIGHTS).await.expect("memory"));
        }
        all
    });
    native.fabric.hold_still();
    // The first use opens connections and grows all buffers.
    native.run_on(1, async { all[0].write(0, &DATA).await.unwrap() });
    (native, all)
}

/// Returns the next number below `among`: in sequence or at random (Knuth's MMIX generator).
fn next(place: &mut u64, among: u64, random: bool) -> u64 {
    if random {
        *place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        return ((u128::from(*place) * u128::from(among)) >> 64) as u64;
    }
    *place = if *place + 1 < among { *place + 1 } else { 0 };
    *place
}

/// Writes 64 bytes at one of all offsets of one of all regions, `count` times.
fn writes(native: &Native, all: &[Lmr], place: &mut u64, random: bool, count: u32) {
    native.run_on(1, async {
        let slots = all[0].len() / 64;
        for _ in 0..count {
            let at = next(place, all.len() as u64 * slots, random);
            all[(at / slots) as usize].write(at % slots * 64, &DATA).await.unwrap();
        }
    });
}

/// Does `count` reads or writes on `regions` regions, in sequence or at random as the operation requires,
/// once they are there, and prints what the nodes have posted.
pub(crate) fn count(operation: &str, regions_there: u32, count: u32) -> Result<(), String> {
    let (native, all) = regions(regions_there, 64);
    let (mut data, mut place) = (DATA, 0);
    let done = native.run_on(1, async {
        for i in 0..count {
            let random = (operation == RANDOM).then(|| next(&mut place, all.len() as u64, true));
            let lmr = &all[random.map_or(i as usize % all.len(), |at| at as usize)];
            match operation {
                "write" | RANDOM => lmr.write(0, &DATA).await.unwrap(),
                "read" => lmr.read(0, &mut data).await.unwrap(),
                other => return Err(format!("unknown operation {other}: see the head of main.rs")),
            }
        }
        Ok(())
    });
    print_wire(&native);
    done
}

fn table(what: &str, unit: &str, effort: Effort, sizes: &[(u64, u32, u64)]) -> Vec<Value> {
    let rigs: Vec<_> = sizes.iter().map(|(_, count, len)| regions(*count, *len)).collect();
    let lines = |count: u32| (count as usize * size_of::<Lmr>()).div_ceil(size_of::<Line>()) as u32;
    let chains: Vec<_> = sizes.iter().map(|(_, count, _)| chain(lines(*count))).collect();
    let n = effort.operations * LONGER;
    let mut samples = vec![[const { Vec::new() }; 4]; rigs.len()];
    let mut places = vec![([0u64; 2], 0u32); rigs.len()];
    for _ in 0..(effort.rounds / 4).max(7) {
        for (((rig, lines), samples), (places, at)) in
            rigs.iter().zip(&chains).zip(&mut samples).zip(&mut places)
        {
            let [sequence, random] = places;
            let writes = |place: &mut u64, random, n| time(n, || writes(&rig.0, &rig.1, place, random, n));
            // The turns of the other figures come in between.
            samples[3].push(writes(random, true, n));
            writes(random, true, PASSES * rig.1.len() as u32);
            samples[1].push(writes(random, true, n));
            samples[0].push(writes(sequence, false, n));
            let mut by_line = |n| writes_by_line(&rig.0, &rig.1[0], lines, at, n);
            by_line(PASSES * lines.len() as u32);
            samples[2].push(time(n, || by_line(n)));
        }
    }
    println!("64 B writes by {what}: medians, in ns and as ratios to the first");
    println!(
        "{unit:>10}{:>14}{:>8}{:>14}{:>8}{:>18}{:>18}{:>8}",
        "in sequence", "ratio", "at random", "ratio", "one and a line", "after others", "ratio"
    );
    let mut first = None;
    let rows = sizes.iter().zip(&mut samples).map(|((size, ..), samples)| {
        let [sequence, random, by_line, cold] = samples.each_mut().map(|times| median(times));
        let base = *first.get_or_insert(sequence);
        let [a, b, c] = [sequence, random, cold].map(|ns| ns / base);
        println!(
            "{size:>10}{sequence:>14.0}{a:>8.2}{random:>14.0}{b:>8.2}{by_line:>18.0}{cold:>18.0}{c:>8.2}"
        );
        json!({ "by": what, "size": size, "sequence_ns": sequence, "random_ns": random,
            "sequence_ratio": a, "random_ratio": b, "one_by_line_ns": by_line,
            "cold_ns": cold, "cold_ratio": c })
    });
    rows.collect()
}

/// Measures and prints both tables.
pub(crate) fn measure(effort: Effort) -> Vec<Value> {
    let by_regions = REGIONS.map(|n| (u64::from(n), n, 64));
    let by_memory = MEMORY_MIB.map(|mib| (mib, 1, mib << 20));
    let mut rows = table("number of regions", "regions", effort, &by_regions);
    println!();
    rows.extend(table("size of the region", "MiB", effort, &by_memory));
    rows
}
