"""draw.logview: every event a row, every replacement that holds a lane, and nothing of it is trusted."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from agentlab.draw.logview import EVENTS, LANES, log_and_view
from agentlab.messages import assistant, call, tool, user
from agentlab.surface import Surface


def picture(surface: Surface) -> str:
    return log_and_view(surface.events, surface.nodes, surface.source).markup


def rows(markup: str) -> list[str]:
    return [re.sub("<[^>]+>", " ", row) for row in markup.split('<div style="display:flex;height:19px')[1:]]


def nested() -> Surface:
    surface = Surface()
    surface.append_all([user("one"), assistant("", call("c", "ls")), tool("c", "x" * 90), user("two")])
    surface.replace(3, 3, tool("c", "x"), reason="prune")
    surface.replace(1, 5, user("sum") | {"origin": "compaction"})
    return surface


def test_every_event_is_a_row_with_what_it_became_and_the_view_stands_beside_it() -> None:
    surface = nested()
    drawn = rows(picture(surface))
    assert len(drawn) == 6 + 2
    became = [re.findall(r"→ (\d+)", row) for row in drawn[:6]]
    assert became == [["6"], ["6"], ["5"], [], ["6"], []]
    assert picture(surface).count("▼") == 2
    assert "2 replacements" in log_and_view(surface.events, surface.nodes, surface.source).label


def test_what_a_rewind_withdrew_is_struck_out_and_has_no_lane() -> None:
    surface = nested()
    surface.rewind(4)
    markup = picture(surface)
    assert "▼" not in markup and "→" not in markup
    assert markup.count("line-through") == 2 and "rewind to 4" in markup


def test_log_only_events_stand_together_and_long_logs_are_bounded() -> None:
    surface = Surface()
    surface.append_all([{"type": "note"}] * 14 + [user("one")])
    assert "14 events for the log only: note" in picture(surface) and len(rows(picture(surface))) == 3
    surface.append_all([user(str(n)) for n in range(200)])
    markup = picture(surface)
    assert f"… {215 - EVENTS} older events" in markup


def test_lanes_are_shared_and_bounded() -> None:
    surface = Surface()
    for n in range(30):
        surface.append(user(str(n)))
        surface.replace(surface.last, surface.last, user("short"))
    markup = log_and_view(surface.events, surface.nodes, surface.source).markup
    assert markup.count("▼") == 30 and LANES == 8
    for _ in range(12):  # nested ones cannot share
        first, last = surface.nodes[0][0], surface.nodes[1][0]
        surface.replace(first, last, user("sum") | {"origin": "compaction"})
    assert picture(surface).count("▼") < 42


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.text(max_size=60), min_size=1, max_size=8), st.text(max_size=20))
def test_no_text_becomes_a_tag(texts: list[str], kind: str) -> None:
    surface = Surface()
    surface.append_all([user(f"<b>{text}</b>") for text in texts])
    surface.append({"type": f"<i>{kind}"})
    surface.replace(1, len(texts), {"role": "user", "content": [{"type": "text", "text": "<script>"}]})
    markup = picture(surface)
    assert not re.search("<(b|i|script)>", markup)
