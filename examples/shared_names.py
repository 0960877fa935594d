"""Named memory and calls from Python: a process joins a cluster as a node.

    cargo run -q -p examples -- python3 examples/shared_names.py

`local-cluster`, which the command runs, starts a manager and two nodes, and passes their addresses in
environment variables. The module ferrolite.py describes each method. Every method that can fail raises a
subclass of ferrolite.Error.
"""

import os
import threading

import ferrolite

SHOUT = 7  # The number of a function. Each node may give it a meaning of its own.


def serve(function):
    """Serves one call: replies with the request in capitals."""
    with function.receive() as request:
        request.reply(request.data.upper())


def main():
    # Joins as the node `python-program`, with an RNIC in software. On a machine with an RDMA card, or with
    # Linux's SoftRoCE, `nic` is "ibverbs" and no fabric is needed.
    with ferrolite.join(
        key_file=os.environ["FERROLITE_KEY"],
        name="python-program",
        manager=os.environ["FERROLITE_MANAGER"],
        nic="softroce",
        fabric_socket=os.environ["FERROLITE_FABRIC"],
    ) as node:
        print("joined: the cluster has", len(node.members()), "members")

        # Allocates 4 KiB of the memory of `node1`, writes to it, and publishes it under a name.
        with node.malloc(node.find("node1"), 4096) as region:
            region.write(0, b"written by its owner")
            region.publish("notes")

            # Any node can map a published region by its name. This mapping may read and do nothing else.
            with node.map("notes", ferrolite.READ) as notes:
                print("read by name:", notes.read(0, 20).decode())
                try:
                    notes.write(0, b"x")
                except ferrolite.PermissionDenied as error:
                    print("refused:", error)
            node.unpublish("notes")

        # Registers a function, and calls it as any node of the cluster could.
        with node.register(SHOUT) as function:
            thread = threading.Thread(target=serve, args=(function,))
            thread.start()
            print("a call returned:", node.call(node.id, SHOUT, b"hello").decode())
            thread.join()


if __name__ == "__main__":
    main()
