"""What an engine holds at this moment."""

from __future__ import annotations

from mlc_llm.runtime.batch import Runner
from mlc_llm.serve.core.scheduler import Scheduler


def gauges(scheduler: Scheduler, runner: Runner) -> dict[str, float]:
    """Requests, pages and preemptions. It looks at each running and waiting sequence once."""
    in_work = {one.request for one in scheduler.running}
    waiting = {one.request for one in scheduler.waiting} - in_work
    pages, size = runner.limits.num_pages, runner.limits.page_size
    used = pages - runner.free_pages
    needed = sum(-(-one.progress.computed // size) for one in scheduler.running)
    return {
        "num_requests_running": len(in_work),
        "num_requests_waiting": len(waiting),
        "num_preemptions": scheduler.num_preemptions,
        "kv_pages": pages,
        "kv_pages_used": used,
        # What the prefix cache keeps is given back as soon as it is needed. Pages that running
        # sequences share are counted for each of them, but no more than are used.
        "kv_cache_usage": min(used, needed) / pages if pages else 0.0,
        "prefix_cache_sequences": scheduler.slots.cache.num_kept,
    }
