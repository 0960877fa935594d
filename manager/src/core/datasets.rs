//! Datasets: the outputs of jobs that stay on the nodes until a client drops them or a node that holds a part
//! is gone.

use super::{ConnId, Core, DatasetRecord, Record};
use platform::Instant;
use proto::{Dataset, DatasetStatus, JobId, NodeId, Reason, Refusal, ToClient, ToNode, encode, printable};
use std::collections::{BTreeMap, BTreeSet};

/// The maximum length of the description of a job's datasets, in bytes.
const MAX_DESCRIPTION: usize = 256 << 10;

/// The datasets, by name.
#[derive(Debug, Default)]
pub(super) struct Datasets(BTreeMap<String, Kept>);

/// A dataset.
#[derive(Debug)]
struct Kept {
    job: JobId,
    app: String,
    /// The nodes of the job, each with its part.
    nodes: Vec<NodeId>,
    pieces: Vec<(NodeId, u64)>,
    since: Instant,
}

impl Kept {
    fn record(&self, name: String) -> DatasetRecord {
        let Self { job, app, nodes, pieces, .. } = self;
        DatasetRecord { name, job: *job, app: app.clone(), nodes: nodes.clone(), pieces: pieces.clone() }
    }
}

impl Core {
    /// Takes over the datasets of a former process. Those of which a node is gone are lost.
    pub(super) fn restore_datasets(&mut self, datasets: Vec<DatasetRecord>) {
        for DatasetRecord { name, job, app, nodes, pieces } in datasets {
            let lost = pieces.iter().any(|(node, _)| self.members.get(*node).is_none());
            self.datasets.0.insert(name.clone(), Kept { job, app, nodes, pieces, since: self.now });
            if lost {
                self.remove_dataset(&name, "lost with a node");
            }
        }
    }

    /// Returns the jobs whose output a dataset is.
    pub(super) fn kept_jobs(&self) -> BTreeSet<JobId> {
        self.datasets.0.values().map(|kept| kept.job).collect()
    }

    /// Returns the fault of the names of datasets that a submission reads and keeps.
    pub(super) fn dataset_objection(&self, reads: &[String], keeps: Option<&String>) -> Option<Reason> {
        if let Some(name) = keeps {
            if let Err(reason) = Dataset::check_name(name) {
                return Some(reason);
            }
            if self.datasets.0.contains_key(name) {
                return Some(format!("there is a dataset {} already", printable(name)));
            }
            if let Some(job) = self.jobs.that_keeps(name) {
                return Some(format!("{job} keeps its output as {}", printable(name)));
            }
        }
        self.find_datasets(reads).err()
    }

    /// Returns the datasets of these names, or the reason why a job cannot read them.
    pub(super) fn find_datasets(&self, names: &[String]) -> Result<Vec<Dataset>, Reason> {
        let find = |name: &String| {
            let kept = self.datasets.0.get(name);
            let kept = kept.ok_or_else(|| format!("there is no dataset {}", printable(name)))?;
            Ok(Dataset { name: name.clone(), job: kept.job, pieces: kept.pieces.clone() })
        };
        let found = names.iter().map(find).collect::<Result<Vec<_>, Reason>>()?;
        if encode(&found).len() > MAX_DESCRIPTION {
            return Err("the datasets have too many pieces".into());
        }
        Ok(found)
    }

    /// Adds the output of a job that is done: the pieces of each node, by rank.
    pub(super) fn keep_dataset(
        &mut self,
        name: String,
        job: JobId,
        app: String,
        parts: Vec<(NodeId, Vec<u64>)>,
    ) {
        let nodes = parts.iter().map(|(node, _)| *node).collect();
        let pieces =
            parts.into_iter().flat_map(|(node, pieces)| pieces.into_iter().map(move |len| (node, len)));
        let kept = Kept { job, app, nodes, pieces: pieces.collect(), since: self.now };
        self.save(vec![Record::Dataset(kept.record(name.clone()))]);
        self.log(format!("dataset {}: the output of job {}", printable(&name), job.0));
        self.datasets.0.insert(name, kept);
    }

    /// Tells nodes to free what they keep of a job.
    pub(super) fn free_kept(&mut self, job: JobId, nodes: &[NodeId]) {
        for &node in nodes {
            if let Some(conn) = self.members.get(node).and_then(|live| live.conn) {
                self.commit_to_node(conn, ToNode::DropDataset { job });
            }
        }
    }

    /// Drops a dataset at the request of a client.
    pub(super) fn drop_dataset(&mut self, conn: ConnId, name: String) {
        if let Some(job) = self.jobs.that_reads(&name) {
            return self.fail_client(conn, format!("job {} reads the dataset {}", job.0, printable(&name)));
        }
        if !self.remove_dataset(&name, &format!("dropped by {}", self.peer(conn))) {
            let reason = format!("there is no dataset {}", printable(&name));
            return self.refuse_client(conn, Refusal::NotFound, reason);
        }
        self.commit_to_client(conn, ToClient::Dropped { name });
    }

    /// Drops the datasets of which a node that is gone held a part.
    pub(super) fn drop_datasets_of(&mut self, node: NodeId, label: &str) {
        let lost = self.datasets.0.iter().filter(|(_, kept)| kept.pieces.iter().any(|(of, _)| *of == node));
        let lost: Vec<String> = lost.map(|(name, _)| name.clone()).collect();
        for name in lost {
            self.remove_dataset(&name, &format!("lost with {label}"));
        }
    }

    fn remove_dataset(&mut self, name: &str, why: &str) -> bool {
        let Some(kept) = self.datasets.0.remove(name) else { return false };
        self.log(format!("dataset {}: {why}", printable(name)));
        self.save(vec![Record::DatasetGone(name.into())]);
        self.free_kept(kept.job, &kept.nodes);
        true
    }

    pub(super) fn tell_datasets(&mut self, conn: ConnId) {
        let status = |(name, kept): (&String, &Kept)| DatasetStatus {
            name: name.clone(),
            bytes: kept.pieces.iter().fold(0, |sum, (_, len)| sum.saturating_add(*len)),
            app: kept.app.clone(),
            job: kept.job,
            nodes: kept.pieces.iter().map(|(node, _)| *node).collect::<BTreeSet<_>>().into_iter().collect(),
            age_ms: self.millis_since(kept.since),
        };
        let all = self.datasets.0.iter().map(status).collect();
        self.tell_client(conn, ToClient::Datasets(all));
    }
}
