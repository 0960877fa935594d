//! The image that the manager sends for this node's machine to boot.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use lite::Lite;
use proto::{BootImage, RunningImage, ToManager, ToNode};
use sha2::{Digest as _, Sha256};

/// The machine of a node, which can boot another image in place.
pub trait Machine: Send + Sync {
    /// Prepares the boot of an image. If it succeeds, the node ends with [`End::Boot`](crate::End::Boot).
    ///
    /// # Errors
    /// A reason for users: the image is no kernel, or there is no memory for it.
    fn load(&self, image: &[u8]) -> Result<(), String>;

    /// Returns the image that the machine runs.
    fn image(&self) -> RunningImage;
}

/// The state of the image.
pub(crate) struct Loader<'a> {
    machine: Option<&'a dyn Machine>,
    image: Option<Arriving>,
}

impl<'a> Loader<'a> {
    /// Returns a loader for a machine. Without one, all images are refused.
    pub(crate) const fn new(machine: Option<&'a dyn Machine>) -> Self {
        Self { machine, image: None }
    }

    /// Returns true if the node is a machine of its own.
    pub(crate) const fn has_machine(&self) -> bool {
        self.machine.is_some()
    }

    /// Tells the manager which image the machine runs.
    pub(crate) async fn tell_image(&self, lite: &Lite) {
        let Some(machine) = self.machine else { return };
        if let Err(error) = lite.send_control(&ToManager::Image(machine.image())).await {
            log::warn!("cannot tell the manager which image runs: {error}");
        }
    }

    /// Handles a message about the image, and answers it. Returns true once the machine can boot it.
    pub(crate) async fn handle(&mut self, lite: &Lite, message: ToNode) -> bool {
        let answer = self.take(message);
        let Some(answer) = answer else { return false };
        let is_ready = answer == ToManager::ImageReady;
        if let ToManager::ImageRefused { reason } = &answer {
            log::warn!("this machine does not boot the manager's image: {reason}");
        }
        if let Err(error) = lite.send_control(&answer).await {
            log::warn!("cannot answer the manager about an image: {error}");
        }
        is_ready
    }

    /// Handles a message, and returns the answer.
    fn take(&mut self, message: ToNode) -> Option<ToManager> {
        let taken = match message {
            ToNode::Image(image) => self.begin(image).map(|()| None),
            ToNode::ImagePiece { bytes } => self.push(&bytes),
            _ => {
                self.image = None;
                Ok(None)
            }
        };
        taken.unwrap_or_else(|reason| {
            self.image = None;
            Some(ToManager::ImageRefused { reason })
        })
    }

    fn begin(&mut self, image: BootImage) -> Result<(), String> {
        self.machine.ok_or("this node is no machine of its own")?;
        self.image = None;
        self.image = Some(Arriving::new(image)?);
        Ok(())
    }

    /// Adds a piece. Pieces of an image that was dropped have no answer.
    fn push(&mut self, bytes: &[u8]) -> Result<Option<ToManager>, String> {
        let (Some(image), Some(machine)) = (&mut self.image, self.machine) else { return Ok(None) };
        image.push(bytes)?;
        if !image.is_whole() {
            return Ok(Some(ToManager::ImageTaken { bytes: image.bytes.len() as u64 }));
        }
        let Some(whole) = self.image.take() else { return Ok(None) };
        machine.load(&whole.checked()?)?;
        Ok(Some(ToManager::ImageReady))
    }
}

/// An image of which some bytes have arrived.
struct Arriving {
    wanted: BootImage,
    bytes: Vec<u8>,
    hash: Sha256,
}

impl Arriving {
    fn new(wanted: BootImage) -> Result<Self, String> {
        let mut bytes = Vec::new();
        let len = usize::try_from(wanted.len).ok().filter(|_| wanted.len <= BootImage::MAX_LEN);
        let reserved = len.is_some_and(|len| bytes.try_reserve_exact(len).is_ok());
        if !reserved {
            return Err(format!("there is no memory for an image of {} bytes", wanted.len));
        }
        Ok(Self { wanted, bytes, hash: Sha256::new() })
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), String> {
        if (self.bytes.len() + bytes.len()) as u64 > self.wanted.len {
            return Err("the image is longer than announced".to_string());
        }
        self.bytes.extend_from_slice(bytes);
        self.hash.update(bytes);
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.bytes.len() as u64 == self.wanted.len
    }

    /// Returns the bytes, if they are those that the client has sent.
    fn checked(self) -> Result<Vec<u8>, String> {
        let has: [u8; 32] = self.hash.finalize().into();
        if has == self.wanted.sha256 {
            Ok(self.bytes)
        } else {
            Err("the image has another SHA-256".to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Fake(Mutex<Vec<Vec<u8>>>);

    impl Machine for Fake {
        fn load(&self, image: &[u8]) -> Result<(), String> {
            if image.starts_with(b"bad") {
                return Err("this is not a kernel".into());
            }
            self.0.lock().unwrap().push(image.to_vec());
            Ok(())
        }

        fn image(&self) -> RunningImage {
            RunningImage { kernel: [1; 32], version: "1".into() }
        }
    }

    fn described(bytes: &[u8]) -> ToNode {
        ToNode::Image(BootImage { len: bytes.len() as u64, sha256: Sha256::digest(bytes).into() })
    }

    fn piece(bytes: &[u8]) -> ToNode {
        ToNode::ImagePiece { bytes: bytes.to_vec() }
    }

    fn refused(reason: &str) -> Option<ToManager> {
        Some(ToManager::ImageRefused { reason: reason.into() })
    }

    #[test]
    fn an_image_is_loaded_once_it_is_whole() {
        let machine = Fake::default();
        let mut loader = Loader::new(Some(&machine));
        assert_eq!(loader.take(described(b"kernel")), None);
        assert_eq!(loader.take(piece(b"ker")), Some(ToManager::ImageTaken { bytes: 3 }));
        assert!(machine.0.lock().unwrap().is_empty());
        assert_eq!(loader.take(piece(b"nel")), Some(ToManager::ImageReady));
        assert_eq!(*machine.0.lock().unwrap(), [b"kernel"]);
    }

    #[test]
    fn an_image_that_is_another_one_is_refused() {
        let machine = Fake::default();
        let mut loader = Loader::new(Some(&machine));
        loader.take(described(b"kernel"));
        assert_eq!(loader.take(piece(b"kernal")), refused("the image has another SHA-256"));
        loader.take(described(b"kernel"));
        assert_eq!(loader.take(piece(b"kernels")), refused("the image is longer than announced"));
        loader.take(described(b"bad"));
        assert_eq!(loader.take(piece(b"bad")), refused("this is not a kernel"));
        let huge = BootImage { len: BootImage::MAX_LEN + 1, sha256: [0; 32] };
        let none = "there is no memory for an image of 67108865 bytes";
        assert_eq!(loader.take(ToNode::Image(huge)), refused(none));
        assert!(machine.0.lock().unwrap().is_empty());
    }

    #[test]
    fn pieces_of_a_dropped_image_have_no_answer() {
        let machine = Fake::default();
        let mut loader = Loader::new(Some(&machine));
        loader.take(described(b"kernel"));
        assert_eq!(loader.take(ToNode::ImageDrop), None);
        assert_eq!(loader.take(piece(b"kernel")), None);
    }

    #[test]
    fn a_process_refuses_images() {
        let mut loader = Loader::new(None);
        assert_eq!(loader.take(described(b"kernel")), refused("this node is no machine of its own"));
        assert_eq!(loader.take(piece(b"kernel")), None);
    }
}
