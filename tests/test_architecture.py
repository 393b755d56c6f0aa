"""The rules of the house. A rule is changed here and in docs/architecture.md together."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from floors import APIS, CONTRACTS, MAY_IMPORT
from source_imports import NAME, circles, imports_of, is_ours, modules, tree

from mlc_llm.cli.commands import COMMANDS

ROOT = Path(__file__).parent.parent
MOST_FILE_LINES = 500
MOST_FUNCTION_LINES = 40
MOST_KERNEL_LINES = 60
LONG_KERNELS = 10
"""Functions of kernels that may have more than `MOST_FUNCTION_LINES`."""

LAZY = {
    ("mlc_llm.cli.__main__", "mlc_llm.cli.guard"),  # Ctrl-C must be in hand before anything else
    ("mlc_llm.cli.__main__", "mlc_llm.cli.parser"),
    ("mlc_llm.cli.__main__", "mlc_llm.cli.streams"),
    ("mlc_llm.cli.__main__", "mlc_llm.support.logging"),
    # A doctor must say if TVM does not load.
    ("mlc_llm.cli.checkup", "mlc_llm.backends.cpu.target"),
    ("mlc_llm.cli.checkup", "mlc_llm.backends.cpu.threads"),
    ("mlc_llm.backends.registry", "mlc_llm.backends.cuda.architectures"),
    ("mlc_llm.backends.registry", "mlc_llm.backends.cuda.backend"),
    ("mlc_llm.cli.checkup", "mlc_llm.backends.registry"),
    ("mlc_llm.cli.checkup", "mlc_llm.serve.opening.arguments"),
    ("mlc_llm.cli.fit", "mlc_llm.serve.opening.memory"),  # --help must not load TVM
    ("mlc_llm.cli.fit", "mlc_llm.serve.opening.precision"),
    ("mlc_llm.cli.convert_weight", "mlc_llm.conversion.calibration"),
    ("mlc_llm.conversion.convert", "mlc_llm.backends.cpu.k_searches"),  # TVM, for K types only
    ("mlc_llm.cli.compile", "mlc_llm.backends.registry"),
    ("mlc_llm.cli.compile", "mlc_llm.compiler.jit"),
    ("mlc_llm.cli.compile", "mlc_llm.serve.opening.bundle"),
    # Weights are read meanwhile; and --help must not load TVM.
    # Mistakes in the arguments are said before anything is loaded.
    ("mlc_llm.cli.serve", "mlc_llm.ray.run"),  # Ray, an extra
    ("mlc_llm.cli.serve", "mlc_llm.serve.server.calls.context"),
    ("mlc_llm.cli.serve", "mlc_llm.serve.server.listening"),
    ("mlc_llm.cli.serve", "mlc_llm.serve.server.pool.names"),
    ("mlc_llm.cli.serve", "mlc_llm.serve.server.pool.openers"),
    ("mlc_llm.cli.serve", "mlc_llm.serve.server.notes.otel"),  # OpenTelemetry, an extra
    ("mlc_llm.cli.serve", "mlc_llm.serve.server.pool.registry"),
    ("mlc_llm.cli.serve", "mlc_llm.serve.server.run"),
    ("mlc_llm.cli.remote", "mlc_llm.cli.remote_session"),  # http.client and ssl
    # Mistakes in the arguments are said before anything is loaded.
    ("mlc_llm.cli.bench", "mlc_llm.bench.client"),
    ("mlc_llm.cli.bench", "mlc_llm.bench.report"),
    ("mlc_llm.cli.bench", "mlc_llm.bench.run"),
    ("mlc_llm.cli.bench", "mlc_llm.bench.workload"),
    ("mlc_llm.cli.bench", "mlc_llm.cli.remote_session"),
    ("mlc_llm.cli.opening", "mlc_llm.support.light_tvm"),
    ("mlc_llm.support.distributions", "importlib.metadata"),  # for what is installed unusually
    ("mlc_llm.later_numpy", "numpy"),
    ("mlc_llm.support.light_tvm", "tvm_ffi"),  # without NumPy, which is imported with TVM itself
    ("mlc_llm.support.light_tvm", "ml_dtypes"),
    ("mlc_llm.support.light_tvm", "numpy"),
    ("mlc_llm.serve.opening.adapters", "mlc_llm.model_files.adapters"),  # few engines have adapters
    ("mlc_llm.cli.opening", "mlc_llm.cli.session"),
    ("mlc_llm.cli.opening", "mlc_llm.serve.sync_engine"),
    ("mlc_llm.cli.session", "mlc_llm.cli.answers"),  # the answer has been shown before
    ("mlc_llm.serve.metrics", "mlc_llm.serve.prometheus"),  # for pages of metrics only
    ("mlc_llm.serve.metrics", "mlc_llm.serve.serving_page"),
    # What `generate --raw` does not need is half of the time that its imports would take.
    ("mlc_llm.cli.conversation", "tempfile"),
    ("mlc_llm.cli.parser", "difflib"),
    ("mlc_llm.protocol.checks", "difflib"),
    ("mlc_llm.support.download", "zipfile"),
    ("mlc_llm.support.logging", "mlc_llm.support.log_thread"),
    ("mlc_llm.support.trust", "tempfile"),
    ("mlc_llm.serve.core.admission", "mlc_llm.images.decoder"),
    ("mlc_llm.serve.core.admission", "mlc_llm.images.picture"),
    ("mlc_llm.serve.core.sequence_state", "random"),
    ("mlc_llm.serve.data", "mlc_llm.images.decoder"),
    ("mlc_llm.serve.data", "mlc_llm.images.picture"),
    ("mlc_llm.cli.session", "mlc_llm.serve.openai.chat"),
    ("mlc_llm.serve.openai.chat", "mlc_llm.serve.openai.tools.history"),  # all forms of calls
    ("mlc_llm.serve.openai.chat", "mlc_llm.serve.openai.tools.families"),
    ("mlc_llm.serve.openai.chat", "mlc_llm.serve.openai.tools.tool_schema"),
    ("mlc_llm.images.sandbox", "PIL"),  # Pillow, an extra
    ("mlc_llm.images.reader", "mlc_llm.images.addresses"),  # http.client and ssl
    ("mlc_llm.serve.data", "mlc_llm.images.addresses"),
    ("mlc_llm.conversation_template", "mlc_llm.conversation_template.registry"),  # pydantic
    ("mlc_llm.ray", "mlc_llm.ray.app"),  # Ray, an extra
    ("mlc_llm", "mlc_llm.serve"),  # the version needs no engine, the contracts need no TVM
    ("mlc_llm.quantization", "mlc_llm.quantization.schemes"),  # all block formats
    ("mlc_llm.conversation_template.jinja", "mlc_llm.conversation_template.rendering"),  # jinja2
    ("mlc_llm.protocol.generation_rules", "mlc_llm.protocol.request_parts"),  # pydantic
    ("mlc_llm.serve.sync_engine", "mlc_llm.serve.openai.requests"),  # pydantic
    ("mlc_llm.serve.core.admission", "mlc_llm.serve.core.grammar.compiler"),  # llguidance
    ("mlc_llm.serve.opening.bundle", "mlc_llm.serve.opening.chat_config"),  # pydantic
    ("mlc_llm.models.registry", "mlc_llm.models.text_part"),  # of models with images only
    # Few models have experts, and a view of a tensor imports all block formats.
    ("mlc_llm.model_files.gguf_experts", "mlc_llm.model_files.tensor_views"),
    ("mlc_llm.model_files.ranking", "mlc_llm.quantization.ggml_blocks"),  # few models rank
    # Only folders need it, with all block formats.
    ("mlc_llm.serve.opening.bundle", "mlc_llm.model_files.huggingface"),
    ("mlc_llm.serve.opening.bundle", "mlc_llm.model_files.mlc"),
    ("mlc_llm.serve.opening.bundle", "mlc_llm.model_files.eagle"),
    ("mlc_llm.serve.opening.bundle", "mlc_llm.model_files.medusa"),
    ("mlc_llm.serve.opening.bundle", "mlc_llm.model_files.quantized"),
    ("mlc_llm.serve.opening.bundle", "mlc_llm.model_files.rescaled"),
    ("mlc_llm.serve.opening.settings", "mlc_llm.serve.opening.chat_config"),
    ("mlc_llm.compiler.jit", "mlc_llm.compiler.build"),  # a model found in the cache needs no TVM
    ("mlc_llm.compiler.jit", "mlc_llm.compiler.weights"),
    ("mlc_llm.backends.cpu.target", "tvm"),
    ("mlc_llm.backends.cpu.target", "tvm.target"),
    # What a backend needs to pack, to compile or to run is loaded in that moment.
    # Most engines draft with no second model, and do not echo.
    ("mlc_llm.serve.opening.open_engine", "mlc_llm.serve.core.mock_echo"),
    ("mlc_llm.serve.opening.open_engine", "mlc_llm.serve.core.speculation.draft_model"),
    ("mlc_llm.serve.opening.open_engine", "mlc_llm.serve.core.speculation.eagle"),
    ("mlc_llm.serve.opening.open_engine", "mlc_llm.serve.core.speculation.medusa"),
    # Few engines have ranks.
    ("mlc_llm.serve.opening.shares", "mlc_llm.model_files.shared"),
    ("mlc_llm.serve.opening.vision", "mlc_llm.serve.opening.towers"),
    ("mlc_llm.serve.opening.open_engine", "mlc_llm.serve.opening.towers"),
    ("mlc_llm.serve.opening.shares", "mlc_llm.runtime.ranks.group"),
    # Few engines publish events; for those that do, there are packages of an extra.
    ("mlc_llm.serve.opening.cache_events", "mlc_llm.serve.kv_events.ledger"),
    ("mlc_llm.serve.opening.cache_events", "mlc_llm.serve.kv_events.publisher"),
    ("mlc_llm.serve.kv_events.publisher", "msgspec.msgpack"),
    ("mlc_llm.serve.kv_events.publisher", "zmq"),
    ("mlc_llm.backends.cpu.layout", "mlc_llm.backends.cpu.packing"),
    ("mlc_llm.backends.cpu.layout", "mlc_llm.quantization.block_format"),
    ("mlc_llm.backends.registry", "mlc_llm.backends.reference.backend"),
    ("mlc_llm.backends.registry", "mlc_llm.backends.cuda.driver"),  # if a GPU is asked for
    ("mlc_llm.backends.registry", "mlc_llm.backends.cuda.state"),
    ("mlc_llm.backends.cuda.backend", "mlc_llm.backends.cuda.checks"),
    ("mlc_llm.backends.cuda.backend", "mlc_llm.backends.cuda.codegen"),
    ("mlc_llm.backends.cuda.backend", "mlc_llm.backends.cuda.device"),
    ("mlc_llm.backends.cuda.backend", "mlc_llm.backends.cuda.gpu_ranks"),
    ("mlc_llm.backends.cuda.backend", "mlc_llm.kernels.cuda.matmul_hopper"),
    ("mlc_llm.backends.cuda.backend", "mlc_llm.backends.cuda.ops"),
    ("mlc_llm.backends.cuda.layout", "mlc_llm.backends.cuda.packing"),
    ("mlc_llm.backends.cuda.layout", "mlc_llm.quantization.block_format"),
    ("mlc_llm.backends.cpu.backend", "mlc_llm.backends.cpu.checks"),
    ("mlc_llm.backends.cpu.backend", "mlc_llm.backends.cpu.codegen"),
    ("mlc_llm.backends.cpu.backend", "mlc_llm.backends.cpu.device"),
    ("mlc_llm.backends.cpu.backend", "mlc_llm.backends.cpu.layout"),
    ("mlc_llm.backends.cpu.backend", "mlc_llm.backends.cpu.ops"),
    ("mlc_llm.backends.reference.backend", "mlc_llm.backends.cpu.codegen"),
    ("mlc_llm.backends.reference.backend", "mlc_llm.backends.cpu.device"),
    ("mlc_llm.backends.reference.backend", "mlc_llm.backends.reference.layout"),
    ("mlc_llm.backends.reference.backend", "mlc_llm.backends.reference.ops"),
    ("mlc_llm.backends.reference.backend", "tvm"),
    ("mlc_llm.support.progress", "rich"),  # of use on a terminal only
    ("mlc_llm.support.progress", "rich.console"),
    # A GGUF file holds its vocabulary.
    ("mlc_llm.tokenizers.tokenizer", "mlc_llm.tokenizers.folder"),
    ("mlc_llm.support.hub_model", "mlc_llm.support.hub"),  # HTTP is for downloads only
    ("mlc_llm.support.hub_model", "mlc_llm.support.hub_download"),
}
"""The closed list of imports inside functions: importer -> imported."""

NO_TVM = (
    "protocol",
    "serve.data",
    "serve.core",
    "serve.core.grammar",
    "serve.core.speculation",
    "tokenizers",
    "loader",
    "conversation_template",
)
NO_TVM_IN_FILES = (*NO_TVM, "serve.openai", *sorted(APIS), "serve.streams", "cli", "errors", "")
WEB = {"starlette", "uvicorn", "fastapi", "h11"}
NEVER_AT_RUN_TIME = {"torch", "transformers"}
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}


@cache
def part(module: str) -> str:
    """The name in MAY_IMPORT that says most about a module."""
    inner = module.removeprefix(NAME).lstrip(".")
    fitting = [name for name in MAY_IMPORT if inner == name or inner.startswith(name + ".")]
    assert inner == "" or any(fitting), f"{module}: give its folder a line in MAY_IMPORT"
    return max(fitting, key=len)


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Length of a function without its docstring and the functions inside it."""
    last = node.end_lineno or node.lineno
    total = last - node.lineno + 1
    if ast.get_docstring(node) is not None:
        text = node.body[0]
        total -= (text.end_lineno or text.lineno) - text.lineno + 1
    inner = [n for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n is not node]
    return total - sum(lines_of(one) for one in inner if _directly_inside(one, node))


