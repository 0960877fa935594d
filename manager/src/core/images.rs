//! The images that the manager keeps: their arrival in pieces, their list, their removal.

use super::{ConnId, Core, Record};
use crate::kernel;
use proto::{BootImage, FromClient, ImageInfo, Reason, Refusal, ToClient, check_text, printable};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The maximum number of images.
const MAX_IMAGES: usize = 32;
/// The maximum length of all images together, in bytes.
const MAX_BYTES: u64 = 512 << 20;

/// An image with its bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct KeptImage {
    /// The description.
    pub info: ImageInfo,
    /// The file.
    pub bytes: Arc<[u8]>,
}

impl std::fmt::Debug for KeptImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.info.fmt(f)
    }
}

/// The images, by the SHA-256 of their files.
#[derive(Debug, Default)]
pub(super) struct Images {
    kept: BTreeMap<[u8; 32], KeptImage>,
    arriving: BTreeMap<ConnId, Arriving>,
}

/// An image of which a client has sent a part.
#[derive(Debug)]
struct Arriving {
    wanted: BootImage,
    version: String,
    commit: String,
    bytes: Vec<u8>,
}

impl Images {
    pub(super) fn restore(&mut self, images: Vec<KeptImage>) {
        self.kept.extend(images.into_iter().map(|image| (image.info.sha256, image)));
    }

    pub(super) fn get(&self, sha256: &[u8; 32]) -> Option<&KeptImage> {
        self.kept.get(sha256)
    }

    /// Returns the image whose kernel computes this digest of itself.
    pub(super) fn with_kernel(&self, kernel: &[u8; 32]) -> Option<&KeptImage> {
        self.kept.values().find(|image| image.info.kernel == *kernel)
    }

    /// Returns true if a client sends an image to keep.
    pub(super) fn arrives_from(&self, conn: ConnId) -> bool {
        self.arriving.contains_key(&conn)
    }

    pub(super) fn forget(&mut self, conn: ConnId) {
        self.arriving.remove(&conn);
    }
}

impl Core {
    /// Accepts an image, which follows in pieces.
    pub(super) fn add_image(&mut self, conn: ConnId, wanted: BootImage, version: String, commit: String) {
        match self.image_objection(conn, wanted, &version, &commit) {
            Some(reason) => self.fail_client(conn, reason),
            None => {
                let arriving = Arriving { wanted, version, commit, bytes: Vec::new() };
                self.images.arriving.insert(conn, arriving);
                self.tell_client(conn, ToClient::ImageTaken { bytes: 0 });
            }
        }
    }

    fn image_objection(
        &self,
        conn: ConnId,
        wanted: BootImage,
        version: &str,
        commit: &str,
    ) -> Option<Reason> {
        let kept: u64 = self.images.kept.values().map(|image| image.info.len).sum();
        if wanted.len == 0 || wanted.len > BootImage::MAX_LEN {
            return Some(format!("an image has 1 to {} bytes, not {}", BootImage::MAX_LEN, wanted.len));
        }
        if self.images.arrives_from(conn) {
            return Some("this connection already sends an image".into());
        }
        let full = self.images.kept.len() >= MAX_IMAGES || kept + wanted.len > MAX_BYTES;
        if full && !self.images.kept.contains_key(&wanted.sha256) {
            return Some(format!("{} images with {kept} bytes are kept already", self.images.kept.len()));
        }
        let text = |what, text| check_text(what, text, ImageInfo::MAX_TEXT).err();
        text("the version", version).or_else(|| text("the commit", commit)).or_else(|| self.store_objection())
    }

    /// Takes a piece of an image to keep.
    pub(super) fn kept_piece(&mut self, conn: ConnId, bytes: &[u8]) {
        let Some(arriving) = self.images.arriving.get_mut(&conn) else { return };
        let len = (arriving.bytes.len() + bytes.len()) as u64;
        if bytes.is_empty() || bytes.len() > BootImage::PIECE || len > arriving.wanted.len {
            return self.fail_client(conn, "a piece of an image that nobody waits for".into());
        }
        arriving.bytes.extend_from_slice(bytes);
        if len < arriving.wanted.len {
            return self.tell_client(conn, ToClient::ImageTaken { bytes: len });
        }
        let Some(arrived) = self.images.arriving.remove(&conn) else { return };
        match keep(arrived) {
            Ok(image) => {
                let info = image.info.clone();
                self.log(format!("{} adds image {}", self.who(conn), short(&info.sha256)));
                self.images.kept.insert(info.sha256, image.clone());
                self.save(vec![Record::Image(image)]);
                self.commit_to_client(conn, ToClient::ImageAdded(info));
            }
            Err(reason) => self.fail_client(conn, reason),
        }
    }

    /// Returns the kept images.
    pub(super) fn image_infos(&self) -> impl Iterator<Item = &ImageInfo> {
        self.images.kept.values().map(|image| &image.info)
    }

    pub(super) fn tell_images(&mut self, conn: ConnId) {
        let images = self.image_infos().cloned().collect();
        self.tell_client(conn, ToClient::Images(images));
    }

    /// Removes an image that no rollout needs.
    pub(super) fn remove_image(&mut self, conn: ConnId, sha256: [u8; 32]) {
        if !self.images.kept.contains_key(&sha256) {
            let reason = format!("there is no image {}", short(&sha256));
            return self.refuse_client(conn, Refusal::NotFound, reason);
        }
        if self.rollout.needs(&sha256) {
            return self.fail_client(conn, "a rollout needs this image".into());
        }
        self.images.kept.remove(&sha256);
        self.save(vec![Record::ImageGone(sha256)]);
        self.commit_to_client(conn, ToClient::ImageRemoved);
    }

    /// Handles a request about images or rollouts.
    pub(super) fn image_request(&mut self, conn: ConnId, request: FromClient) {
        match request {
            FromClient::ImageAdd { image, version, commit } => self.add_image(conn, image, version, commit),
            FromClient::Images => self.tell_images(conn),
            FromClient::ImageRemove { image } => self.remove_image(conn, image),
            FromClient::RolloutStart(plan) => self.start_rollout(conn, plan),
            FromClient::Rollout => self.tell_rollout(conn),
            FromClient::RolloutStop => self.stop_rollout(conn),
            FromClient::RolloutUndo => self.undo_rollout(conn),
            _ => {}
        }
    }
}

/// Checks an image that has arrived.
fn keep(arrived: Arriving) -> Result<KeptImage, Reason> {
    let Arriving { wanted, version, commit, bytes } = arrived;
    if wanted.sha256 != <[u8; 32]>::from(Sha256::digest(&bytes)) {
        return Err("the image has another SHA-256 than announced".into());
    }
    let kernel = kernel::digest(&bytes).ok_or("the image has no kernel")?;
    let info =
        ImageInfo { sha256: wanted.sha256, len: wanted.len, kernel: kernel.to_bytes(), version, commit };
    Ok(KeptImage { info, bytes: bytes.into() })
}

/// Returns the first digits of a digest, for people.
pub(super) fn short(digest: &[u8; 32]) -> String {
    let digits: String = digest.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    printable(&digits)
}
