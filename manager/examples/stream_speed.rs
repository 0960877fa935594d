//! Measures the speed of a daemon that streams a job's input from a client to nodes, and its output back,
//! over 127.0.0.1: `cargo run --release -p manager --example stream_speed [MEGABYTES]`. All of them run in
//! this one process.
use anyhow::{Result, bail};
use manager::LogFormat;
use manager::client::{Client, Connection, Inputs, Job, Output};
use manager::core::Config;
use manager::daemon::{Daemon, Options};
use proto::channel::{ClusterKey, Role};
use proto::*;
use std::time::Duration;
use verbs::{LinkKind, MacAddr, MemoryKey, PathMtu, RemoteKey};

fn main() -> Result<()> {
    let megabytes: usize = std::env::args().nth(1).map_or(Ok(200), |text| text.parse())?;
    let directory = std::env::temp_dir().join(format!("ferrolite-speed-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let measured = measure(&directory, megabytes);
    std::fs::remove_dir_all(&directory)?;
    measured
}

fn measure(directory: &std::path::Path, megabytes: usize) -> Result<()> {
    let input = directory.join("input");
    let line = b"it was the best of times, it was the worst of times\n";
    std::fs::write(&input, line.iter().copied().cycle().take(megabytes * 1_000_000).collect::<Vec<u8>>())?;
    let key = ClusterKey::from_bytes(manager::key::random()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    println!("{:>5}  {:>10}  {:>11}", "nodes", "input MB/s", "output MB/s");
    for nodes in [1u16, 2, 4] {
        let options = Options {
            listen: "127.0.0.1:0".parse()?,
            key: key.clone(),
            state: directory.join(nodes.to_string()),
            config: Config { lease: Duration::from_secs(600), ..Config::default() },
            http: None,
            former: None,
            format: LogFormat::Text,
        };
        let daemon = runtime.block_on(Daemon::bind(options))?;
        let address = daemon.local_addr()?.to_string();
        runtime.spawn(daemon.serve(std::future::pending()));
        for index in 0..nodes {
            let connection = join(&address, &key, index)?;
            std::thread::spawn(move || serve(connection, index, megabytes * 1_000_000));
        }
        let job = Job {
            app: "sink".into(),
            args: Vec::new(),
            nodes,
            on: Vec::new(),
            limit: None,
            ..Job::default()
        };
        let mut output = Output::create(&directory.join("output"))?;
        let client = Client::connect(&address, &key)?;
        let done = client.submit(&job, Inputs::open(std::slice::from_ref(&input))?, &mut output, &|_| {})?;
        let speed = |bytes: u64, time: Duration| bytes as f64 / 1e6 / time.as_secs_f64();
        let (input, output) = (speed(done.input_bytes, done.stream), speed(done.output_bytes, done.run));
        println!("{nodes:>5}  {input:>10.0}  {output:>11.0}");
    }
    Ok(())
}

fn join(address: &str, key: &ClusterKey, index: u16) -> Result<Connection> {
    let mut connection = Connection::open(address, key, Role::Node)?;
    let rnic = RnicOffer {
        driver: "none".into(),
        links: vec![LinkKind::RoceV2],
        mac: MacAddr([2, 0, 0, 0, 0, index as u8]),
        gid: None,
        lid: 0,
        mtu: PathMtu::B1024,
        max_rd_atomic: 1,
        key: MemoryKey { rkey: RemoteKey(1), base: platform::IoAddr(0), len: 1 },
        physical: true,
    };
    let app = AppManifest { name: "sink".into(), about: String::new(), cut: CutRule::after(|b| b == b'\n') };
    connection.sending.send(&Hello::Node(Join {
        version: PROTOCOL_VERSION,
        name: format!("n{index}"),
        keep_id: false,
        rnic,
        memory: 0,
        memory_free: 0,
        cpus: 1,
        apps: vec![app],
        boot: BootReport::default(),
        boot_id: 0,
    }))?;
    match connection.receiving.receive(Some(Duration::from_secs(5)))? {
        ToNode::Welcome(_) => Ok(connection),
        other => bail!("no welcome but {other:?}"),
    }
}

/// Receives its input and drops it. Then the first node sends as many bytes of output as the whole input had.
fn serve(mut connection: Connection, index: u16, total: usize) -> Result<()> {
    let window_of_input = ToNode::INPUT_WINDOW;
    let (mut window, mut left) = (ToManager::OUTPUT_WINDOW, if index == 0 { total } else { 0 });
    let (mut running, mut taken, mut promised, mut given) = (None, 0, 0, 0);
    loop {
        match connection.receiving.receive(None)? {
            ToNode::JobStart(start) => {
                (taken, promised) = (0, window_of_input);
                connection.sending.send(&ToManager::JobAccepted { job: start.job })?;
                connection.sending.send(&ToManager::JobInputCredit { job: start.job, bytes: promised })?;
            }
            ToNode::JobInput { job, bytes, .. } => {
                taken += ToNode::input_charge(bytes.len());
                if taken + window_of_input - promised >= window_of_input / 4 {
                    promised = taken + window_of_input;
                    connection.sending.send(&ToManager::JobInputCredit { job, bytes: promised })?;
                }
            }
            ToNode::JobInputEnd { job } => running = Some(job),
            ToNode::JobOutputAck { bytes, .. } => {
                window = ToManager::OUTPUT_WINDOW - usize::try_from(given - bytes)?;
            }
            _ => {}
        }
        let Some(job) = running else { continue };
        while left > 0 && window > 0 {
            let len = left.min(window).min(64 << 10);
            connection.sending.send(&ToManager::JobOutput { job, offset: given, bytes: vec![b'x'; len] })?;
            given += len as u64;
            (left, window) = (left - len, window - len);
        }
        if left == 0 && window == ToManager::OUTPUT_WINDOW {
            connection.sending.send(&ToManager::JobDone { job, report: JobReport::default() })?;
            running = None;
        }
    }
}
