//! The nodes of the manager's configuration file: its inventory.

use super::args::bytes;
use super::toml_file::Source;
use anyhow::Result;
use manager::inventory::{
    Bmc, Expected, Inventory, Ipmi, MOST, Redfish, Trust, Way, parse_digest, parse_mac,
};
use manager::power::{check_ca, check_password};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// The UDP port of IPMI over a network.
const IPMI: u16 = 623;
/// The cipher suite of IPMI that all controllers have had to have: HMAC-SHA1 and AES-128.
const CIPHER: u8 = 3;
/// The cipher suites that authenticate and encrypt.
const CIPHERS: [u8; 2] = [CIPHER, 17];
/// The longest time of an order, in seconds: the usual one, and the greatest. A client waits for 60 s.
const TIMEOUT: u64 = 30;
const MOST_TIMEOUT: u64 = 50;
/// The length of the longest name of a node or a user, in bytes.
const LONGEST_NAME: usize = 64;

/// A node that the operator expects.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeTable {
    name: Spanned<String>,
    mac: Option<Spanned<String>>,
    cpus: Option<Spanned<u16>>,
    memory: Option<Spanned<String>>,
    kernel: Option<Spanned<String>>,
    bmc: Option<Spanned<BmcTable>>,
}

/// The kind of a power controller.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Command,
    Ipmi,
    Redfish,
}

/// A power controller.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BmcTable {
    kind: Kind,
    program: Option<Spanned<PathBuf>>,
    address: Option<Spanned<String>>,
    user: Option<Spanned<String>>,
    password_file: Option<Spanned<PathBuf>>,
    cipher: Option<Spanned<u8>>,
    system: Option<Spanned<String>>,
    ca: Option<Spanned<PathBuf>>,
    certificate: Option<Spanned<String>>,
    insecure: Option<Spanned<bool>>,
    timeout: Option<Spanned<u64>>,
}

/// Reads the nodes. Relative paths count from `directory`.
pub(super) fn read(tables: &[NodeTable], source: &Source<'_>, directory: &Path) -> Result<Inventory> {
    let mut nodes = BTreeMap::new();
    for table in tables {
        let name = table.name.get_ref();
        let wrong = |what: String| source.mistake(&table.name.span(), format!("name: {what}"));
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > LONGEST_NAME || !name.bytes().all(allowed) {
            let most = LONGEST_NAME;
            return Err(wrong(format!("want at most {most} letters, digits, `-`, `_` and `.`")));
        }
        if nodes.len() == MOST {
            return Err(wrong(format!("there are {MOST} nodes already")));
        }
        if nodes.insert(name.clone(), table.expected(source, directory)?).is_some() {
            return Err(wrong(format!("there are two nodes {name}")));
        }
    }
    Ok(Inventory(nodes))
}

impl NodeTable {
    fn expected(&self, source: &Source<'_>, directory: &Path) -> Result<Expected> {
        let Self { mac, cpus, memory, kernel, bmc, .. } = self;
        let some = |cpus: &u16| if *cpus == 0 { Err("want 1 or more".into()) } else { Ok(*cpus) };
        let address = |text: &String| {
            let want = || format!("{text} is no address like 52:54:00:12:34:56");
            parse_mac(text).ok_or_else(want)
        };
        let bmc = match bmc {
            Some(table) => {
                let reader = Reader { source, directory, whole: table };
                Some(reader.bmc(table.get_ref())?)
            }
            None => None,
        };
        Ok(Expected {
            mac: source.value("mac", mac.as_ref(), address)?,
            cpus: source.value("cpus", cpus.as_ref(), some)?,
            memory: source.value("memory", memory.as_ref(), |text| bytes(text))?,
            kernel: source.value("kernel", kernel.as_ref(), |text| digest(text))?,
            bmc,
        })
    }
}

fn digest(text: &str) -> Result<[u8; 32], String> {
    parse_digest(text).ok_or_else(|| "want the 64 digits of a SHA-256".into())
}

