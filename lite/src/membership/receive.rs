//! The control connection: one task that sends, and one that receives.

use super::standing::Membership;
use crate::region::Mover;
use crate::transport::connect::vouching::Voucher;
use alloc::boxed::Box;
use alloc::sync::Arc;
use platform::ControlLink;
use proto::{Resumed, ToManager, ToNode};

impl Membership {
    /// Starts the two tasks of the control connection.
    pub(crate) fn start_control(self: &Arc<Self>, link: Arc<dyn ControlLink>) {
        let (node, l) = (self.clone(), link.clone());
        self.platform.spawn("lite-control-out", Box::pin(async move { node.send_all(&*l).await }));
        let node = self.clone();
        self.platform.spawn("lite-control-in", Box::pin(async move { node.receive_all(&*link).await }));
    }

    async fn send_all(&self, link: &dyn ControlLink) {
        loop {
            let next = || match self.control.out.lock().pop_front() {
                Some(message) => Some(Some(message)),
                None if self.control.has_ended() => Some(None),
                None => None,
            };
            let Some(message) = self.control.out_change.until(next).await else { return link.end() };
            // A task that waits for room may go on.
            self.control.out_change.wake_all();
            if core::future::poll_fn(|cx| link.poll_send(cx, &message)).await.is_err() {
                return self.fence();
            }
        }
    }

    /// Vacates this node in a task of its own, and tells the manager the result.
    fn vacate_for_manager(self: &Arc<Self>) {
        let node = self.clone();
        if !Mover::of(&node).begin_order() {
            return;
        }
        let task = async move {
            let result = Mover::of(&node).obey_orders().await.map_err(|error| alloc::format!("{error}"));
            node.control.post(&ToManager::Vacated { result });
        };
        self.platform.spawn("lite-vacate", Box::pin(task));
    }

    async fn receive_all(self: &Arc<Self>, link: &dyn ControlLink) {
        loop {
            let Ok(bytes) = core::future::poll_fn(|cx| link.poll_recv(cx)).await else {
                return self.fence();
            };
            if !ToNode::is_for_lite(&bytes) {
                if !self.control.inbox.lock().push(bytes) {
                    log::error!("lite: the manager has sent more than this node was ready to accept");
                    return self.fence();
                }
                self.control.inbox_change.wake_all();
                continue;
            }
            let Ok(message) = proto::decode::<ToNode>(&bytes) else {
                log::warn!("lite: malformed control message of {} bytes", bytes.len());
                continue;
            };
            match message {
                // The link has noted which heartbeat this acknowledges.
                ToNode::HeartbeatAck { time, .. } => {
                    self.vouching.note(time, self.platform.now());
                    self.extend_lease(link.lease_until());
                    self.report_memory();
                }
                ToNode::MemoryFree { request, nodes } => {
                    let mut free = self.control.free.lock();
                    if free.0 < request {
                        *free = (request, nodes);
                    }
                    drop(free);
                    self.control.names_change.wake_all();
                }
                ToNode::Joined(member) => self.on_joined(member),
                ToNode::Left { node, incarnation, reason } => {
                    if (node, incarnation) == (self.me, self.incarnation) {
                        log::error!("lite: the manager has declared this node dead: {reason}");
                        return self.fence();
                    }
                    log::info!("lite: {node} has departed: {reason}");
                    self.on_left(node, incarnation, reason);
                }
                ToNode::Settled { node, incarnation } => self.on_settled((node, incarnation)),
                ToNode::Relayed { from, incarnation, body } => self.on_relayed(from, incarnation, &body),
                ToNode::Voucher { request, to, stamp, key, queue_pair } => {
                    self.on_voucher(to, request, Voucher { stamp, key, queue_pair });
                }
                ToNode::Name { request, result } => {
                    if let Some(asked) = self.control.names.lock().get_mut(&request) {
                        asked.answered(result);
                    }
                    self.control.names_change.wake_all();
                }
                ToNode::Resumed(Resumed { time, unsettled, .. }) => {
                    log::info!("lite: {} goes on with its membership", self.me);
                    self.vouching.note(time, self.platform.now());
                    self.extend_lease(link.lease_until());
                    self.on_resumed(&unsettled);
                }
                ToNode::Vacate { begin: true } => self.vacate_for_manager(),
                ToNode::Vacate { begin: false } => Mover::of(self).accept_regions(),
                ToNode::Refused { reason } => {
                    log::error!("lite: the manager has ended the membership: {reason}");
                    return self.fence();
                }
                _ => log::warn!("lite: unexpected control message"),
            }
        }
    }
}
