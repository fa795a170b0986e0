"""Records what the functions of other packages take, in `signatures.json` beside this: `python releases.py FOLDER`, where pip puts the packages (600 MB).

They are read by `ast`, so none of them is installed. A release's file has a dictionary of its public functions and methods; a class without a method
`__init__` has its fields there. An argument whose default is no literal has `...` as its default. Behind ` | ` stand the names that a function reads of its `**kwargs`,
or of what its object was made with.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

RECORD = Path(__file__).with_name("signatures.json")
PIPES = ("compiler", "fusion_rules", "legalization", "op", "operators", "pipeline", "processors", "types", "validators")
KERNELS = (
    "common",
    "generic",
    "gumbel",
    "min_p",
    "topk_topp",
    "topp",
    "penalties",
    "probability",
    "logprobs",
    "verify",
    "tree_verify",
)
# The files of each release whose names stand here, and which of the names, as a pattern.
RELEASES: dict[str, dict[str, str]] = {
    "flashinfer-python==0.7.4": {"sampling.py": "*", **{f"logits_processor/{name}.py": "*" for name in PIPES}},
    "sglang==0.5.23": {
        "kernels/ops/speculative/sampling.py": "*",
        "kernels/ops/speculative/tree.py": "verify_tree_greedy",
        "kernels/ops/speculative/reject_sampling.py": "chain_speculative_sampling_triton",
        "srt/speculative/eagle_utils.py": "eagle_sample",
    },
    "tokenspeed==0.1.1": {
        "runtime/sampling/backends/base.py": "SamplingBackend.*",
        "runtime/sampling/sampling_params.py": "SamplingParams",
    },
    "tokenspeed-kernel==0.1.4": {
        "ops/sampling/__init__.py": "*",
        **{f"ops/sampling/triton/{name}.py": "*" for name in KERNELS},
        "thirdparty/cuda/sampling_chain.py": "*",
        "thirdparty/cuda/fused_topk_topp.py": "*",
    },
    "vllm==0.33.0": {
        "v1/worker/gpu/spec_decode/rejection_sampler.py": "RejectionSampler.*",
        "sampling_params.py": "SamplingParams",
    },
    "llama-cpp-python==0.3.36": {"llama.py": "Llama._init_sampler"},
    "trl==1.16.0": {"trainer/utils.py": "selective_log_softmax*"},
    "verl==0.9.1": {"utils/torch_functional.py": "logprobs_from_logits"},
    "liger-kernel==0.8.5": {
        "ops/fused_linear_scaled_cross_entropy.py": "LigerFusedLinearScaledCrossEntropyFunction.apply"
    },
}
FOLDERS = {"flashinfer-python": "flashinfer", "llama-cpp-python": "llama_cpp"}


def text_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """A function's arguments, without types."""
    given = function.args
    for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg):
        if one is not None:
            one.annotation = None

    def plain(default: ast.expr) -> ast.expr:
        try:
            ast.literal_eval(default)
        except ValueError:
            return ast.Constant(...)
        return default

    given.defaults = [plain(one) for one in given.defaults]
    given.kw_defaults = [None if one is None else plain(one) for one in given.kw_defaults]
    text = ast.unparse(given)
    read = sorted(set(names_read(function)))
    return f"{text} | {', '.join(read)}" if read else text


def names_read(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """The names that a function takes out of dictionaries of parameters."""
    for node in ast.walk(function):
        key: ast.expr | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            holder = ast.unparse(node.func.value).split(".")[-1]
            if node.func.attr == "_get_param" or holder in ("kwargs", "default_params", "params"):
                key = node.args[0]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "kwargs":
            key = node.slice
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield key.value


def functions_of(source: str, pattern: str) -> dict[str, str]:
    """The functions of a file whose names fit a pattern."""
    found: dict[str, str] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in found:
            found |= {ast.unparse(target): found[node.value.id] for target in node.targets}
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            found[node.name] = text_of(node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            methods = {one.name: text_of(one) for one in node.body if isinstance(one, ast.FunctionDef)}
            public = {name for name in methods if not name.startswith("_")} | methods.keys() & {
                "__init__",
                "__call__",
                "_init_sampler",
            }
            found |= {f"{node.name}.{name}": methods[name] for name in methods if name in public}
            fields = [
                one.target.id
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            ]
            if "__init__" not in methods and fields:
                found[node.name] = ", ".join(fields)
    return {name: text for name, text in found.items() if fnmatchcase(name, pattern)}


def files_of(package: Path) -> Iterator[tuple[str, bytes]]:
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            for name in wheel.namelist():
                if name.endswith(".py"):
                    yield name, wheel.read(name)
    else:
        with tarfile.open(package) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.name.endswith(".py") else None
                if file is not None:
                    yield member.name.partition("/")[2], file.read()


def download(folder: Path, release: str) -> Path:
    """The package of a release, which pip brings into a folder where it is not there."""
    found = f"{release.replace('-', '_').replace('==', '-')}[-.]*"
    if not list(folder.glob(found)):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), release]
        subprocess.run(pip, check=True)
    (package,) = folder.glob(found)
    return package


def main(folder: Path) -> None:
    recorded = {}
    for release, wanted in RELEASES.items():
        name = release.partition("==")[0]
        under = FOLDERS.get(name, name.replace("-", "_"))
        files = files_of(download(folder, release))
        sources = {path.removeprefix(f"{under}/"): text for path, text in files if path.startswith(f"{under}/")}
        recorded[release] = {path: functions_of(sources[path].decode(), pattern) for path, pattern in wanted.items()}
    RECORD.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
