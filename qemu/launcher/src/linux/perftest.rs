//! A parser of the result tables of Debian's perftest.

use anyhow::{Context, Result, ensure};
use serde::Serialize;

/// The result of a latency program for one message length, in microseconds.
///
/// The latency of a write or send is half of a round trip; that of a read or atomic is a whole round trip.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The length of a message, in bytes.
    pub bytes: u64,
    /// The number of operations.
    pub iterations: u64,
    /// The median (`t_typical`), in microseconds.
    pub p50_us: f64,
    /// The average, in microseconds.
    pub average_us: f64,
    /// The 99th percentile, in microseconds.
    pub p99_us: f64,
}

/// The result of a bandwidth program for one message length.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bandwidth {
    /// The length of a message, in bytes.
    pub bytes: u64,
    /// The number of operations.
    pub iterations: u64,
    /// The average in MiB (2^20 bytes, which perftest calls MB) per second.
    pub average_mib_s: f64,
    /// The message rate in millions per second.
    pub message_rate_mpps: f64,
}

/// perftest has found no rate of the processor's clock when it began, so its times are no numbers. That
/// happens where the host runs other work meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("perftest has found no clock rate")]
pub struct NoClock;

/// Parses a latency program's table with one row.
pub fn latency(output: &str) -> Result<Latency> {
    let row = Row::find(output)?;
    Ok(Latency {
        bytes: row.whole("#bytes")?,
        iterations: row.whole("#iterations")?,
        p50_us: row.number("t_typical[usec]")?,
        average_us: row.number("t_avg[usec]")?,
        p99_us: row.number("99% percentile[usec]")?,
    })
}

/// Parses a bandwidth program's table with one row.
pub fn bandwidth(output: &str) -> Result<Bandwidth> {
    let row = Row::find(output)?;
    Ok(Bandwidth {
        bytes: row.whole("#bytes")?,
        iterations: row.whole("#iterations")?,
        average_mib_s: row.number("BW average[MB/sec]")?,
        message_rate_mpps: row.number("MsgRate[Mpps]")?,
    })
}

/// The titles of the columns, which can contain single blanks, and the values below them.
struct Row<'a> {
    titles: Vec<&'a str>,
    values: Vec<&'a str>,
}

impl<'a> Row<'a> {
    fn find(output: &'a str) -> Result<Self> {
        let mut lines = output.lines().map(str::trim).skip_while(|line| !line.starts_with("#bytes"));
        let titles = lines.next().with_context(|| format!("no table in: {output}"))?;
        let values = lines.next().with_context(|| format!("no result in: {output}"))?;
        // `#bytes #iterations` may be one blank apart; other titles are two or more apart, or end in `]`.
        let titles: Vec<&str> = split_titles(titles);
        let values: Vec<&str> = values.split_whitespace().collect();
        ensure!(titles.len() == values.len(), "the numbers of titles and values differ in: {output}");
        Ok(Self { titles, values })
    }

    fn value(&self, title: &str) -> Result<&'a str> {
        let at = self.titles.iter().position(|t| *t == title);
        at.and_then(|at| self.values.get(at).copied()).with_context(|| format!("no column {title}"))
    }

    fn whole(&self, title: &str) -> Result<u64> {
        let value = self.value(title)?;
        value.parse().with_context(|| format!("{title} is `{value}`"))
    }

    fn number(&self, title: &str) -> Result<f64> {
        let value = self.value(title)?;
        let number: f64 = value.parse().with_context(|| format!("{title} is `{value}`"))?;
        // perftest divides by the clock rate that it finds, and prints `inf` if it finds none.
        ensure!(number.is_finite(), NoClock);
        Ok(number)
    }
}

/// Splits the titles: after `]`, or, for the first two, after a word that begins with `#`.
fn split_titles(line: &str) -> Vec<&str> {
    let mut titles = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let end = if rest.starts_with('#') {
            rest.find(char::is_whitespace)
        } else {
            rest.find(']').map(|at| at + 1)
        };
        let (title, next) = rest.split_at(end.unwrap_or(rest.len()));
        titles.push(title);
        rest = next.trim_start();
    }
    titles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_table() {
        let output = "\
 local address: LID 0000 QPN 0x0011 PSN 0x8fd7d7 RKey 0x00059d VAddr 0x0055c5a0f0a000\n\
---------------------------------------------------------------------------------------\n\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] \n\
 8       1000          201.52         4017.31      241.07              396.23            715.10          3600.41                 4017.31\n\
---------------------------------------------------------------------------------------\n";
        let expected =
            Latency { bytes: 8, iterations: 1000, p50_us: 241.07, average_us: 396.23, p99_us: 3600.41 };
        assert_eq!(latency(output).unwrap(), expected);
        assert!(bandwidth(output).is_err());
    }

    #[test]
    fn bandwidth_table() {
        let output = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n\
 65536      500              57.31              50.93              0.000815\n";
        let expected =
            Bandwidth { bytes: 65536, iterations: 500, average_mib_s: 50.93, message_rate_mpps: 0.000815 };
        assert_eq!(bandwidth(output).unwrap(), expected);
    }

    #[test]
    fn no_result_is_an_error() {
        assert!(latency("Couldn't connect to 10.0.0.1:18515").is_err());
        assert!(bandwidth("#bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]").is_err());
        let inf = "#bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]\n8 5 inf inf inf\n";
        assert!(bandwidth(inf).unwrap_err().is::<NoClock>());
    }
}
