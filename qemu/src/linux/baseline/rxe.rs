//! SoftRoCE between two Linux guests on the fabric, measured by perftest.

use crate::Qemu;
use crate::fabric::{Fabric, FabricConfig, Plug};
use crate::linux::perftest::{self, Bandwidth, Latency};
use crate::linux::{Guest, GuestConfig, Image, Listens, Network, exchange};
use anyhow::{Context, Result};
use netfault::Faults;
use serde::Serialize;
use std::time::Duration;
use tempfile::TempDir;

/// The server's address on the fabric.
const SERVER: &str = "10.0.0.1";
/// How long a test of the sizes used here may take, with much room: it takes a second or two.
const TEST: Duration = Duration::from_secs(120);

/// What perftest finds between two Linux guests of one processor, MTU 4096.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RxeBaseline {
    /// `ib_write_lat`: half a round trip.
    pub write_latency: Latency,
    /// `ib_read_lat`: a whole one.
    pub read_latency: Latency,
    /// `ib_write_bw`.
    pub write_bandwidth: Bandwidth,
}

/// How the guests of a pair reach their fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// By shared memory (vhost-user).
    Memory,
    /// By streams of frames through QEMU.
    Stream,
}

/// Two Linux guests with SoftRoCE on a fabric of their own.
#[derive(Debug)]
pub struct RxePair {
    server: Guest,
    client: Guest,
    fabric: Fabric,
    // Holds the fabric's sockets; last, so that it goes after the fabric.
    _dir: TempDir,
}

impl RxePair {
    /// Boots both guests, at the same time. The calling thread must live as long as they shall.
    pub fn boot(qemu: &Qemu, image: &Image, wire: Wire) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("rxe-pair-").tempdir()?;
        let fabric = Fabric::start(&FabricConfig {
            ports: 2,
            dir: dir.path().to_owned(),
            faults: Faults::default(),
            seed: 0,
            pcap: None,
        })?;
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

    /// The fabric between them, to put faults on.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The guest on which servers run, address 10.0.0.1.
    pub fn server(&mut self) -> &mut Guest {
        &mut self.server
    }

    /// The guest on which clients run, address 10.0.0.2.
    pub fn client(&mut self) -> &mut Guest {
        &mut self.client
    }

    /// Runs a perftest program on both sides and returns what the client printed.
    ///
    /// The device and GID index (1 is the IPv4 address) are given to it here; options as for a shell.
    pub fn perftest(&mut self, program: &str, options: &str, within: Duration) -> Result<String> {
        // -F: a guest has no frequency governor to complain about.
        let command = format!("{program} -d rxe0 -x 1 -F {options}");
        let ask = format!("{command} {SERVER}");
        let (server, client) = (&mut self.server, &mut self.client);
        let exchanged = exchange(server, &command, Listens::PERFTEST, client, &ask, within);
        Ok(exchanged.with_context(|| program.to_owned())?.client)
    }

    /// A latency program (`ib_write_lat`, `ib_read_lat`, `ib_send_lat`) for one size; atomics have no choice but 8.
    pub fn latency(&mut self, program: &str, bytes: u32, iterations: u32) -> Result<Latency> {
        perftest::latency(&self.perftest(program, &size(program, bytes, iterations), TEST)?)
    }

    /// A bandwidth program (`ib_write_bw`, ...) for one size.
    pub fn bandwidth(&mut self, program: &str, bytes: u32, iterations: u32) -> Result<Bandwidth> {
        perftest::bandwidth(&self.perftest(program, &size(program, bytes, iterations), TEST)?)
    }

    /// The figures that the appliance's are set beside: 8-byte write and read latency, 64 KiB write bandwidth.
    pub fn measure(&mut self, iterations: u32) -> Result<RxeBaseline> {
        Ok(RxeBaseline {
            write_latency: self.latency("ib_write_lat", 8, iterations)?,
            read_latency: self.latency("ib_read_lat", 8, iterations)?,
            write_bandwidth: self.bandwidth("ib_write_bw", 65536, iterations)?,
        })
    }
}

/// The options for size and count; an atomic program refuses a size.
fn size(program: &str, bytes: u32, iterations: u32) -> String {
    if program.starts_with("ib_atomic") {
        format!("-n {iterations}")
    } else {
        format!("-s {bytes} -n {iterations}")
    }
}
