//! `ferrolite image`: the images that the manager keeps.

use super::args::ManagerArgs;
use super::report::{columns, hex};
use super::shown::{List, LsArgs};
use anyhow::{Result, anyhow, bail, ensure};
use clap::{Args, Subcommand};
use manager::client::{Client, ClientError};
use proto::{ImageInfo, Refusal, printable};
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Makes the manager keep an image for rollouts.
    Add(AddArgs),
    /// Lists the images.
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Removes an image, unless a rollout needs it.
    Rm(RmArgs),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Add(args) => add(&args),
            Self::Ls(args) => ls(&args),
            Self::Rm(args) => rm(&args),
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct AddArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The image: a file of `cargo xtask image --format elf`.
    file: PathBuf,
    /// The version, for people.
    #[arg(long, value_name = "TEXT", default_value = "")]
    version: String,
    /// The commit, for people.
    #[arg(long, value_name = "TEXT", default_value = "")]
    commit: String,
}

#[derive(Debug, Args)]
pub(super) struct RmArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The first digits of the SHA-256 of the image (see `image ls`).
    image: String,
}

fn add(args: &AddArgs) -> Result<()> {
    let name = args.file.display();
    let file = std::fs::read(&args.file).map_err(|error| anyhow!("cannot read {name}: {error}"))?;
    let info = args.manager.connect()?.add_image(&file, &args.version, &args.commit)?;
    println!("{}", hex(&info.sha256));
    Ok(())
}

fn ls(args: &LsArgs) -> Result<()> {
    args.list.show(|| {
        let images = args.manager.connect()?.images()?;
        Ok(List {
            table: table(&images),
            json: json!({ "images": images.iter().map(object).collect::<Vec<_>>() }),
        })
    })
}

fn rm(args: &RmArgs) -> Result<()> {
    let mut client = args.manager.connect()?;
    let image = find(&mut client, &args.image)?;
    Ok(client.remove_image(image)?)
}

/// Returns the SHA-256 of the one image whose digits begin with `digits`.
pub(super) fn find(client: &mut Client, digits: &str) -> Result<[u8; 32]> {
    only(&client.images()?, digits)
}

fn only(images: &[ImageInfo], digits: &str) -> Result<[u8; 32]> {
    ensure!(!digits.is_empty(), "want the first digits of an image's SHA-256");
    let wanted = digits.to_ascii_lowercase();
    let mut found = images.iter().filter(|image| hex(&image.sha256).starts_with(&wanted));
    let shown = printable(digits);
    match (found.next(), found.next()) {
        (Some(image), None) => Ok(image.sha256),
        (None, _) => {
            Err(ClientError::refused(Refusal::NotFound, &format!("there is no image {shown}")).into())
        }
        _ => bail!("several images begin with {shown}"),
    }
}

fn table(images: &[ImageInfo]) -> String {
    let mut rows = vec![["image", "bytes", "kernel", "version", "commit"].map(String::from).to_vec()];
    rows.extend(images.iter().map(|image| {
        vec![
            hex(&image.sha256),
            image.len.to_string(),
            hex(&image.kernel[..6]),
            printable(&image.version),
            printable(&image.commit),
        ]
    }));
    columns(&rows)
}

fn object(image: &ImageInfo) -> Value {
    json!({
        "sha256": hex(&image.sha256),
        "bytes": image.len,
        "kernel": hex(&image.kernel),
        "version": image.version,
        "commit": image.commit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_by_digits_that_no_other_begins_with() {
        let image = |first, second| {
            let mut sha256 = [0; 32];
            (sha256[0], sha256[1]) = (first, second);
            ImageInfo { sha256, len: 1, kernel: [0; 32], version: String::new(), commit: String::new() }
        };
        let images = [image(0xab, 0x10), image(0xab, 0x20)];
        assert_eq!(only(&images, "AB1").unwrap(), images[0].sha256);
        assert_eq!(only(&images, "ab").unwrap_err().to_string(), "several images begin with ab");
        assert_eq!(only(&images, "").unwrap_err().to_string(), "want the first digits of an image's SHA-256");
        let missing = only(&images, "cd").unwrap_err();
        assert_eq!(missing.to_string(), "there is no image cd");
        let kind = missing.downcast_ref::<ClientError>();
        assert!(matches!(kind, Some(ClientError::Refused { kind: Refusal::NotFound, .. })), "{kind:?}");
    }
}
