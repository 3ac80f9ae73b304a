"""Predicted, not measured: what more cores, NUMA nodes, machines and replicas would give.

``probe`` measures a few inputs on this machine (``inputs.json`` is the stored result), ``servers``
has figures of data sheets, ``model`` turns both into tokens per second, ``replicas`` simulates many
engines behind the real routing policy, ``report`` and ``chart`` write docs/scaling.md's tables and
pictures.
"""
