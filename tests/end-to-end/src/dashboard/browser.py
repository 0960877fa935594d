"""Checks the dashboard of a running cluster in Chromium, by WebDriver.

usage: browser.py STATUS_JSON AXE_JS WORK FERROLITE
STATUS_JSON is of `cargo xtask cluster status`, and FERROLITE the program of the host. The cluster has the Linux
nodes linux0, which this kills, and linux1, which runs a job, and a node whose name is NAME. Exits with a message
if a check fails.
"""

import base64
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

NAME = "<script>alert(1)</script>"
PAGES = ["/", "/nodes", "/nodes/node0", "/jobs", "/traffic", "/events"]
LEASE = 5
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]


def check(holds, why):
    if not holds:
        sys.exit(f"browser: {why}")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Browser:
    """A session of chromedriver."""

    def __init__(self, driver, arguments=(), prefs=None, trusting=False):
        self.driver = driver
        options = {"args": FLAGS + list(arguments), "prefs": prefs or {}}
        logs = {"browser": "ALL", "performance": "ALL"}
        always = {"goog:loggingPrefs": logs, "goog:chromeOptions": options, "acceptInsecureCerts": trusting}
        answer = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": always}})
        self.session = "/session/" + answer["sessionId"]

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.driver + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            sys.exit(f"browser: {path}: {error.read().decode()[:500]}")

    def post(self, path, body):
        return self.ask("POST", self.session + path, body)

    def open(self, url):
        self.post("/url", {"url": url})

    def run(self, script, *args):
        return self.post("/execute/sync", {"script": script, "args": list(args)})

    def run_async(self, script):
        return self.post("/execute/async", {"script": script, "args": []})

    def size(self, width, height):
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.post("/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics})

    def element(self, selector):
        return next(iter(self.post("/element", {"using": "css selector", "value": selector}).values()))

    def elements(self, selector):
        return self.post("/elements", {"using": "css selector", "value": selector})

    def log_in(self, origin, key):
        self.open(origin + "/login")
        self.post(f"/element/{self.element('#key')}/value", {"text": key + "\n"})
        self.wait(lambda: len(self.elements("nav a")) == 5, "the login shows no page")

    def become_live(self):
        self.wait(lambda: self.run("return document.getElementById('live').textContent") == "live",
                  "the page does not become live")

    def check_requests(self, origin):
        """Checks that all requests went to the manager, and that the console is empty."""
        urls = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        urls = [m["params"]["request"]["url"] for m in urls if m["method"] == "Network.requestWillBeSent"]
        foreign = [url for url in urls if not url.startswith(origin + "/")]
        check(urls and not foreign, f"requests to elsewhere: {foreign}")
        errors = [entry for entry in self.log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        check(not errors, f"the console says: {errors}")
        print(f"{len(urls)} requests, all to the manager; nothing on the console")

    def log(self, kind):
        return self.post("/se/log", {"type": kind})

    def picture(self, file):
        file.write_bytes(base64.b64decode(self.ask("GET", self.session + "/screenshot")))

    def wait(self, is_so, why, limit=20.0):
        start = time.monotonic()
        while not is_so():
            check(time.monotonic() - start < limit, why)
            time.sleep(0.05)
        return time.monotonic() - start


def state(browser, name):
    script = "const t = [...document.querySelectorAll('[data-node]')].find(t => t.dataset.node === arguments[0]);" \
             "return t ? t.querySelector('.state').textContent : 'absent';"
    return browser.run(script, name)


def process_of(name, manager):
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if name.encode() in words and manager.encode() in words and b"lite-node" in words[0]:
            return int(entry.name)
    sys.exit(f"browser: no process of {name}")


def pages(browser, origin, axe, pictures):
    for width, height in [(1280, 900), (390, 844)]:
        browser.size(width, height)
        for page in PAGES:
            browser.open(origin + page)
            browser.become_live()
            wide = browser.run("return document.documentElement.scrollWidth")
            check(wide <= width, f"{page} is {wide} pixels wide on a screen of {width}")
            browser.run(axe)
            found = browser.run_async(
                "const done = arguments[0]; axe.run().then(r => done(r.violations.map(v => "
                "[v.impact, v.id, v.nodes.map(n => n.html).join(' ').slice(0, 300)])));")
            serious = [v for v in found if v[0] in ("serious", "critical")]
            check(not serious, f"axe finds on {page} at {width}: {serious}")
            name = page.strip("/").replace("/", "-") or "overview"
            browser.picture(pictures / f"{name}-{width}.png")
    print(f"{2 * len(PAGES)} pages: no serious violation (axe), none wider than its screen")


def death(browser, origin, manager):
    browser.open(origin + "/nodes")
    browser.wait(lambda: state(browser, "linux0") == "ready", "linux0 is not ready")
    browser.run("window.mark = 1")
    os.kill(process_of("linux0", manager), signal.SIGKILL)
    took = browser.wait(lambda: state(browser, "linux0") == "silent", "linux0 is not silent", 3.0)
    print(f"the tile of a killed node says silent after {took:.2f} s")
    took = browser.wait(lambda: state(browser, "linux0") == "dead", "linux0 is not dead", LEASE + 10.0)
    print(f"and dead {took:.2f} s later")
    check(browser.run("return window.mark") == 1, "the page was loaded again")


def roles(driver, origin, status, work, program):
    """Checks a job's page: a viewer gets no button and 403, and an administrator's button cancels the job."""
    manager = ["--manager", status["manager"]]

    def ferrolite(key, *words):
        return [program, *words, *manager, "--key-file", str(key)]

    keys = [pathlib.Path(status["key_file"]), work / "root.key", work / "eve.key"]
    for by, key, name, role in [(keys[0], keys[1], "root", "admin"), (keys[1], keys[2], "eve", "viewer")]:
        subprocess.run(ferrolite(by, "user", "add", name, "--role", role, "--output", str(key)), check=True)
    root, eve = Browser(driver), Browser(driver)
    root.log_in(origin, keys[1].read_text().strip())
    eve.log_in(origin, keys[2].read_text().strip())
    root.open(origin + "/jobs")
    root.become_live()
    root.run("window.mark = 1")
    submit = ["job", "submit", "--app", "echo", "--on", "linux1", "--output", str(work / "echo")]
    job = subprocess.Popen(ferrolite(keys[1], *submit), stderr=subprocess.PIPE, text=True)
    try:
        row = "const row = [...document.querySelectorAll('#jobs tbody tr')].find(r => r.textContent.includes('echo'));" \
              "return row ? row.querySelector('a').getAttribute('href') : ''"
        took = root.wait(lambda: root.run(row), "a job does not appear")
        check(root.run("return window.mark") == 1, "the list of jobs was loaded again")
        page = root.run(row)
        print(f"a job appears within {took:.2f} s, without a reload")
        for browser in (root, eve):
            browser.open(origin + page)
            browser.become_live()
            browser.wait(lambda: browser.run("return document.querySelectorAll('#course .legend li').length") > 0,
                         "the job's page has no phases")
        check(len(root.elements("#state button")) == 1, "an administrator has no button")
        check(not eve.elements("#state button"), "a viewer has a button")
        refused = eve.run_async(
            "const done = arguments[0], form = document.querySelector('input[name=form]').value;"
            f"fetch('{page}/cancel', {{method: 'POST', body: new URLSearchParams({{form}})}}).then(r => done(r.status));")
        check(refused == 403, f"a viewer's request is answered with {refused}")
        check(job.poll() is None, "a viewer has ended the job")
        for browser, sees in ((root, True), (eve, False)):
            browser.open(origin + "/events")
            text = browser.run("return document.getElementById('events').textContent")
            check(("user add eve viewer" in text) == sees, f"the events are {text}")
        root.open(origin + page)
        root.post(f"/element/{root.element('#state button')}/click", {})
        root.wait(lambda: root.run("return document.querySelector('#state .state').textContent")
                  in ("failed", "cancelled"), "the button does not cancel the job")
        said = job.communicate(timeout=60)[1]
        check(job.returncode != 0 and "cancelled by root" in said, f"the job ends with {job.returncode}: {said}")
        print("a viewer has no button and gets 403; the administrator's button cancels the job")
    finally:
        job.kill()


@contextlib.contextmanager
def chromedriver():
    """Runs a chromedriver, and returns its address."""
    port = free_port()
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        start = time.monotonic()
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            check(time.monotonic() - start < 60 and driver.poll() is None, "chromedriver does not start")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        driver.kill()


def main():
    status = json.loads(pathlib.Path(sys.argv[1]).read_text())
    axe, pictures = pathlib.Path(sys.argv[2]).read_text(), pathlib.Path(sys.argv[3])
    origin, key = "http://" + status["dashboard"], pathlib.Path(status["key_file"]).read_text().strip()
    with chromedriver() as driver:
        browser = Browser(driver)
        browser.log_in(origin, key)
        browser.open(origin + "/nodes")
        browser.wait(lambda: state(browser, NAME) == "ready", "the node with a strange name is not there")
        text = browser.run("return [...document.querySelectorAll('.tile .name')].map(n => n.textContent)")
        check(NAME in text, f"its name is not text: {text}")
        pages(browser, origin, axe, pictures)
        death(browser, origin, status["manager"])
        browser.check_requests(origin)
        plain = Browser(driver, prefs={"profile.managed_default_content_settings.javascript": 2})
        plain.log_in(origin, key)
        plain.open(origin + "/nodes")
        check(len(plain.elements(".tile")) >= 4, "no tiles without JavaScript")
        print("tiles without JavaScript")
        roles(driver, origin, status, pictures, sys.argv[4])


if __name__ == "__main__":
    main()
