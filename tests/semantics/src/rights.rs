//! Rights on a region, and the operations that they allow.

use crate::context::{Context, RW, SHARED, USE, all_of, pattern};
use crate::failure::{Failure, Outcome, ensure, fails, same, same_bytes};
use alloc::format;
use alloc::vec;
use lite::{Error, Grantee, Lmr, Op, OpKind, Permissions, Placement};

const READ: Permissions = Permissions::READ;
const WRITE: Permissions = Permissions::WRITE;
const ATOMIC: Permissions = Permissions::ATOMIC;
const SHARE: Permissions = Permissions::SHARE;
const ADMIN: Permissions = Permissions::ADMIN;

/// Fails unless `result` is correct for a handle with the rights `has` and an operation that needs `needs`.
#[track_caller]
fn judged<T>(has: Permissions, needs: Permissions, result: Result<T, Error>) -> Outcome {
    match (has.contains(needs), result) {
        (true, Ok(_)) | (false, Err(Error::Permission)) => Ok(()),
        (_, Err(error)) => Err(Failure::new(format!("{needs:?} with {has:?}: `{error}`"))),
        (false, Ok(_)) => Err(Failure::new(format!("{needs:?} is not refused with {has:?}"))),
    }
}

/// Performs each operation on the bytes. Exactly those succeed to which the handle has the right.
async fn each_operation(cx: &Context, lmr: &Lmr, has: Permissions) -> Outcome {
    judged(has, READ, lmr.read(3, &mut [0; 40]).await)?;
    judged(has, READ, lmr.read_vectored(&mut [(0, &mut [0]), (20, &mut [0; 5])]).await)?;
    judged(has, WRITE, lmr.write(3, &[7; 40]).await)?;
    judged(has, WRITE, lmr.write_vectored(&[(0, &[1]), (20, &[1; 5])]).await)?;
    judged(has, WRITE, lmr.memset(0, 64, 9).await)?;
    judged(has, ATOMIC, lmr.fetch_add(8, 1).await)?;
    judged(has, ATOMIC, lmr.compare_swap(8, 0, 1).await)?;
    judged(has, ATOMIC, lmr.test_and_set(16).await)?;
    let own = cx.lite.alloc(cx.me(), 64, RW).await?;
    judged(has, READ, lmr.memmove(0, &own, 0, 64).await)?;
    judged(has, READ, lmr.memcpy(0, &own, 0, 64).await)?;
    judged(has, WRITE, own.memmove(0, lmr, 0, 64).await)?;
    judged(has, WRITE, own.memcpy(0, lmr, 0, 64).await)?;
    own.free().await?;
    let queue = cx.lite.completion_queue(4);
    let op = |kind| Op { tag: 1, lmr, offset: 0, kind };
    judged(has, READ, queue.post(&[op(OpKind::Read(8))]).await)?;
    judged(has, WRITE, queue.post(&[op(OpKind::Write(&[1; 8]))]).await)?;
    judged(has, ATOMIC, queue.post(&[op(OpKind::FetchAdd(1))]).await)?;
    judged(has, ATOMIC, queue.post(&[op(OpKind::CompareSwap(0, 1))]).await)?;
    let mut into = [0; 8];
    while let Some(done) = queue.next(&mut into).await {
        done.result?;
    }
    Ok(())
}

/// READ, WRITE and ATOMIC: a handle's operations succeed where it has the right, and the others are refused.
pub(crate) async fn each_operation_needs_its_right(cx: &Context) -> Outcome {
    let name = |kind| cx.name_of(kind, cx.rank());
    for (what, lmr) in cx.everywhere(64).await? {
        lmr.publish(&name(what)).await?;
        for has in [READ, WRITE, ATOMIC, READ | ATOMIC, RW, USE, Permissions::empty()] {
            let handle = cx.lite.map(&name(what), has).await?;
            same(handle.permissions(), has)?;
            each_operation(cx, &handle, has).await?;
        }
        lmr.free().await?;
    }
    Ok(())
}

