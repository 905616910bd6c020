"""A plugin for nbval: it waits longer for late output."""


def pytest_collection_modifyitems(items):
    for item in items:
        if hasattr(item, "output_timeout"):
            # nbval's 5 seconds, after a cell has ended, are too short where machines are shared
            item.output_timeout = 60
