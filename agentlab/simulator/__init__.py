"""The offline provider: a simulator that keeps the vendors' rules, so that a refusal and a bill are real without a key.

    from agentlab.simulator import Simulator
    simulator = Simulator(["Hello!"])
    status, headers, chunks = simulator.respond({"model": "offline", "messages": [{"role": "user", "content": "Hi"}]})

What it says was written by us, never observed from a model. `Simulator` is the core; `.transport()` and `.client()` use
it in this process, `serve` and `run_server` over HTTP.
"""

from agentlab.simulator.core import Body, Hangup, Response, Simulator
from agentlab.simulator.faults import Fault
from agentlab.simulator.server import Served, run_server, serve

__all__ = ["Body", "Fault", "Hangup", "Response", "Served", "Simulator", "run_server", "serve"]
