"""The Hands fleet's Celery app, with tools from BRAINHANDS_TOOLS.

`celery -A brainhands.hands.app worker -Q hands.default` runs it.
"""

from __future__ import annotations

from operator import attrgetter

from brainhands.hands.calls import tool_kind
from brainhands.hands.flows import flow_kind
from brainhands.hands.loading import tools_in
from brainhands.shared.bus.celery_app import celery_app
from brainhands.shared.bus.topics import HANDS_QUEUE, HANDS_TASK
from brainhands.shared.engine.definition import registry
from brainhands.shared.engine.fleet import Fleet, Offering, refusing
from brainhands.shared.errors import BadDefinition
from brainhands.shared.model.worker import Offer
from brainhands.shared.runtime.settings import addresses, settings


def load(pool: str) -> Offering:
    """What a Hands worker of a pool runs: the tools and flows that belong to it. Raises BadDefinition."""
    loaded = tools_in(settings().tools)
    tools = [tool for tool in loaded.tools if tool.pool == pool]
    flows = [flow for flow in loaded.flows if flow.definition.pool == pool]
    if not tools and not flows:
        others = {tool.pool for tool in loaded.tools} | {flow.definition.pool for flow in loaded.flows}
        raise BadDefinition(
            f"there is no tool or flow of pool {pool} in"
            f" {', '.join(settings().tools) or 'BRAINHANDS_TOOLS, which is not set'}",
            f"start it with -Q {' or -Q '.join(sorted(others))}" if others else "name modules in BRAINHANDS_TOOLS",
        )
    kinds = (*(tool_kind(tool) for tool in tools), *(flow_kind(flow) for flow in flows))
    limits = {tool.kind: tool.concurrency for tool in sorted(loaded.tools, key=attrgetter("version"))}
    offers = tuple(
        Offer(name=kind.name, low=kind.versions[0], high=kind.version, concurrency=limits.get(kind.name))
        for kind in kinds
    )
    specs = (*(tool.spec() for tool in tools), *(flow.definition.spec() for flow in flows))
    return Offering(registry=registry(kinds, offers), specs=specs)


with refusing():
    celery = celery_app("hands", redis_url=addresses().redis_url, queue=HANDS_QUEUE, pool="prefork")
    fleet = Fleet(celery, role="hands", task_name=HANDS_TASK, load=load, ends_process=True)
