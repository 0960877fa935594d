//! The bytes of each message of version 9, from before the first release: `version9.txt` was written by the
//! code of that version (commit 77dacba6), with the messages below. A node or manager of that version
//! understands this one only as long as these bytes stay. The tests of `manager` have those of releases.
use proto::*;
use verbs::{Gid, LinkKind, MacAddr, MemoryKey, PathMtu, QpNum, RemoteKey};

const NODE: NodeId = NodeId(300);
const INCARNATION: Incarnation = Incarnation(70_000);
const JOB: JobId = JobId(5_000_000_000);
const GID: Gid = Gid([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 200]);

/// Returns a line: the type, the message without its contents, and the encoded bytes. The bytes must decode.
fn line<M>(message: &M) -> String
where
    M: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let kind = std::any::type_name::<M>().rsplit("::").next().unwrap();
    let shown = format!("{message:?}");
    let variant = shown.split(|c: char| !c.is_alphanumeric()).next().unwrap();
    let bytes = encode(message);
    assert_eq!(decode::<M>(&bytes).as_ref(), Ok(message));
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{kind}::{variant} {digits}")
}

fn offer() -> RnicOffer {
    RnicOffer {
        driver: "mlx4".into(),
        links: vec![LinkKind::RoceV2, LinkKind::RoceV1, LinkKind::InfiniBand],
        mac: MacAddr([2, 0, 0, 0, 1, 200]),
        gid: Some(GID),
        lid: 1000,
        mtu: PathMtu::B2048,
        max_rd_atomic: 16,
        key: key(),
        physical: true,
    }
}

fn key() -> MemoryKey {
    MemoryKey { rkey: RemoteKey(77_777), base: platform::IoAddr(1 << 33), len: 1 << 40 }
}

fn member() -> Member {
    Member { node: NODE, incarnation: INCARNATION, name: "n1".into(), gid: GID, rnic: offer() }
}

fn app() -> AppManifest {
    AppManifest { name: "grep".into(), about: "finds".into(), cut: CutRule::After([129; 32]) }
}

fn boot() -> BootReport {
    BootReport { stages: vec![("pci".into(), 1234)] }
}

fn join() -> Join {
    Join {
        version: 9,
        name: "n1".into(),
        keep_id: true,
        rnic: offer(),
        memory: 1 << 34,
        memory_free: 1 << 33,
        cpus: 400,
        apps: vec![app(), AppManifest { cut: CutRule::Anywhere, ..app() }],
        boot: boot(),
        boot_id: u64::MAX,
    }
}

fn inputs() -> Vec<InputFile> {
    vec![InputFile { name: "a.txt".into(), len: 1 << 32 }]
}

fn report() -> JobReport {
    JobReport {
        counts: vec![("words".into(), 900)],
        times_us: vec![("map".into(), 800)],
        used: vec![("calls".into(), 700)],
        kept: vec![1 << 20],
    }
}

fn image() -> BootImage {
    BootImage { len: 3 << 20, sha256: [200; 32] }
}

fn hellos() -> Vec<String> {
    let resume = Resume {
        version: 9,
        node: NODE,
        incarnation: INCARNATION,
        secret: ResumeSecret::from_bytes([7; 32]),
        epoch: 200,
    };
    [
        Hello::Node(join()),
        Hello::Client { version: 9 },
        Hello::Unfit { version: 9, name: "n1".into(), reason: "no card".into() },
        Hello::Resume(resume),
    ]
    .iter()
    .map(line)
    .collect()
}

