"""A run that a user's code ends is no run that has ended well."""

import pytest

from processes import start_script
from running import RUN

pytestmark = pytest.mark.slow
REWARD = ("reward=callable", "reward.function._target_=interrupting.")


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ((REWARD[0], f"{REWARD[1]}ends"), "error: 16 of 16 completions of step 1 could not be judged"),
        ((REWARD[0], f"{REWARD[1]}huge"), "error: loss or gradient was not finite in any of the 2 optimizer steps"),
        (("+callbacks.ends._target_=interrupting.Ends",), "called sys.exit(0) before the run had ended"),
        (
            ("+callbacks.fails._target_=interrupting.Fails",),
            "in on_step: ZeroDivisionError: division by zero (its trace",
        ),
        (("+trainer.max_time=00:00:00:00",), "error: the trainer has ended at step 0 of 2 without training"),
    ],
)
def test_a_run_that_did_not_train_ends_with_an_error(overrides, said, tmp_path):
    sizes = ("data.num_validation=0", "prompts_per_minibatch=4", f"hydra.run.dir={tmp_path}")
    check_end(start_script("train", *RUN, *sizes, *overrides), said)


def check_end(script, said):
    assert script.wait() == [1], script.said
    assert said in script.said
    assert "Traceback" not in script.said