/// Reads a power controller.
struct Reader<'a> {
    source: &'a Source<'a>,
    directory: &'a Path,
    whole: &'a Spanned<BmcTable>,
}

impl Reader<'_> {
    fn bmc(&self, table: &BmcTable) -> Result<Bmc> {
        let seconds = self.source.value("timeout", table.timeout.as_ref(), |timeout| {
            let right = (1..=MOST_TIMEOUT).contains(timeout);
            if right { Ok(*timeout) } else { Err(format!("want a number from 1 to {MOST_TIMEOUT}")) }
        })?;
        let way = match table.kind {
            Kind::Command => Way::Command(self.command(table)?),
            Kind::Ipmi => Way::Ipmi(self.ipmi(table)?),
            Kind::Redfish => Way::Redfish(self.redfish(table)?),
        };
        Ok(Bmc { way, timeout: Duration::from_secs(seconds.unwrap_or(TIMEOUT)) })
    }

    /// Returns a key that a kind of controller needs.
    fn need<V>(&self, key: &str, found: Option<V>) -> Result<V> {
        found.ok_or_else(|| self.source.mistake(&self.whole.span(), format!("bmc: it lacks {key}")))
    }

    /// Refuses a key of another kind of controller.
    fn refuse<T>(&self, kind: &str, key: &str, part: Option<&Spanned<T>>) -> Result<()> {
        let other = |_: &T| Err::<(), _>(format!("a BMC of kind {kind} has no such key"));
        self.source.value(key, part, other).map(drop)
    }

    fn file(&self, file: &Path) -> PathBuf {
        self.directory.join(file)
    }

    fn command(&self, table: &BmcTable) -> Result<PathBuf> {
        const KIND: &str = "command";
        self.refuse(KIND, "address", table.address.as_ref())?;
        self.refuse(KIND, "user", table.user.as_ref())?;
        self.refuse(KIND, "password_file", table.password_file.as_ref())?;
        self.refuse(KIND, "cipher", table.cipher.as_ref())?;
        self.refuse_tls(KIND, table)?;
        let program = self.source.value("program", table.program.as_ref(), |program| {
            let program = self.file(program);
            if program.is_file() { Ok(program) } else { Err(format!("{} is no file", program.display())) }
        })?;
        self.need("program", program)
    }

    fn refuse_tls(&self, kind: &str, table: &BmcTable) -> Result<()> {
        self.refuse(kind, "system", table.system.as_ref())?;
        self.refuse(kind, "ca", table.ca.as_ref())?;
        self.refuse(kind, "certificate", table.certificate.as_ref())?;
        self.refuse(kind, "insecure", table.insecure.as_ref())
    }

    fn account(&self, table: &BmcTable) -> Result<(String, PathBuf)> {
        let user = self.source.value("user", table.user.as_ref(), |user| {
            let right = (1..=LONGEST_NAME).contains(&user.len())
                && user.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':');
            if right { Ok(user.clone()) } else { Err("want printable characters without `:`".into()) }
        })?;
        let file = self.source.value("password_file", table.password_file.as_ref(), |file| {
            let file = self.file(file);
            check_password(&file).map(|()| file)
        })?;
        Ok((self.need("user", user)?, self.need("password_file", file)?))
    }

    fn ipmi(&self, table: &BmcTable) -> Result<Ipmi> {
        const KIND: &str = "ipmi";
        self.refuse(KIND, "program", table.program.as_ref())?;
        self.refuse_tls(KIND, table)?;
        let place = self.source.value("address", table.address.as_ref(), |text| place(text, IPMI))?;
        let cipher = self.source.value("cipher", table.cipher.as_ref(), |cipher| {
            if CIPHERS.contains(cipher) { Ok(*cipher) } else { Err(format!("want one of {CIPHERS:?}")) }
        })?;
        let (host, port) = self.need("address", place)?;
        let (user, password_file) = self.account(table)?;
        Ok(Ipmi { host, port, cipher: cipher.unwrap_or(CIPHER), user, password_file })
    }

    fn redfish(&self, table: &BmcTable) -> Result<Redfish> {
        const KIND: &str = "redfish";
        self.refuse(KIND, "program", table.program.as_ref())?;
        self.refuse(KIND, "cipher", table.cipher.as_ref())?;
        let url = self.source.value("address", table.address.as_ref(), |url| {
            let (tls, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
                (Some(rest), _) => (true, rest),
                (_, Some(rest)) => (false, rest),
                _ => return Err("want https://HOST or https://HOST:PORT".into()),
            };
            place(rest.trim_end_matches('/'), if tls { 443 } else { 80 }).map(|place| (tls, place))
        })?;
        let (tls, (host, port)) = self.need("address", url)?;
        let system = self.source.value("system", table.system.as_ref(), |path| {
            let right = path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic());
            if right { Ok(path.clone()) } else { Err("want a path like /redfish/v1/Systems/1".into()) }
        })?;
        let trust = self.trust(table, tls)?;
        let (user, password_file) = self.account(table)?;
        Ok(Redfish { host, port, system, user, password_file, trust })
    }

    fn trust(&self, table: &BmcTable, tls: bool) -> Result<Trust> {
        let ca = self.source.value("ca", table.ca.as_ref(), |file| {
            let file = self.file(file);
            check_ca(&file).map(|()| Trust::Ca(file))
        })?;
        let certificate =
            self.source.value("certificate", table.certificate.as_ref(), |text| digest(text))?;
        let insecure = table.insecure.as_ref().is_some_and(|insecure| *insecure.get_ref());
        match (tls, ca, certificate, insecure) {
            (true, Some(ca), None, false) => Ok(ca),
            (true, None, Some(digest), false) => Ok(Trust::Certificate(digest)),
            (true, None, None, true) => Ok(Trust::Any),
            (false, None, None, true) => Ok(Trust::Plain),
            (true, ..) => {
                let want = "bmc: https needs one of ca, certificate and `insecure = true`";
                Err(self.source.mistake(&self.whole.span(), want))
            }
            (false, ..) => {
                let want = "bmc: http shows the password to everyone on the way: use https, or only \
                            `insecure = true`";
                Err(self.source.mistake(&self.whole.span(), want))
            }
        }
    }
}

