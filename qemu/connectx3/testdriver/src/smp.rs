//! Subnet management datagrams on a cable from a subnet manager's side: packets, requests, and the contents
//! of answers.

use roce::wire::{
    Bth, CABLE, Deth, ETHERTYPE_INFINIBAND, Ethernet, Ext, Frame, Headers, Lrh, Net, Opcode, Operation,
    Service, Symbol,
};
use verbs::{MacAddr, Psn, QpNum};

pub const GET: u8 = 1;
pub const SET: u8 = 2;
pub const NODE_INFO: u16 = 0x11;
pub const SWITCH_INFO: u16 = 0x12;
pub const PORT_INFO: u16 = 0x15;
pub const LINEAR_TABLE: u16 = 0x19;
pub const MULTICAST_TABLE: u16 = 0x1b;

pub fn ethernet(from: u8) -> Ethernet {
    Ethernet { dst: CABLE, src: MacAddr([2, 0, 0, 0, 0, from]), ethertype: ETHERTYPE_INFINIBAND }
}

pub fn symbol(symbol: Symbol) -> Vec<u8> {
    [&ethernet(1).emit()[..], &(symbol as u16).to_be_bytes()].concat()
}

/// Returns the symbol of a frame that carries only a symbol.
pub fn symbol_of(frame: &[u8]) -> Option<Symbol> {
    let (_, payload) = Ethernet::parse(frame).unwrap();
    Symbol::parse(payload).ok().map(|(symbol, _)| symbol)
}

/// Returns a datagram from and to the queue pair `qp`.
pub fn datagram(lrh: Lrh, qp: u32, payload: &[u8]) -> Vec<u8> {
    let headers = Headers { ethernet: ethernet(1), net: Net::InfiniBand(lrh, None) };
    let opcode = Opcode { service: Service::Ud, operation: Operation::SendOnly };
    let bth = Bth::new(opcode, QpNum::new(qp), Psn::new(0));
    let qkey = if qp == 1 { 0x8001_0000 } else { 0 };
    let ext = Ext::Deth(Deth { qkey, reserved: 0, src_qp: QpNum::new(qp) });
    let mut frame = vec![0; headers.frame_len(&ext, payload.len())];
    headers.emit(&bth, &ext, payload.len(), &mut frame, |to| to.copy_from_slice(payload)).unwrap();
    frame
}

/// Returns a request by directed route. `path` holds the ports through which it leaves, the sender's first.
pub fn directed(path: &[u8], method: u8, attribute: u16, modifier: u32, data: &[u8]) -> Vec<u8> {
    let mut mad = request(0x81, method, attribute, modifier, data);
    (mad[6], mad[7]) = (1, path.len() as u8);
    mad[32..36].fill(0xff);
    mad[129..129 + path.len()].copy_from_slice(path);
    let permissive = Lrh::PERMISSIVE_LID;
    datagram(Lrh { lane: 15, service_level: 0, dlid: permissive, slid: permissive }, 0, &mad)
}

/// Returns a request by LID.
pub fn by_lid(slid: u16, dlid: u16, method: u8, attribute: u16, modifier: u32, data: &[u8]) -> Vec<u8> {
    let mad = request(1, method, attribute, modifier, data);
    datagram(Lrh { lane: 15, service_level: 0, dlid, slid }, 0, &mad)
}

/// Returns the bytes of a request.
pub fn request(class: u8, method: u8, attribute: u16, modifier: u32, data: &[u8]) -> [u8; 256] {
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, class, 1, method]);
    mad[15] = 7;
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[20..24].copy_from_slice(&modifier.to_be_bytes());
    mad[64..64 + data.len()].copy_from_slice(data);
    mad
}

/// Returns the route and the payload of a packet.
pub fn open(frame: &[u8]) -> (Lrh, Vec<u8>) {
    let parsed = Frame::parse(frame).unwrap();
    assert!(parsed.icrc_ok());
    let Net::InfiniBand(lrh, _) = parsed.headers.net else { panic!("not InfiniBand") };
    (lrh, parsed.packet.payload.to_vec())
}
