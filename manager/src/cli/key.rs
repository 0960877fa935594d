//! `ferrolite key`: the cluster key and the keys of its roles.

use super::args::KeyArgs;
use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use manager::key;
use proto::channel::Role;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Makes the cluster key if there is none, and prints the name of its file. With --role, also makes a
    /// file with the key of that role alone. Never prints a secret key.
    Make(MakeArgs),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Make(args) => make(args),
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
