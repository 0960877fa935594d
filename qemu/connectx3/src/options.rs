//! A card's description on the command line: `SOCKET[,key=value...]`.

use crate::device::{Breakdown, Card, Function, Profile};
use crate::server::{Plug, Slot};
use anyhow::{Context, Result, bail, ensure};
use verbs::MacAddr;

/// The keys of a card's description, for help and errors.
pub const KEYS: &str = "profile, mac, fabric, fabric2, fails, dies";

/// Parses the description of a card. `index` is the card's number in the process; it determines the card's
/// address if the description has no `mac`.
///
/// # Errors
/// Fails if a key is unknown or a value is invalid.
pub fn card(text: &str, index: u8) -> Result<(Slot, Card)> {
    let mut parts = text.split(',');
    let client = parts.next().filter(|socket| !socket.is_empty()).context("a card needs a socket")?;
    let mut slot = Slot { client: client.into(), plugs: Vec::new() };
    let mut breakdown = None;
    let (mut profile, mut mac) = (Profile::NAMES[0], MacAddr([0x00, 0x02, 0xc9, 0x00, index, 0x01]));
    for part in parts {
        let Some((key, value)) = part.split_once('=') else {
            bail!("card {client}: \"{part}\" is not key=value; the keys are {KEYS}");
        };
        match key {
            "profile" => profile = value,
            "mac" => mac = address(value).with_context(|| format!("card {client}: mac={value}"))?,
            "fabric" => plug(&mut slot, 0, value),
            "fabric2" => plug(&mut slot, 1, value),
            "fails" | "dies" => {
                let how = if key == "fails" { Breakdown::Once } else { Breakdown::Permanent };
                let frames: Option<u64> = value.parse().ok().filter(|frames| *frames > 0);
                breakdown = Some((
                    how,
                    frames.with_context(|| {
                        format!("card {client}: {text}: {key}= takes a number of frames, from 1")
                    })?,
                ));
            }
            _ => bail!("card {client}: there is no key \"{key}\"; the keys are {KEYS}"),
        }
    }
    let Some(profile) = Profile::named(profile, mac) else {
        bail!("card {client}: there is no profile \"{profile}\"; there are {}", Profile::NAMES.join(", "));
    };
    ensure!(
        slot.plugs.len() <= profile.ports.len(),
        "card {client}: this profile has one port, so fabric2 is not allowed"
    );
    ensure!(
        breakdown.is_none() || profile.function == Function::Physical,
        "card {client}: a virtual function has no error buffer, so fails and dies are not allowed"
    );
    let mut card = Card::new(profile);
    if let Some((how, frames)) = breakdown {
        card.break_down(how, frames);
    }
    Ok((slot, card))
}

fn plug(slot: &mut Slot, port: usize, path: &str) {
    if slot.plugs.len() <= port {
        slot.plugs.resize(port + 1, Plug::Switch);
    }
    slot.plugs[port] = Plug::Fabric(path.into());
}

/// Parses a unicast address: six pairs of hexadecimal digits separated by colons.
fn address(text: &str) -> Result<MacAddr> {
    let bytes: Vec<u8> = text
        .split(':')
        .map(|pair| if pair.len() == 2 { u8::from_str_radix(pair, 16).ok() } else { None })
        .collect::<Option<_>>()
        .context("not an Ethernet address, such as 00:02:c9:00:00:01")?;
    let bytes: [u8; 6] = bytes.try_into().ok().context("an Ethernet address has six bytes")?;
    ensure!(bytes[0] & 1 == 0, "a card's address cannot be a group address");
    Ok(MacAddr(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_say_what_the_card_is() {
        let (slot, made) = card("a.sock,mac=02:00:00:00:00:0a,fabric=/tmp/f,fails=7", 3).unwrap();
        assert_eq!(slot.client.to_str(), Some("a.sock"));
        assert_eq!(slot.plugs, [Plug::Fabric("/tmp/f".into())]);
        assert_eq!(made.profile().ports[0].mac, MacAddr([2, 0, 0, 0, 0, 10]));
        let (slot, made) = card("b.sock", 3).unwrap();
        assert!(slot.plugs.is_empty());
        assert_eq!(made.profile().ports[0].mac, MacAddr([0, 2, 0xc9, 0, 3, 1]));
    }

    #[test]
    fn the_documentation_lists_every_profile() {
        let page = include_str!("../../../docs/reference/emulated-card.md");
        for (name, about) in Profile::described() {
            assert!(page.contains(&format!("| `{name}` | {about} |")), "{name}");
        }
    }

    #[test]
    fn what_means_nothing_is_refused_by_name() {
        for (text, says) in [
            ("", "needs a socket"),
            ("s,pro", "key=value"),
            ("s,colour=red", "no key \"colour\""),
            ("s,profile=x9", "no profile \"x9\""),
            ("s,mac=1:2", "mac=1:2"),
            ("s,mac=01:00:00:00:00:00", "mac=01"),
            ("s,fabric2=/f", "one port"),
            ("s,fails=0", "fails= takes a number"),
            ("s,dies=soon", "dies= takes a number"),
            ("s,profile=vf,fails=9", "virtual function"),
        ] {
            let error = format!("{:#}", card(text, 0).map(|_| ()).unwrap_err());
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
