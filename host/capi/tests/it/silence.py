"""A node whose manager is silent: its operations end with `Deadline`, which gives the reason, and go on afterwards.

    silence.py MANAGER KEY_FILE NAME FABRIC_SOCKET

Prints a line after each step. The test makes the manager silent after the first, and lets it answer after the second.
"""

import signal
import sys

import ferrolite

LIMIT = 90
KEPT = b"kept"


def main():
    manager, key_file, name, socket = sys.argv[1:]
    # A thread that never wakes ends the test.
    signal.alarm(LIMIT)
    node = ferrolite.join(key_file, name, manager, "softroce", fabric_socket=socket, timeout=LIMIT)
    number = node.id
    region = node.malloc(number, len(KEPT))
    region.write(0, KEPT)
    print("joined", flush=True)

    while True:
        try:
            region.read(0, len(KEPT), timeout=0.1)
        except ferrolite.Deadline as error:
            # A busy machine may be late, too.
            if "the manager is silent" in str(error):
                break
    print("suspended", flush=True)

    # Waits until the manager answers.
    if region.read(0, len(KEPT), timeout=LIMIT) != KEPT or node.id != number:
        sys.exit("silence: the node has lost its memory or its number")
    node.close()
    print("all is well")


if __name__ == "__main__":
    main()
