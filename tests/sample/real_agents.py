"""An agent for a small real model that was trained on plain text: it is shown what to do."""

from brainhands import Agent


def _shown(text: str) -> str:
    call = f'<tool_call>\n{{"name": "echo", "arguments": {{"text": "{text}"}}}}\n</tool_call>'
    return f"user:\necho {text}\n\nassistant:\n{call}\n\ntool:\n{text}\n\nassistant:\n{text}"


parrot = Agent(
    name="parrot",
    version=1,
    instructions="\n\n".join(["Repeat by the tool.", *map(_shown, ("good evening", "red apples", "seven"))]),
    tools=["echo"],
    options={"temperature": 0, "max_tokens": 60, "stop": ["\n\n"]},
    retries=2,
)
