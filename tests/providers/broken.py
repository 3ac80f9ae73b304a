"""A provider whose import fails, as a package does on a CPU it does not know."""

raise RuntimeError("first line\nno such instruction")
