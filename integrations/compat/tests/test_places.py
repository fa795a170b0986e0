"""What the nightly run says of a release in which names moved that ours uses, or came: an engine and a plug-in of a few lines each."""

from __future__ import annotations

from pathlib import Path

import places as module
import pytest
from places import Release, added, moved, places

TRIED = {
    "engine/__init__.py": "if TYPE_CHECKING:\n    from .run import Runner\n",
    "engine/run/__init__.py": "from .base import *\nfrom .base import Base as Above\nclass Runner(Above):\n    def step(self, rows): ...\n",
    "engine/run/base.py": "class Base:\n    def __init__(self, size): ...\n    def stop(self): ...\n    def draw(self, rows, *, top=None): ...\nLIMIT = 3\n",
    "engine/out.py": "class Row:\n    token: int\nclass Output(Row):\n    rank: int\nasync def send(output): ...\ndef close(): ...\n",
}
PLUG_IN = """
import engine.out as out
from engine import Runner
from engine.run import LIMIT

class Ours(Runner):
    def draw(self, rows, *, top=None):
        self.stop()
        self.size.engine
        return out.Output(1, LIMIT)

def register(hooks):
    place = "engine.out"
    for name, hook in (("send", 1), ("close", 2)):
        hooks.add(f"{place}.{name}", hook)
"""


def said(tmp_path: Path, file: str = "out", old: str = "", new: str = "") -> list[str]:
    """What is said where the newest release has a text of a file in place of another."""
    plug_in = tmp_path / "ours"
    plug_in.mkdir(exist_ok=True)
    (plug_in / "hook.py").write_text(PLUG_IN)
    path = f"engine/{file}.py"
    assert old in TRIED[path]
    newest = TRIED | {path: TRIED[path].replace(old, new) if old else TRIED[path]}
    tried, after = (Release({path: text.encode() for path, text in one.items()}) for one in (TRIED, newest))
    return list(moved(places(plug_in, "engine", tried), tried, after))


def test_nothing_moved_where_only_other_things_changed(tmp_path: Path) -> None:
    assert said(tmp_path) == []
    assert said(tmp_path, "run/base", "size): ...", "size, more): ...") == []
    assert said(tmp_path, "out", "def close", "def other(): ...\ndef close") == []


@pytest.mark.parametrize(
    ("file", "old", "new", "line"),
    [
        ("run/base", "top=None", "top=None, seed", "Runner.draw has another signature: takes seed"),
        ("run/base", "stop(self)", "stop(self, now)", "Runner.stop has another signature: takes now"),
        (
            "run/base",
            "top=None",
            "top=1",
            "Runner.draw has another signature: (self, rows, *, top=1) for (self, rows, *, top=None)",
        ),
        ("run/base", "LIMIT", "MOST", "run.LIMIT is gone"),
        ("out", "token", "id", "out.Output has another signature: takes id, lacks token"),
        ("out", "send(output)", "send(output, end)", "out.send has another signature: takes end"),
        ("out", "close", "shut", "out.close is gone"),
        ("__init__", "Runner", "Worker", "Runner is gone"),
    ],
)
def test_a_place_that_moved_is_named_with_the_file_of_ours(
    tmp_path: Path, file: str, old: str, new: str, line: str
) -> None:
    assert said(tmp_path, file, old, new) == [f"ours/hook.py: engine.{line}"]


def test_a_name_that_came_to_a_recorded_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module,
        "RELEASES",
        {"the-engine==1": {"out.py": "*", "run/__init__.py": "Runner.*"}, "other==1": {"out.py": "*"}},
    )
    known = {
        "out.py": {"Output": "rank", "Row": "token", "close": ""},
        "run/__init__.py": {"Runner.step": "self, rows"},
    }
    monkeypatch.setattr(module, "RECORDED", {"the-engine==1": known})
    sources = {path: text.encode() for path, text in TRIED.items()}
    assert list(added("the-engine", "engine", Release(sources))) == []
    sources["engine/out.py"] += b"def open(): ...\n"
    sources["engine/run/__init__.py"] += b"    def stop(self): ...\n"
    wanted = ["signatures.json: engine.out.open is new", "signatures.json: engine.run.Runner.stop is new"]
    assert list(added("the-engine", "engine", Release(sources))) == wanted


def test_every_package_whose_names_are_recorded_or_used_is_looked_at_each_night() -> None:
    script = (module.INTEGRATIONS / "../ci/plugin").read_text()
    newest = script[script.index("newest() {") : script.index("local -A newest")]
    looked_at = {one.partition("==")[0] for one in module.RECORDED} | module.USERS.keys()
    assert [one for one in looked_at if f"[{one}]=" not in newest] == []
    assert module.RECORDED.keys() == module.RELEASES.keys()
