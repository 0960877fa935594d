//! A proxy between nodes and their manager that can become silent: it accepts bytes and forwards none,
//! while its connections stay open.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// The direction of a connection: to the manager, or from it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    ToManager,
    ToNodes,
}

/// For each direction, true if nothing is forwarded.
#[derive(Default)]
struct Silence {
    ways: Mutex<[bool; 2]>,
    change: Condvar,
}

impl Silence {
    /// Waits until the given direction is forwarded.
    fn wait(&self, way: Way) {
        let ways = self.ways.lock().unwrap();
        drop(self.change.wait_while(ways, |ways| ways[way as usize]).unwrap());
    }
}

/// A proxy whose connections lead to the manager. Its threads end with their connections.
pub(crate) struct Proxy {
    /// The address on which the proxy listens.
    pub address: String,
    silence: Arc<Silence>,
}

impl Proxy {
    /// Starts a proxy for the manager at `manager`.
    pub(crate) fn start(manager: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let silence = Arc::new(Silence::default());
        let (manager, shared) = (manager.to_owned(), silence.clone());
        thread::spawn(move || {
            for node in listener.incoming().map_while(Result::ok) {
                let Ok(manager) = TcpStream::connect(&manager) else { continue };
                let pairs = [(Way::ToManager, &node, &manager), (Way::ToNodes, &manager, &node)];
                for (way, from, to) in pairs {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let silence = shared.clone();
                    thread::spawn(move || pass(way, from, to, &silence));
                }
            }
        });
        Self { address, silence }
    }

    /// Stops forwarding in the given direction, or forwards the bytes held back and all later ones.
    pub(crate) fn silent(&self, way: Way, silent: bool) {
        self.silence.ways.lock().unwrap()[way as usize] = silent;
        self.silence.change.notify_all();
    }
}

fn pass(way: Way, mut from: TcpStream, mut to: TcpStream, silence: &Silence) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        silence.wait(way);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // The end is not forwarded before its time either. The other direction ends as well.
    silence.wait(way);
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}
