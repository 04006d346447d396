"""Chromium, for the tests that look at pages as a person does.

Here: finding it, and what its absence means. Not here: what is looked at.
"""

import os
import shutil

import pytest

_HOW = "install it (on Debian the package `chromium`; `.ci/run` does it where it is root)"


def chromium() -> str:
    """Return the browser's program. Without one the test is skipped, and fails in CI: there every test has to run."""
    for name in ("chromium", "chromium-browser"):
        if found := shutil.which(name):
            return found
    if os.environ.get("CI") == "true":
        pytest.fail(f"There is no Chromium: {_HOW}.")
    pytest.skip(f"there is no Chromium: {_HOW}")
