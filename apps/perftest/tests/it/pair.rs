//! Tests of client against server: every program and option, with and without loss.

use crate::support::{Node, block_on, both, pair};
use perftest::{Error, Options, Report, Row};
use platform::NetworkError;
use std::net::Ipv4Addr;

/// Runs one test, which must succeed and transfer its content.
fn passes(nodes: &[Node; 2], command: &str) -> [Report; 2] {
    let free = nodes.each_ref().map(Node::free);
    let [server, client] = both(nodes, command).map(|result| match result {
        Ok(report) => report,
        Err(error) => panic!("{command}: {error}"),
    });
    assert_eq!(nodes.each_ref().map(Node::free), free, "{command}: memory is not given back");
    let (s, c) = (server.content, client.content);
    if command.contains("atomic") {
        assert!(c.left.is_some() && c.left == s.far, "{command}: {c:?} {s:?}");
    } else {
        assert!(c.near.is_some() && c.near == s.far, "{command}: {c:?} {s:?}");
        let both_ways =
            command.contains(" -b") || ["ib_write_lat", "ib_send_lat"].iter().any(|p| command.contains(p));
        assert_eq!((s.near.is_some(), c.far.is_some()), (both_ways, both_ways), "{command}");
        assert_eq!(s.near, c.far, "{command}");
    }
    [server, client]
}

#[test]
fn every_program_carries_its_bytes() {
    let nodes = pair(0);
    for verb in ["write", "read", "send", "atomic"] {
        for figure in ["lat", "bw"] {
            let sizes: &[u32] =
                if verb == "atomic" { &[8] } else { &[1, 7, 8, 64, 1000, 4096, 5001, 70_000] };
            for size in sizes {
                let [_, client] = passes(&nodes, &format!("ib_{verb}_{figure} -s {size} -n 130"));
                match client.rows.last() {
                    Some(Row::Latency { size: measured, figures }) => {
                        assert_eq!((*measured, figures.iterations), (*size, 130));
                        assert!(figures.min_us > 0.0 && figures.min_us <= figures.typical_us);
                    }
                    Some(Row::Bandwidth(found)) => {
                        assert_eq!((found.size, found.iterations), (u64::from(*size), 130));
                        assert!(found.average > 0.0 && found.rate > 0.0);
                    }
                    None => panic!("no row"),
                }
            }
        }
    }
}

#[test]
fn options_of_the_bandwidth_tests() {
    let nodes = pair(0);
    for verb in ["write", "read", "send", "atomic"] {
        passes(&nodes, &format!("ib_{verb}_bw -n 300 -b"));
        passes(&nodes, &format!("ib_{verb}_bw -n 300 -q 4"));
        passes(&nodes, &format!("ib_{verb}_bw -n 300 -q 3 -b -m 1024"));
        passes(&nodes, &format!("ib_{verb}_bw -n 37 -t 5 -Q 3 -m 256"));
    }
    passes(&nodes, "ib_write_bw -s 100 -I 128 -n 500");
    passes(&nodes, "ib_send_lat -s 100 -I 128 -n 500");
    passes(&nodes, "ib_send_bw -r 3 -s 3000 -n 100");
    passes(&nodes, "ib_read_bw -o 1 -n 50");
    passes(&nodes, "ib_atomic_bw -A CMP_AND_SWAP -n 200");
    passes(&nodes, "ib_atomic_lat -A FETCH_AND_ADD -n 200");
}

#[test]
fn all_sizes_in_one_go() {
    let nodes = pair(0);
    for program in ["ib_write_lat", "ib_read_bw", "ib_send_bw -b", "ib_send_lat", "ib_write_bw -b"] {
        let [_, client] = passes(&nodes, &format!("{program} -a -n 5"));
        assert_eq!(client.rows.len(), 23, "{program}");
    }
    passes(&nodes, "ib_atomic_bw -a -n 5");
}

#[test]
fn a_lossy_wire_changes_nothing_but_the_time() {
    let nodes = pair(50);
    for program in ["ib_write_lat", "ib_read_lat", "ib_send_lat", "ib_write_bw", "ib_read_bw", "ib_send_bw"] {
        passes(&nodes, &format!("{program} -s 20000 -n 20"));
    }
    passes(&nodes, "ib_atomic_lat -n 200");
    passes(&nodes, "ib_atomic_bw -n 200 -b");
}

#[test]
fn sides_that_do_not_match_end_with_an_error() {
    let [server, client] = pair(0);
    // The client alone asks for more than its RNIC accepts; the server sees the connection end.
    let inline = Options::parse("ib_write_bw -I 900 -s 800".split(' ')).unwrap();
    let plain = Options { server: Some(Ipv4Addr::new(10, 0, 0, 1)), inline: 0, ..inline.clone() };
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| block_on(server.perftest.run(&inline)));
        let result = block_on(client.perftest.run(&plain));
        assert!(matches!(serving.join().unwrap(), Err(Error::Limit(_))));
        assert!(matches!(result, Err(Error::Exchange { error: NetworkError::Closed, .. })), "{result:?}");
    });
    let options = Options::parse(["ib_write_bw", "-q", "1000"]).unwrap();
    let client_options = Options { server: Some(Ipv4Addr::new(10, 0, 0, 1)), ..options.clone() };
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| block_on(server.perftest.run(&options)));
        assert!(matches!(block_on(client.perftest.run(&client_options)), Err(Error::Limit(_))));
        assert!(matches!(serving.join().unwrap(), Err(Error::Limit(_))));
    });
}
