//! The streams of a command in a guest, passed on while it runs.
//!
//! Each stream is a port of its own. Input is sent in pieces, `LENGTH\n` followed by that number of bytes;
//! the last piece has length 0. Output and error are enclosed by two occurrences of a word that the host
//! invents for each command, because processes left by an earlier command may print before or after. The
//! guest's end is `init.sh`.

use super::channel::{Channel, RunError, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The interval at which a stream is checked for the end of its command.
const CHECK_EVERY: Duration = Duration::from_millis(100);
/// The time limit from the end of a command to the ends of its streams.
const GRACE: Duration = Duration::from_secs(15);

/// The input of a command.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// No input.
    Empty,
    /// A file, a pipe or a terminal. Data that the command does not read may be lost.
    File(BorrowedFd<'a>),
}

/// The host's ends of the streams.
#[derive(Debug)]
pub(super) struct Streams {
    pub input: UnixStream,
    pub output: UnixStream,
    pub error: UnixStream,
}

impl Streams {
    /// Runs a command with its streams connected.
    pub(super) fn run(
        &self,
        channel: &mut Channel,
        command: &str,
        within: Duration,
        input: Input<'_>,
        stdout: &mut (dyn Write + Send),
        stderr: &mut (dyn Write + Send),
    ) -> Result<Status, RunError> {
        let word = word();
        let ended = AtomicBool::new(false);
        let (done, out, err, fed) = std::thread::scope(|scope| {
            let (word, ended) = (&word, &ended);
            let fed = scope.spawn(move || feed(&self.input, input, ended));
            let out = scope.spawn(move || pass_on(&self.output, stdout, word.as_bytes(), ended));
            let err = scope.spawn(move || pass_on(&self.error, stderr, word.as_bytes(), ended));
            let done = channel.run_as(word, command, within);
            ended.store(true, Ordering::Release);
            let [out, err, fed] =
                [out, err, fed].map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())));
            (done, out, err, fed)
        });
        let status = done?.status;
        out.and(err).and(fed)?;
        Ok(status)
    }
}

fn panicked() -> io::Error {
    io::Error::other("a thread panicked")
}

/// Returns a random word that no command is likely to print.
fn word() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("stream-{:016x}{:016x}", random(), random())
}

/// Passes input on until it ends or the command ends.
fn feed(mut to: &UnixStream, input: Input<'_>, ended: &AtomicBool) -> io::Result<()> {
    // The guest reads the data even if the command does not, until the command has ended.
    to.set_write_timeout(Some(CHECK_EVERY))?;
    if let Input::File(file) = input {
        let mut buffer = vec![0; 64 * 1024];
        while readable(file, ended)? {
            let count = match rustix::io::read(file, &mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(e) => return Err(e.into()),
            };
            write_all(&mut to, format!("{count}\n").as_bytes(), ended)?;
            write_all(&mut to, &buffer[..count], ended)?;
        }
    }
    write_all(&mut to, b"0\n", ended)
}

/// Waits until the file is readable. Returns `false` if the command has ended.
fn readable(file: BorrowedFd<'_>, ended: &AtomicBool) -> io::Result<bool> {
    while !ended.load(Ordering::Acquire) {
        let mut files = [PollFd::new(&file, PollFlags::IN)];
        let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(CHECK_EVERY.subsec_nanos()) };
        match poll(&mut files, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(true),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(false)
}

/// Writes all bytes. While the command runs there is no time limit; after its end, the limit is [`GRACE`].
fn write_all(to: &mut &UnixStream, mut bytes: &[u8], ended: &AtomicBool) -> io::Result<()> {
    let mut deadline = None;
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                check(&mut deadline, ended)?;
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Fails if the command ended longer than [`GRACE`] ago.
fn check(deadline: &mut Option<Instant>, ended: &AtomicBool) -> io::Result<()> {
    if ended.load(Ordering::Acquire)
        && Instant::now() >= *deadline.get_or_insert_with(|| Instant::now() + GRACE)
    {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the end of a stream does not come"));
    }
    Ok(())
}

/// Passes on the output between two occurrences of a word.
fn pass_on(
    mut from: &UnixStream,
    to: &mut (dyn Write + Send),
    word: &[u8],
    ended: &AtomicBool,
) -> io::Result<()> {
    from.set_read_timeout(Some(CHECK_EVERY))?;
    let mut held = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    let (mut begun, mut deadline) = (false, None);
    // Reading continues after an error, so that the guest is never blocked on writing.
    let mut failed = None;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the guest has ended")),
            Ok(count) => held.extend_from_slice(&buffer[..count]),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                check(&mut deadline, ended)?;
                continue;
            }
            Err(e) => return Err(e),
        }
        let (mut ready, mut found) = split(&held, word);
        if !begun && found {
            begun = true;
            held.drain(..ready + word.len());
            (ready, found) = split(&held, word);
        }
        if begun && failed.is_none() {
            failed = to.write_all(&held[..ready]).and_then(|()| to.flush()).err();
        }
        held.drain(..ready);
        if begun && found {
            return failed.map_or(Ok(()), Err);
        }
    }
}

/// Returns the number of bytes at the front that are certainly output, and whether the word follows them.
fn split(held: &[u8], word: &[u8]) -> (usize, bool) {
    if let Some(at) = held.windows(word.len()).position(|window| window == word) {
        return (at, true);
    }
    let begun = (1..word.len()).rev().find(|&count| held.ends_with(&word[..count]));
    (held.len() - begun.unwrap_or(0), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_held_back_only_where_it_may_be_the_end() {
        assert_eq!(split(b"abc", b"xyz"), (3, false));
        assert_eq!(split(b"abcx", b"xyz"), (3, false));
        assert_eq!(split(b"abcxy", b"xyz"), (3, false));
        assert_eq!(split(b"abcxyq", b"xyz"), (6, false));
        assert_eq!(split(b"abcxyz", b"xyz"), (3, true));
        assert_eq!(split(b"", b"xyz"), (0, false));
    }

    #[test]
    fn a_stream_ends_with_its_word_however_it_is_cut() {
        let (mut guest, host) = UnixStream::pair().unwrap();
        let ended = AtomicBool::new(false);
        let mut output = Vec::new();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| pass_on(&host, &mut output, b"word", &ended));
            for piece in [&b"of old wo"[..], b"rdsome w", b"or", b"ks wo", b"rd"] {
                guest.write_all(piece).unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
            reader.join().unwrap().unwrap();
        });
        assert_eq!(output, b"some works ");
        // Both words at once with nothing in between; then the guest disconnects.
        guest.write_all(b"wordword").unwrap();
        drop(guest);
        output.clear();
        pass_on(&host, &mut output, b"word", &ended).unwrap();
        assert!(output.is_empty() && pass_on(&host, &mut output, b"word", &ended).is_err());
    }
}