/// Without ADMIN, a handle cannot change the region.
pub(crate) async fn what_changes_a_region_needs_admin(cx: &Context) -> Outcome {
    let name = cx.name_of("region", cx.rank());
    let lmr = cx.lite.alloc(cx.next(), 64, SHARED).await?;
    lmr.publish(&name).await?;
    let handle = cx.lite.map(&name, SHARED).await?;
    fails(handle.publish(&cx.name_of("mine", cx.rank())).await, Error::Permission)?;
    fails(handle.grant(cx.me(), ADMIN).await, Error::Permission)?;
    fails(handle.revoke(Grantee::Everyone, USE).await, Error::Permission)?;
    fails(handle.set_secret(b"secret").await, Error::Permission)?;
    fails(handle.hand_over(cx.after_next()).await, Error::Permission)?;
    fails(handle.move_to(cx.me()).await, Error::Permission)?;
    fails(handle.move_to(Placement::Anywhere).await, Error::Permission)?;
    fails(handle.clone().free().await, Error::Permission)?;
    // Nothing has changed.
    same((handle.node(), cx.lite.map(&name, USE).await?.permissions()), (cx.next(), USE))?;
    each_operation(cx, &handle, USE).await?;
    lmr.free().await?;
    Ok(())
}

/// A node maps a region with at most the granted rights; ADMIN must be granted explicitly.
pub(crate) async fn a_map_gets_no_more_than_is_granted(cx: &Context) -> Outcome {
    let name = |rank| cx.name_of("region", rank);
    let lmr = cx.lite.alloc(cx.me(), 64, READ | ATOMIC | SHARE).await?;
    lmr.publish(&name(cx.rank())).await?;
    let theirs = name((cx.rank() + 1) % cx.count());
    cx.lite.map_wait(&theirs, READ | ATOMIC).await?;
    for more in [WRITE, USE, ADMIN, READ | ADMIN, Permissions::all()] {
        fails(cx.lite.map(&theirs, more).await, Error::Permission)?;
    }
    cx.meet().await?;
    lmr.free().await?;
    Ok(())
}

/// The node that allocates a region has all rights on it, whatever it grants to others. If SHARE is granted
/// to no node, the region has no name.
pub(crate) async fn the_master_has_all_rights(cx: &Context) -> Outcome {
    let name = cx.name_of("region", cx.rank());
    let lmr = cx.lite.alloc(cx.next(), 64, Permissions::empty()).await?;
    same(lmr.permissions(), Permissions::all())?;
    each_operation(cx, &lmr, USE).await?;
    fails(lmr.publish(&name).await, Error::Permission)?;
    lmr.grant(cx.after_next(), SHARE).await?;
    lmr.publish(&name).await?;
    same(cx.lite.map(&name, Permissions::all()).await?.permissions(), Permissions::all())?;
    lmr.free().await?;
    Ok(())
}

/// Only a node with SHARE can map by name.
pub(crate) async fn mapping_by_name_needs_share(cx: &Context) -> Outcome {
    let name = cx.name("region");
    if cx.rank() == 0 {
        let lmr = cx.lite.alloc(cx.node(1), 64, RW).await?;
        lmr.grant(cx.node(1), SHARE).await?;
        lmr.publish(&name).await?;
        cx.meet().await?;
        cx.meet().await?;
        lmr.free().await?;
        return Ok(());
    }
    cx.meet().await?;
    let mapped = cx.lite.map(&name, RW).await;
    if cx.rank() == 1 {
        same(mapped?.permissions(), RW)?;
    } else {
        fails(mapped, Error::Permission)?;
    }
    cx.meet().await
}

/// Rights can be granted at run time, to one node or to all. They apply to later mappings; existing handles
/// keep their rights.
pub(crate) async fn what_is_granted_counts_from_then_on(cx: &Context) -> Outcome {
    let name = cx.name("region");
    if cx.rank() == 0 {
        let lmr = cx.lite.alloc(cx.node(2), 64, READ | SHARE).await?;
        lmr.publish(&name).await?;
        cx.meet().await?;
        cx.meet().await?;
        lmr.grant(cx.node(1), WRITE).await?;
        cx.meet().await?;
        cx.meet().await?;
        lmr.grant(Grantee::Everyone, ATOMIC).await?;
        cx.meet().await?;
        cx.meet().await?;
        lmr.free().await?;
        return Ok(());
    }
    cx.meet().await?;
    let early = cx.lite.map(&name, READ).await?;
    fails(cx.lite.map(&name, RW).await, Error::Permission)?;
    cx.meet().await?;
    cx.meet().await?;
    match (cx.rank(), cx.lite.map(&name, RW).await) {
        (1, mapped) => mapped?.write(0, &[1]).await?,
        (_, mapped) => fails(mapped, Error::Permission)?,
    }
    cx.meet().await?;
    cx.meet().await?;
    cx.lite.map(&name, READ | ATOMIC).await?.fetch_add(8, 1).await?;
    fails(early.fetch_add(8, 1).await, Error::Permission)?;
    fails(early.write(0, &[1]).await, Error::Permission)?;
    cx.meet().await
}

