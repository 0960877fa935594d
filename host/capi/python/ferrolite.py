"""LITE for Python: a process as a node of a Ferrolite cluster.

A pure Python module over the library libferrolite.so (ctypes; nothing to build). The library is looked for at
$FERROLITE_LIBRARY, beside this file, and where the system looks for libraries.

    import ferrolite

    with ferrolite.join(key_file="cluster.key", name="me", nic="ibverbs") as node:
        peer = node.find("node0")
        with node.malloc(peer, 1 << 20) as region:       # 1 MiB of that node's memory, freed at the end of the block
            region.memset(0, len(region), 0x5a)
            assert region.read(0, 4) == b"ZZZZ"

Every method that waits takes `timeout`, in seconds, and raises a subclass of `Error` if it fails: `Deadline`, `NodeDown`,
`OutOfBounds` and so on. All of it may be used by several threads: the interpreter's lock is not held while a call waits. That
goes for closing, too: what is under way in other threads then ends with an error (`LinkDown` for a node, `NoSuchFunction` for
a function), and later uses raise `Closed`.
"""

import ctypes
import ctypes.util
import os

__all__ = ["join", "Node", "Region", "Function", "Request", "Error", "READ", "WRITE", "SHARE", "ADMIN", "ATOMIC", "ALL"]

READ, WRITE, SHARE, ADMIN, ATOMIC = 1, 2, 4, 8, 16
ALL = 31

DEFAULT_TIMEOUT = 10.0


class Error(Exception):
    """A call has failed; `status` is the number of the C interface."""

    status = None


_NAMES = [
    "Deadline", "Unknown", "NodeDown", "NoSuchNode", "NoSuchName", "NameTaken", "NoSuchFunction", "PermissionDenied",
    "OutOfBounds", "Misaligned", "Freed", "NoMemory", "TooLarge", "NoSharedLink", "LinkDown", "Refused",
    "InvalidArgument", "NotJoined", "InternalError", "Closed",
]
_ERRORS = {}
for _status, _name in enumerate(_NAMES, start=1):
    _ERRORS[_status] = type(_name, (Error,), {"status": _status, "__module__": __name__, "__doc__": None})
    globals()[_name] = _ERRORS[_status]
    __all__.append(_name)


class _Options(ctypes.Structure):
    _fields_ = [(field, ctypes.c_char_p) for field in
                ("manager", "key_file", "name", "nic", "device", "address", "fabric_socket")]
    _fields_.append(("memory", ctypes.c_uint64))


def _load():
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libferrolite.so")
    path = os.environ.get("FERROLITE_LIBRARY")
    if not path:
        path = beside if os.path.exists(beside) else ctypes.util.find_library("ferrolite") or "libferrolite.so"
    library = ctypes.CDLL(path)
    p, u16, u32, u64, size = (ctypes.c_void_p, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t)
    text, byte = ctypes.c_char_p, ctypes.c_uint8
    handle = ctypes.POINTER(p)
    statuses = {
        "fl_join": [ctypes.POINTER(_Options), u32, handle],
        "fl_leave": [p, u32],
        "fl_members": [p, ctypes.POINTER(u16), size, ctypes.POINTER(size)],
        "fl_find_node": [p, text, u32, ctypes.POINTER(u16)],
        "fl_barrier": [p, text, ctypes.POINTER(u16), size, u32],
        "fl_malloc": [p, u16, u64, u32, u32, handle],
        "fl_map": [p, text, u32, u32, handle],
        "fl_unmap": [p],
        "fl_free": [p, u32],
        "fl_publish": [p, text, u32],
        "fl_unpublish": [p, text, u32],
        "fl_read": [p, u64, p, size, u32],
        "fl_write": [p, u64, p, size, u32],
        "fl_memset": [p, u64, u64, byte, u32],
        "fl_fetch_add": [p, u64, u64, u32, ctypes.POINTER(u64)],
        "fl_compare_swap": [p, u64, u64, u64, u32, ctypes.POINTER(u64)],
        "fl_call": [p, u16, u32, p, size, p, size, ctypes.POINTER(size), u32],
        "fl_register": [p, u32, size, size, handle],
        "fl_unregister": [p],
        "fl_receive": [p, u32, handle],
        "fl_request_copy": [p, p, size, ctypes.POINTER(size)],
        "fl_reply": [p, p, size, u32],
        "fl_reject": [p],
    }
    for name, arguments in statuses.items():
        function = getattr(library, name)
        function.argtypes, function.restype, function.errcheck = arguments, ctypes.c_int, _check
    for name, result in {"fl_node_id": u16, "fl_region_len": u64, "fl_region_node": u16, "fl_request_from": u16,
                         "fl_request_len": size}.items():
        function = getattr(library, name)
        function.argtypes, function.restype = [p], result
    library.fl_last_error.argtypes, library.fl_last_error.restype = [], text
    return library


