//! Device-managed flow steering: rules with priorities instead of table entries (QP_FLOW_STEERING_ATTACH and
//! DETACH; Linux `core/mcg.c`, `include/linux/mlx4/device.h`).

use super::ethernet::headers::{Headers, Transport, Version, be16};
use super::hcr::Status;
use super::layout::flow_rule;
use super::mailbox::{MAILBOX, Mailbox};
use super::steering::BLOCK_LOOPBACK;
use std::sync::Arc;

/// The length of the control block before the specifications, in bytes.
const CONTROL: usize = 0x10;
/// The maximum number of rules of a card.
const MAX_RULES: usize = 1 << 16;

/// The frames for which a rule applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Frames that match the rule's specifications.
    Regular,
    /// All frames that no other rule matches.
    Default,
    /// All multicast frames that no other rule matches.
    MulticastDefault,
}

/// A value and a mask: the bits of a frame under the mask must equal those of the value.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Masked<const N: usize> {
    value: [u8; N],
    mask: [u8; N],
}

impl<const N: usize> Masked<N> {
    /// Parses value and mask from two offsets; each may be narrower than its slot.
    fn parse(spec: &[u8], value: usize, mask: usize) -> Option<Self> {
        let at = |offset: usize| spec.get(offset..).and_then(|rest| rest.first_chunk::<N>()).copied();
        Some(Self { value: at(value)?, mask: at(mask)? })
    }

    fn is_any(&self) -> bool {
        self.mask == [0; N]
    }

    fn matches(&self, bytes: Option<&[u8]>) -> bool {
        self.is_any()
            || bytes.and_then(|bytes| bytes.first_chunk::<N>()).is_some_and(|bytes| {
                let pairs = bytes.iter().zip(&self.value).zip(&self.mask);
                pairs.into_iter().all(|((byte, value), mask)| (byte ^ value) & mask == 0)
            })
    }
}

/// A layer of a frame in a rule's specification.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Spec {
    Ethernet {
        destination: Masked<6>,
        source: Masked<6>,
        ethertype: Option<u16>,
        vlan: Masked<2>,
    },
    Ipv4 {
        destination: Masked<4>,
        source: Masked<4>,
    },
    Transport {
        protocol: Transport,
        destination: Masked<2>,
        source: Masked<2>,
    },
    /// An InfiniBand destination, which RoCE groups have. It matches no Ethernet frame.
    InfiniBand {
        gid: Masked<16>,
    },
}

impl Spec {
    fn parse(spec: &[u8]) -> Option<Self> {
        Some(match be16(spec, 2)? {
            0xe001 => Self::Ethernet {
                destination: Masked::parse(spec, 0x0a, 0x12)?,
                source: Masked::parse(spec, 0x1a, 0x22)?,
                ethertype: (*spec.get(0x29)? != 0).then_some(be16(spec, 0x2a)?),
                vlan: Masked::parse(spec, 0x2e, 0x2c)?,
            },
            0xe002 => Self::Ipv4 {
                destination: Masked::parse(spec, 0x08, 0x0c)?,
                source: Masked::parse(spec, 0x10, 0x14)?,
            },
            id @ (0xe004 | 0xe006) => Self::Transport {
                protocol: if id == 0xe004 { Transport::Tcp } else { Transport::Udp },
                destination: Masked::parse(spec, 0x0a, 0x0e)?,
                source: Masked::parse(spec, 0x12, 0x16)?,
            },
            0xe005 => Self::InfiniBand { gid: Masked::parse(spec, 0x10, 0x20)? },
            _ => return None,
        })
    }

    fn matches(&self, frame: &[u8], headers: &Headers) -> bool {
        let ip = headers.ip;
        match self {
            Self::Ethernet { destination, source, ethertype, vlan } => {
                let tag = headers.vlan.map(|vlan| vlan.tci.to_be_bytes());
                destination.matches(Some(frame))
                    && source.matches(frame.get(6..))
                    && ethertype.is_none_or(|ethertype| headers.ethertype == Some(ethertype))
                    && vlan.matches(tag.as_ref().map(<[u8; 2]>::as_slice))
            }
            Self::Ipv4 { destination, source } => {
                let addresses = ip.filter(|ip| ip.version == Version::V4).map(|ip| ip.addresses(frame));
                addresses.is_some_and(|addresses| {
                    source.matches(Some(addresses)) && destination.matches(addresses.get(4..))
                })
            }
            Self::Transport { protocol, destination, source } => {
                let ip = ip.filter(|ip| ip.transport() == Some(*protocol));
                ip.and_then(|ip| frame.get(ip.payload..))
                    .is_some_and(|ports| source.matches(Some(ports)) && destination.matches(ports.get(2..)))
            }
            Self::InfiniBand { .. } => false,
        }
    }
}

