//! The proof of somebody's identity over HTTP, and the role that goes with it.

use crate::core::View;
use proto::UserRole;
use proto::channel::{ClusterKey, Role, UserId, UserKey};
use std::iter;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zeroize::Zeroizing;

/// Somebody who has proved who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A holder of the password of people who only look, with the number of the password.
    Viewer(u64),
    /// A holder of the cluster's key for clients.
    Shared,
    /// A holder of the key of a user, who may have been removed.
    User(UserId),
}

impl Identity {
    /// Returns the name and the role at present; `None` for somebody who may do nothing.
    #[must_use]
    pub fn standing(self, view: &View) -> Option<(String, UserRole)> {
        match self {
            Self::Viewer(_) => Some(("viewer".into(), UserRole::Viewer)),
            Self::Shared => view.shared_key.then(|| ("cluster".into(), UserRole::Admin)),
            Self::User(key) => {
                let user = view.users.iter().find(|user| user.key == key)?;
                Some((user.name.clone(), user.role))
            }
        }
    }

    /// Returns the user, if it is one.
    pub(super) const fn user(self) -> Option<UserId> {
        match self {
            Self::User(user) => Some(user),
            Self::Viewer(_) | Self::Shared => None,
        }
    }
}

/// The decision who somebody is.
pub trait Gate: Send + Sync + std::fmt::Debug + 'static {
    /// Returns the identity that a secret proves, or `None` if it proves none.
    fn identify(&self, secret: &str) -> Option<Identity>;

    /// Returns true if the secret of an identity still counts.
    fn is_valid(&self, identity: Identity) -> bool;
}

/// The password of people who only look, if there is one, and its number. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Viewers(Arc<Mutex<(u64, Option<Zeroizing<String>>)>>);

impl Viewers {
    fn new(password: Option<Zeroizing<String>>) -> Self {
        Self(Arc::new(Mutex::new((0, password))))
    }

    /// Replaces the password. Sessions with another one end.
    pub(crate) fn replace(&self, password: Option<Zeroizing<String>>) {
        let mut now = self.locked();
        if now.1 != password {
            *now = (now.0 + 1, password);
        }
    }

    fn locked(&self) -> MutexGuard<'_, (u64, Option<Zeroizing<String>>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A gate whose secrets are those of the command line: the text of the file of a user's key, of the cluster
/// key or of a client's key.
#[derive(Debug)]
pub struct KeyGate {
    /// The cluster key, and the former one if there is one.
    keys: Vec<ClusterKey>,
    viewers: Viewers,
}

impl KeyGate {
    /// Makes a gate for the whole key of a cluster, for the former one, if there is one, and for the password
    /// of viewers, if they have one.
    #[must_use]
    pub fn new(key: ClusterKey, former: Option<ClusterKey>, viewers: Option<Zeroizing<String>>) -> Self {
        Self { keys: iter::once(key).chain(former).collect(), viewers: Viewers::new(viewers) }
    }

    /// Returns the password of viewers, to replace it.
    pub(crate) fn viewers(&self) -> Viewers {
        self.viewers.clone()
    }
}

impl Gate for KeyGate {
    fn identify(&self, secret: &str) -> Option<Identity> {
        let secret = secret.trim();
        let (number, is_password) = {
            let viewers = self.viewers.locked();
            (viewers.0, viewers.1.as_ref().is_some_and(|password| same(password.trim(), secret)))
        };
        if is_password {
            return Some(Identity::Viewer(number));
        }
        if UserKey::is_meant(secret.as_bytes()) {
            let user = UserKey::from_text(secret.as_bytes()).ok()?;
            // The second factor: who has only the first part of the file is not in.
            let is_ours = self.keys.iter().any(|key| user.is_of(key));
            return is_ours.then(|| Identity::User(user.id()));
        }
        let is_key = |key: &ClusterKey| {
            same(key.to_hex(), secret) || key.only(Role::Client).is_ok_and(|key| same(key.to_hex(), secret))
        };
        self.keys.iter().any(is_key).then_some(Identity::Shared)
    }

    fn is_valid(&self, identity: Identity) -> bool {
        match identity {
            Identity::Viewer(number) => number == self.viewers.locked().0,
            Identity::Shared | Identity::User(_) => true,
        }
    }
}

/// Compares secrets in a time that depends on their lengths only.
pub(super) fn same(one: impl AsRef<[u8]>, other: &str) -> bool {
    let (one, other) = (one.as_ref().trim_ascii(), other.as_bytes());
    one.len() == other.len()
        && !one.is_empty()
        && one.iter().zip(other).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}
