//! Orders to the power controllers of machines: the steps of an order, by whichever way a controller is
//! reached. Each order has a deadline, and reads the password file again.

mod child;
mod command;
mod ipmi;
mod redfish;
mod tls;

pub use tls::check_ca;

use crate::core::{PowerOrder, PowerReport};
use crate::inventory::{Bmc, Way};
use crate::key::{self, SecretError};
use proto::{PowerVerb, printable};
use std::path::Path;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use zeroize::Zeroizing;

/// The pause between two looks at the power of a machine.
const LOOK: Duration = Duration::from_millis(500);
/// The time for which a machine stays without power when it is turned off and on: supplies keep their voltage
/// for a while, and some machines ignore a shorter pause.
const PAUSE: Duration = Duration::from_secs(1);
/// The length beyond which a file of a password is not read, in bytes.
const LONGEST_PASSWORD: u64 = 256;

/// A reason why a controller does not obey. It is one line for people.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error("{} holds no password: want one line of printable characters", .0)]
    NoPassword(String),
    #[error("{0}")]
    Other(String),
}

impl Trouble {
    fn other(reason: impl Into<String>) -> Self {
        Self::Other(reason.into())
    }
}

/// Obeys an order. Tells `tell` once the machine's power is confirmed off, and at the end.
pub(crate) async fn obey(order: PowerOrder, tell: impl Fn(PowerReport)) {
    let PowerOrder { number, node, verb, bmc } = order;
    let mut steps = Steps { node: &node, bmc: &bmc, seen: None, off: false };
    let confirmed = || tell(PowerReport::Off { number });
    let result = match timeout(bmc.timeout, steps.all(verb, confirmed)).await {
        Ok(Ok(on)) => Ok(on),
        Ok(Err(trouble)) => Err(trouble.to_string()),
        Err(_) => Err(steps.late()),
    };
    let result = result.map_err(|reason| {
        let so_far = if verb == PowerVerb::Cycle && steps.off { "; its power is off" } else { "" };
        printable(&format!("the BMC of {node} ({}): {reason}{so_far}", bmc.kind()))
    });
    tell(PowerReport::Ended { number, result });
}

/// The steps of one order.
struct Steps<'a> {
    node: &'a str,
    bmc: &'a Bmc,
    /// The power, as the controller has told it last.
    seen: Option<bool>,
    /// True once the order has turned the machine off.
    off: bool,
}

impl Steps<'_> {
    /// Does all steps. Returns true if the power is on at the end.
    async fn all(&mut self, verb: PowerVerb, confirmed: impl Fn()) -> Result<bool, Trouble> {
        match verb {
            PowerVerb::Status => {
                let on = self.look().await?;
                if !on {
                    confirmed();
                }
                Ok(on)
            }
            PowerVerb::On => self.reach(true).await,
            PowerVerb::Off => {
                self.reach(false).await?;
                confirmed();
                Ok(false)
            }
            PowerVerb::Cycle => {
                self.reach(false).await?;
                self.off = true;
                confirmed();
                sleep(PAUSE).await;
                self.reach(true).await
            }
        }
    }

    /// Turns the machine on or off, and waits until the controller tells that it is. A controller may refuse
    /// what is so already, and is not asked for it.
    async fn reach(&mut self, on: bool) -> Result<bool, Trouble> {
        if self.look().await? == on {
            return Ok(on);
        }
        match &self.bmc.way {
            Way::Command(program) => command::set(program, self.node, on).await?,
            Way::Ipmi(ipmi) => ipmi::set(ipmi, on).await?,
            Way::Redfish(redfish) => redfish::set(redfish, on).await?,
        }
        while self.look().await? != on {
            sleep(LOOK).await;
        }
        Ok(on)
    }

    async fn look(&mut self) -> Result<bool, Trouble> {
        let on = match &self.bmc.way {
            Way::Command(program) => command::look(program, self.node).await?,
            Way::Ipmi(ipmi) => ipmi::look(ipmi).await?,
            Way::Redfish(redfish) => redfish::look(redfish).await?,
        };
        self.seen = Some(on);
        Ok(on)
    }

    /// Returns the reason why an order is not obeyed in time.
    fn late(&self) -> String {
        let limit = self.bmc.timeout.as_secs();
        match self.seen {
            None => format!("no answer within {limit} s"),
            Some(on) => format!("not done within {limit} s: the power is {}", if on { "on" } else { "off" }),
        }
    }
}

/// Reads the password in a file.
fn password(file: &Path) -> Result<Zeroizing<String>, Trouble> {
    let text = key::read_secret("file of the password", file, LONGEST_PASSWORD)?;
    let text = str::from_utf8(&text).unwrap_or_default();
    let line = text.strip_suffix('\n').unwrap_or(text);
    if line.is_empty() || line.len() as u64 >= LONGEST_PASSWORD || line.chars().any(char::is_control) {
        return Err(Trouble::NoPassword(file.display().to_string()));
    }
    Ok(Zeroizing::new(line.into()))
}

/// Checks a file with a password.
///
/// # Errors
/// The error is the reason why no order can use the file, in one line.
pub fn check_password(file: &Path) -> Result<(), String> {
    password(file).map(drop).map_err(|trouble| trouble.to_string())
}
