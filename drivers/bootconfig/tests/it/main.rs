//! Archives, settings of several sources, addresses of managers, pauses.

use bootconfig::{
    Backoff, BadEndpoint, BadWord, Contents, Host, Members, Problem, Setting, Settings, Source, archive,
    endpoints, key_of,
};
use proptest::prelude::*;
use std::net::IpAddr;
use std::time::Duration;

/// The keys of these tests.
const KEYS: [&str; 4] = ["manager", "node", "log", "lite.peers"];

fn is_known(name: &str) -> bool {
    KEYS.contains(&name)
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[test]
fn words_are_checked_before_they_reach_a_kernel() {
    let known = [("node=a", "node"), ("lite.peers=8", "lite.peers"), ("log = debug", "log"), ("ip=", "ip")];
    for (word, key) in known {
        assert_eq!(key_of(word), Ok(key));
    }
    for word in ["node", "=a", " =a", ""] {
        assert_eq!(key_of(word), Err(BadWord::NotAPair(word)));
    }
    assert_eq!(key_of("manger=a"), Err(BadWord::UnknownKey("manger")));
    assert_eq!(BadWord::UnknownKey("manger").to_string(), "unknown key `manger`");
}

#[test]
fn an_archive_of_cpio_is_read() {
    // The headers that `cpio -o -H newc` writes for a directory and a file.
    let header = |ino: u32, mode: u32, links: u32, size: u32, name: u32| {
        format!(
            "070701{ino:08X}{mode:08X}0000000000000000{links:08X}65000000{size:08X}\
             00000008000000010000000000000000{name:08X}00000000"
        )
    };
    let mut bytes = padded(format!("{}./ferrolite\0", header(1, 0o40_755, 2, 0, 12)).into_bytes());
    bytes.extend(padded(format!("{}./ferrolite/config\0", header(2, 0o100_644, 1, 7, 19)).into_bytes()));
    bytes.extend(padded(b"node=a\n".to_vec()));
    bytes.extend(padded(format!("{}TRAILER!!!\0", header(0, 0, 1, 0, 11)).into_bytes()));
    bytes.resize(512, 0);
    let contents = Contents::of(&bytes);
    assert_eq!(contents.config, Some(&b"node=a\n"[..]));
    assert_eq!((contents.key, contents.unknown, contents.skipped), (None, vec![], 0));
}

#[test]
fn archives_behind_each_other_and_junk_between_them() {
    let mut bytes = archive(&[("ferrolite/config", b"node=a"), ("etc/motd", b"hello")]);
    bytes.resize(bytes.len() + 508, 0);
    bytes.extend(padded(b"#!ipxe\nboot\n".to_vec()));
    bytes.extend(archive(&[("ferrolite/key", b"0011"), ("ferrolite/config", b"node=b")]));
    let contents = Contents::of(&bytes);
    assert_eq!((contents.config, contents.key), (Some(&b"node=b"[..]), Some(&b"0011"[..])));
    assert_eq!(contents.unknown, ["etc/motd"]);
    assert_eq!(contents.skipped, 12);
}

#[test]
fn a_short_text_is_a_key() {
    let key = "5a".repeat(32);
    assert_eq!(Contents::of(format!("{key}\n").as_bytes()).key, Some(key.as_bytes()));
    let padded = format!("node:{key}\n\0\0\0");
    assert_eq!(Contents::of(padded.as_bytes()).key, Some(format!("node:{key}").as_bytes()));
    assert_eq!(Contents::of(b""), Contents::default());
    assert_eq!(Contents::of(&[0; 64]), Contents::default());
    assert_eq!(Contents::of(&[b'x'; 4096]).key, None);
}

#[test]
fn a_text_with_pairs_is_the_settings() {
    let text = "# of n0\nnode = n0\nmanager=192.0.2.1:18500\n".repeat(40);
    let contents = Contents::of(text.as_bytes());
    assert_eq!((contents.config, contents.key), (Some(text.trim_end().as_bytes()), None));
    assert_eq!(contents.skipped, 0);
    assert_eq!(Contents::of(b"node=a\xff").config, None);
}

#[test]
fn words_of_loaders_are_left_out_and_others_are_errors() {
    let mut settings = Settings::new(is_known);
    settings.add_line(
        "\\EFI\\BOOT\\BOOTX64.EFI BOOT_IMAGE=/f node=a BOOTIF=01-52-54-00-12-34-56 initrd=x \
         virtio_mmio.device=512@0xfeb00e00:12 quiet colour=green",
    );
    assert_eq!(settings.of_loaders().len(), 5);
    assert_eq!(settings.get("node").map(|setting| setting.value), Some("a"));
    let problems: Vec<String> = settings.problems().iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        ["command line: `quiet` is not key=value", "command line: unknown key `colour` in `colour=green`"]
    );
    let mut settings = Settings::new(is_known);
    settings.add_line("quiet node=a f.efi");
    assert_eq!(settings.problems().len(), 2, "only the first word is the name of a program");
}

