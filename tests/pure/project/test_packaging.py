"""Files that `pip install PATH` installs, and files that it leaves out."""

from pathlib import Path
from zipfile import ZipFile

import tidemark as tm
from tests.wheels import STOREYS, build_wheel, copy_checkout


def test_a_wheel_holds_one_top_level_name_and_every_file_of_the_storeys(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    copy_checkout(checkout)
    before = sorted(checkout.rglob("*"))
    wheel = build_wheel(checkout, tmp_path / "wheels")
    assert sorted(checkout.rglob("*")) == before
    assert wheel.name == f"tidemark-{tm.__version__}-py3-none-any.whl"
    names = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == {"tidemark"}
    own = {f"tidemark/{path.name}" for path in (checkout / "tidemark").iterdir() if path.is_file()}
    inside = {f"tidemark/{path.relative_to(checkout)}" for name in STOREYS for path in (checkout / name).rglob("*.*")}
    assert names == own | inside


def test_every_public_name_is_there_and_no_other() -> None:
    assert [name for name in tm.__all__ if not hasattr(tm, name)] == []
    assert dir(tm) == sorted(tm.__all__)
    assert not hasattr(tm, "windowed")
