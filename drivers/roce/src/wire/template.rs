//! The bytes of a path's headers, made once: a frame needs only its lengths, identification and checksum.

use super::lrh::{self, VCRC_LEN};
use super::{Bth, Ethernet, Ext, Headers, Ipv4, Ipv6, Lrh, Net, SentSeeds, Symbol, Udp, XrcEth, frame};

/// The length of the longest headers before a base header, in bytes: those of InfiniBand with a GRH.
const MAX_LEN: usize = Ethernet::LEN + Symbol::LEN + Lrh::LEN + Ipv6::LEN;

/// The headers below the base header on a path, with their bytes.
pub struct Template {
    headers: Headers,
    /// The headers, without lengths, identification and checksum.
    bytes: [u8; MAX_LEN],
    /// The length of a frame without extended headers and payload.
    overhead: usize,
    /// The sum of the words of the IPv4 header.
    sum: u32,
    seeds: SentSeeds,
}

impl Template {
    /// Makes the bytes of `headers`.
    #[must_use]
    pub fn new(headers: Headers) -> Self {
        let mut bytes = [0; MAX_LEN];
        let (ethernet, net) = bytes.split_at_mut(Ethernet::LEN);
        ethernet.copy_from_slice(&headers.ethernet.emit());
        let mut sum = 0;
        match &headers.net {
            Net::V4(ip, udp) => {
                let ip = ip.fixed();
                sum = Ipv4::sum(&ip);
                net[..Ipv4::LEN].copy_from_slice(&ip);
                net[Ipv4::LEN..Ipv4::LEN + Udp::LEN].copy_from_slice(&udp.emit(0));
            }
            Net::V6(ip, udp) => {
                net[..Ipv6::LEN].copy_from_slice(&ip.emit(0));
                net[Ipv6::LEN..Ipv6::LEN + Udp::LEN].copy_from_slice(&udp.emit(0));
            }
            Net::Grh(ip) => net[..Ipv6::LEN].copy_from_slice(&ip.emit(0)),
            Net::InfiniBand(_, grh) => {
                net[..Symbol::LEN].copy_from_slice(&(Symbol::Packet as u16).to_be_bytes());
                if let Some(grh) = grh {
                    net[Symbol::LEN + Lrh::LEN..].copy_from_slice(&grh.emit(0));
                }
            }
        }
        Self { headers, bytes, overhead: headers.frame_len(&Ext::None, 0), sum, seeds: SentSeeds::default() }
    }

    /// Returns the headers.
    #[must_use]
    pub const fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Returns the length in bytes of a frame with `bth`, `ext` and a payload of `payload_len` bytes.
    #[must_use]
    #[inline]
    pub const fn frame_len(&self, bth: &Bth, ext: &Ext, payload_len: usize) -> usize {
        self.overhead + ext.len() + bth.xrc_len() + payload_len.next_multiple_of(4)
    }

    /// Writes a frame with IPv4 identification `id` into the front of `out`; `fill` writes its payload.
    /// Returns the length of the frame, or `None` if `out` is too short. The padding in `bth` is ignored and
    /// computed.
    pub fn emit(
        &self,
        id: u16,
        bth: &Bth,
        ext: &Ext,
        payload_len: usize,
        out: &mut [u8],
        fill: impl FnOnce(&mut [u8]),
    ) -> Option<usize> {
        let net = &self.headers.net;
        let frame_len = self.frame_len(bth, ext, payload_len);
        let out = out.get_mut(..frame_len)?;
        let (packet, trailer) = out.split_at_mut_checked(frame_len - net.trailer_len())?;
        let after_net = self.emit_headers(id, packet)?;

        let (bth_bytes, rest) = after_net.split_first_chunk_mut()?;
        let pad = payload_len.next_multiple_of(4) - payload_len;
        *bth_bytes = Bth { pad: pad as u8, ..*bth }.emit();
        let rest = if let Some(xrc) = bth.xrc {
            let (bytes, rest) = rest.split_first_chunk_mut::<{ XrcEth::LEN }>()?;
            *bytes = xrc.emit();
            rest
        } else {
            rest
        };
        let (payload, after) = ext.emit(rest)?.split_at_mut_checked(payload_len)?;
        fill(payload);
        if pad > 0 {
            after.get_mut(..pad)?.fill(0);
        }

        let (covered, icrc) = packet.get_mut(Ethernet::LEN..)?.split_last_chunk_mut()?;
        let after = |first: &_, ones: &_| self.seeds.after(first, frame_len, ones);
        *icrc = frame::crc_by_seed(net, covered, after)?;
        if let Some(vcrc) = trailer.first_chunk_mut::<VCRC_LEN>() {
            *vcrc = lrh::vcrc(packet.get(Ethernet::LEN + Symbol::LEN..)?);
        }
        Some(frame_len)
    }

    /// Writes the headers into the front of a frame that ends with its ICRC, and returns the other bytes.
    fn emit_headers<'a>(&self, id: u16, frame: &'a mut [u8]) -> Option<&'a mut [u8]> {
        const V4: usize = Ethernet::LEN + Ipv4::LEN;
        const V6: usize = Ethernet::LEN + Ipv6::LEN;
        const LOCAL: usize = Ethernet::LEN + Symbol::LEN;
        let len = frame.len();
        match &self.headers.net {
            Net::V4(..) => {
                let (to, rest) = self.copy::<{ V4 + Udp::LEN }>(frame)?;
                let (to, udp) = to.split_last_chunk_mut()?;
                Ipv4::complete(to.last_chunk_mut()?, self.sum, id, len - V4);
                Udp::set_payload_len(udp, rest.len());
                Some(rest)
            }
            Net::V6(..) => {
                let (to, rest) = self.copy::<{ V6 + Udp::LEN }>(frame)?;
                let (to, udp) = to.split_last_chunk_mut()?;
                Ipv6::set_payload_len(to.last_chunk_mut()?, len - V6);
                Udp::set_payload_len(udp, rest.len());
                Some(rest)
            }
            Net::Grh(_) => {
                let (to, rest) = self.copy::<V6>(frame)?;
                Ipv6::set_payload_len(to.last_chunk_mut()?, len - V6);
                Some(rest)
            }
            Net::InfiniBand(lrh, None) => {
                let (to, rest) = self.copy::<{ LOCAL + Lrh::LEN }>(frame)?;
                *to.last_chunk_mut()? = lrh.emit(false, rest.len());
                Some(rest)
            }
            Net::InfiniBand(lrh, Some(_)) => {
                let (to, rest) = self.copy::<MAX_LEN>(frame)?;
                let (to, grh) = to.split_last_chunk_mut()?;
                *to.last_chunk_mut()? = lrh.emit(true, Ipv6::LEN + rest.len());
                Ipv6::set_payload_len(grh, rest.len());
                Some(rest)
            }
        }
    }

    /// Copies the first `N` bytes to the front of `frame`, and returns them there with the other bytes.
    fn copy<'a, const N: usize>(&self, frame: &'a mut [u8]) -> Option<(&'a mut [u8; N], &'a mut [u8])> {
        let (to, rest) = frame.split_first_chunk_mut()?;
        *to = *self.bytes.first_chunk()?;
        Some((to, rest))
    }
}
