"""The HTTP service of an exported graph: images in, decisions out, with limits and a monitor.

`make_app("model.onnx")` makes it, and `sirc serve model.onnx` runs it. docs/deploy.md describes its answers.
"""

from sirc.deploy.serve.app import make_app, run

__all__ = ["make_app", "run"]