#[derive(Debug)]
struct Rule {
    id: u64,
    priority: u16,
    kind: Kind,
    port: usize,
    qpn: u32,
    /// True if the rule also matches frames that its own queue pair has sent.
    receives_own_frames: bool,
    specs: Vec<Spec>,
}

impl Rule {
    /// Returns whether the rule applies to a port and a sender. The rule's own queue pair is excluded as a
    /// sender unless `receives_own_frames` is set.
    fn concerns(&self, port: usize, from: Option<u32>) -> bool {
        self.port == port && (self.receives_own_frames || from != Some(self.qpn))
    }

    /// Returns whether the rule's specifications match a frame.
    fn describes(&self, frame: &[u8], headers: &Headers) -> bool {
        self.kind == Kind::Regular && self.specs.iter().all(|spec| spec.matches(frame, headers))
    }
}

/// A card's rules, in order of evaluation.
#[derive(Debug, Default)]
pub(super) struct Rules {
    rules: Vec<Rule>,
    last_id: u64,
}

impl Rules {
    /// Adds the rule in a mailbox's first `words` 32-bit words, and returns the rule's id.
    pub(super) fn attach(&mut self, mailbox: &Mailbox, words: u32) -> Result<u64, Status> {
        const LAST_IN_FIRST: u32 = 1 << 0;
        const RECEIVES_OWN_FRAMES: u32 = 1 << 3;
        let len = (words as usize).saturating_mul(4).min(MAILBOX);
        let kind = match mailbox.field(flow_rule::KIND) {
            0 => Kind::Regular,
            1 => Kind::Default,
            3 => Kind::MulticastDefault,
            _ => return Err(Status::BadParameter),
        };
        let mut rest = mailbox.bytes().get(CONTROL..len.max(CONTROL)).unwrap_or_default();
        let mut specs = Vec::new();
        while let Some(&size) = rest.first() {
            let (spec, after) = rest.split_at_checked(usize::from(size) * 4).ok_or(Status::BadParameter)?;
            specs.push(Spec::parse(spec).ok_or(Status::BadParameter)?);
            rest = after;
        }
        if self.rules.len() >= MAX_RULES {
            return Err(Status::ExceedsLimit);
        }
        self.last_id += 1;
        let rule = Rule {
            id: self.last_id,
            priority: mailbox.field(flow_rule::PRIORITY) as u16,
            kind,
            port: (mailbox.field(flow_rule::PORT) as usize).checked_sub(1).ok_or(Status::BadParameter)?,
            qpn: mailbox.field(flow_rule::QPN),
            receives_own_frames: mailbox.field(flow_rule::FLAGS) & RECEIVES_OWN_FRAMES != 0,
            specs,
        };
        let before = mailbox.field(flow_rule::FLAGS) & LAST_IN_FIRST != 0;
        let place = self.rules.partition_point(|other| {
            other.priority < rule.priority || (!before && other.priority == rule.priority)
        });
        self.rules.insert(place, rule);
        Ok(self.last_id)
    }

    /// Removes a rule.
    pub(super) fn detach(&mut self, id: u64) -> Result<(), Status> {
        let place = self.rules.iter().position(|rule| rule.id == id).ok_or(Status::BadResource)?;
        self.rules.remove(place);
        Ok(())
    }

    /// Returns whether any rule matches a frame. The sender `from` is a queue pair of the card, or `None` for
    /// the wire.
    #[must_use]
    pub(super) fn describe(&self, port: usize, from: Option<u32>, frame: &[u8], headers: &Headers) -> bool {
        self.rules.iter().any(|rule| rule.concerns(port, from) && rule.describes(frame, headers))
    }

    /// Returns the queue pairs that receive a frame: for unicast that of the first matching rule, for
    /// multicast those of all matching rules of the same priority, and without a match those of the default
    /// rules.
    #[must_use]
    pub(super) fn find(&self, port: usize, from: Option<u32>, frame: &[u8], headers: &Headers) -> Arc<[u32]> {
        let multicast = frame.first().is_some_and(|first| first & 1 != 0);
        let of_port = || self.rules.iter().filter(|rule| rule.concerns(port, from));
        let describes = |rule: &&Rule| rule.describes(frame, headers);
        if let Some(first) = of_port().find(describes) {
            let same = of_port().filter(|rule| rule.priority == first.priority).filter(describes);
            return if multicast { same.map(|rule| rule.qpn).collect() } else { [first.qpn].into() };
        }
        let rest = of_port()
            .filter(|rule| rule.kind == Kind::Default || (multicast && rule.kind == Kind::MulticastDefault));
        rest.map(|rule| rule.qpn).collect()
    }

