//! Frames of raw Ethernet queue pairs, and frames that steering delivers to them.

use super::Traffic;
use crate::device::cq::Cqe;
use crate::device::ctx::Ctx;
use crate::device::ethernet::frames::{
    FCS, completion, frames_of, is_multicast, scatter_frame, takes_frames,
};
use crate::device::ethernet::headers::{Headers, Length, TAG};
use crate::device::layout::cqe;
use crate::device::memory::Keyed;
use crate::device::profile::Steering;
use crate::device::qp::completed::Completed;
use crate::device::qp::connected::Shared;
use crate::device::qp::syndrome::failure;
use crate::device::qp::wqe::Control;
use crate::device::qp::{Qp, State, flush};
use crate::device::steering::{McgTable, Steer, receiver};
use roce::transport::Env;
use std::sync::Arc;
use verbs::MacAddr;

/// The maximum number of work requests that a queue pair completes per turn.
const TURN: usize = 64;

impl Traffic {
    /// Handles the send doorbell of a raw queue pair.
    pub(crate) fn send_raw(&mut self, qpn: u32, ctx: &mut Ctx<'_>) {
        for _ in 0..TURN {
            let Some(keyed) = ctx.tables.keyed(ctx.host) else { return };
            let Some(qp) = self.queues.qps.get_mut(qpn) else { return };
            if qp.state != State::ReadyToSend {
                return self.flush_sends(qpn, ctx);
            }
            let port = qp.context.port();
            let (who, cqn) = (qp.context.domain(), qp.context.send_cqn());
            let (index, control, result) = match qp.send.next(&qp.memory, ctx.host) {
                Ok(None) => return,
                Ok(Some((index, control, wqe))) => (index, control, frames_of(control, wqe, who, keyed)),
                Err(e) => {
                    let broken = |qp: &mut Qp, _: Keyed<'_>, env: &mut Env<'_>, _: &mut Shared<'_>| {
                        flush::broken(qp, e, env);
                    };
                    self.queues.with_qp(qpn, Completed::default(), ctx, broken);
                    return;
                }
            };
            let mut told = true;
            match result {
                Ok(frames) => {
                    for frame in frames {
                        self.send_ethernet(port, qpn, control, frame, ctx);
                    }
                    if control.signaled() {
                        let cqe = Cqe::new(qpn, index, true, control.code());
                        told = self.queues.cqs.post(cqn, &cqe, ctx.eqs, ctx.host);
                    }
                }
                Err(status) => {
                    log::warn!("queue pair {qpn:#x}: work request {index} ({control:?}) fails: {status:?}");
                    qp.state = State::SendQueueError;
                    let cqe = failure(qpn, index, true, status);
                    told = self.queues.cqs.post(cqn, &cqe, ctx.eqs, ctx.host);
                }
            }
            if !told {
                return self.queues.lose_completions(qpn, ctx);
            }
        }
        self.queues.pending.insert(qpn);
    }

    /// Completes the requests posted to a failed raw queue pair with a flush error.
    fn flush_sends(&mut self, qpn: u32, ctx: &mut Ctx<'_>) {
        self.queues.with_qp(qpn, Completed::default(), ctx, |qp, keyed, env, _| {
            if matches!(qp.state, State::SendQueueError | State::Error) {
                flush::sends(qp, keyed.host, env);
            }
        });
    }

    /// Sends a frame of a raw queue pair over the wire, inside the card, or both. The frame is looped back
    /// inside the card if the work request asks for it or if its destination matches a steering entry or rule
    /// of the same port. A unicast frame with such a match stays inside the card; multicast goes both ways.
    fn send_ethernet(&mut self, port: usize, qpn: u32, control: Control, frame: Vec<u8>, ctx: &mut Ctx<'_>) {
        if control.inside() {
            return self.keep_raw_inside(port, qpn, frame);
        }
        if let Some(destination) = control.looped() {
            if is_multicast(destination) {
                self.keep_raw_inside(port, qpn, frame.clone());
            } else if self.has_taker(port, qpn, destination, &frame, ctx) {
                return self.keep_raw_inside(port, qpn, frame);
            }
        }
        let counter = self.queues.qps.get_mut(qpn).map_or(0, |qp| qp.context.counter());
        self.emit(port, counter, frame, ctx);
    }

    /// Returns whether steering delivers a unicast frame to another queue pair of the port. Default queue
    /// pairs do not count.
    fn has_taker(&self, port: usize, from: u32, destination: [u8; 6], frame: &[u8], ctx: &Ctx<'_>) -> bool {
        let Some(hca) = &ctx.tables.hca else { return false };
        match hca.steering {
            Steering::Groups => {
                let table = McgTable { icm: &ctx.tables.icm, hca };
                !table.members(port, Steer::Unicast, destination, ctx.host).is_empty()
            }
            Steering::Table => {
                ctx.ports.get(port).is_some_and(|port| port.macs.contains(&Some(MacAddr(destination))))
            }
            Steering::Flows => {
                self.flows.describe(port, Some(from), frame, &Headers::parse(frame, Length::AsStated))
            }
        }
    }

    /// Delivers a frame to the guest's Ethernet driver. `from` is the sending queue pair of this card, or
    /// `None` for a frame from the cable.
    pub(crate) fn receive_ethernet(
        &mut self,
        port: usize,
        from: Option<u32>,
        frame: &[u8],
        headers: &Headers,
        ctx: &mut Ctx<'_>,
    ) {
        let Some(&destination) = frame.first_chunk::<6>() else { return };
        let (Some(hca), Some(at)) = (&ctx.tables.hca, ctx.ports.get(port)) else { return };
        // Rules name the accepted groups, including groups that the driver's own filter does not list.
        let by_rules = hca.steering == Steering::Flows;
        if !at.filters.passes_vlan(headers.vlan) || !(by_rules || at.filters.passes_group(destination)) {
            return;
        }
        let to = self.steer(port, from, destination, frame, headers, ctx);
        if to.is_empty() {
            self.counters.rx_unsteered += 1;
        }
        let sender = from.and_then(|qpn| self.queues.qps.get_mut(qpn)).map(|qp| qp.context.counter());
        for qpn in to.iter().filter_map(|&word| receiver(word, from)) {
            let takes = |counter| {
                let qp = self.queues.qps.get_mut(qpn);
                qp.is_some_and(|qp| qp.context.takes_looped(!is_multicast(destination), counter))
            };
            if sender.is_none_or(takes) {
                self.deliver_ethernet(qpn, frame, headers, ctx);
            }
        }
    }

    /// Returns the queue pairs that receive a frame, as words of a steering entry.
    fn steer(
        &self,
        port: usize,
        from: Option<u32>,
        destination: [u8; 6],
        frame: &[u8],
        headers: &Headers,
        ctx: &Ctx<'_>,
    ) -> Arc<[u32]> {
        let Some(hca) = &ctx.tables.hca else { return Arc::default() };
        let unicast = !is_multicast(destination);
        match hca.steering {
            Steering::Groups => {
                let steer = if unicast { Steer::Unicast } else { Steer::Multicast };
                let to = McgTable { icm: &ctx.tables.icm, hca }.members(port, steer, destination, ctx.host);
                if to.is_empty() { self.default_members(port, steer).into() } else { to }
            }
            Steering::Table => {
                let Some(port) = ctx.ports.get(port) else { return Arc::default() };
                let row = port.macs.iter().position(|row| *row == Some(MacAddr(destination)));
                let queues = &port.queues;
                let to = match row {
                    Some(row) => Some(queues.base_qpn + row as u32),
                    None if unicast => queues.promiscuous,
                    None => queues.multicast,
                };
                to.as_slice().into()
            }
            Steering::Flows => self.flows.find(port, from, frame, headers),
        }
    }

    fn deliver_ethernet(&mut self, qpn: u32, frame: &[u8], headers: &Headers, ctx: &mut Ctx<'_>) {
        let Some(qp) = self.queues.qps.get_mut(qpn) else { return };
        if !takes_frames(qp) {
            return;
        }
        self.interface_counters.received(qp.context.counter(), frame.len());
        let (qpn, hash) = match &qp.rss {
            Some(rss) => rss.spread(frame, headers),
            None => (qpn, 0),
        };
        let Some(keyed) = ctx.tables.keyed(ctx.host) else { return };
        let Some(qp) = self.queues.qps.get_mut(qpn) else { return };
        if !takes_frames(qp) || qp.rss.is_some() {
            return;
        }
        let strip = qp.context.strips_vlan() && headers.vlan.is_some();
        let (cqn, port) = (qp.context.receive_cqn(), qp.context.port());
        let keeps_fcs = qp.context.keeps_fcs();
        let cqe = match scatter_frame(qp, frame, strip, keyed) {
            Ok(None) => {
                self.counters.rx_no_buffer += 1;
                if let Some(port) = ctx.ports.get_mut(port) {
                    port.statistics.no_buffer += 1;
                }
                return;
            }
            Ok(Some(index)) => {
                let len = frame.len() - if strip { TAG } else { 0 } + if keeps_fcs { FCS } else { 0 };
                completion(qpn, index, frame, headers, hash).with(cqe::LENGTH, len as u32)
            }
            Err((index, status)) => {
                let cqe = failure(qpn, index, false, status);
                self.queues.cqs.post(cqn, &cqe, ctx.eqs, ctx.host);
                return self.queues.fail_qp(qpn, ctx);
            }
        };
        if !self.queues.cqs.post(cqn, &cqe, ctx.eqs, ctx.host) {
            self.queues.lose_completions(qpn, ctx);
        }
    }
}