def _directly_inside(inner: ast.AST, outer: ast.AST) -> bool:
    """No other function lies between the two."""
    return any(
        child is inner
        or (not isinstance(child, ast.FunctionDef) and _directly_inside(inner, child))
        for child in ast.iter_child_nodes(outer)
    )


def project_files() -> list[Path]:
    """Every text file of the project, without what tools make."""
    folders = ("python", "tests", "scripts", "docs", "examples", "benchmarks", "deploy", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    not_ours = ("LICENSE", ".git")  # the second is a file in a linked worktree
    files += [path for path in ROOT.iterdir() if path.is_file() and path.name not in not_ours]
    made = {"__pycache__", "mlc_llm.egg-info"}
    no_text = {".pyc", ".png"}
    return [path for path in files if not made & set(path.parts) and path.suffix not in no_text]


def test_files_are_short() -> None:
    python = [path for path in project_files() if path.suffix == ".py"]
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python}
    assert {str(p): n for p, n in lengths.items() if n > MOST_FILE_LINES} == {}


def test_functions_are_short() -> None:
    plain = [module for module in modules() if ".kernels" not in module]
    found = [longer_functions(module) for module in plain]
    assert [one for one in found if one] == []


def test_functions_of_kernels_are_short() -> None:
    # A kernel is one nest of loops with its buffers, so a few of them may be longer.
    found = {}
    for module in modules():
        if ".kernels" in module:
            found.update(longer_functions(module))
    assert len(found) <= LONG_KERNELS, found
    assert {name: lines for name, lines in found.items() if lines > MOST_KERNEL_LINES} == {}


