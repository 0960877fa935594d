//! The rules of access: the least role for each request of a client, in one place. The command line, and what
//! else speaks for users, ask here.

use proto::{FromClient, JobId, JobQos, PowerVerb, RdmaPriority, Reason, UserRole, printable};

/// The longest description of a request in the audit log, in bytes.
const TITLE: usize = 400;

/// A rule of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The request needs this role or a higher one.
    Least(UserRole),
    /// The request needs [`UserRole::User`] for a job of the asker's own, and [`UserRole::Operator`] for
    /// another.
    OwnJob(JobId),
}

impl Rule {
    /// Returns the least role with which the request may be allowed.
    #[must_use]
    pub const fn least(self) -> UserRole {
        match self {
            Self::Least(role) => role,
            Self::OwnJob(_) => UserRole::User,
        }
    }

    /// Returns the role that the request needs. `owns` tells if a job is the asker's own.
    pub fn needed(self, owns: impl FnOnce(JobId) -> bool) -> UserRole {
        match self {
            Self::Least(role) => role,
            Self::OwnJob(job) if owns(job) => UserRole::User,
            Self::OwnJob(_) => UserRole::Operator,
        }
    }
}

/// Returns the reason why somebody with a role may not do what needs another.
#[must_use]
pub fn objection(name: &str, role: UserRole, needed: UserRole) -> Option<Reason> {
    (role < needed).then(|| format!("{name} has the role {role}, and this needs {needed}"))
}

/// Returns the rule of a request. A new request has no rule until it stands here, and does not compile.
#[must_use]
pub const fn rule(request: &FromClient) -> Rule {
    match request {
        FromClient::WhoAmI
        | FromClient::Nodes { .. }
        | FromClient::WaitNodes { .. }
        | FromClient::NodeList { .. }
        | FromClient::Inventory { .. }
        | FromClient::Rollout
        | FromClient::Jobs
        | FromClient::JobList { .. }
        | FromClient::JobShow { .. }
        | FromClient::JobWait { .. }
        | FromClient::JobLog { .. }
        | FromClient::Datasets => Rule::Least(UserRole::Viewer),
        // A job of a higher priority than the usual one starts before those of other users.
        FromClient::SubmitOn { terms, .. } | FromClient::SubmitWith { terms, .. } if terms.priority > 0 => {
            Rule::Least(UserRole::Operator)
        }
        // The operations of other users yield to those of high priority.
        FromClient::SubmitWith { qos: JobQos { priority: Some(RdmaPriority::High), .. }, .. } => {
            Rule::Least(UserRole::Operator)
        }
        // Input and acknowledgements concern the job that this connection has submitted or attached.
        FromClient::Submit(_)
        | FromClient::SubmitOn { .. }
        | FromClient::SubmitWith { .. }
        | FromClient::Input { .. }
        | FromClient::OutputTaken { .. }
        | FromClient::DropDataset { .. } => Rule::Least(UserRole::User),
        FromClient::Cancel { job }
        | FromClient::Attach { job, .. }
        | FromClient::JobOutput { job, .. } => Rule::OwnJob(*job),
        FromClient::Shutdown
        | FromClient::Power { .. }
        | FromClient::Bmc { .. }
        | FromClient::Boot { .. }
        | FromClient::ImagePiece { .. }
        | FromClient::Drain { .. }
        | FromClient::Undrain { .. }
        | FromClient::ImageAdd { .. }
        | FromClient::Images
        | FromClient::ImageRemove { .. }
        | FromClient::RolloutStart(_)
        | FromClient::RolloutStop
        | FromClient::RolloutUndo
        | FromClient::Support => Rule::Least(UserRole::Operator),
        FromClient::Users
        | FromClient::AddUser(_)
        | FromClient::RemoveUser { .. }
        | FromClient::SetUserRole { .. }
        | FromClient::Audit { .. }
        // A backup has the secret of all memberships in it.
        | FromClient::Backup => Rule::Least(UserRole::Admin),
    }
}

/// Returns the description of a request that changes something or reads secrets, for the audit log. Returns
/// `None` for another, or for a part of one.
#[must_use]
pub fn change(request: &FromClient) -> Option<String> {
    let text = match request {
        FromClient::WhoAmI
        | FromClient::Nodes { .. }
        | FromClient::WaitNodes { .. }
        | FromClient::NodeList { .. }
        | FromClient::Inventory { .. }
        | FromClient::Bmc { verb: PowerVerb::Status, .. }
        | FromClient::Images
        | FromClient::Rollout
        | FromClient::Jobs
        | FromClient::JobList { .. }
        | FromClient::JobShow { .. }
        | FromClient::JobWait { .. }
        | FromClient::JobOutput { .. }
        | FromClient::JobLog { .. }
        | FromClient::Datasets
        | FromClient::Input { .. }
        | FromClient::OutputTaken { .. }
        | FromClient::ImagePiece { .. }
        | FromClient::Attach { .. }
        | FromClient::Users
        | FromClient::Support
        | FromClient::Audit { .. } => return None,
        FromClient::Submit(request)
        | FromClient::SubmitOn { request, .. }
        | FromClient::SubmitWith { request, .. } => {
            format!("job submit {} {}", request.app, request.args.join(" "))
        }
        FromClient::Cancel { job } => format!("job cancel {}", job.0),
        FromClient::DropDataset { name } => format!("data rm {name}"),
        FromClient::Shutdown => "cluster shutdown".into(),
        FromClient::Backup => "cluster backup".into(),
        FromClient::Power { node, action } => format!("node power {action:?} {node}").to_lowercase(),
        FromClient::Bmc { node, verb, force } => {
            let force = if *force { " --bmc" } else { "" };
            format!("node power {} {node}{force}", verb.word())
        }
        FromClient::Boot { node, .. } => format!("node boot {node}"),
        FromClient::Drain { node, reason, .. } => format!("node drain {node} {reason}"),
        FromClient::Undrain { node } => format!("node undrain {node}"),
        FromClient::ImageAdd { image, .. } => format!("image add {}", digits(&image.sha256)),
        FromClient::ImageRemove { image } => format!("image rm {}", digits(image)),
        FromClient::RolloutStart(plan) => {
            format!("rollout start {} {}", digits(&plan.image), plan.nodes.join(" "))
        }
        FromClient::RolloutStop => "rollout stop".into(),
        FromClient::RolloutUndo => "rollout undo".into(),
        FromClient::AddUser(user) => format!("user add {} {}", user.name, user.role),
        FromClient::RemoveUser { name } => format!("user rm {name}"),
        FromClient::SetUserRole { name, role } => format!("user role {name} {role}"),
    };
    Some(shortened(printable(text.trim_end())))
}

/// Returns the digits of a SHA-256.
pub(crate) fn digits(sha256: &[u8; 32]) -> String {
    sha256.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Cuts a text for the audit log.
pub(crate) fn shortened(mut text: String) -> String {
    if let Some(end) = (text.len() > TITLE).then(|| text.floor_char_boundary(TITLE)) {
        text.truncate(end);
    }
    text
}
