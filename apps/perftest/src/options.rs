//! The command line: a program's name and the perftest options that this implementation supports.

use alloc::borrow::ToOwned;
use alloc::format;
use alloc::string::String;
use core::fmt;
use core::net::Ipv4Addr;
use core::time::Duration;
use verbs::PathMtu;

/// The TCP port of the exchange.
const PORT: u16 = 18515;
/// The largest message, and the last size of `-a`: 8 MiB.
pub(crate) const MAX_SIZE: u32 = 8 << 20;
/// The time of a message and the bytes per second of a slow link, and the time that is added to every test.
const SLOW_MESSAGE: Duration = Duration::from_millis(10);
const SLOW_RATE: f64 = 1e6;
const SLACK: Duration = Duration::from_secs(60);
/// The longest time that a test may take.
const LONGEST: Duration = Duration::from_secs(3600);
/// Larger messages are signaled one by one unless `-Q` is given.
const MODERATED: u32 = 8192;

/// The kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// SEND.
    Send,
    /// An atomic.
    Atomic,
}

/// The measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The time that one operation takes.
    Latency,
    /// The number of operations per second.
    Bandwidth,
}

/// One of the eight programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// The kind of operation.
    pub verb: Verb,
    /// The measured quantity.
    pub figure: Figure,
}

/// The kind of atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// A fetch-and-add of 1.
    FetchAdd,
    /// A compare-and-swap that compares with 0 and stores 0.
    CompareSwap,
}

/// The options of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The program.
    pub program: Program,
    /// The server to connect to; `None` if this side is the server.
    pub server: Option<Ipv4Addr>,
    /// The only client that a server serves; `None` if the caller decides.
    pub peer: Option<Ipv4Addr>,
    /// TCP port of the exchange.
    pub port: u16,
    /// The length of a message in bytes; `None` for 2, 4, 8 and so on up to 8 MiB.
    pub size: Option<u32>,
    /// Operations on each queue pair.
    pub iterations: u32,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// The greatest path MTU.
    pub mtu: Option<PathMtu>,
    /// True if both sides send at once.
    pub bidirectional: bool,
    /// Sends outstanding on a queue pair.
    pub tx_depth: u32,
    /// Receives outstanding on a queue pair.
    pub rx_depth: u32,
    /// Messages of at most this many bytes are sent inline.
    pub inline: u32,
    /// The atomic.
    pub atomic: Atomic,
    /// The acknowledgement timeout is 4.096 us times 2 to this power.
    pub qp_timeout: u8,
    /// READs and atomics outstanding; `None` for the RNIC's maximum.
    pub outstanding: Option<u8>,
    /// The number of sends per signaled send (`-Q`).
    pub moderation: u32,
    /// True if the peak bandwidth is computed.
    pub peak: bool,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match self.verb {
            Verb::Write => "write",
            Verb::Read => "read",
            Verb::Send => "send",
            Verb::Atomic => "atomic",
        };
        let figure = match self.figure {
            Figure::Latency => "lat",
            Figure::Bandwidth => "bw",
        };
        write!(f, "ib_{verb}_{figure}")
    }
}

impl Program {
    /// Returns the program with the given name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let (verb, figure) = name.strip_prefix("ib_")?.split_once('_')?;
        let verb = match verb {
            "write" => Verb::Write,
            "read" => Verb::Read,
            "send" => Verb::Send,
            "atomic" => Verb::Atomic,
            _ => return None,
        };
        let figure = match figure {
            "lat" => Figure::Latency,
            "bw" => Figure::Bandwidth,
            _ => return None,
        };
        Some(Self { verb, figure })
    }

    /// Returns true if messages go both ways even without `-b`.
    #[must_use]
    pub fn ping_pong(self) -> bool {
        self.figure == Figure::Latency && matches!(self.verb, Verb::Write | Verb::Send)
    }

    /// Returns the default of `-n`.
    fn iterations(self) -> u32 {
        if self.figure == Figure::Bandwidth && self.verb == Verb::Write { 5000 } else { 1000 }
    }
}

/// Long names of options, with the equivalent short ones.
const LONG: [(&str, char); 21] = [
    ("port", 'p'),
    ("ib-dev", 'd'),
    ("ib-port", 'i'),
    ("mtu", 'm'),
    ("size", 's'),
    ("iters", 'n'),
    ("tx-depth", 't'),
    ("rx-depth", 'r'),
    ("qp-timeout", 'u'),
    ("gid-index", 'x'),
    ("all", 'a'),
    ("CPU-freq", 'F'),
    ("connection", 'c'),
    ("qp", 'q'),
    ("inline_size", 'I'),
    ("outs", 'o'),
    ("bidirectional", 'b'),
    ("cq-mod", 'Q'),
    ("noPeak", 'N'),
    ("atomic_type", 'A'),
    // This server's own option.
    ("peer", PEER),
];
/// The key of `--peer`, which has no short form.
const PEER: char = '\0';
/// Options without a value.
const FLAGS: &str = "aFbN";

