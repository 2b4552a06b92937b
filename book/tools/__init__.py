"""The live tools: pages in which the library itself runs, in the reader's browser.

`frame`      what all tools share: fields of a form, the command they spell, the page around the answer
`schedule`   a tool: its fields and one function from values to an answer
`page.html`  the page around a form and an answer
`static/`    the script of the page, the worker that holds Python, the style

A tool is a module with `TOOL` and `page(lang)`, and a table `[<name>]` in `words/<lang>/tools.toml`. The same module
draws the example when the book is built and answers in the page, so both say the same.
"""
