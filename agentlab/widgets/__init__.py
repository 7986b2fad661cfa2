"""What takes input in a notebook: sliders, a Stop button, a chat, Allow and Deny. And `run_sync`, where no `await` is.

| module | what it gives |
|---|---|
| `explorer` | `explore(view, **sliders)`: a picture with sliders |
| `streamed` | `await stream(turn)`: a turn on the screen, with Stop |
| `askpanel` | `Policy(ask=AskPanel())`: Allow and Deny |
| `chatpanel` | `chat(agent)`: a conversation |
| `live` | the events of a turn as lines, and the pace at which they are drawn |
| `sync` | `run_sync(coro)` |

Everything shown comes from models, tools and people: it is escaped and bounded by `agentlab.draw`.
"""

from agentlab.widgets.askpanel import AskPanel
from agentlab.widgets.chatpanel import ChatAgent, ChatPanel, chat
from agentlab.widgets.explorer import Explorer, explore
from agentlab.widgets.streamed import StreamPanel, stream
from agentlab.widgets.sync import run_sync

__all__ = ["AskPanel", "ChatAgent", "ChatPanel", "Explorer", "StreamPanel", "chat", "explore", "run_sync", "stream"]
