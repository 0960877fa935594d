//! Images that the manager keeps, and their rollouts.

use super::{Client, ClientError, REPLY_TIMEOUT};
use proto::{BootImage, FromClient, ImageInfo, RolloutPlan, RolloutStatus, ToClient, printable};
use sha2::{Digest as _, Sha256};

impl Client {
    /// Makes the manager keep an image, with a version and a commit for people.
    pub fn add_image(&mut self, file: &[u8], version: &str, commit: &str) -> Result<ImageInfo, ClientError> {
        let image = BootImage { len: file.len() as u64, sha256: Sha256::digest(file).into() };
        let (version, commit) = (version.into(), commit.into());
        let mut answer = self.ask(&FromClient::ImageAdd { image, version, commit }, REPLY_TIMEOUT)?;
        let mut pieces = file.chunks(BootImage::PIECE).peekable();
        let mut sent = 0;
        loop {
            let taken = match answer {
                ToClient::ImageAdded(info) => return Ok(info),
                ToClient::ImageTaken { bytes } => bytes,
                ToClient::Failed { reason } => return Err(ClientError::Failed(printable(&reason))),
                ToClient::Refused { kind, reason } => return Err(ClientError::refused(kind, &reason)),
                _ => return Err(ClientError::Unexpected),
            };
            let room = taken + BootImage::WINDOW;
            while let Some(piece) = pieces.next_if(|piece| sent + piece.len() as u64 <= room) {
                sent += piece.len() as u64;
                self.connection.sending.send(&FromClient::ImagePiece { bytes: piece.into() })?;
            }
            answer = self.connection.receiving.receive(Some(REPLY_TIMEOUT))?;
        }
    }

    /// Returns the images that the manager keeps.
    pub fn images(&mut self) -> Result<Vec<ImageInfo>, ClientError> {
        match self.ask(&FromClient::Images, REPLY_TIMEOUT)? {
            ToClient::Images(images) => Ok(images),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Removes an image.
    pub fn remove_image(&mut self, image: [u8; 32]) -> Result<(), ClientError> {
        match self.ask(&FromClient::ImageRemove { image }, REPLY_TIMEOUT)? {
            ToClient::ImageRemoved => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Starts a rollout, which the manager drives.
    pub fn start_rollout(&mut self, plan: RolloutPlan) -> Result<Option<RolloutStatus>, ClientError> {
        self.rollout_answer(&FromClient::RolloutStart(plan))
    }

    /// Returns the last rollout.
    pub fn rollout(&mut self) -> Result<Option<RolloutStatus>, ClientError> {
        self.rollout_answer(&FromClient::Rollout)
    }

    /// Lets no more nodes begin the rollout.
    pub fn stop_rollout(&mut self) -> Result<Option<RolloutStatus>, ClientError> {
        self.rollout_answer(&FromClient::RolloutStop)
    }

    /// Starts a rollout of the former image on the nodes that the last one has changed.
    pub fn undo_rollout(&mut self) -> Result<Option<RolloutStatus>, ClientError> {
        self.rollout_answer(&FromClient::RolloutUndo)
    }

    fn rollout_answer(&mut self, request: &FromClient) -> Result<Option<RolloutStatus>, ClientError> {
        match self.ask(request, REPLY_TIMEOUT)? {
            ToClient::Rollout(status) => Ok(status),
            _ => Err(ClientError::Unexpected),
        }
    }
}
