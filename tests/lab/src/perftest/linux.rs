//! perftest in a Linux guest: client, server, buffers, and the counters of rdma_rxe.

use super::cell::{Cell, Figure};
use super::judge::{Buffers, Layout};
use anyhow::{Context, Result, bail, ensure};
use qemu::linux::{Guest, perftest};
use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

/// The file that perftest maps as its buffers.
const BUFFERS: &str = "/tmp/buffers";
/// Port 18515 as `/proc/net/tcp` writes it.
const PORT: &str = "4853";
/// The longest time for a server to listen, and for small commands in the guest.
const TURN: Duration = Duration::from_secs(60);
/// The directory of rdma_rxe's counters.
const COUNTERS: &str = "/sys/class/infiniband/rxe0/ports/1/hw_counters";
/// Counters of wrong, refused or missing packets. On a clean fabric none may grow.
const BAD: [&str; 5] =
    ["out_of_seq_request", "rcvd_seq_err", "retry_exceeded_err", "retry_rnr_exceeded_err", "send_err"];
/// Extents of at most this many bytes are transferred whole; for larger ones the guest computes the digest.
const SMALL: u32 = 4096;

/// Values of rdma_rxe's counters.
pub type Counters = BTreeMap<String, u64>;

/// The RDMA device of a guest, in shell syntax.
#[derive(Clone, Debug)]
pub struct Device {
    /// The name of the device.
    pub name: String,
    /// The index of the GID of its IPv4 address; `None` where peers find each other by LID.
    pub gid: Option<String>,
    /// Further options of the programs.
    pub options: String,
}

impl Device {
    /// Returns the device of rdma_rxe.
    pub fn rxe() -> Self {
        Self { name: "rxe0".into(), gid: Some("1".into()), options: String::new() }
    }

    /// Returns the command line of a program.
    fn command(&self, cell: &Cell) -> String {
        let Self { name, gid, options } = self;
        let gid = gid.as_ref().map(|gid| format!("-x {gid}")).unwrap_or_default();
        // -F: suppresses a warning, because a guest has no frequency governor.
        format!("{} -d {name} {gid} -F --mmap={BUFFERS} {options}", cell.words().join(" "))
    }
}

/// Creates an empty file for the buffers.
fn prepare(guest: &mut Guest, cell: &Cell) -> Result<()> {
    let bytes = 2 * Layout::of(cell).buffer.next_multiple_of(4096);
    guest.check(&format!("rm -f {BUFFERS} && truncate -s {bytes} {BUFFERS}"), TURN).map(drop)
}

/// Starts a server. It listens when this returns.
pub fn serve(guest: &mut Guest, device: &Device, cell: &Cell) -> Result<()> {
    prepare(guest, cell)?;
    let command = device.command(cell);
    let listen = format!(
        "rm -f /tmp/ended; ( {command} >/tmp/server 2>&1; echo $? >/tmp/status; mv /tmp/status /tmp/ended ) &\n\
         until grep -q ':{PORT} .* 0A ' /proc/net/tcp; do\n\
         [ ! -e /tmp/ended ] || {{ cat /tmp/server; exit 1; }}; usleep 10000; done"
    );
    guest.check(&listen, TURN).context("Linux as server").map(drop)
}

/// Waits for the server's end, which must be successful.
pub fn served(guest: &mut Guest, within: Duration) -> Result<()> {
    let end = "until [ -e /tmp/ended ]; do usleep 10000; done; cat /tmp/server; exit $(cat /tmp/ended)";
    guest.check(end, within).context("Linux as server").map(drop)
}

/// Ends the program of a failed cell.
pub(crate) fn clean_up(guest: &mut Guest, cell: &Cell) {
    // The program may have ended by itself.
    let _ = guest.run(&format!("killall -9 {} 2>/dev/null", cell.program), TURN);
}

/// Runs a client, whose server may start to listen shortly after.
pub fn client(
    guest: &mut Guest,
    device: &Device,
    cell: &Cell,
    server: Ipv4Addr,
    within: Duration,
) -> Result<Figure> {
    prepare(guest, cell)?;
    let command = format!("{} {server} 2>&1", device.command(cell));
    let deadline = Instant::now() + within;
    let printed = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let output = guest.run(&command, left).context("Linux as client")?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.0 == 0 {
            break printed;
        }
        if !printed.contains("Couldn't connect to") || Instant::now() >= deadline {
            // Indented lines and rules belong to perftest's tables, which may follow the complaint.
            let complaints: Vec<&str> =
                printed.lines().filter(|l| !l.is_empty() && !l.starts_with([' ', '-'])).collect();
            bail!("Linux as client ended with {}: {}", output.status.0, complaints.join("; "));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    Ok(if cell.is_latency() {
        let perftest::Latency { p50_us, p99_us, .. } = perftest::latency(&printed)?;
        Figure::Latency { p50_us, p99_us }
    } else {
        Figure::Bandwidth(perftest::bandwidth(&printed)?.average_mib_s)
    })
}

/// Returns the digests of both buffers after the program's end.
pub fn buffers(guest: &mut Guest, cell: &Cell) -> Result<Buffers> {
    let layout = Layout::of(cell);
    let mut digest = |at: u32| -> Result<Option<String>> {
        let extent = layout.extent();
        let pages = format!("dd if={BUFFERS} bs=4096 skip={} 2>/dev/null | head -c {extent}", at / 4096);
        if extent <= SMALL {
            let output = guest.run(&pages, TURN)?;
            return layout.digest(&output.stdout).map(Some);
        }
        let said = guest.check(&format!("{pages} | sha256sum"), TURN)?;
        let digest = said.split_whitespace().next().context("sha256sum says nothing")?;
        ensure!(digest.len() == 64, "sha256sum says `{digest}`");
        Ok(Some(digest.to_owned()))
    };
    // The far buffer would begin within a page if the length were not a multiple of a page. No cell has such
    // a length.
    ensure!(layout.buffer.is_multiple_of(4096), "{} bytes are no whole pages", layout.buffer);
    Ok(Buffers { near: digest(0)?, far: digest(layout.buffer)?, left: None })
}

/// Returns the present values of rdma_rxe's counters.
pub fn counters(guest: &mut Guest) -> Result<Counters> {
    let said = guest.check(&format!("cd {COUNTERS} && grep . *"), TURN).context("rdma_rxe's counters")?;
    let counters: Counters = said
        .lines()
        .filter_map(|line| {
            let (name, count) = line.split_once(':')?;
            Some((name.to_owned(), count.trim().parse().ok()?))
        })
        .collect();
    for name in BAD {
        ensure!(counters.contains_key(name), "rdma_rxe has no counter {name}");
    }
    Ok(counters)
}

/// Fails if a bad packet was counted since `before`.
pub fn clean(before: &Counters, after: &Counters) -> Result<()> {
    let grown: Vec<String> = BAD
        .iter()
        .filter_map(|name| {
            let (before, after) = (before.get(*name)?, after.get(*name)?);
            (after > before).then(|| format!("{name} by {}", after - before))
        })
        .collect();
    ensure!(grown.is_empty(), "on a clean fabric rdma_rxe counts {}", grown.join(", "));
    Ok(())
}
