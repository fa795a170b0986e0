"""What a run on a GPU found, as one JSON file under proof/bench/record: complete, so that tables can be printed again."""

import json
import os
import platform
import subprocess
import time
from pathlib import Path

import plan

FORMAT = 2
OURS = "gumball"
# The lists whose elements have a line each in the file.
LISTS = ("results", "curve", "skipped")
# What tells results apart.
WHICH = ("engine", "task", "does", "given", "vocab", "dtype", "rows", "rows_like", "mode")


def said_by(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def machine():
    gpu = said_by("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader")
    root = Path(__file__).parents[3]
    built = root / ".gpu/commit"
    return {
        "gpu": gpu.splitlines()[0] if gpu else "",
        "processors": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}".lower(),
        "python": platform.python_version(),
        "commit": built.read_text().strip() if built.exists() else "",
    }


class Record:
    def __init__(self, part="all", budget_s=0):
        run = {
            "part": part,
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine(),
            "budget_s": budget_s,
        }
        self.whole = {
            "format": FORMAT,
            "place": "gpu",
            "runs": [run],
            "settings": {
                "temperature": plan.TEMPERATURE,
                "top_k": plan.TOP_K,
                "top_p": plan.TOP_P,
                "min_p": plan.MIN_P,
                "cold_bytes": plan.COLD_BYTES,
            },
            "fields": plan.FIELDS,
            "engines": [],
            "results": [],
            "curve": [],
            "skipped": [],
        }

    @classmethod
    def read(cls, path):
        record = cls.__new__(cls)
        record.whole = json.loads(Path(path).read_text())
        if (record.whole.get("place"), record.whole.get("format")) != ("gpu", FORMAT):
            raise ValueError(f"{path} is no record of the GPU bench, format {FORMAT}")
        return record

    @property
    def run(self):
        return self.whole["runs"][-1]

    @property
    def results(self):
        return self.whole["results"]

    @property
    def curve(self):
        return self.whole["curve"]

    def took_part(self, engine, version, runtime=""):
        if engine not in [other["engine"] for other in self.whole["engines"]]:
            self.whole["engines"].append({"engine": engine, "version": version, "runtime": runtime})

    def result(self, to="results", **found):
        """Keeps a result; fields that it lacks are the fields of a whole call on model-like logits in f32."""
        found = {"does": "", "given": "logits", "dtype": "f32", "rows_like": "model", "objection": None, **found}
        missing = {"engine", "task", "vocab", "rows", "mode", "median_us", "p95_us"} - found.keys()
        if missing:
            return self.skip(found.get("engine", ""), reason=f"a result without {', '.join(sorted(missing))}")
        values = {name: found[name] for name in plan.FIELDS if name in found}
        self.whole[to].append({n: round(v, 3) if isinstance(v, float) else v for n, v in values.items()})

    def skip(self, engine, reason, **which):
        self.whole["skipped"].append({"engine": engine, **which, "reason": reason})

    def join(self, other):
        """Takes another run's record in; of a result that both have, the other's stays, and of a skip what still is one."""
        self.whole["runs"] += other.whole["runs"]
        self.whole["fields"] = other.whole["fields"]
        for engine in other.whole["engines"]:
            self.took_part(**engine)
        for name in ("results", "curve"):
            merged = {tuple(r[field] for field in WHICH): r for r in self.whole[name] + other.whole[name]}
            self.whole[name] = list(merged.values())

        def asked(found):
            return tuple(found.get(name) for name in ("engine", "vocab", "task", "does", "dtype"))

        measured = {asked(result) for result in self.whole["results"]}
        skips = {json.dumps(skip): skip for skip in self.whole["skipped"] + other.whole["skipped"]}
        self.whole["skipped"] = [skip for skip in skips.values() if asked({"dtype": "f32", **skip}) not in measured]

    def write(self, path):
        """Writes the file, a line for each result and each skip."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        head = json.dumps({**self.whole, **dict.fromkeys(LISTS, [])}, indent=1)
        for name in LISTS:
            lines = ",".join(f"\n  {json.dumps(entry)}" for entry in self.whole[name])
            head = head.replace(f'"{name}": []', f'"{name}": [{lines}\n ]' if lines else f'"{name}": []')
        Path(path).write_text(head + "\n")