def _check(status, function, arguments):
    if status != 0:
        # The text is kept by thread, and ctypes stays on this thread.
        raise _ERRORS.get(status, Error)(_library.fl_last_error().decode())
    return status


_library = _load()


def _ms(timeout):
    return min(max(0, int(timeout * 1000)), 0xFFFFFFFF)


def _bytes(data):
    """Returns a pointer to bytes and their number; the caller must keep the object during the call."""
    view = memoryview(data).cast("B")
    if view.readonly:
        return bytes(view), len(view)
    return (ctypes.c_char * len(view)).from_buffer(view), len(view)


class _Handle:
    """A handle of the library, which is given back once.

    Threads may use and close it at the same time: the library takes a handle back once, and refuses it afterwards.
    """

    def __init__(self, raw):
        self._raw = raw

    @property
    def _handle(self):
        raw = self._raw
        if raw is None:
            raise Closed(f"the {type(self).__name__.lower()} is closed")  # noqa: F821 - made above
        return raw

    def _take(self):
        raw = self._handle
        self._raw = None
        return raw

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        # This may run while the interpreter ends.
        if getattr(self, "_raw", None) is not None:
            self._abandon()


def join(key_file, name, manager=None, nic=None, device=None, address=None, fabric_socket=None, memory=0,
         timeout=DEFAULT_TIMEOUT):
    """Joins a cluster and returns a `Node`.

    manager: the manager's address, host:port (127.0.0.1:18500). key_file: the file with the cluster key. name: of the
    node. nic: "ibverbs" (the default) or "softroce". device, address: for ibverbs, the RDMA device and the IP address of
    its port (the first). fabric_socket: for softroce. memory: bytes that this process gives to the cluster (64 MiB).
    """
    texts = {"manager": manager, "key_file": key_file, "name": name, "nic": nic, "device": device, "address": address,
             "fabric_socket": fabric_socket}
    options = _Options(memory=memory)
    for field, text in texts.items():
        setattr(options, field, None if text is None else os.fsencode(text))
    raw = ctypes.c_void_p()
    _library.fl_join(options, _ms(timeout), raw)
    return Node(raw)


class Node(_Handle):
    """This process as a member of a cluster. Leaves at the end of a `with` block."""

    def close(self, timeout=DEFAULT_TIMEOUT):
        """Leaves the cluster; calls that wait in other threads end with `LinkDown`.

        Waits for requests that were received and not replied to, and for operations under way; `Deadline` says that some
        were cut off. The node has left all the same.
        """
        if self._raw is not None:
            _library.fl_leave(self._take(), _ms(timeout))

    def _abandon(self):
        self.close(timeout=0)

    @property
    def id(self):
        """The number of this node in the cluster."""
        return _library.fl_node_id(self._handle)

    def members(self):
        """The numbers of the live members, this node included, ascending."""
        count = ctypes.c_size_t(16)
        while True:
            room = count.value
            ids = (ctypes.c_uint16 * room)()
            _library.fl_members(self._handle, ids, room, count)
            if count.value <= room:
                return list(ids[:count.value])

    def find(self, name, timeout=DEFAULT_TIMEOUT):
        """Returns the number of the member with that name; waits until there is one."""
        found = ctypes.c_uint16()
        _library.fl_find_node(self._handle, name.encode(), _ms(timeout), found)
        return found.value

    def malloc(self, home, length, permissions=ALL, timeout=DEFAULT_TIMEOUT):
        """Allocates zeroed bytes on the node `home` and returns a `Region`, which the end of a `with` block frees."""
        raw = ctypes.c_void_p()
        _library.fl_malloc(self._handle, home, length, permissions, _ms(timeout), raw)
        return Region(raw, owned=True)

    def map(self, name, permissions=READ | WRITE, timeout=DEFAULT_TIMEOUT):
        """Waits until a region is published as `name`, maps it and returns a `Region`."""
        raw = ctypes.c_void_p()
        _library.fl_map(self._handle, name.encode(), permissions, _ms(timeout), raw)
        return Region(raw, owned=False)

    def unpublish(self, name, timeout=DEFAULT_TIMEOUT):
        """Frees a name under which this node has published a region."""
        _library.fl_unpublish(self._handle, name.encode(), _ms(timeout))

    def call(self, target, function, request=b"", max_reply=4096, timeout=DEFAULT_TIMEOUT):
        """Calls a function of the node `target`, which runs at most once, and returns the reply."""
        data, length = _bytes(request)
        reply, reply_length = ctypes.create_string_buffer(max(max_reply, 1)), ctypes.c_size_t()
        _library.fl_call(self._handle, target, function, data, length, reply, max_reply, reply_length, _ms(timeout))
        return reply.raw[:reply_length.value]

    def register(self, function, max_request=1 << 20, queue=256):
        """Registers a function of this node and returns a `Function`."""
        raw = ctypes.c_void_p()
        _library.fl_register(self._handle, function, max_request, queue, raw)
        return Function(raw)

    def barrier(self, name, group, timeout=DEFAULT_TIMEOUT):
        """Waits until each node of the group, this one included, waits at the barrier `name`."""
        ids = (ctypes.c_uint16 * len(group))(*group)
        _library.fl_barrier(self._handle, name.encode(), ids, len(group), _ms(timeout))


