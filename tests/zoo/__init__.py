"""The model zoo: does every architecture of the host answer as ``transformers`` does?

Each is built small with random weights, asked in several ways and judged; the outcome is *right*,
*refused* (at start, by one sentence) or *host* (the host itself cannot, with the evidence).
Anything else fails its test.

    pytest tests/zoo                     a selection of different architectures
    ZOO=all pytest tests/zoo             all of them
    python -m tests.zoo [NAME ...]       all or these; --write FILE keeps the table (docs/models.md)

To add an architecture, add an entry to the table of its kind (``text_specs.SPECS``).  To add a kind
(embedding, image, ...), add a module with ``SPECS``, ``examine(spec, folder) -> Outcome`` and
``registered()``, the host's names; name it in ``kinds.KINDS`` and give it a test file like
``test_text.py``.  ``build`` makes the model, ``run.forked`` keeps engines apart, ``judge``
compares.
"""
