//! `ferrolite user`: the users of the cluster.

use super::args::ManagerArgs;
use super::report;
use super::shown::{List, LsArgs};
use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use manager::core::json::users_json;
use manager::key;
use proto::{UserRole, UserStatus};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(super) enum Verb {
    /// Adds a user: makes a key pair, tells the manager the public key, and writes the user's key file. The
    /// first user must be an admin. From then on the cluster's key for clients is not accepted alone.
    Add(AddArgs),
    /// Lists the users.
    #[command(visible_alias = "list")]
    Ls(LsArgs),
    /// Removes a user, and ends the user's connections at once.
    Rm(NameArgs),
    /// Changes the role of a user, from the user's next request on.
    Role(RoleArgs),
    /// Shows the name and the role by which the manager knows the asker.
    Whoami(WhoamiArgs),
}

impl Verb {
    pub(super) fn run(self) -> Result<()> {
        match self {
            Self::Add(args) => add(args),
            Self::Ls(args) => ls(&args),
            Self::Rm(args) => Ok(args.manager.connect()?.remove_user(&args.name)?),
            Self::Role(args) => Ok(args.manager.connect()?.set_user_role(&args.name, args.role.into())?),
            Self::Whoami(args) => whoami(&args),
        }
    }
}

/// The role of a user, as it is written on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum RoleWord {
    /// Sees nodes, jobs and datasets.
    Viewer,
    /// Runs jobs, and ends its own.
    User,
    /// Changes nodes, and ends all jobs.
    Operator,
    /// Changes users, and reads the audit log.
    Admin,
}

impl From<RoleWord> for UserRole {
    fn from(word: RoleWord) -> Self {
        match word {
            RoleWord::Viewer => Self::Viewer,
            RoleWord::User => Self::User,
            RoleWord::Operator => Self::Operator,
            RoleWord::Admin => Self::Admin,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct AddArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The name of the user.
    name: String,
    /// The role of the user.
    #[arg(long, value_enum)]
    role: RoleWord,
    /// The new file with the user's key, for `--key-file`.
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct NameArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The name of the user (see `user ls`).
    name: String,
}

#[derive(Debug, Args)]
pub(super) struct RoleArgs {
    #[command(flatten)]
    manager: ManagerArgs,
    /// The name of the user (see `user ls`).
    name: String,
    /// The new role.
    #[arg(value_enum)]
    role: RoleWord,
}

#[derive(Debug, Args)]
pub(super) struct WhoamiArgs {
    #[command(flatten)]
    manager: ManagerArgs,
}

fn add(args: AddArgs) -> Result<()> {
    let user = args.manager.credential()?.new_user()?;
    let mut client = args.manager.connect()?;
    // The file is made first: a user whose key is lost would be of no use.
    key::make_for_user(&args.output, &user)?;
    let added = client.add_user(UserStatus { name: args.name, role: args.role.into(), key: user.id() });
    if let Err(error) = added {
        let _ = std::fs::remove_file(&args.output);
        return Err(error.into());
    }
    println!("made {} with the key of the user", args.output.display());
    Ok(())
}

fn ls(args: &LsArgs) -> Result<()> {
    args.list.show(|| {
        let users = args.manager.connect()?.users()?;
        Ok(List { table: report::users_table(&users), json: users_json(&users) })
    })
}

fn whoami(args: &WhoamiArgs) -> Result<()> {
    match args.manager.connect()?.who_am_i()? {
        (name, role) if name.is_empty() => println!("the cluster's key for clients, {role}"),
        (name, role) => println!("{name}, {role}"),
    }
    Ok(())
}