#[test]
fn a_file_has_lines() {
    let mut settings = Settings::new(is_known);
    settings.add_file(Source::Initrd, b"# of node a\r\n\nnode = a\r\nmanager=b:1\nmanager=c:1\n\0\0");
    assert_eq!(settings.problems(), []);
    let all: Vec<_> = settings.iter().map(|setting| (setting.name, setting.value)).collect();
    assert_eq!(all, [("node", "a"), ("manager", "c:1")]);
    settings.add_file(Source::Partition, b"\xff=1");
    settings.add_file(Source::BuiltIn, b"manger=d");
    let name = Setting { name: "manger", value: "d", source: Source::BuiltIn };
    let expected = [Problem::NotText(Source::Partition), Problem::UnknownKey(Source::BuiltIn, name)];
    assert_eq!(settings.problems(), expected);
}

#[test]
fn dhcp_sets_a_few_keys_each_time_anew() {
    let mut settings = Settings::new(|name| is_known(name) || name == "dns");
    settings.add_file(Source::BuiltIn, b"manager=built:1\nnode=in");
    settings.add_line("node=line");
    let problems = settings.set_dhcp("manager=lease:1 node=lease dns=10.0.0.1 log=debug colour=green word");
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let expected = [
        "DHCP: `log=debug` is ignored: the key counts before DHCP",
        "DHCP: unknown key `colour` in `colour=green`",
        "DHCP: `word` is not key=value",
    ];
    assert_eq!(problems, expected);
    assert_eq!(settings.problems(), [], "a server's mistake does not keep the node from starting");
    let value = |settings: &Settings<'static>, name| settings.get(name).map(|setting| setting.value);
    assert_eq!(value(&settings, "manager"), Some("lease:1"));
    assert_eq!(value(&settings, "node"), Some("line"));
    assert_eq!(settings.set_dhcp(""), []);
    assert_eq!(value(&settings, "manager"), Some("built:1"));
    assert_eq!(value(&settings, "dns"), None);
}

/// Sets each key by each pair of sources, in both orders. The value of the earlier source must count.
#[test]
fn each_pair_of_sources() {
    for key in KEYS {
        for first in Source::ALL {
            for second in Source::ALL {
                let mut settings = Settings::new(is_known);
                settings.add(Setting { name: key, value: "first", source: first });
                settings.add(Setting { name: key, value: "second", source: second });
                let counts = settings.get(key).expect("the key has a value");
                assert_eq!(counts.source, first.min(second), "{key}: {first} and {second}");
                assert_eq!(counts.value, if first < second { "first" } else { "second" });
                assert_eq!(settings.iter().count(), 1);
                for source in Source::ALL {
                    let of = |used| settings.of(source, used).count();
                    assert_eq!(of(true), usize::from(source == counts.source));
                    let is_overridden = first != second && source == first.max(second);
                    assert_eq!(of(false), usize::from(is_overridden), "{source}");
                }
            }
        }
    }
}

/// Sets each key by each pair of sources, in both orders. The console names the value and the source that
/// count, and those that do not.
#[test]
fn each_pair_of_sources_is_printed() {
    for key in KEYS {
        for first in Source::ALL {
            for second in Source::ALL.into_iter().filter(|second| *second != first) {
                let mut settings = Settings::new(is_known);
                settings.add(Setting { name: key, value: "a", source: first });
                settings.add(Setting { name: key, value: "b", source: second });
                let printed: Vec<_> =
                    Source::ALL.into_iter().flat_map(|source| settings.lines(source)).collect();
                let ((counts, value), (other, loser)) = if first < second {
                    ((first, 'a'), (second, 'b'))
                } else {
                    ((second, 'b'), (first, 'a'))
                };
                let expected = [
                    format!("settings by {counts}: {key}={value}"),
                    format!("settings by {other}, overridden: {key}={loser}"),
                ];
                assert_eq!(printed, expected);
                let by_dhcp: Vec<_> = settings.lines_overridden_by_dhcp().collect();
                assert_eq!(by_dhcp, if counts == Source::Dhcp { &expected[1..] } else { &[] });
            }
        }
    }
}

/// A value that was printed before DHCP as the one that counts is named again once DHCP overrides it.
#[test]
fn what_dhcp_overrides_is_printed() {
    let mut settings = Settings::new(is_known);
    settings.add_file(Source::BuiltIn, b"manager=built:1\nlog=info");
    settings.add_file(Source::Partition, b"node=p");
    settings.add_line("node=line");
    assert_eq!(settings.set_dhcp("manager=lease:1 node=lease"), []);
    let printed: Vec<_> = settings.lines(Source::Dhcp).chain(settings.lines_overridden_by_dhcp()).collect();
    let expected = [
        "settings by DHCP: manager=lease:1",
        "settings by DHCP, overridden: node=lease",
        "settings by boot file, overridden: manager=built:1",
    ];
    assert_eq!(printed, expected);
}

