"""Checks the dashboard of a manager over HTTPS in Chromium, and its metrics by Python's TLS.

usage: secure.py ADDRESS KEY_FILE CERTIFICATE
Exits with a message if a check fails.
"""

import pathlib
import ssl
import sys
import urllib.error
import urllib.request

from browser import Browser, check, chromedriver


def main():
    origin, key, certificate = "https://" + sys.argv[1], pathlib.Path(sys.argv[2]).read_text().strip(), sys.argv[3]
    trusted = ssl.create_default_context(cafile=certificate)
    with urllib.request.urlopen(origin + "/metrics", context=trusted, timeout=10) as answer:
        check(b"ferrolite_manager_epoch" in answer.read(), "no metrics")
    try:
        urllib.request.urlopen(origin + "/metrics", timeout=10)
        check(False, "a client that does not know the certificate accepts it")
    except urllib.error.URLError as error:
        check("certificate verify failed" in str(error), f"a client is refused for {error}")
    with chromedriver() as driver:
        browser = Browser(driver, trusting=True)
        browser.log_in(origin, key)
        for page in ("/events", "/"):
            browser.open(origin + page)
            browser.become_live()
            protocol = browser.run("return performance.getEntriesByType('navigation')[0].nextHopProtocol")
            check(protocol == "h2", f"{page} comes by {protocol}")
        logout = browser.element("header form button")
        browser.post(f"/element/{logout}/click", {})
        browser.wait(lambda: browser.elements("#key"), "the logout shows no login")
        browser.check_requests(origin)
    print("a login, live pages and a logout over HTTPS")


main()
