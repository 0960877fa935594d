//! The rules of the cluster that change while it runs.

use super::SpoolLimits;
use crate::inventory::Inventory;
use proto::QosRules;
use std::sync::Arc;

/// The rules of the cluster that change while it runs.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    /// True if appliances and processes on hosts (which publish virtual addresses) may be in one cluster.
    pub trust_hosts: bool,
    /// True if the cluster's key for clients is that of an administrator also when there are users.
    pub recover: bool,
    /// The bounds of the spool.
    pub spool: SpoolLimits,
    /// The nodes that the operator expects.
    pub inventory: Arc<Inventory>,
    /// The rules for the quality of service of jobs.
    pub qos: QosRules,
}
