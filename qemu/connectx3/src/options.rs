//! A card's description on the command line: `SOCKET[,key=value...]`.

use crate::device::{Breakdown, Card, Function, Profile};
use crate::server::{Plug, Slot};
use anyhow::{Context, Error, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use verbs::MacAddr;

/// The keys of a card's description, for help and errors.
const KEYS: &str = "profile, mac, fabric, fabric2, link_s, fails, dies";

/// The longest time after which a link comes up, in seconds.
const LONGEST_DELAY: u64 = 3600;

/// A property of a card: `key=value` in its description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Property {
    /// The profile, by name.
    Profile(&'static str),
    /// The address of the first port.
    Mac(MacAddr),
    /// The fabric's socket to which the cable of a port leads. Ports count from 0.
    Fabric {
        /// The port.
        port: usize,
        /// The path of the socket.
        socket: PathBuf,
    },
    /// The time after which the links of ports come up that a driver has opened, in whole seconds.
    LinkDelay(Duration),
    /// The card fails after a number of sent frames.
    Fails {
        /// The way in which it fails.
        how: Breakdown,
        /// The number of frames.
        frames: u64,
    },
}

impl Property {
    /// Returns the key.
    #[must_use]
    pub const fn key(&self) -> &'static str {
        match self {
            Self::Profile(_) => "profile",
            Self::Mac(_) => "mac",
            Self::Fabric { port: 0, .. } => "fabric",
            Self::Fabric { .. } => "fabric2",
            Self::LinkDelay(_) => "link_s",
            Self::Fails { how: Breakdown::Once, .. } => "fails",
            Self::Fails { how: Breakdown::Permanent, .. } => "dies",
        }
    }
}

impl FromStr for Property {
    type Err = Error;

    /// Parses `key=value`. An error names the key, the value and the accepted values.
    fn from_str(text: &str) -> Result<Self> {
        let Some((key, value)) = text.split_once('=') else {
            bail!("\"{text}\" is not KEY=VALUE with a key of {KEYS}");
        };
        let fabric = |port| {
            ensure!(!value.is_empty(), "{key}: \"\" is not the path of a fabric's socket");
            Ok(Self::Fabric { port, socket: value.into() })
        };
        let fails = |how| {
            let frames =
                value.parse().ok().filter(|frames| *frames > 0).map(|frames| Self::Fails { how, frames });
            frames.with_context(|| {
                format!("{key}: \"{value}\" is not a number of sent frames, which is 1 or more")
            })
        };
        match key {
            "profile" => {
                let known = Profile::NAMES.into_iter().find(|name| *name == value);
                known.map(Self::Profile).with_context(|| {
                    format!("{key}: \"{value}\" is not a profile; the profiles are {}", Profile::NAMES.join(", "))
                })
            }
            "mac" => address(value).map(Self::Mac).with_context(|| {
                format!(
                    "{key}: \"{value}\" is not an address of a card, which is six pairs of hexadecimal digits, \
                     the first of them even, as in 00:02:c9:00:00:01"
                )
            }),
            "fabric" => fabric(0),
            "fabric2" => fabric(1),
            "link_s" => {
                let seconds = value.parse().ok().filter(|seconds| *seconds <= LONGEST_DELAY);
                let delay = seconds.map(|seconds| Self::LinkDelay(Duration::from_secs(seconds)));
                delay.with_context(|| {
                    format!("{key}: \"{value}\" is not a number of seconds, which is {LONGEST_DELAY} or less")
                })
            }
            "fails" => fails(Breakdown::Once),
            "dies" => fails(Breakdown::Permanent),
            _ => bail!("there is no key \"{key}\"; the keys are {KEYS}"),
        }
    }
}

/// Parses the description of a card. `index` is the card's number in the process; it determines the card's
/// address if the description has no `mac`.
///
/// # Errors
/// Fails if a property is invalid, is given twice, or is not for this profile. The error names the socket.
pub fn card(text: &str, index: u8) -> Result<(Slot, Card)> {
    let mut parts = text.split(',');
    let client = parts.next().filter(|socket| !socket.is_empty()).context("a card needs a socket")?;
    let made =
        parts.map(str::parse).collect::<Result<Vec<_>>>().and_then(|properties| make(&properties, index));
    let (plugs, card) = made.with_context(|| format!("card {client}"))?;
    Ok((Slot { client: client.into(), plugs }, card))
}

