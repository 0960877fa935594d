//! Handles that one thread closes while others use them, from C and from Python.

use crate::programs::{compile, compile_with_sanitizer, join, python, shared, skip, source};
use crate::support::{Cluster, LIMIT};
use futures_lite::future::block_on;
use lite_node::Node;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// The function of `handles.c` that is called while its node leaves.
const SERVED: u32 = 200;

/// Starts a program as the node `name` of the cluster, with an allocator that keeps nothing back and
/// overwrites freed memory: a use of freed memory finds nonsense.
fn start(cluster: &Cluster, command: &mut Command, name: &str) -> Child {
    command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0").env("MALLOC_PERTURB_", "165");
    spawn(cluster, command, name)
}

fn spawn(cluster: &Cluster, command: &mut Command, name: &str) -> Child {
    command.arg(&cluster.address).arg(cluster.key_file()).arg(name).arg(cluster.fabric.socket(1));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ends_well(program: Child, name: &str) {
    let done = program.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success() && out == "all is well\n", "{name}: {} {out}{err}", done.status);
}

/// Calls a function of a node that another process registers sooner or later.
fn call_when_there(node: &Node, name: &str, function: u32) -> Result<Vec<u8>, lite::Error> {
    let deadline = Instant::now() + LIMIT;
    let lite = node.lite().with_deadline(LIMIT);
    loop {
        let there = lite.members().into_iter().find(|member| member.name == name);
        let result = there.map(|member| block_on(lite.call(member.node, function, b"", 64)));
        match result {
            None | Some(Err(lite::Error::NoSuchFunction)) if Instant::now() < deadline => {
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            None => panic!("no node {name}"),
            Some(result) => return result,
        }
    }
}

#[test]
fn handles_in_c_are_closed_while_others_use_them() {
    let cluster = Cluster::start(2);
    let node = join(&cluster, "node0", 0);
    let program = compile(&cluster, &source("tests/it/handles.c"), "handles", &shared());
    let program = start(&cluster, &mut Command::new(program), "handles-c");
    let served = call_when_there(&node, "handles-c", SERVED);
    ends_well(program, "handles-c");
    assert_eq!(served.as_deref(), Ok(&b"served"[..]), "a node that leaves answers what it has begun");
    cluster.wait_members(&["node0"]);
}

/// The program of the test above under AddressSanitizer, which also replaces the allocator of the library:
/// it reports each use of freed memory by the program, by the library's calls of libc, and each block that
/// is freed twice.
#[test]
fn handles_in_c_under_address_sanitizer() {
    let cluster = Cluster::start(2);
    let Some(program) = compile_with_sanitizer(&cluster, &source("tests/it/handles.c"), "handles-asan")
    else {
        return skip("handles::handles_in_c_under_address_sanitizer: cc has no AddressSanitizer");
    };
    let node = join(&cluster, "node0", 0);
    let program = spawn(&cluster, &mut Command::new(program), "handles-asan");
    let served = call_when_there(&node, "handles-asan", SERVED);
    ends_well(program, "handles-asan");
    assert_eq!(served.as_deref(), Ok(&b"served"[..]), "a node that leaves answers what it has begun");
    cluster.wait_members(&["node0"]);
}

#[test]
fn objects_in_python_are_closed_while_others_use_them() {
    let cluster = Cluster::start(2);
    let _node = join(&cluster, "node0", 0);
    let program = start(&cluster, &mut python(&source("tests/it/handles.py")), "handles-py");
    ends_well(program, "handles-py");
    cluster.wait_members(&["node0"]);
}
