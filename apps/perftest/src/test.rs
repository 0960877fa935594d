//! A whole test, from the first message of the exchange to the last. The steps of each program are
//! perftest's.

use crate::Host;
use crate::atomics::{self, Fetched};
use crate::buffer::{Buffers, Side, Slots};
use crate::error::Error;
use crate::exchange::Exchange;
use crate::figures::Latency;
use crate::message::Bandwidth;
use crate::options::{Figure, MAX_SIZE, Options, Verb};
use crate::report::{self, Content, Report, Row};
use crate::run::{self, Flow};
use crate::session::{Queues, Session};
use alloc::vec::Vec;
use sha2::{Digest as _, Sha256};

/// Runs one test with the peer at the other end of `exchange`.
pub(crate) async fn run(
    host: &Host,
    queues: Queues,
    options: &Options,
    mut exchange: Exchange,
) -> Result<Report, Error> {
    let attributes = host.rnic.attributes();
    let client = exchange.is_client();
    let mtu = options.mtu.map_or(attributes.max_mtu, |mtu| mtu.min(attributes.max_mtu));
    let agreed = exchange.agree(host, mtu).await?;
    let mut session = Session::new(host, queues, options, agreed, client)?;
    let sizes: Vec<u32> = match options.size {
        Some(size) => [size].into(),
        None => (1..=MAX_SIZE.ilog2()).map(|power| 1 << power).collect(),
    };
    let last = session.slots(sizes.last().copied().unwrap_or(MAX_SIZE));
    // These steps come before the peer can begin.
    let words = match (options.program.verb, options.program.figure) {
        (Verb::Atomic, _) => words(&session, &last)?,
        (Verb::Write, Figure::Latency) => {
            // The initial byte must differ from the number of the peer's first write.
            sizes.iter().try_for_each(|size| session.buffers.set_last(Side::Far, *size, 0))?;
            Vec::new()
        }
        _ => Vec::new(),
    };
    let peers = introduce(host, options, &mut exchange, &mut session).await?;
    let mut text = report::heading(options, &agreed, session.mine(), &peers, &attributes);
    let mut test = Test { session: &session, exchange: &mut exchange, rows: Vec::new(), sizes, last, words };
    let content = test.steps().await?;
    let rows = test.rows;
    exchange.linger(host).await;
    drop(session);
    text.push_str(&report::table(&rows));
    let json = report::json(options, client, &agreed, &rows, &content);
    Ok(Report { text, rows, content, json })
}

/// Exchanges the keys of all queue pairs and connects them. Both sides are ready afterwards.
async fn introduce(
    host: &Host,
    options: &Options,
    exchange: &mut Exchange,
    session: &mut Session<'_>,
) -> Result<Vec<crate::message::Keys>, Error> {
    let send = options.program.verb == Verb::Send;
    let first = session.first()?;
    if options.program.figure == Figure::Latency && !send {
        exchange.keys(host, &first).await?;
    }
    let mut peers = Vec::new();
    for mine in session.mine() {
        peers.push(exchange.keys(host, mine).await?);
    }
    session.connect(peers.clone()).await?;
    if send {
        exchange.keys(host, &first).await?;
    }
    for mine in session.mine() {
        exchange.keys(host, mine).await?;
    }
    if !send {
        exchange.keys(host, &first).await?;
    }
    Ok(peers)
}

/// A test whose queue pairs are connected.
struct Test<'a, 's> {
    session: &'a Session<'s>,
    exchange: &'a mut Exchange,
    rows: Vec<Row>,
    /// The sizes of messages, in the order of the test.
    sizes: Vec<u32>,
    /// The slots of the last size.
    last: Slots,
    /// This side's words before the peer's atomics, by queue pair.
    words: Vec<Vec<u64>>,
}

impl Test<'_, '_> {
    /// Runs the steps of the program, up to the last exchange.
    async fn steps(&mut self) -> Result<Content, Error> {
        let Options { program, bidirectional, .. } = *self.session.options;
        let sizes = core::mem::take(&mut self.sizes);
        let mut fetched = Fetched::new(self.session.options, &self.last);
        if program.verb == Verb::Write && program.figure == Figure::Latency {
            self.write_sizes(&sizes).await?;
            return self.content(&fetched);
        }
        match (program.figure, program.verb) {
            (_, Verb::Send) => {
                for size in &sizes {
                    self.sends(*size, &mut fetched).await?;
                }
            }
            (Figure::Latency, _) => {
                if self.session.client {
                    for size in &sizes {
                        let slots = self.session.slots(*size);
                        let posted = run::one_way(self.session, &slots, &mut fetched).await?;
                        self.latency(*size, &posted, false);
                    }
                }
            }
            (Figure::Bandwidth, _) if bidirectional => {
                for size in &sizes {
                    self.both_ways(*size, &mut fetched).await?;
                }
            }
            (Figure::Bandwidth, _) => {
                let mut mine = Bandwidth::default();
                if self.session.client {
                    for size in &sizes {
                        mine = self.post_all(*size, &mut fetched).await?;
                        self.rows.push(Row::Bandwidth(mine));
                    }
                }
                self.meet().await?;
                let theirs = self.exchange.reports(self.session.host, &mine).await?;
                if !self.session.client {
                    self.rows.push(Row::Bandwidth(theirs));
                }
            }
        }
        let (host, first) = (self.session.host, self.session.first()?);
        // A server of READs or atomics learns only from this message that the client is done.
        self.exchange.done(host, &first).await?;
        self.content(&fetched)
    }

