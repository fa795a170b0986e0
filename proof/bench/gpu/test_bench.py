"""The runner, with engines that are small scripts and a program of ours that prints: who takes part, what is kept of
it, what tables say. No GPU, no package, and no time is looked at.

    python3 -m unittest discover proof/bench/gpu
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import counters
import curve
import drafts
import families
import figures
import operators
import page
import plan
import runner
import table
import verifications
from asked import Asked
from calls import CALLS
from process import Engine
from record import OURS, Record

WAYS = [
    {"task": "plain", "does": "race", "given": "logits"},
    {"task": "plain", "does": "race of probabilities", "given": "probabilities"},
]
# The lines that a script prints; `asked` is the request.
SCRIPT = """
import json, os, sys, time
def say(**line): print(json.dumps(line), flush=True)
say({first})
for line in sys.stdin:
    asked = json.loads(line)["measure"]
    {answer}
    say(done={{}})
"""
# Our program prints, and writes rows where it is asked to.
OURS_SCRIPT = """#!{python}
import sys
from pathlib import Path
options = dict(zip(sys.argv, sys.argv[1:]))
if "--write-rows" in options:
    Path(options["--write-rows"], f"{{options['--like']}}-{{sys.argv[-2]}}.f32").write_bytes(b"rows")
print({text!r})
"""
# Ways of operators: one takes two types, one is asked of no more than so many chains.
OPERATOR_WAYS = [
    {"task": "softmax", "does": "fused", "given": "logits", "dtypes": ["f32", "bf16", "f16"]},
    {"task": "chain", "does": "rejection", "given": "drafts", "dtypes": ["f32"]},
]
MINE = {
    "engine": OURS,
    "version": "2",
    "does": "step",
    "task": "plain",
    "vocab": 64,
    "rows": 1,
    "mode": "graph",
    "median_us": 2.0,
    "p95_us": 3.0,
}
RESULT = (
    'say(result=dict(rows=1, mode="graph", median_us={us}, p95_us=9.0, samples=12, calls=3, objection={objection}))'
)


def hello(ways=WAYS):
    return f"hello={dict(engine='x', version='1', runtime='none', triton=False, ways=ways)}"


def result(us, objection=None):
    return RESULT.format(us=us, objection=repr(objection))


class Runs(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def script(self, name, first, answer="pass"):
        path = Path(self.folder.name, name)
        path.write_text(SCRIPT.format(first=first, answer=answer))
        return Engine(name, [sys.executable, str(path)])

    def ours(self, lines):
        path = Path(self.folder.name, "ours")
        text = "\n".join(lines)
        path.write_text(OURS_SCRIPT.format(python=sys.executable, text=text))
        path.chmod(0o755)
        return path

    def run_with(self, *engines, ours=("a table", "and no JSON"), budget=100, part="all"):
        out = Path(self.folder.name, "record.json")
        asked = Asked(part, None if part in ("operators", "python") else [64], [1, 512], ("plain", "softmax", "chain"))
        return runner.run(engines, runner.Programs(self.ours(ours)), asked, out, plan.Budget(budget)), out

    def test_results_are_kept_under_the_way_and_a_record_survives_its_file(self):
        record, out = self.run_with(self.script("good", hello(), result(8.0)), ours=[json.dumps(MINE)])
        self.assertEqual(
            [(r["engine"], r["given"]) for r in record.results],
            [(OURS, "logits"), ("good", "logits"), ("good", "probabilities")],
        )
        self.assertEqual([(e["engine"], e["version"]) for e in record.whole["engines"]], [("good", "1"), (OURS, "2")])
        self.assertEqual(record.whole["skipped"], [])
        self.assertEqual(Record.read(out).whole, record.whole)
        tables = table.markdown(record)
        self.assertIn("| plain | gumball |  | logits | **2.00 us** |", tables)
        self.assertIn("| plain | good | race of probabilities | probabilities | 4.00 |", tables)
        self.assertIn("| plain | given logits | 4.00 good |", tables)

    def test_parts_of_a_run_are_joined_and_the_later_result_counts(self):
        whole, _ = self.run_with(ours=[json.dumps(MINE)], part="ours")
        self.assertEqual([r["does"] for r in whole.results], ["step"])
        rivals, _ = self.run_with(self.script("good", hello(), result(8.0)), ours=[json.dumps(MINE)], part="rivals")
        self.assertEqual({r["engine"] for r in rivals.results}, {"good"})
        curve, _ = self.run_with(ours=[json.dumps({**MINE, "median_us": 1.0})], part="curve")
        self.assertEqual((curve.results, [r["median_us"] for r in curve.curve]), ([], [1.0]))
        again, _ = self.run_with(ours=[json.dumps({**MINE, "median_us": 4.0})], part="ours")
        for other in (rivals, curve, again):
            whole.join(other)
        self.assertEqual([r["part"] for r in whole.whole["runs"]], ["ours", "rivals", "curve", "ours"])
        self.assertEqual([r["median_us"] for r in whole.results], [4.0, 8.0, 8.0])

    def test_operators_are_measured_in_each_type_and_skipped_where_ours_told_nothing(self):
        answer = """
    for rows in asked["rows"]:
        say(result=dict(rows=rows, dtype=asked["dtype"], mode=asked["modes"][-1], median_us=9.0, p95_us=9.0, objection=None))"""
        mine = [json.dumps({**MINE, "does": "operator", "task": "softmax", "vocab": 151936})]
        record, _ = self.run_with(self.script("good", hello(OPERATOR_WAYS), answer), ours=mine, part="operators")
        rivals = [(r["task"], r["vocab"], r["dtype"], r["rows"]) for r in record.results if r["engine"] == "good"]
        shapes = [(vocab, dtype) for vocab, dtype, tasks in plan.OPERATOR_SHAPES if "softmax" in tasks]
        self.assertEqual(
            [r for r in rivals if r[0] == "softmax"],
            [("softmax", *shape, rows) for shape in shapes for rows in (1, 512)],
        )
        self.assertEqual({r[3] for r in rivals if r[0] == "chain"}, {1})
        self.assertIn("the program told nothing of it", [skip["reason"] for skip in record.whole["skipped"]])
        self.assertIn("| 151936 | f32 | softmax | ours, us | 2.00 | - |", operators.softmaxes(record, None))
        self.assertIn("|  |  |  | good | 4.50 | - |", operators.softmaxes(record, None))
        self.assertIn("| softmax with temperature, to f32 | 2.00 (3.00) | - |", operators.operators(record, None))

    def test_families_are_measured_one_after_the_other_with_the_worst_and_the_least_lead(self):
        answer = """
    us = {"model": 4.0, "bell": 6.0, "flat": 30.0, "equal": 50.0}[asked["like"]]
    say(result=dict(rows=asked["rows"][-1], rows_like=asked["like"], mode="+".join(asked["modes"]), median_us=us, p95_us=9.0, objection=None))"""
        ways = [{"task": task, "does": "race", "given": "logits"} for task in ("plain", "mixture", "mixture-3")]
        likes = {"model": 2.0, "bell": 8.0, "flat": 20.0, "equal": 10.0}
        mine = [
            {**MINE, "vocab": 151936, "rows": 512, "rows_like": like, "median_us": us} for like, us in likes.items()
        ]
        mine += [{**each, "rows": 1, "task": "mixture-3", "median_us": 2.0} for each in mine]
        asked = Asked("families", None, [1, 512], ("plain", "mixture", "mixture-3"), likes)
        programs = runner.Programs(self.ours([json.dumps(result) for result in mine]))
        out = Path(self.folder.name, "record.json")
        record = runner.run([self.script("good", hello(ways), answer)], programs, asked, out, plan.Budget(100))
        rivals = [(r["task"], r["rows"], r["rows_like"]) for r in record.results if r["engine"] == "good"]
        of_each = (("plain", 1), ("mixture-3", 1), ("plain", 512), ("mixture", 512))
        self.assertEqual(rivals, [(*which, like) for like in likes for which in of_each])
        text = families.every(record, None)
        self.assertIn("| plain | median | - | - | - | 9.00 |", text)
        self.assertIn("|  | worst | - | - | - | 20.0 (flat) |", text)
        self.assertIn("|  | least lead | - | - | - | **0.75** (good; bell) |", text)
        self.assertIn("| mixture | median | 2.00 | - | - | - |", text)
        # Of an engine that the table does not name there is a row without its times.
        self.assertIn("| plain | bell | - | - | - | 8.00; -, -, - |", families.each(record, None))
        for result in record.results:
            result["engine"] = "vllm" if result["engine"] == "good" else result["engine"]
        self.assertIn("| plain | bell | - | - | - | 8.00; -, -, **0.75** |", families.each(record, None))
        self.assertIn("|  | worst | 2.00 (model, request 3) | - | - | - |", text)
        self.assertIn("| plain | - | - | - | 20.0 (flat) |", families.worst(record, None))

    def test_drafts_are_judged_by_rivals_over_the_rows_of_ours(self):
        answer = """
    assert open(asked["file"]).read() == "rows"
    for rows in asked["rows"]:
        say(result=dict(rows=rows, mode="+".join(asked["modes"]), median_us=6.0, p95_us=9.0, objection=None))"""
        task = "verify-plain-tree-64"
        ways = [{"task": each, "does": "race", "given": "logits"} for each in (task, "plain", "verify-greedy-chain-3")]
        mine = {**MINE, "vocab": 151936, "task": task, "does": verifications.NONE_ACCEPTED}
        asked = Asked(
            "verify",
            None,
            plan.VERIFIED_REQUESTS,
            (task, "verify-greedy-chain-3"),
            without=("good:verify-greedy-chain-3",),
        )
        out, programs = Path(self.folder.name, "record.json"), runner.Programs(self.ours([json.dumps(mine)]))
        record = runner.run([self.script("good", hello(ways), answer)], programs, asked, out, plan.Budget(100))
        rivals = [(r["task"], r["rows"], r["mode"]) for r in record.results if r["engine"] == "good"]
        self.assertEqual(rivals, [(task, 1, "graph"), (task, 8, "graph")])
        text = verifications.table(record, None)
        self.assertIn("| 151936 | tree-64 | plain | ours, us | 2.00 | - | - | - |", text)
        self.assertIn("|  |  |  | good: race | 3.00 | - | - | - |", text)

    def test_rows_that_ours_did_not_write_are_no_rows_for_rivals(self):
        asked = Asked("families", None, [1], ("plain",), ["model"])
        programs = runner.Programs(Path("/none"))
        out = Path(self.folder.name, "record.json")
        record = runner.run([self.script("good", hello())], programs, asked, out, plan.Budget(100))
        self.assertEqual(record.results, [])
        self.assertIn("the program wrote no rows", [skip["reason"] for skip in record.whole["skipped"]])

    def test_calls_from_python_are_eager_at_one_row_with_our_package_among_the_engines(self):
        answer = """
    say(result=dict(rows=1, dtype="f32", mode="+".join(asked["modes"]), median_us={us}, p95_us=90.0, objection=None))"""
        engines = [
            self.script(name, hello(OPERATOR_WAYS), answer.format(us=us))
            for name, us in (("gumball_python", 30.0), ("flashinfer", 60.0))
        ]
        record, _ = self.run_with(*engines, part="python")
        self.assertEqual({(r["mode"], r["rows"], r["vocab"]) for r in record.results}, {("eager", 1, plan.MAIN_VOCAB)})
        self.assertIn(
            "| softmax with temperature, to f32 | 30.0 (90.0) | - | 60.0 (90.0) | - |", operators.python(record, None)
        )

    def test_whole_steps_from_python_are_eager_at_several_rows(self):
        answer = """
    for rows in asked["rows"]:
        say(result=dict(rows=rows, dtype="f32", mode="+".join(asked["modes"]), median_us={us}, p95_us=90.0, objection=None))"""
        engines = [
            self.script(name, hello(WAYS[:1]), answer.format(us=us))
            for name, us in (("gumball_python", 30.0), ("tokenspeed_backend", 60.0))
        ]
        out = Path(self.folder.name, "record.json")
        asked, programs = Asked("python", None, plan.HOST_ROWS, ("plain",)), runner.Programs(self.ours([]))
        record = runner.run(engines, programs, asked, out, plan.Budget(100))
        shapes = {(r["vocab"], r["rows"]) for r in record.results}
        self.assertEqual(shapes, {(vocab, rows) for vocab in plan.HOST_VOCABS for rows in plan.HOST_ROWS})
        self.assertIn("| 32768 | 8 | plain | 30.0 (90.0) | 60.0 (90.0) | - | - |", operators.whole_calls(record, None))

    def test_an_engine_that_cannot_be_is_named_with_its_reason(self):
        record, _ = self.run_with(self.script("none", "absent=dict(reason='no such package')"))
        self.assertEqual(record.whole["skipped"], [{"engine": "none", "reason": "no such package"}])

    def test_an_engine_that_ends_is_started_again_without_the_way(self):
        answer = f"sys.exit('device lost') if asked['way'] == 0 else {result(5.0)}"
        record, _ = self.run_with(self.script("frail", hello(), answer))
        self.assertEqual([r["does"] for r in record.results], ["race of probabilities"])
        self.assertEqual([s["reason"] for s in record.whole["skipped"]], ["ended: device lost"])

    def test_what_the_budget_does_not_cover_is_left_out(self):
        record, _ = self.run_with(self.script("slow", hello(), "time.sleep(1)"), budget=4)
        self.assertEqual([s["reason"] for s in record.whole["skipped"]], ["no time was left"] * 2)

    def test_answers_that_cannot_be_right_are_in_the_record_and_in_no_table_of_times(self):
        record, _ = self.run_with(self.script("wrong", hello(), result(5.0, "a token is none of 0..64")))
        self.assertEqual(len(record.results), 2)
        self.assertNotIn("5.00", table.best(record.results) + table.every(record.results))
        self.assertIn("wrong: race: vocab 64, 1 rows: a token is none of 0..64", table.left_out(record))


class Profiles(unittest.TestCase):
    STEPS = [
        {"task": "plain", "vocab": 512, "dtype": "f32", "rows": 2, "rows_like": "model"},
        {"task": "top-p", "vocab": 512, "dtype": "f32", "rows": 2, "rows_like": "flat"},
    ]

    def row(self, name, **values):
        return {"Kernel Name": f"{name}(Step)", **{counters.METRICS[kept][0]: text for kept, text in values.items()}}

    def test_the_mark_is_a_kernel_of_ours_that_a_profile_launches(self):
        cuda = Path(__file__).parents[3] / "crates" / "cuda"
        for file, text in (
            (f"kernels/{counters.MARK}.cu", f"KERNEL({counters.MARK}, "),
            ("examples/replay/time_steps.rs", f"{counters.MARK}::check("),
        ):
            self.assertIn(text, (cuda / file).read_text())

    def test_kernels_are_told_to_the_step_whose_mark_comes_before(self):
        stalled = {
            counters.STALLED + f"{name}_per_issue_active.ratio": text
            for name, text in {"selected": "1", "long_scoreboard": "2", "barrier": "1"}.items()
        }
        survey = self.row("survey_f32_few", us="2,500", dram_read_bytes="8192", instructions="400", local_loads="0")
        rows = [
            {"Kernel Name": ""},
            self.row(counters.MARK),
            {**survey, **stalled},
            self.row(counters.MARK),
            self.row("finish"),
        ]
        kernels = counters.Kernels.of_ncu(rows, self.STEPS)
        self.assertEqual(
            [(k["task"], k["kernel"]) for k in kernels.listed], [("plain", "survey_f32_few"), ("top-p", "finish")]
        )
        self.assertIn(
            "| plain | model | 2 | `survey_f32_few` | 2.5 | 2.00 | - | - | 100 | - | - | 0 | "
            "global memory 50, barrier 25 |",
            kernels.markdown(),
        )
        with self.assertRaises(ValueError):
            counters.Kernels.of_ncu(rows[:3], self.STEPS)


class Documents(unittest.TestCase):
    def test_a_curve_jumps_where_a_size_takes_more_than_its_rows_or_less(self):
        smooth = [(rows, 3 + 1.2 * curve.floor_us(rows, 151936, "f32")) for rows in range(1, 65)]
        self.assertEqual(list(curve.jumps(smooth, 151936, "f32")), [])
        alone = [(rows, us + (rows == 9)) for rows, us in smooth]
        self.assertEqual(list(curve.jumps(alone, 151936, "f32")), [])
        raised = [(rows, us + (rows >= 9)) for rows, us in smooth]
        self.assertEqual([(before, rows) for before, rows, *_ in curve.jumps(raised, 151936, "f32")], [(8, 9)])
        lowered = [(rows, us - (rows >= 9)) for rows, us in smooth]
        self.assertEqual([(before, rows) for before, rows, *_ in curve.jumps(lowered, 151936, "f32")], [(8, 9)])

    def test_the_curve_has_rivals_that_start_from_logits(self):
        record = Record()
        for engine, given, us in (("a", "logits", 9.0), ("b", "logits", 7.0), ("c", "probabilities", 1.0)):
            record.result(
                engine=engine,
                task="plain",
                does="race",
                given=given,
                vocab=64,
                rows=8,
                mode="graph",
                median_us=us,
                p95_us=us,
            )
        self.assertEqual(curve.rivals(record, 64, "f32"), {"plain": [(8, 7.0)]})

    def test_ways_add_up_what_a_call_is_made_of_and_leave_out_what_was_not_measured(self):
        record = Record()
        for task, does, given, us in (
            ("softmax", "softmax", "logits", 5.0),
            ("probs-plain", "draw", "probabilities", 2.0),
        ):
            record.result(
                engine=OURS,
                task=task,
                does=does,
                given=given,
                vocab=plan.MAIN_VOCAB,
                rows=1,
                mode="graph",
                median_us=us,
                p95_us=us,
            )
        ways = figures.ways(record, None)
        self.assertIn("| Gumball | softmax, then a race on the probabilities | 7.00 | - |", ways)
        self.assertIn("| Gumball | a Gumbel race on the logits | - | - |", ways)
        self.assertIn("| TokenSpeed, vLLM | a Gumbel race on the logits, the faster of the two | - | - |", ways)

    def test_a_page_has_every_table_and_names_its_record(self):
        text = page.page(Record(), None, "today-gpu.json")
        self.assertTrue(text.startswith("# today-gpu\n") and "(today-gpu.json)" in text)
        for heading, *_ in page.SECTIONS:
            self.assertIn(f"\n## {heading}\n", text)

    def test_documents_say_what_the_newest_record_has(self):
        document = Path(__file__).with_name("document")
        checked = subprocess.run([sys.executable, "-B", str(document), "--check"], capture_output=True, text=True)
        self.assertEqual((checked.returncode, checked.stdout), (0, "not as the record has it: none\n"), checked.stderr)


class Plans(unittest.TestCase):
    def test_rows_are_cold_at_every_shape(self):
        self.assertEqual(plan.rows_of("chain", plan.ROWS), [1, 8, 32, 128])
        self.assertEqual(plan.rows_of("mixture", plan.ROWS), [8, 32, 128, 512])
        self.assertEqual(plan.rows_of("mixture-3", plan.ROWS), [1])
        for vocab in plan.VOCABS:
            for rows in plan.ROWS:
                calls = plan.batches(vocab, rows)
                self.assertTrue(calls >= 2 and calls * rows * vocab * 4 >= plan.COLD_BYTES)

    def test_our_program_has_the_families_and_the_tasks(self):
        replay = Path(__file__).parents[3] / "crates/cuda/examples/replay"
        rows, requests = ((replay / name).read_text() for name in ("rows.rs", "requests.rs"))
        self.assertEqual([like for like in plan.LIKES if f'name: "{like}"' not in rows], [])
        self.assertEqual(
            [
                task
                for task in (*plan.TASKS, *plan.FAMILY_TASKS)
                if f'("{task}"' not in requests and task not in plan.DRAWS
            ],
            [],
        )

    def test_a_tree_is_the_same_by_all_its_links(self):
        name, tree = drafts.split("verify-top-k-top-p-tree-8")
        self.assertEqual(
            (name, plan.rows_each("verify-top-k-top-p-tree-8"), plan.rows_each("plain")), ("top-k-top-p", 9, 1)
        )
        self.assertEqual(tree.parents(), [-1, 0, 0, 1, 1, 2, 2, 3, 3])
        self.assertEqual(tree.depths(), [0, 1, 1, 2, 2, 2, 2, 3, 3])
        self.assertEqual(tree.first_children(), [1, 3, 5, 7, -1, -1, -1, -1, -1])
        self.assertEqual(tree.next_siblings(), [-1, 2, -1, 4, -1, 6, -1, 8, -1])
        _, chain = drafts.split("verify-mixture-chain-3")
        self.assertEqual((chain.first_children(), chain.next_siblings()), ([1, 2, 3, -1], [-1] * 4))
        self.assertEqual(chain.tokens(2, 5), [[0, 0, 1, 2], [0, 3, 4, 0]])
        self.assertEqual(plan.request("verify-mixture-chain-3"), plan.MIXTURE)
        self.assertEqual(plan.rows_of("verify-mixture-chain-3", plan.VERIFIED_REQUESTS), [8, 32, 128])
        self.assertEqual(plan.rows_of("verify-plain-tree-64", plan.VERIFIED_REQUESTS), [1, 8])

    def test_a_mixture_asks_for_its_requests_alone(self):
        shapes = list(Asked("families", tasks=("mixture", "top-p")).shapes())
        alone = tuple(f"mixture-{index}" for index in range(8))
        self.assertEqual(shapes, [(plan.MAIN_VOCAB, "f32", ["mixture", *alone, "top-p"])])

    def test_runs_that_are_named_ask_for_what_there_is(self):
        for name, options in CALLS.items():
            asked = Asked(options["part"], tasks=options["tasks"] if "tasks" in options else None)
            found = [task for *_, tasks in asked.shapes() for task in tasks]
            self.assertEqual(set(options.get("tasks", [])) - set(found), set(), name)
            self.assertEqual(set(options.get("like", [])) - set(plan.LIKES), set(), name)

    def test_rows_take_parameters_in_turn(self):
        self.assertEqual(plan.column(plan.MIXTURE, "top_k", 11), [0, 0, 40, 0, 0, 0, 0, 0, 0, 0, 40])
        self.assertEqual(plan.column(plan.request("top-p"), "top_p", 2), [0.9, 0.9])
        greedy = plan.MIXTURE[0]
        self.assertEqual((greedy.of_one().temperature, greedy.of_one().top_k), (1.0, 1))
        self.assertEqual(plan.MIXTURE[6].without("repetition"), plan.Params(top_p=0.8))

    def test_percentiles_are_samples(self):
        self.assertEqual(plan.of_samples(range(20, 0, -1)), {"median_us": 11, "p95_us": 20, "samples": 20})

    def test_the_command_lists_what_is_missing(self):
        run = Path(__file__).with_name("run")
        listed = subprocess.run(
            [sys.executable, str(run), "--dry-run", "--ours", "/none", "--engines", "nobody"],
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertIn("gumball: /none, which is missing", listed.stdout)
        self.assertIn("nobody: missing, ", listed.stdout)


if __name__ == "__main__":
    unittest.main()
