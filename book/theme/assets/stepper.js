// Figures with steps: a range, buttons, keys (those of a range), and play where the reader has nothing against motion.
for (const box of document.querySelectorAll(".stepper")) {
  const bar = box.querySelector(".steps");
  const range = bar.querySelector("input");
  const play = bar.querySelector("[data-play]");
  const says = bar.querySelector("p");
  const last = Number(range.max);
  const first = Number(range.min);                     // -1 where the whole figure comes before its steps
  const frames = [...box.querySelectorAll(":scope > figure")];
  const layers = [...box.querySelectorAll("[data-only], [data-step]")].map((element) => {
    const { only, step, says } = element.dataset;
    return { element, alone: only !== undefined, at: Number(only ?? step), says };
  });
  let running = null;

  const show = () => {
    const now = Number(range.value);
    frames.forEach((frame, i) => { frame.style.visibility = i === now ? "visible" : "hidden"; });
    for (const { element, alone, at } of layers) {
      element.style.display = (alone ? at === now : now < 0 || at <= now) ? "inline" : "none";
    }
    const count = now < 0 ? bar.dataset.whole : bar.dataset.of.replace("{n}", now + 1).replace("{last}", last + 1);
    const said = layers.filter((layer) => layer.at === now && layer.says).map((layer) => layer.says).join(" ");
    says.textContent = said || count;
    for (const button of bar.querySelectorAll("[data-go]")) {
      button.setAttribute("aria-disabled", now === (button.dataset.go > 0 ? last : first));
    }
    range.setAttribute("aria-valuetext", count);
  };
  const pause = () => {
    clearInterval(running);
    running = null;
    play.textContent = "▶";
    play.setAttribute("aria-label", play.dataset.play);
  };
  const go = (to) => {
    range.value = to;
    show();
    if (Number(range.value) === last) pause();
  };

  range.addEventListener("input", () => { pause(); show(); });
  bar.addEventListener("click", ({ target }) => {
    const by = Number(target.dataset.go);
    if (by) { pause(); go(Number(range.value) + by); }
  });
  play.addEventListener("click", () => {
    if (running) { pause(); return; }
    play.textContent = "❚❚";
    play.setAttribute("aria-label", play.dataset.pause);
    if (Number(range.value) === last) go(0);
    else go(Number(range.value) + 1);
    running ??= setInterval(() => go(Number(range.value) + 1), 1100);
  });
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const motion = () => { play.hidden = calm.matches; if (calm.matches) pause(); };
  calm.addEventListener("change", motion);
  motion();
  bar.hidden = false;
  box.classList.add("live");
  show();
}
