//! `ferrolite key`: the cluster key and the keys of its roles.

use super::args::KeyArgs;
use anyhow::{Context, Result};
use clap::{Args, Subcommand, ValueEnum};
use manager::key;
use proto::channel::Role;
use std::path::{Path, PathBuf};

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Makes the cluster key if there is none, and prints the name of its file. With --role, also makes a
    /// file with the key of that role alone. Never prints a secret key.
    Make(MakeArgs),
    /// Replaces the cluster key by a new one. A manager that is started again accepts the old one as well,
    /// until `key retire`. Nodes and clients change over meanwhile.
    Rotate(FileArgs),
    /// Forgets the former cluster key. A manager that is started again does not accept it any more.
    Retire(FileArgs),
}

#[derive(Debug, Args)]
pub(super) struct FileArgs {
    #[command(flatten)]
    key: KeyArgs,
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Make(args) => make(args),
            Self::Rotate(args) => rotate(&args.key.path(None)?),
            Self::Retire(args) => retire(&args.key.path(None)?),
        }
    }
}

/// A role, as it is written on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleWord {
    Node,
    Client,
}

#[derive(Debug, Args)]
pub(super) struct MakeArgs {
    #[command(flatten)]
    key: KeyArgs,
    /// Prints the setting with the manager's public key instead, which images for PXE must have built in.
    #[arg(long, conflicts_with = "role")]
    public: bool,
    /// The role: a client can submit jobs, list the nodes and shut the cluster down, but cannot join; a
    /// node can only join.
    #[arg(long, value_enum, requires = "output")]
    role: Option<RoleWord>,
    /// The new file with the key of the role, for use with `--key-file` on another host.
    #[arg(long, value_name = "FILE", requires = "role")]
    output: Option<PathBuf>,
}

fn rotate(path: &Path) -> Result<()> {
    key::rotate(path)?;
    println!("made a new key in {}, and kept the former in {}", path.display(), key::former(path).display());
    Ok(())
}

fn retire(path: &Path) -> Result<()> {
    let former = key::former(path);
    std::fs::remove_file(&former).with_context(|| format!("cannot remove {}", former.display()))?;
    println!("removed {}", former.display());
    Ok(())
}

fn make(args: MakeArgs) -> Result<()> {
    let path = args.key.path(None)?;
    if args.public {
        let (key, _) = key::load_or_make(&path)?;
        println!("manager_key={}", key.registrar()?.public());
        return Ok(());
    }
    // The key of a role comes from the key of an existing cluster.
    let (key, made) =
        if args.role.is_some() { (key::load(&path)?, false) } else { key::load_or_make(&path)? };
    println!("{} {}", if made { "made" } else { "found" }, path.display());
    if let (Some(role), Some(output)) = (args.role, args.output) {
        let role = match role {
            RoleWord::Node => Role::Node,
            RoleWord::Client => Role::Client,
        };
        key::make_for_role(&output, &key, role)?;
        println!("made {} with the key of a {role}", output.display());
    }
    Ok(())
}
