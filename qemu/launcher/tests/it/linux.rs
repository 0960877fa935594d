//! Tests with booted Linux guests: `cargo test -p qemu linux:: -- --ignored`.

use qemu::Qemu;
use qemu::linux::baseline::{RxePair, Wire, WordCountGuest, build_rate};
use qemu::linux::{Guest, GuestConfig, Image, Input, RunError, Status};
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

fn ready() -> (Qemu, Image) {
    let qemu = Qemu::find().ok().flatten().expect("QEMU is not installed");
    (qemu, Image::build(&target().join("linux-guest")).expect("an image"))
}

#[test]
#[ignore = "downloads a kernel package and boots a machine"]
fn a_guest_runs_commands() {
    let (qemu, image) = ready();
    assert_eq!(Image::build(&target().join("linux-guest")).unwrap().kernel, image.kernel, "not cached");
    let script = target().join("linux-guest/test-script");
    std::fs::write(&script, "all bytes: \0\n\r\\\u{e9}").unwrap();
    let config = GuestConfig { files: vec![("/opt/file".into(), script.clone())], ..GuestConfig::default() };
    let mut guest = Guest::boot(&qemu, &image, &config).unwrap();

    let output = guest.run("echo out; echo '\\err' >&2\nexit 7", SOON).unwrap();
    assert_eq!((output.status.0, &*output.stdout, &*output.stderr), (7, &b"out\n"[..], &b"\\err\n"[..]));
    assert_eq!(guest.run("cat /opt/file", SOON).unwrap().stdout, std::fs::read(&script).unwrap());

    // Binary data, more than any buffer holds, verified by its hash.
    let random = guest.run("head -c 3000000 /dev/urandom | tee /tmp/random; exit 0", SOON).unwrap().stdout;
    let there = guest.check("sha256sum </tmp/random", SOON).unwrap();
    let mut here = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    here.stdin.take().unwrap().write_all(&random).unwrap();
    assert_eq!(random.len(), 3_000_000);
    assert_eq!(there.as_bytes(), here.wait_with_output().unwrap().stdout);

    // A command that takes too long is killed with all its processes, its output is kept, and the guest can
    // continue.
    match guest.run("echo begun; sleep 1000 & sleep 1000", Duration::from_secs(1)) {
        Err(RunError::TimedOut { stdout, .. }) => assert_eq!(stdout, b"begun\n"),
        other => panic!("{other:?}"),
    }
    assert_eq!(guest.check("ps | grep -c '[s]leep 1000' || true", SOON).unwrap(), "0\n");
    assert!(guest.check("false", SOON).is_err());

    // The end of a guest is noticed at once.
    assert!(matches!(guest.run("reboot -f; sleep 50", SOON), Err(RunError::Lost(_))));
    assert!(matches!(guest.run("true", SOON), Err(RunError::Lost(_))));
}

#[test]
#[ignore = "downloads a kernel package and boots a machine"]
fn streams_jobs_and_files() {
    let (qemu, image) = ready();
    let mut guest = Guest::boot(&qemu, &image, &GuestConfig::default()).unwrap();

    // More data than any buffer holds, in and out, to both streams; twice, because the ports are reused.
    let path = target().join("linux-guest/test-stream");
    let content: Vec<u8> =
        (0..2_000_003u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
    std::fs::write(&path, &content).unwrap();
    for _ in 0..2 {
        let (file, mut out, mut err) = (std::fs::File::open(&path).unwrap(), Vec::new(), Vec::new());
        let input = Input::File(file.as_fd());
        let status = guest.stream("tee /dev/stderr; exit 9", SOON, input, &mut out, &mut err).unwrap();
        assert_eq!(status, Status(9));
        assert!(out == content && err == content, "{} and {} bytes", out.len(), err.len());
    }
    // A command that reads nothing ends, and so does a command without input.
    for (command, printed) in [("echo a; echo b >&2", "a\n"), ("cat; echo c", "c\n")] {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let zero = std::fs::File::open("/dev/zero").unwrap();
        let input = if command.starts_with("cat") { Input::Empty } else { Input::File(zero.as_fd()) };
        guest.stream(command, SOON, input, &mut out, &mut err).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), printed);
    }
    let late =
        guest.stream("sleep 100", Duration::from_secs(1), Input::Empty, &mut Vec::new(), &mut Vec::new());
    assert!(matches!(late, Err(RunError::TimedOut { .. })), "{late:?}");

    guest.copy_in(&path, "/opt/deep/it's here", SOON).unwrap();
    assert!(guest.read_file("/opt/deep/it's here", SOON).unwrap() == content);
    assert!(guest.copy_in(Path::new("/no/such/file"), "/x", SOON).is_err());
    assert!(guest.read_file("/no/such/file", SOON).is_err());

    let job = guest.background("echo 'begun'; sleep 1000 & wait; echo not").unwrap();
    guest.wait_until_printed(&job, "begun", SOON).unwrap();
    assert_eq!(guest.status_of(&job).unwrap(), None);
    guest.signal(&job, "KILL").unwrap();
    let ended = guest.wait_for(&job, SOON).unwrap();
    assert_eq!((ended.status, &*ended.stdout), (Status(137), &b"begun\n"[..]));
    assert_eq!(guest.check("ps | grep -c '[s]leep 1000' || true", SOON).unwrap(), "0\n");
    let job = guest.background("echo out; echo err >&2; exit 5").unwrap();
    let ended = guest.wait_for(&job, SOON).unwrap();
    assert_eq!((ended.status, &*ended.stdout, &*ended.stderr), (Status(5), &b"out\n"[..], &b"err\n"[..]));
    assert!(guest.wait_until_printed(&job, "nothing like it", SOON).is_err());
}

