"""Answers that are programs, or that ask for all time and memory: nothing of them is run, and training goes on."""

import itertools
import json
import subprocess
import sys

from running import train_tiny, training_rows

PLACES = (
    *("{}", r"\text{{{}}}", r"\operatorname{{{}}}(1)", r"\operatorname{{diag}}({},1)", r"\gcd({},4)", r"\max({},3)"),
    *("x_{{{}}}", r"\{{\text{{{}}},1\}}", "({},1)", r"\begin{{pmatrix}}{}&1\end{{pmatrix}}", r"\sum_{{{}=1}}^3 n"),
    *(r"\frac{{d}}{{d{}}}x", "{}=1", "1<{}<2", r"{}\cup\{{1\}}", "f({})", r"1 \text{{ or {}}}", "{}!"),
)
PROGRAMS = (
    "canary",
    "canary()",
    "__import__('os').system('canary')",
    "().__class__.canary",
    "lambda: canary",
    "exec(canary)",
)
WATCHED = """
import json, sys
from apo_lightning.rewards.math_equivalence.judge import judge

judge("1", r"\\frac{2}{2}")
events = []

def watch(event, arguments):
    if event in ("compile", "exec", "import", "open", "os.system", "subprocess.Popen") and "canary" in str(arguments):
        events.append(event)

sys.addaudithook(watch)
answers = json.load(sys.stdin)
verdicts = {judge("2", answer) for answer in answers}
compile("canary", "the watch is awake", "eval")
print(sorted(verdicts), events)
"""


def test_no_part_of_an_answer_is_compiled_imported_opened_or_run():
    answers = [place.format(program) for place, program in itertools.product(PLACES, PROGRAMS)]
    run = subprocess.run([sys.executable, "-c", WATCHED], input=json.dumps(answers), capture_output=True, text=True)
    assert run.stdout == "['incorrect', 'unparsed'] ['compile']\n", run.stderr[-2000:]


def test_training_goes_on_under_a_flood_of_hostile_answers(tmp_path):
    train_tiny(
        tmp_path,
        *("reward=math_verify", "reward._target_=rewarding.HostileAnswers", "reward.timeout_s=0.5"),
        *("reward.memory_limit_gib=0.5", "trainer.max_steps=1", "group_size=2"),
    )
    [row] = training_rows(tmp_path)
    assert float(row["reward/num_error"]) == 0
    assert float(row["reward/num_timeout"]) >= 1
