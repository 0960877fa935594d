//! The messages of proxy DHCP (RFC 2131; Intel's Preboot Execution Environment, version 2.1): a service that
//! names a boot program, and leaves addresses to the network's DHCP server.
//!
//! The encoder is our own: the crate `dhcproto` needs a resolver of names and ICU, 50 crates, for the few
//! options here.

use std::net::Ipv4Addr;
use verbs::MacAddr;

/// The length of the fields in front of the options, in bytes.
const FIXED: usize = 236;
const MAGIC: [u8; 4] = [99, 130, 83, 99];
/// The length of a message without which some clients do not accept it, in bytes (RFC 1542, 2.1).
const LEAST: usize = 300;
/// The places of fields.
const FILE: std::ops::Range<usize> = 108..236;

/// Options.
const PAD: u8 = 0;
const VENDOR: u8 = 43;
const TYPE: u8 = 53;
const SERVER: u8 = 54;
const CLASS: u8 = 60;
const USER_CLASS: u8 = 77;
const ARCHITECTURE: u8 = 93;
const MACHINE_ID: u8 = 97;
const END: u8 = 255;

/// The class of clients that boot.
const PXE_CLIENT: &[u8] = b"PXEClient";
/// The user class by which iPXE names itself.
const IPXE: &[u8] = b"iPXE";
/// The option of PXE by which a client uses the boot program that is named, and searches no other.
const NO_DISCOVERY: [u8; 4] = [6, 1, 8, END];

/// The program that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Client {
    /// A BIOS.
    Bios,
    /// UEFI on x86-64.
    Uefi,
    /// iPXE, under a BIOS or under UEFI.
    Ipxe { under_uefi: bool },
}

/// The kind of a message, as far as it concerns the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Discover,
    Request,
}

/// A message of a client that boots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Question<'a> {
    pub(super) kind: Kind,
    pub(super) mac: MacAddr,
    pub(super) client: Client,
    bytes: &'a [u8],
    machine_id: Option<&'a [u8]>,
}

/// Returns the value of an option, whose parts are not joined: the service reads short ones.
fn option(options: &[u8], wanted: u8) -> Option<&[u8]> {
    let mut rest = options;
    loop {
        let (&code, after) = rest.split_first()?;
        match code {
            PAD => rest = after,
            END => return None,
            _ => {
                let (&len, after) = after.split_first()?;
                let (value, after) = after.split_at_checked(len.into())?;
                if code == wanted {
                    return Some(value);
                }
                rest = after;
            }
        }
    }
}