/// Makes a card with these properties. Also returns the destinations of its cables, as in [`Slot::plugs`].
///
/// # Errors
/// Fails if a property is given twice or is not for this profile.
pub fn make(properties: &[Property], index: u8) -> Result<(Vec<Plug>, Card)> {
    for (at, property) in properties.iter().enumerate() {
        let given = properties.iter().take(at).any(|earlier| earlier.key() == property.key());
        ensure!(!given, "{} is given twice", property.key());
    }
    let (mut name, mut mac) = (Profile::NAMES[0], MacAddr([0x00, 0x02, 0xc9, 0x00, index, 0x01]));
    let (mut plugs, mut failure, mut delay) = (Vec::new(), None, None);
    for property in properties {
        match property {
            Property::Profile(given) => name = given,
            Property::Mac(given) => mac = *given,
            Property::Fabric { port, socket } => plug(&mut plugs, *port, socket),
            Property::LinkDelay(given) => delay = Some(*given),
            Property::Fails { how, frames } => {
                ensure!(failure.is_none(), "a card fails or dies, but not both");
                failure = Some((property.key(), *how, *frames));
            }
        }
    }
    let mut profile = Profile::named(name, mac).with_context(|| format!("there is no profile \"{name}\""))?;
    let fits = plugs.len() <= profile.ports.len();
    ensure!(fits, "fabric2 is not for profile {name}, which has one port");
    profile.link_delay = delay.unwrap_or(profile.link_delay);
    let mut card = Card::new(profile);
    if let Some((key, how, frames)) = failure {
        let physical = card.profile().function == Function::Physical;
        ensure!(physical, "{key} is not for profile {name}: a virtual function has no error buffer");
        card.break_down(how, frames);
    }
    Ok((plugs, card))
}

fn plug(plugs: &mut Vec<Plug>, port: usize, socket: &Path) {
    if plugs.len() <= port {
        plugs.resize(port + 1, Plug::Switch);
    }
    plugs[port] = Plug::Fabric(socket.to_owned());
}

/// Parses a unicast address: six pairs of hexadecimal digits separated by colons.
fn address(text: &str) -> Option<MacAddr> {
    let is_pair = |pair: &str| pair.len() == 2 && pair.bytes().all(|digit| digit.is_ascii_hexdigit());
    let pairs = text.split(':').map(|pair| u8::from_str_radix(pair, 16).ok().filter(|_| is_pair(pair)));
    let bytes: [u8; 6] = pairs.collect::<Option<Vec<_>>>()?.try_into().ok()?;
    (bytes[0] & 1 == 0).then_some(MacAddr(bytes))
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
        assert!(made.profile().link_delay.is_zero());
        let (_, made) = card("a.sock,profile=ib,link_s=60", 3).unwrap();
        assert_eq!(made.profile().link_delay.as_secs(), 60);
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
    fn an_error_names_the_key_the_value_and_the_accepted_values() {
        for (text, says) in [
            ("", "a card needs a socket"),
            (
                "s,pro",
                "card s: \"pro\" is not KEY=VALUE with a key of profile, mac, fabric, fabric2, link_s, fails, dies",
            ),
            ("s,=5", "card s: there is no key \"\"; the keys are profile, mac,"),
            ("s,colour=red", "card s: there is no key \"colour\"; the keys are profile, mac,"),
            ("s,profile=x9", "card s: profile: \"x9\" is not a profile; the profiles are pro, pro-2port,"),
            ("s,mac=1:2", "card s: mac: \"1:2\" is not an address of a card, which is six pairs"),
            ("s,mac=00:00:00:00:00:+1", "card s: mac: \"00:00:00:00:00:+1\" is not an address"),
            ("s,mac=01:00:00:00:00:00", "the first of them even, as in 00:02:c9:00:00:01"),
            ("s,fabric=", "card s: fabric: \"\" is not the path of a fabric's socket"),
            ("s,fabric2=/f", "card s: fabric2 is not for profile pro, which has one port"),
            ("s,link_s=3601", "card s: link_s: \"3601\" is not a number of seconds, which is 3600 or less"),
            ("s,link_s=soon", "card s: link_s: \"soon\" is not a number of seconds"),
            ("s,fails=abc", "card s: fails: \"abc\" is not a number of sent frames, which is 1 or more"),
            ("s,fails=0", "card s: fails: \"0\" is not a number of sent frames"),
            ("s,fails=-1", "card s: fails: \"-1\" is not a number of sent frames"),
            ("s,dies=soon", "card s: dies: \"soon\" is not a number of sent frames"),
            ("s,dies=", "card s: dies: \"\" is not a number of sent frames"),
            ("s,fails=1,dies=1", "card s: a card fails or dies, but not both"),
            ("s,fails=1,fails=2", "card s: fails is given twice"),
            ("s,profile=vf,fails=9", "card s: fails is not for profile vf: a virtual function has"),
        ] {
            let error = format!("{:#}", card(text, 0).map(|_| ()).unwrap_err());
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
