#!/usr/bin/env python3
"""A process in Python as a node of the cluster: remote memory, atomics, remote procedure calls and a barrier, against nodes
that run the job `echo` (see apps/echo). Every value that comes back is compared with what it must be.

    PYTHONPATH=../python ./demo.py 10.0.0.1:18500 cluster.key demo-py ibverbs=rxe0 node0 node1 node2

With `end` as the last word the nodes end the job afterwards.
"""

import struct
import sys
import threading

import ferrolite

TIMEOUT = 60.0
SIZE = 1 << 20
# The functions of the job `echo`, and one of our own.
ECHO, BARRIER, END, SHOUT = 0x65630001, 0x65630002, 0x65630003, 7


def expect(holds, what):
    if not holds:
        sys.exit(f"demo: wrong: {what}")
    print(what)


def fails(error, what, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except error:
        print(what)
    else:
        sys.exit(f"demo: it went well: {what}")


def use_memory(node, peer):
    with node.malloc(peer, SIZE, timeout=TIMEOUT) as region:
        expect((len(region), region.node) == (SIZE, peer), "1 MiB of another node's memory")
        region.memset(0, SIZE, 0x5A, timeout=TIMEOUT)
        expect(region.read(0, SIZE, timeout=TIMEOUT) == b"\x5a" * SIZE, "remote memset, read back")

        data = bytes((i * 7 + i // 251) % 256 for i in range(SIZE))
        region.write(0, data, timeout=TIMEOUT)
        region.publish("demo-py")
        with node.map("demo-py", ferrolite.READ) as mapped:
            expect(mapped.read(0, SIZE, timeout=TIMEOUT) == data, "written here, read through a mapping by name")
            fails(ferrolite.PermissionDenied, "a mapping to read does not write", mapped.write, 0, b"x")
        fails(ferrolite.OutOfBounds, "no read beyond the end", region.read, SIZE - 4, 8)

        region.write(64, bytearray(8))
        expect(region.fetch_add(64, 40) == 0, "fetch-and-add")
        expect(region.compare_swap(64, 40, 42) == 40, "compare-and-swap")
        node.unpublish("demo-py")
    fails(ferrolite.NoSuchName, "freed, and its name too", node.map, "demo-py", timeout=2)


def use_calls(node, peers):
    for peer in peers:
        expect(node.call(peer, ECHO, b"hello", timeout=TIMEOUT) == b"hello", "a call, echoed")
    fails(ferrolite.NoSuchFunction, "no such function", node.call, peers[0], 12345)

    def serve(function):
        with function.receive(timeout=TIMEOUT) as request:
            request.reply(request.data.upper())

    with node.register(SHOUT) as function:
        thread = threading.Thread(target=serve, args=(function,))
        thread.start()
        expect(node.call(node.id, SHOUT, b"aloud") == b"ALOUD", "a function of our own, called")
        thread.join()


def use_barrier(node, peers):
    group = peers + [node.id]
    for peer in peers:
        node.call(peer, BARRIER, struct.pack(f"<{len(group) + 1}H", len(group), *group) + b"demo-py")
    node.barrier("demo-py", group, timeout=TIMEOUT)
    print("a barrier with all of them")


def main(words):
    end = words[-1:] == ["end"]
    if end:
        words = words[:-1]
    if len(words) < 5:
        sys.exit("usage: demo.py MANAGER KEY_FILE NAME softroce=SOCKET|ibverbs[=DEVICE] PEER... [end]")
    manager, key_file, name, nic, *names = words
    nic, _, detail = nic.partition("=")
    where = {"fabric_socket" if nic == "softroce" else "device": detail or None}
    with ferrolite.join(key_file, name, manager, nic, timeout=TIMEOUT, **where) as node:
        peers = [node.find(name, timeout=TIMEOUT) for name in names]
        expect(set(peers + [node.id]) <= set(node.members()), "joined, with the others there")
        use_memory(node, peers[0])
        use_calls(node, peers)
        use_barrier(node, peers)
        if end:
            for peer in peers:
                node.call(peer, END)
    print("all is well")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ferrolite.Error as error:
        sys.exit(f"demo: {type(error).__name__}: {error}")