/// The words of a command line, before defaults and checks that depend on several of them.
#[derive(Default)]
struct Words {
    server: Option<Ipv4Addr>,
    peer: Option<Ipv4Addr>,
    port: Option<u16>,
    size: Option<u32>,
    all: bool,
    iterations: Option<u32>,
    queue_pairs: Option<u32>,
    mtu: Option<PathMtu>,
    bidirectional: bool,
    tx_depth: Option<u32>,
    rx_depth: Option<u32>,
    inline: Option<u32>,
    atomic: Option<Atomic>,
    qp_timeout: Option<u8>,
    outstanding: Option<u8>,
    moderation: Option<u32>,
    no_peak: bool,
}

impl Options {
    /// Parses a command line whose first word is the program. The error is one line for the user.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut words = words.into_iter();
        let name = words.next().ok_or("no program: want ib_write_lat, ib_read_bw or such")?;
        let program = Program::named(name).ok_or_else(|| {
            format!("unknown program {name:?}: want ib_{{write,read,send,atomic}}_{{lat,bw}}")
        })?;
        let mut said = Words::default();
        while let Some(word) = words.next() {
            if let Some(long) = word.strip_prefix("--") {
                let (name, value) = long.split_once('=').map_or((long, None), |(n, v)| (n, Some(v)));
                let Some((_, option)) = LONG.iter().find(|(known, _)| *known == name) else {
                    return Err(format!("option --{name} is not known here"));
                };
                match (FLAGS.contains(*option), value) {
                    (true, None) => said.flag(*option, program)?,
                    (true, Some(_)) => return Err(format!("option --{name} has no value")),
                    (false, Some(value)) => said.value(*option, value, program)?,
                    (false, None) => {
                        let value = words.next().ok_or_else(|| format!("option --{name} needs a value"))?;
                        said.value(*option, value, program)?;
                    }
                }
            } else if let Some(cluster) = word.strip_prefix('-').filter(|c| !c.is_empty()) {
                let mut rest = cluster.chars();
                while let Some(option) = rest.next() {
                    if !LONG.iter().any(|(_, short)| *short == option) {
                        return Err(format!("option -{option} is not known here"));
                    }
                    if FLAGS.contains(option) {
                        said.flag(option, program)?;
                        continue;
                    }
                    let value = match rest.as_str() {
                        "" => words.next().ok_or_else(|| format!("option -{option} needs a value"))?,
                        joined => joined,
                    };
                    said.value(option, value, program)?;
                    break;
                }
            } else {
                let address =
                    word.parse().map_err(|_| format!("{word:?} is neither an option nor an IPv4 address"))?;
                if said.server.replace(address).is_some() {
                    return Err("two servers are given".to_owned());
                }
            }
        }
        said.complete(program)
    }
}

impl Words {
    fn flag(&mut self, option: char, program: Program) -> Result<(), String> {
        let latency = program.figure == Figure::Latency;
        match option {
            'a' => self.all = true,
            'b' if latency => return Err("-b applies to the bandwidth tests only".to_owned()),
            'b' => self.bidirectional = true,
            'N' if latency => return Err("-N applies to the bandwidth tests only".to_owned()),
            'N' => self.no_peak = true,
            // -F: the appliance has no frequency governor to ignore.
            _ => {}
        }
        Ok(())
    }

