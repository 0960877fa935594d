//! Management datagrams that the firmware answers itself (MAD_IFC): subnet management GETs of the own port.

use super::hcr::Status;
use super::mailbox::Mailbox;
use super::profile::Profile;

/// Where the attribute's data begins.
const DATA: usize = 0x40;

/// Attributes (InfiniBand specification 14.2.5).
mod attribute {
    pub const NODE_DESCRIPTION: u16 = 0x10;
    pub const NODE_INFO: u16 = 0x11;
    pub const GUID_INFO: u16 = 0x14;
    pub const PORT_INFO: u16 = 0x15;
    pub const P_KEY_TABLE: u16 = 0x16;
}

/// Answers a MAD in place.
pub fn answer(mad: &mut Mailbox, port: u8, link_up: bool, profile: &Profile) -> Result<(), Status> {
    const CLASS_LID_ROUTED: u8 = 0x01;
    const CLASS_DIRECTED: u8 = 0x81;
    const GET: u8 = 0x01;
    const SET: u8 = 0x02;
    const GET_RESPONSE: u8 = 0x81;
    const BAD_METHOD_OR_ATTRIBUTE: u16 = 0x000c;

    if mad.u8(0) != 1 {
        return Err(Status::BadPacket);
    }
    let (class, method, id) = (mad.u8(1), mad.u8(3), mad.u16(0x10));
    let mut status = 0;
    if ![CLASS_LID_ROUTED, CLASS_DIRECTED].contains(&class) || ![GET, SET].contains(&method) {
        status = BAD_METHOD_OR_ATTRIBUTE;
    } else {
        if method == GET {
            mad.put(DATA, &[0; 64]);
        }
        match id {
            attribute::NODE_DESCRIPTION => mad.put(DATA, b"Ferrolite emulated ConnectX-3"),
            attribute::NODE_INFO => node_info(mad, port, profile),
            attribute::PORT_INFO => port_info(mad, port, link_up),
            attribute::GUID_INFO => mad.put_u64(DATA, profile.guid(usize::from(port.saturating_sub(1)))),
            attribute::P_KEY_TABLE if mad.u32(0x14) & 0xffff == 0 => mad.put_u16(DATA, 0xffff),
            attribute::P_KEY_TABLE => {}
            _ => status = BAD_METHOD_OR_ATTRIBUTE,
        }
    }
    mad.put_u8(3, GET_RESPONSE);
    mad.put_u16(4, status);
    Ok(())
}

fn node_info(mad: &mut Mailbox, port: u8, profile: &Profile) {
    const CHANNEL_ADAPTER: u8 = 1;
    let guid = profile.guid(0);
    mad.put(DATA, &[1, 1, CHANNEL_ADAPTER, profile.ports.len() as u8]);
    mad.put_u64(DATA + 4, guid);
    mad.put_u64(DATA + 12, guid);
    mad.put_u64(DATA + 20, profile.guid(usize::from(port.saturating_sub(1))));
    mad.put_u16(DATA + 28, 128);
    mad.put_u16(DATA + 30, profile.device_id);
    mad.put_u32(DATA + 32, 0);
    mad.put_u8(DATA + 36, port);
    mad.put(DATA + 37, &[0x00, 0x02, 0xc9]);
}

fn port_info(mad: &mut Mailbox, port: u8, link_up: bool) {
    const WIDTH_4X: u8 = 2;
    const LINK_UP: u8 = 5;
    const POLLING: u8 = 2;
    const ACTIVE: u8 = 4;
    const DOWN: u8 = 1;
    const MTU_4096: u8 = 5;
    let (physical, state) = if link_up { (LINK_UP, ACTIVE) } else { (POLLING, DOWN) };
    mad.put_u32(DATA + 20, 0x0251_0868);
    mad.put_u8(DATA + 28, port);
    mad.put(DATA + 29, &[WIDTH_4X, 3, WIDTH_4X]);
    mad.put_u8(DATA + 32, 1 << 4 | state);
    mad.put_u8(DATA + 33, physical << 4 | POLLING);
    mad.put_u8(DATA + 35, 1 << 4 | 1);
    mad.put_u8(DATA + 36, MTU_4096 << 4);
    mad.put_u8(DATA + 41, MTU_4096);
}