#[test]
#[ignore = "downloads packages and boots a machine"]
fn packages_and_the_host_are_there() {
    let (qemu, _) = ready();
    let cache = target().join("linux-guest");
    let image = Image::build_with(&cache, &["python3-minimal"]).unwrap();
    assert_eq!(
        Image::build_with(&cache, &["python3-minimal"]).unwrap().initramfs,
        image.initramfs,
        "not cached"
    );
    let unknown = format!("{:#}", Image::build_with(&cache, &["no-such-package"]).unwrap_err());
    assert!(unknown.contains("no package no-such-package"), "{unknown}");
    assert!(Image::build_with(&cache, &["-y"]).is_err());

    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let said = std::thread::spawn(move || {
        let mut said = String::new();
        std::io::Read::read_to_string(&mut listener.accept().unwrap().0, &mut said).unwrap();
        said
    });
    let config = GuestConfig { management: true, ..GuestConfig::default() };
    let mut guest = Guest::boot(&qemu, &image, &config).unwrap();
    let script = format!("import socket; socket.create_connection(('10.0.2.2', {port})).send(b'here')");
    guest.check(&format!("python3 -c \"{script}\""), SOON).unwrap();
    assert_eq!(said.join().unwrap(), "here");
    let pid = guest.pid();
    guest.kill();
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
#[ignore = "downloads a kernel package and boots a machine"]
fn a_guest_that_cannot_start_says_why() {
    let (qemu, image) = ready();
    let config =
        GuestConfig { memory_mib: 60, boot_within: Duration::from_secs(20), ..GuestConfig::default() };
    let error = format!("{:#}", Guest::boot(&qemu, &image, &config).unwrap_err());
    assert!(error.contains("did not start"), "{error}");
}

#[test]
#[ignore = "downloads a kernel package and boots two machines"]
fn two_guests_talk_rdma() {
    let (qemu, image) = ready();
    let mut pair = RxePair::boot(&qemu, &image, Wire::Memory).unwrap();
    let info = pair.client().check("ibv_devinfo -v -d rxe0", SOON).unwrap();
    assert!(info.contains("active_mtu:") && info.contains("4096 (5)"), "{info}");
    let measured = pair.measure(200).unwrap();
    println!("{measured:#?}");
    assert_eq!((measured.write_latency.bytes, measured.write_latency.iterations), (8, 200));
    assert!(measured.write_latency.p50_us > 1.0 && measured.read_latency.p50_us > 1.0);
    assert_eq!(measured.write_bandwidth.bytes, 65536);
    assert!(measured.write_bandwidth.average_mib_s > 1.0);
    println!("{:?}", pair.latency("ib_atomic_lat", 8, 50).unwrap());
    // All traffic went over the fabric.
    let counters = pair.fabric().counters().unwrap();
    assert!(counters.ports.iter().all(|port| port.bytes_in > 8 * 200), "{counters:?}");
    // A client's failure is reported, and its server is gone before the next test.
    assert!(pair.perftest("ib_write_lat", "--no-such-option", SOON).is_err());
    assert!(pair.bandwidth("ib_send_bw", 64, 50).is_ok());
}

#[test]
#[ignore = "downloads a kernel package, builds the word count and boots a machine"]
fn words_are_counted_alike() {
    let (qemu, image) = ready();
    let rate = build_rate(&workspace(), &target().join("linux-guest/rate")).unwrap();
    let input = target().join("linux-guest/test-input");
    let source = std::fs::read(workspace().join("Cargo.lock")).unwrap();
    std::fs::write(&input, source.repeat(40)).unwrap();
    let mut guest = WordCountGuest::boot(&qemu, &image, &rate, &input).unwrap();
    let rate = guest.process(3, SOON).unwrap();
    println!("{rate:?}: {:.1} MB/s", rate.mb_per_s());
    let pipeline = guest.pipeline(SOON).unwrap();
    println!("pipeline: {:?}", pipeline.elapsed);
    let lines = String::from_utf8(pipeline.output).unwrap();
    assert_eq!(lines.lines().count() as u64, rate.distinct);

    let reference = r#"export LC_ALL=C; tr -cs A-Za-z '\n' | tr A-Z a-z | sed '/^$/d' | sort | uniq -c |
        sed -E 's/^ *([0-9]+) (.*)$/\2\t\1/' | sort -t "$(printf '\t')" -k2,2nr -k1,1"#;
    let host =
        Command::new("sh").arg("-c").arg(reference).stdin(std::fs::File::open(&input).unwrap()).output();
    assert_eq!(lines, String::from_utf8(host.unwrap().stdout).unwrap());
}
