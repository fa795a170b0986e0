"""What a profiler counted of the kernels of steps, and the table of it."""

import json
from pathlib import Path

# The kernel before each step; see `Case::profile` of crates/cuda/examples/replay.
MARK = "numeric_check"
TILE = 256
STALLED = "smsp__average_warps_issue_stalled_"
STALLS_KEPT = 3
# What `kept` is called: (ncu's metric, a factor).
METRICS = {
    "us": ("gpu__time_duration.sum", 1e-3),
    "issue_pct": ("smsp__issue_active.avg.pct_of_peak_sustained_active", 1),
    "dram_pct": ("gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", 1),
    "dram_read_bytes": ("dram__bytes_read.sum", 1),
    "registers": ("launch__registers_per_thread", 1),
    "blocks": ("launch__grid_size", 1),
    "threads": ("launch__block_size", 1),
    "occupancy_pct": ("sm__warps_active.avg.pct_of_peak_sustained_active", 1),
    "instructions": ("smsp__inst_executed.sum", 1),
    "local_loads": ("l1tex__t_requests_pipe_lsu_mem_local_op_ld.sum", 1),
    "local_stores": ("l1tex__t_requests_pipe_lsu_mem_local_op_st.sum", 1),
}
# Ncu's words for stalls, in ours.
STALLS = {
    "long_scoreboard": "global memory",
    "short_scoreboard": "shared memory",
    "wait": "fixed latency",
    "barrier": "barrier",
    "math_pipe_throttle": "busy pipe",
    "not_selected": "other warps first",
    "no_instruction": "instruction fetch",
    "lg_throttle": "queue of loads",
    "mio_throttle": "queue of shared memory",
    "branch_resolve": "branch",
    "dispatch_stall": "dispatch",
    "imc_miss": "constant cache",
    "membar": "fence",
    "drain": "stores at the end",
}


HEADER = (
    "task",
    "rows like",
    "rows",
    "kernel",
    "us",
    "reads of the rows",
    "DRAM %",
    "issue slots %",
    "instructions a tile",
    "registers",
    "occupancy %",
    "local requests a row",
    "stalls, %",
)


def number(text):
    try:
        return float(text.replace(",", ""))
    except (AttributeError, ValueError):
        return None


def stalls(row):
    """The longest stalls, each with its share of the cycles between two instructions of a warp."""
    found = {}
    for name, text in row.items():
        if name.startswith(STALLED) and name.endswith("_per_issue_active.ratio") and number(text):
            found[name[len(STALLED) :].split("_per_issue_active")[0]] = number(text)
    whole = sum(found.values())
    found.pop("selected", None)
    largest = sorted(found, key=found.get, reverse=True)[:STALLS_KEPT]
    return {STALLS.get(name, name): round(found[name] / whole, 2) for name in largest}


class Kernels:
    """A list: of each kernel, its step (task, vocab, dtype, rows, rows_like), its name and what was counted."""

    def __init__(self, listed):
        self.listed = listed

    @classmethod
    def of_ncu(cls, rows, steps):
        """Of the rows of ncu's raw page (the first has units) and the steps that our program took, in its order."""
        listed, step = [], -1
        for row in rows[1:]:
            name = row["Kernel Name"].split("(")[0]
            if name == MARK:
                step += 1
                continue
            if step < 0:
                raise ValueError(f"{name} ran before the first mark")
            values = {kept: number(row.get(metric)) for kept, (metric, _) in METRICS.items()}
            scaled = {k: None if v is None else round(v * METRICS[k][1], 3) for k, v in values.items()}
            listed.append({**steps[step], "kernel": name, **scaled, "stalls": stalls(row)})
        if step + 1 != len(steps):
            raise ValueError(f"{step + 1} marks for {len(steps)} steps")
        return cls(listed)

    @classmethod
    def read(cls, path):
        return cls(json.loads(Path(path).read_text())["kernels"])

    def write(self, path):
        lines = ",\n ".join(json.dumps(kernel) for kernel in self.listed)
        Path(path).write_text('{"kernels": [\n ' + lines + "\n]}\n")

    def markdown(self):
        aligned = "|" + " --- |" * 2 + " ---: |" + " --- |" + " ---: |" * 8 + " --- |"
        lines = [f"| {' | '.join(HEADER)} |", aligned]
        return "\n".join(lines + [f"| {' | '.join(cells(k))} |" for k in self.listed]) + "\n"


def digits(value, form="{:.0f}"):
    return "-" if value is None else form.format(value)


def cells(k):
    bytes_per_logit = 4 if k["dtype"] == "f32" else 2
    row_bytes = k["rows"] * k["vocab"] * bytes_per_logit
    tiles = k["rows"] * -(-k["vocab"] // TILE)
    local = None if k["local_loads"] is None else k["local_loads"] + (k["local_stores"] or 0)

    def per(value, by):
        return None if value is None else value / by

    return [
        k["task"],
        k["rows_like"],
        str(k["rows"]),
        f"`{k['kernel']}`",
        digits(k["us"], "{:.1f}"),
        digits(per(k["dram_read_bytes"], row_bytes), "{:.2f}"),
        digits(k["dram_pct"]),
        digits(k["issue_pct"]),
        digits(per(k["instructions"], tiles), "{:.0f}"),
        digits(k["registers"]),
        digits(k["occupancy_pct"]),
        digits(per(local, k["rows"])),
        ", ".join(f"{name} {100 * share:.0f}" for name, share in k["stalls"].items()),
    ]
