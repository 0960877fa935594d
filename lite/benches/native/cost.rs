//! The cost of one operation.

use crate::bare::Bare;
use crate::{Effort, clock, median, print_wire, time};
use lite::testing::Native;
use lite::{Config, Lite, Lmr, NodeId, Permissions, RpcOptions};
use serde_json::{Value, json};

/// The setting in which the cost is measured.
pub(crate) struct Bench {
    pub native: Native,
    far: Lmr,
    own: Lmr,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let native = Native::new(&[16 << 20, 16 << 20], clock, &Config::default());
        let lite = native.nodes[0].lite.clone();
        let rights = Permissions::READ | Permissions::WRITE | Permissions::ATOMIC;
        let [far, own] =
            [2, 1].map(|node| native.run(lite.alloc(NodeId(node), 1 << 20, rights)).expect("memory"));
        let server = native.nodes[1].lite.register(1, RpcOptions::default()).expect("a free function id");
        native.spawn(2, async move {
            while let Ok(call) = server.receive().await {
                let mut reply = [0; 64];
                let len = call.request().len().min(reply.len());
                reply[..len].copy_from_slice(&call.request()[..len]);
                if call.reply(&reply[..len]).await.is_err() {
                    return;
                }
            }
        });
        Self { native, far, own }
    }

    fn lite(&self) -> &Lite {
        &self.native.nodes[0].lite
    }
}

/// An operation, and the same work by verbs.
type Row = (&'static str, fn(&Bench, u32), fn(&Bare<'_>, u32));

const ROWS: [Row; 7] = [
    ("write 64 B", |b, n| writes(b, &b.far, &[7; 64], n), |bare, n| bare.writes(&[7; 64], n)),
    ("read 64 B", |b, n| reads(b, &mut [7; 64], n), |bare, n| bare.reads(&mut [7; 64], n)),
    ("fetch-add", adds, |bare, n| bare.adds(n)),
    ("write 4 KiB", |b, n| writes(b, &b.far, &[7; 4096], n), |bare, n| bare.writes(&[7; 4096], n)),
    ("read 4 KiB", |b, n| reads(b, &mut [7; 4096], n), |bare, n| bare.reads(&mut [7; 4096], n)),
    ("local write 64 B", |b, n| writes(b, &b.own, &[7; 64], n), |_, _| {}),
    ("call 64 B, both ends", |b, n| calls(b, &[7; 64], n), |bare, n| bare.round_trips(&[7; 64], n)),
];

fn writes(bench: &Bench, lmr: &Lmr, data: &[u8], count: u32) {
    bench.native.run_on(1, async {
        for _ in 0..count {
            lmr.write(64, data).await.unwrap();
        }
    });
}

fn reads(bench: &Bench, data: &mut [u8], count: u32) {
    bench.native.run_on(1, async {
        for _ in 0..count {
            bench.far.read(64, data).await.unwrap();
        }
    });
}

fn adds(bench: &Bench, count: u32) {
    bench.native.run_on(1, async {
        for _ in 0..count {
            bench.far.fetch_add(64, 1).await.unwrap();
        }
    });
}

fn calls(bench: &Bench, data: &[u8], count: u32) {
    let mut reply = [0; 64];
    bench.native.run(async {
        for _ in 0..count {
            bench.lite().call_into(NodeId(2), 1, data, &mut reply).await.unwrap();
        }
    });
}

/// Measures and prints all rows.
pub(crate) fn measure(effort: Effort) -> Vec<Value> {
    let bench = Bench::new();
    let bare = Bare::new(&bench.native);
    let n = effort.operations;
    let mut samples = vec![(Vec::new(), Vec::new()); ROWS.len()];
    // The first use opens connections and grows all buffers, also once a ring has wrapped.
    for (_, lite, verbs) in &ROWS {
        lite(&bench, 2000);
        verbs(&bare, 2000);
    }
    for _ in 0..effort.rounds {
        for ((_, lite, verbs), (ours, theirs)) in ROWS.iter().zip(&mut samples) {
            ours.push(time(n, || lite(&bench, n)));
            theirs.push(time(n, || verbs(&bare, n)));
        }
    }
    println!("ns per operation, one at a time, medians of {} rounds of {n}", effort.rounds);
    println!("{:<22}{:>10}{:>14}{:>10}", "operation", "with LITE", "verbs alone", "LITE");
    let rows = ROWS.iter().zip(&mut samples).map(|((name, ..), (ours, theirs))| {
        let mut costs: Vec<f64> = ours.iter().zip(&*theirs).map(|(a, b)| a - b).collect();
        let [all, verbs, lite] = [median(ours), median(theirs), median(&mut costs)];
        println!("{name:<22}{all:>10.0}{verbs:>14.0}{lite:>10.0}");
        json!({ "operation": name, "all_ns": all, "verbs_ns": verbs, "lite_ns": lite })
    });
    rows.collect()
}

/// Does `count` operations, or as many times the same work by verbs alone, once the nodes are there, and
/// prints what they have posted. Returns false if the operation is none of these.
pub(crate) fn count(operation: &str, count: u32) -> bool {
    let bench = Bench::new();
    let bare = Bare::new(&bench.native);
    if matches!(operation, "bare-write" | "bare-read") {
        // As for the writes and reads through LITE that are counted.
        bench.native.fabric.hold_still();
    }
    match operation {
        "fetch-add" => adds(&bench, count),
        "call" => calls(&bench, &[7; 64], count),
        "bare-write" => bare.writes(&[7; 64], count),
        "bare-read" => bare.reads(&mut [7; 64], count),
        "bare-fetch-add" => bare.adds(count),
        "bare-call" => bare.round_trips(&[7; 64], count),
        _ => return false,
    }
    print_wire(&bench.native);
    true
}
