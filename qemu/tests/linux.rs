//! Linux guests, really booted: `cargo test -p qemu --test linux -- --ignored`.

use qemu::Qemu;
use qemu::linux::baseline::{RxePair, WordCountGuest, build_rate};
use qemu::linux::{Guest, GuestConfig, Image, RunError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
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

    // Binary, more than any buffer on the way holds, and checked by its hash.
    let random = guest.run("head -c 3000000 /dev/urandom | tee /tmp/random; exit 0", SOON).unwrap().stdout;
    let there = guest.check("sha256sum </tmp/random", SOON).unwrap();
    let mut here = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    here.stdin.take().unwrap().write_all(&random).unwrap();
    assert_eq!(random.len(), 3_000_000);
    assert_eq!(there.as_bytes(), here.wait_with_output().unwrap().stdout);

    // Too long: killed with all its processes, what it printed is kept, and the guest goes on.
    match guest.run("echo begun; sleep 1000 & sleep 1000", Duration::from_secs(1)) {
        Err(RunError::TimedOut { stdout, .. }) => assert_eq!(stdout, b"begun\n"),
        other => panic!("{other:?}"),
    }
    assert_eq!(guest.check("ps | grep -c '[s]leep 1000' || true", SOON).unwrap(), "0\n");
    assert!(guest.check("false", SOON).is_err());

    // A guest that is gone is noticed at once.
    assert!(matches!(guest.run("reboot -f; sleep 50", SOON), Err(RunError::Lost(_))));
    assert!(matches!(guest.run("true", SOON), Err(RunError::Lost(_))));
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
    let mut pair = RxePair::boot(&qemu, &image).unwrap();
    let info = pair.client().check("ibv_devinfo -v -d rxe0", SOON).unwrap();
    assert!(info.contains("active_mtu:") && info.contains("4096 (5)"), "{info}");
    let measured = pair.measure(200).unwrap();
    println!("{measured:#?}");
    assert_eq!((measured.write_latency.bytes, measured.write_latency.iterations), (8, 200));
    assert!(measured.write_latency.p50_us > 1.0 && measured.read_latency.p50_us > 1.0);
    assert_eq!(measured.write_bandwidth.bytes, 65536);
    assert!(measured.write_bandwidth.average_mib_s > 1.0);
    println!("{:?}", pair.latency("ib_atomic_lat", 8, 50).unwrap());
    // All of that went over the fabric.
    let counters = pair.fabric().counters().unwrap();
    assert!(counters.ports.iter().all(|port| port.bytes_in > 8 * 200), "{counters:?}");
    // A client's failure is reported, and the next test finds no server left over.
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
