// A live tool in its page: reads the form, asks Python, puts each piece of the answer in its place. Knows no tool by name.
"use strict";
(() => {
  const script = document.currentScript.src;
  const tool = document.querySelector(".tool");
  const find = (selector) => tool.querySelector(selector);
  const form = find(".tool-form");
  const answer = find(".tool-answer");
  const status = find(".tool-status");
  const error = find(".tool-error");
  const line = find(".tool-command code");
  const copy = find("[data-do=copy]");
  const says = JSON.parse(tool.dataset.says);
  const fields = [...form.elements].filter((f) => f.name);

  // ---- Python, started when somebody asks; its worker answers call by call

  const waiting = new Map();
  let worker = null;
  let started = null;
  let calls = 0;
  const call = (name, ...args) => new Promise((resolve, reject) => {
    waiting.set(++calls, { resolve, reject });
    worker.postMessage({ id: calls, call: name, args });
  });
  function start() {
    if (started) return started;
    const { tool: name, lang, wheel, version } = tool.dataset;
    status.textContent = says.loading;
    worker = new Worker(new URL(`worker.js?${version}`, script), { type: "module" });
    worker.onmessage = ({ data }) => {
      const { resolve, reject } = waiting.get(data.id);
      waiting.delete(data.id);
      "fault" in data ? reject(new Error(data.fault)) : resolve(data.answer);
    };
    worker.onerror = () => { for (const { reject } of waiting.values()) reject(new Error("worker")); };
    started = call("start", { tool: name, lang, wheel, version });
    return started;
  }

  // ---- asking: while one answer is made, only the newest question waits

  let wanted = null;
  let busy = false;
  async function ask() {
    wanted = query();
    if (busy) return;
    busy = true;
    tool.setAttribute("aria-busy", "true");
    try {
      await start();
      while (wanted !== null) {
        const asked = wanted;
        wanted = null;
        show(JSON.parse(await call("ask", asked)));
      }
    } catch {
      worker?.terminate();
      started = worker = wanted = null;
      waiting.clear();
      status.textContent = "";
      error.textContent = says.failed;
    }
    busy = false;
    tool.removeAttribute("aria-busy");
  }
  // What is no number stays on the screen, but a browser keeps it from scripts: "…" is refused like it.
  const typed = (f) => (f.validity.badInput ? "…" : f.value);
  const query = () => new URLSearchParams(
    fields.filter((f) => !f.closest("[hidden]:not(form)")).map((f) => [f.name, typed(f)])).toString();

  function show(reply) {
    error.textContent = reply.error ?? "";
    for (const f of fields) {
      f.toggleAttribute("aria-invalid", false);
      if (reply.error && f.name === reply.field) f.setAttribute("aria-invalid", "true");
    }
    answer.classList.toggle("stale", Boolean(reply.error));
    if (reply.error) { status.textContent = ""; return; }
    status.classList.add("unseen");
    status.textContent = reply.summary;
    line.replaceChildren(...reply.command.split(" ").flatMap((word, i) => {
      const whole = document.createElement("span");
      whole.textContent = word;
      return i ? [" ", whole] : [whole];
    }));
    for (const [name, html] of Object.entries(reply.slots)) find(`[data-slot="${name}"]`).innerHTML = html;
    for (const later of tool.querySelectorAll("[data-later]")) {
      later.dataset.later = "stale";
      fill(later);
    }
    address(reply.query);
    if (time) { known = { ...reply, moments: null }; range.max = known.places.length - 1; point(); }
  }

  // A table of many rows is made when it is open.
  async function fill(later) {
    if (later.dataset.later !== "stale") return;
    if (!later.closest("details").open) { later.replaceChildren(); return; }
    later.dataset.later = "";
    later.innerHTML = await call("table", later.dataset.slot);
  }
  for (const later of tool.querySelectorAll("[data-later]")) {
    later.closest("details").addEventListener("toggle", () => fill(later));
  }

  // ---- the state stands in the address, also when the reader changes the language

  function address(search) {
    history.replaceState(null, "", search ? `?${search}` : location.pathname);
    for (const link of document.querySelectorAll(".languages a")) link.search = search;
  }

  // ---- the cursor through time

  const time = find(".tool-time");
  const range = time?.querySelector("input");
  const moment = time?.querySelector(".tool-moment");
  const figure = find("[data-slot=figure]");
  let known = time && JSON.parse(find(".tool-moments").textContent);
  let turn = 0;
  async function point(aloud = false) {
    const mine = ++turn;
    const i = Number(range.value);
    const svg = figure.querySelector("svg");
    const mark = svg.querySelector(".tool-cursor") ?? svg.appendChild(document.createElementNS(svg.namespaceURI, "rect"));
    const from = known.places[i];
    const set = { class: "tool-cursor", x: from, y: known.cursor[0], height: known.cursor[1] - known.cursor[0],
      width: Math.max((known.places[i + 1] ?? from) - from, 2) };
    for (const [key, value] of Object.entries(set)) mark.setAttribute(key, value);
    const html = known.moments ? known.moments[i] : await call("moment", i);
    if (mine !== turn) return;
    moment.innerHTML = html;
    range.setAttribute("aria-valuetext", moment.querySelector("p").textContent);
    if (aloud) status.textContent = [...moment.querySelectorAll("p, li")].map((e) => e.textContent).join(". ");
  }
  if (time) {
    time.hidden = false;
    const go = (to) => { range.value = to; status.classList.add("unseen"); point(true); };
    range.addEventListener("input", () => go(range.value));
    time.addEventListener("click", ({ target }) => {
      if (target.dataset.step) go(Number(range.value) + Number(target.dataset.step));
    });
    figure.addEventListener("click", (event) => {
      const svg = figure.querySelector("svg");
      const box = svg.getBoundingClientRect();
      const x = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
      if (x >= known.places[0]) go(known.places.findLastIndex((place) => place <= x));
    });
    point();
  }

  // ---- the form

  function relevant() {
    for (const box of form.querySelectorAll("[data-when]")) {
      box.hidden = !box.dataset.values.split(" ").includes(form.elements[box.dataset.when].value);
    }
  }
  form.hidden = false;
  copy.hidden = false;
  form.addEventListener("input", () => { relevant(); ask(); });
  form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  form.addEventListener("reset", () => setTimeout(() => { relevant(); started ? ask() : address(""); }));
  copy.addEventListener("click", async () => {
    const before = copy.textContent;
    try {
      await navigator.clipboard.writeText(line.textContent);
      copy.textContent = says.copied;
      setTimeout(() => { copy.textContent = before; }, 1500);
    } catch {
      getSelection().selectAllChildren(line);
    }
  });
  const given = new URLSearchParams(location.search);
  let asks = false;
  for (const f of fields) {
    if (given.has(f.name) && given.get(f.name) !== f.value) { f.value = given.get(f.name); asks = true; }
  }
  relevant();
  if (asks) {
    status.textContent = says.asks;
    for (const link of document.querySelectorAll(".languages a")) link.search = location.search;
  }
})();
