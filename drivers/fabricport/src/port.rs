//! An Ethernet port for softroce over a [`FrameStream`].

use crate::stream::{ConnectError, FrameStream, Watch};
use neighbour::{FRAME_MAX, Resolver, Traffic, classify};
use platform::Instant;
use softroce::EthernetPort;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time;
use verbs::MacAddr;

/// The port. It drops frames that are neither RoCE nor queries for its addresses, because it has no other
/// stack.
#[derive(Debug)]
pub struct FabricPort {
    stream: FrameStream,
    mac: MacAddr,
    mtu: usize,
    started: time::Instant,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    resolver: Mutex<Resolver>,
    received: AtomicU64,
    sent: AtomicU64,
}

impl Shared {
    fn resolver(&self) -> MutexGuard<'_, Resolver> {
        // A panic cannot leave the resolver in a harmful state: it forgets, or asks again.
        self.resolver.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle of the port for other threads: to wait for it, to give it addresses, and to read its counts.
/// Clones refer to the same port.
#[derive(Clone, Debug)]
pub struct Handle {
    shared: Arc<Shared>,
    watch: Watch,
}

/// The numbers of RoCE frames of a port so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RoceFrames {
    /// Frames received from the fabric.
    pub received: u64,
    /// Frames queued for the fabric.
    pub sent: u64,
}

impl Handle {
    /// Adds an address for which the port answers from now on. Returns false if the port has the maximum
    /// number of addresses (four).
    pub fn add_address(&self, address: IpAddr) -> bool {
        self.shared.resolver().add_own(address)
    }

    /// Returns the watch for the port's events.
    #[must_use]
    pub const fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Returns the numbers of RoCE frames so far.
    #[must_use]
    pub fn roce_frames(&self) -> RoceFrames {
        let Shared { received, sent, .. } = &*self.shared;
        RoceFrames { received: received.load(Ordering::Relaxed), sent: sent.load(Ordering::Relaxed) }
    }
}

impl FabricPort {
    /// Connects to a fabric's port. `mtu` is the maximum payload of a frame, in bytes.
    ///
    /// # Errors
    /// If nothing listens at the socket.
    pub fn connect(path: &Path, mac: MacAddr, mtu: usize) -> Result<(Self, Handle), ConnectError> {
        Ok(Self::new(FrameStream::connect(path)?, mac, mtu))
    }

    /// Makes a port over an existing connection. `mtu` is the maximum payload of a frame, in bytes.
    #[must_use]
    pub fn new(stream: FrameStream, mac: MacAddr, mtu: usize) -> (Self, Handle) {
        let resolver = Mutex::new(Resolver::new(mac));
        let shared = Arc::new(Shared { resolver, received: AtomicU64::new(0), sent: AtomicU64::new(0) });
        let handle = Handle { shared: shared.clone(), watch: stream.watch() };
        (Self { stream, mac, mtu, started: time::Instant::now(), shared }, handle)
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Sends the resolver's answers.
    fn answer(&mut self) {
        let now = self.now();
        let mut resolver = self.shared.resolver();
        let mut answer = [0; FRAME_MAX];
        while let Some(len) = resolver.poll(now, &mut answer) {
            // An answer that the fabric does not accept is lost: the asking node repeats its query.
            self.stream.send(answer.get(..len).unwrap_or_default());
        }
        drop(resolver);
        self.stream.flush();
    }
}

impl EthernetPort for FabricPort {
    fn mac(&self) -> MacAddr {
        self.mac
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        // Sends the rest that a full socket did not accept.
        self.stream.flush();
        let (now, shared) = (self.now(), &self.shared);
        let (mut roce, mut asked) = (0, false);
        let count = self.stream.receive(budget, &mut |frame| match classify(frame) {
            Traffic::Roce => {
                roce += 1;
                each(frame);
            }
            Traffic::Neighbour => {
                asked = true;
                shared.resolver().input(now, frame);
            }
            Traffic::Host => {}
        });
        shared.received.fetch_add(roce, Ordering::Relaxed);
        if asked {
            self.answer();
        }
        count
    }

    fn transmit(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let sent = &self.shared.sent;
        self.stream.transmit(max_len, &mut |room| {
            let len = fill(room);
            sent.fetch_add(u64::from(len > 0), Ordering::Relaxed);
            len
        })
    }

    fn flush(&mut self) {
        self.stream.flush();
    }

    fn arm(&mut self) -> bool {
        self.stream.ready()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neighbour::Resolution;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
    const PEER: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const V4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));
    const V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 9));

    fn pair() -> (FabricPort, Handle, FrameStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (port, handle) = FabricPort::new(FrameStream::over(ours).unwrap(), MAC, 1500);
        (port, handle, FrameStream::over(theirs).unwrap())
    }

    /// Makes a frame with the given Ethertype.
    fn frame(ethertype: u16) -> Vec<u8> {
        [&MAC.0[..], &PEER.0, &ethertype.to_be_bytes(), &[7; 50]].concat()
    }

    #[test]
    fn roce_is_given_and_counted_and_the_rest_is_not() {
        let (mut port, handle, mut peer) = pair();
        for ethertype in [0x8915, 0x88b5, 0x8915] {
            assert!(peer.send(&frame(ethertype)));
        }
        peer.flush();
        assert!(port.arm());
        let mut got = Vec::new();
        assert_eq!(port.receive(8, &mut |frame| got.push(frame.to_vec())), 3);
        assert_eq!(got, [frame(0x8915), frame(0x8915)]);
        assert!(!port.arm());
        for len in [0, 64] {
            assert!(port.transmit(100, &mut |room| {
                room[..64].copy_from_slice(&frame(0x8915));
                len
            }));
        }
        port.flush();
        let mut got = Vec::new();
        assert_eq!(peer.receive(8, &mut |frame| got.push(frame.to_vec())), 1);
        assert_eq!(got, [frame(0x8915)]);
        assert_eq!(handle.roce_frames(), RoceFrames { received: 2, sent: 1 });
    }

    #[test]
    fn questions_for_its_addresses_are_answered() {
        let (mut port, handle, mut peer) = pair();
        assert!(handle.add_address(V4) && handle.add_address(V6));
        let now = Instant::from_nanos(1);
        for (own, asked, known) in [
            (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), V4, true),
            (IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1)), V6, true),
            (IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(Ipv4Addr::new(10, 0, 0, 8)), false),
        ] {
            let mut resolver = Resolver::new(PEER);
            resolver.add_own(own);
            resolver.resolve(now, asked, now + Duration::from_secs(1));
            let mut question = [0; FRAME_MAX];
            let len = resolver.poll(now, &mut question).unwrap();
            assert!(peer.send(&question[..len]));
            peer.flush();
            assert_eq!(port.receive(8, &mut |_| panic!("passed to the RNIC")), 1);
            assert_eq!(peer.receive(8, &mut |frame| resolver.input(now, frame)), usize::from(known));
            let expected = if known { Resolution::Known(MAC) } else { Resolution::Pending };
            assert_eq!(resolver.lookup(now, asked), expected);
        }
        assert_eq!(handle.roce_frames(), RoceFrames::default());
    }
}