/// From the return of `revoke` on, no operation that needs the right takes effect through any handle of the
/// node, and the node cannot map with it. The bytes stay as they were at that moment.
pub(crate) async fn what_is_revoked_is_refused_at_once(cx: &Context) -> Outcome {
    const LEN: usize = 60_000;
    let name = cx.name("region");
    if cx.rank() == 0 {
        let nodes = vec![cx.node(2), cx.node(0)];
        let lmr = cx.lite.alloc(Placement::Striped { nodes, stripe: 8192 }, LEN as u64, SHARED).await?;
        lmr.publish(&name).await?;
        cx.meet().await?;
        // The others write in the meantime.
        while all_of(&lmr).await?.iter().all(|b| *b == 0) {
            platform::yield_now().await;
        }
        lmr.revoke(Grantee::Everyone, WRITE).await?;
        let then = all_of(&lmr).await?;
        cx.meet().await?;
        cx.meet().await?;
        same_bytes(&all_of(&lmr).await?, &then)?;
        // The master's own rights are never revoked.
        lmr.write(0, &[1]).await?;
        lmr.free().await?;
        return Ok(());
    }
    let lmr = cx.lite.map_wait(&name, RW).await?;
    let other = cx.lite.map(&name, USE).await?;
    cx.meet().await?;
    let data = pattern(LEN, cx.rank());
    let ended = loop {
        if let Err(error) = lmr.write(0, &data).await {
            break error;
        }
    };
    same(ended, Error::Permission)?;
    cx.meet().await?;
    for handle in [&lmr, &other] {
        fails(handle.write(0, &data).await, Error::Permission)?;
        fails(handle.write(0, &data[..8]).await, Error::Permission)?;
        fails(handle.memset(0, LEN as u64, 1).await, Error::Permission)?;
        handle.read(0, &mut [0; 100]).await?;
    }
    same(other.permissions(), READ | ATOMIC)?;
    other.fetch_add((LEN - 8) as u64, 0).await?;
    fails(cx.lite.map(&name, RW).await, Error::Permission)?;
    cx.meet().await
}

/// A right that is revoked from one node stays with the others, and a right that is granted again can be used
/// in new mappings.
pub(crate) async fn revoking_concerns_whom_it_names(cx: &Context) -> Outcome {
    let name = cx.name("region");
    if cx.rank() == 0 {
        let lmr = cx.lite.alloc(cx.node(0), 64, SHARED).await?;
        lmr.publish(&name).await?;
        cx.meet().await?;
        lmr.revoke(cx.node(1), READ | ATOMIC).await?;
        cx.meet().await?;
        cx.meet().await?;
        lmr.grant(cx.node(1), READ).await?;
        cx.meet().await?;
        cx.meet().await?;
        lmr.free().await?;
        return Ok(());
    }
    let lmr = cx.lite.map_wait(&name, USE).await?;
    cx.meet().await?;
    cx.meet().await?;
    let left = if cx.rank() == 1 { WRITE } else { USE };
    same(lmr.permissions(), left)?;
    each_operation(cx, &lmr, left).await?;
    cx.meet().await?;
    cx.meet().await?;
    same(lmr.permissions(), left)?;
    each_operation(cx, &cx.lite.map(&name, RW).await?, RW).await?;
    cx.meet().await
}