/// Parses a host with or without a port.
fn place(text: &str, usual: u16) -> Result<(String, u16), String> {
    let want = || format!("{text} is no HOST or HOST:PORT");
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, port)) => (host, port.strip_prefix(':').or(port.is_empty().then_some(""))),
        None => match text.rsplit_once(':') {
            // An IPv6 address without a port.
            Some((before, _)) if before.contains(':') => (text, Some("")),
            Some((host, port)) => (host, Some(port).filter(|port| !port.is_empty())),
            None => (text, Some("")),
        },
    };
    let port = match port.ok_or_else(want)? {
        "" => usual,
        digits => digits.parse().ok().filter(|port| *port != 0).ok_or_else(want)?,
    };
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:%".contains(&byte);
    let right = !host.is_empty() && !host.starts_with('-') && host.bytes().all(allowed);
    if right { Ok((host.into(), port)) } else { Err(want()) }
}

#[cfg(test)]
mod tests {
    use super::place;

    #[test]
    fn a_place_is_a_host_with_or_without_a_port() {
        for (text, host, port) in [
            ("bmc1", "bmc1", 623),
            ("192.0.2.7:1623", "192.0.2.7", 1623),
            ("2001:db8::7", "2001:db8::7", 623),
            ("[2001:db8::7]", "2001:db8::7", 623),
            ("[2001:db8::7]:7", "2001:db8::7", 7),
        ] {
            assert_eq!(place(text, 623), Ok((host.into(), port)), "{text}");
        }
        for text in ["", "-x", "bmc:", "bmc:0", "bmc:70000", "a b", "[::1]7", "a/b"] {
            assert!(place(text, 623).is_err(), "{text}");
        }
    }
}
