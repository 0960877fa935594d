//! The roles that the commands need: each command with an example of the request that it makes, whose rule
//! the manager applies.

use clap::Command;
use manager::access::rule;
use proto::channel::UserId;
use proto::{
    BootImage, FromClient, JobId, JobRequest, PowerAction, RolloutPlan, Terms, UserRole, UserStatus,
};

const NO_IMAGE: BootImage = BootImage { len: 0, sha256: [0; 32] };

/// The need of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// The command asks no manager.
    Nothing,
    /// The command asks the manager with at least this role.
    Role(UserRole),
}

impl Need {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Nothing => "-",
            Self::Role(role) => role.word(),
        }
    }
}

/// Returns the least role of a command, by its path of words; `None` for a command that has no rule yet.
pub(super) fn least(path: &str) -> Option<Need> {
    let name = String::new;
    let request = match path {
        "completions" | "man" | "commands" | "key make" | "key rotate" | "key retire" | "manager run"
        | "pxe serve" | "cluster restore" | "config check" => {
            return Some(Need::Nothing);
        }
        "job submit" => FromClient::SubmitOn { request: JobRequest::default(), terms: Terms::default() },
        "job ls" => FromClient::JobList { after: JobId(0), ended: false },
        "job show" => FromClient::JobShow { job: JobId(0) },
        "job wait" => FromClient::JobWait { job: JobId(0), timeout_ms: 0 },
        "job logs" => FromClient::JobLog { job: JobId(0), offset: 0 },
        "job output" => FromClient::JobOutput { job: JobId(0), offset: 0 },
        "job cancel" => FromClient::Cancel { job: JobId(0) },
        "node inventory" => FromClient::Inventory { after: name() },
        "node ls" | "node show" => FromClient::NodeList { after: name() },
        "node drain" => FromClient::Drain { node: name(), reason: name(), deadline_ms: None, force: false },
        "node undrain" => FromClient::Undrain { node: name() },
        "node reboot" => FromClient::Power { node: name(), action: PowerAction::Reset },
        "node power" => FromClient::Power { node: name(), action: PowerAction::Off },
        "node boot" => FromClient::Boot { node: name(), image: NO_IMAGE },
        "image add" => FromClient::ImageAdd { image: NO_IMAGE, version: name(), commit: name() },
        "image ls" => FromClient::Images,
        "image rm" => FromClient::ImageRemove { image: NO_IMAGE.sha256 },
        "rollout start" => FromClient::RolloutStart(RolloutPlan {
            image: NO_IMAGE.sha256,
            nodes: Vec::new(),
            canary: 0,
            max_unavailable: 0,
            within_ms: 0,
        }),
        "rollout status" => FromClient::Rollout,
        "rollout stop" => FromClient::RolloutStop,
        "rollout undo" => FromClient::RolloutUndo,
        "data ls" => FromClient::Datasets,
        "data rm" => FromClient::DropDataset { name: name() },
        "cluster shutdown" => FromClient::Shutdown,
        "cluster support" => FromClient::Support,
        "cluster backup" => FromClient::Backup,
        "cluster audit ls" | "cluster audit verify" => FromClient::Audit { after: 0 },
        "user add" => {
            FromClient::AddUser(UserStatus { name: name(), role: UserRole::Viewer, key: UserId([0; 32]) })
        }
        "user ls" => FromClient::Users,
        "user rm" => FromClient::RemoveUser { name: name() },
        "user role" => FromClient::SetUserRole { name: name(), role: UserRole::Viewer },
        "user whoami" => FromClient::WhoAmI,
        _ => return None,
    };
    Some(Need::Role(rule(&request).least()))
}

/// Returns the paths of all commands that do something, from clap's own tree.
pub(super) fn paths(command: &Command) -> Vec<String> {
    let subs = command.get_subcommands().filter(|sub| sub.get_name() != "help");
    subs.flat_map(|sub| {
        let below = paths(sub);
        if below.is_empty() {
            vec![sub.get_name().to_owned()]
        } else {
            below.into_iter().map(|path| format!("{} {path}", sub.get_name())).collect()
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    #[test]
    fn each_command_has_a_rule() {
        let lacking: Vec<String> =
            paths(&Cli::command()).into_iter().filter(|path| least(path).is_none()).collect();
        assert!(lacking.is_empty(), "commands without a rule: {lacking:?}");
    }
}
