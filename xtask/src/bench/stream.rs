//! `cargo xtask bench stream`: compares the stream of a job's input to a node with the same bytes in clear
//! over the same TCP.
//!
//! The job is a word count as users run it: its client sends the input to the manager, which cuts it and
//! sends it on, in each step over Noise. In clear, a server of this process sends the bytes to the kernel's
//! self-test `tcp`, which drops them. Both use the kernel's TCP/IP with the same buffers, in machines of the
//! same kind, through QEMU's user-mode network.

use super::host::Host;
use super::lab::Lab;
use super::stats::{median, median_of};
use super::table::{Table, maybe, number};
use super::target::{self, Bound, Target};
use super::words::{Run, long_text};
use crate::output;
use anyhow::{Context, Result, ensure};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use lab::appliances::{Programs, SUCCESS, reason};
use lab::{image, interrupt, ui};
use qemu::vm::{Accel, EventKind, Machine, Nic, Vm, VmSpec};
use serde::Serialize;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// The greatest accepted time of streaming, relative to the bytes in clear.
const TARGET_RATIO: f64 = 2.0;
/// The greatest accepted time of the whole job, relative to the programs of `--against`.
const TARGET_AGAINST: f64 = 0.6;
/// The time limit of one machine.
const LIMIT: Duration = Duration::from_secs(120);
/// Memory of a machine in MiB, and the receive window of a node with that memory in KiB.
const MEMORY_MIB: u32 = 256;
const WINDOW_KIB: u32 = 1024;
/// The period of the test bytes: the self-test checks that byte i is i mod this.
const PERIOD: usize = 251;

/// The input, the number of rounds, and the destination of the figures.
#[derive(Args, Clone, Debug)]
pub(super) struct Options {
    /// Number of measurements of each side, in turn; medians are printed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = RangedU64ValueParser::<u32>::new().range(1..=1000))]
    runs: u32,
    /// Least length of the input in MB: a text is repeated
    #[arg(long, value_name = "MB", default_value_t = 10, value_parser = RangedU64ValueParser::<u64>::new().range(1..=1000))]
    megabytes: u64,
    /// Directory with another kernel (`ferrolite.elf`) and manager (`ferrolite`), whose jobs are measured
    /// in turn too
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
    /// File for the figures, as one JSON object
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fails if a target is missed
    #[arg(long)]
    strict: bool,
}

/// The durations of one round, in seconds.
#[derive(Debug, Serialize)]
struct Round {
    /// From the first byte in clear to the last.
    clear_s: f64,
    /// From the first message of the input on the node to the last.
    input_s: f64,
    /// The whole job, as its client sees it.
    job_s: f64,
    /// The duration of the whole job with the other build of the programs, in seconds.
    against_s: Option<f64>,
}

#[derive(Serialize)]
struct Figures {
    #[serde(flatten)]
    host: Host,
    input_bytes: u64,
    rounds: Vec<Round>,
    targets: Vec<Target>,
}

/// Measures all sides in turn.
pub(super) fn bench(options: &Options) -> Result<()> {
    let host = Host::ready(options.strict)?;
    let json = options.json.as_deref().map(|path| output::beside("figures", path)).transpose()?;
    interrupt::watch()?;
    let lab = Lab::new()?;
    let input = long_text(&lab, options.megabytes * 1_000_000)?;
    let bytes = std::fs::metadata(&input)?.len();
    let mut rounds = Vec::new();
    for n in 1..=options.runs {
        interrupt::check()?;
        let step = format!("streaming {}: {n} of {}", ui::bytes(bytes), options.runs);
        rounds.push(ui::step(&step, || round(&lab, options.against.as_deref(), &input, bytes))?);
    }
    let targets = targets(&rounds);
    println!("\n{}\n{}", table(bytes, &rounds).text(), target::table(&targets, &[]).text());
    let figures = Figures { host, input_bytes: bytes, rounds, targets };
    if let Some((file, path)) = json {
        super::write_json(&figures, file, &path)?;
    }
    target::judge(options.strict, &figures.targets, &[])
}

fn round(lab: &Lab, against: Option<&Path>, input: &Path, bytes: u64) -> Result<Round> {
    let clear_s = in_clear(lab, bytes).context("in clear")?;
    let memory = MEMORY_MIB.to_string();
    let args = ["--machine", "q35", "--nodes", "1", "--cpus", "1", "--memory", &memory];
    let job = |programs: &Programs| -> Result<Run> {
        let job = lab.job_of(programs, &args, input).context("word count")?;
        Run::read(&job.figures).context("the figures of a word count lack something")
    };
    let ours = job(&lab.programs)?;
    let against_s = against.map(|dir| job(&Programs::given(dir)?).map(|run| run.elapsed_s)).transpose()?;
    let input_s = ours.input_s.context("the node does not say how long its input took")?;
    Ok(Round { clear_s, input_s, job_s: ours.elapsed_s, against_s })
}

