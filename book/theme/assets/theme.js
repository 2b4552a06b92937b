// Before the first paint: light or dark, as the reader chose here, else as the system says.
(() => {
  const stored = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const choice = stored();
    document.documentElement.dataset.choice = choice ?? "auto";
    document.documentElement.dataset.theme = choice ?? (dark.matches ? "dark" : "light");
  };
  dark.addEventListener("change", apply);
  addEventListener("storage", apply);
  addEventListener("theme", apply);
  apply();
})();
