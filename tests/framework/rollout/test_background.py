import threading
import time

import pytest

from apo_lightning.rollout.background import BackgroundBatches


def running_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("background batches")]


def test_what_arrives_during_a_batch_is_the_next_batch():
    batches, first_has_begun, may_go_on = [], threading.Event(), threading.Event()

    def work(items):
        batches.append(list(items))
        first_has_begun.set()
        assert may_go_on.wait(300)

    with BackgroundBatches(work) as background:
        background.put("a")
        assert first_has_begun.wait(300)
        for item in "bcd":
            background.put(item)
        may_go_on.set()
        background.finish()
    assert batches == [["a"], ["b", "c", "d"]]
    assert not running_threads()


def test_nothing_put_is_no_work():
    with BackgroundBatches(lambda items: pytest.fail(f"worked on {items}")) as background:
        background.finish()


def fail(items):
    raise ValueError(f"bad items {items}")


def put_and_finish(work, items):
    with BackgroundBatches(work) as background:
        for item in items:
            background.put(item)
        background.finish()


def put_after_a_failure(work, item):
    with BackgroundBatches(work) as background:
        background.put(item)
        while not background._calls[0].done():
            time.sleep(0.001)
        background.put("next")


def test_a_failure_is_raised_by_finish_and_by_the_next_put():
    with pytest.raises(ValueError, match="bad items"):
        put_and_finish(fail, "a")
    with pytest.raises(ValueError, match="bad items"):
        put_after_a_failure(fail, "a")
    assert not running_threads()


def test_an_error_in_the_block_drops_what_waits_and_ends_the_thread():
    done, has_begun, may_go_on = [], threading.Event(), threading.Event()

    def work(items):
        has_begun.set()
        assert may_go_on.wait(300)
        done.extend(items)

    def put_two_and_fail():
        with BackgroundBatches(work) as background:
            background.put("begun")
            assert has_begun.wait(300)
            background.put("waits")
            threading.Timer(0.2, may_go_on.set).start()
            raise KeyError("elsewhere")

    with pytest.raises(KeyError):
        put_two_and_fail()
    assert done == ["begun"]
    assert not running_threads()