    fn value(&mut self, option: char, value: &str, program: Program) -> Result<(), String> {
        let verb = program.verb;
        match option {
            PEER => {
                let address = value.parse().map_err(|_| format!("--peer {value}: want an IPv4 address"))?;
                self.peer = Some(address);
            }
            'p' => self.port = Some(number(option, value, 1, u16::MAX.into())? as u16),
            'm' => {
                let bytes = number(option, value, 256, 4096)? as usize;
                let mtu = PathMtu::ALL.into_iter().find(|mtu| mtu.bytes() == bytes);
                self.mtu = Some(mtu.ok_or("-m: want 256, 512, 1024, 2048 or 4096")?);
            }
            's' => self.size = Some(size(value)?),
            'n' => self.iterations = Some(number(option, value, 5, 100_000_000)?),
            't' => self.tx_depth = Some(number(option, value, 1, 15_000)?),
            'r' if verb != Verb::Send => return Err("-r applies to the send tests only".to_owned()),
            'r' => self.rx_depth = Some(number(option, value, 1, 16_384)?),
            'u' => self.qp_timeout = Some(number(option, value, 1, 31)? as u8),
            'c' if value == "RC" => {}
            'c' => return Err(format!("-c {value}: only RC is supported")),
            'q' if program.figure == Figure::Latency => {
                return Err("-q applies to the bandwidth tests only".to_owned());
            }
            'q' => self.queue_pairs = Some(number(option, value, 1, 16_384)?),
            'I' if matches!(verb, Verb::Read | Verb::Atomic) => {
                return Err("-I applies to the write and send tests only".to_owned());
            }
            'I' => self.inline = Some(number(option, value, 0, 912)?),
            'o' if matches!(verb, Verb::Write | Verb::Send) => {
                return Err("-o applies to the read and atomic tests only".to_owned());
            }
            'o' => self.outstanding = Some(number(option, value, 1, 255)? as u8),
            'Q' => self.moderation = Some(number(option, value, 1, 1024)?),
            'A' if verb != Verb::Atomic => return Err("-A applies to the atomic tests only".to_owned()),
            'A' => {
                self.atomic = Some(match value {
                    "FETCH_AND_ADD" => Atomic::FetchAdd,
                    "CMP_AND_SWAP" => Atomic::CompareSwap,
                    _ => return Err(format!("-A {value}: want FETCH_AND_ADD or CMP_AND_SWAP")),
                });
            }
            // -d, -i, -x: the appliance has one device with one port and one GID.
            _ => {}
        }
        Ok(())
    }

    /// Fills in defaults, and checks options that depend on each other.
    fn complete(self, program: Program) -> Result<Options, String> {
        let atomic = program.verb == Verb::Atomic;
        if atomic && self.size.is_some_and(|size| size != 8) {
            return Err("-s: an atomic has 8 bytes".to_owned());
        }
        let default = match (atomic, program.figure) {
            (true, _) => 8,
            (_, Figure::Latency) => 2,
            (_, Figure::Bandwidth) => 65536,
        };
        // perftest's atomic programs accept -a and run their only size.
        let size = (!self.all || atomic).then(|| self.size.unwrap_or(default));
        let iterations = self.iterations.unwrap_or_else(|| program.iterations());
        let depth = if program.figure == Figure::Latency { 1 } else { 128 };
        let tx_depth = self.tx_depth.unwrap_or(depth).min(iterations);
        let rx_depth = if program.verb == Verb::Send { self.rx_depth.unwrap_or(512) } else { 1 };
        let usual = if size.is_some_and(|size| size > MODERATED) { 1 } else { 100 };
        Ok(Options {
            program,
            server: self.server,
            peer: self.peer,
            port: self.port.unwrap_or(PORT),
            size,
            iterations,
            queue_pairs: self.queue_pairs.unwrap_or(1),
            mtu: self.mtu,
            bidirectional: self.bidirectional,
            tx_depth,
            rx_depth: rx_depth.min(iterations),
            inline: self.inline.unwrap_or(0),
            atomic: self.atomic.unwrap_or(Atomic::FetchAdd),
            qp_timeout: self.qp_timeout.unwrap_or(14),
            outstanding: self.outstanding,
            moderation: self.moderation.unwrap_or(usual).min(tx_depth),
            peak: !self.no_peak,
        })
    }
}

impl Options {
    /// Returns the longest time that the peer may take for the whole test: the time over a slow link, at most
    /// an hour. A silent peer does not hold this side longer.
    #[must_use]
    pub fn longest(&self) -> Duration {
        let sizes =
            self.size.map_or((u64::from(MAX_SIZE.ilog2()), 2 * u64::from(MAX_SIZE)), |size| (1, size.into()));
        let each = u64::from(self.iterations) * u64::from(self.queue_pairs);
        let (messages, bytes) = (each.saturating_mul(sizes.0), each.saturating_mul(sizes.1));
        let test = (SLOW_MESSAGE.as_secs_f64() * messages as f64) + bytes as f64 / SLOW_RATE;
        (SLACK + Duration::try_from_secs_f64(test).unwrap_or(LONGEST)).min(LONGEST)
    }
}

fn number(option: char, value: &str, least: u32, most: u32) -> Result<u32, String> {
    let parsed = value.parse().ok().filter(|n| (least..=most).contains(n));
    parsed.ok_or_else(|| format!("-{option} {value}: want a number from {least} to {most}"))
}