fn to_manager() -> Vec<ToManager> {
    let standings = vec![
        (JOB, JobStanding::Loading),
        (JOB, JobStanding::Running),
        (JOB, JobStanding::Done(report())),
        (JOB, JobStanding::Failed("no memory".into())),
    ];
    vec![
        ToManager::Heartbeat { seq: 300 },
        ToManager::Relay { to: NODE, incarnation: INCARNATION, body: vec![255; 3] },
        ToManager::NameBind { request: 300, name: "a".into(), value: vec![200, 1] },
        ToManager::NameUnbind { request: 300, name: "a".into() },
        ToManager::NameLookup { request: 300, name: "a".into() },
        ToManager::JobAccepted { job: JOB },
        ToManager::JobProgress { job: JOB, phase: "map".into(), done: 200, total: 400 },
        ToManager::JobOutput { job: JOB, offset: 1 << 33, bytes: vec![0, 200] },
        ToManager::JobDone { job: JOB, report: report() },
        ToManager::JobFailed { job: JOB, reason: "no memory".into() },
        ToManager::Leave,
        ToManager::LastWords { reason: "panic".into() },
        ToManager::LeftSeen { node: NODE, incarnation: INCARNATION },
        ToManager::MemoryFree { bytes: 1 << 33 },
        ToManager::AskMemoryFree { request: 300 },
        ToManager::JobInputCredit { job: JOB, bytes: 1 << 20 },
        ToManager::JobOver { job: JOB },
        ToManager::AskVoucher { request: 300, to: NODE, incarnation: INCARNATION },
        ToManager::Datagrams { queue_pair: Some(QpNum::new(70_000)) },
        ToManager::FormerEnd { reason: "panic".into() },
        ToManager::ImageTaken { bytes: 1 << 20 },
        ToManager::ImageReady,
        ToManager::ImageRefused { reason: "no kernel".into() },
        ToManager::HardwareReport { lines: "cpu\ncard".into() },
        ToManager::Jobs { jobs: standings, kept: vec![JOB] },
    ]
}

fn to_node() -> Vec<ToNode> {
    let errors = [
        NameError::NotFound,
        NameError::Taken,
        NameError::NotOwner,
        NameError::Length,
        NameError::Quota,
        NameError::Unsaved,
    ];
    let welcome = Welcome {
        node: NODE,
        incarnation: INCARNATION,
        gid: GID,
        lease_ms: 5000,
        time: 1 << 50,
        key: MemberKey::from_bytes([8; 32]),
        secret: ResumeSecret::from_bytes([7; 32]),
        epoch: 200,
        members: vec![member()],
    };
    let start = JobStart {
        job: JOB,
        app: "grep".into(),
        args: vec!["-i".into()],
        nodes: vec![NODE, NodeId(2)],
        inputs: inputs(),
        datasets: vec![Dataset { name: "d".into(), job: JOB, pieces: vec![(NODE, 1 << 20)] }],
        share: 1 << 21,
        keep: true,
    };
    let bytes = vec![0, 200];
    let mut all = vec![
        ToNode::Welcome(welcome),
        ToNode::Refused { reason: "full".into() },
        ToNode::HeartbeatAck { seq: 300, time: 1 << 50 },
        ToNode::Joined(member()),
        ToNode::Left { node: NODE, incarnation: INCARNATION, reason: "left".into() },
        ToNode::Relayed { from: NODE, incarnation: INCARNATION, body: vec![255; 3] },
        ToNode::Name { request: 300, result: Ok((NODE, vec![200])) },
        ToNode::JobStart(start),
        ToNode::JobInput { job: JOB, file: 200, offset: 1 << 33, bytes: bytes.clone(), end_of_split: true },
        ToNode::JobInputEnd { job: JOB },
        ToNode::JobOutputAck { job: JOB, bytes: 1 << 20 },
        ToNode::JobCancel { job: JOB, reason: "late".into() },
        ToNode::Shutdown,
        ToNode::Settled { node: NODE, incarnation: INCARNATION },
        ToNode::MemoryFree { request: 300, nodes: vec![(NODE, 1 << 33)] },
        ToNode::Voucher {
            request: 300,
            to: NODE,
            stamp: 1 << 50,
            key: VoucherKey::from_bytes([9; 32]),
            queue_pair: Some(QpNum::new(70_000)),
        },
        ToNode::DropDataset { job: JOB },
        ToNode::Power(PowerAction::Off),
        ToNode::Power(PowerAction::Reset),
        ToNode::Image(image()),
        ToNode::ImagePiece { bytes },
        ToNode::ImageDrop,
        ToNode::Resumed(Resumed { epoch: 200, time: 1 << 50, unsettled: vec![(NODE, INCARNATION)] }),
        ToNode::AskJobs,
        ToNode::JobOutputFrom { job: JOB, offset: 1 << 33 },
        ToNode::JobForget { job: JOB },
    ];
    all.extend(errors.map(|error| ToNode::Name { request: 300, result: Err(error) }));
    all
}

