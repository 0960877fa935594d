//! Something between nodes and their manager that can fall silent: it takes bytes and passes none on, while
//! its connections stay.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Which way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    ToManager,
    ToNodes,
}

/// Each way, whether it passes nothing on.
#[derive(Default)]
struct Silence {
    ways: Mutex<[bool; 2]>,
    change: Condvar,
}

impl Silence {
    /// Waits until that way is silent no more.
    fn wait(&self, way: Way) {
        let ways = self.ways.lock().unwrap();
        drop(self.change.wait_while(ways, |ways| ways[way as usize]).unwrap());
    }
}

/// Connections to it go on to the manager. Its threads end with their connections.
pub struct Proxy {
    /// Where it listens.
    pub address: String,
    silence: Arc<Silence>,
}

impl Proxy {
    /// In front of the manager at `manager`.
    pub fn start(manager: &str) -> Self {
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

    /// Passes nothing on that way, or what has come meanwhile and all that follows.
    pub fn silent(&self, way: Way, silent: bool) {
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
    // The end is not told before its time either. The other way ends as well.
    silence.wait(way);
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}
