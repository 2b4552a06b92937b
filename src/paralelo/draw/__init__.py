"""Pictures of what `predict` says and of what `run` did: SVG by the standard library.

One class writes SVG (`svg.Svg`), one style sheet colours it (`style.css`, light and dark). A drawing is a function that
returns text, the same bytes for the same input. Colours stand for axes, never alone: there is always a label too.
"""
