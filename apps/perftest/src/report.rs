//! The output of a test: perftest's tables, and a JSON line.

use crate::buffer::Digest;
use crate::exchange::Agreed;
use crate::figures::Latency;
use crate::message::{Bandwidth, Keys};
use crate::options::{Atomic, Figure, Options, Verb};
use crate::session::link;
use alloc::format;
use alloc::string::String;
use core::fmt::Write as _;
use verbs::{Attributes, LinkKind};

const LINE: &str =
    "---------------------------------------------------------------------------------------\n";
const LATENCY_TITLES: &str = " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    \
    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]\n";
const BANDWIDTH_TITLES: &str =
    " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n";

/// The result for one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Row {
    /// The result of a latency test.
    Latency {
        /// The length of a message, in bytes.
        size: u32,
        /// The figures.
        figures: Latency,
    },
    /// The result of a bandwidth test: of both sides, if it is bidirectional.
    Bandwidth(Bandwidth),
}

/// Digests of this side's buffers at the end, over the messages of the last size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The digest of the memory that this side's operations name: the data that they send, or the buffer
    /// into which they read.
    pub near: Option<Digest>,
    /// The bytes that the peer's operations named: written, received, or read.
    pub far: Option<Digest>,
    /// The words that this side's atomics must have left on the peer.
    pub left: Option<Digest>,
}

/// The result of a test.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The text that perftest prints.
    pub text: String,
    /// The results, in order of size.
    pub rows: alloc::vec::Vec<Row>,
    /// The digests of the buffers.
    pub content: Content,
    /// One JSON object on a line.
    pub json: String,
}

/// Returns the text that is printed before the measurement.
pub(crate) fn heading(
    options: &Options,
    agreed: &Agreed,
    mine: &[Keys],
    peers: &[Keys],
    attributes: &Attributes,
) -> String {
    let program = options.program;
    let verb = match program.verb {
        Verb::Write => "RDMA_Write",
        Verb::Read => "RDMA_Read",
        Verb::Send => "Send",
        Verb::Atomic => match options.atomic {
            Atomic::FetchAdd => "Atomic FETCH_AND_ADD",
            Atomic::CompareSwap => "Atomic CMP_AND_SWAP",
        },
    };
    let figure = match program.figure {
        Figure::Latency => "Latency",
        Figure::Bandwidth if options.bidirectional => "Bidirectional BW",
        Figure::Bandwidth => "BW",
    };
    let mut text = format!("{LINE}                    {verb} {figure} Test\n");
    let mut line = |name: &str, value: &dyn core::fmt::Display| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, " {name:<16}: {value}");
    };
    line("Device", &attributes.driver);
    line("Number of qps", &options.queue_pairs);
    line("Connection type", &"RC");
    line("TX depth", &options.tx_depth);
    if program.verb == Verb::Send {
        line("RX depth", &options.rx_depth);
    }
    if program.figure == Figure::Bandwidth {
        line("CQ Moderation", &options.moderation);
    }
    line("Mtu", &format_args!("{}[B]", agreed.mtu.bytes()));
    line("Link type", &if link(attributes) == LinkKind::InfiniBand { "IB" } else { "Ethernet" });
    if matches!(program.verb, Verb::Write | Verb::Send) {
        line("Max inline data", &format_args!("{}[B]", options.inline));
    }
    text.push_str(LINE);
    for (side, keys) in [("local", mine), ("remote", peers)] {
        for keys in keys {
            // The key is a capability and must never appear in a log.
            let _ = writeln!(
                text,
                " {side} address: LID {:#04x} QPN {:#06x} PSN {:#08x} VAddr {:#018x}",
                keys.lid,
                keys.qp.get(),
                keys.psn.get(),
                keys.addr.0
            );
            if let Some(gid) = keys.gid {
                let _ = writeln!(text, " GID: {gid}");
            }
        }
    }
    text
}

/// Returns the table of results as text.
#[must_use]
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::from(LINE);
    text.push_str(match rows.first() {
        Some(Row::Latency { .. }) => LATENCY_TITLES,
        Some(Row::Bandwidth(_)) => BANDWIDTH_TITLES,
        None => "",
    });
    for row in rows {
        let _ = match row {
            Row::Latency { size, figures: f } => writeln!(
                text,
                " {size:<7} {:<10}     {:<10.2}     {:<10.2}   {:<10.2}        {:<10.2}     {:<10.2}     {:<10.2}             {:<10.2}",
                f.iterations,
                f.min_us,
                f.max_us,
                f.typical_us,
                f.average_us,
                f.deviation_us,
                f.p99_us,
                f.p999_us
            ),
            Row::Bandwidth(b) => writeln!(
                text,
                " {:<7}    {:<10}       {:<10.2}         {:<10.2}           {:<8.6}",
                b.size, b.iterations, b.peak, b.average, b.rate
            ),
        };
    }
    text.push_str(LINE);
    text
}

/// Returns the JSON line: the last row's figures and the digests.
#[must_use]
pub(crate) fn json(
    options: &Options,
    client: bool,
    agreed: &Agreed,
    rows: &[Row],
    content: &Content,
) -> String {
    let role = if client { "client" } else { "server" };
    let mut text = format!(
        "{{\"program\":\"{}\",\"role\":\"{role}\",\"mtu\":{},\"queue_pairs\":{}",
        options.program,
        agreed.mtu.bytes(),
        options.queue_pairs
    );
    let _ = match rows.last() {
        Some(Row::Latency { size, figures: f }) => write!(
            text,
            ",\"bytes\":{size},\"iterations\":{},\"p50_us\":{:.3},\"average_us\":{:.3},\"p99_us\":{:.3}",
            f.iterations, f.typical_us, f.average_us, f.p99_us
        ),
        Some(Row::Bandwidth(b)) => write!(
            text,
            ",\"bytes\":{},\"iterations\":{},\"peak_mib_s\":{:.3},\"average_mib_s\":{:.3},\"rate_mpps\":{:.6}",
            b.size, b.iterations, b.peak, b.average, b.rate
        ),
        None => Ok(()),
    };
    for (name, digest) in [("near", content.near), ("far", content.far), ("left", content.left)] {
        let Some(digest) = digest else { continue };
        let _ = write!(text, ",\"{name}\":\"");
        for byte in digest {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('"');
    }
    text.push_str("}\n");
    text
}
