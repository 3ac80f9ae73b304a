"""The model zoo: does every architecture of the host answer as ``transformers`` does?

Each is built small with random weights, asked in several ways and judged; the outcome is *right*, *refused* (at start,
by one sentence) or *host* (the host itself cannot, with the evidence).  Anything else fails its test.

    pytest tests/zoo                     a selection of different architectures
    ZOO=all pytest tests/zoo             all of them
    python -m tests.zoo [NAME ...]       all or these, as a table; --write FILE keeps it (docs/models.md)

To add an architecture, add a line to the table of its kind (``text.SPECS``).  To add a kind (embedding, image, ...), add
a module with ``SPECS`` and ``examine(spec, folder) -> Outcome`` and name it in ``kinds.py``; ``build`` makes the
model, ``run.forked`` keeps engines apart, ``judge`` compares.
"""
