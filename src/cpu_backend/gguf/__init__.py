"""GGUF files: models of llama.cpp, served from the file itself.

reader         what a file holds, every length and offset checked before it is used
blocks         the integer codes, scales and offsets of each block type
architectures  what each is as one of Hugging Face: config.json, names and order of the tensors
projectors     the same of what a model makes of pictures, a file of its own
weights        where each tensor of a checkpoint is in the file, and its numbers
checkpoint     a whole model: its configuration, and its tensors under their Hugging Face names
tokenizer      tokenizer.json and the chat template
locate         which file a model's name means: a path, a folder, REPOSITORY:TYPE
folder         the small model folder that the host is given in place of the file

The layers are ``gguf*.py`` in ``src/cpu_backend/layers/quantization``.
"""
