//! Frames of any kind over a Unix stream socket.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// The maximum length of a frame, in bytes: QEMU's own limit (`NET_BUFSIZE`).
pub const LONGEST_FRAME: usize = 4096 + 65_536;
/// The size of a frame's length field, in bytes.
const PREFIX: usize = 4;
/// The minimum room for one read, in bytes.
const READ: usize = 256 << 10;
/// The number of bytes waiting for the fabric at which no more are accepted.
const QUEUE: usize = 1 << 20;

/// The error of a socket to which no connection can be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to the fabric's socket {}: {source}", path.display())]
pub struct ConnectError {
    path: PathBuf,
    source: io::Error,
}

/// The reason for which a connection is no longer usable.
#[derive(Debug, thiserror::Error)]
pub enum Closed {
    /// The other end has closed it.
    #[error("closed by the fabric")]
    ByPeer,
    /// The other end announced a frame of an impossible length.
    #[error("the fabric announced a frame of {0} bytes")]
    FrameLength(usize),
    /// The socket has failed.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// The connection of a port. A closed one behaves like a port whose cable is disconnected: it returns the
/// frames that arrived before, and frames sent are lost.
#[derive(Debug)]
pub struct FrameStream {
    shared: Arc<Shared>,
    /// Received bytes, of which `received[taken..filled]` are waiting.
    received: Vec<u8>,
    taken: usize,
    filled: usize,
    /// Bytes to be sent, of which `out[sent..]` are waiting.
    out: Vec<u8>,
    sent: usize,
}

#[derive(Debug)]
struct Shared {
    stream: UnixStream,
    closed: OnceLock<Closed>,
    full: AtomicBool,
}

/// A descriptor that waits for a connection's events: readable when frames arrive, and writable when [that is
/// of interest](Self::wants_write). Clones refer to the same connection.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Shared>);

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.stream.as_fd()
    }
}

impl Watch {
    /// Returns true if frames wait for room in the socket.
    #[must_use]
    pub fn wants_write(&self) -> bool {
        self.0.full.load(Ordering::Relaxed)
    }

    /// Returns the reason for which the connection is closed, if it is. There are no more events then, and
    /// the descriptor stays readable.
    #[must_use]
    pub fn closed(&self) -> Option<&Closed> {
        self.0.closed.get()
    }
}

impl FrameStream {
    /// Connects to a fabric's port, and acts as its other end.
    ///
    /// # Errors
    /// If nothing listens at the socket.
    pub fn connect(path: &Path) -> Result<Self, ConnectError> {
        let connected = UnixStream::connect(path).and_then(Self::over);
        connected.map_err(|source| ConnectError { path: path.into(), source })
    }

