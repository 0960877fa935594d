//! The number of connections that the process's file descriptors allow.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The number of descriptors that are not connections: standard streams, the listener, the store, the
/// runtime, and one in reserve.
const OWN: u64 = 32;

/// The maximum number of members of a cluster.
const MEMBERS: u64 = 4095;

/// The maximum number of connections in their handshake, if there are enough descriptors: all members may
/// connect at once, and a client.
const HANDSHAKES: u64 = MEMBERS + 1;

/// The maximum number of connections: the members of a cluster and some clients.
const CONNECTIONS: u64 = MEMBERS + 1024;

/// The limits of the number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// The number of connections in their handshake.
    pub(super) handshakes: usize,
    /// The maximum number of connections whose handshake is over.
    pub(super) connections: usize,
    /// The maximum number of clients among the connections whose handshake is over.
    pub(super) clients: usize,
}

impl Limits {
    /// Returns the limits for a number of file descriptors.
    pub(super) fn of(descriptors: u64) -> Self {
        let free = descriptors.saturating_sub(OWN);
        let handshakes = (free / 4).clamp(4, HANDSHAKES);
        let connections = free.saturating_sub(handshakes).clamp(4, CONNECTIONS);
        let number = |count| usize::try_from(count).unwrap_or(usize::MAX);
        Self {
            handshakes: number(handshakes),
            connections: number(connections),
            clients: number((connections / 4).max(2)),
        }
    }

    /// Returns a message for the operator if not all members of a large cluster could connect.
    pub(super) fn complaint(&self, descriptors: u64) -> Option<String> {
        ((self.connections as u64) < MEMBERS).then(|| {
            format!(
                "the limit of {descriptors} open files has room for {} nodes and clients, a cluster has up to \
                 {MEMBERS} nodes: raise it (ulimit -n, LimitNOFILE) if that is too few",
                self.connections
            )
        })
    }
}

/// Raises this process's limit of open files to the maximum, and returns it.
pub(super) fn raise_descriptors() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return current.unwrap_or(u64::MAX);
    }
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    let now = if raised.is_ok() { maximum } else { current };
    now.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_fit_into_the_descriptors() {
        for descriptors in [64, 256, 1024, 4096, 1 << 20, u64::MAX] {
            let limits = Limits::of(descriptors);
            assert!((limits.handshakes + limits.connections) as u64 + OWN <= descriptors, "{limits:?}");
            assert!(limits.clients < limits.connections);
        }
        assert_eq!(Limits::of(256), Limits { handshakes: 56, connections: 168, clients: 42 });
        assert!(Limits::of(1024).complaint(1024).is_some());
        assert_eq!(Limits::of(1 << 20).complaint(1 << 20), None);
    }
}
