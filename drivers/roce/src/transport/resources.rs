//! The responder's resources: the last READs and atomics, the parts of their responses that are not sent yet,
//! and the data for repeated requests.

use super::send_queue::packets;
use alloc::collections::VecDeque;
use platform::IoAddr;
use verbs::{Psn, RemoteKey};

/// Returns the distance from `b` up to `a`, modulo 2^24.
pub(super) const fn ahead(a: Psn, b: Psn) -> u32 {
    a.get().wrapping_sub(b.get()) & 0xff_ffff
}

/// A range of a node's memory that a READ names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub(super) key: RemoteKey,
    pub(super) addr: IoAddr,
    pub(super) len: u32,
    /// The XRC shared receive queue in whose protection domain the memory is read.
    pub(super) srq: Option<u32>,
}

impl Range {
    /// Returns the range without the first `bytes`. Its address may wrap after a range that the check has
    /// refused.
    pub(super) const fn after(self, bytes: u32) -> Self {
        let addr = IoAddr(self.addr.0.wrapping_add(bytes as u64));
        Self { addr, len: self.len.saturating_sub(bytes), ..self }
    }
}

/// The data that responds to a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Data {
    Read(Range),
    Atomic { before: u64 },
}

/// The part of a response that is not sent yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// The PSN of the next packet.
    pub(super) psn: Psn,
    pub(super) msn: u32,
    /// The data; for a READ, the remaining range.
    pub(super) data: Data,
    /// True if the next packet is not the first for the latest request.
    pub(super) begun: bool,
}

/// A READ or atomic that was executed.
struct Resource {
    first: Psn,
    packets: u32,
    msn: u32,
    data: Data,
    answer: Option<Answer>,
    /// True if the whole response was sent at least once.
    answered: bool,
}

/// The ring of the last requests, by PSN.
pub(super) struct Resources {
    ring: VecDeque<Resource>,
    limit: usize,
    /// The number of requests with unsent responses.
    answering: usize,
}

impl Resources {
    pub(super) fn new(limit: u8) -> Self {
        Self { ring: VecDeque::with_capacity(usize::from(limit)), limit: usize::from(limit), answering: 0 }
    }

    /// Returns true if another request is allowed. Otherwise the peer has too many outstanding: a response
    /// that was sent completely may have been lost, but one that was not cannot have arrived.
    pub(super) fn have_room(&self) -> bool {
        self.ring.len() < self.limit || self.ring.front().is_some_and(|oldest| oldest.answered)
    }

    /// Remembers a request at `first` that consumes `packets` PSNs, and queues its response.
    pub(super) fn push(&mut self, first: Psn, packets: u32, msn: u32, data: Data) {
        if self.ring.len() >= self.limit
            && let Some(Resource { answer: Some(_), .. }) = self.ring.pop_front()
        {
            self.answering -= 1;
        }
        let answer = Some(Answer { psn: first, msn, data, begun: false });
        self.ring.push_back(Resource { first, packets, msn, data, answer, answered: false });
        self.answering += 1;
    }

    pub(super) const fn is_answering(&self) -> bool {
        self.answering > 0
    }

    fn answering(&self) -> Option<usize> {
        if self.answering == 0 {
            return None;
        }
        self.ring.iter().position(|resource| resource.answer.is_some())
    }

    /// Returns the response to be sent next.
    pub(super) fn next(&self) -> Option<&Answer> {
        self.ring.get(self.answering()?)?.answer.as_ref()
    }

    /// Records that a packet of the [`next`](Self::next) response with `sent` bytes was sent.
    pub(super) fn on_sent(&mut self, sent: u32) {
        let Some(resource) = self.answering().and_then(|at| self.ring.get_mut(at)) else { return };
        let Some(answer) = &mut resource.answer else { return };
        match &mut answer.data {
            Data::Read(range) if range.len > sent => {
                *range = range.after(sent);
                answer.psn = answer.psn.add(1);
                answer.begun = true;
            }
            _ => {
                resource.answer = None;
                resource.answered = true;
                self.answering -= 1;
            }
        }
    }

    /// Queues the response to a READ of `range` at `psn` again, if that READ or one that contains it at this
    /// position was executed. `allowed` is true if the key is still valid. Returns false if the request must
    /// be dropped.
    pub(super) fn read_again(&mut self, psn: Psn, range: Range, mtu: usize, allowed: bool) -> bool {
        let Some(resource) = self.find(psn) else { return false };
        let Data::Read(whole) = resource.data else { return false };
        let done = ahead(psn, resource.first);
        let rest = whole.after(done * mtu as u32);
        let part = range.key == rest.key && range.addr == rest.addr && range.len <= rest.len;
        if !allowed || !part || done + packets(range.len, mtu) > resource.packets {
            return false;
        }
        self.answer_again(psn, Data::Read(range), done > 0);
        true
    }

    /// Queues the response to an atomic at `psn` again, if it was executed. Returns false if the request must
    /// be dropped.
    pub(super) fn atomic_again(&mut self, psn: Psn) -> bool {
        let data = self.find(psn).map(|resource| resource.data);
        let Some(data @ Data::Atomic { .. }) = data else { return false };
        self.answer_again(psn, data, false);
        true
    }

    fn find(&mut self, psn: Psn) -> Option<&mut Resource> {
        self.ring.iter_mut().rfind(|resource| ahead(psn, resource.first) < resource.packets)
    }

    /// Queues a response again. If it is still being sent, it continues, or restarts from `psn`.
    fn answer_again(&mut self, psn: Psn, data: Data, begun: bool) {
        let Some(resource) = self.find(psn) else { return };
        let again = Answer { psn, msn: resource.msn, data, begun };
        let first = resource.first;
        match &mut resource.answer {
            Some(current) => {
                if ahead(current.psn, first) > ahead(psn, first) {
                    *current = again;
                }
            }
            None => {
                resource.answer = Some(again);
                self.answering += 1;
            }
        }
    }

    /// Returns the first PSN of the request to which the [`next`](Self::next) response belongs.
    pub(super) fn next_request(&self) -> Option<Psn> {
        Some(self.ring.get(self.answering()?)?.first)
    }

    /// Discards all responses.
    pub(super) fn discard(&mut self) {
        self.ring.clear();
        self.answering = 0;
    }
}
