//! `cx3`: emulated ConnectX-3 cards for QEMU. One process and one event loop for many cards.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use clap::Parser;
use connectx3::device::{Card, Profile};
use connectx3::server::{Server, Slot};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use verbs::MacAddr;

/// Serves emulated ConnectX-3 Pro cards to QEMU >= 10.1 (`-device vfio-user-pci`), whose guests need memory that is shared
#[derive(Parser)]
struct Options {
    /// A card: the socket where QEMU connects to, and after a comma the socket of the fabric's port that its cable is in
    #[arg(required = true, value_name = "SOCKET[,FABRIC]")]
    cards: Vec<String>,
    /// The last byte of the first card's Ethernet address; the others count up
    #[arg(long, default_value_t = 1)]
    first: u8,
}

fn main() -> ExitCode {
    env_logger::init();
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<()> {
    let cards = options.cards.iter().zip(0u8..).map(|(card, n)| {
        let (client, fabric) = match card.split_once(',') {
            Some((client, fabric)) => (client, Some(fabric.into())),
            None => (card.as_str(), None),
        };
        let mac = MacAddr([0x00, 0x02, 0xc9, 0x00, 0x00, options.first.wrapping_add(n)]);
        (Slot { client: client.into(), fabric }, Card::new(Profile::pro(mac)))
    });
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot watch for signals")?;
    }
    Server::new(cards.collect())?.run(|| stop.load(Ordering::Relaxed))
}