    /// Returns the queue pairs of a RoCE group, in the format of a multicast table entry.
    #[must_use]
    pub(super) fn group(&self, port: usize, gid: &[u8; 16]) -> Vec<u32> {
        let is_of = |rule: &&Rule| {
            let mut specs = rule.specs.iter();
            rule.port == port
                && specs
                    .any(|spec| matches!(spec, Spec::InfiniBand { gid: masked } if masked.matches(Some(gid))))
        };
        let word = |rule: &Rule| if rule.receives_own_frames { rule.qpn } else { rule.qpn | BLOCK_LOOPBACK };
        self.rules.iter().filter(is_of).map(word).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::ethernet::headers::Length;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

    /// Returns a rule for an Ethernet destination, and for a TCP port if one is given.
    fn rule(priority: u16, kind: u8, qpn: u32, to: Option<[u8; 6]>, tcp: Option<u16>) -> (Mailbox, u32) {
        let mut mailbox = Mailbox::default();
        mailbox.put_u16(0, priority);
        mailbox.put_u8(2, kind);
        mailbox.put_u8(7, 1);
        mailbox.put_u32(8, qpn);
        let mut at = CONTROL;
        if let Some(to) = to {
            mailbox.put(at, &[0x30 / 4, 0, 0xe0, 0x01]);
            mailbox.put(at + 0x0a, &to);
            mailbox.put(at + 0x12, &[0xff; 6]);
            at += 0x30;
        }
        if let Some(port) = tcp {
            mailbox.put(at, &[0x18 / 4, 0, 0xe0, 0x04]);
            mailbox.put_u16(at + 0x0a, port);
            mailbox.put_u16(at + 0x0e, 0xffff);
            at += 0x18;
        }
        (mailbox, at as u32 / 4)
    }

    fn frame(to: [u8; 6], port: u16) -> Vec<u8> {
        let mut frame = to.to_vec();
        frame.extend([
            2, 0, 0, 0, 0, 9, 8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1,
        ]);
        frame.extend(port.to_be_bytes());
        frame.resize(54, 0);
        frame
    }

    #[test]
    fn the_first_rule_that_describes_a_frame_takes_it() {
        let mut rules = Rules::default();
        let mut attach = |priority, kind, qpn, to, tcp| {
            let (mailbox, words) = rule(priority, kind, qpn, to, tcp);
            rules.attach(&mailbox, words).unwrap()
        };
        attach(0x5000, 0, 1, Some(MAC), None);
        let steered = attach(0x2000, 0, 2, Some(MAC), Some(80));
        attach(0x5000, 1, 3, None, None);
        attach(0x5000, 0, 4, Some([0xff; 6]), None);
        attach(0x5000, 0, 5, Some([0xff; 6]), None);
        let find = |rules: &Rules, to, port| {
            let frame = frame(to, port);
            rules.find(0, None, &frame, &Headers::parse(&frame, Length::AsStated)).to_vec()
        };
        assert_eq!(find(&rules, MAC, 80), [2]);
        assert_eq!(find(&rules, MAC, 81), [1]);
        assert_eq!(find(&rules, [2, 0, 0, 0, 0, 7], 80), [3], "the default");
        assert_eq!(find(&rules, [0xff; 6], 80), [4, 5], "all of a group");
        let (mailbox, words) = rule(0x5000, 3, 6, None, None);
        rules.attach(&mailbox, words).unwrap();
        assert_eq!(find(&rules, [1, 0, 0, 0, 0, 7], 80), [3, 6]);
        rules.detach(steered).unwrap();
        assert_eq!(rules.detach(steered), Err(Status::BadResource));
        assert_eq!(find(&rules, MAC, 80), [1]);
    }

    #[test]
    fn rubbish_is_no_rule() {
        let mut rules = Rules::default();
        let (mut mailbox, words) = rule(1, 0, 1, Some(MAC), None);
        mailbox.put_u16(CONTROL + 2, 0xe0ff);
        assert_eq!(rules.attach(&mailbox, words), Err(Status::BadParameter));
        mailbox.put_u16(CONTROL + 2, 0xe001);
        assert_eq!(rules.attach(&mailbox, words - 1), Err(Status::BadParameter), "cut short");
        mailbox.put_u8(7, 0);
        assert_eq!(rules.attach(&mailbox, words), Err(Status::BadParameter), "no port");
        let mut empty = Mailbox::default();
        empty.put_u8(7, 1);
        assert_eq!(rules.attach(&empty, 8), Err(Status::BadParameter), "a specification of no length");
    }
}
