//! `cx3`: emulated ConnectX-3 cards for QEMU. One process and one event loop for many cards.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use clap::Parser;
use connectx3::device::Card;
use connectx3::options;
use connectx3::server::{Network, Server};
use netfault::Faults;
use netfault::pcap::PcapWriter;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Serves emulated ConnectX-3 cards to QEMU >= 10.1 (`-device vfio-user-pci`), whose guests need memory that is shared.
/// Their cables go to one switch in this process, or to ports of a fabric outside
#[derive(Parser)]
struct Options {
    /// A card: the socket where QEMU connects to, then what the card is: profile=NAME, mac=ADDRESS, and fabric=SOCKET
    /// (fabric2= for a second port) for a cable to a fabric's port rather than to the switch
    #[arg(required = true, value_name = "SOCKET[,KEY=VALUE...]")]
    cards: Vec<String>,
    /// What the switch does to frames, such as loss=0.01,reorder=0.001
    #[arg(long, value_name = "KEY=VALUE,...")]
    faults: Option<Faults>,
    /// Which frames the faults meet
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes the switch's frames to a file in pcap format
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
}

fn main() -> ExitCode {
    env_logger::init();
    match run(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<()> {
    let cards = options.cards.iter().enumerate().map(|(index, card)| {
        let index = u8::try_from(index).context("a process serves at most 256 cards")?;
        let (slot, profile) = options::card(card, index)?;
        Ok((slot, Card::new(profile)))
    });
    let cards = cards.collect::<Result<Vec<_>>>()?;
    let capture = options.capture.map(|path| {
        let file = File::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
        PcapWriter::new(BufWriter::new(file)).with_context(|| format!("cannot write {}", path.display()))
    });
    let faults = options.faults.filter(|faults| !faults.is_none());
    let network = Network { faults, seed: options.seed, capture: capture.transpose()? };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot watch for signals")?;
    }
    Server::new(cards, network)?.run(|| stop.load(Ordering::Relaxed))
}
