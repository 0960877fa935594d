//! The search for a device and port, and their opening.

use super::port::{self, Port};
use super::raw::{Channel, CompletionQueue, Context, Domain, QueuePair, Region};
use super::{DeviceLimits, IbvRnic, MAX_DEPTH, MAX_SGE};
use crate::select::{self, Source};
use crate::sysfs::{GidEntry, PortDir, ROOT};
use crate::{Arena, OpenError, Opened, Options};
use rdma_mummy_sys as ibv;
use std::ffi::CStr;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};
use verbs::{Gid, MacAddr};

/// The inline payload sizes to try, in bytes; the first that the device supports is used.
const INLINE: [u32; 5] = [256, 128, 64, 32, 0];

/// Opens the device and port that the options name, maps an arena and registers it.
///
/// # Errors
/// As [`OpenError`] says; nothing stays open then.
pub fn open(options: &Options) -> Result<Opened, OpenError> {
    let devices = Devices::list()?;
    let names = devices.names();
    if names.is_empty() {
        return Err(OpenError::NoDevice);
    }
    let all = names.join(", ");
    if let Some(name) = &options.device
        && !names.contains(name)
    {
        return Err(OpenError::NoSuchDevice { name: name.clone(), present: all });
    }
    let examined = options.device.clone().unwrap_or(all);
    let (mut active, mut present) = (false, Vec::new());
    for (n, name) in names.iter().enumerate() {
        if options.device.as_ref().is_some_and(|wanted| wanted != name) {
            continue;
        }
        let context = devices.open(n).map_err(call(name, "ibv_open_device"))?;
        let attributes = context.attributes().map_err(call(name, "ibv_query_device"))?;
        for number in 1..=attributes.phys_port_cnt {
            let port = context.port(number).map_err(call(name, "ibv_query_port"))?;
            if port::state(&port) != verbs::PortState::Active {
                continue;
            }
            active = true;
            let gids = PortDir::new(Path::new(ROOT), name, number).gids();
            let gids = gids.map_err(call(name, "reading the GID table"))?;
            let infiniband = port.link_layer == ibv::IBV_LINK_LAYER_INFINIBAND;
            if let Some(source) = source(&gids, infiniband, options) {
                let port = usable(name, number, infiniband, source, &attributes, &port);
                return finish(name, context, port, &attributes, options);
            }
            present.extend(gids.iter().map(|entry| shown(entry.gid)));
        }
    }
    if !active {
        return Err(OpenError::NoActivePort { devices: examined });
    }
    present.sort();
    present.dedup();
    Err(OpenError::NoGid { devices: examined, wanted: wanted(options), present: present.join(", ") })
}

/// Chooses the GID. The first GID of an InfiniBand port is its own, and no interface or address selects it.
fn source(gids: &[GidEntry], infiniband: bool, options: &Options) -> Option<Source> {
    if !infiniband {
        return select::choose(gids, options);
    }
    let named = options.address.is_some() || options.netdev.is_some();
    let first = gids.first().filter(|_| !named)?;
    Some(Source { gid: first.gid, netdev: None, v2: None, v1: None })
}

