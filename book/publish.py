"""Publish: the site for Pages, and the branch `published` with the student notebooks and the wheel they install.

    python book/publish.py --address https://github.com/you/fork                      build both, push nothing
    python book/publish.py --address https://github.com/you/fork --push REMOTE        and push the branch there

The address is written into _config.yml while this runs, if that has none: links for editing, badges and the notebooks'
install cells come from there. REMOTE is whatever `git push` takes, a local bare repository too. The branch has one
commit, without history, and is pushed only if something in it has changed.
"""

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BRANCH = "published"
README = """# The notebooks as published

Made from `main`; do not edit here. Each notebook's first cell installs the wheel beside it on Colab and Kaggle.
"""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--address", help="of the repository; by default what _config.yml says")
    options.add_argument("--push", metavar="REMOTE", help="where the branch goes; by default it is only built")
    options.add_argument("--folder", type=Path, default=ROOT / "build" / BRANCH, help="where the branch is laid out")
    options.add_argument("--no-site", action="store_true", help="leave the site as it is")
    asked = options.parse_args()
    address = (asked.address or written_address()).rstrip("/").removesuffix(".git")
    if not re.fullmatch(r"https://[\w.-]+/[\w.-]+/[\w.-]+", address):
        print(f"publish: {address!r} is no repository's address: give --address https://host/owner/name, or set it in "
              "_config.yml (repository, url)", file=sys.stderr)
        return 2
    with filled_in(address):
        if not asked.no_site:
            run([sys.executable, "book/build.py"])
        lay_out(asked.folder)
    if asked.push:
        push(asked.folder, asked.push)
    return 0


def written_address() -> str:
    found = re.search(r'(?m)^  url: "(.*)"', (ROOT / "_config.yml").read_text(encoding="utf-8"))
    return found[1] if found else ""


@contextmanager
def filled_in(address: str):
    """_config.yml with the address in it, and as it was afterwards."""
    config = ROOT / "_config.yml"
    before = config.read_text(encoding="utf-8")
    try:
        config.write_text(re.sub(r'(?m)^  url: ""', f'  url: "{address}"', before, count=1), encoding="utf-8")
        yield
    finally:
        config.write_text(before, encoding="utf-8")


def lay_out(folder: Path) -> None:
    """The branch as a folder: the wheel, and labs/<lang>/*.ipynb with their install cells filled in."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT], quiet=True)
    labs = module("labs/build.py")
    for source in labs.sources():
        lab = labs.read(source)
        outputs = labs.kept(lab)
        for lang in labs.languages():
            path = folder / "labs" / lang / lab.path(lang).name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(labs.nbformat.writes(labs.notebook(lab, lang, outputs=outputs)) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(README, encoding="utf-8")
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        print(f"  {file.relative_to(folder)}  {file.stat().st_size / 1000:.0f} kB")


def push(folder: Path, remote: str) -> None:
    """One commit without history, to the remote's branch, unless its tree is there already."""
    shutil.rmtree(folder / ".git", ignore_errors=True)
    git = ["git", "-C", folder, "-c", "user.name=publish", "-c", "user.email=publish@localhost"]
    run([*git, "init", "-q", "-b", BRANCH])
    run([*git, "add", "-A"])
    run([*git, "commit", "-q", "-m", "Published"])
    there = subprocess.run([*git, "fetch", "-q", "--depth", "1", remote, BRANCH], capture_output=True).returncode == 0
    trees = [output([*git, "rev-parse", f"{commit}^{{tree}}"]) for commit in ("HEAD", "FETCH_HEAD")[: 1 + there]]
    if len(set(trees)) < len(trees):
        print(f"{BRANCH}: nothing new")
        return
    run([*git, "push", "-q", "--force", remote, f"HEAD:{BRANCH}"])
    print(f"{BRANCH}: pushed")


def module(path: str):
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").removesuffix(".py"), ROOT / path)
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


def run(command: list, quiet: bool = False) -> None:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE if quiet else None,
                          stderr=subprocess.STDOUT if quiet else None, text=True)
    if done.returncode:
        sys.exit(f"publish: {' '.join(map(str, command[:4]))} failed\n{done.stdout or ''}")


def output(command: list) -> str:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