    /// Makes a stream over a connected socket, which becomes non-blocking.
    ///
    /// # Errors
    /// If the socket cannot become non-blocking.
    pub fn over(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            shared: Arc::new(Shared { stream, closed: OnceLock::new(), full: AtomicBool::new(false) }),
            received: vec![0; READ + PREFIX + LONGEST_FRAME],
            taken: 0,
            filled: 0,
            out: Vec::new(),
            sent: 0,
        })
    }

    /// Returns the watch for the connection's events.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch(self.shared.clone())
    }

    fn close(&self, why: Closed) {
        // The first reason is the cause.
        let _ = self.shared.closed.set(why);
    }

    fn is_closed(&self) -> bool {
        self.shared.closed.get().is_some()
    }

    /// Returns the range of the oldest complete frame received.
    fn front(&self) -> Option<(usize, usize)> {
        let waiting = self.received.get(self.taken..self.filled)?;
        let len = u32::from_be_bytes(*waiting.first_chunk::<PREFIX>()?) as usize;
        if !(1..=LONGEST_FRAME).contains(&len) {
            self.close(Closed::FrameLength(len));
            return None;
        }
        let begin = self.taken + PREFIX;
        (begin + len <= self.filled).then_some((begin, begin + len))
    }

    /// Reads from the socket once. Returns true if there is a complete frame.
    fn read(&mut self) -> bool {
        if self.is_closed() {
            return false;
        }
        self.received.copy_within(self.taken..self.filled, 0);
        (self.taken, self.filled) = (0, self.filled - self.taken);
        let Some(room) = self.received.get_mut(self.filled..) else { return false };
        match (&self.shared.stream).read(room) {
            Ok(0) => self.close(Closed::ByPeer),
            Ok(count) => self.filled += count,
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => self.close(Closed::Socket(error)),
        }
        self.front().is_some()
    }

    /// Returns the next received frame, in place. If there is none and `may_read` is true, reads from the
    /// socket once.
    fn next(&mut self, may_read: bool) -> Option<&[u8]> {
        if self.front().is_none() && !(may_read && self.read()) {
            return None;
        }
        let (begin, end) = self.front()?;
        self.taken = end;
        self.received.get(begin..end)
    }

    /// Calls `each` with up to `budget` received frames, in place, and returns their number. One call reads
    /// from the socket at most once.
    pub fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < budget {
            let Some(frame) = self.next(count == 0) else { break };
            each(frame);
            count += 1;
        }
        count
    }

    /// Lets `fill` write one frame of at most `max_len` bytes, which is at most [`LONGEST_FRAME`]. `fill`
    /// returns the length, or 0 for no frame. The next [`flush`](Self::flush) sends it. Returns false,
    /// without a call of `fill`, while too many bytes wait for the fabric.
    pub fn transmit(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let most = PREFIX + max_len;
        if self.waiting() + most > QUEUE {
            self.flush();
            if self.waiting() + most > QUEUE {
                return false;
            }
        }
        // This happens rarely, and moves fewer bytes than were sent since the last time.
        if self.sent > QUEUE {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        let begin = self.out.len();
        self.out.resize(begin + most, 0);
        let new = self.out.get_mut(begin..).and_then(|new| new.split_at_mut_checked(PREFIX));
        let Some((prefix, frame)) = new else { return false };
        let len = fill(frame).min(max_len);
        prefix.copy_from_slice(&u32::try_from(len).unwrap_or(0).to_be_bytes());
        self.out.truncate(if len == 0 || self.is_closed() { begin } else { begin + PREFIX + len });
        true
    }

    /// Sends a frame, as [`transmit`](Self::transmit) does.
    pub fn send(&mut self, frame: &[u8]) -> bool {
        self.transmit(frame.len(), &mut |room| {
            room.copy_from_slice(frame);
            frame.len()
        })
    }

    /// Returns the number of bytes that wait for the fabric.
    fn waiting(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Writes the waiting bytes to the socket, as far as it accepts them.
    pub fn flush(&mut self) {
        while let Some(waiting) = self.out.get(self.sent..).filter(|waiting| !waiting.is_empty()) {
            match (&self.shared.stream).write(waiting) {
                Ok(count) => self.sent += count,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.shared.full.store(true, Ordering::Relaxed);
                    return;
                }
                Err(error) => {
                    let gone = error.kind() == io::ErrorKind::BrokenPipe;
                    self.close(if gone { Closed::ByPeer } else { Closed::Socket(error) });
                    break;
                }
            }
        }
        self.shared.full.store(false, Ordering::Relaxed);
        self.out.clear();
        self.sent = 0;
    }

    /// Returns true if a frame can be received. Reads from the socket if none is buffered.
    pub fn ready(&mut self) -> bool {
        self.front().is_some() || self.read()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(20);

    fn pair() -> (FrameStream, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(SOON)).unwrap();
        theirs.set_write_timeout(Some(SOON)).unwrap();
        (FrameStream::over(ours).unwrap(), theirs)
    }

    fn framed(frame: &[u8]) -> Vec<u8> {
        [&u32::try_from(frame.len()).unwrap().to_be_bytes(), frame].concat()
    }

    fn received(stream: &mut FrameStream, budget: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let count = stream.receive(budget, &mut |frame| all.push(frame.to_vec()));
        assert_eq!(count, all.len());
        all
    }

    #[test]
    fn a_frame_is_given_once_it_is_whole() {
        let (mut stream, mut peer) = pair();
        let frames = [vec![1; 60], vec![2; 1], vec![3; LONGEST_FRAME]];
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| framed(frame)).collect();
        let (mut got, mut sent) = (Vec::new(), 0);
        // Byte by byte over both first frames, then in pieces.
        while sent < bytes.len() {
            let end = if sent < 80 { sent + 1 } else { (sent + 5000).min(bytes.len()) };
            peer.write_all(&bytes[sent..end]).unwrap();
            sent = end;
            let whole = [64, 69, bytes.len()].iter().filter(|at| **at <= sent).count();
            assert_eq!(stream.ready(), whole > got.len(), "after {sent} bytes");
            got.extend(received(&mut stream, 8));
            assert_eq!(got.len(), whole, "after {sent} bytes");
        }
        assert!(got == frames);
        assert!(!stream.ready() && stream.watch().closed().is_none());
    }

    #[test]
    fn a_budget_is_kept_and_the_rest_waits() {
        let (mut stream, mut peer) = pair();
        for n in 0..10u8 {
            peer.write_all(&framed(&[n; 20])).unwrap();
        }
        let mut next = 0;
        for budget in [0, 1, 3, 100] {
            let got = received(&mut stream, budget);
            assert_eq!(got.len(), budget.min(10 - next));
            for frame in got {
                assert_eq!(frame, [next as u8; 20]);
                next += 1;
            }
            assert_eq!(stream.ready(), next < 10);
        }
    }

    #[test]
    fn a_full_socket_holds_frames_back_and_loses_none() {
        let (mut stream, mut peer) = pair();
        let watch = stream.watch();
        let frame = |n: usize| vec![n as u8; 1 + n * 37 % 9000];
        let mut taken = 0;
        while stream.send(&frame(taken)) {
            stream.flush();
            taken += 1;
        }
        assert!(watch.wants_write());
        assert!(taken * 4500 > QUEUE, "only {taken} frames were taken");
        let mut asked = false;
        assert!(!stream.transmit(LONGEST_FRAME, &mut |_| {
            asked = true;
            0
        }));
        assert!(!asked, "a frame is requested that cannot be accepted");
        // The peer reads in small pieces, while more frames are sent than the queue holds at once.
        let more = taken + 1000;
        let expected: Vec<u8> = (0..more).flat_map(|n| framed(&frame(n))).collect();
        let (mut got, mut piece) = (Vec::new(), vec![0; 70_001]);
        while got.len() < expected.len() {
            while taken < more && stream.send(&frame(taken)) {
                taken += 1;
            }
            stream.flush();
            let count = peer.read(&mut piece).unwrap();
            got.extend_from_slice(&piece[..count]);
            assert!(stream.out.len() <= 2 * QUEUE + PREFIX + LONGEST_FRAME, "sent bytes are kept");
        }
        assert!(got == expected, "the frames are not what was sent");
        stream.flush();
        assert!(!watch.wants_write() && watch.closed().is_none());
    }

    #[test]
    fn a_frame_of_no_bytes_is_none() {
        let (mut stream, mut peer) = pair();
        assert!(stream.transmit(100, &mut |_| 0));
        assert!(stream.transmit(100, &mut |room| {
            room[..2].copy_from_slice(b"ab");
            2
        }));
        stream.flush();
        drop(stream);
        let mut got = Vec::new();
        peer.read_to_end(&mut got).unwrap();
        assert_eq!(got, framed(b"ab"));
    }

    #[test]
    fn what_came_before_the_end_is_given() {
        let (mut stream, mut peer) = pair();
        let watch = stream.watch();
        peer.write_all(&[framed(b"last"), vec![0, 0, 0, 9, 1]].concat()).unwrap();
        drop(peer);
        assert_eq!(received(&mut stream, 8), [b"last"]);
        assert!(received(&mut stream, 8).is_empty());
        assert!(matches!(watch.closed(), Some(Closed::ByPeer)));
        assert!(!stream.ready());
        // A disconnected cable accepts everything.
        for _ in 0..1000 {
            assert!(stream.send(&[0; 9000]));
        }
        stream.flush();
        assert!(!watch.wants_write() && stream.out.is_empty());
    }

    #[test]
    fn a_writer_notices_the_end() {
        let (mut stream, peer) = pair();
        drop(peer);
        assert!(stream.send(b"lost"));
        stream.flush();
        assert!(matches!(stream.watch().closed(), Some(Closed::ByPeer)));
    }

    #[test]
    fn frames_of_no_or_too_many_bytes_end_it() {
        for len in [0, LONGEST_FRAME + 1, u32::MAX as usize] {
            let (mut stream, mut peer) = pair();
            let prefix = u32::try_from(len).unwrap().to_be_bytes();
            peer.write_all(&[&framed(b"good")[..], &prefix, &[0; 100]].concat()).unwrap();
            assert_eq!(received(&mut stream, 8), [b"good"]);
            assert!(!stream.ready());
            assert!(matches!(stream.watch().closed(), Some(Closed::FrameLength(n)) if *n == len));
            assert!(received(&mut stream, 8).is_empty());
        }
    }

    #[test]
    fn who_is_not_there_is_named() {
        let error = FrameStream::connect(Path::new("/no/such/socket")).unwrap_err().to_string();
        assert!(error.starts_with("cannot connect to the fabric's socket /no/such/socket: "), "{error}");
    }
}
