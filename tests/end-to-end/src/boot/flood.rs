//! Traffic that does not end when the machine which receives it changes its kernel.

use anyhow::{Context, Result};
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

/// The time between two frames.
const PAUSE: Duration = Duration::from_micros(100);
/// The length of a frame, in bytes.
const LEN: usize = 1400;
/// To all stations, from one that does not exist, with the type that is left for experiments (IEEE 802).
const HEADER: [u8; 14] = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x52, 0x54, 0, 0xfc, 0, 2, 0x88, 0xb5];

/// A station on a fabric that sends about ten thousand broadcast frames in a second. It ends when it is
/// dropped.
pub(super) struct Flood {
    stream: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Starts the station on the socket of a fabric's port.
    pub(super) fn start(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).context("no port of the fabric for the traffic")?;
        stream.set_read_timeout(Some(PAUSE))?;
        let mut port = stream.try_clone()?;
        // QEMU's stream devices send each frame behind its length.
        let mut message = (LEN as u32).to_be_bytes().to_vec();
        message.extend(HEADER);
        message.resize(4 + LEN, 0xa5);
        let thread = std::thread::spawn(move || {
            let mut ignored = [0; 4096];
            while port.write_all(&message).is_ok() {
                // The frames that the machine sends are read, so that they do not fill the port.
                match port.read(&mut ignored) {
                    Ok(0) => return,
                    Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                        return;
                    }
                    _ => {}
                }
            }
        });
        Ok(Self { stream, thread: Some(thread) })
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