impl<'a> Question<'a> {
    /// Reads a datagram. Returns `None` for messages that are not of a booting client on x86-64.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (head, options) = bytes.split_at_checked(FIXED)?;
        let options = options.strip_prefix(&MAGIC)?;
        // A request, on Ethernet.
        if !head.starts_with(&[1, 1, 6]) || !option(options, CLASS)?.starts_with(PXE_CLIENT) {
            return None;
        }
        let kind = match option(options, TYPE)? {
            [1] => Kind::Discover,
            [3] => Kind::Request,
            _ => return None,
        };
        // RFC 4578, and IANA's list of processor architecture types.
        let under_uefi = match option(options, ARCHITECTURE)? {
            [0, 0] => false,
            [0, 7 | 9] => true,
            _ => return None,
        };
        let is_ipxe = option(options, USER_CLASS).is_some_and(|class| class.ends_with(IPXE));
        let client = match (is_ipxe, under_uefi) {
            (true, _) => Client::Ipxe { under_uefi },
            (false, true) => Client::Uefi,
            (false, false) => Client::Bios,
        };
        let mac = MacAddr(*head.get(28..)?.first_chunk()?);
        Some(Self { kind, mac, client, bytes, machine_id: option(options, MACHINE_ID) })
    }

    /// Returns the answer of the service at `server` that names a boot program; `None` if its name is too
    /// long.
    pub(super) fn answer(&self, server: Ipv4Addr, program: &str) -> Option<Vec<u8>> {
        let mut answer = self.bytes.get(..FIXED)?.to_vec();
        answer[0] = 2;
        // The answer has no address for the client (yiaddr), and the server's (siaddr).
        answer[16..20].fill(0);
        answer[20..24].copy_from_slice(&server.octets());
        answer[44..FIXED].fill(0);
        if program.len() >= FILE.len() {
            return None;
        }
        answer[FILE.start..FILE.start + program.len()].copy_from_slice(program.as_bytes());
        answer.extend(MAGIC);
        let kind = match self.kind {
            Kind::Discover => 2,
            Kind::Request => 5,
        };
        let options: [(u8, &[u8]); 4] =
            [(TYPE, &[kind]), (SERVER, &server.octets()), (CLASS, PXE_CLIENT), (VENDOR, &NO_DISCOVERY)];
        for (code, value) in options.into_iter().chain(self.machine_id.map(|id| (MACHINE_ID, id))) {
            answer.extend([code, u8::try_from(value.len()).ok()?]);
            answer.extend(value);
        }
        answer.push(END);
        answer.resize(answer.len().max(LEAST), PAD);
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SERVICE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

    fn message(options: &[(u8, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; FIXED];
        bytes[..8].copy_from_slice(&[1, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef]);
        bytes[28..34].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        bytes.extend(MAGIC);
        for (code, value) in options {
            bytes.push(*code);
            bytes.push(value.len() as u8);
            bytes.extend(*value);
        }
        bytes.push(END);
        bytes
    }

    const PXE: (u8, &[u8]) = (CLASS, b"PXEClient:Arch:00007:UNDI:003001");

    #[test]
    fn clients_are_told_apart() {
        let client = |architecture: &[u8], more: &[(u8, &[u8])]| {
            let options = [&[(TYPE, &[1][..]), PXE, (ARCHITECTURE, architecture)], more].concat();
            Question::parse(&message(&options)).map(|question| question.client)
        };
        assert_eq!(client(&[0, 0], &[]), Some(Client::Bios));
        assert_eq!(client(&[0, 7], &[]), Some(Client::Uefi));
        assert_eq!(client(&[0, 9], &[]), Some(Client::Uefi));
        assert_eq!(client(&[0, 0], &[(USER_CLASS, b"iPXE")]), Some(Client::Ipxe { under_uefi: false }));
        assert_eq!(client(&[0, 7], &[(USER_CLASS, b"\x04iPXE")]), Some(Client::Ipxe { under_uefi: true }));
        assert_eq!(client(&[0, 11], &[]), None, "another processor");
        assert_eq!(client(&[0], &[]), None);
    }

    #[test]
    fn others_are_left_to_the_dhcp_server() {
        let options: &[(u8, &[u8])] = &[(TYPE, &[1]), PXE, (ARCHITECTURE, &[0, 0])];
        let whole = message(options);
        assert!(Question::parse(&whole).is_some());
        for missing in 0..options.len() {
            let rest: Vec<_> = options
                .iter()
                .enumerate()
                .filter(|(n, _)| *n != missing)
                .map(|(_, option)| *option)
                .collect();
            assert_eq!(Question::parse(&message(&rest)), None, "without option {missing}");
        }
        for (at, what) in [(0, "an answer"), (1, "not Ethernet"), (FIXED, "not DHCP")] {
            let mut other = whole.clone();
            other[at] = 2;
            assert_eq!(Question::parse(&other), None, "{what}");
        }
    }

    #[test]
    fn an_answer_names_the_boot_program() {
        let id = [0; 17];
        let bytes = message(&[(TYPE, &[1]), PXE, (ARCHITECTURE, &[0, 0]), (MACHINE_ID, &id)]);
        let question = Question::parse(&bytes).unwrap();
        assert_eq!((question.kind, question.mac), (Kind::Discover, MacAddr([2, 0, 0, 0, 0, 1])));
        let answer = question.answer(SERVICE, "pxelinux.0").unwrap();
        assert_eq!(answer[..8], [2, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef]);
        assert_eq!((&answer[16..20], &answer[20..24]), (&[0; 4][..], &[192, 0, 2, 1][..]));
        assert_eq!(answer[28..34], [2, 0, 0, 0, 0, 1]);
        assert!(answer[FILE].starts_with(b"pxelinux.0\0"));
        let options = &answer[FIXED + 4..];
        assert_eq!(option(options, TYPE), Some(&[2][..]));
        assert_eq!(option(options, SERVER), Some(&[192, 0, 2, 1][..]));
        assert_eq!(option(options, CLASS), Some(PXE_CLIENT));
        assert_eq!(option(options, MACHINE_ID), Some(&id[..]));
        assert!(answer.len() >= LEAST);
        assert_eq!(question.answer(SERVICE, &"x".repeat(128)), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = Question::parse(&bytes);
            let mut behind = message(&[]);
            behind.pop();
            behind.extend(bytes);
            let _ = Question::parse(&behind);
        }
    }
}