    async fn meet(&mut self) -> Result<(), Error> {
        let first = self.session.first()?;
        self.exchange.meet(self.session.host, &first).await
    }

    fn latency(&mut self, size: u32, posted: &[platform::Instant], halves: bool) {
        self.rows.push(Row::Latency { size, figures: Latency::new(posted, halves) });
    }

    /// Runs `ib_write_lat`, which exchanges nothing between two sizes nor at the end.
    async fn write_sizes(&mut self, sizes: &[u32]) -> Result<(), Error> {
        for size in sizes {
            let slots = self.session.slots(*size);
            let posted = run::write_ping_pong(self.session, self.exchange, &slots).await?;
            self.latency(*size, &posted, true);
        }
        Ok(())
    }

    /// Posts all messages of one size from this side.
    async fn post_all(&self, size: u32, fetched: &mut Fetched) -> Result<Bandwidth, Error> {
        let flow = Flow { sends: true, receives: false };
        self.flow(size, flow, fetched).await
    }

    async fn flow(&self, size: u32, flow: Flow, fetched: &mut Fetched) -> Result<Bandwidth, Error> {
        let slots = self.session.slots(size);
        let sent = run::bandwidth(self.session, &slots, flow, fetched).await?;
        let options = self.session.options;
        let total = u64::from(options.iterations) * u64::from(options.queue_pairs);
        Ok(Bandwidth::measured(size, total, &sent))
    }

    /// Runs one size of WRITEs, READs or atomics from both sides at once.
    async fn both_ways(&mut self, size: u32, fetched: &mut Fetched) -> Result<(), Error> {
        self.meet().await?;
        let mine = self.post_all(size, fetched).await?;
        if self.session.options.size.is_none() {
            self.meet().await?;
        }
        let theirs = self.exchange.reports(self.session.host, &mine).await?;
        self.rows.push(Row::Bandwidth(mine.with(&theirs)));
        Ok(())
    }

    /// Runs one size of SENDs.
    async fn sends(&mut self, size: u32, fetched: &mut Fetched) -> Result<(), Error> {
        let Options { program, bidirectional, queue_pairs, rx_depth, .. } = *self.session.options;
        let latency = program.figure == Figure::Latency;
        let flow = Flow {
            sends: self.session.client || bidirectional || latency,
            receives: !self.session.client || bidirectional || latency,
        };
        let slots = self.session.slots(size);
        if flow.receives {
            for queue_pair in 0..queue_pairs {
                for m in 0..rx_depth {
                    self.session.post_receive(queue_pair, m, &slots)?;
                }
            }
        }
        self.meet().await?;
        if latency {
            let posted = run::send_ping_pong(self.session, &slots).await?;
            self.latency(size, &posted, true);
            return Ok(());
        }
        let mut result = self.flow(size, flow, fetched).await?;
        if bidirectional {
            result = result.with(&self.exchange.reports(self.session.host, &result).await?);
        }
        self.rows.push(Row::Bandwidth(result));
        if self.session.options.size.is_none() {
            self.meet().await?;
        }
        Ok(())
    }

    /// Returns the content of the buffers once both sides are done, and checks the results of atomics.
    fn content(&self, fetched: &Fetched) -> Result<Content, Error> {
        let Session { options, buffers, client, .. } = self.session;
        let slots = &self.last;
        let both = options.bidirectional || options.program.ping_pong();
        let (near, far) = (*client || both, !*client || both);
        if options.program.verb == Verb::Atomic {
            if far {
                atomics::check(options, &self.words, &words(self.session, slots)?)?;
            }
            let left = near.then(|| {
                let mut hash = Sha256::new();
                fetched.expected().iter().for_each(|word| hash.update(word.to_ne_bytes()));
                hash.finalize().into()
            });
            let far = far.then(|| buffers.digest(Side::Far, slots, options.iterations)).transpose()?;
            return Ok(Content { near: None, far, left });
        }
        let digest = |side| buffers.digest(side, slots, options.iterations);
        Ok(Content {
            near: near.then(|| digest(Side::Near)).transpose()?,
            far: far.then(|| digest(Side::Far)).transpose()?,
            left: None,
        })
    }
}

/// Returns the words that the peer's atomics work on, by queue pair.
fn words(session: &Session<'_>, slots: &Slots) -> Result<Vec<Vec<u64>>, Error> {
    let Options { queue_pairs, iterations, .. } = *session.options;
    let buffers: &Buffers = &session.buffers;
    (0..queue_pairs).map(|qp| buffers.words(Side::Far, qp, slots, iterations)).collect()
}
