//! A job's files: inputs that are checked before the job is submitted, and an output that is written whole or
//! not at all.

use super::ClientError;
use proto::InputFile;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Open input files, with their lengths when they were opened.
#[derive(Debug)]
pub struct Inputs(Vec<(PathBuf, File, u64)>);

impl Inputs {
    /// Opens all files. Returns the error of the first that is missing, unreadable or not a regular file.
    pub fn open(paths: &[PathBuf]) -> Result<Self, ClientError> {
        let open = |path: &PathBuf| {
            let file = File::open(path)?;
            let metadata = file.metadata()?;
            if metadata.is_dir() {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            if !metadata.is_file() {
                return Err(io::Error::other("not a regular file"));
            }
            Ok((path.clone(), file, metadata.len()))
        };
        let opened = paths
            .iter()
            .map(|path| open(path).map_err(|source| ClientError::Input { path: path.clone(), source }));
        Ok(Self(opened.collect::<Result<_, _>>()?))
    }

    /// Returns the total length of all files, in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(_, _, len)| len).sum()
    }

    /// Returns the description of the files for the manager.
    #[must_use]
    pub fn describe(&self) -> Vec<InputFile> {
        self.0
            .iter()
            .map(|(path, _, len)| InputFile { name: path.display().to_string(), len: *len })
            .collect()
    }

    /// Passes the files' bytes on in order from the beginning, in pieces of at most `piece` bytes,
    /// each of one file, until `give` returns false.
    pub fn stream(
        &self,
        piece: usize,
        mut give: impl FnMut(Vec<u8>) -> Result<bool, ClientError>,
    ) -> Result<(), ClientError> {
        for (path, file, len) in &self.0 {
            let mut left = *len;
            let mut file: &File = file;
            file.rewind().map_err(|source| ClientError::Input { path: path.clone(), source })?;
            while left > 0 {
                let mut bytes = vec![0; piece.min(usize::try_from(left).unwrap_or(usize::MAX))];
                file.read_exact(&mut bytes).map_err(|source| {
                    let source = match source.kind() {
                        io::ErrorKind::UnexpectedEof => {
                            io::Error::other("has become shorter while it was read")
                        }
                        _ => source,
                    };
                    ClientError::Input { path: path.clone(), source }
                })?;
                left -= bytes.len() as u64;
                if !give(bytes)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// An output file. It has a temporary name beside its final name until it is complete. If it is dropped
/// before that, it is removed.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    temporary: PathBuf,
    file: Option<BufWriter<File>>,
    written: u64,
}

impl Output {
    /// Creates the file under its temporary name.
    pub fn create(path: &Path) -> Result<Self, ClientError> {
        Self::create_with(path, OpenOptions::new().mode(0o666))
    }

    /// Does the same as [`create`](Self::create), but only the owner has access to the file.
    pub fn create_private(path: &Path) -> Result<Self, ClientError> {
        Self::create_with(path, OpenOptions::new().mode(0o600))
    }

    fn create_with(path: &Path, options: &mut OpenOptions) -> Result<Self, ClientError> {
        let failed = |source| ClientError::Output { path: path.into(), source };
        // The target of a link is replaced, not the link, and a device is not replaced by a file.
        let path = &fs::canonicalize(path).unwrap_or_else(|_| path.into());
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => return Err(failed(io::ErrorKind::IsADirectory.into())),
            Ok(metadata) if !metadata.is_file() => {
                return Err(failed(io::Error::other("not a regular file")));
            }
            _ => {}
        }
        let name = path.file_name().ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}.partial", std::process::id()));
        let temporary = path.with_file_name(hidden);
        let file = options.write(true).create_new(true).open(&temporary).map_err(failed)?;
        let file = Some(BufWriter::with_capacity(1 << 20, file));
        Ok(Self { path: path.into(), temporary, file, written: 0 })
    }

    /// Returns an output that accepts no bytes, for a job whose output stays on the nodes.
    #[must_use]
    pub fn none() -> Self {
        Self { path: PathBuf::new(), temporary: PathBuf::new(), file: None, written: 0 }
    }

    /// Returns the temporary name, for a handler that removes the file when a signal ends the process.
    #[must_use]
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Appends bytes to the file.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), ClientError> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.write_all(bytes).map_err(|source| ClientError::Output { path: self.path.clone(), source })?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Forgets everything that was written so far.
    pub fn restart(&mut self) -> Result<(), ClientError> {
        let Some(file) = self.file.as_mut().filter(|_| self.written > 0) else { return Ok(()) };
        let restarted = file.flush().and_then(|()| file.rewind()).and_then(|()| file.get_ref().set_len(0));
        self.written = 0;
        restarted.map_err(|source| ClientError::Output { path: self.path.clone(), source })
    }

    /// Returns the number of bytes written so far.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// Renames the file once its bytes are on the disk, and waits until the new name is on the disk too.
    /// After a loss of power, the name belongs either to the whole file or to the file that had it before.
    pub fn finish(mut self) -> Result<(), ClientError> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let named = self.name(file);
        if named.is_err() {
            let _ = fs::remove_file(&self.temporary);
        }
        named.map_err(|source| ClientError::Output { path: self.path.clone(), source })
    }

    fn name(&self, file: BufWriter<File>) -> io::Result<()> {
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&self.temporary, &self.path)?;
        let directory = self.path.parent().filter(|directory| !directory.as_os_str().is_empty());
        match File::open(directory.unwrap_or(Path::new(".")))?.sync_all() {
            // Some file systems cannot do this, and the file exists.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}
