"""What the machine offers and how one rank uses it: topology, thread plan, memory budget.

Pure Python on plain data. Nothing here may import torch or vllm, or start a subprocess.
"""
