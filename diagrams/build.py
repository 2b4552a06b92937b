"""Draw all diagrams: every script beside this one, in every language the program has.

    python diagrams/build.py            writes diagrams/<lang>/*.svg and *.mmd, only what changed
    python diagrams/build.py --check    writes nothing; exit 1 and one line for each stale, missing or extra file

A script has `figures(lang) -> {file name: text}`. A Mermaid text `x.mmd` without an `x.svg` of its own is rendered to
`x.svg`. Rendering is slow, so the picture carries in its first line what it was made from; if that still matches, it is
not rendered again.
"""

import argparse
import hashlib
import importlib.util
import json
import re
import sys
from functools import cache
from importlib import resources
from importlib.metadata import version
from pathlib import Path

from paralelo.words import languages

HERE = Path(__file__).resolve().parent
# The colours that Mermaid draws with are those of draw/style.css in a light page; `themed` makes them its variables.
COLOURS = {"#1b1f24": "ink", "#57606a": "soft", "#c3c9d0": "rule", "#ffffff": "paper", "#f3f4f6": "faint",
           "#cfe4f3": "tensor-soft", "#0072b2": "tensor"}
CONFIG = {
    "deterministicIds": True, "deterministicIDSeed": "paralelo", "handDrawnSeed": 7, "htmlLabels": False,
    "flowchart": {"htmlLabels": False, "nodeSpacing": 18, "rankSpacing": 26, "padding": 10},
    "theme": "base", "fontFamily": "system-ui, sans-serif",
    "themeVariables": {
        "fontSize": "14px", "primaryColor": "#cfe4f3", "primaryBorderColor": "#0072b2", "primaryTextColor": "#1b1f24",
        "lineColor": "#57606a", "textColor": "#1b1f24", "clusterBkg": "#f3f4f6", "clusterBorder": "#c3c9d0",
        "titleColor": "#1b1f24", "edgeLabelBackground": "#ffffff"}}


def figures(lang: str) -> dict[str, str]:
    """All files of one language by name."""
    found: dict[str, str] = {}
    for script in sorted(HERE.glob("*.py")):
        if script.name == "build.py":
            continue
        spec = importlib.util.spec_from_file_location(f"diagrams_{script.stem}", script)
        module = sys.modules.get(spec.name)
        if module is None:
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        for name, text in module.figures(lang).items():
            if name in found:
                raise SystemExit(f"two scripts draw {lang}/{name}; the second is {script.name}")
            if not name.endswith((".svg", ".mmd")) or "/" in name:
                raise SystemExit(f"{script.name} draws {name!r}: a plain name ending in .svg or .mmd is needed")
            found[name] = text
    return found


def key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


@cache
def style_sheet() -> str:
    return resources.files("paralelo.draw").joinpath("style.css").read_text(encoding="utf-8")


def themed(picture: str) -> str:
    """A picture of Mermaid's in our colours, which follow light and dark. Its rules give way to those of a page."""
    palette = [re.search(r"\{(.*)\}", rule, re.S)[1] for rule in re.findall(r"\.pl \{[^}]*\}", style_sheet())]
    kept = ["".join(re.findall(r"--pl-[\w-]+: [^;]+;", rules)) for rules in palette]
    for colour, name in COLOURS.items():
        picture = re.sub(rf"{colour}\b", f"var(--pl-{name})", picture, flags=re.I)
    rules = f":where(.pl){{{kept[0]}}}@media (prefers-color-scheme: dark){{:where(.pl){{{kept[1]}}}}}"
    picture = picture.replace("<style>", f"<style>{rules}", 1)
    head, _, rest = picture.partition(">")
    head = re.sub(r' style="[^"]*"', "", head).replace('class="', 'class="pl ', 1)
    width, height = re.search(r'viewBox="\S+ \S+ (\S+) (\S+)"', head).groups()
    head = head.replace('width="100%"', f'width="{float(width):.0f}" height="{float(height):.0f}"')
    return f"{head}>{rest}"


def rendered(source: str, now: str | None) -> str:
    """The picture of a Mermaid text: `now`, what is there already, if it was made from this source and not touched."""
    made_from = key(source, json.dumps(CONFIG, sort_keys=True), version("mermaidx"), style_sheet())
    if now:
        first, _, body = now.partition("\n")
        if first == f"<!-- mermaid {made_from} {key(body)} -->":
            return now
    import mermaidx

    body = themed(mermaidx.render(source, config=CONFIG).svg()).strip() + "\n"
    body = body.replace("<svg ", '<svg role="img" ', 1) if 'role="' not in body[:600] else body
    return f"<!-- mermaid {made_from} {key(body)} -->\n{body}"


def main(argv: list[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--check", action="store_true")
    check = options.parse_args(argv).check
    wrong, total = [], 0
    for lang in languages():
        folder = HERE / lang
        there = {f.name: f.read_text(encoding="utf-8") for f in folder.glob("*") if f.is_file()}
        wanted = figures(lang)
        for name in [n for n in wanted if n.endswith(".mmd")]:
            picture = name.removesuffix(".mmd") + ".svg"
            if picture not in wanted:
                wanted[picture] = rendered(wanted[name], there.get(picture))
        total += len(wanted)
        folder.mkdir(exist_ok=True)
        for name in sorted(wanted.keys() | there.keys()):
            if wanted.get(name) == there.get(name):
                continue
            if check:
                state = "extra" if name not in wanted else "missing" if name not in there else "stale"
                wrong.append(f"diagrams/{lang}/{name}: {state}")
            elif name in wanted:
                (folder / name).write_text(wanted[name], encoding="utf-8", newline="\n")
                print(f"wrote diagrams/{lang}/{name}")
            else:
                (folder / name).unlink()
                print(f"removed diagrams/{lang}/{name}")
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        print("run: python diagrams/build.py", file=sys.stderr)
    else:
        print(f"{total} diagrams in {len(languages())} languages{' are as their scripts draw them' * check}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
