"""GGUF files: models of llama.cpp, served from the file itself.

reader      what a file holds, every length and offset checked before it is used
blocks      the integer codes, scales and offsets of each block type
checkpoint  architectures: config.json and the Hugging Face names of the tensors
tokenizer   tokenizer.json and the chat template
folder      the small model folder that the host is given in place of the file

The linear layers are ``src/cpu_backend/layers/quantization/gguf.py``.
"""
