//! The service of each node for the others: it answers calls, and receives messages.

use crate::explore::check::Check;
use lite::testing::Host;
use lite::{Call, Incarnation, Lite, NodeId, RpcOptions};
use platform::Platform;
use std::sync::Arc;
use std::time::Duration;

pub(super) const CALLS: u32 = 1;
pub(super) const MESSAGES: u32 = 2;
/// The function of calls that are answered at once, for the checks at the end.
pub(in crate::explore) const PROBES: u32 = 3;
/// The length of the header of a request, in bytes: its number, and the incarnation of its sender.
pub(super) const HEADER: usize = 18;

/// Writes the header of a request.
pub(super) fn seal(request: &mut [u8], id: u64, (node, member): (NodeId, Incarnation)) {
    request[..8].copy_from_slice(&id.to_le_bytes());
    request[8..16].copy_from_slice(&member.0.to_le_bytes());
    request[16..HEADER].copy_from_slice(&node.0.to_le_bytes());
}

/// Returns the number of a request, and checks that it comes from the sender in its header.
fn open(check: &Check, request: &[u8], from: (NodeId, Incarnation)) -> u64 {
    let mut sealed = [0; HEADER];
    let id = request.first_chunk().map_or(0, |id| u64::from_le_bytes(*id));
    seal(&mut sealed, id, from);
    if request.get(..HEADER) != Some(&sealed[..]) {
        check.violated("a handler knows its caller", format_args!("{id:#x} from {from:?}"));
    }
    id
}

/// Executes a call: the reply is its bytes in reverse order.
async fn handle(lite: &Lite, check: &Check, call: &mut Call, delay: Duration) -> Vec<u8> {
    let id = open(check, call.request(), (call.from(), call.incarnation()));
    if id > 0 {
        check.executed(id);
    }
    lite.sleep(delay).await;
    let mut reply = call.take_request();
    reply.reverse();
    reply
}

/// Answers calls with their bytes in reverse order, and receives messages.
pub(super) fn serve(lite: &Lite, host: &Arc<Host>, check: &Arc<Check>, delay_us: u64) {
    let delay = Duration::from_micros(delay_us);
    let server = Arc::new(lite.register(CALLS, RpcOptions::default()).expect("nothing is registered"));
    for pairwise in [false, true] {
        let (lite, check, server) = (lite.clone(), check.clone(), server.clone());
        host.spawn(
            "serve",
            Box::pin(async move {
                let mut next = server.receive().await;
                while let Ok(mut call) = next {
                    let reply = handle(&lite, &check, &mut call, delay).await;
                    if pairwise && !call.is_one_way() {
                        next = server.reply_and_receive(call, &reply).await;
                    } else {
                        // The caller may have left, and the sender of a message wants no reply.
                        let _ = call.reply(&reply).await;
                        next = server.receive().await;
                    }
                }
            }),
        );
    }
    let probes = lite.register(PROBES, RpcOptions::default()).expect("nothing is registered");
    host.spawn(
        "probes",
        Box::pin(async move {
            while let Ok(call) = probes.receive().await {
                let _ = call.reply(b"!").await;
            }
        }),
    );
    let mailbox = lite.open_mailbox(MESSAGES, RpcOptions::default()).expect("nothing is registered");
    let (check, me) = (check.clone(), lite.node_id());
    check.receives(me);
    host.spawn(
        "receive",
        Box::pin(async move {
            while let Ok(message) = mailbox.receive().await {
                let id = open(&check, message.data(), (message.from(), message.incarnation()));
                check.received(id, me);
            }
        }),
    );
}
