"""Lets a real Prometheus scrape a running cluster, and kills the Linux node linux1 of it.

usage: prometheus.py STATUS_JSON ALERTS_YML WORK SECURE CERTIFICATE
SECURE is the address of a second manager with HTTPS and this certificate.
Exits with a message if a check fails.
"""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request

TIME = 60


def check(holds, why):
    if not holds:
        sys.exit(f"prometheus: {why}")


def query(address, text):
    url = f"http://{address}/api/v1/query?" + urllib.parse.urlencode({"query": text})
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)["data"]["result"]


def process_of(name, manager):
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if name.encode() in words and manager.encode() in words and b"lite-node" in words[0]:
            return int(entry.name)
    sys.exit(f"prometheus: no process of {name}")


def main():
    status = json.loads(pathlib.Path(sys.argv[1]).read_text())
    alerts, work = pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3])
    target = status["dashboard"]
    with urllib.request.urlopen(f"http://{target}/metrics", timeout=10) as answer:
        text = answer.read()
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True)
    check(checked.returncode == 0, f"promtool: {checked.stdout.decode()} {checked.stderr.decode()}")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    config = work / "prometheus.yml"
    config.write_text(json.dumps({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(alerts)],
        "scrape_configs": [{"job_name": "ferrolite", "static_configs": [{"targets": [target]}]}, {
            "job_name": "secure", "scheme": "https", "tls_config": {"ca_file": sys.argv[5]},
            "static_configs": [{"targets": [sys.argv[4]]}],
        }],
    }))
    prometheus = subprocess.Popen(
        ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={work / 'data'}", f"--web.listen-address={address}"],
        stdout=subprocess.DEVNULL, stderr=(work / "prometheus.log").open("wb"))
    try:
        time.sleep(TIME)
        up = query(address, f'min_over_time(up{{job="ferrolite"}}[{TIME - 10}s])')
        check([series["value"][1] for series in up] == ["1"], f"up is {up}")
        up = query(address, f'min_over_time(up{{job="secure"}}[{TIME - 10}s])')
        check([series["value"][1] for series in up] == ["1"], f"over HTTPS, up is {up}")
        counts = query(address, 'count({job="ferrolite"})')
        # A function over time drops the names of metrics, so each counter has a query of its own.
        counters = {series["metric"]["__name__"] for series in query(address, '{__name__=~"ferrolite_.*_total"}')}
        check(len(counters) > 10, f"the counters are {counters}")
        for counter in sorted(counters):
            falls = query(address, f"resets({counter}[{TIME}s]) > 0")
            check(not falls, f"{counter} went down: {falls}")
        nodes = query(address, "ferrolite_node_up == 1")
        check(len(nodes) >= 2, f"nodes are up: {nodes}")
        scrape = query(address, "max_over_time(scrape_duration_seconds[50s])")[0]["value"][1]
        print(f"{TIME} s: up, {counts[0]['value'][1]} series, none of {len(counters)} counters went down, longest scrape {scrape} s")
        os.kill(process_of("linux1", status["manager"]), signal.SIGKILL)
        firing, start = [], time.monotonic()
        while not firing:
            check(time.monotonic() - start < 60, "FerroliteNodeDown does not fire")
            time.sleep(0.5)
            firing = query(address, 'ALERTS{alertname="FerroliteNodeDown", alertstate="firing", node="linux1"}')
        print(f"FerroliteNodeDown fires {time.monotonic() - start:.0f} s after the death of a node")
    finally:
        prometheus.kill()


main()
