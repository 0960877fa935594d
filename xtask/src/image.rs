//! `cargo xtask image`: boot files.

use anyhow::{Context, Result, anyhow, bail};
use clap::{Args, ValueEnum};
use lab::image::{self, Apps, Contents};
use lab::{tool, ui};
use pack::BuiltIn;
use proto::channel::ClusterKey;
use std::fs;
use std::path::{Path, PathBuf};

/// The form of a boot file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The kernel's ELF file with an entry of PVH, for monitors of virtual machines
    Elf,
    /// One file for everything else: a Linux kernel image and an EFI application at once
    Efi,
}

impl Format {
    const fn file(self) -> &'static str {
        match self {
            Self::Elf => "ferrolite.elf",
            Self::Efi => "ferrolite.efi",
        }
    }
}

/// The options of `cargo xtask image`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Form of the file
    #[arg(long, value_enum)]
    format: Format,
    /// Directory for the file; it is made if it does not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Applications of the image, separated by commas, as in wordcount,grep [default: all]
    #[arg(long, value_name = "LIST")]
    apps: Option<Apps>,
    /// Words key=value that are built into the file (efi); those of the loader count before them
    #[arg(long, value_name = "WORDS")]
    cmdline: Option<String>,
    /// File with the cluster key, to be built in (efi); everybody who can read the boot file has the key then.
    /// Without this option the loader passes the key, in an initrd
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
}

/// Reads a file with the cluster key.
fn read_key(file: &Path) -> Result<Vec<u8>> {
    let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    ClusterKey::from_hex(&text).map_err(|why| anyhow!("{}: {why}", file.display()))?;
    Ok(text)
}

/// Builds the image and writes the boot file. Prints its path and size.
pub(crate) fn image(options: &Options) -> Result<()> {
    let cmdline = options.cmdline.as_deref().unwrap_or_default();
    if options.format == Format::Elf && (!cmdline.is_empty() || options.key.is_some()) {
        bail!("--cmdline and --key need --format efi: the ELF file has no room for them");
    }
    if let Some(word) = cmdline.split_ascii_whitespace().find(|word| !word.contains('=')) {
        bail!("--cmdline: `{word}` is not key=value");
    }
    let key = options.key.as_deref().map(read_key).transpose()?.unwrap_or_default();
    let contents = Contents::with(options.apps.clone().unwrap_or_default());
    let image = image::build_quietly(&contents, tool::run_visible)?;
    let kernel = fs::read(&image.elf).with_context(|| format!("cannot read {}", image.elf.display()))?;
    let file = match options.format {
        Format::Elf => pack::without_symbols(&kernel)?,
        Format::Efi => {
            let stub = image::stub(tool::run_visible)?;
            let stub = fs::read(&stub).with_context(|| format!("cannot read {}", stub.display()))?;
            pack::universal(&stub, &kernel, BuiltIn { cmdline, module: &key })?
        }
    };
    fs::create_dir_all(&options.out).with_context(|| format!("cannot make {}", options.out.display()))?;
    let path = options.out.join(options.format.file());
    fs::write(&path, &file).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{}: {}", path.display(), ui::bytes(file.len() as u64));
    Ok(())
}
