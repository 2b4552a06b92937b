"""How fast the schedule explorer answers in the real browser: cold, warm, and one change.

    make site && python benchmarks/bench_page.py

Cold is a new browser profile: from the reader's first input to the drawn answer, with Python's core fetched from a
server on this machine. Warm is the same page loaded again in the same profile, so that the browser's own cache is what
a reader's would be. A change is one more question to the Python that runs. Medians, smallest and largest.
"""

import argparse
import gzip
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from statistics import median

from paralelo.predict.pipeline import NAMES

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "book"))

from serve import server  # noqa: E402

CHANGE = """async (values) => {
  const form = document.querySelector(".tool-form"), facts = document.querySelector("[data-slot=facts]");
  const begin = performance.now();
  const done = new Promise((resolve) => new MutationObserver(resolve).observe(facts, { childList: true }));
  for (const [name, value] of Object.entries(values)) form.elements[name].value = value;
  form.dispatchEvent(new Event("input", { bubbles: true }));
  await done;
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  return performance.now() - begin;
}"""


ARGUMENTS = ("--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1")


def browser() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def measure(chromium, site: Path, runs: int, names) -> dict[str, list[float]]:
    """Milliseconds: `cold`, `warm`, and a change for each name. `chromium` is Playwright's browser type."""
    serving = server(site, 0)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    page = f"http://127.0.0.1:{serving.server_address[1]}/en/tools/schedule.html"
    times = {"cold": [], "warm": [], **{name: [] for name in names}}
    for run in range(runs):
        with tempfile.TemporaryDirectory() as profile:
            context = chromium.launch_persistent_context(profile, executable_path=browser(), args=list(ARGUMENTS))
            tab = context.pages[0]
            tab.goto(page)
            times["cold"].append(tab.evaluate(CHANGE, {"microbatches": "9"}))
            for again in range(4):
                tab.wait_for_timeout(1500)                  # a browser keeps compiled code only after a while
                tab.reload()
                times["warm"].append(tab.evaluate(CHANGE, {"microbatches": str(10 + again)}))
            for name in names if run == 0 else ():
                times[name] = [tab.evaluate(CHANGE, {"name": name, "stages": "16", "microbatches": "64", "forward": f})
                               for f in ("1", "1.1", "1.2", "1.3", "1.4")]
            context.close()
    serving.shutdown()
    serving.server_close()
    return times


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=3, help="new profiles, each with one cold and four warm starts")
    asked = options.parse_args()
    if browser() is None or not (ROOT / "site" / "index.html").is_file():
        print("bench_page: needs a Chromium and a built site (make site); left out")
        return 0
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        times = measure(playwright.chromium, ROOT / "site", asked.runs, NAMES)
    for name, found in times.items():
        aim = {"cold": 5000, "warm": 1500}.get(name, 100)
        what = name if name in ("cold", "warm") else f"change, {name}, S=16, M=64"
        print(f"{what:34} {median(found):7.0f} ms  ({min(found):.0f} to {max(found):.0f}; aim: under {aim})")
    vendor = [p for p in (ROOT / "site" / "vendor").rglob("*") if p.is_file()]
    packed = sum(len(gzip.compress(p.read_bytes(), 6)) for p in vendor)
    print(f"the core, one copy: {sum(p.stat().st_size for p in vendor):,} bytes, {packed:,} compressed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
