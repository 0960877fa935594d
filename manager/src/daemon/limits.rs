//! How many connections fit into the process's file descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors for all that is no connection: standard streams, the listener, the store, the runtime, one in reserve.
const OWN: u64 = 32;

/// Connections in their handshake at most, where there are descriptors enough.
const HANDSHAKES: u64 = 256;

/// The most members of a cluster.
const MEMBERS: u64 = 4095;

/// Connections that are ever allowed: a cluster's members and some clients.
const CONNECTIONS: u64 = MEMBERS + 1024;

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// In their handshake.
    pub(super) handshakes: usize,
    /// Beyond it.
    pub(super) connections: usize,
    /// Of those, clients' ones.
    pub(super) clients: usize,
}

impl Limits {
    /// What so many file descriptors allow.
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

    /// What to tell the operator, if not all members of a large cluster could connect.
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

/// Raises this process's limit of open files as far as it may; gives what it is then.
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
