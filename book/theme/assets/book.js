// The little that pages do by themselves. All of it is extra: every page reads without it.
const root = document.documentElement;

// Light or dark: a button that goes round auto, light, dark.
const button = document.querySelector(".theme-button");
if (button) {
  const name = () => {
    const says = `${button.title.split(":")[0]}: ${button.dataset[root.dataset.choice]}`;
    button.title = says;
    button.setAttribute("aria-label", says);
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    const next = { auto: "light", light: "dark", dark: "auto" }[root.dataset.choice];
    try { next === "auto" ? localStorage.removeItem("theme") : localStorage.setItem("theme", next); } catch { return; }
    dispatchEvent(new Event("theme"));
    name();
  });
  name();
}

// The language switch keeps the place on the page (editions share labels) and remembers the choice for the first page.
for (const link of document.querySelectorAll(".languages a")) {
  link.addEventListener("click", () => {
    try { localStorage.setItem("language", link.hreflang); } catch { /* private window */ }
  });
}

// “On this page” stands open where there is room beside the text.
const aside = document.querySelector(".on-page");
if (aside) {
  const wide = matchMedia("(min-width: 84rem)");
  const open = () => { aside.open = wide.matches; };
  wide.addEventListener("change", open);
  open();
  const links = new Map([...aside.querySelectorAll("a")].map((a) => [decodeURIComponent(a.hash.slice(1)), a]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const a of links.values()) a.removeAttribute("aria-current");
      links.get(entry.target.id)?.setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-10% 0px -75% 0px" });
  for (const id of links.keys()) {
    const section = document.getElementById(id);
    if (section) seen.observe(section);
  }
}

// What scrolls sideways can be reached and scrolled with the keyboard.
const scrollers = document.querySelectorAll("pre, .scroll, .table, div.math, .output, .cell_output");
const reach = (each) => {
  if (each.scrollWidth > each.clientWidth + 1) each.tabIndex = 0;
  else each.removeAttribute("tabindex");
};
const watch = new ResizeObserver((entries) => entries.forEach(({ target }) => reach(target)));
for (const each of scrollers) watch.observe(each);
document.fonts.ready.then(() => scrollers.forEach(reach));     // what is inside grows when its font arrives

// Copy a block of code.
for (const block of document.querySelectorAll("article div[class*=highlight-] > .highlight")) {
  const copy = document.createElement("button");
  copy.className = "copy";
  copy.type = "button";
  copy.textContent = document.body.dataset.copy;
  copy.addEventListener("click", async () => {
    const text = block.querySelector("pre").innerText;
    await navigator.clipboard.writeText(text.replace(/^\$ /gm, ""));
    copy.textContent = document.body.dataset.copied;
    setTimeout(() => { copy.textContent = document.body.dataset.copy; }, 1500);
  });
  block.append(copy);
}

// Keep the reader's place in the contents, and “/” goes to the search.
const current = document.querySelector(".contents [aria-current]");
const list = document.querySelector(".contents");
if (current && list) list.scrollTop = current.offsetTop - list.clientHeight / 3;
addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) || event.target.isContentEditable;
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const field = [...document.querySelectorAll("input[type=search]")].find((f) => f.offsetParent);
  if (field) { event.preventDefault(); field.focus(); }
});
