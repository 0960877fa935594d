//! Compares the sent and the received bytes by digests of both sides' buffers.
//!
//! perftest has for each queue pair a near buffer, which its own operations name, and a far buffer, which the
//! peer's operations name. A WRITE or SEND copies the client's near buffer into the server's far one, a READ
//! the server's far buffer into the client's near one; in a ping-pong the server does as the client.
//! Appliances print the digests of their buffers. Linux's perftest maps a file (`--mmap`), which holds the
//! near and then the far buffer when it has ended.

use super::cell::{Cell, Figure};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

/// perftest's page and cache line, over which messages are spread, in bytes.
const PAGE: u32 = 4096;
const LINE: u32 = 64;

/// A side's digests of its buffers, in hexadecimal.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Buffers {
    /// The digest of the buffer that the side's own operations name.
    pub near: Option<String>,
    /// The digest of the buffer that the peer's operations name.
    pub far: Option<String>,
    /// The digest of the words that the side's atomics must have left on the peer.
    pub left: Option<String>,
}

/// The JSON line in an appliance's output.
#[derive(Clone, Debug, Deserialize)]
struct Line {
    role: String,
    bytes: Option<u64>,
    iterations: Option<u64>,
    mtu: u32,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    average_mib_s: Option<f64>,
    #[serde(flatten)]
    buffers: Buffers,
}

/// An appliance's results.
pub struct Appliance {
    /// The digests of its buffers.
    pub buffers: Buffers,
    /// The measured value, of a side that measures.
    pub figure: Option<Figure>,
}

/// Parses an appliance's output, and fails if it belongs to another cell.
pub fn appliance(output: &str, cell: &Cell, client: bool) -> Result<Appliance> {
    let line = output.lines().last().context("the appliance said nothing")?;
    let line: Line = serde_json::from_str(line).with_context(|| format!("the appliance said `{line}`"))?;
    let role = if client { "client" } else { "server" };
    ensure!(line.role == role, "the appliance was {}, not {role}", line.role);
    ensure!(line.mtu == cell.mtu, "the path MTU was {}, not {}", line.mtu, cell.mtu);
    // The server of a one-sided latency test measures nothing.
    let of_cell = (line.bytes, line.iterations) == (Some(cell.size.into()), Some(cell.iterations.into()));
    let nothing = line.bytes.is_none() && !client && cell.is_latency();
    ensure!(
        of_cell || nothing,
        "the appliance measured {:?} messages of {:?} bytes",
        line.iterations,
        line.bytes
    );
    let latency = line.p50_us.zip(line.p99_us).map(|(p50_us, p99_us)| Figure::Latency { p50_us, p99_us });
    let figure = latency.or(line.average_mib_s.map(Figure::Bandwidth));
    Ok(Appliance { buffers: line.buffers, figure })
}

/// The layout of messages in a buffer of Linux's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The length of a buffer, in bytes. The far buffer follows the near one.
    pub buffer: u32,
    /// The distance between two slots, in bytes.
    step: u32,
    /// The number of slots in use.
    count: u32,
    size: u32,
}

impl Layout {
    /// Returns the layout of a cell's buffers.
    pub fn of(cell: &Cell) -> Self {
        let step = cell.size.next_multiple_of(LINE);
        let spread = !cell.is_latency() && cell.size <= PAGE / 2;
        let slots = if spread { PAGE / step } else { 1 };
        Self { buffer: cell.size.max(PAGE), step, count: slots.min(cell.iterations), size: cell.size }
    }

    /// Returns the bytes from the start of the first used slot to the end of the last.
    pub(crate) fn extent(&self) -> u32 {
        self.step * (self.count - 1) + self.size
    }