#[test]
fn secrets_are_not_printed() {
    let mut settings = Settings::new(|name| name == "token");
    settings.add_line("token=0011");
    assert_eq!(
        settings.lines(Source::CommandLine).collect::<Vec<_>>(),
        ["settings by command line: token=(secret)"]
    );
}

#[test]
fn managers() {
    let all = endpoints("10.0.2.2:7,m1.example,m-2:80").expect("three managers");
    let texts: Vec<_> = all.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["10.0.2.2:7", "m1.example:18500", "m-2:80"]);
    assert_eq!(
        all.first().map(|endpoint| endpoint.host.clone()),
        Some(Host::Address(IpAddr::from([10, 0, 2, 2])))
    );
    for text in ["", "a,", ":1", "a:0", "a:65536", "a:b", "10.0.2", "10.0.2.256:1", "-a", "a..b", "a b"] {
        assert!(matches!(endpoints(text), Err(BadEndpoint::Malformed(_))), "{text}");
    }
}

#[test]
fn managers_by_ipv6() {
    let all = endpoints("[fd00::1]:7,10.0.2.2,[fe80::A],m1:80").expect("four managers");
    let texts: Vec<_> = all.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["[fd00::1]:7", "10.0.2.2:18500", "[fe80::a]:18500", "m1:80"]);
    for text in ["fd00::1", "fd00::1:80", "::"] {
        assert!(matches!(endpoints(text), Err(BadEndpoint::Unbracketed(_))), "{text}");
    }
    for text in ["[::1]:80", "[::]", "[ff02::1]", "[::ffff:10.0.2.2]:80"] {
        assert!(matches!(endpoints(text), Err(BadEndpoint::NoHost(_))), "{text}");
    }
    let malformed = [
        "[fd00::1",
        "[]",
        "[fd00::1]:",
        "[fd00::1]:0",
        "[fd00::1]80",
        "[10.0.2.2]:1",
        "[fe80::1%eth0]:1",
        "fd00::1]",
    ];
    for text in malformed {
        assert!(matches!(endpoints(text), Err(BadEndpoint::Malformed(_))), "{text}");
    }
}

#[test]
fn pauses_double_from_a_second_to_a_minute() {
    let mut backoff = Backoff::default();
    let pauses: Vec<_> = (0..8).map(|_| backoff.pause(0).as_secs()).collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
}

proptest! {
    /// Any bytes are read without a panic, and what is read lies in them.
    #[test]
    fn any_bytes(junk in proptest::collection::vec(any::<u8>(), 0..600), cut in 0_usize..700) {
        let mut bytes = archive(&[("ferrolite/config", b"node=a\n"), ("x", &junk)]);
        bytes.truncate(cut);
        for (index, byte) in junk.iter().enumerate().take(8) {
            if let Some(place) = bytes.get_mut(usize::from(*byte) + index) {
                *place ^= 1 << (byte & 7);
            }
        }
        let total: usize = Members::of(&bytes).map(|member| member.data.len()).sum();
        prop_assert!(total <= bytes.len());
        let contents = Contents::of(&bytes);
        let mut settings = Settings::new(is_known);
        settings.add_file(Source::Initrd, contents.config.unwrap_or_default());
        settings.add_file(Source::Partition, &junk);
    }

    /// Two archives are read as they were written. Letters between them are skipped.
    #[test]
    fn any_files(
        config in proptest::collection::vec(any::<u8>(), 0..100),
        key in proptest::collection::vec(any::<u8>(), 0..100),
        between in proptest::collection::vec(b'a'..=b'z', 0..40),
    ) {
        let mut bytes = archive(&[("./ferrolite/config", &config)]);
        bytes.extend(padded(between.clone()));
        bytes.extend(archive(&[("ferrolite/key", &key)]));
        let contents = Contents::of(&bytes);
        prop_assert_eq!(contents.config, Some(&config[..]));
        prop_assert_eq!(contents.key, Some(&key[..]));
        prop_assert_eq!(contents.skipped, between.len());
    }

    /// Pauses are from a second to a minute, whatever is random.
    #[test]
    fn any_pauses(random in proptest::collection::vec(any::<u32>(), 1..20)) {
        let mut backoff = Backoff::default();
        for random in random {
            let pause = backoff.pause(random);
            prop_assert!((Duration::from_secs(1)..=Duration::from_secs(60)).contains(&pause));
        }
    }

    /// Any text is a list of managers or an error, and what is a list reads the same again.
    #[test]
    fn any_managers(text in "[a-z0-9.:,\\[\\]-]{0,30}") {
        if let Ok(all) = endpoints(&text) {
            let again: Vec<_> = all.iter().map(ToString::to_string).collect();
            prop_assert_eq!(endpoints(&again.join(",")), Ok(all));
        }
    }
}
