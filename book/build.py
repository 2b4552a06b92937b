"""Build the book: every edition that has a folder, the landing page and the page for lost readers, into site/.

    python book/build.py              all editions
    python book/build.py es           this edition only
    python book/build.py --fresh      forget what was built before

Editions are built at the same time, each by Jupyter Book from what `edition.stage` laid out in build/<lang>/. Only what
changed is built again; a warning is an error; nothing is executed.
"""

import argparse
import fcntl
import hashlib
import multiprocessing
import shutil
import sys
import time
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from edition import BUILD, ROOT, SITE, NotBuilt, editions, tag
from edition.stage import Stage, parity


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--fresh", action="store_true")
    options.add_argument("editions", nargs="*", metavar="edition")
    asked = options.parse_args()
    every = editions()
    if unknown := [lang for lang in asked.editions if lang not in every]:
        print(f"no edition is called {unknown[0]}: choose {', '.join(every)}", file=sys.stderr)
        return 2
    with alone():
        return made(asked.editions or every, every, asked.fresh)


@contextmanager
def alone():
    """Two builds at once would take files from each other: the second one waits."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another build is at work here: waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def made(langs: list[str], every: list[str], fresh: bool) -> int:
    """Build what is out of date of these editions; the exit code."""
    began = time.perf_counter()
    if fresh:
        for lang in langs:
            for folder in (BUILD / lang, BUILD / "doctrees" / lang, SITE / lang):
                shutil.rmtree(folder, ignore_errors=True)
    stages = {lang: Stage(lang, BUILD / lang) for lang in langs}
    found = parity(every)
    try:
        for stage in stages.values():
            stage.run()
            found += stage.findings
    except NotBuilt as error:
        print(error, file=sys.stderr)
        return 2
    if found:
        print("\n".join(map(str, found)), file=sys.stderr)
        return 1
    digests = {lang: digest(stage) for lang, stage in stages.items()}
    stale = [lang for lang in langs if recorded(lang) != digests[lang] or not (SITE / lang / "index.html").is_file()]
    if not stale:
        print(f"site/ is up to date ({took(began)})")
        return 0
    return build(stale, langs, digests, stages, began)


def build(stale, langs, digests, stages, began) -> int:
    print(f"building {', '.join(stale)}: {len(stages[stale[0]].pages)} pages each", flush=True)
    import jupyter_book.sphinx  # noqa: F401   once, before the editions part ways
    from edition import search, site, vendor
    theme = site.theme_digest()
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    running = {lang: fork.Process(target=edition, args=(lang, theme, results)) for lang in stale}
    for process in running.values():
        process.start()
    failed = []
    for _ in stale:
        lang, code, text, seconds = results.get()
        print(f"  {lang}  {'built' if code == 0 else 'failed'} in {seconds:.1f} s", flush=True)
        if text:
            print(text, file=sys.stderr, flush=True)
        if code:
            failed.append(lang)
            shutil.rmtree(BUILD / "doctrees" / lang, ignore_errors=True)   # else the next run would not warn again
    for process in running.values():
        process.join()
    if failed:
        return 1
    for lang in stale:
        site.prune(lang, set(stages[lang].pages))
        search.write(lang)
        for page, path in stages[lang].pages.items():
            if path.suffix == ".ipynb":
                site.put(SITE / lang / f"{page}.ipynb", path.read_bytes())
    site.assets()
    vendor.vendor()
    site.own_pages(theme)
    if found := site.check(langs):
        print("\n".join(found), file=sys.stderr)
        return 1
    for lang in stale:
        (BUILD / f"{lang}.digest").write_text(digests[lang])
    heaviest = max((p for lang in langs for p in (SITE / lang).rglob("*.html")), key=site.weight)
    total = sum(p.stat().st_size for p in SITE.rglob("*") if p.is_file())
    print(f"site/ is {total / 1e6:.1f} MB; the heaviest page, {heaviest.relative_to(SITE)}, downloads "
          f"{site.weight(heaviest) / 1000:.0f} kB compressed ({took(began)})")
    return 0


def edition(lang: str, theme: str, results) -> None:
    """One edition, in a process of its own; what Sphinx has to say comes back as text."""
    import io

    from edition import site
    from jupyter_book.sphinx import build_sphinx
    from sphinx.util.console import nocolor

    nocolor()
    began, said = time.perf_counter(), io.StringIO()
    sys.stderr = said
    try:
        code = build_sphinx(
            BUILD / lang, SITE / lang, noconfig=True, path_config=ROOT / "_config.yml",
            doctreedir=BUILD / "doctrees" / lang, quiet=True, warningiserror=True, keep_going=True,
            confoverrides={
                "edition": lang, "theme_digest": theme, "making_digest": site.making_digest(),
                "language": tag(lang).replace("-", "_"),
                "bibtex_bibfiles": ["references.bib"],
                "latex_individualpages": False,
            })
    except BaseException as error:
        code = error
    said.write("" if code in (0, 1) else f"\n{code!r}")
    results.put((lang, 0 if code == 0 else 1, said.getvalue().strip(), time.perf_counter() - began))


def digest(stage: Stage) -> str:
    """Of all that an edition is made from."""
    from edition.site import theme_digest

    seen = hashlib.sha256(theme_digest().encode())
    for name, content in sorted(stage.files.items()):
        seen.update(name.encode() + b"\0" + content)
    return seen.hexdigest()


def recorded(lang: str) -> str:
    file = BUILD / f"{lang}.digest"
    return file.read_text() if file.is_file() else ""


def took(began: float) -> str:
    return f"{time.perf_counter() - began:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
