//! A named observation, which is a line of a trace.

use super::layout::{self, Kind};
use super::names::{self, Modifier};
use crate::device::layout::{cqe, eqe, word};
use crate::device::opcode as op;
use crate::device::{Command, Doorbell, Mailbox, Observation, Register};
use std::fmt;

/// A line of a trace: the kind and name, the fields that distinguish it from others of this name, and the
/// other fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The kind: `command`, `doorbell`, `event`, `completion` or `register`.
    pub kind: &'static str,
    /// The name.
    pub name: String,
    /// The fields that distinguish the entry from others with this name.
    pub key: Vec<(String, u32)>,
    /// All other fields that are not zero.
    pub fields: Vec<(String, u32, Kind)>,
}

impl Entry {
    fn new(kind: &'static str, name: impl Into<String>) -> Self {
        Self { kind, name: name.into(), key: Vec::new(), fields: Vec::new() }
    }

    fn key(mut self, name: &str, value: u32) -> Self {
        self.key.push((name.to_owned(), value));
        self
    }

    fn picked(mut self, name: &str, value: u32) -> Self {
        self.fields.push((name.to_owned(), value, Kind::Picked));
        self
    }

    /// Names an observation. `input` reads a command's input mailbox.
    #[must_use]
    pub fn of(what: &Observation<'_>, input: impl FnOnce(u64) -> Option<Mailbox>) -> Self {
        match *what {
            Observation::Command { command, status } => Self::command(command, status, input),
            Observation::Doorbell(doorbell) => Self::doorbell(doorbell),
            Observation::Event { eqn, entry } => Self::event(eqn, entry),
            Observation::Completion { cqn, entry } => Self::completion(cqn, entry),
            Observation::Register(register) => Self::new(
                "register",
                match register {
                    Register::ReleaseOwnership => "release_ownership",
                    Register::Reset => "reset",
                    Register::ClearInterrupt => "clear_interrupt",
                },
            ),
        }
    }

    fn command(command: &Command, status: u8, input: impl FnOnce(u64) -> Option<Mailbox>) -> Self {
        let known = names::command(command.opcode);
        let name = known.map_or_else(|| format!("{:#05x}", command.opcode), |known| known.name.to_owned());
        let mut entry = Self::new("command", name).key("op_mod", u32::from(command.op_mod));
        entry = match known.map(|known| known.in_mod) {
            Some(Modifier::Picked) => entry.picked("in_mod", command.in_mod),
            Some(Modifier::Value) | None => entry.key("in_mod", command.in_mod),
        };
        entry = entry.key("status", u32::from(status));
        if layout::takes_mailbox(command) {
            if let Some(mailbox) = input(command.in_param & !0xfff) {
                for (name, value, kind) in layout::fields(command, &mailbox) {
                    if kind == Kind::Telling {
                        entry = entry.key(&name, value);
                    } else {
                        entry.fields.push((name, value, kind));
                    }
                }
            }
        } else if command.in_param != 0 {
            let kind = if command.opcode == op::MAP_EQ { Kind::Meant } else { Kind::Picked };
            entry.fields.push(("in_high".to_owned(), (command.in_param >> 32) as u32, kind));
            entry.fields.push(("in_low".to_owned(), command.in_param as u32, kind));
        }
        entry
    }

    fn doorbell(doorbell: Doorbell) -> Self {
        let new = |name: &str| Self::new("doorbell", name);
        match doorbell {
            Doorbell::Send { qpn } => new("send").picked("qpn", qpn),
            Doorbell::BlueFlame { qpn } => new("blueflame").picked("qpn", qpn),
            Doorbell::Arm { cqn, solicited, consumer, sequence } => new("arm")
                .key("solicited", u32::from(solicited))
                .picked("cqn", cqn)
                .picked("consumer", consumer)
                .picked("sequence", sequence),
            Doorbell::Event { eqn, consumer, arm } => {
                new("events").key("arm", u32::from(arm)).picked("eqn", eqn).picked("consumer", consumer)
            }
            Doorbell::Unknown { offset, word } => {
                new("unknown").key("offset", (offset & 0xfff) as u32).picked("word", word)
            }
        }
    }

    fn event(eqn: u32, entry: &[u8; 32]) -> Self {
        let kind = eqe::KIND.get(entry) as u8;
        let name = names::event(kind).map_or_else(|| format!("{kind:#04x}"), str::to_owned);
        let mut line = Self::new("event", name).key("subtype", eqe::SUBTYPE.get(entry)).picked("eqn", eqn);
        // The words between the type and the owner depend on the type.
        for offset in (eqe::NUMBER.word()..eqe::OWNER.word()).step_by(4) {
            let value = word(offset).get(entry);
            if value != 0 {
                line = line.picked(&format!("word_{offset:#04x}"), value);
            }
        }
        line
    }

    fn completion(cqn: u32, entry: &[u8; 32]) -> Self {
        let name = if cqe::SENT.get(entry) != 0 { "send" } else { "receive" };
        let opcode = cqe::OPCODE.get(entry);
        let mut line = Self::new("completion", name).key("opcode", opcode);
        if opcode == u32::from(cqe::ERROR) {
            line = line.key("syndrome", cqe::SYNDROME.get(entry)).picked("vendor", cqe::VENDOR.get(entry));
        }
        line.picked("cqn", cqn)
            .picked("qpn", cqe::QPN.get(entry))
            .picked("wqe", cqe::WQE.get(entry))
            .picked("len", cqe::LENGTH.get(entry))
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)?;
        for (name, value) in &self.key {
            write!(f, " {name}={value:#x}")?;
        }
        for (name, value, _) in &self.fields {
            write!(f, " {name}={value:#x}")?;
        }
        Ok(())
    }
}
