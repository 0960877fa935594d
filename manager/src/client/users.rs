//! Requests about users and the audit log.

use super::{Client, ClientError, REPLY_TIMEOUT};
use proto::{AuditEntry, FromClient, ToClient, UserRole, UserStatus};

impl Client {
    /// Returns the name and the role by which the manager knows this client. The name is empty without the
    /// key of a user.
    pub fn who_am_i(&mut self) -> Result<(String, UserRole), ClientError> {
        match self.ask(&FromClient::WhoAmI, REPLY_TIMEOUT)? {
            ToClient::You { name, role } => Ok((name, role)),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Returns the users, by name.
    pub fn users(&mut self) -> Result<Vec<UserStatus>, ClientError> {
        match self.ask(&FromClient::Users, REPLY_TIMEOUT)? {
            ToClient::Users(users) => Ok(users),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Adds a user.
    pub fn add_user(&mut self, user: UserStatus) -> Result<(), ClientError> {
        self.change_user(&FromClient::AddUser(user))
    }

    /// Removes a user. The user's connections end at once.
    pub fn remove_user(&mut self, name: &str) -> Result<(), ClientError> {
        self.change_user(&FromClient::RemoveUser { name: name.into() })
    }

    /// Changes the role of a user, which counts from the next request of the user on.
    pub fn set_user_role(&mut self, name: &str, role: UserRole) -> Result<(), ClientError> {
        self.change_user(&FromClient::SetUserRole { name: name.into(), role })
    }

    fn change_user(&mut self, change: &FromClient) -> Result<(), ClientError> {
        match self.ask(change, REPLY_TIMEOUT)? {
            ToClient::UserChanged => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Returns the audit log.
    pub fn audit(&mut self) -> Result<Vec<AuditEntry>, ClientError> {
        let mut all: Vec<AuditEntry> = Vec::new();
        loop {
            let after = all.last().map_or(0, |entry| entry.number);
            let answer = self.ask(&FromClient::Audit { after }, REPLY_TIMEOUT)?;
            let ToClient::Audit { entries, more } = answer else { return Err(ClientError::Unexpected) };
            let grows = !entries.is_empty();
            all.extend(entries);
            if !(more && grows) {
                return Ok(all);
            }
        }
    }
}
