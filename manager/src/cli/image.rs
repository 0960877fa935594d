//! `ferrolite image`: the images that the manager keeps.

use super::args::ManagerArgs;
use super::report::{columns, hex};
use super::shown::{List, LsArgs};
use anyhow::{Result, anyhow, bail};
use clap::{Args, Subcommand};
use manager::client::Client;
use proto::{ImageInfo, printable};
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
    let wanted = digits.to_ascii_lowercase();
    let images = client.images()?;
    let mut found =
        images.iter().filter(|image| !wanted.is_empty() && hex(&image.sha256).starts_with(&wanted));
    match (found.next(), found.next()) {
        (Some(image), None) => Ok(image.sha256),
        (None, _) => bail!("there is no image {}", printable(digits)),
        _ => bail!("several images begin with {}", printable(digits)),
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
