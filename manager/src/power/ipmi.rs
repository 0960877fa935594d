//! A power controller that speaks IPMI 2.0 over a network (RMCP+), by Debian's program `ipmitool`. It reads
//! the password from its file, so the password is neither among its arguments nor in its environment.

use super::child::{self, Ended};
use super::{Trouble, password};
use crate::inventory::Ipmi;
use std::io;
use tokio::process::Command;

/// The length of the longest password of IPMI 2.0, in bytes.
const LONGEST: usize = 20;

/// Words of `ipmitool -v` about the user and the password, and what they mean.
const REFUSALS: [(&str, &str); 7] = [
    ("RAKP 2 HMAC is invalid", "wrong password"),
    ("unauthorized name", "wrong user"),
    ("invalid role", "the user may not do it: want the privilege OPERATOR"),
    ("failed: Insufficient privilege level", "the user may not do it: want the privilege OPERATOR"),
    ("no matching cipher suite", "it refuses the cipher suite: want another `cipher`"),
    ("invalid authentication algorithm", "it refuses the cipher suite: want another `cipher`"),
    ("Get Auth Capabilities error", "no answer from its address"),
];

pub(super) async fn set(ipmi: &Ipmi, on: bool) -> Result<(), Trouble> {
    run(ipmi, if on { "on" } else { "off" }).await.map(drop)
}

pub(super) async fn look(ipmi: &Ipmi) -> Result<bool, Trouble> {
    let ended = run(ipmi, "status").await?;
    let said = ended.stdout.trim();
    if said.ends_with("Chassis Power is on") {
        return Ok(true);
    }
    if said.ends_with("Chassis Power is off") {
        return Ok(false);
    }
    Err(Trouble::other("ipmitool tells neither that the power is on nor that it is off"))
}

async fn run(ipmi: &Ipmi, word: &str) -> Result<Ended, Trouble> {
    let Ipmi { host, port, cipher, user, password_file } = ipmi;
    let secret = password(password_file)?;
    if secret.len() > LONGEST {
        return Err(Trouble::other(format!("IPMI has passwords of at most {LONGEST} bytes")));
    }
    let mut command = Command::new("ipmitool");
    command.args(["-v", "-I", "lanplus", "-C", &cipher.to_string(), "-L", "OPERATOR", "-N", "1", "-R", "3"]);
    command.args(["-H", host, "-p", &port.to_string(), "-U", user, "-f"]).arg(password_file);
    command.args(["chassis", "power", word]);
    let ended = child::run(&mut command).await.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            Trouble::other("there is no ipmitool here: install Debian's package ipmitool")
        }
        _ => Trouble::other(format!("cannot run ipmitool: {error}")),
    })?;
    if ended.status.success() {
        return Ok(ended);
    }
    let known = REFUSALS.iter().find(|(words, _)| ended.stderr.contains(words));
    Err(known.map_or_else(|| child::failed(&ended), |(_, meaning)| Trouble::other(*meaning)))
}
