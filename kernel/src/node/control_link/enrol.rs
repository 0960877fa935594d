//! The enrolment of a node that boots by PXE: it exchanges the token of this boot for the key of a node.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use bootconfig::{Backoff, Endpoint, Host, Source, endpoints};
use core::net::{IpAddr, SocketAddr};
use core::time::Duration;
use platform::{Instant, NetworkError};
use proto::channel::ClusterKey;
use proto::channel::enrolment::{Enrolling, EnrolmentError, ManagerKey, Request, Token};
use zeroize::Zeroizing;

use crate::net::stack::{Buffers, Stack, TcpStream};
use crate::node::image;
use crate::{cmdline, exec, net, random, time};

/// The deadline of an attempt, counted from its start.
const DEADLINE: Duration = Duration::from_secs(5);
/// The lengths of the connection's buffers, in bytes.
const BUFFERS: Buffers = Buffers { receive: 8 << 10, send: 8 << 10 };
/// The length of a frame's length, in bytes.
const LENGTH: usize = 2;

/// The settings of an enrolment.
pub(crate) struct Enrolment {
    token: Token,
    service: SocketAddr,
    manager: ManagerKey,
}

/// The reason for which an attempt has failed.
enum Failure {
    /// Another attempt may succeed.
    Network(NetworkError),
    /// The token will not be accepted, or the answer is not the manager's.
    Final(EnrolmentError),
}

impl Enrolment {
    /// Returns the settings; `None` if this boot has no token.
    ///
    /// # Errors
    /// A line for the user: a setting is missing or malformed.
    pub(super) fn of_settings() -> Result<Option<Self>, String> {
        let Some(token) = cmdline::get("token") else { return Ok(None) };
        let token = Token::from_hex(token).map_err(|why| format!("token: {why}"))?;
        let service = cmdline::get("enrol").ok_or("token= needs enrol=ADDRESS:PORT")?;
        let service = match endpoints(service).as_deref() {
            // Network boot is by IPv4.
            Ok([Endpoint { host: Host::Address(address @ IpAddr::V4(_)), port }]) => {
                SocketAddr::new(*address, *port)
            }
            _ => return Err(format!("enrol={service}: want ADDRESS:PORT, by IPv4")),
        };
        // The network from which the command line has come cannot replace the key that the boot file has.
        let manager =
            cmdline::of_source("manager_key", Source::BuiltIn).or_else(|| cmdline::get("manager_key"));
        let manager = manager.ok_or("token= needs manager_key=, which the boot file should have")?;
        let manager = ManagerKey::from_hex(manager).map_err(|why| format!("manager_key: {why}"))?;
        Ok(Some(Self { token, service, manager }))
    }

    /// Exchanges the token for a key. An attempt that does not reach the service is followed by another after
    /// a pause.
    ///
    /// # Errors
    /// A line for the user: the service refuses, or is not this manager's.
    pub(super) async fn key(&self, stack: &'static Stack) -> Result<ClusterKey, String> {
        let at = self.service;
        let mut backoff = Backoff::default();
        stack.configured().await;
        loop {
            let why = match self.attempt(stack).await {
                Ok(key) => {
                    log::info!("cluster key by enrolment at {at}");
                    return Ok(key);
                }
                Err(Failure::Final(why)) => {
                    return Err(format!("enrolment at {at}: {why}; a restart brings a new token"));
                }
                Err(Failure::Network(why)) => why,
            };
            let mut draw = [0; 4];
            random::fill(&mut draw);
            let pause = backoff.pause(u32::from_le_bytes(draw));
            log::error!("cannot enrol at {at}: {why}; next attempt in {} s", pause.as_secs());
            exec::sleep(pause).await;
        }
    }

    async fn attempt(&self, stack: &'static Stack) -> Result<ClusterKey, Failure> {
        let deadline = time::now() + DEADLINE;
        let request = Request { token: self.token.clone(), mac: stack.port().mac(), kernel: image::digest() };
        let mut fresh = Zeroizing::new([0; 32]);
        random::fill(&mut *fresh);
        let (enrolling, frame) = Enrolling::new(&self.manager, &request, *fresh);
        let stream = stack.connect(self.service, BUFFERS, deadline).await.map_err(Failure::Network)?;
        stream.write_all(&frame, deadline).await.map_err(Failure::Network)?;
        let answer = net::with_deadline(deadline, answer(&stream, deadline)).await;
        let answer = answer.unwrap_or(Err(NetworkError::Deadline)).map_err(Failure::Network)?;
        enrolling.finish(&answer).map_err(Failure::Final)
    }
}

/// Receives a frame, and returns it without its length.
async fn answer(stream: &TcpStream, deadline: Instant) -> Result<Vec<u8>, NetworkError> {
    let length = *exactly(stream, LENGTH, deadline).await?.first_chunk().ok_or(NetworkError::Closed)?;
    exactly(stream, u16::from_be_bytes(length).into(), deadline).await
}

async fn exactly(stream: &TcpStream, len: usize, deadline: Instant) -> Result<Vec<u8>, NetworkError> {
    let mut bytes = vec![0; len];
    let mut at = 0;
    while at < len {
        match stream.read(bytes.get_mut(at..).unwrap_or_default(), deadline).await? {
            0 => return Err(NetworkError::Closed),
            count => at += count,
        }
    }
    Ok(bytes)
}