def longer_functions(module: str) -> dict[str, int]:
    """Lines of the functions of a module that have more than `MOST_FUNCTION_LINES`, by name."""
    functions = [n for n in ast.walk(tree(module)) if isinstance(n, ast.FunctionDef)]
    lengths = {f"{module}.{one.name}": lines_of(one) for one in functions}
    return {name: lines for name, lines in lengths.items() if lines > MOST_FUNCTION_LINES}


def test_no_circle_of_files() -> None:
    assert circles() == []


def test_imports_go_down() -> None:
    wrong = [
        str(one)
        for module in modules()
        for one in imports_of(module)
        if is_ours(one.imported)
        and part(one.imported) != part(module)
        and part(one.imported) not in MAY_IMPORT[part(module)]
        and (part(one.imported), one.imported) != ("", NAME)  # the version
    ]
    assert wrong == []


def test_the_table_has_no_dead_lines() -> None:
    parts = {part(module) for module in modules()}
    assert set(MAY_IMPORT) - parts == set()


def test_commands_are_loaded_by_the_table_alone() -> None:
    commands = {command.module for command in COMMANDS}
    wrong = [one for m in modules() for one in imports_of(m) if one.imported in commands]
    assert [str(one) for one in wrong] == []


def test_lazy_imports_are_a_closed_list() -> None:
    lazy = {
        (one.importer, one.imported)
        for module in modules()
        for one in imports_of(module)
        if one.inside
    }
    assert lazy == LAZY


