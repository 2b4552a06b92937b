// Search in one edition. words.js (made by edition/search.py) holds the stems of every page with their weights there,
// language_data.js the stemmer of the language. Accents do not matter, the last word may be a beginning, and results come
// as one types. A stemmer knows endings with their accents only (activación, ativação), so a word typed without them is
// also tried with.
"use strict";
const fold = (word) => word.normalize("NFD").replace(/\p{M}/gu, "");
let index = null;
let terms = null;                      // folded stem → pages that have it, with their weights
var Search = { setIndex(data) { index = data; } };

function prepare() {
  terms = new Map(Object.entries(index.words).map(([stem, found]) => [stem,
    new Map(found.flatMap((n, i) => i % 2 ? [] : [[n, found[i + 1]]]))]));
}

const MARKS = ["\u0301", "\u0303", "\u0302", "\u0327"];          // acute, tilde, circumflex, cedilla
function accented(word) {
  const forms = [word.replace(/cao$/, "ção").replace(/coes$/, "ções")];
  for (let i = 0; i < word.length; i++) {
    for (const mark of MARKS) forms.push((word.slice(0, i + 1) + mark + word.slice(i + 1)).normalize("NFC"));
  }
  return forms;
}

function stemsOf(word) {
  const stemmer = new Stemmer();
  return new Set([word, ...accented(word)].map((form) => fold(stemmer.stemWord(form))).concat(fold(word)));
}

// Pages that have all words, best first. A name from the code that no page says is looked for by its parts
// (ColumnParallelLinear: column, parallel, linear); then any of them will do.
function find(query) {
  const found = look(query);
  const parts = query.replace(/(\p{Ll}|\d)(\p{Lu})/gu, "$1 $2").replaceAll("_", " ");
  return found && !found.pages.length && parts !== query ? look(parts, true) : found;
}

function look(query, any = false) {
  const said = query.toLowerCase().split(/[^\p{L}\p{N}_]+/u).filter(Boolean);
  const kept = said.filter((word) => !stopwords.includes(word));
  if (!kept.length) return null;
  let pages = null;
  kept.forEach((word, i) => {
    const stems = stemsOf(word);
    const hits = new Map();
    const take = (found, share) => {
      for (const [page, weight] of found) hits.set(page, Math.max(hits.get(page) ?? 0, weight * share));
    };
    for (const stem of stems) if (terms.has(stem)) take(terms.get(stem), 1);
    if (i === kept.length - 1 && word.length > 2) {
      for (const [term, found] of terms) {
        if ([...stems].some((stem) => stem.length > 2 && term.startsWith(stem))) take(found, 0.5);
      }
    }
    const of = any ? new Set([...pages?.keys() ?? [], ...hits.keys()]) : new Set(hits.keys());
    pages = new Map([...of].filter((page) => any || !pages || pages.has(page))
      .map((page) => [page, (pages?.get(page) ?? 0) + (hits.get(page) ?? 0)]));
  });
  pages = [...pages].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
  return { words: kept, pages: pages.map(([page]) => page) };
}

// A sentence around the first of the words, from the page itself.
const texts = new Map();
async function text(page) {
  if (!texts.has(page)) {
    texts.set(page, fetch(`${index.pages[page]}.html`).then((r) => r.text()).then((html) => {
      const main = new DOMParser().parseFromString(html, "text/html").querySelector("article, .hero-words");
      main?.querySelectorAll("h1, .path, .on-page, .headerlink, .drawing svg, .katex, pre, script, style").forEach((e) => e.remove());
      return (main?.textContent ?? "").replace(/\s+/g, " ").trim();
    }).catch(() => ""));
  }
  return texts.get(page);
}

function around(whole, words) {
  const folded = [...whole].map((c) => fold(c.toLowerCase())[0] ?? c).join("");
  const spots = words.flatMap((w) => [...stemsOf(w)])
    .map((w) => folded.search(new RegExp(`(?<![\\p{L}\\p{N}_])${w}`, "u")));
  const at = Math.min(...spots.filter((s) => s >= 0));
  const from = Number.isFinite(at) ? Math.max(0, whole.lastIndexOf(" ", Math.max(0, at - 60)) + 1) : 0;
  return (from ? "… " : "") + whole.slice(from, whole.indexOf(" ", from + 180) >>> 0 || undefined) + " …";
}

let turn = 0;
async function show(query) {
  const mine = ++turn;
  const status = document.getElementById("found");
  const list = document.getElementById("results");
  if (!query.trim() || !index) {
    status.textContent = query.trim() ? status.dataset.wait : "";
    list.replaceChildren();
    return;
  }
  const found = find(query) ?? { words: [], pages: [] };
  const n = found.pages.length;
  status.textContent = n === 0 ? status.dataset.none : n === 1 ? status.dataset.one
    : status.dataset.many.replace("{n}", n);
  list.replaceChildren(...found.pages.map((page) => {
    const item = document.createElement("li");
    const link = item.appendChild(document.createElement("a"));
    link.href = `${index.pages[page]}.html`;
    link.textContent = index.titles[page];
    item.append(document.createElement("p"));
    return item;
  }));
  for (const [i, page] of found.pages.slice(0, 20).entries()) {
    const whole = await text(page);
    if (mine !== turn) return;
    list.children[i].querySelector("p").textContent = around(whole, found.words);
  }
}

addEventListener("DOMContentLoaded", () => {
  const field = document.getElementById("query");
  prepare();
  field.value = new URLSearchParams(location.search).get("q") ?? "";
  document.getElementById("find").value = field.value;
  const search = () => {
    const address = new URL(location);
    field.value ? address.searchParams.set("q", field.value) : address.searchParams.delete("q");
    history.replaceState(null, "", address);
    show(field.value);
  };
  field.addEventListener("input", search);
  document.getElementById("search").addEventListener("submit", (event) => { event.preventDefault(); search(); });
  show(field.value);
  if (!field.value) field.focus();
});
