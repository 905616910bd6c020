"""How chapters become notebooks, pages and the ledger.  Knows notebooks and MyST, not the book's subject."""
