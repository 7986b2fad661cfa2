"""The second exercise of chapter 04: what does the model read in the place of a result that never came?

The answer is a text, in English or Chinese. It is searched for four statements, by phrases that people use for them.
This cannot judge every sentence: it is an exercise, and nothing in agentlab recognises messages by their wording.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from agentlab.check.interrupt import run_live
from agentlab.check.interrupt_solution import NOTE
from agentlab.check.report import Exercise, Finding, Live
from agentlab.errors import AgentLabError
from agentlab.language import say
from agentlab.loop import Hooks, Turn, run_turn
from agentlab.messages import Message, assistant, call, tool, user
from agentlab.pairing import INTERRUPT_NOTE
from agentlab.simulator import Simulator
from agentlab.tools import Registry

HINTS = (
    say(
        "Imagine that you are the model, and this text is all that you get. Why is there no result? What "
        "do you do next?"
    ),
    say(
        "Four things: what happened (an interruption), what did not happen (it never ran), what it does "
        "not mean (an error of the tool), and what may be done now."
    ),
    say('"aborted" says the first of them, and lets the model guess the rest. Write two or three short sentences.'),
)

_NO = r"(?:\b(?:not|no|never|nothing|none|neither|nor|without|cannot|rather than|instead of)\b|n['’]t\b)"
_RAN = r"(?:run|ran|start(?:ed)?|execut\w+|beg[aiu]n|launch\w*|invoked|happen(?:ed)?|take effect|took place|perform\w*)"
_SMALL = (
    r"(?:\W+(?:a|an|any|the|its|it|this|that|these|as|in|is|was|were|be|been|being|has|have|had|of|by|due|because|to|"
    r"for|kind|sort|sign|evidence|indicat\w+|impl\w+|mean\w*|suggest\w*|considered|counted|count|treat\w*|take|taken|"
    r"regard\w*|went|go|gone|itself|really|actually|report\w*|with|there|tools?|tool['’]s|calls?|command|real|caused))*"
)
_AGAIN = (
    r"(?:\b(?:retr(?:y|ied|ying)|re-?tr(?:y|ied)|re-?(?:run|call|issue|invoke|send|start|request|do|execut|mak)\w*|"
    r"repeat\w*|redo\w*)\b|"
    r"\b(?:call|run|issu|invok|us|try|tri|mak|made|execut|request|start|ask|send)\w*\b"
    r"(?:\W+(?!(?:not|never|no)\b)\w+){0,5}?"
    r"\W+(?:again|once more|anew|another time|afresh)\b)"
)
_HARDLY = r"(?:\W+(?:be|to|ever|try|need|needs|please|just|simply|make|safe|allowed|attempt|it|should|must|you|the))*"


@dataclass(frozen=True)
class Statement:
    """One thing that the note must say. `unless` marks places that only look like it."""

    name: str
    why: str
    english: str
    chinese: str
    unless: str = "(?!)"

    def stands_in(self, text: str) -> bool:
        """Whether some sentence says it."""
        return any(
            not re.search(self.unless + r"\W*$", sentence[: found.start()], re.I)
            for sentence in re.split(r"(?<=[.!?;。！？；])\s*", text)
            for found in re.finditer(f"{self.english}|{self.chinese}", sentence, re.I)
        )


STATEMENTS = (
    Statement(
        say("it says that the turn was interrupted"),
        say("Without a cause the model invents one: a crash, a full disk, a missing permission."),
        r"\b(?:interrupt\w*|abort\w*|cancel\w*|halted|stopp(?:ed|ing)|(?:press|hit|click)\w* (?:stop|esc|ctrl.c))\b",
        "中断|打断|中止|终止|停止|取消|叫停|喊停|按(?:下)?了?停",
    ),
    Statement(
        say("it says that the call did not run"),
        say("The model must know whether the file was written or the mail sent. This one never started: say so."),
        rf"{_NO}(?:\W+(?:been|have|has|had|get|got|was|were|be|even|actually|yet|ever|part|of|it|this|call|tool|the|at"
        rf"|all|did|to|a|single|step|chance))*\W+{_RAN}\b(?!\W+(?:to (?:completion|the end|its end)|fully|completely|"
        rf"entirely|through|properly|successfully|correctly))|\bbefore\b[^.]{{0,40}}\b{_RAN}\b",
        "(?:未|没有?|沒有?|从不)(?:被|有|能|曾|来得及|真正|实际|得到)*(?:运行|执行|开始|启动|调用|跑|生效|动)"
        "|(?:开始|启动|运行|执行)(?:之前|以前|前)",
    ),
    Statement(
        say("it says that this is no failure"),
        say("A model that reads of a failure looks for the fault, works around the tool, or gives it up."),
        rf"{_NO}{_SMALL}\W+(?:fail\w*|errors?|fault\w*|bugs?|broken|mistakes?|problems?|wrong|defects?|crash\w*)\b",
        "(?:不是|并非|非|没有?|不算|不代表|不表示|不意味着?|不说明|并不|无|而非|不属于|不要?当[作成])"
        "[^，。；,.;]{0,10}?(?:失败|错误|出错|故障|问题|报错|异常|错)",
    ),
    Statement(
        say("it says that the call may be made again"),
        say("The task is still open. A model that is not told so may think that you forbade the call."),
        _AGAIN,
        "重试|再试|(?:再次?|重新|重复|再度)(?:地)?(?:进行|发起|去)?(?:调用|执行|运行|尝试|请求|使用|来|跑)|重跑|重做",
        unless=rf"(?:(?:\b(?:not|never|cannot|avoid|without|no)\b|n['’]t\b){_HARDLY}|"
        r"(?:不要|别|勿|不能|不可以?|不得|禁止|不应该?|不许|无需|不用|不必|无法|切勿)[^，。；,.;]{0,3})",
    ),
)


def judge(answer: Any) -> list[Finding]:
    """One finding per statement. Raises AgentLabError when the answer is no text."""
    if not isinstance(answer, str):
        raise AgentLabError(say('Give check.wording the text itself: check.wording("...").'))
    text = " ".join(answer.split())
    missing = [each for each in STATEMENTS if not each.stands_in(text)]
    return [
        Finding(each.name, False, why=each.why) if each in missing else Finding(each.name, True) for each in STATEMENTS
    ]


READ = "In the place of a result I read: "


def _story(request: dict[str, Any]) -> str:
    notes = [str(message["content"]) for message in request["messages"] if message["role"] == "tool"]
    return READ + (notes[0] if notes else "nothing")


def _turn(answer: Any, sent: list[list[Message]]) -> Turn:
    mail = call("call_1", "send_mail", to="all")
    torn = [user("Send the invitation."), assistant("I send it.", mail), user("Has it been sent?")]

    def fill(history: list[Message]) -> list[Message]:
        return [*history[:2], tool("call_1", answer), *history[2:]]

    hooks = Hooks(repair=fill, before_request=sent.append)
    return run_turn(torn, Simulator(_story).client(), Registry(), hooks=hooks)


def turn(answer: Any) -> Turn:
    """A turn after an interruption, in which the text stands for the result of a call that never started."""
    return _turn(answer, [])


def live(answer: Any) -> Live:
    """Send the text. Any text is accepted, a false one too: that is the point."""
    sent: list[list[Message]] = []
    came = run_live(_turn(answer, sent), sent, answer, right=READ + answer)
    more = say("(The provider takes any words here. Nobody but you makes sure that they are true.)")
    return Live(came.passed, f"{came.said}\n{more}", came.history) if came.passed else came


SHOWN = (INTERRUPT_NOTE, "调用开始之前，用户中断了本轮：该工具没有运行。这不是错误，需要时可以再次调用。")

wording = Exercise("wording", judge=judge, turn=turn, live=live, hints=HINTS, solution=NOTE, shown=SHOWN)
