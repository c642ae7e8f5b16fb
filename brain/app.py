"""The Brain fleet's Celery app, with agents from BRAINHANDS_AGENTS.

`celery -A brainhands.brain.app worker -Q brain.default` runs it.
"""

from __future__ import annotations

from brainhands.shared.bus.celery_app import celery_app
from brainhands.shared.bus.topics import BRAIN_QUEUE, BRAIN_TASK
from brainhands.shared.engine.definition import registry
from brainhands.shared.engine.fleet import Fleet, Offering, refusing
from brainhands.shared.errors import BadDefinition, SettingsError
from brainhands.shared.model.worker import Offer
from brainhands.shared.runtime.extras import require
from brainhands.shared.runtime.settings import addresses, settings

with refusing():
    require("brain")
    from brainhands.brain.background import response_cancel_kind
    from brainhands.brain.compaction import compaction_kind
    from brainhands.brain.generation import generation_kind, intake_kind
    from brainhands.brain.loading import agents_in
    from brainhands.brain.models.dialects import NAMES
    from brainhands.brain.subagent import agent_kind, agent_specs


def load(_pool: str) -> Offering:
    """What a Brain worker runs: generations of its agents, and what goes with them. Raises BadDefinition."""
    if settings().dialect not in (None, *NAMES):
        raise SettingsError("BRAINHANDS_DIALECT", f"must be one of {', '.join(NAMES)}")
    agents = {
        (agent.name, agent.version): agent for versions in agents_in(settings().agents).values() for agent in versions
    }
    if not agents:
        raise BadDefinition(
            f"there is no agent in {', '.join(settings().agents) or 'BRAINHANDS_AGENTS, which is not set'}",
            "name modules, YAML files or folders with agents in BRAINHANDS_AGENTS",
        )
    offers = tuple(Offer(name=f"agent:{agent.name}", low=agent.oldest, high=agent.version) for agent in agents.values())
    kinds = (generation_kind(agents), compaction_kind(agents), intake_kind(), response_cancel_kind())
    calls = map(agent_kind, agents.values())
    return Offering(registry=registry((*kinds, *calls), offers), specs=agent_specs(agents.values()))


with refusing():
    celery = celery_app("brain", redis_url=addresses().redis_url, queue=BRAIN_QUEUE, pool="threads")
    fleet = Fleet(celery, role="brain", task_name=BRAIN_TASK, load=load, ends_process=False)
