//! `cargo xtask bench instructions`: counts the instructions of RDMA operations between two software RNICs,
//! by callgrind, and compares them with the committed counts.
//!
//! The counts include posting, both RNICs, both transports, the copies, the ICRC on both sides, the polled
//! completion, and the loop and the wire of the benchmark. They depend on the compiler and on the C library's
//! `memcpy`, but not on the speed of the machine. The processor must have carry-less multiplication.

use super::callgrind::{self, Counted};
use super::program;
use super::table::{Table, number};
use anyhow::{Result, anyhow};
use lab::ui;

/// The part by which a count may differ from the committed one.
const TOLERANCE: f64 = 0.03;

/// An operation of the benchmark `operations` of softroce.
struct Operation {
    name: &'static str,
    about: &'static str,
    /// Operations of the shorter run. The longer run has twice as many; the difference is counted.
    counted: u32,
    /// The committed number of instructions of one operation.
    committed: f64,
}

const OPERATIONS: [Operation; 8] = [
    Operation {
        name: "write-8",
        about: "WRITE of 8 B: a request and its acknowledgement",
        counted: 500,
        committed: 5_226.0,
    },
    Operation {
        name: "write-8-by-16",
        about: "WRITE of 8 B, 16 posted together: each of them",
        counted: 800,
        committed: 2_625.0,
    },
    Operation {
        name: "write-64k",
        about: "WRITE of 64 KiB, path MTU 4096: 16 packets",
        counted: 50,
        committed: 102_622.0,
    },
    Operation {
        name: "write-64k-mtu-1024",
        about: "WRITE of 64 KiB, path MTU 1024: 64 packets",
        counted: 50,
        committed: 197_938.0,
    },
    Operation {
        name: "read-8",
        about: "READ of 8 B: a request and its response",
        counted: 500,
        committed: 5_426.0,
    },
    Operation {
        name: "read-64k",
        about: "READ of 64 KiB, path MTU 4096: a request and 16 responses",
        counted: 50,
        committed: 107_466.0,
    },
    Operation {
        name: "send-8",
        about: "SEND of 8 B with the posting and the completion of its receive",
        counted: 500,
        committed: 5_517.0,
    },
    Operation {
        name: "fetch-add",
        about: "fetch-and-add: a request and its response",
        counted: 500,
        committed: 5_374.0,
    },
];

impl Operation {
    /// Returns the complaint about a count that differs from the committed one.
    fn complaint(&self, counted: f64) -> Option<String> {
        let change = counted / self.committed - 1.0;
        let (name, committed) = (self.name, self.committed);
        if change > TOLERANCE {
            Some(format!("{name} takes {counted:.0} instructions; {committed:.0} are committed"))
        } else if change < -TOLERANCE {
            Some(format!(
                "{name} takes only {counted:.0} instructions: commit that instead of {committed:.0}"
            ))
        } else {
            None
        }
    }
}

fn table(counts: &[f64]) -> Table {
    let remark = "cargo bench -p softroce --bench operations, by callgrind; two RNICs back to back: posting, both \
                  transports, the ICRC on both sides, the completion, and the benchmark's own loop and wire";
    let heads = ["operation", "", "instructions", "committed"];
    let mut table = Table::new("Instructions of an operation, both ends", remark, &heads);
    for (operation, counted) in OPERATIONS.iter().zip(counts) {
        let (name, about) = (operation.name.to_owned(), operation.about.to_owned());
        table.row([name, about, number(*counted), number(operation.committed)]);
    }
    table
}

/// Counts all operations. A count that differs from the committed one is out of its bounds.
pub(crate) fn count() -> Result<Counted> {
    let program =
        ui::step("the benchmark of the software RNIC", || program::build("softroce", "operations"))?;
    let each =
        |operation: &Operation| callgrind::each(&program, &["--count", operation.name], operation.counted);
    let counts =
        ui::step("operations under callgrind", || OPERATIONS.iter().map(each).collect::<Result<Vec<f64>>>())?;
    let complaints =
        OPERATIONS.iter().zip(&counts).filter_map(|(operation, count)| operation.complaint(*count));
    let complaints: Vec<String> = complaints.collect();
    let verdict = if complaints.is_empty() { Ok(()) } else { Err(anyhow!(complaints.join("; "))) };
    Ok(Counted { tables: table(&counts).text(), verdict })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_may_differ_by_three_percent_either_way() {
        let operation = Operation { name: "write", about: "", counted: 1, committed: 1000.0 };
        for (counted, complains) in [(969.0, true), (971.0, false), (1029.0, false), (1031.0, true)] {
            assert_eq!(operation.complaint(counted).is_some(), complains, "{counted}");
        }
    }
}