/// Parses a number of bytes, with `K` or `M` for units of 2^10 or 2^20.
fn size(value: &str) -> Result<u32, String> {
    let (digits, unit) = match value.strip_suffix(['K', 'M']) {
        Some(digits) if value.ends_with('K') => (digits, 1 << 10),
        Some(digits) => (digits, 1 << 20),
        None => (value, 1),
    };
    let bytes = digits.parse::<u32>().ok().and_then(|n| n.checked_mul(unit));
    let bytes = bytes.filter(|bytes| (1..=MAX_SIZE).contains(bytes));
    bytes.ok_or_else(|| format!("-s {value}: want 1 to {MAX_SIZE} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        Options::parse(line.split_whitespace())
    }

    #[test]
    fn defaults_are_perftests() {
        let lat = parse("ib_write_lat").unwrap();
        assert_eq!((lat.size, lat.iterations, lat.tx_depth, lat.moderation), (Some(2), 1000, 1, 1));
        assert_eq!((lat.server, lat.port, lat.queue_pairs, lat.qp_timeout), (None, 18515, 1, 14));
        let bw = parse("ib_write_bw").unwrap();
        assert_eq!((bw.size, bw.iterations, bw.tx_depth, bw.moderation), (Some(65536), 5000, 128, 1));
        assert_eq!(parse("ib_write_bw -s 64").unwrap().moderation, 100);
        assert_eq!(parse("ib_send_bw").unwrap().rx_depth, 512);
        assert_eq!(parse("ib_atomic_bw").unwrap().size, Some(8));
    }

    #[test]
    fn options_have_all_of_getopts_forms() {
        let all = parse("ib_send_bw -aFb -q4 -n 100 --mtu=1024 --rx-depth 64 -x 1 -d rxe0 10.0.0.1").unwrap();
        assert_eq!((all.size, all.queue_pairs, all.iterations, all.rx_depth), (None, 4, 100, 64));
        assert_eq!((all.mtu, all.server), (Some(PathMtu::B1024), Some(Ipv4Addr::new(10, 0, 0, 1))));
        assert!(all.bidirectional);
        assert_eq!(parse("ib_write_bw -s 8M").unwrap().size, Some(8 << 20));
        assert_eq!(parse("ib_write_bw -s 64K").unwrap().size, Some(65536));
    }

    #[test]
    fn a_test_has_as_long_as_its_size_takes() {
        let seconds = |line: &str| parse(line).unwrap().longest().as_secs();
        assert_eq!(seconds("ib_write_lat -s 8 -n 1000"), 70);
        assert_eq!(seconds("ib_write_bw -s 1000000 -n 100"), 161);
        assert_eq!(seconds("ib_read_bw -a -n 5"), 60 + 1 + 84);
        assert_eq!(seconds("ib_read_bw -n 100000000 -q 16384"), 3600);
        assert_eq!(parse("ib_write_lat --peer=10.0.0.7").unwrap().peer, Some(Ipv4Addr::new(10, 0, 0, 7)));
    }

    #[test]
    fn what_is_wrong_is_said_in_a_line() {
        for (line, part) in [
            ("", "no program"),
            ("ib_write", "unknown program"),
            ("ib_write_lat -z", "-z is not known"),
            ("ib_write_lat --report_gbits", "--report_gbits is not known"),
            ("ib_write_lat -s", "-s needs a value"),
            ("ib_write_lat -s 0", "want 1 to"),
            ("ib_write_lat -s 9M", "want 1 to"),
            ("ib_write_lat -s 99999999M", "want 1 to"),
            ("ib_write_lat -n 4", "from 5 to"),
            ("ib_write_lat -b", "bandwidth"),
            ("ib_write_lat -q 2", "bandwidth"),
            ("ib_write_lat -c UD", "only RC"),
            ("ib_write_lat -m 1500", "want 256"),
            ("ib_read_lat -I 8", "write and send"),
            ("ib_atomic_lat -s 16", "8 bytes"),
            ("ib_atomic_lat -A NAND", "FETCH_AND_ADD"),
            ("ib_write_lat host", "neither an option"),
            ("ib_write_lat 10.0.0.1 10.0.0.2", "two servers"),
            ("ib_write_lat --all=1", "has no value"),
            ("ib_write_lat --peer host", "want an IPv4 address"),
        ] {
            let error = parse(line).unwrap_err();
            assert!(error.contains(part) && !error.contains('\n'), "`{line}`: {error}");
        }
    }
}
