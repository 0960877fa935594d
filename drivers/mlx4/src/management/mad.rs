//! The fields of management datagrams that the driver uses (InfiniBand specification, 13.4 and 14.2), and
//! MAD_IFC, by which the firmware answers datagrams.

use crate::command::{Command, Commands, Opcode};
use crate::error::Error;
use crate::hardware::Hardware;

/// The length of a datagram, in bytes.
pub(crate) const LEN: usize = 256;
/// The offset of an attribute of subnet management.
const DATA: usize = 64;
/// The length of an attribute, in bytes.
pub(crate) const DATA_LEN: usize = 64;
/// The offset of the return path of a directed route, one byte per hop.
const RETURN_PATH: usize = 192;
const MAX_HOPS: u8 = 63;

/// The length of the data about the sender, which MAD_IFC expects after a datagram from the wire.
const ORIGIN: usize = 0x100;
const WORDS: usize = (ORIGIN + LEN) / 8;

/// Management classes.
pub(crate) mod class {
    pub(crate) const BY_LID: u8 = 0x01;
    pub(crate) const DIRECTED: u8 = 0x81;
}

/// Methods.
pub(crate) mod method {
    pub(crate) const GET: u8 = 0x01;
    pub(crate) const SET: u8 = 0x02;
    pub(crate) const TRAP_REPRESS: u8 = 0x07;
}

/// Attributes.
pub(crate) mod attribute {
    pub(crate) const GUID_INFO: u16 = 0x14;
    pub(crate) const PORT_INFO: u16 = 0x15;
    pub(crate) const P_KEY_TABLE: u16 = 0x16;
}

/// A management datagram.
#[derive(Clone, Copy)]
pub(crate) struct Mad(pub(crate) [u8; LEN]);

/// The sender of a datagram from the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) lid: u16,
    pub(crate) service_level: u8,
}

impl Mad {
    /// Makes a query of an attribute of subnet management.
    fn get(attribute: u16, modifier: u32) -> Self {
        let mut bytes = [0; LEN];
        [bytes[0], bytes[1], bytes[2], bytes[3]] = [1, class::BY_LID, 1, method::GET];
        bytes[16..18].copy_from_slice(&attribute.to_be_bytes());
        bytes[20..24].copy_from_slice(&modifier.to_be_bytes());
        Self(bytes)
    }

    pub(crate) const fn class(&self) -> u8 {
        self.0[1]
    }

    pub(crate) const fn method(&self) -> u8 {
        self.0[3]
    }

    const fn status(&self) -> u16 {
        u16::from_be_bytes([self.0[4], self.0[5]])
    }

    /// Returns the bytes of the attribute.
    fn data(&self) -> [u8; DATA_LEN] {
        self.0[DATA..].first_chunk().copied().unwrap_or([0; DATA_LEN])
    }

    /// Records the port at which a request by a directed route has arrived. Returns false if this is not the
    /// end of the route.
    pub(crate) fn arrives(&mut self, port: u8) -> bool {
        let (pointer, count) = (self.0[6], self.0[7]);
        let at_end = pointer == count && count <= MAX_HOPS;
        if let Some(byte) = self.0.get_mut(RETURN_PATH + usize::from(pointer)).filter(|_| at_end) {
            *byte = port;
        }
        at_end
    }

    /// Sets the direction bit, so that the response to a request by a directed route returns.
    pub(crate) const fn turn_back(&mut self) {
        self.0[4] |= 0x80;
    }

    /// Lets the firmware respond to the datagram. The firmware checks the keys of a datagram from the wire,
    /// but not those of the driver's own query (`origin` is `None`).
    pub(crate) fn answered(
        &self,
        commands: &mut Commands<'_, impl Hardware>,
        port: u8,
        origin: Option<Origin>,
    ) -> Result<Self, Error> {
        const IGNORE_KEYS: u8 = 3;
        const WITH_ORIGIN: u8 = 4;
        const SERVICE_LEVEL: usize = ORIGIN + 0x0c;
        let mut request = [0; ORIGIN + LEN];
        request[..LEN].copy_from_slice(&self.0);
        let command = Command::new(Opcode::MadIfc);
        let command = match origin {
            Some(Origin { lid, service_level }) => {
                request[SERVICE_LEVEL] = service_level << 4;
                command.of(u32::from(lid) << 16 | u32::from(port)).variant(WITH_ORIGIN)
            }
            None => command.of(port.into()).variant(IGNORE_KEYS),
        };
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(request.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let mut answer = [0; LEN / 8];
        commands.exec_in_out(command, &words, &mut answer)?;
        let mut bytes = [0; LEN];
        for (target, word) in bytes.as_chunks_mut().0.iter_mut().zip(answer) {
            *target = word.to_ne_bytes();
        }
        Ok(Self(bytes))
    }
}

/// Queries an attribute of subnet management from the firmware.
pub(crate) fn ask(
    commands: &mut Commands<'_, impl Hardware>,
    port: u8,
    attribute: u16,
    modifier: u32,
) -> Result<[u8; DATA_LEN], Error> {
    let answer = Mad::get(attribute, modifier).answered(commands, port, None)?;
    if answer.status() != 0 {
        return Err(Error::Nonsense("it cannot describe its own port"));
    }
    Ok(answer.data())
}
