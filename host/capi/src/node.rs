//! Joining, leaving, the other nodes, and the barrier.

use crate::boundary::{self as c, OutParam};
use crate::handle::{self, Handle, Table};
use crate::status::{Failure, fl_status};
use lite::{Lite, NodeId};
use lite_node::{Clock, Nic, Node, Options};
use proto::channel::Role;
use std::ffi::c_char;
use std::path::Path;
use std::time::{Duration, Instant};

/// The interval at which the list of members is examined.
const LOOK: Duration = Duration::from_millis(10);
/// The default memory of a process, in bytes.
const MEMORY: u64 = 64 << 20;
/// The least memory of a process, in bytes: LITE's own pools take some of it.
const LEAST_MEMORY: u64 = 16 << 20;

/// The options of `fl_join`. A null or zero field stands for the default in brackets; fill the rest with
/// zeroes.
#[repr(C)]
pub struct fl_options {
    /// The manager's address, `host:port` [127.0.0.1:18500].
    pub manager: *const c_char,
    /// The file with the cluster key. Required.
    pub key_file: *const c_char,
    /// The name of the node. Required.
    pub name: *const c_char,
    /// The RNIC: `ibverbs`, which is the default, or `softroce`.
    pub nic: *const c_char,
    /// For ibverbs, the RDMA device, as `rdma link` names it [the first with an active port].
    pub device: *const c_char,
    /// For ibverbs, the IP address of the port to use [the first].
    pub address: *const c_char,
    /// The path of the fabric's Unix socket. Required for softroce.
    pub fabric_socket: *const c_char,
    /// The bytes of memory that the process gives to the cluster, for its regions and those of others [64
    /// MiB].
    pub memory: u64,
}

/// This process as a member of a cluster.
pub struct fl_node(());

impl Handle for fl_node {
    const KIND: u64 = 1;
    const NAME: &'static str = "fl_node";
    type Held = Node;

    fn table() -> &'static Table<Node> {
        static TABLE: Table<Node> = Table::new();
        &TABLE
    }
}

/// Returns the LITE of a node, with `timeout_ms` as the deadline of its operations.
pub(crate) fn lite(node: &Node, timeout_ms: u32) -> Lite {
    node.lite().with_deadline(c::milliseconds(timeout_ms))
}

/// Joins a cluster. One process may join several times, under different names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_join(
    options: *const fl_options,
    timeout_ms: u32,
    node: *mut *mut fl_node,
) -> fl_status {
    c::run(|| {
        // SAFETY: the caller vouches for the pointers.
        let (options, out) = unsafe { (c::given(options, "options")?, OutParam::new(node, "node")?) };
        // SAFETY: as above, for the texts of the options.
        let chosen = unsafe { Chosen::of(options)? };
        out.give(chosen.join(c::milliseconds(timeout_ms))?)
    })
}

struct Chosen<'a> {
    manager: &'a str,
    key_file: &'a str,
    name: &'a str,
    nic: &'a str,
    device: Option<&'a str>,
    address: Option<&'a str>,
    fabric_socket: Option<&'a str>,
    memory: u64,
}

impl<'a> Chosen<'a> {
    /// # Safety
    /// The texts must be null or end with a zero byte.
    unsafe fn of(options: &'a fl_options) -> Result<Self, Failure> {
        // SAFETY: the caller guarantees it.
        unsafe {
            Ok(Self {
                manager: c::optional(options.manager, "manager")?.unwrap_or("127.0.0.1:18500"),
                key_file: c::text(options.key_file, "key_file")?,
                name: c::text(options.name, "name")?,
                nic: c::optional(options.nic, "nic")?.unwrap_or("ibverbs"),
                device: c::optional(options.device, "device")?,
                address: c::optional(options.address, "address")?,
                fabric_socket: c::optional(options.fabric_socket, "fabric_socket")?,
                memory: if options.memory == 0 { MEMORY } else { options.memory },
            })
        }
    }

    fn join(&self, within: Duration) -> Result<Node, Failure> {
        let not_joined = |error: &dyn std::fmt::Display| Failure::new(fl_status::FL_NOT_JOINED, error);
        if self.memory < LEAST_MEMORY {
            let least = LEAST_MEMORY >> 20;
            return Err(Failure::invalid(format_args!("memory: a node gives {least} MiB at least")));
        }
        let key = manager::key::load(Path::new(self.key_file)).map_err(|e| not_joined(&e))?;
        // The role is checked before the devices, which do not matter with a client's key.
        key.for_role(Role::Node).map_err(|e| not_joined(&e))?;
        let clock = Clock::start();
        let nic = self.nic()?;
        let options = Options {
            manager: self.manager.into(),
            key,
            name: self.name.into(),
            keep_id: false,
            cpus: 1,
            apps: Vec::new(),
            lite: lite::Config::default(),
            join_within: within,
        };
        Node::join(clock, nic, options).map_err(|e| not_joined(&e))
    }