    /// Returns the digest of the messages in the bytes `extent` of a buffer.
    pub(crate) fn digest(&self, extent: &[u8]) -> Result<String> {
        ensure!(extent.len() == self.extent() as usize, "{} bytes of Linux' buffer", extent.len());
        let mut hash = Sha256::new();
        for slot in extent.chunks(self.step as usize) {
            hash.update(slot.get(..self.size as usize).unwrap_or(slot));
        }
        Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Fails unless both sides' buffers agree.
pub fn compare(cell: &Cell, client: &Buffers, server: &Buffers) -> Result<()> {
    let same = |what: &str, a: &Option<String>, b: &Option<String>| {
        let (a, b) = (a.as_ref().context("no digest")?, b.as_ref().context("no digest")?);
        ensure!(a == b, "{what}: {a} on one side, {b} on the other");
        Ok(())
    };
    if cell.is_atomic() {
        // A Linux client does not print what it fetched; its server, ours, has counted.
        return match &client.left {
            None => Ok(()),
            left => same("what the client's atomics left at the server", left, &server.far),
        };
    }
    same("client's near and server's far buffer differ", &client.near, &server.far)?;
    if cell.both_ways() {
        same("server's near and client's far buffer differ", &server.near, &client.far)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::cell::Direction;
    use super::*;

    fn cell(program: &'static str, size: u32) -> Cell {
        Cell { program, direction: Direction::ApplianceLinux, size, mtu: 4096, loss: 0.0, iterations: 100 }
    }

    #[test]
    fn layouts() {
        let layout = |program, size| Layout::of(&cell(program, size));
        assert_eq!(layout("ib_write_bw", 8), Layout { buffer: 4096, step: 64, count: 64, size: 8 });
        assert_eq!(layout("ib_write_bw", 8).extent(), 63 * 64 + 8);
        assert_eq!(layout("ib_write_lat", 8).extent(), 8);
        assert_eq!(layout("ib_send_bw", 65536), Layout { buffer: 65536, step: 65536, count: 1, size: 65536 });
        assert_eq!(layout("ib_send_bw", 2048).count, 2);
    }

    #[test]
    fn gaps_do_not_count() {
        let layout = Layout { buffer: 4096, step: 64, count: 2, size: 3 };
        let mut bytes = vec![0xee; 67];
        bytes[..3].copy_from_slice(b"abc");
        bytes[64..].copy_from_slice(b"def");
        let digest = layout.digest(&bytes).unwrap();
        // printf abcdef | sha256sum
        assert_eq!(digest, "bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4721");
        assert!(layout.digest(&bytes[1..]).is_err());
    }

    #[test]
    fn buffers_that_differ_are_found() {
        let side =
            |near: &str, far: &str| Buffers { near: Some(near.into()), far: Some(far.into()), left: None };
        let lat = cell("ib_write_lat", 8);
        assert!(compare(&lat, &side("a", "b"), &side("b", "a")).is_ok());
        assert!(compare(&lat, &side("a", "c"), &side("b", "a")).is_err());
        assert!(compare(&cell("ib_read_bw", 8), &side("a", "c"), &side("b", "a")).is_ok());
        assert!(compare(&cell("ib_read_bw", 8), &side("x", "c"), &side("b", "a")).is_err());
        assert!(compare(&cell("ib_read_bw", 8), &Buffers::default(), &side("b", "a")).is_err());
        let left = Buffers { left: Some("s".into()), ..Buffers::default() };
        assert!(compare(&cell("ib_atomic_bw", 8), &left, &side("x", "s")).is_ok());
        assert!(compare(&cell("ib_atomic_bw", 8), &left, &side("x", "y")).is_err());
    }

    #[test]
    fn an_appliances_line() {
        let output = "table\n{\"program\":\"ib_read_lat\",\"role\":\"client\",\"mtu\":4096,\"queue_pairs\":1,\
            \"bytes\":8,\"iterations\":100,\"p50_us\":12.5,\"average_us\":13,\"p99_us\":20,\"near\":\"ab\"}\n";
        let found = appliance(output, &cell("ib_read_lat", 8), true).unwrap();
        let figure = Figure::Latency { p50_us: 12.5, p99_us: 20.0 };
        assert_eq!((found.figure, found.buffers.near.as_deref()), (Some(figure), Some("ab")));
        assert!(appliance(output, &cell("ib_read_lat", 16), true).is_err());
        assert!(appliance(output, &cell("ib_read_lat", 8), false).is_err());
        assert!(appliance("", &cell("ib_read_lat", 8), true).is_err());
    }
}
