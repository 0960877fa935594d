"""Three members of etcd, two managers and three nodes, and the failures that they must survive; or one member
of etcd, two managers and an appliance that runs already.

    check.py CONFIG

CONFIG is a JSON object with the paths of the programs, the sockets of the fabric, and a directory. Each check
prints a line. Durations are printed and decide nothing.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

CONFIG = json.load(open(sys.argv[1]))
WORK = CONFIG["work"]
KEY = CONFIG.get("key", os.path.join(WORK, "cluster.key"))
# The longest wait for anything.
LIMIT = 120
LEASE_MS = 10_000
NODES = [f"host{n}" for n in range(3)]
PROCESSES = []


def say(text):
    print(f"[{time.monotonic() - START:8.3f}] {text}", flush=True)


START = time.monotonic()


def path(name):
    return os.path.join(WORK, name)


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def until(what, holds):
    """Waits until `holds` returns something true, and returns it."""
    deadline = time.monotonic() + LIMIT
    while True:
        found = holds()
        if found:
            return found
        if time.monotonic() > deadline:
            raise SystemExit(f"not in {LIMIT} s: {what}")
        time.sleep(0.05)


def start(name, words, env=None):
    log = open(path(f"{name}.log"), "ab")
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
    PROCESSES.append(process)
    return process


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def said(name):
    with open(path(f"{name}.log"), encoding="utf-8", errors="replace") as log:
        return log.read()


class Relay:
    """A relay on loopback. While it is cut, no byte passes it, its connections stay open, and new ones get no
    answer."""

    def __init__(self, port):
        self.target = port
        self.cut = threading.Event()
        self.whole = threading.Event()
        self.whole.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            near, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(near,), daemon=True).start()

    def serve(self, near):
        self.whole.wait()
        try:
            far = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            near.close()
            return
        for source, sink in [(near, far), (far, near)]:
            threading.Thread(target=self.copy, args=(source, sink), daemon=True).start()

    def copy(self, source, sink):
        try:
            while data := source.recv(65536):
                self.whole.wait()
                sink.sendall(data)
        except OSError:
            pass
        self.whole.wait()
        for sock in (source, sink):
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def set_cut(self, cut):
        if cut:
            self.whole.clear()
        else:
            self.whole.set()


class Etcd:
    """A member of etcd."""

    def __init__(self, number, peers):
        self.number = number
        self.peers = peers
        self.port = free_port()
        self.process = None

    def start(self):
        name = f"etcd{self.number}"
        client = f"http://127.0.0.1:{self.port}"
        peer = f"http://127.0.0.1:{self.peers[self.number]}"
        cluster = ",".join(f"etcd{n}=http://127.0.0.1:{port}" for n, port in enumerate(self.peers))
        words = [CONFIG["etcd"], "--name", name, "--data-dir", path(name)]
        words += ["--listen-client-urls", client, "--advertise-client-urls", client]
        words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        words += ["--initial-cluster", cluster, "--initial-cluster-state", "new"]
        env = dict(os.environ, LD_LIBRARY_PATH=CONFIG["etcd_libraries"])
        self.process = start(name, words, env)


class Manager:
    """A manager. It reaches etcd through relays, and nodes and clients reach it through another one."""

    def __init__(self, number, members):
        self.name = f"manager{number}"
        self.port = free_port()
        self.relay = Relay(self.port)
        self.address = f"127.0.0.1:{self.relay.port}"
        self.to_etcd = [Relay(member.port) for member in members]
        self.process = None

    def start(self):
        urls = ",".join(f"http://127.0.0.1:{relay.port}" for relay in self.to_etcd)
        words = [CONFIG["ferrolite"], "manager", "run", "--listen", f"127.0.0.1:{self.port}"]
        words += ["--state", path(self.name), "--key-file", KEY]
        words += ["--lease-ms", str(LEASE_MS), "--etcd", urls, "--advertise", self.address]
        self.process = start(self.name, words)

    def cut_from_etcd(self, cut):
        for relay in self.to_etcd:
            relay.set_cut(cut)

    def answer(self):
        """What a client hears of this manager alone: `leads`, or the reason why not."""
        words = [CONFIG["ferrolite"], "node", "ls", "--manager", f"127.0.0.1:{self.port}"]
        words += ["--key-file", path("cluster.key"), "--json", path("answer.json")]
        done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT)
        return done


def ferrolite(*words, managers, timeout=LIMIT):
    addresses = ",".join(manager.address for manager in managers)
    command = [CONFIG["ferrolite"], *words, "--manager", addresses, "--key-file", KEY]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def expect(what, holds, details=""):
    if not holds:
        raise SystemExit(f"not so: {what} {details}")
    say(f"ok: {what}")


class Cluster:
    def __init__(self):
        peers = [free_port() for _ in range(3)]
        self.members = [Etcd(number, peers) for number in range(3)]
        for member in self.members:
            member.start()
        made = subprocess.run([CONFIG["ferrolite"], "key", "make", "--key-file", path("cluster.key")],
                              capture_output=True, text=True)
        if made.returncode:
            raise SystemExit(made.stderr)
        self.managers = [Manager(number, self.members) for number in range(2)]
        for manager in self.managers:
            manager.start()
        self.nodes = []
        addresses = ",".join(manager.address for manager in self.managers)
        for number, name in enumerate(NODES):
            words = [CONFIG["lite_node"], "--manager", addresses, "--key-file", path("cluster.key")]
            words += ["--name", name, "--nic", "softroce", "--memory", "96M", "--cpus", "1"]
            words += ["--fabric-socket", CONFIG["fabric"][number]]
            self.nodes.append(start(name, words))
        self.jobs = 0

    def leader(self):
        """Returns the leader and the standby, by the key in etcd, once there is a leader."""
        def look():
            value = self.etcdctl("get", "/ferrolite/leader", "--print-value-only")
            for manager, other in (self.managers, self.managers[::-1]):
                if value.startswith(manager.address + " "):
                    return manager, other
            return None
        return until("a manager leads", look)

    def etcdctl(self, *words):
        ends = ",".join(f"http://127.0.0.1:{member.port}" for member in self.members)
        env = dict(os.environ, ETCDCTL_API="3", LD_LIBRARY_PATH=CONFIG["etcd_libraries"])
        done = subprocess.run([CONFIG["etcdctl"], "--endpoints", ends, "--dial-timeout=2s", *words],
                              capture_output=True, text=True, env=env, timeout=LIMIT)
        return done.stdout.strip()

    def ready(self):
        """Waits until all nodes are connected, and returns their incarnations."""
        def look():
            done = ferrolite("node", "ls", "--json", path("nodes.json"), managers=self.managers)
            if done.returncode:
                return None
            nodes = json.load(open(path("nodes.json")))["nodes"]
            states = {node["name"]: node["state"] for node in nodes}
            if sorted(states) == NODES and set(states.values()) == {"ready"}:
                return {node["name"]: node["incarnation"] for node in nodes}
            return None
        return until("all nodes are ready", look)

    def submission(self, text):
        self.jobs += 1
        output = path(f"out{self.jobs}")
        words = ["job", "submit", "--app", "wordcount", "--input", text, "--output", output]
        return words, output

    def submit(self, text):
        """Starts a client that runs a job, and returns it with its output."""
        words, output = self.submission(text)
        addresses = ",".join(manager.address for manager in self.managers)
        command = [CONFIG["ferrolite"], *words, "--manager", addresses, "--key-file", KEY]
        log = path(f"job{self.jobs}.log")
        client = subprocess.Popen(command, stdout=open(log, "wb"), stderr=subprocess.STDOUT)
        PROCESSES.append(client)
        return client, output, log

    def finish(self, what, job, expected):
        client, output, log = job
        status = client.wait(timeout=600)
        same = status == 0 and open(output, "rb").read() == open(expected, "rb").read()
        expect(what, same, open(log).read())

    def failover(self, what, since, expected):
        """Submits a small job until it is accepted, and waits until it is done. Prints both times since a
        failure."""
        small, result = expected
        tries = 0
        while True:
            tries += 1
            job = self.submit(small)
            client, output, log = job
            accepted = None
            while client.poll() is None:
                text = open(log).read()
                if not accepted and (" waits: " in text or " runs on " in text):
                    accepted = time.monotonic() - since
                time.sleep(0.02)
            done = time.monotonic() - since
            if client.returncode == 0:
                break
            if done > LIMIT:
                raise SystemExit(f"no job after {what}: {open(log).read()}")
        same = open(output, "rb").read() == open(result, "rb").read()
        expect(f"{what}: the next job was accepted after {accepted or done:.2f} s and done after {done:.2f} s "
               f"({tries} tries)", same)


def running(job):
    """Waits until a client knows that its job is accepted: until then, it may lose the job."""
    _, _, log = job
    until("a job runs", lambda: " runs on " in open(log).read())


def check():
    cluster = Cluster()
    large, small = (CONFIG["large"], CONFIG["large_counts"]), (CONFIG["small"], CONFIG["small_counts"])
    before = cluster.ready()
    say(f"three nodes are ready: {before}")
    leader, standby = cluster.leader()
    done = standby.answer()
    expect("a client of the standby goes to the leader", done.returncode == 0, done.stderr)

    # The leader is killed while a job runs and another one waits.
    job = cluster.submit(large[0])
    running(job)
    waiting = cluster.submit(small[0])
    kill(leader.process)
    since = time.monotonic()
    cluster.failover("kill -9 of the leader", since, small)
    cluster.finish("the job that ran has its whole output", job, large[1])
    cluster.finish("the job that waited has its whole output", waiting, small[1])
    expect("no node has joined again", cluster.ready() == before)
    leader.start()
    until("the killed manager is a standby", lambda: "is a standby; the leader is" in said(leader.name))

    # The leader is stopped for three leases of a node, and goes on.
    leader, standby = cluster.leader()
    job = cluster.submit(large[0])
    running(job)
    leader.process.send_signal(signal.SIGSTOP)
    since = time.monotonic()
    cluster.failover("SIGSTOP of the leader", since, small)
    time.sleep(max(0, 3 * LEASE_MS / 1000 - (time.monotonic() - since)))
    now, _ = cluster.leader()
    expect("the other manager leads", now is standby)
    size = len(said(leader.name))
    leader.process.send_signal(signal.SIGCONT)
    until("the stopped manager does not act", lambda: "is a standby; the leader is" in said(leader.name)[size:])
    expect("it has told nobody a death", "is gone" not in said(leader.name)[size:], said(leader.name)[size:])
    cluster.finish("the job that ran has its whole output", job, large[1])
    expect("no node has joined again", cluster.ready() == before)

    # The leader is cut off from etcd, but not from the nodes.
    leader, standby = cluster.leader()
    job = cluster.submit(large[0])
    running(job)
    leader.cut_from_etcd(True)
    since = time.monotonic()
    cluster.failover("a partition of the leader from etcd", since, small)
    now, _ = cluster.leader()
    expect("the other manager leads", now is standby)
    expect("the former leader has paused", "pauses, because" in said(leader.name), said(leader.name))
    leader.cut_from_etcd(False)
    cluster.finish("the job that ran has its whole output", job, large[1])
    expect("no node has joined again", cluster.ready() == before)

    # The leader is cut off from the nodes, but not from etcd, for less than their lease.
    leader, _ = cluster.leader()
    job = cluster.submit(large[0])
    running(job)
    leader.relay.set_cut(True)
    time.sleep(LEASE_MS / 1000 / 2)
    leader.relay.set_cut(False)
    now, _ = cluster.leader()
    expect("the manager that nodes do not reach leads on", now is leader)
    cluster.finish("the job that ran has its whole output", job, large[1])
    expect("no node has joined again", cluster.ready() == before)

    # One member of etcd is killed, then a second one.
    kill(cluster.members[0].process)
    since = time.monotonic()
    cluster.failover("kill -9 of a member of etcd", since, small)
    cluster.members[0].start()
    expect("no node has joined again", cluster.ready() == before)
    job = cluster.submit(large[0])
    running(job)
    for member in cluster.members[:2]:
        kill(member.process)
    words, _ = cluster.submission(small[0])

    def refused():
        done = ferrolite(*words, managers=cluster.managers)
        return done.returncode == 3 and "etcd" in done.stderr and done.stderr.strip().splitlines()[-1]
    line = until("without a quorum of etcd, a job is refused", refused)
    say(f"ok: without a quorum of etcd, a job is refused: {line}")
    expect("the nodes live", all(node.poll() is None for node in cluster.nodes))
    for member in cluster.members[:2]:
        member.start()
    cluster.finish("the job that ran has its whole output", job, large[1])
    expect("no node has joined again", cluster.ready() == before)

    # A leader that ends in good order hands over.
    leader, standby = cluster.leader()
    since = time.monotonic()
    leader.process.send_signal(signal.SIGTERM)
    cluster.failover("SIGTERM of the leader", since, small)
    expect("it has ended well", leader.process.wait(timeout=LIMIT) == 0, said(leader.name))
    expect("no node has joined again", cluster.ready() == before)
    done = ferrolite("cluster", "backup", path("backup"), managers=cluster.managers)
    expect("a backup is made of the leader's state", done.returncode == 0, done.stderr)
    done = ferrolite("cluster", "shutdown", managers=cluster.managers)
    expect("the cluster shuts down", done.returncode == 0, done.stderr)
    for node in cluster.nodes:
        expect("a node has left", node.wait(timeout=LIMIT) == 0)
    restore(cluster)
    secure()


def restore(cluster):
    """Replaces the state in etcd by a backup."""
    leader, _ = cluster.leader()
    url = f"http://127.0.0.1:{cluster.members[0].port}"
    words = [CONFIG["ferrolite"], "cluster", "restore", path("backup"), "--state", path("unused")]
    words += ["--key-file", path("cluster.key"), "--etcd", url]

    def run(*more):
        return subprocess.run([*words, *more], capture_output=True, text=True, timeout=LIMIT)
    done = run("--force")
    expect("no state is replaced while a manager leads", "stop all managers first" in done.stderr, done.stderr)
    leader.process.send_signal(signal.SIGTERM)
    leader.process.wait(timeout=LIMIT)
    done = run()
    expect("no state is replaced without --force", "--force replaces it" in done.stderr, done.stderr)
    done = run("--force")
    expect("the state is replaced", done.returncode == 0, done.stderr)
    # The new process continues the log of the former one.
    former = len(said(leader.name))
    leader.start()
    until("a manager leads", lambda: "leads in term" in said(leader.name)[former:])
    done = ferrolite("job", "ls", "--all", managers=[leader])
    expect("the history is that of the backup", "wordcount" in done.stdout, done.stdout + done.stderr)
    leader.process.send_signal(signal.SIGTERM)
    leader.process.wait(timeout=LIMIT)


def secure():
    """A manager proves itself to etcd by a certificate, and does not talk to another etcd."""
    def openssl(*words):
        done = subprocess.run(["openssl", *words], capture_output=True, text=True, cwd=WORK)
        if done.returncode:
            raise SystemExit(done.stderr)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for authority in ("ca", "other"):
        openssl("req", "-x509", *key, "-days", "2", "-subj", f"/CN={authority}", "-keyout", f"{authority}.key",
                "-out", f"{authority}.pem")
    with open(path("names"), "w") as names:
        names.write("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    for name in ("server", "client"):
        openssl("req", *key, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-extfile", "names", "-out", f"{name}.pem")
    os.chmod(path("client.key"), 0o600)
    url, peer = f"https://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    words = [CONFIG["etcd"], "--data-dir", path("secure"), "--listen-client-urls", url]
    words += ["--advertise-client-urls", url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    words += ["--initial-cluster", f"default={peer}", "--cert-file", path("server.pem")]
    words += ["--key-file", path("server.key"), "--client-cert-auth", "--trusted-ca-file", path("ca.pem")]
    start("secure-etcd", words, dict(os.environ, LD_LIBRARY_PATH=CONFIG["etcd_libraries"]))
    trusted = ["--etcd-ca", path("ca.pem")]
    proof = ["--etcd-cert", path("client.pem"), "--etcd-key", path("client.key")]
    for name, more, leads in [
        ("unknown", trusted, False),
        ("misled", ["--etcd-ca", path("other.pem"), *proof], False),
        ("known", [*trusted, *proof], True),
    ]:
        words = [CONFIG["ferrolite"], "manager", "run", "--listen", "127.0.0.1:0", "--state", path(name)]
        manager = start(name, [*words, "--key-file", path("cluster.key"), "--etcd", url, *more])
        if leads:
            until("the manager with the right files leads", lambda: "leads in term" in said(name))
        else:
            until("etcd is refused, or refuses", lambda: said(name).count("this manager is a standby; etcd") > 0)
            time.sleep(3)
            expect(f"the manager {name} does not lead", "leads in term" not in said(name))
        manager.send_signal(signal.SIGTERM)
        expect(f"the manager {name} ends well", manager.wait(timeout=LIMIT) == 0, said(name))


def appliance():
    """An appliance that was given the ports of two managers finds the leader, leaves one that is stopped, and
    finds the next one when a leader is killed."""
    peers = [free_port()]
    member = Etcd(0, peers)
    member.start()
    managers = []
    for number, port in enumerate(CONFIG["ports"]):
        manager = Manager(number, [member])
        manager.port, manager.address = port, f"127.0.0.1:{port}"
        managers.append(manager)
    # The one that the appliance asks first is the standby.
    first, second = managers
    second.start()
    until("the second manager leads", lambda: "leads in term" in said(second.name))
    first.start()
    until("the appliance joins", lambda: ") joined from " in said(second.name))
    expect("the appliance has joined at the leader, which it was given last", " joined" not in said(first.name))
    # The line comes before the welcome; a heartbeat comes behind it.
    time.sleep(LEASE_MS / 1000 / 2)
    second.process.send_signal(signal.SIGSTOP)
    since = time.monotonic()
    until("the appliance resumes with the next leader", lambda: " resumes from " in said(first.name))
    say(f"ok: SIGSTOP: the appliance has resumed after {time.monotonic() - since:.2f} s")
    second.process.send_signal(signal.SIGCONT)
    until("the stopped manager is a standby", lambda: "the leader is 127.0.0.1:" in said(second.name))
    size = len(said(second.name))
    kill(first.process)
    since = time.monotonic()
    until("the appliance resumes", lambda: " resumes from " in said(second.name)[size:])
    say(f"ok: kill -9: the appliance has resumed after {time.monotonic() - since:.2f} s")
    done = ferrolite("cluster", "shutdown", managers=managers)
    expect("the cluster shuts down", done.returncode == 0, done.stderr)


def main():
    try:
        appliance() if "ports" in CONFIG else check()
    finally:
        for process in PROCESSES:
            if process.poll() is None:
                process.kill()
                process.wait()


main()
