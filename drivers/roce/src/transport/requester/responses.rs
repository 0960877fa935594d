//! The handling of responses: acknowledgements, data, reports of missing packets, and refusals.

use super::{Burst, Gap, LONGEST_PAUSE, PAUSE, RNR_UNLIMITED, Requester, ahead};
use crate::transport::Env;
use crate::transport::send_queue::Op;
use crate::transport::timers::after;
use crate::wire::{Ecn, Ext, NakCode, Operation, Packet, RnrTimer, Syndrome};
use verbs::{Psn, Status};

/// The result of an acknowledgement: either everything up to a PSN is complete, or data of an earlier READ or
/// atomic is missing.
#[derive(PartialEq, Eq)]
enum Reached {
    Yes,
    DataMissing,
}

impl Requester {
    /// Handles a response that arrived with mark `ecn`. An error is fatal to the queue pair and belongs to
    /// the oldest work request.
    pub(in super::super) fn on_response(
        &mut self,
        packet: &Packet<'_>,
        ecn: Ecn,
        env: &mut Env<'_>,
    ) -> Result<(), Status> {
        let psn = packet.bth.psn;
        let outstanding = ahead(self.sent, self.una);
        // Only a NAK for a missing packet may name a PSN that was never sent yet.
        let is_sequence_nak =
            matches!(packet.ext, Ext::Aeth(a) if a.syndrome == Syndrome::Nak(NakCode::PsnSequenceError));
        if ahead(psn, self.una) >= outstanding + u32::from(is_sequence_nak) {
            env.counters.rx_stale_responses += 1;
            return Ok(());
        }
        if ecn == Ecn::CongestionExperienced {
            // The requester of data determines how much of it is in flight.
            self.window.on_mark();
        }
        match (packet.bth.opcode.operation, &packet.ext) {
            (Operation::Acknowledge, Ext::Aeth(aeth)) => self.on_acknowledge(psn, aeth.syndrome, env),
            (Operation::AtomicAcknowledge, &Ext::AtomicAck(_, before)) => self.on_atomic(psn, before, env),
            (Operation::Acknowledge | Operation::AtomicAcknowledge, _) => Ok(()),
            _ => self.on_read_data(psn, packet.payload, env),
        }
    }

    /// Reacts to a congestion notification: the peer has received marked packets from here.
    pub(in super::super) fn on_congestion(&mut self) {
        self.window.on_mark();
    }

