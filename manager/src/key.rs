//! The file that holds the cluster key, other files with secrets, and random bytes from the operating system.

use proto::channel::{ClusterKey, Role, UserKey, WrongRole};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The maximum size of a key file, in bytes.
const MAX_FILE: u64 = 1024;

/// The reason why a file with a secret is not read. It is one line for people.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the {what} {}: {source}", path.display())]
    Read {
        /// The kind of file.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// Users other than the owner may read the file.
    #[error("the {what} {0} is open to other users: chmod 600 {0}", path.display())]
    Open {
        /// The kind of file.
        what: &'static str,
        /// The file.
        path: PathBuf,
    },
}

/// The reason why there is no key. It is one line for people.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file is not read.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The file cannot be made.
    #[error("cannot make the key file {}: {source}", path.display())]
    Make {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// The content of the file is no key.
    #[error("{} holds no cluster key: want 64 hexadecimal digits", path.display())]
    Content {
        /// The file.
        path: PathBuf,
    },
    /// The key belongs to another role.
    #[error(transparent)]
    Role(#[from] WrongRole),
    /// The operating system returns no random bytes.
    #[error("no random bytes from the operating system: {0}")]
    Random(#[from] getrandom::Error),
}

/// The secret with which a client connects.
#[derive(Clone, Debug)]
pub enum Credential {
    /// The cluster key, or the cluster's key for clients.
    Cluster(ClusterKey),
    /// The key of a user.
    User(Box<UserKey>),
}

impl From<&ClusterKey> for Credential {
    fn from(key: &ClusterKey) -> Self {
        Self::Cluster(key.clone())
    }
}

impl From<&Self> for Credential {
    fn from(credential: &Self) -> Self {
        credential.clone()
    }
}

impl Credential {
    /// Reads a file with the key of a cluster, of a role, or of a user.
    pub fn load(path: &Path) -> Result<Self, KeyError> {
        let text = read(path)?;
        let content = |_| KeyError::Content { path: path.into() };
        if UserKey::is_meant(&text) {
            return UserKey::from_text(&text).map(|key| Self::User(Box::new(key))).map_err(content);
        }
        ClusterKey::from_hex(&text).map(Self::Cluster).map_err(content)
    }

    /// Makes the key of a new user of the same cluster.
    pub fn new_user(&self) -> Result<UserKey, KeyError> {
        match self {
            Self::Cluster(key) => Ok(key.user(random()?)?),
            Self::User(key) => Ok(key.another(random()?)),
        }
    }
}

/// Returns new random bytes that are fit for keys.
pub fn random() -> Result<[u8; 32], getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// Reads a key file.
pub fn load(path: &Path) -> Result<ClusterKey, KeyError> {
    ClusterKey::from_hex(&read(path)?).map_err(|_| KeyError::Content { path: path.into() })
}

/// Reads the text of a key file.
fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    read_secret("key file", path, MAX_FILE)
}

/// Reads at most `most` bytes of a file, to which only its owner may have access. Errors name the kind of
/// file.
pub fn read_secret(what: &'static str, path: &Path, most: u64) -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let failed = |source| SecretError::Read { what, path: path.into(), source };
    let file = File::open(path).map_err(failed)?;
    let is_open = file.metadata().map_err(failed)?.permissions().mode() & 0o077 != 0;
    if is_open && !is_credential(path, std::env::var_os("CREDENTIALS_DIRECTORY").as_deref()) {
        return Err(SecretError::Open { what, path: path.into() });
    }
    // The vector has its full capacity from the start: one that grows leaves copies of the key in memory.
    let mut text = Zeroizing::new(Vec::with_capacity(most as usize + 1));
    file.take(most).read_to_end(&mut text).map_err(failed)?;
    Ok(text)
}

/// Returns true if a file is a credential of this service. Nobody else can enter the directory, in which
/// systemd may give a file to the service by an access control list, whose mask looks like rights of a group
/// (systemd.exec(5), Credentials).
fn is_credential(path: &Path, directory: Option<&OsStr>) -> bool {
    directory.is_some_and(|directory| !directory.is_empty() && path.parent() == Some(Path::new(directory)))
}

/// Reads a key file. If there is none, makes one with a new key. Returns true if it has made one.
pub fn load_or_make(path: &Path) -> Result<(ClusterKey, bool), KeyError> {
    match load(path) {
        Err(KeyError::Secret(SecretError::Read { source, .. }))
            if source.kind() == io::ErrorKind::NotFound => {}
        other => return other.map(|key| (key, false)),
    }
    let key = ClusterKey::from_bytes(random()?);
    match write_new(path, &key.to_hex()) {
        Ok(()) => Ok((key, true)),
        // Another process has made the file first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => load(path).map(|key| (key, false)),
        Err(source) => Err(KeyError::Make { path: path.into(), source }),
    }
}

/// Returns the file of the former cluster key, which the manager accepts beside that of `path`.
#[must_use]
pub fn former(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".former");
    name.into()
}

/// Replaces a cluster key by a new one. The old one becomes the [former] key.
///
/// # Errors
/// Fails if there is a former key already, or a file cannot be written.
pub fn rotate(path: &Path) -> Result<(), KeyError> {
    let key = load(path)?;
    key.roles()?;
    let old = former(path);
    let make = |path: &Path| {
        let path = path.to_owned();
        move |source| KeyError::Make { path, source }
    };
    write_new(&old, &key.to_hex()).map_err(make(&old))?;
    let mut next = path.as_os_str().to_owned();
    next.push(".next");
    let next = PathBuf::from(next);
    let renamed = write_new(&next, &ClusterKey::from_bytes(random()?).to_hex())
        .and_then(|()| fs::rename(&next, path))
        .map_err(make(path));
    if renamed.is_err() {
        let _ = fs::remove_file(&next);
        let _ = fs::remove_file(&old);
    }
    renamed
}

/// Makes a file with the key of one role alone. Never replaces a file.
pub fn make_for_role(path: &Path, key: &ClusterKey, role: Role) -> Result<(), KeyError> {
    write_new(path, &key.only(role)?.to_hex()).map_err(|source| KeyError::Make { path: path.into(), source })
}

/// Makes a file with the key of a user. Never replaces a file.
pub fn make_for_user(path: &Path, key: &UserKey) -> Result<(), KeyError> {
    write_new(path, &key.to_text()).map_err(|source| KeyError::Make { path: path.into(), source })
}

/// Makes the whole file or none, and never replaces another.
pub(crate) fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary = directory.join(name);
    let made = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::hard_link(&temporary, path)
    })();
    let _ = fs::remove_file(&temporary);
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_directory_itself_are_credentials() {
        let is =
            |path: &str, directory: Option<&str>| is_credential(Path::new(path), directory.map(OsStr::new));
        assert!(is("/run/credentials/n.service/node.key", Some("/run/credentials/n.service")));
        assert!(!is("/run/credentials/n.service/../node.key", Some("/run/credentials/n.service")));
        assert!(!is("/etc/node.key", Some("/run/credentials/n.service")));
        assert!(!is("node.key", Some("")));
        assert!(!is("/etc/node.key", None));
    }
}