fn from_client() -> Vec<String> {
    let submit = FromClient::Submit(JobRequest {
        app: "grep".into(),
        args: vec!["-i".into()],
        nodes: 300,
        on: vec!["n1".into()],
        inputs: inputs(),
        datasets: vec!["d".into()],
        keep: Some("e".into()),
        limit_ms: Some(90_000),
    });
    [
        FromClient::Nodes { after: NODE },
        FromClient::WaitNodes { count: 300, timeout_ms: 90_000 },
        submit,
        FromClient::Input { job: JOB, bytes: vec![0, 200] },
        FromClient::Shutdown,
        FromClient::Jobs,
        FromClient::Cancel { job: JOB },
        FromClient::Datasets,
        FromClient::DropDataset { name: "d".into() },
        FromClient::Power { node: "n1".into(), action: PowerAction::Reset },
        FromClient::Boot { node: "n1".into(), image: image() },
        FromClient::ImagePiece { bytes: vec![0, 200] },
        FromClient::Attach { job: JOB, output: 1 << 33 },
        FromClient::OutputTaken { bytes: 1 << 33 },
    ]
    .iter()
    .map(line)
    .collect()
}

fn to_client() -> Vec<String> {
    let phases = [JobPhase::Starting, JobPhase::Loading, JobPhase::Running, JobPhase::Ending];
    let job = |phase| JobStatus {
        job: JOB,
        app: "grep".into(),
        nodes: vec![NODE],
        phase,
        age_ms: 90_000,
        phase_ms: 80_000,
    };
    let node = |state| NodeStatus {
        node: NODE,
        name: "n1".into(),
        rnic: "mlx4".into(),
        memory: 1 << 34,
        cpus: 400,
        apps: vec![app()],
        boot: boot(),
        heartbeat_age_ms: 300,
        incarnation: INCARNATION,
        boot_id: u64::MAX,
        state,
    };
    let dataset = DatasetStatus {
        name: "d".into(),
        bytes: 1 << 33,
        app: "grep".into(),
        job: JOB,
        nodes: vec![NODE],
        age_ms: 90_000,
    };
    let nodes = [NodeState::Ready, NodeState::Silent, NodeState::Awaited].map(node).to_vec();
    [
        ToClient::Hello,
        ToClient::Nodes { nodes, more: true },
        ToClient::Accepted { job: JOB, nodes: vec![NODE] },
        ToClient::Progress { node: NODE, phase: "map".into(), done: 200, total: 400 },
        ToClient::Output { bytes: vec![0, 200] },
        ToClient::Done { run_us: 90_000, stream_us: 80_000 },
        ToClient::Failed { reason: "no".into() },
        ToClient::Report { node: NODE, report: report() },
        ToClient::Jobs(phases.map(job).to_vec()),
        ToClient::Cancelled { job: JOB },
        ToClient::Datasets(vec![dataset]),
        ToClient::Dropped { name: "d".into() },
        ToClient::ImageTaken { bytes: 1 << 20 },
        ToClient::NodeLeft,
    ]
    .iter()
    .map(line)
    .collect()
}

fn lines() -> Vec<String> {
    let to_manager = to_manager().iter().map(line).collect();
    let to_node = to_node().iter().map(line).collect();
    [hellos(), to_manager, to_node, from_client(), to_client()].concat()
}

#[test]
fn the_messages_of_the_former_release_have_the_same_bytes() {
    let golden: Vec<&str> = include_str!("version9.txt").lines().collect();
    assert_eq!(lines(), golden);
}
