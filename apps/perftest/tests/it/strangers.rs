//! Tests of clients that must not be served, are silent, or ask for too much.

use crate::support::{block_on, pair};
use perftest::message::{Keys, VERSION, mtu_bytes};
use perftest::{Error, Options};
use platform::{Connection, Instant, Network, NetworkError};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;
use verbs::PathMtu;

const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 18515);
/// The longest time for which a silent peer may hold a server in the exchange.
const LIMIT: Duration = Duration::from_secs(15);

fn options(line: &str) -> Options {
    Options::parse(line.split(' ')).unwrap()
}

/// Serves, with these options, a client that sends `words` and then nothing. Returns the result, and how long
/// the server was ready to wait.
fn serve_silent(line: &str, words: &[&[u8]]) -> (Error, Duration) {
    let [server, client] = pair(0);
    let options = options(line);
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| block_on(server.perftest.run(&options)));
        let connection = connect(&client);
        for word in words {
            block_on(connection.write(word, Instant::MAX)).unwrap();
        }
        // The clock of the waiting server is advanced until it gives up.
        let waited = server.until_it_gives_up(|| serving.is_finished());
        (serving.join().unwrap().unwrap_err(), waited)
    })
}

/// Connects as soon as the server listens.
fn connect(client: &crate::support::Node) -> Box<dyn Connection> {
    loop {
        match block_on(client.network().connect(SERVER, Instant::MAX)) {
            Err(NetworkError::Refused) => std::thread::yield_now(),
            connected => return connected.unwrap(),
        }
    }
}

#[test]
fn a_silent_client_holds_a_server_for_seconds() {
    let (cycle, line) = (4096u32.to_be_bytes(), 64u32.to_be_bytes());
    let whole: [&[u8]; 4] = [&VERSION, &cycle, &line, &mtu_bytes(PathMtu::B1024)];
    for said in 0..=whole.len() {
        let (error, waited) = serve_silent("ib_read_bw -s 64 -n 5", &whole[..said]);
        assert!(matches!(error, Error::Exchange { error: NetworkError::Deadline, .. }), "{said}: {error}");
        assert!(waited <= LIMIT, "{said}: a server waits for {waited:?}");
    }
}

#[test]
fn a_client_with_huge_pages_gets_no_more_memory_than_the_test_has() {
    let (cycle, line) = ((1u32 << 20).to_be_bytes(), 64u32.to_be_bytes());
    let words: [&[u8]; 4] = [&VERSION, &cycle, &line, &mtu_bytes(PathMtu::B1024)];
    let (error, _) = serve_silent("ib_write_bw -s 64 -n 5 -q 8", &words);
    assert!(matches!(&error, Error::Limit(why) if why.contains("pages of 1048576 bytes")), "{error}");
    // Pages of 64 KiB, as some processors have, are no reason to refuse a small test.
    let cycle = (64u32 << 10).to_be_bytes();
    let words: [&[u8]; 4] = [&VERSION, &cycle, &line, &mtu_bytes(PathMtu::B1024)];
    let (error, _) = serve_silent("ib_write_bw -s 64 -n 5 -q 8", &words);
    assert!(matches!(error, Error::Exchange { error: NetworkError::Deadline, .. }), "{error}");
}

/// Checks that other clients' connections are reset without any answer, and that the test's peer is served
/// after them.
#[test]
fn only_the_peers_of_a_test_are_served() {
    let [server, client] = pair(0);
    let mut named = options("ib_write_bw -s 64 -n 5 --peer 10.0.0.9");
    let anybody = |_: Ipv4Addr| true;
    let nobody = |_: Ipv4Addr| false;
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| block_on(server.perftest.run_for(&named, &anybody)));
        let stranger = connect(&client);
        let mut word = [0; size_of::<Keys>()];
        block_on(stranger.write(&VERSION, Instant::MAX)).unwrap();
        assert_eq!(block_on(stranger.read(&mut word, Instant::MAX)), Ok(0), "the stranger's connection ends");
        server.until_it_gives_up(|| serving.is_finished());
        let result = serving.join().unwrap();
        assert!(matches!(result, Err(Error::Exchange { during: "waiting for a client", .. })), "{result:?}");
    });
    // Without `--peer`, the caller's filter decides; `--peer` has precedence.
    for (peer, clients, served) in [
        (None, &nobody as &perftest::Clients<'_>, false),
        (None, &anybody, true),
        (Some(Ipv4Addr::new(10, 0, 0, 2)), &nobody, true),
    ] {
        named.peer = peer;
        let client_options = Options { server: Some(*SERVER.ip()), ..named.clone() };
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| block_on(server.perftest.run_for(&named, clients)));
            let result = block_on(client.perftest.run(&client_options));
            assert_eq!(result.is_ok(), served, "{peer:?}: {result:?}");
            if !served {
                server.until_it_gives_up(|| serving.is_finished());
            }
            assert_eq!(serving.join().unwrap().is_ok(), served);
        });
    }
}
