// Live regions, keys, and copy buttons. Pages work without it.
"use strict";
(() => {
  const body = document.body, mount = body.dataset.mount || "/console";
  const say = (text) => {
    const line = document.getElementById("connection");
    if (!line) return;
    line.textContent = text;
    line.hidden = !text;
    body.classList.toggle("stale", Boolean(text));
  };
  let source = null, paused = false, seen = new Date();
  const stop = () => { if (source) source.close(); source = null; };
  const start = () => {
    if (source || paused || !body.dataset.livePath) return;
    source = new EventSource(mount + "/live?page=" + encodeURIComponent(body.dataset.livePath));
    source.addEventListener("regions", (event) => {
      seen = new Date();
      say("");
      for (const [name, html] of Object.entries(JSON.parse(event.data))) {
        const region = document.querySelector('[data-live="' + CSS.escape(name) + '"]');
        if (!region) continue;
        const open = [...region.querySelectorAll("details")].map((each) => each.open);
        region.innerHTML = html;
        region.querySelectorAll("details").forEach((each, at) => { each.open = Boolean(open[at]); });
      }
      offerCopies();
    });
    source.addEventListener("expired", () => { stop(); location.reload(); });
    source.onerror = () => say("As of " + seen.toISOString().slice(11, 19) + " UTC. Reconnecting …");
  };
  document.addEventListener("visibilitychange", () => { if (document.hidden) stop(); else start(); });
  const offerCopies = () => document.querySelectorAll("[data-copy][hidden]").forEach((each) => {
    if (navigator.clipboard) each.hidden = false;
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  });
  let going = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) {
      if (event.ctrlKey && event.key === "Enter" && event.target.form) event.target.form.requestSubmit();
      return;
    }
    if (event.target.closest("input, textarea, select")) return;
    if (going) {
      going = false;
      const link = document.querySelector('[data-key="' + CSS.escape(event.key) + '"]');
      if (link) location.assign(link.href);
    } else if (event.key === "g") going = true;
    else if (event.key === "/") {
      const field = document.querySelector(".filter input");
      if (field) { event.preventDefault(); field.focus(); }
    } else if (event.key === "p") {
      paused = !paused;
      if (paused) { stop(); say("Paused. Press p to resume."); } else { say(""); start(); }
    }
  });
  // A link of `snowmelt console` carries its code behind #, which no log has.
  const code = document.getElementById("login-code");
  if (code && location.hash.length > 1) {
    code.value = decodeURIComponent(location.hash.slice(1));
    history.replaceState(null, "", location.pathname + location.search);
    code.form.requestSubmit();
  }
  offerCopies();
  start();
})();
