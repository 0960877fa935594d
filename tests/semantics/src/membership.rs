//! The membership of the cluster, as each node sees it.

use crate::context::{BRIEF, Context};
use crate::failure::{Outcome, ensure, same};
use alloc::vec::Vec;
use core::pin::pin;
use futures_util::future::{Either, select};
use lite::{App, Limits};

/// Every node lists the same members by id, including itself, each in the same incarnation and with a GID of
/// its own.
pub(crate) async fn every_node_lists_the_same_members(cx: &Context) -> Outcome {
    ensure(cx.lite.is_member(), "this node is a member")?;
    same(cx.lite.node_id(), cx.me())?;
    let members = cx.lite.members();
    let ids: Vec<_> = members.iter().map(|member| member.node).collect();
    ensure(ids.is_sorted() && cx.nodes().iter().all(|node| ids.contains(node)), "all nodes, by id")?;
    let own = members.iter().find(|member| member.node == cx.me());
    same(own.map(|own| own.incarnation), Some(cx.lite.incarnation()))?;
    for (i, member) in members.iter().enumerate() {
        ensure(members.iter().skip(i + 1).all(|other| other.gid != member.gid), "two members have one GID")?;
    }
    // A node's own incarnation is the one that the others know.
    let mailbox = cx.lite.open_mailbox(cx.function(0), lite::RpcOptions::default())?;
    cx.meet().await?;
    for to in cx.nodes() {
        cx.lite.send(*to, cx.function(0), &cx.lite.incarnation().0.to_le_bytes()).await?;
    }
    for _ in cx.nodes() {
        let message = mailbox.receive().await?;
        let listed =
            members.iter().find(|member| member.node == message.from()).map(|member| member.incarnation);
        same(listed, Some(message.incarnation()))?;
        same(message.data(), &message.incarnation().0.to_le_bytes()[..])?;
    }
    cx.meet().await
}

/// A watcher waits while no node joins or leaves, and the members stay the same.
pub(crate) async fn a_watcher_waits_for_changes(cx: &Context) -> Outcome {
    let before = cx.lite.members();
    let mut watcher = cx.lite.watch();
    match select(pin!(watcher.next()), pin!(cx.lite.sleep(BRIEF))).await {
        Either::Left((change, _)) => Err(crate::Failure::new(alloc::format!("{change:?}"))),
        Either::Right(_) => same(cx.lite.members(), before),
    }
}

/// Handles of one LITE belong to one node, with any deadline, priority and application.
pub(crate) async fn handles_are_of_one_node(cx: &Context) -> Outcome {
    let app = App::new("one", Limits::default());
    let other = cx.lite.with_deadline(BRIEF).with_priority(lite::Priority::Low).for_app(&app);
    same((other.node_id(), other.incarnation()), (cx.me(), cx.lite.incarnation()))?;
    let server = cx.lite.register(cx.function(0), lite::RpcOptions::default())?;
    ensure(
        other.register(cx.function(0), lite::RpcOptions::default()).is_err(),
        "the handles share one set of functions",
    )?;
    drop(server);
    other.register(cx.function(0), lite::RpcOptions::default())?;
    Ok(())
}