    fn nic(&self) -> Result<Nic, Failure> {
        let not_joined = |error: &dyn std::fmt::Display| Failure::new(fl_status::FL_NOT_JOINED, error);
        match self.nic {
            "softroce" => {
                let socket = self.fabric_socket;
                let socket = socket.ok_or_else(|| Failure::invalid("nic softroce needs fabric_socket"))?;
                Nic::softroce(Path::new(socket), self.memory).map_err(|e| not_joined(&e))
            }
            "ibverbs" => {
                let address = self.address.map(|text| {
                    text.parse().map_err(|_| Failure::invalid(format_args!("{text} is no IP address")))
                });
                let device = self.device.map(str::to_owned);
                Nic::ibverbs(device, address.transpose()?, self.memory).map_err(|e| not_joined(&e))
            }
            other => Err(Failure::invalid(format_args!("nic is ibverbs or softroce, not {other}"))),
        }
    }
}

/// Leaves the cluster in good order and gives the handle back, also if it fails. Nothing new begins from
/// the call on: calls of other threads that wait for an event (`fl_receive`, `fl_barrier`, `fl_find_node`,
/// `fl_map`), and later calls with regions and functions of this node, end with `FL_LINK_DOWN`; those
/// handles must still be given back. The function then waits, for at most `timeout_ms`, for requests that
/// were received and not given back and for operations in flight. `FL_DEADLINE` means that some were cut
/// off; the node has left all the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_leave(node: *mut fl_node, timeout_ms: u32) -> fl_status {
    c::run(|| Ok(handle::take(node, "node")?.leave(c::milliseconds(timeout_ms))?))
}

/// Returns the number of this node in the cluster; 0 for a handle that is null or was given back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_node_id(node: *const fl_node) -> u16 {
    handle::get(node, "node").map_or(0, |node| node.lite().node_id().0)
}

/// Stores the numbers of the live members, this node included, in ascending order: the first `capacity` of
/// them in `ids`, and the number of members in `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_members(
    node: *const fl_node,
    ids: *mut u16,
    capacity: usize,
    count: *mut usize,
) -> fl_status {
    c::run(|| {
        let node = handle::get(node, "node")?;
        // SAFETY: the caller vouches for the pointer.
        let count = unsafe { OutParam::new(count, "count")? };
        let members = node.lite().members();
        if capacity > 0 && ids.is_null() {
            return Err(Failure::invalid("ids is null"));
        }
        for (n, member) in members.iter().take(capacity).enumerate() {
            // SAFETY: not null, and the caller vouches for room for `capacity` numbers.
            unsafe { ids.add(n).write(member.node.0) };
        }
        count.put(members.len());
        Ok(())
    })
}

/// Stores the number of the member with that name; waits until there is one, for at most `timeout_ms`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_find_node(
    node: *const fl_node,
    name: *const c_char,
    timeout_ms: u32,
    id: *mut u16,
) -> fl_status {
    c::run(|| {
        let node = handle::get(node, "node")?;
        // SAFETY: the caller vouches for the pointers.
        let (name, id) = unsafe { (c::text(name, "name")?, OutParam::new(id, "id")?) };
        let deadline = Instant::now() + c::milliseconds(timeout_ms);
        loop {
            if !node.lite().is_member() {
                return Err(lite::Error::LinkDown.into());
            }
            if let Some(found) = node.lite().members().into_iter().find(|m| m.name == name) {
                id.put(found.node.0);
                return Ok(());
            }
            if Instant::now() >= deadline {
                let text = format_args!("no node is called {name}");
                return Err(Failure::new(fl_status::FL_NO_SUCH_NODE, text));
            }
            std::thread::sleep(LOOK);
        }
    })
}

/// Waits until each of the `count` nodes in `group`, this one included, waits at the barrier `name`. Either
/// all are released, or all fail because a node is dead, leaves or stops waiting.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fl_barrier(
    node: *const fl_node,
    name: *const c_char,
    group: *const u16,
    count: usize,
    timeout_ms: u32,
) -> fl_status {
    c::run(|| {
        let node = handle::get(node, "node")?;
        // SAFETY: the caller vouches for the pointers.
        let (name, group) = unsafe { (c::text(name, "name")?, c::slice(group, count, "group")?) };
        let group: Vec<NodeId> = group.iter().map(|id| NodeId(*id)).collect();
        c::wait(&node, lite(&node, timeout_ms).barrier(name, &group))
    })
}
