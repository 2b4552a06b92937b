// Python, in a thread of its own, from this site's own files. Messages: {id, call, args} → {id, answer} or {id, fault}.
const root = new URL("../../vendor/", import.meta.url);
let session = null;

// Python's own loader waits for ever for a file that does not come: whatever cannot be fetched ends the start.
let lost;
const broken = new Promise((_, reject) => { lost = reject; });
broken.catch(() => {});
const get = self.fetch.bind(self);
self.fetch = async (...request) => {
  try {
    const response = await get(...request);
    if (!response.ok) throw new Error(`${response.status} ${response.url}`);
    return response;
  } catch (error) {
    lost(error);
    throw error;
  }
};

async function bytes(url) {
  return (await fetch(url)).arrayBuffer();
}

async function start({ tool, lang, wheel, version }) {
  const core = import(new URL("pyodide/pyodide.mjs", root));
  const files = ["__init__.py", "frame.py", `${tool}.py`];
  const [python, library, ...sources] = await Promise.all([
    core.then(({ loadPyodide }) => loadPyodide({ indexURL: new URL("pyodide/", root).href })),
    bytes(new URL(`${wheel}?${version}`, root)),
    ...files.map((file) => bytes(new URL(`tools/${file}?${version}`, root))),
  ]);
  python.unpackArchive(library, "whl");
  python.FS.mkdirTree("/book/tools");
  files.forEach((file, i) => python.FS.writeFile(`/book/tools/${file}`, new Uint8Array(sources[i])));
  const begin = python.runPython(`
import sys, importlib
sys.path.insert(0, "/book")
from tools.frame import Session
lambda tool, lang: Session(importlib.import_module("tools." + tool).TOOL, lang)
`);
  session = begin(tool, lang);
}

onmessage = async ({ data: { id, call, args } }) => {
  try {
    const answer = call === "start" ? await Promise.race([start(...args), broken]) : session[call](...args);
    postMessage({ id, answer });
  } catch (error) {
    postMessage({ id, fault: String(error.message ?? error) });
  }
};
