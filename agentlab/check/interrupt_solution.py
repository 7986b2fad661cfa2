# mypy: allow-untyped-defs, no-check-untyped-defs
"""One solution of each exercise, as a reader would write it: chapter 04 shows them, so each stands alone."""

import json

NOTE = "Interrupted before it started: this call did not run. That is no error, and it may be called again."


def repair(history):
    sent, calls, results, rest = [], [], {}, []

    def close_window():
        for call in calls:
            note = {"role": "tool", "tool_call_id": call["id"], "content": NOTE}
            sent.append(results.get(call["id"], note))
        sent.extend(rest)

    for message in history:
        if message["role"] == "assistant":  # the window of the calls before ends here
            close_window()
            calls, results, rest = [], {}, []
            for call in message.get("tool_calls", []):
                try:
                    json.loads(call["function"]["arguments"])
                except ValueError:
                    call = {**call, "function": {**call["function"], "arguments": "{}"}}
                calls.append(call)
            sent.append({**message, "tool_calls": calls} if calls else message)
        elif message["role"] != "tool":
            rest.append(message)
        elif message["tool_call_id"] in [call["id"] for call in calls if call["id"] not in results]:
            results[message["tool_call_id"]] = message
        else:
            rest.append({"role": "user", "content": f"A result without a call: {message['content']}"})
    close_window()
    return sent


def steering(history, results, words):
    return [*history, *results, *({"role": "user", "content": word} for word in words)]
