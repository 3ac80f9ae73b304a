"""What the machine offers and how one rank uses it: topology, thread plan, memory budget, pages.

The first three are pure Python on plain data; they import neither torch nor vllm.
"""