/// A region with a secret can be mapped only with the secret.
pub(crate) async fn a_secret_must_be_given(cx: &Context) -> Outcome {
    let name = cx.name("region");
    if cx.rank() == 0 {
        let lmr = cx.lite.alloc(cx.node(1), 64, SHARED).await?;
        lmr.set_secret(b"open sesame").await?;
        fails(lmr.set_secret(&[7; 257]).await, Error::TooLarge { max: 256 })?;
        lmr.publish(&name).await?;
        cx.meet().await?;
        cx.meet().await?;
        lmr.set_secret(&[9; 256]).await?;
        cx.meet().await?;
        cx.meet().await?;
        lmr.set_secret(b"").await?;
        cx.meet().await?;
        cx.meet().await?;
        lmr.free().await?;
        return Ok(());
    }
    cx.meet().await?;
    for wrong in [&b""[..], b"open", b"open sesame ", b"Open sesame", &[0; 11], &[7; 300]] {
        fails(cx.lite.map_secret(&name, RW, wrong).await, Error::Permission)?;
    }
    fails(cx.lite.map(&name, RW).await, Error::Permission)?;
    fails(cx.lite.map_secret(&name, ADMIN, b"open sesame").await, Error::Permission)?;
    let early = cx.lite.map_secret(&name, RW, b"open sesame").await?;
    cx.meet().await?;
    cx.meet().await?;
    fails(cx.lite.map_secret(&name, RW, b"open sesame").await, Error::Permission)?;
    cx.lite.map_secret(&name, RW, &[9; 256]).await?;
    // Existing handles stay valid.
    early.read(0, &mut [0]).await?;
    cx.meet().await?;
    cx.meet().await?;
    cx.lite.map(&name, RW).await?;
    cx.meet().await
}

/// ADMIN can be granted: its holder can do everything that the master can.
pub(crate) async fn admin_is_granted_like_other_rights(cx: &Context) -> Outcome {
    let (name, by_other) = (cx.name("region"), cx.name("by another"));
    if cx.rank() == 0 {
        let lmr = cx.lite.alloc(cx.node(2), 64, SHARED).await?;
        lmr.grant(cx.node(1), ADMIN).await?;
        lmr.publish(&name).await?;
        cx.meet().await?;
        cx.meet().await?;
        fails(lmr.read(0, &mut [0]).await, Error::Freed)?;
        return Ok(());
    }
    if cx.rank() == 1 {
        let lmr = cx.lite.map_wait(&name, Permissions::all()).await?;
        lmr.publish(&by_other).await?;
        lmr.grant(cx.node(2), ATOMIC).await?;
        lmr.revoke(Grantee::Everyone, READ).await?;
        lmr.move_to(cx.node(1)).await?;
        same(lmr.node(), cx.node(1))?;
        cx.meet().await?;
        fails(cx.lite.map(&name, READ).await, Error::Permission)?;
        lmr.free().await?;
    } else {
        cx.meet().await?;
    }
    cx.meet().await
}

/// A region has one master, which may hand over its role. The former master keeps its handle until that is
/// revoked.
pub(crate) async fn the_master_hands_over(cx: &Context) -> Outcome {
    let name = cx.name("region");
    if cx.rank() == 0 {
        let lmr = cx.lite.alloc(cx.node(2), 64, READ | SHARE).await?;
        lmr.publish(&name).await?;
        lmr.hand_over(cx.node(1)).await?;
        lmr.write(0, b"former").await?;
        cx.meet().await?;
        cx.meet().await?;
        fails(lmr.write(0, b"x").await, Error::Permission)?;
        fails(lmr.grant(cx.node(0), ADMIN).await, Error::Permission)?;
        lmr.read(0, &mut [0]).await?;
        fails(cx.lite.map(&name, WRITE).await, Error::Permission)?;
        return cx.meet().await;
    }
    cx.meet().await?;
    if cx.rank() != 1 {
        fails(cx.lite.map(&name, ADMIN).await, Error::Permission)?;
        cx.meet().await?;
        return cx.meet().await;
    }
    let lmr = cx.lite.map(&name, Permissions::all()).await?;
    lmr.revoke(Grantee::Everyone, WRITE | ADMIN | ATOMIC).await?;
    ensure(lmr.permissions().contains(Permissions::all()), "the master's own rights are revoked")?;
    cx.meet().await?;
    cx.meet().await?;
    lmr.write(0, b"master").await?;
    lmr.free().await?;
    Ok(())
}
