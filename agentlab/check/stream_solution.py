# mypy: allow-untyped-defs, no-check-untyped-defs
"""One solution of the exercise, as a reader would write it: chapter 03 shows the class, so it stands alone."""


class Solution:
    def __init__(self):
        self.text = ""
        self.calls = {}  # by index

    def feed(self, event):
        new = ""
        for choice in event["choices"]:  # none at all: a chunk that only brings the usage
            delta = choice["delta"]
            new += delta.get("content") or ""  # the first chunk says null
            for piece in delta.get("tool_calls") or []:
                slot = self.calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
                function = piece.get("function") or {}
                slot["id"] = piece.get("id") or slot["id"]
                slot["name"] = function.get("name") or slot["name"]
                slot["arguments"] += function.get("arguments") or ""
        self.text += new
        return new

    def message(self):
        message = {"role": "assistant", "content": self.text}
        calls = []
        for _, slot in sorted(self.calls.items()):
            function = {"name": slot["name"], "arguments": slot["arguments"] or "{}"}
            calls.append({"id": slot["id"], "type": "function", "function": function})
        if calls:
            message["tool_calls"] = calls
        return message
