//! A software RNIC on the wire of the emulated cards.

use super::wire::Station;
use platform::{Arena, Instant};
use softroce::{Config, EthernetPort, SoftRoce};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use verbs::{Gid, MacAddr, Rnic};

/// The frames that the RNIC has received, and those that it has sent.
#[derive(Default)]
struct Queues {
    inbox: VecDeque<Vec<u8>>,
    outbox: Vec<Vec<u8>>,
}

/// The port of the software RNIC.
pub(crate) struct Port {
    mac: MacAddr,
    queues: Arc<Mutex<Queues>>,
}

impl EthernetPort for Port {
    fn mac(&self) -> MacAddr {
        self.mac
    }
    fn mtu(&self) -> usize {
        1500
    }
    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let frames: Vec<_> = {
            let inbox = &mut self.queues.lock().unwrap().inbox;
            let n = inbox.len().min(budget);
            inbox.drain(..n).collect()
        };
        frames.iter().for_each(|frame| each(frame));
        frames.len()
    }
    fn transmit(&mut self, max_len: usize, fill: &mut dyn FnMut(&mut [u8]) -> usize) -> bool {
        let mut frame = vec![0; max_len];
        let len = fill(&mut frame);
        frame.truncate(len);
        self.queues.lock().unwrap().outbox.push(frame);
        true
    }
    fn flush(&mut self) {}
    fn arm(&mut self) -> bool {
        !self.queues.lock().unwrap().inbox.is_empty()
    }
}

/// The RNIC and its end of the wire.
pub(crate) struct Soft {
    pub rnic: Arc<SoftRoce<Port, spin::Mutex<()>>>,
    queues: Arc<Mutex<Queues>>,
}

impl Soft {
    pub(crate) fn new(number: u8, gid: Gid, memory: Arc<Arena>) -> Self {
        let queues = Arc::new(Mutex::new(Queues::default()));
        let port = Port { mac: MacAddr([2, 0, 0, 0, 0, number]), queues: queues.clone() };
        let rnic = Arc::new(SoftRoce::new(port, memory, Config::new(gid, [number; 16])));
        Self { rnic, queues }
    }
}

impl Station for Soft {
    fn progress(&self) {
        while self.rnic.progress(Instant::ZERO, 64) {}
    }
    fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.queues.lock().unwrap().outbox)
    }
    fn receive(&self, frame: &[u8]) {
        self.queues.lock().unwrap().inbox.push_back(frame.to_vec());
    }
}

/// A SoftRoCE RNIC as a station of a simulated network. Unlike [`Soft`], it leaves the calls of the RNIC's
/// `progress` to the host that owns it.
pub(crate) struct SoftWire<'a>(pub &'a Soft);

impl Station for SoftWire<'_> {
    fn progress(&self) {}
    fn sent(&self) -> Vec<Vec<u8>> {
        self.0.sent()
    }
    fn receive(&self, frame: &[u8]) {
        self.0.receive(frame);
    }
}
