//! The options for the quality of service of a job, which `run` and `cluster submit` share.

use clap::Args;
use proto::{ByteRate, RdmaPriority};

/// The quality of service of a job's RDMA.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct RdmaOptions {
    /// Priority of the job's RDMA: low, normal or high; it has an effect on nodes whose LITE has a scheme, as
    /// with `run --lite scheme=sw-pri`
    #[arg(long, value_name = "P")]
    rdma_priority: Option<RdmaPriority>,
    /// The most bytes per second that the job moves by RDMA on each of its nodes, as in 500MB/s; what exceeds
    /// it waits [default: no limit]
    #[arg(long, value_name = "RATE")]
    rdma_limit: Option<ByteRate>,
    /// The most RDMA operations of the job that are outstanding on each of its nodes; others wait [default:
    /// no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    rdma_outstanding: Option<u32>,
}

impl RdmaOptions {
    /// Returns the options for the program that submits the job.
    pub(crate) fn words(&self) -> Vec<String> {
        let Self { rdma_priority, rdma_limit, rdma_outstanding } = self;
        let option = |name: &str, value: Option<String>| {
            value.map(|value| [format!("--{name}"), value]).into_iter().flatten()
        };
        option("rdma-priority", rdma_priority.map(|priority| priority.to_string()))
            .chain(option("rdma-limit", rdma_limit.map(|rate| rate.to_string())))
            .chain(option("rdma-outstanding", rdma_outstanding.map(|number| number.to_string())))
            .collect()
    }
}
