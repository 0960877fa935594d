//! The check of a node that runs another image: it writes and reads memory of all its peers.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use lite::{Lite, Member, Permissions};
use proto::ToManager;

/// The memory of each peer that is written and read, in bytes.
const LEN: usize = 1 << 20;
/// The length of one operation, in bytes.
const PART: usize = 64 << 10;

/// Checks all peers, and tells the manager the result.
pub(crate) async fn answer(lite: &Lite, request: u32) {
    let result = peers(lite).await;
    match &result {
        Ok(()) => log::info!("check {request}: memory of all peers was written and read"),
        Err(reason) => log::warn!("check {request}: {reason}"),
    }
    if let Err(error) = lite.send_control(&ToManager::Checked { request, result }).await {
        log::warn!("cannot tell the manager the result of a check: {error}");
    }
}

async fn peers(lite: &Lite) -> Result<(), String> {
    let me = lite.node_id();
    for peer in lite.members().into_iter().filter(|member| member.node != me) {
        // A peer may have left since the list was made.
        if let Err(reason) = one(lite, &peer).await
            && lite.members().iter().any(|member| member.incarnation == peer.incarnation)
        {
            return Err(reason);
        }
    }
    Ok(())
}

/// Writes memory of a peer, and compares what it reads from there.
async fn one(lite: &Lite, peer: &Member) -> Result<(), String> {
    let failed = |error: lite::Error| format!("memory of {} ({}): {error}", peer.node, peer.name);
    let region = match lite.alloc(peer.node, LEN as u64, Permissions::READ | Permissions::WRITE).await {
        Ok(region) => region,
        // The peer has answered over RDMA. It is drained, or has no memory left.
        Err(lite::Error::NoMemory { .. }) => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    let mut checked = Ok(());
    for at in (0..LEN).step_by(PART) {
        let part = pattern(at / PART);
        let mut read = vec![0; PART];
        let done = async {
            region.write(at as u64, &part).await?;
            region.read(at as u64, &mut read).await
        };
        checked = done.await.map_err(failed);
        if checked.is_ok() && read != part {
            checked =
                Err(format!("memory of {} ({}) has other bytes than were written", peer.node, peer.name));
        }
        if checked.is_err() {
            break;
        }
    }
    let freed = region.free().await.map_err(failed);
    checked.and(freed)
}

/// Returns the bytes of a part, which differ from those of all others.
fn pattern(part: usize) -> vec::Vec<u8> {
    (0..PART).map(|at| (at / 251 + at * 7 + part * 13) as u8).collect()
}
