//! Datasets: a job reads exactly the output that another one keeps, and no memory is left behind.

use proto::{AppManifest, CutRule, JobReport};
use runtime::testing::Cluster;
use runtime::{App, BoxFuture, JobContext, JobError};

/// Writes its input as its output: by all nodes in order, by rank 0 alone in small pieces (`first`), or not
/// at all, with an error (`fail`). Checks that its input is cut behind lines.
struct Cat;

async fn cat(job: JobContext) -> Result<JobReport, JobError> {
    let splits = job.take_splits();
    let whole = |bytes: &[u8]| bytes.is_empty() || bytes.ends_with(b"\n");
    assert!(splits.iter().all(|split| whole(&split.bytes)), "a line is cut");
    let mut at: Option<(u32, u64)> = None;
    for split in &splits {
        let follows = at.is_none_or(|(file, offset)| file != split.file || offset <= split.offset);
        assert!(follows, "splits are out of order");
        at = Some((split.file, split.offset + split.bytes.len() as u64));
    }
    let bytes = splits.into_iter().flat_map(|split| split.bytes).collect::<Vec<u8>>();
    match job.start().args.first().map(String::as_str) {
        None => job.output_in_order(bytes).await?,
        Some("first") if job.rank() == 0 => {
            let mut output = job.output();
            for piece in bytes.chunks(1000) {
                output.write(piece).await?;
            }
            output.finish().await?;
        }
        Some("first") => {}
        Some(_) => {
            job.output_in_order(bytes).await?;
            job.barrier("written").await?;
            return Err(JobError::Refused("asked to fail".into()));
        }
    }
    Ok(JobReport::default())
}

impl App for Cat {
    fn manifest(&self) -> AppManifest {
        let cut = CutRule::after(|byte| byte == b'\n');
        AppManifest { name: "cat".into(), about: String::new(), cut }
    }

    fn run(&self, job: JobContext) -> BoxFuture<'_, Result<JobReport, JobError>> {
        Box::pin(cat(job))
    }
}

fn cluster(nodes: u8) -> Cluster {
    Cluster::new(3, nodes, 1, || vec![Box::new(Cat)])
}

/// Returns lines of many lengths, one of them of `longest` bytes, together of `len` bytes or more.
fn lines(len: usize, longest: usize) -> Vec<u8> {
    let mut text = vec![b'l'; longest];
    text.push(b'\n');
    let mut number = 7usize;
    while text.len() < len {
        number = number.wrapping_mul(69_069).wrapping_add(1);
        text.resize(text.len() + number % 200, b'a' + (number % 26) as u8);
        text.push(b'\n');
    }
    text
}

/// Keeps the output of a job, reads it by two jobs, and drops it.
fn keep_read_and_drop(cluster: &mut Cluster, args: &[&str], text: &[u8]) {
    let (sent, _) = cluster.run("cat", args, &[("text", text)]).unwrap();
    let sets = [cluster.keep("cat", args, &[("text", text)]).unwrap()];
    assert_eq!(sets[0].len(), sent.len() as u64);
    let (read, _) = cluster.run_with("cat", &[], &[], &sets, false).unwrap();
    assert!(read == sent, "{} bytes of {}", read.len(), sent.len());
    let (more, _) = cluster.run_with("cat", &[], &[("one", b"x\n")], &sets, false).unwrap();
    assert_eq!(more.len(), sent.len() + 2);
    let [dataset] = sets;
    cluster.drop_dataset(dataset);
}

#[test]
fn what_is_kept_is_what_is_read() {
    for nodes in 1..=4 {
        let mut cluster = cluster(nodes);
        // The first jobs open the connections, those for a record over several shares between all nodes.
        keep_read_and_drop(&mut cluster, &[], &lines(600_000, 10));
        keep_read_and_drop(&mut cluster, &[], &lines(600_000, 400_000));
        let before = cluster.free();
        for text in [lines(600_000, 10), lines(600_000, 400_000), lines(3000, 1), b"\n".to_vec(), Vec::new()]
        {
            for args in [&[][..], &["first"]] {
                keep_read_and_drop(&mut cluster, args, &text);
                assert_eq!(cluster.free(), before, "memory is left behind");
            }
        }
    }
}

#[test]
fn the_memory_of_a_dataset_is_in_use_until_it_is_dropped() {
    let mut cluster = cluster(2);
    let text = lines(400_000, 10);
    cluster.run("cat", &[], &[("text", &text)]).unwrap();
    let before: u64 = cluster.free().iter().sum();
    let dataset = cluster.keep("cat", &[], &[("text", &text)]).unwrap();
    assert!(before - cluster.free().iter().sum::<u64>() >= 400_000);
    let again = cluster.keep("cat", &[], &[("text", &text)]).unwrap();
    cluster.drop_dataset(dataset);
    cluster.drop_dataset(again);
    assert_eq!(cluster.free().iter().sum::<u64>(), before);
}

#[test]
fn a_job_that_fails_keeps_nothing() {
    let mut cluster = cluster(3);
    let text = lines(400_000, 10);
    cluster.run("cat", &[], &[("text", &text)]).unwrap();
    let before = cluster.free();
    assert_eq!(cluster.keep("cat", &["fail"], &[("text", &text)]).unwrap_err(), "asked to fail");
    assert_eq!(cluster.free(), before);
}

#[test]
fn too_long_an_output_is_refused_with_numbers() {
    let mut cluster = cluster(1);
    let text = lines(15 << 20, 10);
    let error = cluster.keep("cat", &["first"], &[("text", &text)]).unwrap_err();
    assert!(error.contains("too little memory: needs "), "{error}");
}

#[test]
fn the_report_has_operations_bytes_and_memory() {
    let mut cluster = cluster(2);
    let text = lines(400_000, 10);
    let dataset = cluster.keep("cat", &[], &[("text", &text)]).unwrap();
    let before = cluster.free();
    let (_, reports) = cluster.run_with("cat", &[], &[], &[dataset], false).unwrap();
    let used = |rank: usize, name: &str| {
        let used = reports[rank].used.iter().find(|(known, _)| known == name);
        used.unwrap_or_else(|| panic!("no {name} in {:?}", reports[rank])).1
    };
    // Rank 0 reads its share, and then the output of rank 1; rank 1 its share, and offers its output.
    assert!(used(0, "reads") >= 2 && used(0, "bytes_read") >= 390_000, "{:?}", reports[0]);
    assert!((190_000..300_000).contains(&used(1, "bytes_read")), "{:?}", reports[1]);
    assert!(used(1, "bytes_written") >= 190_000, "{:?}", reports[1]);
    let offered = (16 << 20) - before[1] + 190_000;
    assert!((offered..16 << 20).contains(&used(1, "peak_memory")), "{:?}", reports[1]);
    assert_eq!((used(0, "atomics"), used(0, "memsets")), (0, 0));
}
