//! `cx3`: emulated ConnectX-3 cards for QEMU. One process with one event loop serves many cards.
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

/// Serves emulated ConnectX-3 cards to QEMU >= 10.1 (`-device vfio-user-pci`), whose guests need shared
/// memory. The cards' cables go to one switch in this process, or to ports of a fabric in another process
#[derive(Parser)]
#[command(version)]
struct Options {
    /// A card: the socket to which QEMU connects, then its properties: profile=NAME, mac=ADDRESS, and
    /// fabric=SOCKET (fabric2=SOCKET for a second port) to connect a port to a fabric instead of the switch.
    /// With fails=FRAMES the card fails after that number of sent frames, until it is reset; with dies=FRAMES
    /// it fails permanently
    #[arg(required = true, value_name = "SOCKET[,KEY=VALUE...]")]
    cards: Vec<String>,
    /// Faults that the switch injects into frames, such as loss=0.01,reorder=0.001
    #[arg(long, value_name = "KEY=VALUE,...")]
    faults: Option<Faults>,
    /// Seed of the generator that selects the frames to be faulted
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Writes the switch's frames to a file in pcap format
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,
    /// Writes every command, doorbell, event and completion to a file, decoded, one per line
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// At exit, writes a summary of the trace to a file: each kind of access, and the fields whose values
    /// never changed
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// At exit and on SIGUSR1, prints the number of accesses of each kind
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
