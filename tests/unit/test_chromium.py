"""A test of a page without a browser is skipped, and fails in CI."""

import pytest

from tests.chromium import chromium


def test_without_a_browser_a_test_is_skipped_and_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="there is no Chromium: install it"):
        chromium()


def test_in_ci_a_test_without_a_browser_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="There is no Chromium: install it"):
        chromium()
