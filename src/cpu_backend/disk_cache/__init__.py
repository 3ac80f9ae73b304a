"""The KV cache on disk: pages of prompts that outlive the server, or that memory has no room for.

``folder.py`` keeps pages as files, ``identity.py`` says what a page's bytes depend on, and
``worker/disk_connector.py`` joins both to the host's scheduler.  ``CPU_BACKEND_DISK_CACHE`` turns
it on.
"""
