"""What can be wrong with a store. An I/O error stays an OSError."""


class StoreError(Exception):
    """The store, or what was asked of it, is not as it must be; nothing was changed."""


class StoreInUse(StoreError):
    """Another process holds the store's lock."""
