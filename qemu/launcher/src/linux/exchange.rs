//! A server in one Linux guest and its client in another: perftest, ping-pongs, `rping`, `iperf3` and similar
//! programs.

use super::channel::Output;
use super::guest::Guest;
use anyhow::{Context, Result, ensure};
use std::time::Duration;

/// The time limit for a server to listen, and to end after its client.
const TURN: Duration = Duration::from_secs(30);

/// The sign by which a server shows that it waits for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listens {
    /// A listening TCP port.
    Tcp(u16),
    /// A listener of the RDMA connection manager.
    RdmaCm,
}

impl Listens {
    /// The TCP port of perftest and the ping-pongs.
    pub const PERFTEST: Self = Self::Tcp(18515);

    /// Returns a shell command that succeeds when the server listens.
    fn condition(self) -> String {
        match self {
            // `/proc/net/tcp` writes the port and the state LISTEN in this form.
            Self::Tcp(port) => format!("grep -q ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6"),
            Self::RdmaCm => "rdma resource show cm_id | grep -q LISTEN".to_owned(),
        }
    }
}

/// The outputs of both programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchanged {
    /// The standard output of the server.
    pub server: String,
    /// The standard output of the client.
    pub client: String,
}

/// Runs a server until it listens, then its client, and waits for the end of both. Both must succeed.
/// `within` limits the client's time; a server that does not end after its client is killed.
pub fn exchange(
    server: &mut Guest,
    serve: &str,
    listens: Listens,
    client: &mut Guest,
    ask: &str,
    within: Duration,
) -> Result<Exchanged> {
    let job = server.background(serve)?;
    let of_server = || format!("the server `{serve}`");
    let wait = format!(
        "until {}; do kill -0 {1} 2>/dev/null || exit 1; usleep 10000; done",
        listens.condition(),
        job.group()
    );
    let listening = server.run(&wait, TURN).map(|output| output.status.success());
    if !matches!(listening, Ok(true)) {
        let (out, err) = server.printed(&job)?;
        server.signal(&job, "KILL")?;
        let said = [out, err].map(|text| String::from_utf8_lossy(&text).trim().to_owned()).join(" ");
        anyhow::bail!("{} does not listen: {said}", of_server());
    }
    let asked = client.check(ask, within);
    let ended = if asked.is_ok() { server.wait_for(&job, TURN) } else { Err(anyhow::anyhow!("no client")) };
    if ended.is_err() {
        server.signal(&job, "KILL")?;
    }
    let asked = asked.with_context(|| {
        let (out, err) = server.printed(&job).unwrap_or_default();
        let said = [out, err].map(|text| String::from_utf8_lossy(&text).trim().to_owned()).join(" ");
        format!("{} said: {said}", of_server())
    })?;
    let Output { status, stdout, stderr } = ended.with_context(of_server)?;
    let said = String::from_utf8_lossy(&stdout).into_owned();
    ensure!(
        status.success(),
        "{}: status {}: {} {}",
        of_server(),
        status.0,
        said.trim(),
        String::from_utf8_lossy(&stderr).trim()
    );
    Ok(Exchanged { server: said, client: asked })
}
