//! `cx3`: emulated ConnectX-3 cards for QEMU. One process and one event loop for many cards.
#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use clap::Parser;
use connectx3::options;
use connectx3::server::{Network, Server};
use connectx3::trace::{Observer, Record, Sink, Watch};
use netfault::Faults;
use netfault::pcap::PcapWriter;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Serves emulated ConnectX-3 cards to QEMU >= 10.1 (`-device vfio-user-pci`), whose guests need memory that is shared.
/// Their cables go to one switch in this process, or to ports of a fabric outside
#[derive(Parser)]
struct Options {
    /// A card: the socket where QEMU connects to, then what the card is: profile=NAME, mac=ADDRESS, and fabric=SOCKET
    /// (fabric2= for a second port) for a cable to a fabric's port rather than to the switch. fails=FRAMES has it fail after so
    /// many sent frames, until it is reset; dies=FRAMES for good
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
    /// Writes every command, doorbell, event and completion to a file, decoded, one a line
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Writes to a file, at the end, what kinds of those there were and which of their values were always the same
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Prints at the end how many of each kind there were; SIGUSR1 prints it at any time
    #[arg(long)]
    counts: bool,
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
        options::card(card, index)
    });
    let cards = cards.collect::<Result<Vec<_>>>()?;
    let capture = options.capture.map(|path| {
        PcapWriter::new(BufWriter::new(create(&path)?))
            .with_context(|| format!("cannot write {}", path.display()))
    });
    let faults = options.faults.filter(|faults| !faults.is_none());
    let network = Network { faults, seed: options.seed, capture: capture.transpose()? };
    let trace = options.trace.as_deref().map(create).transpose()?;
    let trace = trace.map(|file| Arc::new(Mutex::new(BufWriter::new(file))));
    let record = options.record.is_some().then(Arc::<Mutex<Record>>::default);
    let watch = Watch { trace: trace.clone().map(|trace| -> Sink { trace }), record: record.clone() };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot watch for signals")?;
    }
    let asked = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGUSR1, Arc::clone(&asked))
        .context("cannot watch for signals")?;
    let mut server = Server::new(cards, network, watch)?;
    let observers = server.observers();
    server.run(|| {
        if asked.swap(false, Ordering::Relaxed) {
            print_counts(&observers);
        }
        stop.load(Ordering::Relaxed)
    })?;
    if options.counts {
        print_counts(&observers);
    }
    if let Some(trace) = trace {
        trace
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .flush()
            .context("the trace cannot be written")?;
    }
    if let (Some(path), Some(record)) = (&options.record, record) {
        let record = record.lock().unwrap_or_else(PoisonError::into_inner);
        write!(create(path)?, "{record}").with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

fn print_counts(observers: &[Arc<Observer>]) {
    for (card, what, count) in observers.iter().flat_map(|observer| observer.counts()) {
        eprintln!("{card}: {count} {what}");
    }
}
