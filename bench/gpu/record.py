"""What a run on a GPU found, as one JSON file under bench/record: complete, so that tables can be printed again."""

import json
import os
import platform
import subprocess
import time
from pathlib import Path

import plan

FORMAT = 1
OURS = "gumball"


def said_by(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def machine():
    gpu = said_by("nvidia-smi", "--query-gpu=name,driver_version,memory.total,clocks.max.sm", "--format=csv,noheader")
    root = Path(__file__).parents[2]
    built = root / ".gpu/commit"
    return {
        "gpu": gpu.splitlines()[0] if gpu else "",
        "processors": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}".lower(),
        "python": platform.python_version(),
        "commit": built.read_text().strip() if built.exists() else "",
    }


class Record:
    def __init__(self, budget_s=0):
        self.whole = {
            "format": FORMAT,
            "place": "gpu",
            "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine(),
            "settings": {
                "temperature": plan.TEMPERATURE,
                "top_k": plan.TOP_K,
                "top_p": plan.TOP_P,
                "min_p": plan.MIN_P,
                "rows_like": "a model: normal with sigma 2, 20 tokens a row raised by 6 to 14",
                "cold_bytes": plan.COLD_BYTES,
                "budget_s": budget_s,
            },
            "fields": plan.FIELDS,
            "engines": [],
            "results": [],
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
    def results(self):
        return self.whole["results"]

    def took_part(self, engine, version, runtime=""):
        if engine not in [other["engine"] for other in self.whole["engines"]]:
            self.whole["engines"].append({"engine": engine, "version": version, "runtime": runtime})

    def result(self, **found):
        """Keeps a result; what it does not say is that of a whole call on logits in f32."""
        found = {"does": "", "given": "logits", "dtype": "f32", "objection": None, **found}
        missing = {"engine", "task", "vocab", "rows", "mode", "median_us", "p95_us"} - found.keys()
        if missing:
            return self.skip(found.get("engine", ""), reason=f"a result without {', '.join(sorted(missing))}")
        values = {name: found[name] for name in plan.FIELDS if name in found}
        self.results.append({n: round(v, 3) if isinstance(v, float) else v for n, v in values.items()})

    def skip(self, engine, reason, **which):
        self.whole["skipped"].append({"engine": engine, **which, "reason": reason})

    def write(self, path):
        """Writes the file, a line for each result and each skip."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        long = {name: self.whole[name] for name in ("results", "skipped")}
        head = json.dumps({**self.whole, **dict.fromkeys(long, [])}, indent=1)
        for name, entries in long.items():
            lines = ",".join(f"\n  {json.dumps(entry)}" for entry in entries)
            head = head.replace(f'"{name}": []', f'"{name}": [{lines}\n ]' if entries else f'"{name}": []')
        Path(path).write_text(head + "\n")
