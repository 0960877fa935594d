"""Objects that one thread closes while others use them. Every outcome is compared with the one that the module documents.

    handles.py MANAGER KEY_FILE NAME FABRIC_SOCKET
"""

import signal
import sys
import threading
import time

import ferrolite

# The longest time without a step, after which a signal ends the program. A call ends a little earlier, and tells why.
SILENCE = 90
TIMEOUT = 80.0
FUNCTION = 100
ROUNDS = 20
WAITERS = 3


class Waiter(threading.Thread):
    """A thread that makes one call and keeps its outcome."""

    def __init__(self, call, *arguments, **options):
        super().__init__(daemon=True)
        self._make = lambda: call(*arguments, **options)
        self.outcome = None
        self.start()

    def run(self):
        try:
            self.outcome = self._make()
        except Exception as error:  # noqa: BLE001 - compared by the waiting thread
            self.outcome = error

    def until_asleep(self):
        """Waits until the thread sleeps in its call, or has ended."""
        deadline = time.monotonic() + TIMEOUT
        while self.is_alive():
            if self.native_id is not None:
                try:
                    with open(f"/proc/self/task/{self.native_id}/stat", encoding="ascii") as stat:
                        if stat.read().rpartition(")")[2].split()[0] == "S":
                            return
                except FileNotFoundError:
                    return
            if time.monotonic() > deadline:
                sys.exit("handles: a thread neither waits nor ends")
            time.sleep(0.001)

    def end(self):
        self.join(TIMEOUT)
        if self.is_alive():
            sys.exit("handles: a thread does not end")
        return self.outcome


def expect(outcome, what, *allowed):
    signal.alarm(SILENCE)
    if not isinstance(outcome, allowed):
        sys.exit(f"handles: {what}: {outcome!r}")


def close_while_receiving(node):
    for _ in range(ROUNDS):
        function = node.register(FUNCTION)
        waiters = [Waiter(function.receive, timeout=TIMEOUT) for _ in range(WAITERS)]
        for waiter in waiters:
            waiter.until_asleep()
        function.close()
        for waiter in waiters:
            expect(waiter.end(), "receive while closing", ferrolite.NoSuchFunction, ferrolite.Closed)
        try:
            function.receive()
        except ferrolite.Closed:
            pass
        else:
            sys.exit("handles: a closed function receives")


def read_while_replying(node):
    """The bytes of a request are complete, or it is closed: they are never those of another object."""
    payload = bytes(range(256)) * 16
    with node.register(FUNCTION) as function:
        for _ in range(ROUNDS):
            caller = Waiter(node.call, node.id, FUNCTION, payload, timeout=TIMEOUT)
            request = function.receive(timeout=TIMEOUT)

            def read(request=request):
                while True:
                    data = request.data
                    if data != payload:
                        return data

            readers = [Waiter(read) for _ in range(WAITERS)]
            request.reply(b"done")
            for reader in readers:
                expect(reader.end(), "reading while replying", ferrolite.Closed)
            if caller.end() != b"done":
                sys.exit(f"handles: the call: {caller.outcome!r}")


def close_at_once(node):
    """Several threads close one region: one does, the others find it closed."""
    for _ in range(ROUNDS):
        region = node.malloc(node.id, 4096, timeout=TIMEOUT)
        start = threading.Barrier(WAITERS)

        def close(region=region, start=start):
            start.wait(TIMEOUT)
            region.close()

        for waiter in [Waiter(close) for _ in range(WAITERS)]:
            expect(waiter.end(), "closing at once", type(None), ferrolite.Closed)


def leave_while_used(node):
    function = node.register(FUNCTION)
    region = node.malloc(node.id, 4096, timeout=TIMEOUT)
    waiters = [
        Waiter(node.find, "nobody", timeout=TIMEOUT),
        Waiter(function.receive, timeout=TIMEOUT),
        Waiter(node.map, "never", timeout=TIMEOUT),
    ]
    for waiter in waiters:
        waiter.until_asleep()
    node.close()
    for waiter in waiters:
        expect(waiter.end(), "waiting while the node leaves", ferrolite.LinkDown, ferrolite.Closed)
    try:
        region.read(0, 8)
    except ferrolite.LinkDown:
        pass
    else:
        sys.exit("handles: a region of a node that has left is read")
    region.unmap()
    function.close()


def main():
    manager, key_file, name, socket = sys.argv[1:]
    # A thread that never wakes ends the test.
    signal.alarm(SILENCE)
    node = ferrolite.join(key_file, name, manager, "softroce", fabric_socket=socket, timeout=TIMEOUT)
    close_while_receiving(node)
    read_while_replying(node)
    close_at_once(node)
    leave_while_used(node)
    print("all is well")


if __name__ == "__main__":
    main()
