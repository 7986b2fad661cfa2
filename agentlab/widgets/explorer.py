"""`explore`: sliders with a picture under them.

Every change of a control calls the view again and puts the picture into one `widgets.HTML`. There is no queue of stale
pictures: the browser sends the next value only when the kernel has answered the last one, and then the newest.
`Output` and `interact` would redraw slower, and hide errors from a headless run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
from traitlets import TraitError

from agentlab import draw
from agentlab.draw.base import as_html, visible
from agentlab.errors import AgentLabError
from agentlab.language import say

REPR_LIMIT = 40
ONE_COLUMN = 4
"""More controls than this stand in two columns, so that the picture stays on the same screen."""


def control(name: str, spec: Any, *, label_chars: int = 0) -> widgets.Widget:
    """The control for one keyword of `explore`; its label takes `label_chars` characters, so that tracks line up.

    Raises AgentLabError when it cannot be told from `spec`.
    """
    if isinstance(spec, widgets.Widget) and spec.has_trait("value"):
        return spec
    look = {
        "description": name,
        "tooltip": say("Drag it, or use the arrow keys."),
        "style": {"description_width": f"{max(label_chars, len(name)) + 1}ch"},
        "layout": {"width": "480px", "max_width": "100%"},
    }
    if isinstance(spec, bool):
        return widgets.Checkbox(value=spec, indent=False, **look | {"tooltip": name})
    if isinstance(spec, range) and len(spec) > 1 and spec.step > 0:
        spec = (spec[0], spec[-1], spec.step)
    if isinstance(spec, tuple) and len(spec) in (2, 3) and all(_plain_number(x) for x in spec) and spec[0] < spec[1]:
        whole = all(isinstance(x, int) for x in spec)
        step = spec[2] if len(spec) == 3 else 1 if whole else (spec[1] - spec[0]) / 100
        if step > 0:
            kind = widgets.IntSlider if whole else widgets.FloatSlider
            shape = {"readout_format": ",d"} if whole else {}
            return kind(value=spec[0], min=spec[0], max=spec[1], step=step, **shape, **look)
    if isinstance(spec, list) and spec:
        return widgets.SelectionSlider(options=spec, **look)
    raise AgentLabError(
        say(
            "{given} makes no slider. Give (low, high), (low, high, step), a list of options, True or False, or a "
            "widget that has a value.",
            given=f"{name}={visible(repr(spec), limit=REPR_LIMIT)}",
        )
    )


def _plain_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Explorer(widgets.VBox):  # type: ignore[misc]
    """The controls and the picture. `set` moves them from code, `picture` is what the view returned last."""

    def __init__(self, view: Callable[..., Any], controls: dict[str, widgets.Widget]) -> None:
        self._view = view
        self._controls = controls
        self._moving = False
        self._error: Exception | None = None
        self.picture: Any = None
        self._screen = widgets.HTML()
        super().__init__([*controls.values(), self._screen])
        self.add_class("agentlab-explore")
        if len(controls) > ONE_COLUMN:
            self.layout.flex_flow = "row wrap"
            self._screen.layout.flex = "1 1 100%"
        for each in controls.values():
            each.observe(self._changed, "value")
        self._redraw()
        self._raise()

    @property
    def values(self) -> dict[str, Any]:
        """What the view is called with now."""
        return {name: each.value for name, each in self._controls.items()}

    def set(self, **values: Any) -> Explorer:
        """Move controls as a hand would, then draw once. Returns the explorer itself.

        Raises AgentLabError for a control that does not exist or does not take the value, and what the view raises.
        """
        if unknown := sorted(set(values) - set(self._controls)):
            known = ", ".join(self._controls) or say("there is none")
            raise AgentLabError(say("There is no control {name!r}: {known}.", name=unknown[0], known=known))
        before = self.values
        self._moving = True
        try:
            for name, value in values.items():
                self._move(name, value)
        finally:
            self._moving = False
            if self.values != before:
                self._redraw()
        self._raise()
        return self

    def _move(self, name: str, value: Any) -> None:
        try:
            self._controls[name].value = value
        except TraitError as error:
            given = visible(repr(value), limit=REPR_LIMIT)
            raise AgentLabError(
                say("{name} does not take {given}: {error}", name=name, given=given, error=error)
            ) from None
        if (now := self._controls[name].value) != value:
            raise AgentLabError(
                say("{name} cannot be {value!r}: its range made it {now!r}.", name=name, value=value, now=now)
            )

    def _changed(self, change: Any) -> None:
        if not self._moving:
            self._redraw()

    def _redraw(self) -> None:
        try:
            self._error, self.picture = None, self._view(**self.values)
            self._screen.value = as_html(self.picture).markup
        except Exception as error:  # during a drag nobody else would show it
            self._error = error
            self._screen.value = draw.element("pre", f"{type(error).__name__}: {error}", role="alert").markup

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _shown_values(self) -> str:
        shown = {name: getattr(each, "label", None) or repr(each.value) for name, each in self._controls.items()}
        return ", ".join(f"{name}={visible(text, limit=REPR_LIMIT)}" for name, text in shown.items())

    def __repr__(self) -> str:
        return f"explore({self._shown_values()})"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any] | None:
        """The live widget, and for readers without a kernel the picture as it stands."""
        bundle: dict[str, Any] | None = super()._repr_mimebundle_(**kwargs)
        if bundle is not None:
            values = draw.element("div", self._shown_values(), style="font-family:monospace;font-size:12px")
            bundle |= {"text/plain": repr(self), "text/html": values.markup + self._screen.value}
        return bundle


def explore(view: Callable[..., Any], **sliders: Any) -> Explorer:
    """A picture with sliders: `explore(view, cut=(1, 64))` draws `view(cut=1)` and redraws on every move.

    A keyword is `(low, high)` or `(low, high, step)` of numbers, a range, a list of options, True or False for a check
    box, or any widget that has a value. Sliders start at their first value; `.set(cut=31)` moves them. `view` returns
    a picture, a result that draws itself, or text. An error in the view during a drag is shown in place of the picture;
    from code it is raised.
    """
    longest = max(map(len, sliders), default=0)
    return Explorer(view, {name: control(name, spec, label_chars=longest) for name, spec in sliders.items()})
