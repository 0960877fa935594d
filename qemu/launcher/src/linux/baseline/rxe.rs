//! SoftRoCE between two Linux guests on the fabric, measured by perftest.

use crate::Qemu;
use crate::linux::perftest::{self, Bandwidth, Latency};
use crate::linux::{Guest, GuestConfig, Image, Listens, Network, exchange};
use anyhow::{Context, Result};
use fabric::{Fabric, FabricConfig, Plug};
use serde::Serialize;
use std::time::Duration;
use tempfile::TempDir;

/// The server's address on the fabric.
const SERVER: &str = "10.0.0.1";
/// The time limit of a test of the lengths used here, which takes a second or two.
const TEST: Duration = Duration::from_secs(120);

/// The results of perftest between two Linux guests of one processor, with MTU 4096.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RxeBaseline {
    /// The result of `ib_write_lat`: half a round trip.
    pub write_latency: Latency,
    /// The result of `ib_read_lat`: a whole round trip.
    pub read_latency: Latency,
    /// The result of `ib_write_bw`.
    pub write_bandwidth: Bandwidth,
}

/// The connection of a pair's guests to their fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// The guests share memory with the fabric (vhost-user).
    Memory,
    /// The guests' frames pass through QEMU, as streams.
    Stream,
}

/// Two Linux guests with SoftRoCE on a fabric of their own.
#[derive(Debug)]
pub struct RxePair {
    server: Guest,
    client: Guest,
    fabric: Fabric,
    // Holds the fabric's sockets. It is the last field, so that it is dropped after the fabric.
    _dir: TempDir,
}

impl RxePair {
    /// Boots both guests in parallel. The calling thread must outlive them.
    pub fn boot(qemu: &Qemu, image: &Image, wire: Wire) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("rxe-pair-").tempdir()?;
        let fabric = Fabric::start(&FabricConfig::plain(2, dir.path()))?;
        let start = |number: u8| {
            let port = usize::from(number) - 1;
            let plug = match wire {
                Wire::Memory => fabric.plug(port),
                Wire::Stream => Plug::Stream(fabric.socket(port).to_owned()),
            };
            let network = Network::numbered(number, plug);
            Guest::start(qemu, image, &GuestConfig { network: Some(network), ..GuestConfig::default() })
        };
        let (server, client) = (start(1)?, start(2)?);
        Ok(Self { server: server.ready()?, client: client.ready()?, fabric, _dir: dir })
    }

    /// Returns the fabric between the guests, for fault injection.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Returns the guest on which servers run, with address 10.0.0.1.
    pub fn server(&mut self) -> &mut Guest {
        &mut self.server
    }

    /// Returns the guest on which clients run, with address 10.0.0.2.
    pub fn client(&mut self) -> &mut Guest {
        &mut self.client
    }

    /// Runs a perftest program on both sides and returns the client's output.
    ///
    /// The device and the GID index (1 is the IPv4 address) are added to `options`, which are quoted as for a
    /// shell.
    pub fn perftest(&mut self, program: &str, options: &str, within: Duration) -> Result<String> {
        // -F: a guest has no frequency governor, about which perftest would complain.
        let command = format!("{program} -d rxe0 -x 1 -F {options}");
        let ask = format!("{command} {SERVER}");
        let (server, client) = (&mut self.server, &mut self.client);
        let exchanged = exchange(server, &command, Listens::PERFTEST, client, &ask, within);
        Ok(exchanged.with_context(|| program.to_owned())?.client)
    }

    /// Runs a latency program (`ib_write_lat`, `ib_read_lat`, `ib_send_lat`) for one message length. Atomics
    /// always have 8 bytes.
    pub fn latency(&mut self, program: &str, bytes: u32, iterations: u32) -> Result<Latency> {
        perftest::latency(&self.perftest(program, &size(program, bytes, iterations), TEST)?)
    }

    /// Runs a bandwidth program (`ib_write_bw`, ...) for one message length.
    pub fn bandwidth(&mut self, program: &str, bytes: u32, iterations: u32) -> Result<Bandwidth> {
        perftest::bandwidth(&self.perftest(program, &size(program, bytes, iterations), TEST)?)
    }

    /// Measures the figures for the comparison with the appliance: 8-byte write and read latency, 64 KiB
    /// write bandwidth.
    pub fn measure(&mut self, iterations: u32) -> Result<RxeBaseline> {
        Ok(RxeBaseline {
            write_latency: self.latency("ib_write_lat", 8, iterations)?,
            read_latency: self.latency("ib_read_lat", 8, iterations)?,
            write_bandwidth: self.bandwidth("ib_write_bw", 65536, iterations)?,
        })
    }
}

/// Returns the options for length and count. An atomic program refuses a length.
fn size(program: &str, bytes: u32, iterations: u32) -> String {
    if program.starts_with("ib_atomic") {
        format!("-n {iterations}")
    } else {
        format!("-s {bytes} -n {iterations}")
    }
}
