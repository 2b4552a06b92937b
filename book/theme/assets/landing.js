// Mark the edition in the reader's language: the one read last, else the first that the browser asks for.
let last = null;
try { last = localStorage.getItem("language"); } catch { /* private window */ }
const wanted = [last, ...navigator.languages].filter(Boolean).map((l) => l.toLowerCase().split("-")[0]);
const items = [...document.querySelectorAll(".choose li")];
const yours = wanted.map((l) => items.find((i) => i.lang.toLowerCase().split("-")[0] === l)).find(Boolean);
yours?.classList.add("yours");
yours?.querySelector("a").setAttribute("aria-current", "true");