class Region(_Handle):
    """Memory of a node. A `with` block ends with `free` if it was allocated here, with `unmap` if it was mapped."""

    def __init__(self, raw, owned):
        super().__init__(raw)
        self._owned = owned

    def __len__(self):
        return _library.fl_region_len(self._handle)

    @property
    def node(self):
        """The node that has the memory."""
        return _library.fl_region_node(self._handle)

    def read(self, offset, length, timeout=DEFAULT_TIMEOUT):
        """Reads bytes."""
        if not 0 <= length <= len(self):
            raise OutOfBounds("out of the region's bounds")  # noqa: F821 - made above
        into = ctypes.create_string_buffer(max(length, 1))
        _library.fl_read(self._handle, offset, into, length, _ms(timeout))
        return into.raw[:length]

    def write(self, offset, data, timeout=DEFAULT_TIMEOUT):
        """Writes bytes, or another object with the buffer interface."""
        data, length = _bytes(data)
        _library.fl_write(self._handle, offset, data, length, _ms(timeout))

    def memset(self, offset, length, byte, timeout=DEFAULT_TIMEOUT):
        """Sets bytes to one value. The region's node does it."""
        _library.fl_memset(self._handle, offset, length, byte, _ms(timeout))

    def fetch_add(self, offset, add, timeout=DEFAULT_TIMEOUT):
        """Adds to the 8 bytes at `offset`, modulo 2**64, in one step, and returns the value before."""
        before = ctypes.c_uint64()
        _library.fl_fetch_add(self._handle, offset, add, _ms(timeout), before)
        return before.value

    def compare_swap(self, offset, compare, swap, timeout=DEFAULT_TIMEOUT):
        """Stores `swap` in the 8 bytes at `offset` if they hold `compare`, in one step, and returns the value before."""
        before = ctypes.c_uint64()
        _library.fl_compare_swap(self._handle, offset, compare, swap, _ms(timeout), before)
        return before.value

    def publish(self, name, timeout=DEFAULT_TIMEOUT):
        """Publishes the region for other nodes to map. Needs the right ADMIN."""
        _library.fl_publish(self._handle, name.encode(), _ms(timeout))

    def free(self, timeout=DEFAULT_TIMEOUT):
        """Frees the region: no node can reach it any more. Needs the right ADMIN."""
        _library.fl_free(self._take(), _ms(timeout))

    def unmap(self):
        """Gives the handle back; the region exists as long as it is published or some node maps it."""
        _library.fl_unmap(self._take())

    def close(self):
        """Frees or unmaps the region, as the end of a `with` block does."""
        if self._raw is not None:
            self.free() if self._owned else self.unmap()

    def _abandon(self):
        self.unmap()


class Function(_Handle):
    """A function that this node serves."""

    def receive(self, timeout=DEFAULT_TIMEOUT):
        """Waits for the next `Request` and returns it."""
        raw = ctypes.c_void_p()
        _library.fl_receive(self._handle, _ms(timeout), raw)
        return Request(raw)

    def close(self):
        """Ends the function."""
        if self._raw is not None:
            _library.fl_unregister(self._take())

    _abandon = close


class Request(_Handle):
    """A call that waits for its reply. A `with` block that ends without a reply rejects the call."""

    @property
    def sender(self):
        """The node that called."""
        return _library.fl_request_from(self._handle)

    @property
    def data(self):
        """The bytes of the request."""
        length = ctypes.c_size_t(_library.fl_request_len(self._handle))
        into = ctypes.create_string_buffer(max(length.value, 1))
        _library.fl_request_copy(self._handle, into, length.value, length)
        return into.raw[:length.value]

    def reply(self, data=b"", timeout=DEFAULT_TIMEOUT):
        """Sends the reply."""
        data, length = _bytes(data)
        _library.fl_reply(self._take(), data, length, _ms(timeout))

    def close(self):
        """Rejects the call, unless it has been replied to: the caller gets `Refused`."""
        if self._raw is not None:
            _library.fl_reject(self._take())

    _abandon = close
