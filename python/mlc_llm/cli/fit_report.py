"""The output of `mlc_llm fit`: the parts of the memory, and what each mode needs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from mlc_llm.record import record
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.memory_plan import MemoryPlan, ModelSize
from mlc_llm.serve.precision_costs import PrecisionCost, fastest

_LIMITS = {
    "sequences": "max_num_sequence",
    "context": "max_single_sequence_length",
    "tokens": "max_total_sequence_length",
    "chunk": "prefill_chunk_size",
}
"""Column of the table of modes -> the field that it shows."""


@record()
class Choice:
    """What a mode needs. `config` has all limits. A mode that does not fit has a `reason`, and its
    tokens are the least that an engine needs.
    """

    config: EngineConfig
    plan: MemoryPlan
    reason: str | None

    @property
    def tokens(self) -> int:
        """The tokens that fit into the KV cache."""
        return self.config.max_total_sequence_length or 0

    @property
    def total(self) -> int:
        """The bytes of all parts."""
        return self.plan.total(self.tokens)

    def terms(self) -> dict[str, tuple[int, str]]:
        """The bytes of each part and what they are for. Their sum is `total`."""
        plan, config = self.plan, self.config
        of_layers = {
            "windowed_kv": (plan.windowed, "pages of layers with a window of their own"),
            "states": (plan.states, "of layers that keep a state for each sequence"),
        }
        return {
            "weights": (plan.weights, "as the kernels hold them"),
            **({"draft_model": (plan.draft, "weights and workspace")} if plan.draft else {}),
            **({"adapters": (plan.adapters, "slots of LoRA adapters")} if plan.adapters else {}),
            **({"tower": (plan.tower, "tower of images")} if plan.tower else {}),
            "activations": (plan.activations, f"of {config.prefill_chunk_size} tokens in a step"),
            "logits": (plan.logits, f"of {config.max_num_sequence} sequences, with sampling"),
            "rope": (plan.rope, f"of positions up to {config.max_single_sequence_length}"),
            "runtime": (plan.runtime, "for code, threads and requests"),
            **{name: term for name, term in of_layers.items() if term[0]},
            "kv_cache": (
                self.total - plan.total(0),
                f"for {self.tokens} tokens of {plan.kv_per_token} bytes",
            ),
        }

    def values(self) -> dict[str, object]:
        """The values for JSON."""
        limits = {name: getattr(self.config, name) for name in _LIMITS.values()}
        sizes = {name: size for name, (size, _) in self.terms().items()}
        return {
            "fits": self.reason is None,
            "reason": self.reason,
            **limits,
            "bytes": {**sizes, "total": self.total, "budget": self.plan.budget},
            "tokens_that_fit": max(self.plan.fit, 0),
        }


@record()
class Report:
    """One model on this machine."""

    model: str
    size: ModelSize
    mode: str
    choices: Mapping[str, Choice]
    costs: Sequence[PrecisionCost] = ()
    """Of each precision, if they were measured."""

    @property
    def chosen(self) -> Choice:
        """The choice of the mode that was asked for."""
        return self.choices[self.mode]

    def asjson(self) -> str:
        """One JSON object. Sizes are in bytes."""
        values = {
            "model": self.model,
            "mode": self.mode,
            "free_bytes": self.chosen.plan.free,
            "promised": self.chosen.plan.promised,
            "gpu_memory_utilization": self.chosen.plan.utilization,
            "kv_bytes_per_token": self.size.kv_bytes_per_token,
            "context_window": self.size.context_window,
            "modes": {mode: choice.values() for mode, choice in self.choices.items()},
            "precisions": [asdict(one) for one in self.costs],
        }
        return json.dumps(values, indent=2) + "\n"

    def astext(self) -> str:
        """The report for a person."""
        chosen, size = self.chosen, self.size
        layers = sum(group.layers for group in size.groups)
        what = f"{layers} layers" if layers else "no layer with attention"
        kept = f"{8 * size.groups[0].element_bytes}-bit keys and values" if layers else "states"
        head = (
            f"{self.model}: {'an encoder' if size.is_encoder else what}, "
            f"a context window of {size.context_window} tokens, {kept}"
        )
        lines = [head, "", *_terms(chosen), "", *self._modes(), ""]
        lines += [] if size.is_encoder else [*self._precisions(), ""]
        lines.append(_verdict(chosen, is_encoder=size.is_encoder))
        return "\n".join(lines) + "\n"

    def _precisions(self) -> list[str]:
        if not self.costs:
            return ["What each precision costs is not known; --precisions measures it."]
        auto = fastest(self.costs).precision
        rows = [
            f"{('* ' if one.precision == auto else '  ') + one.precision:16}{one.astext()}"
            for one in self.costs
        ]
        return ["precision (* is what auto takes)", *rows]

    def _modes(self) -> list[str]:
        columns = "".join(f"{name:>12}" for name in _LIMITS)
        lines = [f"{'mode':14}{columns}{'MiB':>12}"]
        for mode, choice in self.choices.items():
            numbers = [getattr(choice.config, name) for name in _LIMITS.values()]
            row = "".join(f"{number:>12}" for number in numbers)
            mark = "* " if mode == self.mode else "  "
            fits = "" if choice.reason is None else "  does not fit"
            lines.append(f"{mark + mode:14}{row}{_mib(choice.total)}{fits}")
        return lines


def _terms(choice: Choice) -> list[str]:
    plan = choice.plan
    lines = [f"{'memory':14}{'bytes':>24}{'MiB':>12}"]
    for name, (size, source) in choice.terms().items():
        lines.append(f"{'  ' + name.replace('_', ' '):14}{size:>24,}{_mib(size)}  {source}")
    promised = f" ({plan.promised})" * bool(plan.promised)
    share = f"{plan.utilization:.0%} of {plan.free:,} free{promised}"
    return [
        *lines,
        f"{'  total':14}{choice.total:>24,}{_mib(choice.total)}",
        f"{'  may be used':14}{plan.budget:>24,}{_mib(plan.budget)}  {share}",
    ]


def _verdict(choice: Choice, *, is_encoder: bool) -> str:
    if choice.reason is not None:
        return f"It does not fit. {choice.reason}"
    if is_encoder:
        return "It fits. Nothing of a text is kept, so more memory would change nothing."
    return f"It fits; with all of it there would be room for {choice.plan.fit} tokens."


def _mib(size: int) -> str:
    return f"{size / 2**20:>12,.1f}"
