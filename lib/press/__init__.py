"""Turn chapters into notebooks, pages and the ledger.  The package knows notebooks and MyST, not the book's subject."""