    fn on_acknowledge(&mut self, psn: Psn, syndrome: Syndrome, env: &mut Env<'_>) -> Result<(), Status> {
        match syndrome {
            Syndrome::Ack { .. } => {
                if self.acknowledge_before(psn.add(1), env) == Reached::DataMissing {
                    self.implied_gap(env);
                }
                Ok(())
            }
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                self.acknowledge_before(psn, env);
                self.reported_gap(env);
                Ok(())
            }
            Syndrome::RnrNak(timer) => {
                if self.acknowledge_before(psn, env) == Reached::DataMissing {
                    self.implied_gap(env);
                    return Ok(());
                }
                self.on_rnr(timer, env)
            }
            Syndrome::Nak(code) => {
                self.acknowledge_before(psn, env);
                Err(match code {
                    NakCode::RemoteAccessError => Status::RemoteAccessError,
                    NakCode::RemoteOperationalError => Status::RemoteOperationError,
                    NakCode::InvalidRequest | NakCode::PsnSequenceError => Status::RemoteInvalidRequest,
                })
            }
            Syndrome::Reserved(_) => {
                env.counters.rx_malformed += 1;
                Ok(())
            }
        }
    }

    fn on_rnr(&mut self, timer: RnrTimer, env: &mut Env<'_>) -> Result<(), Status> {
        if self.wait_until.is_some() {
            return Ok(());
        }
        env.counters.rx_rnr_naks += 1;
        if self.rnr_retries < RNR_UNLIMITED {
            self.rnr_left = self.rnr_left.checked_sub(1).ok_or(Status::RnrRetryExceeded)?;
        }
        self.go_back();
        self.wait_until = Some(env.now + timer.delay());
        self.timers.stop();
        Ok(())
    }

    fn on_atomic(&mut self, psn: Psn, before: u64, env: &mut Env<'_>) -> Result<(), Status> {
        if self.acknowledge_before(psn, env) == Reached::DataMissing {
            self.implied_gap(env);
            return Ok(());
        }
        let Some(wqe) = self.queue.front() else { return Ok(()) };
        let (Op::FetchAdd { result, .. } | Op::CompareSwap { result, .. }) = wqe.op else {
            return Err(Status::BadResponse);
        };
        let written = env.memory.write(result, &before.to_ne_bytes());
        written.map_err(|_| Status::LocalProtectionError)?;
        self.advance(psn.add(1), env);
        Ok(())
    }

    fn on_read_data(&mut self, psn: Psn, data: &[u8], env: &mut Env<'_>) -> Result<(), Status> {
        if self.acknowledge_before(psn, env) == Reached::DataMissing {
            self.implied_gap(env);
            return Ok(());
        }
        let Some(wqe) = self.queue.front() else { return Ok(()) };
        let Op::Read(_) = wqe.op else { return Err(Status::BadResponse) };
        let offset = ahead(psn, wqe.first) * self.mtu as u32;
        if data.len() != self.mtu.min((wqe.len - offset) as usize) {
            return Err(Status::BadResponse);
        }
        let position = self.queue.head();
        let written = self.queue.scatter(position, offset, data, env.memory);
        written.map_err(|_| Status::LocalProtectionError)?;
        self.advance(psn.add(1), env);
        Ok(())
    }

    /// Completes all work before `limit`, which the responder has executed, up to the first request that
    /// still needs data.
    fn acknowledge_before(&mut self, limit: Psn, env: &mut Env<'_>) -> Reached {
        let mut at = self.una;
        let mut position = self.queue.head();
        let mut reached = Reached::Yes;
        while at != limit {
            let Some(wqe) = self.queue.get(position) else { break };
            if wqe.op.is_rd_atomic() {
                reached = Reached::DataMissing;
                break;
            }
            let end = wqe.first.add(wqe.packets);
            at = if ahead(end, self.una) <= ahead(limit, self.una) { end } else { limit };
            position += 1;
        }
        if at != self.una {
            self.advance(at, env);
        }
        reached
    }

    /// Completes all work before `una`, and learns from it about the path.
    fn advance(&mut self, una: Psn, env: &mut Env<'_>) {
        let packets = ahead(una, self.una);
        let in_flight = ahead(self.next, self.una);
        self.una = una;
        while self.queue.front().is_some_and(|wqe| una.distance_from(wqe.first.add(wqe.packets)) >= 0) {
            self.complete_front(Status::Success, env);
        }
        if in_flight < packets {
            // Packets that were about to be repeated have been acknowledged after all.
            self.next = una;
            self.cursor = self.queue.head();
        }
        while self.rd_atomic.front().is_some_and(|&end| una.distance_from(end) >= 0) {
            self.rd_atomic.pop_front();
            self.rd_atomic_sent = self.rd_atomic_sent.saturating_sub(1);
        }
        self.gap = None;
        self.rnr_left = self.rnr_retries;
        self.wait_until = None;
        self.probe_due = false;
        self.timers.progress();
        if let Some(sample) = self.rtt.acknowledged(una, env.now) {
            self.window.sample(sample);
            self.timers.measured();
        }
        // The window grows only while it is in use.
        if 2 * in_flight >= self.window.packets() {
            self.window.grow(packets);
        }
        if una.distance_from(self.round_end) >= 0 {
            self.window.end_round();
            self.round_end = self.sent;
        }
        let probed = self.probed.take();
        if una == self.sent {
            self.timers.stop();
            if let Some(Burst { begun: Some(begun), .. }) = self.yields {
                let taken = env.now.saturating_since(begun);
                self.wait_until = Some(env.now + (taken * PAUSE).min(LONGEST_PAUSE));
            }
            return;
        }
        let timeout = self.rtt.timeout();
        self.timers.start(env.now, timeout);
        if let (Some(end), Some(wait)) = (probed, timeout)
            && end == una
        {
            // Either the responder had missed the probed packet, or this is only the first of many responses.
            // If no other arrives, the packet had been missed.
            self.probed = probed;
            self.timers.hasten(after(env.now, wait));
        }
    }

    /// Handles the responder's report that the packet at `una` is missing. If the report is repeated after a
    /// round trip, the packet was lost again.
    fn reported_gap(&mut self, env: &mut Env<'_>) {
        self.on_gap(self.rtt.least(), env);
    }

    /// Handles a response that reveals missing data at `una`. Later responses to the same requests reveal it
    /// again.
    fn implied_gap(&mut self, env: &mut Env<'_>) {
        self.on_gap(self.rtt.timeout(), env);
    }

    /// Goes back to the lost packet at `una`. If the requester has already gone back to it, it does so again
    /// only if the gap persists for `settled` nanoseconds after that.
    pub(super) fn on_gap(&mut self, settled: Option<u64>, env: &mut Env<'_>) {
        if self.una == self.sent {
            return;
        }
        if let Some(gap) = self.gap.as_mut().filter(|gap| gap.at == self.una) {
            let Some(settled) = settled else { return };
            let again = after(gap.when, settled);
            if env.now < again {
                gap.again = true;
                self.timers.hasten(again);
                return;
            }
        }
        env.counters.rx_naks += 1;
        self.gap = Some(Gap { at: self.una, when: env.now, again: false });
        self.window.on_loss(self.rtt.least());
        self.go_back();
    }
}
