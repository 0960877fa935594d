//! The users, and the decision what a client may do.

use super::{ConnId, Core, Record};
use crate::access;
use proto::channel::UserId;
use proto::{FromClient, Reason, Refusal, ToClient, UserRole, UserStatus, printable};
use std::collections::BTreeMap;

/// The greatest number of users.
const MOST: usize = 1000;

/// The longest name of a user, in bytes.
const LONGEST_NAME: usize = 64;

/// The users, by their public keys.
#[derive(Debug, Default)]
pub(super) struct Users(BTreeMap<UserId, (String, UserRole)>);

impl Users {
    pub(super) fn restore(saved: Vec<UserStatus>) -> Self {
        Self(saved.into_iter().map(|user| (user.key, (user.name, user.role))).collect())
    }

    fn key_of(&self, name: &str) -> Option<UserId> {
        self.0.iter().find(|(_, (known, _))| known == name).map(|(&key, _)| key)
    }

    /// Returns true if there is an administrator other than the user of this key.
    fn has_another_admin(&self, but: UserId) -> bool {
        self.0.iter().any(|(&key, (_, role))| key != but && *role == UserRole::Admin)
    }

    pub(super) fn statuses(&self) -> Vec<UserStatus> {
        let status = |(&key, (name, role)): (&UserId, &(String, UserRole))| UserStatus {
            name: name.clone(),
            role: *role,
            key,
        };
        let mut users: Vec<UserStatus> = self.0.iter().map(status).collect();
        users.sort_by(|a, b| a.name.cmp(&b.name));
        users
    }
}

impl Core {
    /// Returns the name and the role of a client; the name is empty for a peer with the cluster's key for
    /// clients alone, which is an administrator until there are users.
    ///
    /// # Errors
    /// The reason why the client may do nothing.
    pub(super) fn asker(&self, conn: ConnId) -> Result<(&str, UserRole), Reason> {
        match self.connections.get(&conn).and_then(|connection| connection.user) {
            Some(key) => match self.users.0.get(&key) {
                Some((name, role)) => Ok((name, *role)),
                None => Err("the manager knows no user with this key".into()),
            },
            None if self.accepts_shared_key() => Ok(("", UserRole::Admin)),
            None => Err("this cluster has users: connect with the key of a user".into()),
        }
    }

    /// Returns true if the cluster's key for clients alone is that of an administrator.
    pub(super) fn accepts_shared_key(&self) -> bool {
        self.users.0.is_empty() || self.config.rules.recover
    }

    /// Returns the reason why a client may not make a request.
    pub(super) fn objection_to(&self, conn: ConnId, request: &FromClient) -> Option<Reason> {
        let (name, role) = match self.asker(conn) {
            Ok(asker) => asker,
            Err(reason) => return Some(reason),
        };
        let needed = access::rule(request).needed(|job| self.owner(job) == Some(name));
        access::objection(name, role, needed)
    }

    pub(super) fn tell_asker(&mut self, conn: ConnId) {
        match self.asker(conn).map(|(name, role)| (name.to_owned(), role)) {
            Ok((name, role)) => self.tell_client(conn, ToClient::You { name, role }),
            Err(reason) => self.refuse_client(conn, Refusal::Denied, reason),
        }
    }

    pub(super) fn tell_users(&mut self, conn: ConnId) {
        let users = self.users.statuses();
        self.tell_client(conn, ToClient::Users(users));
    }

    pub(super) fn add_user(&mut self, conn: ConnId, user: UserStatus) {
        let objection = if !is_name(&user.name) {
            Some(format!("a user's name has 1 to {LONGEST_NAME} letters, digits, '.', '-' and '_'"))
        } else if self.users.key_of(&user.name).is_some() {
            Some(format!("there is a user {} already", user.name))
        } else if self.users.0.contains_key(&user.key) {
            Some("there is a user with this key already".into())
        } else if self.users.0.is_empty() && user.role != UserRole::Admin {
            Some("the first user must be an admin, who adds the others".into())
        } else if self.users.0.len() >= MOST {
            Some(format!("there are {MOST} users already"))
        } else {
            self.store_objection()
        };
        match objection {
            Some(reason) => self.fail_client(conn, reason),
            None => self.put_user(conn, user),
        }
    }

    /// Saves a user, and answers once that is done.
    fn put_user(&mut self, conn: ConnId, user: UserStatus) {
        self.users.0.insert(user.key, (user.name.clone(), user.role));
        self.save(vec![Record::User(user)]);
        self.commit_to_client(conn, ToClient::UserChanged);
    }

    pub(super) fn set_user_role(&mut self, conn: ConnId, name: String, role: UserRole) {
        let Some(key) = self.users.key_of(&name) else { return self.no_user(conn, &name) };
        if role != UserRole::Admin && !self.users.has_another_admin(key) {
            return self.fail_client(conn, format!("{name} is the only admin: make another one first"));
        }
        self.put_user(conn, UserStatus { name, role, key });
    }

    /// Removes a user. The user's connections end at once.
    pub(super) fn remove_user(&mut self, conn: ConnId, name: &str) {
        let Some(key) = self.users.key_of(name) else { return self.no_user(conn, name) };
        if self.users.0.len() > 1 && !self.users.has_another_admin(key) {
            return self.fail_client(conn, format!("{name} is the only admin: make another one first"));
        }
        self.users.0.remove(&key);
        self.save(vec![Record::UserGone(name.into())]);
        self.commit_to_client(conn, ToClient::UserChanged);
        let of_user = |(&other, connection): (&ConnId, &super::Connection)| {
            (connection.user == Some(key) && other != conn).then_some(other)
        };
        let ended: Vec<ConnId> = self.connections.iter().filter_map(of_user).collect();
        for other in ended {
            self.refuse_client(other, Refusal::Denied, format!("the user {name} has been removed"));
        }
    }

    fn no_user(&mut self, conn: ConnId, name: &str) {
        self.refuse_client(conn, Refusal::NotFound, format!("there is no user {}", printable(name)));
    }
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(allowed)
}
