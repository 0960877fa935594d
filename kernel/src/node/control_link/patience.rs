//! Attempts to join until one succeeds: the cause of a failure is printed, and may end without this node.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use bootconfig::Backoff;
use core::future::poll_fn;
use core::time::Duration;
use platform::ControlLink;
use proto::channel::ClusterKey;
use proto::{Hello, Join, ToManager, Welcome};

use super::ManagerLink;
use super::again::{self, Means};
use super::join::{Attempt, JoinError, dns_servers, managers};
use super::poller::LinkPoller;
use crate::net::stack::{Buffers, Stack};
use crate::{cmdline, exec, former, net, random, report, time};

/// The buffers of a connection for one message.
const SMALL_BUFFERS: Buffers = Buffers { receive: 16 << 10, send: 16 << 10 };

/// Checks the settings of an attempt to join.
///
/// # Errors
/// A line for the user: `manager=`, `dns=` or `retry=` is malformed.
pub(crate) fn check() -> Result<(), String> {
    dns_servers().map_err(|why| format!("{why}"))?;
    match managers() {
        Ok(_) | Err(JoinError::NoneNamed) => retries().map(|_| ()),
        Err(why) => Err(format!("{why}")),
    }
}

/// Parses `retry=`.
pub(crate) fn retries() -> Result<bool, String> {
    match cmdline::get("retry").unwrap_or("on") {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(format!("retry={other}: want on or off")),
    }
}

/// Tells the manager the last words of the machine's former boot, if there are any.
async fn tell_former_end(link: &ManagerLink) {
    let Some(words) = former::words() else { return };
    let message = proto::encode(&ToManager::FormerEnd { reason: words.into() });
    if poll_fn(|cx| link.poll_send(cx, &message)).await.is_ok() {
        former::forget();
    }
}

/// Sends the report on the machine's hardware to the manager, if there is one.
async fn tell_hardware(link: &ManagerLink) {
    let lines = report::take();
    if lines.is_empty() {
        return;
    }
    let message = proto::encode(&ToManager::HardwareReport { lines });
    // A manager that is lost now is missed by the next message.
    let _ = poll_fn(|cx| link.poll_send(cx, &message)).await;
}

/// Joins the cluster of `manager=`. An attempt that fails is followed by another after a pause, which doubles
/// from one second to one minute. On success the connection is up and sends heartbeats by itself. It outlasts
/// a manager that is silent for at most `silence` beyond the lease.
///
/// # Errors
/// A line for the user: another attempt would not help, or `retry=off` asks for one attempt only.
pub(crate) async fn join(
    stack: &'static Stack,
    key: &ClusterKey,
    buffers: Buffers,
    silence: Option<Duration>,
    offer: &(dyn Fn() -> Join + Sync),
) -> Result<(Arc<ManagerLink>, Welcome), String> {
    let retries = retries()?;
    // Before the first await: a task that computes later must not delay the adoption of the poller.
    LinkPoller::register();
    let attempt = Attempt { stack, key, buffers, silence };
    let mut backoff = Backoff::default();
    let mut turn = 0;
    loop {
        let why = match attempt.run(turn, offer).await {
            Ok((link, welcome)) => {
                again::watch(link.clone(), Means { stack, key: key.clone(), buffers, silence });
                tell_former_end(&link).await;
                tell_hardware(&link).await;
                return Ok((link, welcome));
            }
            Err(why) => why,
        };
        if why.is_final() || !retries {
            return Err(format!("{why}"));
        }
        wait(&mut backoff, stack, &why, "join").await;
        turn += 1;
    }
}

/// Says that an attempt has failed, and waits for the next one.
async fn wait(backoff: &mut Backoff, stack: &'static Stack, why: &JoinError, what: &str) {
    let mut draw = [0; 4];
    random::fill(&mut draw);
    let pause = backoff.pause(u32::from_le_bytes(draw));
    log::error!(
        "cannot {what}: {why}; next attempt in {}.{} s",
        pause.as_secs(),
        pause.subsec_millis() / 100
    );
    match why {
        // A port that gets its address ends the pause.
        JoinError::NoAddress(..) => {
            let _ = net::with_deadline(time::now() + pause, stack.configured()).await;
        }
        _ => exec::sleep(pause).await,
    }
}

/// Tells a manager that this node does not start, as soon as one can be reached. DHCP may name it.
///
/// # Errors
/// A line for the user: another attempt would not help.
pub(crate) async fn tell(stack: &'static Stack, key: &ClusterKey, unfit: &Hello) -> Result<(), String> {
    let attempt = Attempt { stack, key, buffers: SMALL_BUFFERS, silence: None };
    let mut backoff = Backoff::default();
    let mut turn = 0;
    loop {
        match attempt.tell(turn, unfit).await {
            Ok(()) => return Ok(()),
            Err(why) if why.is_final() => return Err(format!("{why}")),
            Err(why) => wait(&mut backoff, stack, &why, "tell the manager").await,
        }
        turn += 1;
    }
}