fn wanted(options: &Options) -> String {
    let address = options.address.map(|a| a.to_string());
    let netdev = options.netdev.as_ref().map(|n| format!("interface {n}"));
    match (address, netdev) {
        (Some(address), Some(netdev)) => format!("{address} on {netdev}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "any address".into(),
    }
}

fn shown(gid: Gid) -> String {
    gid.ipv4().map_or_else(|| gid.to_string(), |ip| std::net::Ipv4Addr::from(ip).to_string())
}

fn call(device: &str, call: &'static str) -> impl Fn(io::Error) -> OpenError {
    let device = device.to_owned();
    move |source| OpenError::Call { device: device.clone(), call, source }
}

/// Converts a limit that libibverbs returns as a signed number.
fn limit(n: i32) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

fn usable(
    device: &str,
    number: u8,
    infiniband: bool,
    source: Source,
    attributes: &ibv::ibv_device_attr,
    port: &ibv::ibv_port_attr,
) -> Port {
    let dir = PortDir::new(Path::new(ROOT), device, number);
    let mac = source.netdev.as_ref().and_then(|netdev| dir.mac(netdev)).unwrap_or(MacAddr([0; 6]));
    let in_flight = attributes.max_qp_rd_atom.min(attributes.max_qp_init_rd_atom);
    Port {
        number,
        infiniband,
        source,
        mac,
        lid: if infiniband { port.lid } else { 0 },
        max_mtu: port::mtu(port),
        max_message: port.max_msg_sz,
        max_rd_atomic: u8::try_from(limit(in_flight)).unwrap_or(u8::MAX),
    }
}

/// Makes the protection domain, the completion channel and the registered memory of a device.
fn finish(
    device: &str,
    context: Context,
    port: Port,
    attributes: &ibv::ibv_device_attr,
    options: &Options,
) -> Result<Opened, OpenError> {
    let context = Arc::new(context);
    let domain = Arc::new(Domain::new(context.clone()).map_err(call(device, "ibv_alloc_pd"))?);
    let channel = Channel::new(context.clone()).map_err(call(device, "ibv_create_comp_channel"))?;
    let channel = Arc::new(channel);
    let mut limits = DeviceLimits {
        max_qps: limit(attributes.max_qp),
        max_cqs: limit(attributes.max_cq),
        max_cq_depth: limit(attributes.max_cqe),
        max_depth: limit(attributes.max_qp_wr).min(MAX_DEPTH),
        max_sge: limit(attributes.max_sge).min(MAX_SGE as u32),
        max_inline: 0,
    };
    limits.max_inline =
        max_inline(&domain, &channel, limits.max_sge).map_err(call(device, "ibv_create_qp"))?;
    let bytes = options.arena_bytes;
    let arena = Arena::map(bytes, options.huge_pages).map_err(|source| OpenError::Arena { bytes, source })?;
    let arena = Arc::new(arena);
    let region = Region::new(domain.clone(), arena.clone()).map_err(|source| OpenError::Register {
        bytes,
        device: device.to_owned(),
        source,
    })?;
    let state = port::query_state(&context, port.number).map_err(call(device, "ibv_query_port"))?;
    let counters = PortDir::new(Path::new(ROOT), device, port.number).counters();
    let rnic = IbvRnic {
        qps: RwLock::default(),
        cqs: RwLock::default(),
        channel,
        region,
        domain,
        context,
        device: device.to_owned(),
        port,
        limits,
        counters,
        state: Mutex::new(state),
        failed: AtomicBool::new(false),
        armed: AtomicBool::new(false),
        checked_at: AtomicU64::new(0),
    };
    Ok(Opened { rnic: Arc::new(rnic), arena })
}

/// Returns the number of bytes that the device copies with a work request. No attribute reports it, so the
/// driver tries.
fn max_inline(domain: &Arc<Domain>, channel: &Arc<Channel>, max_sge: u32) -> io::Result<u32> {
    let cq = Arc::new(CompletionQueue::new(channel.clone(), 1)?);
    let mut last = io::Error::from(io::ErrorKind::Unsupported);
    for bytes in INLINE {
        let cap = ibv::ibv_qp_cap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: max_sge,
            max_recv_sge: max_sge,
            max_inline_data: bytes,
        };
        match QueuePair::new(domain.clone(), cq.clone(), cq.clone(), cap) {
            Ok(_) => return Ok(bytes),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// The devices of this machine.
struct Devices {
    list: *mut *mut ibv::ibv_device,
    count: usize,
}

impl Devices {
    fn list() -> Result<Self, OpenError> {
        let mut count = 0;
        // SAFETY: the call fills its argument.
        let list = unsafe { ibv::ibv_get_device_list(&mut count) };
        if list.is_null() {
            return Err(no_list(io::Error::last_os_error()));
        }
        Ok(Self { list, count: usize::try_from(count).unwrap_or(0) })
    }

    fn names(&self) -> Vec<String> {
        // SAFETY: a device of the list, whose name lives as long as the list.
        let name = |n| unsafe { CStr::from_ptr(ibv::ibv_get_device_name(self.get(n))) };
        (0..self.count).map(|n| name(n).to_string_lossy().into_owned()).collect()
    }

    fn open(&self, n: usize) -> io::Result<Context> {
        if n >= self.count {
            return Err(io::ErrorKind::NotFound.into());
        }
        // SAFETY: a device of the list, which has not been freed.
        unsafe { Context::open(self.get(n)) }
    }

    fn get(&self, n: usize) -> *mut ibv::ibv_device {
        debug_assert!(n < self.count);
        // SAFETY: the callers stay below `count`, the length of the list.
        unsafe { *self.list.add(n) }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: the list was obtained once and is freed once; contexts do not need it.
        unsafe { ibv::ibv_free_device_list(self.list) };
    }
}

/// Returns the error for a missing device list.
fn no_list(error: io::Error) -> OpenError {
    use rustix::io::Errno;
    match Errno::from_io_error(&error) {
        // The bindings return this for a function of a library that could not be loaded.
        Some(Errno::OPNOTSUPP) => OpenError::NoLibrary,
        Some(Errno::NOSYS) => OpenError::NoKernelSupport,
        _ => OpenError::Call { device: "libibverbs".into(), call: "ibv_get_device_list", source: error },
    }
}
