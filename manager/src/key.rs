//! The file that holds the cluster key, and random bytes from the operating system.

use proto::channel::{ClusterKey, Role, WrongRole};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The maximum size of a key file, in bytes.
const MAX_FILE: u64 = 1024;

/// The reason why there is no key. It is one line for people.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the key file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// The file cannot be made.
    #[error("cannot make the key file {}: {source}", path.display())]
    Make {
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        source: io::Error,
    },
    /// Users other than the owner may read the file.
    #[error("the key file {0} is open to other users: chmod 600 {0}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
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

/// Returns new random bytes that are fit for keys.
pub fn random() -> Result<[u8; 32], getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

/// Reads a key file.
pub fn load(path: &Path) -> Result<ClusterKey, KeyError> {
    let failed = |source| KeyError::Read { path: path.into(), source };
    let file = File::open(path).map_err(failed)?;
    let is_open = file.metadata().map_err(failed)?.permissions().mode() & 0o077 != 0;
    if is_open && !is_credential(path, std::env::var_os("CREDENTIALS_DIRECTORY").as_deref()) {
        return Err(KeyError::Open { path: path.into() });
    }
    // The vector has its full capacity from the start: one that grows leaves copies of the key in memory.
    let mut text = Zeroizing::new(Vec::with_capacity(MAX_FILE as usize + 1));
    file.take(MAX_FILE).read_to_end(&mut text).map_err(failed)?;
    ClusterKey::from_hex(&text).map_err(|_| KeyError::Content { path: path.into() })
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
        Err(KeyError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
        other => return other.map(|key| (key, false)),
    }
    let key = ClusterKey::from_bytes(random()?);
    match write_new(path, &key) {
        Ok(()) => Ok((key, true)),
        // Another process has made the file first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => load(path).map(|key| (key, false)),
        Err(source) => Err(KeyError::Make { path: path.into(), source }),
    }
}

/// Makes a file with the key of one role alone. Never replaces a file.
pub fn make_for_role(path: &Path, key: &ClusterKey, role: Role) -> Result<(), KeyError> {
    write_new(path, &key.only(role)?).map_err(|source| KeyError::Make { path: path.into(), source })
}

/// Makes the whole file or none, and never replaces another.
fn write_new(path: &Path, key: &ClusterKey) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory)?;
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
    name.push(format!(".{}", std::process::id()));
    let temporary = directory.join(name);
    let made = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        file.write_all(key.to_hex().as_bytes())?;
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
