// Keeps the page up to date: the server sends it again when something has changed, and each part that differs
// takes the place of the former one. All text was escaped by the server's templates.
"use strict";
(() => {
  const status = document.getElementById("live");
  if (!status || !window.EventSource) return;

  const show = (word) => {
    status.textContent = word;
    status.className = "live " + word;
  };

  const replace = (former, fresh) => {
    if (former.isEqualNode(fresh)) return;
    const focused = former.contains(document.activeElement) ? document.activeElement : null;
    const href = focused && focused.getAttribute("href");
    const scrolls = [...former.querySelectorAll(".scroll")].map((box) => [box.scrollLeft, box.scrollTop]);
    const copy = document.importNode(fresh, true);
    former.replaceWith(copy);
    copy.querySelectorAll(".scroll").forEach((box, index) => {
      if (scrolls[index]) [box.scrollLeft, box.scrollTop] = scrolls[index];
    });
    const again = href && [...copy.querySelectorAll("a")].find((link) => link.getAttribute("href") === href);
    if (again) again.focus({ preventScroll: true });
  };

  const source = new EventSource("/live?path=" + encodeURIComponent(location.pathname));
  source.onopen = () => show("live");
  source.onerror = () => show("offline");
  source.onmessage = (event) => {
    const page = new DOMParser().parseFromString(event.data, "text/html");
    for (const fresh of page.querySelectorAll("[data-live]")) {
      const former = document.getElementById(fresh.id);
      if (former) replace(former, fresh);
    }
  };
  addEventListener("pagehide", () => source.close());
})();