def test_imports_nothing_heavy_or_unsafe() -> None:
    for module in modules():
        roots = {one.imported.split(".", maxsplit=1)[0] for one in imports_of(module)}
        assert roots & (NEVER_AT_RUN_TIME | UNSAFE_MODULES) == set(), module
        if not module.startswith((f"{NAME}.serve.server", f"{NAME}.ray.")):
            assert roots & WEB == set(), module
        if part(module) in NO_TVM_IN_FILES or part(module) in CONTRACTS:
            assert {root for root in roots if root.startswith("tvm")} == set(), module


def test_runs_no_text_as_code() -> None:
    wrong = re.compile(r"trust_remote_code|shell=True|os\.system|torch\.load")
    for module, path in modules().items():
        called = {
            node.func.id
            for node in ast.walk(tree(module))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        # A record's `__init__` is compiled out of names of fields, as a dataclass's is.
        allowed = {"exec"} if module == f"{NAME}.record" else set()
        assert called & {"eval", "exec", "compile", "__import__"} == allowed, module
        assert wrong.search(path.read_text(encoding="utf-8")) is None, module


def test_named_tuples_have_no_other_base() -> None:
    """Python 3.10 refuses the others, and then nothing that imports them works there."""
    found = [
        f"{name}.{one.name}"
        for name in modules()
        for one in ast.walk(tree(name))
        if isinstance(one, ast.ClassDef) and len(one.bases) > 1
        if any(isinstance(base, ast.Name) and base.id == "NamedTuple" for base in one.bases)
    ]
    assert found == []


def test_names_no_place_or_person_of_its_making() -> None:
    # Absolute places of one machine, and numbers of tickets, mean nothing to a reader.
    wrong = re.compile(
        r"(?<![\w.~}])/(?:work|root|home)/\w|\bhelper [A-Z]\b|\bissue #?\d"
        r"|\bthe lead's\b|\bshared/(?:design|spec|probes|reference|bench)\b"
    )
    found = []
    for path in project_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if wrong.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert found == []


def in_fresh_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


REPORT = "import sys; print(' '.join(sorted({name.split('.')[0] for name in sys.modules})))"


def test_the_core_and_the_protocol_need_no_tvm() -> None:
    names = [m for m in modules() if part(m) in {"", "errors", *NO_TVM, *CONTRACTS}]
    names += [m for m in modules() if part(m) in ("serve.openai", "serve.streams")]
    # A stronger form of the rule: TVM cannot even be found.
    block = "import sys; sys.modules['tvm'] = sys.modules['tvm_ffi'] = None; "
    wanted = {f"{NAME}.serve.core.engine_core", f"{NAME}.serve.data", f"{NAME}.serve.openai.chat"}
    assert wanted <= set(names)
    loaded = in_fresh_process(block + f"import {', '.join(names)}; " + REPORT).split()
    assert not set(loaded) & (WEB | NEVER_AT_RUN_TIME)


def test_the_command_line_loads_no_tvm_before_it_is_needed() -> None:
    names = ", ".join(m for m in modules() if part(m) == "cli" and not m.endswith("__main__"))
    loaded = in_fresh_process(f"import {names}, {NAME}.cli.__main__; " + REPORT).split()
    assert not {"tvm", "tvm_ffi", "rich"} & set(loaded)


def test_the_engines_load_no_compiler_before_it_is_needed() -> None:
    names = [f"{NAME}.serve.sync_engine", f"{NAME}.serve.threaded_engine", f"{NAME}.json_ffi"]
    loaded = in_fresh_process(f"import {', '.join(names)}; " + REPORT).split()
    assert "tvm_ffi" in loaded
    assert "tvm" not in loaded


def test_a_raw_prompt_loads_only_what_it_needs() -> None:
    names = f"{NAME}.cli.generate, {NAME}.serve.sync_engine"
    loaded = in_fresh_process(f"import {names}; " + REPORT).split()
    assert not {"pydantic", "jinja2", "llguidance", "tvm"} & set(loaded)
    config = f"from {NAME}.protocol.generation_config import GenerationConfig; "
    used = "c = GenerationConfig.from_json(GenerationConfig(n=2, seed=1).asjson()); c.needs_grammar"
    assert "pydantic" not in in_fresh_process(config + used + "; " + REPORT).split()


def test_weights_are_read_before_anything_heavy_is_loaded() -> None:
    names = f"{NAME}.cli.generate, {NAME}.cli.opening, {NAME}.cli.early"
    loaded = in_fresh_process(f"import {names}; " + REPORT).split()
    assert not {"numpy", "tokenizers", "tvm_ffi"} & set(loaded)


def test_nothing_but_the_server_loads_a_web_framework() -> None:
    mains = "__main__"
    web = ("serve.server", "ray")  # Ray's ingress has the server's routes
    names = [m for m in modules() if not part(m).startswith(web) and not m.endswith(mains)]
    loaded = in_fresh_process(f"import {', '.join(names)}; " + REPORT).split()
    assert not set(loaded) & (WEB | NEVER_AT_RUN_TIME)
    assert "tvm" in loaded


def test_the_documented_folders_are_those_that_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = {path.parent.name for path in modules().values() if path.parent.name != NAME}
    assert {folder for folder in folders if f"`{folder}/`" not in text} == set()


def test_no_two_test_files_have_one_name() -> None:
    """pytest imports them by it."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted({name for name in names if names.count(name) > 1}) == []
