// Python's standard library as a page needs it: compiled once, when the book is built, by the Python that will run it.
// Usage: node stdlib.mjs FOLDER-OF-PYODIDE MADE.zip
//
// Pyodide brings its library as sources, and a page would compile two hundred of them at every start (1.3 of its 1.7 s).
// What needs processes, sockets or a terminal, and tools of developers, stay out, so the download does not grow.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const [pyodide, made] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${pyodide}/pyodide.mjs`));
const python = await loadPyodide();
python.FS.writeFile("/given.zip", new Uint8Array(readFileSync(`${pyodide}/python_stdlib.zip`)));
python.runPython(`
import importlib.util, sys, zipfile
from importlib._bootstrap_external import _code_to_hash_pyc

LEFT_OUT = set("""
    _pyio _pyrepl bdb cProfile cmd code ctypes doctest ftplib http imaplib mailbox multiprocessing optparse pdb
    pickletools poplib profile pstats pydoc smtplib socketserver timeit trace unittest webbrowser wsgiref xml xmlrpc
    zipapp""".split())
ENCODINGS = set("__init__ aliases ascii cp437 idna latin_1 punycode raw_unicode_escape unicode_escape utf_16 utf_8 "
                "utf_8_sig".split())
home = f"/lib/python{sys.version_info[0]}{sys.version_info[1]}.zip/"

with zipfile.ZipFile("/given.zip") as given, zipfile.ZipFile("/made.zip", "w") as made:
    for entry in given.infolist():
        name = entry.filename
        top, _, rest = name.partition("/")
        if not name.endswith(".py") or top.removesuffix(".py") in LEFT_OUT:
            continue
        if top == "encodings" and rest.removesuffix(".py") not in ENCODINGS:
            continue
        source = given.read(entry)
        code = compile(source, home + name, "exec", dont_inherit=True)
        compiled = _code_to_hash_pyc(code, importlib.util.source_hash(source), False)
        made.writestr(zipfile.ZipInfo(name + "c"), compiled, zipfile.ZIP_DEFLATED, 9)
`);
writeFileSync(made, python.FS.readFile("/made.zip"));
