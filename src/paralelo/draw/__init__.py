"""Pictures of what `predict` says and of what `run` did: SVG by the standard library."""