/// Returns the time that the self-test `tcp` takes for the bytes, in seconds.
fn in_clear(lab: &Lab, bytes: u64) -> Result<f64> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || serve(&listener, bytes));
    let spec = VmSpec {
        name: "clear".into(),
        index: 0,
        machine: Machine::Q35,
        accel: Accel::Tcg,
        cpus: 1,
        memory_mb: MEMORY_MIB,
        kernel: image::build_for_tests()?.elf,
        cmdline: format!("selftest=tcp manager=10.0.2.2:{port} tcp_kb={WINDOW_KIB}"),
        fw_cfg: Vec::new(),
        initrd: None,
        nics: vec![Nic::Management],
        boots_again: false,
    };
    let (sender, events) = channel();
    let vm = Vm::start(&lab.qemu, spec, None, sender)?;
    let deadline = Instant::now() + LIMIT;
    let mut took = None;
    loop {
        let event = events.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        match event.context("the machine did not end in time")?.kind {
            EventKind::Line(line) => took = took.or(seconds(&line, bytes)),
            EventKind::RestartedUnderTcg => {}
            EventKind::Exited(exit) => {
                ensure!(exit == SUCCESS, "{exit}: {}", reason(&vm.tail()).unwrap_or("it said nothing"));
                return took.context("it printed no figure");
            }
        }
    }
}

/// Parses `selftest tcp: 13213236 bytes in 123456 us, 0 wrong`, which must be about this number of bytes.
fn seconds(line: &str, bytes: u64) -> Option<f64> {
    let (got, rest) = line.strip_prefix("selftest tcp: ")?.split_once(" bytes in ")?;
    let us: f64 = rest.strip_suffix(" us, 0 wrong")?.parse().ok()?;
    (got.parse() == Ok(bytes)).then_some(us / 1e6)
}

/// Sends the bytes to the first client, then echoes until it closes the connection. Errors show at the
/// machine.
fn serve(listener: &TcpListener, bytes: u64) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.write_all(&bytes.to_be_bytes())?;
    let pattern: Vec<u8> = (0..PERIOD * 512).map(|i| (i % PERIOD) as u8).collect();
    let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
    while left > 0 {
        let part = pattern.get(..left).unwrap_or(&pattern);
        stream.write_all(part)?;
        left -= part.len();
    }
    echo(&mut stream)
}

fn echo(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => stream.write_all(buffer.get(..count).unwrap_or_default())?,
        }
    }
}

/// Returns the medians of the rounds' ratios.
fn targets(rounds: &[Round]) -> Vec<Target> {
    let ratio = median_of(rounds, |round| Some(round.input_s / round.clear_s));
    let mut targets =
        vec![Target::new("a job's input, in times of clear", ratio, "", Bound::AtMost(TARGET_RATIO))];
    let against: Vec<f64> = rounds.iter().filter_map(|round| Some(round.job_s / round.against_s?)).collect();
    if !against.is_empty() {
        let bound = Bound::AtMost(TARGET_AGAINST);
        targets.push(Target::new(
            "the whole job, in times of the other programs",
            median(against),
            "",
            bound,
        ));
    }
    targets
}

fn table(bytes: u64, rounds: &[Round]) -> Table {
    let mut table = Table::new(
        "Streaming to a node",
        format!(
            "{} to one node, q35, 1 processor, TCG, in turn; medians; the ratios of the rounds are in the column behind",
            ui::bytes(bytes)
        ),
        &["what", "s", "MB/s", "to clear, each round"],
    );
    let mut row = |what: &str, figure: &dyn Fn(&Round) -> Option<f64>| {
        let Some(middle) = median_of(rounds, figure) else { return };
        let ratios: Vec<_> =
            rounds.iter().map(|r| figure(r).map_or("-".into(), |s| number(s / r.clear_s))).collect();
        table.row([what.into(), number(middle), maybe(Some(bytes as f64 / middle / 1e6)), ratios.join(" ")]);
    };
    row("the bytes in clear", &|round| Some(round.clear_s));
    row("a job's input (client, manager, node; encrypted)", &|round| Some(round.input_s));
    row("the whole job", &|round| Some(round.job_s));
    row("the whole job, other programs", &|round| round.against_s);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_the_selftest_is_read() {
        let line = "selftest tcp: 13213236 bytes in 123456 us, 0 wrong";
        assert_eq!(seconds(line, 13_213_236), Some(0.123_456));
        assert_eq!(seconds(line, 5), None);
        assert_eq!(seconds("selftest tcp: 5 bytes in 7 us, 1 wrong", 5), None);
    }

    #[test]
    fn ratios_are_those_of_rounds() {
        let round = |clear_s, input_s, job_s, against_s| Round { clear_s, input_s, job_s, against_s };
        let rounds = [
            round(1.0, 1.5, 3.0, Some(6.0)),
            round(2.0, 8.0, 9.0, Some(10.0)),
            round(1.0, 1.7, 1.0, Some(10.0)),
        ];
        let figures = |rounds: &[Round]| targets(rounds).iter().map(|t| t.figure).collect::<Vec<_>>();
        assert_eq!(figures(&rounds), [Some(1.7), Some(0.5)]);
        assert_eq!(figures(&[round(1.0, 3.0, 1.0, None)]), [Some(3.0)]);
        assert!(!targets(&[round(1.0, 3.0, 1.0, None)])[0].met);
    }

    #[test]
    fn the_server_sends_the_bytes_and_echoes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = std::thread::spawn(move || serve(&listener, 200_000));
        let mut all = vec![0; 200_008];
        stream.read_exact(&mut all).unwrap();
        assert_eq!(all[..8], 200_000u64.to_be_bytes());
        assert!(all[8..].iter().enumerate().all(|(i, byte)| usize::from(*byte) == i % PERIOD));
        stream.write_all(b"echo").unwrap();
        let mut back = [0; 4];
        stream.read_exact(&mut back).unwrap();
        assert_eq!(&back, b"echo");
        drop(stream);
        server.join().unwrap().unwrap();
    }
}
